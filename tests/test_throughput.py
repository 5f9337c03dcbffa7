"""The benchmark: what each stage wastes, workloads, runs and their failures, tables of the pages."""

import contextlib
import json
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from bench import engines, machine, race, report, roofline, throughput, workloads
from bench.machine import least_seconds, pass_work
from bench.peers import PEERS, llama_cpp_sampler
from stage01_single.model import ModelConfig
from stagewise.stages import IDEAS
from tests.adapter import ROOT, STAGES, outcome, refusal

RESULTS = ROOT / "bench" / "results"


# --- What each stage computes -----------------------------------------------------------------------------------------


def test_each_stage_wastes_less_than_the_one_before(babble):
    """In the way that the README's ladder says."""
    workload, ladder = workloads.make_workload("tail", count=12), []
    for stage in STAGES[:5]:
        at_once = {"max_num_seqs": 4} if stage.number > 1 else {}
        llm = stage.LLM(babble, device="cpu", max_model_len=160, **at_once)
        params = [stage.SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for _, n in workload]
        llm.generate([prompt for prompt, _ in workload], params)
        ladder.append(llm.stats)
    passes = [stats.num_forwards for stats in ladder]
    tokens = [stats.num_tokens_computed for stats in ladder]
    padding = [stats.num_padding_tokens for stats in ladder]
    assert passes[0] > passes[1] == passes[2] > passes[3] == passes[4]
    assert tokens[0] == tokens[1] > tokens[2] == tokens[3] == tokens[4]
    assert padding[1] > padding[2] > 0 == padding[0] == padding[3] == padding[4]
    rectangle, slots, blocks = (stats.kv_tokens_used / stats.kv_tokens_reserved for stats in ladder[2:])
    assert blocks > 0.6 > rectangle > slots


# --- Workloads and limits ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", workloads.SIZES)
def test_workloads_are_what_they_say(name):
    workload = workloads.make_workload(name)
    assert len(workload) == workloads.SIZES[name][0]
    assert workload == workloads.make_workload(name)
    assert workload != workloads.make_workload(name, seed=1)
    assert len(workloads.make_workload(name, count=3)) == 3
    assert all(len(prompt) + n <= 1024 and n >= 1 for prompt, n in workload)
    if name in (equal := {"single": (64, 128), "decode": (32, 128), "prefill": (512, 8)}):
        assert {(len(prompt), n) for prompt, n in workload} == {equal[name]}
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
    stage, passes, lengths = STAGES[4], [], {}
    workload = [([*range(1, 33)] + [40 + i] * (3 + i), 1 + 2 * i) for i in range(5)]
    llm = stage.traced(babble)
    params = [stage.SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for _, n in workload]
    llm.generate([p for p, _ in workload], params)
    for step in llm.trace:
        attended = cached = 0
        for row in step.rows:
            if row.phase == "prefill":
                whole = lengths[row.request_id] = len(workload[int(row.request_id)][0])
                attended += sum(range(whole - row.num_tokens + 1, whole + 1))
            else:
                lengths[row.request_id] += 1
                attended += lengths[row.request_id]
                cached += lengths[row.request_id]
        tokens = sum(row.num_tokens for row in step.rows)
        one = dict(tokens=tokens, logits=len(step.rows), attended=attended, cached=cached)
        passes.append(pass_work(llm.engine.model_config, 4, **one))
    assert workloads.needed_work(workload, llm.engine.model_config, 4) == passes


# --- The benchmark ----------------------------------------------------------------------------------------------------


@pytest.fixture
def measure(babble, tmp_path, monkeypatch):
    """A function: run the benchmark with these arguments: exit status, stdout, stderr, and the result. The probe, which
    reads a gigabyte, is left out."""
    monkeypatch.setattr(throughput, "probe", lambda device, dtype: (1e10, 1e11))
    monkeypatch.setattr(throughput, "int8_rate", lambda: 4e11)

    def measure(*arguments):
        here = ["--model", babble, "--load-format", "auto", "--device", "cpu", "--json", tmp_path / "result.json"]
        said = outcome(throughput.main, *here, *arguments)
        return *said, json.loads((tmp_path / "result.json").read_text()) if said[1] else None

    return measure


@pytest.mark.soak
def test_the_benchmark(measure, monkeypatch):
    """All stages and a peer through one workload; a peer that is not there and one that breaks are named."""
    here = SimpleNamespace(python=Path(sys.executable), environment="here", int8=False, preload={})
    peers = {"hf": here, "vllm": here, "openvino": SimpleNamespace(python=Path("nowhere"), environment="openvino")}
    monkeypatch.setattr(throughput, "PEERS", peers)
    more = ["--repeat", "1", "--peers", "hf,vllm,openvino"]
    status, stdout, stderr, result = measure("--requests", "3", *more)
    assert status == 1, stderr
    assert "openvino is missing: not installed; python -m bench.peers openvino installs it" in stderr
    assert re.search(r"vllm is missing: .*No module named 'vllm'", stderr)
    assert result["missing"].keys() == {"vllm", "openvino"}
    assert [row["engine"] for row in result["summary"]] == [*map(str, STAGES), "hf"]
    assert [row["engine"] for row in result["summary"] if row["int8"]] == ["stage08_int8"]
    assert result["int8_least_seconds"] < result["least_seconds"]
    num_tokens = sum(n for _, n in workloads.make_workload("tail", count=3))
    for row in result["summary"]:
        least = result["int8_least_seconds" if row["int8"] else "least_seconds"]
        assert row["int8"] or row["same_ids_share"] == 1
        assert row["output_tokens"] == num_tokens
        assert row["tokens_per_second"] == pytest.approx(num_tokens / row["seconds"], rel=1e-5)  # six digits
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
    assert [len(run["ttft"]) for run in result["runs"] if run["ttft"]] == [3] * len(STAGES)
    for word in ("stage05_paged", "tok/s", "ITL p95", "peak memory", "Missing: vllm"):
        assert word in stdout


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
def test_an_engine_of_ones_own_is_measured_beside_a_stage(measure, tmp_path):
    """One that has everything that a stage has, and one that can only make tokens."""
    (tmp_path / "hf").mkdir()  # a peer has this name
    (tmp_path / "hf" / "__init__.py").write_text(OWN)
    own = [os.path.relpath(ROOT / "stage03_kvcache"), str(tmp_path / "hf")]
    status, _, stderr, result = measure("--requests", "3", "--repeat", "1", "--stages", *own, "1")
    assert status == 0, stderr
    stage, whole, small = result["summary"]
    assert [row["engine"] for row in (stage, whole, small)] == ["stage01_single", "./stage03_kvcache", own[1]]
    assert [row["same_ids_share"] for row in (whole, small)] == [1, 1]
    assert whole["tokens_computed"] < stage["tokens_computed"]
    assert whole["ratio_to"] == small["ratio_to"] == "stage01_single"
    assert small["tokens_computed"] is small["rows_mean"] is None


@pytest.fixture
def stand_ins(monkeypatch):
    """A function: instead of a process, each engine makes these tokens for one request, or fails with this error. The
    list of the jobs is returned."""

    def stand_ins(made):
        def run(job, folder):
            jobs.append(job)
            if isinstance(tokens := made[job["engine"]], BaseException):
                raise tokens
            told = {"engine": job["engine"], "token_ids": [tokens], "int8": job["engine"] == "stage08_int8"}
            return {**told, "times": None, "seconds": 1.0, "peak_bytes": 1}

        monkeypatch.setattr(throughput, "run_in_fresh_process", run)
        return jobs

    jobs = []
    return stand_ins


ONE_EACH = ["--requests", "1", "--repeat", "1", "--stages"]


def test_other_tokens_print_no_speed(measure, stand_ins):
    """A stage whose greedy tokens differ is a wrong engine, and its speed is of no interest."""
    stand_ins({"stage01_single": [1, 2], "stage05_paged": [1, 3]})
    status, stdout, stderr, _ = measure(*ONE_EACH, "1", "5")
    assert (status, stdout) == (1, "")
    assert "stage05_paged made other tokens than stage01_single for 100% of the requests" in stderr


def test_weights_in_int8_may_make_other_tokens(measure, stand_ins):
    """The share of equal tokens is shown; the limit is different; and an exact engine that differs is still wrong."""
    made = {"stage08_int8": [1, 2, 3, 4], "stage01_single": [1, 2, 5, 4], "stage05_paged": [1, 2, 5, 4]}
    jobs, arguments = stand_ins(made), [*ONE_EACH, "1", "5", "8", "--weights", "int8"]
    status, stdout, _, result = measure(*arguments)
    assert (status, jobs[0]["options"]["weights"]) == (0, "int8")
    assert [row["same_tokens_share"] for row in result["summary"]] == [1, 1, 0.5]
    assert [row["same_ids_share"] for row in result["summary"]] == [1, 1, 0]
    assert result["summary"][2]["limit_share"] == pytest.approx(result["int8_least_seconds"])
    assert result["int8_least_seconds"] < result["least_seconds"]
    assert "400 billion integer operations/s" in stdout
    made["stage05_paged"] = made["stage08_int8"]
    status, _, stderr, _ = measure(*arguments)
    assert status == 1
    assert "stage05_paged made other tokens than stage01_single" in stderr


def test_what_was_measured_survives_an_interruption(measure, stand_ins):
    stand_ins({"stage01_single": [1, 2], "stage02_static_batch": KeyboardInterrupt()})
    status, stdout, _, result = measure("--requests", "1", "--repeat", "2", "--stages", "1", "2", "3")
    assert status == 1
    assert [run["engine"] for run in result["runs"]] == ["stage01_single"]
    assert result["missing"] == {"stage02_static_batch": "interrupted", "stage03_kvcache": "interrupted"}
    assert "| `stage01_single` | 2.0 |" in stdout


def test_a_failure_leaves_the_other_runs(measure, stand_ins):
    stand_ins({"stage01_single": throughput.Failure("no memory"), "stage06_fast": [1, 2]})
    status, stdout, stderr, _ = measure(*ONE_EACH, "1", "6")
    assert status == 1
    assert "stage01_single is missing: no memory" in stderr
    assert "| `stage06_fast` | " in stdout
    assert "Missing: stage01_single (no memory)" in stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--stages", "9"], "there is no stage 9"),
        (["--stages", "nowhere"], "'nowhere' is neither a stage's number nor the directory of an engine"),
        (["--peers", "hf,other"], "there is no peer other"),
        (["--workload", "none"], "invalid choice: 'none'"),
        (["--requests", "0"], "--requests must be more than 0, got 0"),
        (["--stages"], "at least one stage or peer"),
        (["--peers", "hf", "--kv-cache-bytes", "1000"], "for the stages only"),
        (["--device", "tpu"], "device must be"),
        (["--model", "nowhere"], "there is no directory nowhere"),
    ],
    ids=" ".join,
)
def test_bad_arguments_are_named(arguments, words):
    status, _, stderr = outcome(throughput.main, *arguments)
    assert status == 2
    assert words in stderr


def test_a_workload_that_the_model_has_no_positions_for_is_named(babble):
    arguments = ["--model", babble, "--load-format", "auto", "--workload", "prefill"]
    assert "a request of 520 tokens" in refusal(throughput.main, *arguments)


# --- An engine's process ----------------------------------------------------------------------------------------------


def test_an_engine_that_makes_too_little_is_an_error(tmp_path, monkeypatch):
    job = {"engine": "stage01_single", "requests": [[[1], 2], [[1], 3]]}
    (tmp_path / "job").write_text(json.dumps(job))
    monkeypatch.setattr(engines, "run_stage", lambda job: {"token_ids": [[1, 2], [1, 2]]})
    monkeypatch.setattr(sys, "argv", ["engines", str(tmp_path / "job"), str(tmp_path / "result")])
    with pytest.raises(SystemExit, match="2 tokens for request 1, 3 were asked for"):
        engines.main()


JOB = {"engine": "stand-in", "own": {}, "requests": [[[1], 1]]}


@pytest.mark.skipif(os.name == "nt", reason="a script for a POSIX shell")
@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("echo 'a warning' >&2; echo 'it broke' >&2; exit 1", "^it broke$"),
        ("kill -9 $$", "it ended with status -9"),
        ("exit 0", "it ended with status 0"),  # without a result
        ("printf '{\"seconds\": 1}' > $4", None),
    ],
)
def test_an_engine_that_breaks_is_named(tmp_path, monkeypatch, script, says):
    """A shell script in place of a peer's Python."""
    (tmp_path / "python").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(throughput, "PEERS", {"stand-in": SimpleNamespace(python=tmp_path / "python", preload={})})
    with pytest.raises(throughput.Failure, match=says) if says else contextlib.nullcontext():
        assert throughput.run_in_fresh_process(JOB, tmp_path) == {"seconds": 1}


@pytest.mark.skipif(sys.platform != "linux", reason="LD_PRELOAD")
def test_a_peer_begins_with_its_libraries(tmp_path, monkeypatch):
    (tmp_path / "python").write_text("#!/bin/sh\nprintf '[\"%s\"]' $LD_PRELOAD > $4\n")
    (tmp_path / "python").chmod(0o755)
    peer = SimpleNamespace(python=tmp_path / "python", preload={"LD_PRELOAD": "/nowhere/one.so:/nowhere/two.so"})
    monkeypatch.setattr(throughput, "PEERS", {"stand-in": peer})
    assert throughput.run_in_fresh_process(JOB, tmp_path) == ["/nowhere/one.so:/nowhere/two.so"]


# --- Results in the pages ---------------------------------------------------------------------------------------------


def test_pages_show_the_results_that_are_committed():
    ours = [path for path in ROOT.glob("[!.]*/**/*.md") if not {"_build", "build", "lib"} & {*path.parts}]
    assert {page for page in ours if report.BLOCK.search(page.read_text(encoding="utf-8"))} <= {*report.readmes()}
    for page in report.readmes():
        text = page.read_text(encoding="utf-8")
        assert report.with_tables(text) == text, f"{page}: python -m bench.report --write"


def test_committed_results_are_of_these_workloads():
    """The requests of a committed result can be made again, and all engines made the same tokens for nearly all."""
    for path in sorted(RESULTS.rglob("*.json")):
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


def test_the_front_page_says_how_it_compares_with_vllm():
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    claim = re.search(
        r"(\S+) to (\S+) times as many tokens\s+a second as vLLM \[in (\d+) comparisons on three CPUs", page
    )
    ratios, cpus = [], set()
    # The page has their tables. The third CPU has no instructions for bfloat16: vLLM would be eight times as slow.
    for path in [*RESULTS.glob("amx/*.json"), *RESULTS.glob("zen5/*.json"), *RESULTS.glob("avx2/*float32*.json")]:
        result = json.loads(path.read_text())
        speeds = {row["engine"]: row.get("tokens_per_second") for row in result.get("summary", ())}
        # Only where vLLM had the libraries that it runs best with.
        if {"stage06_fast", "vllm"} <= speeds.keys() and "preloaded" in result["versions"]["vllm"].values():
            ratios.append(speeds["stage06_fast"] / speeds["vllm"])
            cpus.add(path.parent.name)
    assert (f"{min(ratios):.2f}", f"{max(ratios):.1f}", str(len(ratios))) == claim.groups()
    assert cpus == {"zen5", "amx", "avx2"}


def test_the_race_is_that_of_the_committed_result():
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    name = re.search(r"<!-- throughput: bench/results/(\w+)\.json ladder -->", page)[1]
    result = json.loads((RESULTS / f"{name}.json").read_text())
    for picture, form in ((f"{name}.svg", race.WIDE), (f"{name}-narrow.svg", race.NARROW)):
        assert f'="bench/results/{picture}"' in page
        text = (RESULTS / picture).read_text(encoding="utf-8")
        assert text == race.svg(result, form), "python -m bench.report --write"
        assert len(text) < 40_000
    assert [run["engine"] for run in result["summary"]] == list(IDEAS)


@pytest.fixture
def shown(monkeypatch):
    """A function: a page's block of this kind, filled in from this result."""

    def shown(result, kind, words=""):
        monkeypatch.setattr(report, "read_result_text", lambda path: json.dumps(result))
        return report.with_tables(f"<!-- {kind}: x.json{words} -->\n<!-- end -->")

    return shown


def tail_result(seconds, num_tokens=36, **more):
    """The committed result with other runs: engine -> the seconds of each round."""
    runs = [
        {"engine": engine, "token_ids": [[1] * num_tokens], "times": None, "seconds": own, "peak_bytes": 1, **more}
        for rounds in zip(*seconds.values(), strict=True)
        for engine, own in zip(seconds, rounds, strict=True)
    ]
    return json.loads((RESULTS / "tail.json").read_text()) | report.summarize(runs, 0.5)


def test_a_page_shows_no_time_whose_rounds_are_far_apart(shown):
    """The stage's row is missing; what is counted does not depend on other programs."""
    seconds = {"stage01_single": (8.0, 9.0, 10.0), "stage02_static_batch": (4.0, 5.0, 5.1)}
    result = tail_result(seconds, forwards=7)
    speed, work = shown(result, "throughput", " speed"), shown(result, "throughput", " work")
    assert "stage01_single" in speed
    assert "stage02_static_batch" not in speed
    assert "medians of 3 runs in turn, within 25%" in speed
    assert "| `stage02_static_batch` | 7 |" in work
    assert result["summary"][1]["ratio_rounds"] == [8 / 4, 9 / 5, 10 / 5.1]


@pytest.mark.parametrize(
    ("kind", "name", "row", "figure"),
    [
        ("linear", "avx512/linear", "| 512 |", lambda found: found["rounds"]["float32"]["fma_float32"]["512"]),
        ("speculative", "speculative-bfloat16", "| tales | prompt lookup |", lambda found: found["cells"][1]["rounds"]),
    ],
    ids=["linear layers", "guesses"],
)
def test_other_tables_leave_such_a_cell_empty(shown, kind, name, row, figure):
    result = json.loads((RESULTS / f"{name}.json").read_text())
    figure(result)[:] = [1.0, 1.01, 9.0]
    assert "|  |" in next(line for line in shown(result, kind).splitlines() if line.startswith(row))


def test_a_comparison_has_a_column_for_each_peer_whatever_is_sampled():
    def result(sampling, speeds, rounds=2):
        runs = [
            {"engine": engine, "seconds": 100 / speed * (1 + 0.01 * i)}
            for engine, speed in speeds.items() for i in range(rounds)
        ]  # fmt: skip
        summary = [{"engine": e, "tokens_per_second": speed, "limit_share": 0.5} for e, speed in speeds.items()]
        what = {"workload": "decode", "dtype": "bfloat16", "sampling": sampling, "model": "gpt2", "command": "x"}
        limits = {"bandwidth": 1e9, "matmul_rate": 1e9}
        here = {"device": "A", "threads": 1, "cores": 2, "torch": "2"}
        versions = {name: {name: "1", "torch": "2"} for name in speeds if name in PEERS}
        return {**what, **limits, "summary": summary, "runs": runs, "machine": here, "versions": versions}

    text = report.comparison([
        result("greedy", {"stage06_fast": 30.0, "openvino": 20.0}),
        result("chat", {"stage06_fast": 30.0, "vllm": 25.0, "openvino": 10.0, "llama-cpp": 5.0}, rounds=3),
    ])  # fmt: skip
    head, _, greedy, chat, *_ = text.splitlines()
    assert head.split(" | ")[2:7] == ["sampling", "`stage06_fast`", "`openvino`", "`vllm`", "`llama-cpp`"]
    assert "| greedy | 30.0 | 20.0 |  |  | 1.50 × (1.50 to 1.50) | 50% |" in greedy
    assert "repetition penalty 1.1 | 30.0 | 10.0 | 25.0 | 5.0 | 1.20 × (1.20 to 1.20) |" in chat
    assert "openvino 1, vllm 1, llama-cpp 1" in text


def test_report_prints_a_result():
    status, stdout, _ = outcome(report.main, RESULTS / "ladder.json")
    assert (status, "`stage03_kvcache`" in stdout) == (0, True)


@pytest.mark.parametrize(
    ("text", "words"), [("[]", "not a result"), ("{}", "not a result"), ("", "Expecting value"), ("\xff", "report: ")]
)
def test_report_names_what_is_no_result(tmp_path, text, words):
    (tmp_path / "result.json").write_text(text, encoding="latin-1")
    said = refusal(report.main, tmp_path / "result.json")
    assert words in said
    assert "result.json" in said


# --- The machine and the peers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("capability", "name"), [("AVX2", "A CPU with AVX2"), ("AVX512", "A CPU")])
def test_the_name_of_a_cpu_says_whether_it_has_only_avx2(monkeypatch, capability, name):
    monkeypatch.setattr(machine.Path, "exists", lambda _: True)
    monkeypatch.setattr(machine.Path, "read_text", lambda _: "model name : A CPU\n")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert machine.cpu_name() == name


def test_a_slow_product_is_measured_on_small_matrices(monkeypatch):
    """bfloat16 without instructions for it: the probe of the machine must not take minutes."""
    sizes = []

    def best_seconds(run, device):
        sizes.append(len(run()))
        return sizes[-1] / 10_000

    monkeypatch.setattr(machine, "best_seconds", best_seconds)
    assert machine.matmul_rate(torch.bfloat16, torch.device("cpu"), enough=0.05) == 2 * 512**3 / 0.0512
    assert machine.matmul_rate(torch.float32, torch.device("cpu"), n=300, enough=9.0) == 2 * 300**3 / 0.03
    assert sizes == [256, 512, 256, 300]


def test_the_roofline_names_the_limit_of_each_batch(monkeypatch, capsys):
    """With a balance of 5: one row does half an operation for each byte, and 64 do dozens."""
    monkeypatch.setattr(roofline, "BATCHES", (1, 64))
    monkeypatch.setattr(roofline, "read_bandwidth", lambda device: 20e9)
    monkeypatch.setattr(roofline, "matmul_rate", lambda dtype, device: 100e9)
    monkeypatch.setattr(roofline, "decode_step", lambda llm, batch, *lengths: 0.001 * next(seconds))
    seconds = iter((1, 64, 128, 2, 4, 256))  # every other round goes through the batches in reverse
    roofline.main(["--model", "tinytales", "--device", "cpu", "--dtype", "float32"])
    one, many = (line.split() for line in capsys.readouterr().out.splitlines()[-2:])
    assert (one[0], one[1], one[2], one[5:]) == ("1", "0.5", "memory", ["500", "(250", "to", "1000)"])
    assert (many[0], many[2], many[5:]) == ("64", "arithmetic", ["500", "(250", "to", "1000)"])


def test_llama_cpps_repetition_penalty_sees_all_tokens(monkeypatch):
    """It only penalizes as many of the last tokens as it is told."""
    told = []
    names = ("chain_init", "chain_default_params", "chain_add", "init_top_k", "init_temp", "init_top_p", "init_dist")
    llama = SimpleNamespace(**{f"llama_sampler_{name}": lambda *_: None for name in (*names, "accept")})
    llama.llama_sampler_init_penalties = lambda n_vocab, last_n, repeat, freq, present: told.append((n_vocab, last_n))
    monkeypatch.setitem(sys.modules, "llama_cpp", SimpleNamespace(llama_cpp=llama))
    llama_cpp_sampler(100, workloads.SAMPLING["chat"], 0, [1, 2, 3], 4)
    assert told == [(100, 7)]
