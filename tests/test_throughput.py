"""The stages side by side: what each computes, by formulas; the order between them; the benchmark itself."""

import heapq
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from bench import engines, machine, race, report, throughput, workloads
from bench.machine import least_seconds, pass_work
from bench.peers import PEERS, llama_cpp_sampler
from bench.run import check_outputs
from stage01_single.model import ModelConfig
from stagewise.stages import IDEAS
from tests.adapter import ROOT, STAGES, wait_until

SLOTS, CONTEXT = 4, 160
MACHINE = {"device": "A", "threads": 1, "cores": 2, "torch": "2"}


@pytest.fixture(scope="module")
def tail():
    return workloads.make_workload("tail", count=12)


@pytest.fixture(scope="module")
def engines_after_tail(babble, tail):
    """Every stage's engine after the same requests."""
    done = []
    for stage in STAGES:
        limits = {"max_num_seqs": SLOTS, "max_model_len": CONTEXT}
        llm = stage.LLM(babble, device="cpu", **{k: v for k, v in limits.items() if stage.has_option(k)})
        params = [stage.SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for _, n in tail]
        llm.generate([prompt for prompt, _ in tail], params)
        done.append(llm)
    return done


# --- What each stage computes -----------------------------------------------------------------------------------------


def static_batches(workload) -> list[list[tuple[int, int]]]:
    """(prompt, output) lengths of each batch: the longest prompts first."""
    lengths = sorted(((len(prompt), n) for prompt, n in workload), key=lambda pair: -pair[0])
    return [lengths[i : i + SLOTS] for i in range(0, len(lengths), SLOTS)]


def slot_passes(workload) -> int:
    """Forward passes if every request takes the first slot that gets free and keeps it for all its tokens."""
    free = [0] * SLOTS
    for n in sorted((n for _, n in workload), reverse=True):  # `generate` begins with the longest outputs
        heapq.heappush(free, heapq.heappop(free) + n)
    return max(free)


def test_stage01_computes_the_sequence_for_every_token(engines_after_tail, tail):
    stats = engines_after_tail[0].stats
    assert stats.num_forwards == sum(n for _, n in tail)
    assert stats.num_tokens_computed == sum(len(p) * n + n * (n - 1) // 2 for p, n in tail)
    assert stats.num_padding_tokens == 0


def test_stage02_computes_the_same_tokens_in_rectangles(engines_after_tail, tail):
    stats, positions = engines_after_tail[1].stats, 0
    for batch in static_batches(tail):
        for step in range(max(n for _, n in batch)):
            positions += len(batch) * max(prompt + min(step, n) for prompt, n in batch)
    assert stats.num_forwards == sum(max(n for _, n in batch) for batch in static_batches(tail))
    assert stats.num_tokens_computed == engines_after_tail[0].stats.num_tokens_computed
    assert stats.num_padding_tokens == positions - stats.num_tokens_computed


def test_stage03_computes_every_token_once(engines_after_tail, tail):
    stats, positions, reserved = engines_after_tail[2].stats, 0, 0
    for batch in static_batches(tail):
        steps, longest = max(n for _, n in batch), max(prompt for prompt, _ in batch)
        positions += len(batch) * (longest + steps - 1)
        reserved += steps * len(batch) * (longest + steps - 1)
    assert stats.num_forwards == engines_after_tail[1].stats.num_forwards
    assert stats.num_tokens_computed == sum(len(p) + n - 1 for p, n in tail)
    assert stats.num_padding_tokens == positions - stats.num_tokens_computed
    assert stats.kv_tokens_reserved == reserved


def test_stage04_fills_slots(engines_after_tail, tail):
    stats = engines_after_tail[3].stats
    assert stats.num_forwards == slot_passes(tail)
    assert stats.num_tokens_computed == sum(len(p) + n - 1 for p, n in tail)
    assert stats.num_padding_tokens == 0
    assert stats.kv_tokens_reserved == CONTEXT * sum(n for _, n in tail)  # a slot for as many steps as it has tokens
    assert stats.kv_tokens_used == sum(len(p) + i for p, n in tail for i in range(n))


def test_stage05_takes_blocks_as_it_needs_them(engines_after_tail, tail):
    stats, block = engines_after_tail[4].stats, 16
    assert stats.num_forwards == slot_passes(tail)
    assert stats.num_tokens_computed == sum(len(p) + n - 1 for p, n in tail)
    assert stats.kv_tokens_reserved == sum(-(-(len(p) + i) // block) * block for p, n in tail for i in range(n))
    assert stats.kv_tokens_used == sum(len(p) + i for p, n in tail for i in range(n))


def test_stage05_computes_a_common_beginning_once(babble):
    workload = [(p[:96] + [i] * 8, 4) for i, (p, _) in enumerate(workloads.make_workload("prefix", count=6))]
    stage = STAGES[4]
    llm = stage.LLM(babble, device="cpu", max_num_seqs=2)
    llm.generate([p for p, _ in workload], stage.SamplingParams(temperature=0, max_tokens=4, ignore_eos=True))
    assert llm.stats.num_tokens_computed == 96 + 6 * (8 + 4 - 1)
    assert llm.stats.num_cached_tokens == 5 * 96


def test_the_order_that_the_readme_claims(engines_after_tail):
    """Each stage wastes less than the one before, in the way that the ladder says."""
    passes = [llm.stats.num_forwards for llm in engines_after_tail]
    tokens = [llm.stats.num_tokens_computed for llm in engines_after_tail]
    padding = [llm.stats.num_padding_tokens for llm in engines_after_tail]
    assert passes[0] > passes[1] == passes[2] > passes[3] == passes[4]
    assert tokens[0] == tokens[1] > tokens[2] == tokens[3] == tokens[4]
    assert padding[1] > padding[2] > 0 == padding[0] == padding[3] == padding[4]
    used = [llm.stats.kv_tokens_used / llm.stats.kv_tokens_reserved for llm in engines_after_tail[2:]]
    assert used[2] > 0.6 > used[0] > used[1]  # blocks, the rectangle of a batch, slots for the whole context


def test_equal_outputs_leave_nothing_to_gain(babble):
    workload = workloads.make_workload("equal", count=8)
    passes = []
    for stage in STAGES[1:5]:
        llm = stage.LLM(babble, device="cpu", max_num_seqs=4)
        llm.generate([p for p, _ in workload], stage.SamplingParams(temperature=0, max_tokens=16, ignore_eos=True))
        passes.append(llm.stats.num_forwards)
    assert passes == [32] * 4


# --- Workloads and limits ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", workloads.SIZES)
def test_workloads_are_what_they_say(name):
    workload = workloads.make_workload(name)
    assert len(workload) == workloads.SIZES[name][0]
    assert workload == workloads.make_workload(name)
    assert workload != workloads.make_workload(name, seed=1)
    assert len(workloads.make_workload(name, count=3)) == 3
    assert all(len(prompt) + n <= 1024 and n >= 1 for prompt, n in workload)
    assert {"single": (64, 128), "decode": (32, 128), "prefill": (512, 8)}.get(name) in (
        None, *{(len(prompt), n) for prompt, n in workload}
    )  # fmt: skip
    if name == "prefix":
        assert len({tuple(prompt[:512]) for prompt, _ in workload}) == 1
        assert len({tuple(prompt) for prompt, _ in workload}) == 32
    if name in ("mixed", "tail"):  # a long tail: the mean lies above the median
        outputs = sorted(n for _, n in workload)
        assert sum(outputs) / len(outputs) > 1.1 * outputs[len(outputs) // 2]


def test_arrivals_are_poisson():
    arrivals = workloads.poisson_arrivals(20_000, rate=4.0)
    gaps = torch.tensor(arrivals).diff()
    assert arrivals == sorted(arrivals)
    assert gaps.mean().item() == pytest.approx(0.25, rel=0.03)
    assert gaps.std().item() == pytest.approx(0.25, rel=0.05)  # exponential: as large as the mean
    assert workloads.poisson_arrivals(10, 4.0) == arrivals[:10]


def test_work_of_a_pass_by_hand():
    config = ModelConfig(n_layer=2, n_head=1, n_embd=3, n_inner=5, vocab_size=7)
    weights, head = 2 * (3 * 9 + 3 * 3 + 2 * 3 * 5), 7 * 3
    operations, moved = pass_work(config, 4, tokens=10, logits=1, attended=55, cached=0)
    assert operations == 2 * weights * 10 + 2 * head + 2 * 55 * (2 * 3 + 2 * 3)  # q·k and weights·v, two layers
    assert moved == 4 * (weights + head)
    _, with_cache = pass_work(config, 4, tokens=1, logits=1, attended=6, cached=6)
    assert with_cache - moved == 4 * 6 * 2 * 2 * 3  # keys and values of two layers
    _, in_int8 = pass_work(config, 4, tokens=1, logits=1, attended=6, cached=6, weight_bytes=1)
    assert with_cache - in_int8 == 3 * (weights + head)
    assert least_seconds((100, 10), bandwidth=10, rate=50) == 2
    assert least_seconds((100, 10), bandwidth=1, rate=50) == 10


def test_needed_work_is_what_an_engine_without_waste_does(babble):
    """Stage 5 with room for all computes just that: the same passes, tokens and cached positions."""
    stage = STAGES[4]
    head = list(range(1, 33))
    workload = [(head + [40 + i] * (3 + i), 1 + 2 * i) for i in range(5)]
    llm = stage.traced(babble)
    params = [stage.SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for _, n in workload]
    llm.generate([p for p, _ in workload], params)
    config, passes, lengths = llm.engine.model_config, [], {}
    for step in llm.trace:
        attended = cached = 0
        for row in step.rows:
            if row.phase == "prefill":
                whole = len(workload[int(row.request_id)][0])
                attended += sum(range(whole - row.num_tokens + 1, whole + 1))
                lengths[row.request_id] = whole
            else:
                lengths[row.request_id] += 1
                attended += lengths[row.request_id]
                cached += lengths[row.request_id]
        tokens = sum(row.num_tokens for row in step.rows)
        passes.append(pass_work(config, 4, tokens=tokens, logits=len(step.rows), attended=attended, cached=cached))
    assert workloads.needed_work(workload, config, 4) == passes


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "not a request"),
        ("[1]", "not a request"),
        ('{"prompt": "a"}', "needs 'max_tokens'"),
        ('{"max_tokens": 1}', "needs 'prompt'"),
        ('"prompt"', "a JSON object"),
        ("[" * 100_000, "not a request"),
        ('{"prompt": 5, "max_tokens": 1}', "prompt is a string, got 5"),
        ('{"prompt": null, "max_tokens": 1}', "prompt is a string, got None"),
        ('{"prompt": "a", "prompt_token_ids": [1], "max_tokens": 1}', "not both"),
        ('{"prompt_token_ids": [], "max_tokens": 1}', "empty"),
        ('{"prompt_token_ids": [1, -1], "max_tokens": 1}', "at least 0, got -1"),
        ('{"prompt_token_ids": [true], "max_tokens": 1}', "at least 0, got True"),
        ('{"prompt_token_ids": [1.0], "max_tokens": 1}', "at least 0, got 1.0"),
        ('{"prompt_token_ids": [[1]], "max_tokens": 1}', "at least 0, got [1]"),
        ('{"prompt_token_ids": "x", "max_tokens": 1}', "a list"),
        ('{"prompt_token_ids": [1], "max_tokens": true}', "at least 1, got True"),
        ('{"prompt_token_ids": [1], "max_tokens": NaN}', "at least 1, got nan"),
        ('{"prompt_token_ids": [1], "max_tokens": "5"}', "at least 1, got '5'"),
        ('{"prompt_token_ids": [1], "max_tokens": -3}', "at least 1, got -3"),
        ('{"prompt_token_ids": [1], "max_tokens": 0}', "at least 1"),
        ('{"prompt_token_ids": [1], "max_tokens": 1.5}', "at least 1"),
    ],
)
def test_a_bad_line_of_a_workload_is_named(tmp_path, line, words):
    path = tmp_path / "requests.jsonl"
    path.write_text('{"prompt": "fine", "max_tokens": 2}\n\n' + line + "\n")
    with pytest.raises(ValueError, match=r"requests\.jsonl, line 3") as raised:
        workloads.read_workload(path, lambda text: [1])
    assert words in str(raised.value)


def test_an_empty_workload_is_refused(tmp_path):
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ValueError, match="no requests"):
        workloads.read_workload(tmp_path / "empty", list)


def test_a_workload_that_is_no_text_is_named(tmp_path):
    (tmp_path / "picture").write_bytes(b'{"prompt": "\xff"}')
    with pytest.raises(ValueError, match=r"picture is not UTF-8: .* at byte 12"):
        workloads.read_workload(tmp_path / "picture", list)


def test_a_workload_may_begin_with_a_byte_order_mark(tmp_path):
    (tmp_path / "marked").write_text('{"prompt_token_ids": [1], "max_tokens": 2}', encoding="utf-8-sig")
    assert workloads.read_workload(tmp_path / "marked", list) == [([1], 2)]


# --- The benchmark ----------------------------------------------------------------------------------------------------


@pytest.fixture
def no_probe(monkeypatch):
    """The probe reads a gigabyte, and its result does not matter in these tests."""
    monkeypatch.setattr(throughput, "probe", lambda device, dtype: (1e10, 1e11))
    monkeypatch.setattr(throughput, "int8_rate", lambda: 4e11)


@pytest.fixture
def requests_file(tmp_path):
    path = tmp_path / "requests.jsonl"
    lines = [{"prompt_token_ids": p, "max_tokens": n} for p, n in workloads.make_workload("tail", count=3)]
    path.write_text("\n".join(map(json.dumps, [*lines, {"prompt": "Once upon a time", "max_tokens": 5}])))
    return path


@pytest.mark.soak
def test_the_benchmark(babble, requests_file, tmp_path, capsys, no_probe, monkeypatch):
    """All stages and a peer through one workload; a peer that is not there and one that breaks are named."""
    here = SimpleNamespace(python=Path(sys.executable), environment="here", int8=False)
    peers = {"hf": here, "vllm": here, "openvino": SimpleNamespace(python=Path("nowhere"), environment="openvino")}
    monkeypatch.setattr(throughput, "PEERS", peers)
    files = {"--json": tmp_path / "result.json", "--plot": tmp_path / "picture.png"}
    status = throughput.main([
        "--model", str(babble), "--load-format", "auto", "--workload", str(requests_file), "--repeat", "1",
        "--device", "cpu", "--peers", "hf,vllm,openvino", *[str(x) for pair in files.items() for x in pair],
    ])  # fmt: skip
    stdout, stderr = capsys.readouterr()
    assert status == 1, stderr
    assert "openvino is missing: not installed; python -m bench.peers openvino installs it" in stderr
    assert re.search(r"vllm is missing: .*No module named 'vllm'", stderr)
    result = json.loads(files["--json"].read_text())
    assert [row["engine"] for row in result["summary"]] == [*map(str, STAGES), "hf"]
    assert all(row["same_ids_share"] == 1 for row in result["summary"] if not row["int8"])
    assert [row["engine"] for row in result["summary"] if row["int8"]] == ["stage08_int8"]
    assert result["int8_least_seconds"] < result["least_seconds"]
    outputs = [n for _, n in workloads.make_workload("tail", count=3)] + [5]
    for row in result["summary"]:
        assert row["output_tokens"] == sum(outputs)
        assert row["tokens_per_second"] == pytest.approx(sum(outputs) / row["seconds"], rel=1e-5)  # six digits
        least = result["int8_least_seconds" if row["int8"] else "least_seconds"]
        assert row["limit_share"] == pytest.approx(least / row["seconds"], rel=1e-5)
        assert row["peak_bytes"] > 50e6
    for row in result["summary"][:-1]:
        assert 0 < row["ttft_p50"] <= row["ttft_p95"] < row["seconds"]
        assert 0 <= row["itl_p50"] <= row["itl_p95"]
        assert row["itl_p50"] or row["engine"] > "stage07"  # tokens of one step come at once
    before, last, hf = result["summary"][-3:]
    assert last["ratio"] == pytest.approx(last["tokens_per_second"] / before["tokens_per_second"], rel=1e-5)
    assert hf["ratio_to"] == str(STAGES[-1])
    assert result["versions"]["hf"].keys() == {"torch", "transformers"}
    assert result["missing"].keys() == {"vllm", "openvino"}
    assert len(result["workload_sha256"]) == 64
    assert [len(run["ttft"]) for run in result["runs"] if run["ttft"]] == [4] * len(STAGES)
    for word in ("stage05_paged", "tok/s", "ITL p95", "peak memory", "Missing: vllm"):
        assert word in stdout
    assert files["--plot"].read_bytes().startswith(b"\x89PNG")


OWN = """
from stage01_single import LLM as Stage, SamplingParams

class LLM:
    def __init__(self, model, device):
        self.stage = Stage(model, device=device)

    def generate(self, prompts, params):
        return self.stage.generate(prompts, params)

    def stream(self, prompts, params):
        return self.stage.stream(prompts, params)
"""


@pytest.mark.soak
def test_an_engine_of_ones_own_is_measured_beside_a_stage(babble, requests_file, tmp_path, capsys, no_probe):
    """One that has everything that a stage has, and one that can only make tokens."""
    (tmp_path / "hf").mkdir()  # a peer has this name
    (tmp_path / "hf" / "__init__.py").write_text(OWN)
    files = {"--json": tmp_path / "result.json", "--plot": tmp_path / "picture.png"}
    own = [os.path.relpath(ROOT / "stage03_kvcache"), str(tmp_path / "hf")]
    status = throughput.main([
        "--model", str(babble), "--load-format", "auto", "--workload", str(requests_file), "--repeat", "1",
        "--device", "cpu", "--stages", *own, "1", *[str(x) for pair in files.items() for x in pair],
    ])  # fmt: skip
    assert status == 0, capsys.readouterr().err
    stage, whole, small = json.loads(files["--json"].read_text())["summary"]
    assert [row["engine"] for row in (stage, whole, small)] == ["stage01_single", "./stage03_kvcache", own[1]]
    assert [row["same_ids_share"] for row in (whole, small)] == [1, 1]
    assert whole["tokens_computed"] < stage["tokens_computed"]
    assert whole["ratio_to"] == small["ratio_to"] == "stage01_single"
    assert small["tokens_computed"] is small["rows_mean"] is None


def test_an_engine_that_makes_too_little_is_an_error(tmp_path, monkeypatch):
    job = {"engine": "stage01_single", "requests": [[[1], 2], [[1], 3]]}
    (tmp_path / "job").write_text(json.dumps(job))
    monkeypatch.setattr(engines, "run_stage", lambda job: {"token_ids": [[1, 2], [1, 2]]})
    monkeypatch.setattr(sys, "argv", ["engines", str(tmp_path / "job"), str(tmp_path / "result")])
    with pytest.raises(SystemExit, match="2 tokens for request 1, 3 were asked for"):
        engines.main()


def test_other_tokens_print_no_speed(babble, capsys, no_probe, monkeypatch):
    """A stage whose greedy tokens differ is a wrong engine, and its speed is of no interest."""
    made = {"stage01_single": [[1, 2]], "stage05_paged": [[1, 3]]}

    def run(job, folder):
        return {"engine": job["engine"], "token_ids": made[job["engine"]], "times": None, "seconds": 1.0}

    monkeypatch.setattr(throughput, "run_in_fresh_process", run)
    arguments = ["--model", str(babble), "--load-format", "auto", "--stages", "1", "5", "--requests", "1"]
    assert throughput.main([*arguments, "--device", "cpu", "--repeat", "1"]) == 1
    stdout, stderr = capsys.readouterr()
    assert "stage05_paged made other tokens than stage01_single for 100% of the requests" in stderr
    assert stdout == ""


def test_weights_in_int8_may_make_other_tokens(babble, tmp_path, capsys, no_probe, monkeypatch):
    """The share of equal tokens is shown; the limit is different; and an exact engine that differs is still wrong."""
    made = {"stage08_int8": [[1, 2, 3, 4]], "stage01_single": [[1, 2, 5, 4]], "stage05_paged": [[1, 2, 5, 4]]}
    jobs = []

    def run(job, folder):
        jobs.append(job)
        name = job["engine"]
        told = {"engine": name, "token_ids": made[name], "int8": name == "stage08_int8"}
        return {**told, "times": None, "seconds": 1.0, "peak_bytes": 1}

    monkeypatch.setattr(throughput, "run_in_fresh_process", run)
    arguments = ["--model", str(babble), "--load-format", "auto", "--stages", "1", "5", "8", "--requests", "1"]
    arguments += ["--device", "cpu", "--repeat", "1", "--json", str(tmp_path / "result.json"), "--weights", "int8"]
    assert throughput.main(arguments) == 0
    assert jobs[0]["options"]["weights"] == "int8"
    result = json.loads((tmp_path / "result.json").read_text())
    assert [row["same_tokens_share"] for row in result["summary"]] == [1, 1, 0.5]
    assert [row["same_ids_share"] for row in result["summary"]] == [1, 1, 0]
    assert result["summary"][2]["limit_share"] == pytest.approx(result["int8_least_seconds"])
    assert result["int8_least_seconds"] < result["least_seconds"]
    assert "400 billion integer operations/s" in capsys.readouterr().out
    made["stage05_paged"] = made["stage08_int8"]
    assert throughput.main(arguments) == 1
    assert "stage05_paged made other tokens than stage01_single" in capsys.readouterr().err


def test_what_was_measured_survives_an_interruption(babble, tmp_path, capsys, no_probe, monkeypatch):
    def run(job, folder):
        if job["engine"] == "stage02_static_batch":
            raise KeyboardInterrupt
        return {"engine": job["engine"], "token_ids": [[1, 2]], "times": None, "seconds": 2.0, "peak_bytes": 1}

    monkeypatch.setattr(throughput, "run_in_fresh_process", run)
    arguments = ["--model", str(babble), "--load-format", "auto", "--stages", "1", "2", "3", "--requests", "1"]
    status = throughput.main([*arguments, "--device", "cpu", "--repeat", "2", "--json", str(tmp_path / "result.json")])
    assert status == 1
    result = json.loads((tmp_path / "result.json").read_text())
    assert [run["engine"] for run in result["runs"]] == ["stage01_single"]
    assert result["missing"] == {"stage02_static_batch": "interrupted", "stage03_kvcache": "interrupted"}
    assert "1.0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--stages", "9"], "there is no stage 9"),
        (["--stages", "nowhere"], "'nowhere' is neither a stage's number nor the directory of an engine"),
        (["--peers", "hf,other"], "there is no peer other"),
        (["--workload", "none"], "workload 'none' is neither a file nor one of single"),
        (["--requests", "0"], "--requests must be more than 0, got 0"),
        (["--stages"], "at least one stage or peer"),
        (["--peers", "hf", "--kv-cache-bytes", "1000"], "for the stages only"),
        (["--device", "tpu"], "device must be"),
        (["--model", "nowhere"], "there is no directory nowhere"),
        (["--json", "nowhere/result.json"], "nowhere/result.json"),
        (["--json", "."], "--json . is a directory"),
        (["--json", "x.png", "--plot", "./x.png"], "--plot x.png is the file of --json"),
        (["--plot", "picture"], "ends in one of"),
        (["--plot", "picture.json"], "ends in one of"),
        (["--workload", "."], "workload '.' is neither a file nor"),
    ],
)
def test_bad_arguments_are_named(capsys, arguments, words):
    try:
        status = throughput.main(arguments)
    except SystemExit as exit:
        status = exit.code
    assert status == 2
    assert words in capsys.readouterr().err


def test_a_request_that_does_not_fit_is_named(babble, tmp_path, capsys):
    path = tmp_path / "long.jsonl"
    path.write_text('{"prompt_token_ids": [1], "max_tokens": 5}\n{"prompt_token_ids": [1, 2], "max_tokens": 255}\n')
    assert throughput.main(["--model", str(babble), "--load-format", "auto", "--workload", str(path)]) == 2
    assert "request 1" in (error := capsys.readouterr().err)
    assert "256 positions" in error


def test_a_token_that_the_model_does_not_have_is_named(babble, tmp_path, capsys):
    path = tmp_path / "requests.jsonl"
    path.write_text('{"prompt_token_ids": [50256], "max_tokens": 5}\n{"prompt_token_ids": [50257], "max_tokens": 5}\n')
    arguments = ["--model", str(babble), "--load-format", "auto", "--workload", str(path)]
    assert throughput.main(arguments) == 2
    assert "request 1 of workload" in (error := capsys.readouterr().err)
    assert "token 50257 is none of the 50257" in error
    path.write_text('{"prompt_token_ids": [1], "max_tokens": 5}\n')
    assert throughput.main([*arguments, "--requests", "2"]) == 2
    assert "has 1 requests, not --requests 2" in capsys.readouterr().err


@pytest.mark.parametrize("way", ["same", "spelling", "symbolic link", "hard link", "plot"])
def test_a_result_does_not_overwrite_the_workload(babble, requests_file, tmp_path, capsys, monkeypatch, way):
    monkeypatch.chdir(tmp_path)
    output = {"same": str(requests_file), "spelling": f"../{tmp_path.name}/./requests.jsonl"}.get(way, "other.png")
    if way in ("symbolic link", "plot"):
        Path(output).symlink_to(requests_file)
    if way == "hard link":
        os.link(requests_file, output)
    before = requests_file.read_bytes()
    option = "--plot" if way == "plot" else "--json"
    arguments = ["--model", str(babble), "--load-format", "auto", "--workload", str(requests_file), option, output]
    monkeypatch.setattr(throughput, "probe", lambda *_: pytest.fail("it began to measure"))
    assert throughput.main(arguments) == 2
    assert f"{option} {Path(output)} is the file of --workload" in capsys.readouterr().err
    assert requests_file.read_bytes() == before


def test_outputs_are_checked_before_the_work(tmp_path):
    """Even files that can't be tested by opening them: a pipe without a reader would wait for one."""
    (tmp_path / "result.json").write_text("kept")
    check_outputs({"--json": tmp_path / "result.json", "--plot": tmp_path / "new.png"}, {})
    assert (tmp_path / "result.json").read_text() == "kept"
    os.link(tmp_path / "result.json", tmp_path / "link.png")
    with pytest.raises(ValueError, match=r"link\.png is the file of --json"):
        check_outputs({"--json": tmp_path / "result.json", "--plot": tmp_path / "link.png"}, {})
    with pytest.raises(FileNotFoundError):
        check_outputs({"--json": tmp_path / "nowhere" / "result.json"}, {})
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        check_outputs({"--json": tmp_path / "pipe"}, {})


# --- An engine's process ----------------------------------------------------------------------------------------------

STAND_IN = """
import json, time
from pathlib import Path
import psutil

class StandIn:
    def run(self, job):
        (Path(job["folder"]) / "pid.new").write_text(str(psutil.Process().pid))
        (Path(job["folder"]) / "pid.new").rename(Path(job["folder"]) / "pid")
        if job["model"] == "break":
            raise ValueError("it broke")
        time.sleep(600 if job["model"] == "wait" else 0.1)
        return {"token_ids": [[1]], "times": None, "seconds": 1.0, "peak_bytes": 1}

PEERS = {"stand-in": StandIn()}
"""
JOB = {"engine": "stand-in", "requests": [[[1], 1]]}


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """A copy of the code that runs an engine, with a stand-in for the peers; and where that writes its pid."""
    (tmp_path / "tree" / "bench").mkdir(parents=True)
    (tmp_path / "folder").mkdir()
    for name in ("engines.py", "conditions.py"):
        shutil.copy(ROOT / "bench" / name, tmp_path / "tree" / "bench")
    (tmp_path / "tree" / "bench" / "__init__.py").touch()
    (tmp_path / "tree" / "bench" / "peers.py").write_text(STAND_IN)
    monkeypatch.setattr(throughput, "ROOT", tmp_path / "tree")
    monkeypatch.setattr(throughput, "PEERS", {"stand-in": SimpleNamespace(python=Path(sys.executable))})
    return tmp_path / "folder"


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_an_engine_that_breaks_is_named(stand_in):
    assert throughput.run_in_fresh_process({**JOB, "model": "go"}, stand_in)["seconds"] == 1
    with pytest.raises(throughput.Failure, match="it broke"):
        throughput.run_in_fresh_process({**JOB, "model": "break"}, stand_in)


@pytest.mark.soak
@pytest.mark.skipif(os.name == "nt", reason="SIGKILL")
@pytest.mark.parametrize("victim", ["benchmark", "engine"])
def test_nothing_survives_a_kill(stand_in, victim):
    """The engine ends with the benchmark."""
    code = (
        "import json, sys; from pathlib import Path; from types import SimpleNamespace; from bench import throughput\n"
        "throughput.ROOT = Path(sys.argv[1])\n"
        "throughput.PEERS = {'stand-in': SimpleNamespace(python=Path(sys.executable))}\n"
        "throughput.run_in_fresh_process(json.loads(sys.argv[2]), Path(sys.argv[3]))"
    )
    arguments = [str(throughput.ROOT), json.dumps({**JOB, "model": "wait"}), str(stand_in)]
    process = subprocess.Popen([sys.executable, "-c", code, *arguments], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        wait_until((stand_in / "pid").exists)
        pid = int((stand_in / "pid").read_text())
        assert not gone(pid)
        if victim == "benchmark":
            process.kill()
        else:
            psutil.Process(pid).kill()
        wait_until(lambda: gone(pid))
        _, stderr = process.communicate(timeout=600)
        assert victim == "benchmark" or "it ended with status -9" in stderr
    finally:
        process.kill()
        process.wait()


def test_a_failure_leaves_the_other_runs(babble, capsys, no_probe, monkeypatch):
    def run(job, folder):
        if job["engine"] == "stage01_single":
            raise throughput.Failure("no memory")
        tokens = [[1] * n for _, n in job["requests"]]
        return {"engine": job["engine"], "token_ids": tokens, "times": None, "seconds": 0.5, "peak_bytes": 1}

    monkeypatch.setattr(throughput, "run_in_fresh_process", run)
    arguments = ["--model", str(babble), "--load-format", "auto", "--stages", "1", "6", "--workload", "equal"]
    assert throughput.main([*arguments, "--device", "cpu"]) == 1
    stdout, stderr = capsys.readouterr()
    assert "stage01_single is missing: no memory" in stderr
    assert "| `stage06_fast` | " in stdout
    assert "Missing: stage01_single (no memory)" in stdout


# --- Results in the READMEs -------------------------------------------------------------------------------------------


def test_readmes_show_the_results_that_are_committed():
    ours = [path for path in ROOT.glob("[!.]*/**/*.md") if not {"_build", "build", "lib"} & {*path.parts}]
    assert {page for page in ours if report.BLOCK.search(page.read_text(encoding="utf-8"))} <= {*report.readmes()}
    for readme in report.readmes():
        text = readme.read_text(encoding="utf-8")
        assert report.with_tables(text) == text, f"{readme}: python -m bench.report --write"


def test_committed_results_are_of_these_workloads():
    """The requests of a committed result can be made again, and all engines made the same tokens for nearly all."""
    for path in sorted((ROOT / "bench" / "results").rglob("*.json")):
        result = json.loads(path.read_text())
        if "workload_sha256" not in result:
            continue
        remade = workloads.make_workload(result["workload"], result["requests"])
        assert workloads.fingerprint(remade) == result["workload_sha256"], path
        assert result["command"].startswith("python -m bench.throughput "), path
        assert re.search(rf"--json bench/results/([\w-]+/)?{path.name}", result["command"]), path
        if result["dtype"] == "float32":
            exact = [row for row in result["summary"] if not row.get("int8")]
            assert all(row.get("same_ids_share", 1) >= 0.9 for row in exact), path


def test_the_race_is_that_of_the_committed_result():
    results = ROOT / "bench" / "results"
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    name = re.search(r"<!-- throughput: bench/results/(\w+)\.json ladder -->", page)[1]
    result = json.loads((results / f"{name}.json").read_text())
    for picture, form in ((f"{name}.svg", race.WIDE), (f"{name}-narrow.svg", race.NARROW)):
        assert f'="bench/results/{picture}"' in page
        text = (results / picture).read_text(encoding="utf-8")
        assert text == race.svg(result, form), "python -m bench.report --write"
        assert len(text) < 40_000
    assert [run["engine"] for run in result["summary"]] == list(IDEAS)


@pytest.mark.parametrize("form", [race.WIDE, race.NARROW])
def test_a_race(form):
    """Each cell is uncovered when its request's first token comes; the run in the middle of three counts."""
    runs = [{"engine": "stage01_single", "seconds": n, "ttft": [n, 1.0, n / 2, n / 2]} for n in (8.0, 6.0, 40.0)]
    picture = race.svg({"runs": runs, "requests": 4, "machine": {"threads": 2}}, form)
    width = form.cells
    assert ">1 one at a time<" in picture
    assert ">8.0 s<" in picture
    moves = re.search(r"@keyframes c0 \{ (.*) \}", picture)[1]
    assert moves == (  # 14 seconds, the pause included
        f"0%{{transform:none}}7.14%{{transform:translateX({width / 4:g}px)}}"
        f"28.57%{{transform:translateX({width * 3 / 4:g}px)}}"
        f"57.14%{{transform:translateX({width:g}px)}}100%{{transform:translateX({width}px)}}"
    )
    # at rest: after two seconds
    assert f'class="cover" width="{width}" height="20" transform="translate({width / 4:g})"' in picture
    assert ">1 of 4<" in picture


def test_the_front_page_says_how_it_compares_with_vllm():
    claim = re.search(
        r"at least (\S+) times as many tokens\s+a\s+second\s+as\s+vLLM", (ROOT / "README.md").read_text("utf-8")
    )
    ratios, cpus = [], set()
    for path in (ROOT / "bench" / "results").glob("*/*.json"):
        speeds = {
            row["engine"]: row.get("tokens_per_second") for row in json.loads(path.read_text()).get("summary", ())
        }
        if {"stage06_fast", "vllm"} <= speeds.keys():
            ratios.append(speeds["stage06_fast"] / speeds["vllm"])
            cpus.add(path.parent.name)
    assert float(claim[1]) <= min(ratios) < float(claim[1]) + 0.1
    assert cpus == {"avx512", "amx", "avx2"}
    assert f"in all {len(ratios)} comparisons, on three CPUs" in (ROOT / "README.md").read_text("utf-8")


@pytest.mark.parametrize(("capability", "name"), [("AVX2", "A CPU with AVX2"), ("AVX512", "A CPU")])
def test_the_name_of_a_cpu_says_whether_it_has_only_avx2(monkeypatch, capability, name):
    monkeypatch.setattr(machine.Path, "exists", lambda _: True)
    monkeypatch.setattr(machine.Path, "read_text", lambda _: "model name : A CPU\n")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert machine.cpu_name() == name


def test_report_prints_a_result(capsys, tmp_path):
    assert report.main([str(ROOT / "bench" / "results" / "ladder.json"), "--plot", str(tmp_path / "x.png")]) == 0
    assert "`stage03_kvcache`" in capsys.readouterr().out
    assert (tmp_path / "x.png").stat().st_size > 10_000


def test_a_table_that_ends_with_a_stage(monkeypatch):
    """A chapter shows the stages up to its own, and each round's ratio to the stage before."""
    seconds = {
        "stage01_single": (8.0, 9.0, 10.0),
        "stage02_static_batch": (4.0, 3.6, 3.2),
        "stage03_kvcache": (1, 1, 1),
    }
    runs = [
        {"engine": engine, "token_ids": [[1] * 36], "times": None, "seconds": own[i], "peak_bytes": 1}
        for i in range(3)
        for engine, own in seconds.items()
    ]
    result = json.loads((ROOT / "bench/results/tail.json").read_text()) | report.summarize(runs, 0.5)
    assert result["summary"][1]["ratio_rounds"] == [2, 2.5, 3.125]
    monkeypatch.setattr(report, "read_result_text", lambda path: json.dumps(result))
    shown = {last: report.with_tables(f"<!-- throughput: x.json speed{last} -->\n<!-- end -->") for last in ("", " 2")}
    assert "| `stage02_static_batch` | 10.0 | 2.50 × stage 1 (2.00 to 3.12) |" in shown[" 2"]
    assert "stage03_kvcache" in shown[""]
    assert "stage03_kvcache" not in shown[" 2"]
    assert "medians of 3 runs in turn, within 25%" in shown[" 2"]


def test_a_page_shows_no_time_whose_rounds_are_far_apart(monkeypatch):
    """The stage's row is missing; what is counted does not depend on other programs."""
    result = json.loads((ROOT / "bench/results/tail.json").read_text())
    seconds = {"stage01_single": (8.0, 9.0, 10.0), "stage02_static_batch": (4.0, 5.0, 5.1)}
    runs = [
        {"engine": engine, "token_ids": [[1] * 36], "times": None, "seconds": own[i], "peak_bytes": 1, "forwards": 7}
        for i in range(3)
        for engine, own in seconds.items()
    ]
    monkeypatch.setattr(report, "read_result_text", lambda path: json.dumps(result | report.summarize(runs, 0.5)))
    speed, work = (
        report.with_tables(f"<!-- throughput: x.json {word} -->\n<!-- end -->") for word in ("speed", "work")
    )
    assert "stage01_single" in speed
    assert "stage02_static_batch" not in speed
    assert "| `stage02_static_batch` | 7 |" in work
    assert "medians of 3 runs in turn, within 25%" in speed


def test_a_chapter_says_what_its_stage_gains(monkeypatch):
    runs = [
        {"engine": engine, "token_ids": [[1] * 100], "times": None, "seconds": seconds}
        for engine, seconds in {"stage05_paged": 2.0, "stage06_fast": 0.5, "vllm": 1.0}.items()
    ]
    result = json.loads((ROOT / "bench/results/tail.json").read_text()) | report.summarize(runs, 0.5)
    monkeypatch.setattr(report, "read_result_text", lambda path: json.dumps(result))
    text = report.with_tables("<!-- throughput: x.json sentence -->\n<!-- end -->")
    assert "stage 5 serves 64 tail requests with GPT-2 in float32 at 50 tokens a second, and stage 6 at 200." in text


def test_tables_that_measured_figures_leave_empty(monkeypatch):
    """The cells of linear layers and of guesses."""
    for kind, name, cell in (
        ("linear", "avx512/linear", lambda found: found["rounds"]["float32"]["fma_float32"]["512"]),
        ("speculative", "speculative-bfloat16", lambda found: found["cells"][1]["rounds"]),
    ):
        result = json.loads((ROOT / f"bench/results/{name}.json").read_text())
        cell(result)[:] = [1.0, 1.01, 9.0]
        monkeypatch.setattr(report, "read_result_text", lambda path, result=result: json.dumps(result))
        text = report.with_tables(f"<!-- {kind}: x.json -->\n<!-- end -->")
        lines = [line for line in text.splitlines() if line.startswith(("| 512 |", "| tales | prompt lookup |"))]
        assert "|  |" in lines[0]


@pytest.mark.parametrize(
    ("text", "words"), [("[]", "not a result"), ("{}", "not a result"), ("", "Expecting value"), ("\xff", "report: ")]
)
def test_report_names_what_is_no_result(capsys, tmp_path, text, words):
    (tmp_path / "result.json").write_text(text, encoding="latin-1")
    assert report.main([str(tmp_path / "result.json")]) == 2
    assert words in (error := capsys.readouterr().err)
    assert "result.json" in error


def test_a_picture_does_not_overwrite_its_result(capsys, tmp_path):
    shutil.copy(ROOT / "bench" / "results" / "tail.json", tmp_path / "result.json")
    (tmp_path / "x.png").symlink_to(tmp_path / "result.json")
    assert report.main([str(tmp_path / "result.json"), "--plot", str(tmp_path / "x.png")]) == 2
    assert "is the file of the result" in capsys.readouterr().err
    assert json.loads((tmp_path / "result.json").read_text())


def test_a_slow_product_is_measured_on_small_matrices(monkeypatch):
    """bfloat16 without instructions for it: the probe of the machine must not take minutes."""
    sizes = []

    def best_seconds(run, device):
        sizes.append(len(run()))
        return sizes[-1] / 10_000

    monkeypatch.setattr(machine, "best_seconds", best_seconds)
    assert machine.matmul_rate(torch.bfloat16, torch.device("cpu"), enough=0.05) == 2 * 512**3 / 0.0512
    assert sizes == [256, 512]
    sizes.clear()
    assert machine.matmul_rate(torch.float32, torch.device("cpu"), n=300, enough=9.0) == 2 * 300**3 / 0.03
    assert sizes == [256, 300]


def test_a_comparison_has_a_column_for_each_peer_whatever_is_sampled():
    def result(sampling, speeds, rounds=2):
        runs = [
            {"engine": engine, "seconds": 100 / speed * (1 + 0.01 * i)}
            for engine, speed in speeds.items()
            for i in range(rounds)
        ]
        summary = [{"engine": e, "tokens_per_second": speed, "limit_share": 0.5} for e, speed in speeds.items()]
        what = {"workload": "decode", "dtype": "bfloat16", "sampling": sampling, "model": "gpt2", "command": "x"}
        versions = {name: {name: "1", "torch": "2"} for name in speeds if name in PEERS}
        limits = {"bandwidth": 1e9, "matmul_rate": 1e9}
        return {**what, **limits, "summary": summary, "runs": runs, "machine": MACHINE, "versions": versions}

    text = report.comparison([
        result("greedy", {"stage06_fast": 30.0, "openvino": 20.0}),
        result("chat", {"stage06_fast": 30.0, "vllm": 25.0, "openvino": 10.0, "llama-cpp": 5.0}, rounds=3),
    ])  # fmt: skip
    head, _, greedy, chat, *_ = text.splitlines()
    assert head.split(" | ")[2:7] == ["sampling", "`stage06_fast`", "`openvino`", "`vllm`", "`llama-cpp`"]
    assert "| greedy | 30.0 | 20.0 |  |  | 1.50 × (1.50 to 1.50) | 50% |" in greedy
    assert "repetition penalty 1.1 | 30.0 | 10.0 | 25.0 | 5.0 | 1.20 × (1.20 to 1.20) |" in chat
    assert "openvino 1, vllm 1, llama-cpp 1" in text


def test_llama_cpps_repetition_penalty_sees_all_tokens(monkeypatch):
    """It only penalizes as many of the last tokens as it is told."""
    told = []
    names = ("chain_init", "chain_default_params", "chain_add", "init_top_k", "init_temp", "init_top_p", "init_dist")
    llama = SimpleNamespace(**{f"llama_sampler_{name}": lambda *_: None for name in (*names, "accept")})
    llama.llama_sampler_init_penalties = lambda n_vocab, last_n, repeat, freq, present: told.append((n_vocab, last_n))
    monkeypatch.setitem(sys.modules, "llama_cpp", SimpleNamespace(llama_cpp=llama))
    llama_cpp_sampler(100, workloads.SAMPLING["chat"], 0, [1, 2, 3], 4)
    assert told == [(100, 7)]
