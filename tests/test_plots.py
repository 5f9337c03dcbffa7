"""The pictures show what the traces say."""

import json
import re
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest

from bench import plots, report, workloads
from stagewise.tracing import free_blocks
from tests.adapter import ROOT, STAGES


@pytest.fixture(scope="module")
def traces(babble):
    """Stage number -> the trace of the same nine requests."""
    requests = [(prompt, n % 24 + 1) for prompt, n in workloads.make_workload("tail", count=9)]
    done = {}
    for stage in STAGES[:5]:
        arguments = {"max_num_seqs": 3, "max_model_len": 128}
        llm = stage.traced(babble, **{k: v for k, v in arguments.items() if stage.has_option(k)})
        params = [stage.SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for _, n in requests]
        llm.generate([prompt for prompt, _ in requests], params)
        done[stage.number] = llm.trace
    return done


def texts(figure) -> str:
    """All titles and labels of a picture."""
    return "\n".join(text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text")))


def percent(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"(\d+)%", text)]


def is_whole(figure) -> bool:
    """Whether all of a picture, its labels too, lies inside its edges."""
    figure.draw_without_rendering()
    drawn, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    return min(drawn.x0, drawn.y0) >= 0 and drawn.x1 <= width and drawn.y1 <= height


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5])
def test_nobody_shares_a_slot(traces, number):
    where, slots = plots.places(traces[number]), {1: 1}.get(number, 3)
    assert sorted(where) == [str(i) for i in range(9)]
    assert set(where.values()) == set(range(slots))
    for step in traces[number]:
        taken = [where[row.request_id] for row in step.rows]
        assert len(taken) == len(set(taken))


def test_slots_tell_the_waste(traces):
    figure = plots.slots({"static": traces[3], "continuous": traces[4]})
    assert is_whole(figure)
    static, continuous = percent(texts(figure))
    assert static > continuous > 0
    for axes, trace in zip(figure.axes, (traces[3], traces[4]), strict=True):
        steps = {row.request_id: 0 for step in trace for row in step.rows}
        assert len(axes.collections) == 3 * len(steps)  # a bar, its outline and its prefill for each request
    ends = plots.batch_ends(traces[3])
    assert len(figure.axes[0].lines) == len(ends) >= 2
    assert not plots.batch_ends(traces[4])


def titles(figure) -> list[str]:
    return [axes.get_title(loc="left") for axes in figure.axes[:2]]


def test_padding_is_counted(traces):
    figure = plots.padding({"stage 2": traces[2], "stage 4": traces[4]})
    assert is_whole(figure)
    rows = [row for step in traces[2] for row in step.rows]
    wasted = sum(row.num_padding for row in rows)
    total = wasted + sum(row.num_tokens for row in rows)
    first, second = titles(figure)
    assert first == f"stage 2: {wasted / total:.0%} of {total:,} places are padding"
    assert second.startswith("stage 4: 0% of")
    first_step = [row.num_padding / (row.num_padding + row.num_tokens) for row in traces[2][0].rows]
    assert figure.axes[0].images[0].get_array()[:, 0].tolist() == first_step


def test_kv_memory_is_counted(traces):
    figure = plots.kv_memory({"stage 4": traces[4], "stage 5": traces[5]})
    assert is_whole(figure)
    for title, number in zip(titles(figure), (4, 5), strict=True):
        used = sum(step.kv_tokens_used for step in traces[number])
        reserved = sum(step.kv_tokens_reserved for step in traces[number])
        assert f"{used / reserved:.0%} of what is reserved" in title


def test_block_map_marks_what_is_shared(babble):
    stage = STAGES[4]
    llm = stage.traced(babble, num_blocks=20)
    llm.generate([[1] * 40], stage.SamplingParams(n=3, max_tokens=4, ignore_eos=True, seed=0))
    figure = plots.block_map(llm.trace)
    assert is_whole(figure)
    image = figure.axes[0].images[0].get_array()
    shared = (image == plots.to_rgb(plots.INK)).all(axis=-1)
    assert shared[:, -1].sum() == 2  # two full blocks of the prompt, held by three; of the third each has its own
    saved = max(step.num_blocks_saved for step in llm.trace)
    assert saved >= 4
    assert f"save up to {saved}" in texts(figure)
    copied = [(i, e["target"]) for i, step in enumerate(llm.trace) for e in step.before if e["kind"] == "copied"]
    assert figure.axes[0].collections[-1].get_offsets().tolist() == [list(map(float, pair)) for pair in copied]
    llm.generate([[2] * 20], stage.SamplingParams(max_tokens=3))
    image = plots.block_map(llm.trace).axes[0].images[0].get_array()
    gray = (image == plots.to_rgb(plots.GRAY)).all(axis=-1)
    num_findable = free_blocks(llm.engine.block_manager)["num_findable"]  # and the last step's
    released = [e["cached"] for e in llm.trace[-1].after if e["kind"] == "released"]
    assert gray[:, -1].sum() == num_findable - sum(released) > 0


def test_ladder_compares_consecutive_engines():
    result = json.loads((ROOT / "bench/results/tail.json").read_text())
    speeds = [row["tokens_per_second"] for row in result["summary"]]
    figure = plots.ladder(result)
    assert is_whole(figure)
    told = texts(figure)
    for before, after in pairwise(speeds):
        assert f"({after / before:.2g} ×)" in told
    assert f"Stage 6 against stage 1: {speeds[-1] / speeds[0]:.2g} × faster" in told
    assert "A token needs 25 × fewer places" in told
    assert "3 KV cache" in told
    mixed = json.loads((ROOT / "bench/results/mixed.json").read_text())
    first, last = mixed["summary"]
    told = texts(plots.ladder(mixed))
    assert f"The next token comes\n{last['itl_p50'] / first['itl_p50']:.2g} × later (p50)" in told
    assert f"The first token comes\n{first['ttft_p50'] / last['ttft_p50']:.2g} × sooner (p50)" in told
    assert f"holds {last['rows_mean'] / first['rows_mean']:.2g} × more requests" in told


def test_the_others_draw(traces):
    rows = [{"rate": r, "ttft_p50": 0.1, "ttft_p95": 0.1 * r, "itl_p50": 0.01, "itl_p95": 0.02} for r in (1, 2, 4)]
    pictures = [
        plots.time_per_token({"stage 1": traces[1], "stage 3": traces[3]}, {"stage 3": [1e-4] * 9}),
        plots.batch_size({1: traces[1], 3: traces[3]}, {1: 1e5, 3: 1e5}, bend=2.4),
        plots.gain([(1.0, traces[3], traces[4]), (0.0, traces[3], traces[3])]),
        plots.latency({"stage 4": rows}),
        plots.guesses({1: 1.8, 2: 2.4, 4: 3.6}, right=0.8),
    ]
    assert "stage 3, the machine's limit" in texts(pictures[0])
    assert "from 2.4 rows on" in texts(pictures[1])
    assert "p95 of the wait is 4 ×" in texts(pictures[3])
    assert "Nothing at equal lengths (1.00 ×)" in texts(pictures[2])
    assert "4 × the guesses give 2.0 × the tokens per step" in texts(pictures[4])
    _, formula = pictures[4].axes[0].lines
    assert formula.get_xydata() == pytest.approx(np.array([[1, 1.8], [2, 2.44], [3, 2.952], [4, 3.3616]]))
    assert all(map(is_whole, pictures))
    assert pictures[0]._repr_png_().startswith(b"\x89PNG")


def test_servers_under_load():
    """Every server's median and 99th percentile of both waits, at the throughput that it reached."""
    waits = {"p50_ttft_ms": 1, "p99_ttft_ms": 2, "p50_itl_ms": 3, "p99_itl_ms": 4}
    runs = [{"engine": engine, "output_throughput": held, **waits} for engine in ("6", "vllm") for held in (10, 20)]
    figure = plots.latency_against_throughput(runs)
    drawn = [{line.get_label(): line.get_xydata().tolist() for line in axes.lines} for axes in figure.axes]
    assert drawn[0]["stage 6, p99"] == [[10, 2], [20, 2]]
    assert drawn[1]["vLLM, p50"] == [[10, 3], [20, 3]]
    assert [len(lines) for lines in drawn] == [4, 4]


@pytest.mark.parametrize("name", report.PICTURES)
def test_pictures_of_results_are_drawn_from_them(name):
    """They follow the reader's scheme, and need nothing from elsewhere; their titles are what the result says."""
    drawn = (report.RESULTS / f"{name}.svg").read_text(encoding="utf-8")
    root = ElementTree.fromstring(drawn)
    (title,) = root.findall("{http://www.w3.org/2000/svg}title")
    assert title.text == report.picture(name).message, "python -m bench.report --write"
    assert "prefers-color-scheme: dark" in drawn
    rest = drawn[drawn.index("</style>") :].lower()
    assert not [color for color in plots.DARK if color.lower() in rest]
    assert "<script" not in drawn
    assert "<image" not in drawn
    pages = [*ROOT.glob("stage*/*.md"), *ROOT.glob("stagewise/*/*.md")]
    assert any(f"bench/results/{name}.svg" in page.read_text(encoding="utf-8") for page in pages)
