"""What a cluster's actor and driver do, without a cluster; with one, see tests/scaleout."""

import json
import os
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from stagewise.dataset import Columns
from stagewise.sampling import Sampling
from stagewise.scaleout import driver, worker
from tests.adapter import STAGES
from tests.test_batch_file import by_id, read_results, write_input

SERVING = STAGES[3:]


def actor(stage):
    options = {**vars(stage.part("config").EngineConfig()), "max_num_seqs": 8}
    how = worker.How(Sampling(stage, max_tokens=8, temperature=0.8), Columns())
    return worker.Completer(stage.directory, options, how, 1, 1, 0)


def batches(path, size=8):
    rows = []
    for place, raw in enumerate(path.read_bytes().splitlines()):
        name = json.loads(raw).get("id", f"line-{place + 1}")
        rows.append({"place": place, "number": place + 1, "raw": raw, "id": json.dumps(name)})
    some = [rows[i : i + size] for i in range(0, len(rows), size)]
    return [{column: [row[column] for row in part] for column in rows[0]} for part in some]


@pytest.fixture
def in_this_process(monkeypatch):
    """What Ray does with `--ray auto` is done here, without Ray."""

    def completed(package, rows, options, how, cluster):
        own = worker.Completer(package, {**options, "max_num_seqs": 8}, how, 1, 1, 0)
        return zip(*own({name: [row[name] for row in rows] for name in rows[0]}).values(), strict=True)

    monkeypatch.setattr(driver, "completed", completed)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(__spec__=True))  # it is not called


def test_an_actor_answers_as_a_batch_run_does(tmp_path):
    stage, source, output = STAGES[3], tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write_input(source, 20)
    assert stage.main("--input", source, "--output", output, "--max-tokens", 8, "--quiet")[0] == 0
    own = actor(stage)
    answers = [json.loads(line) for batch in batches(source) for line in own(batch)["result"]]
    assert by_id(answers) == by_id(read_results(output))


def test_columns_of_other_names(tmp_path, in_this_process):
    """The same flags give the same answers, including a line that is scored and one without the column."""
    stage, source, output, alone = STAGES[4], *(tmp_path / f"{name}.jsonl" for name in ("in", "out", "alone"))
    lines = [{"question": f"A fox named {name}", "key": f"k{name}"} for name in ("Tom", "Ann", "Otto")]
    lines += [{"question": "A fox", "key": "scored", "score": True, "continuation": " runs"}, {"key": "none"}]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    flags = ["--prompt-column", "question", "--id-column", "key", "--max-tokens", 8, "--quiet"]
    assert stage.main("--input", source, "--output", alone, *flags)[0] == 1
    assert stage.main("--input", source, "--output", output, *flags, "--ray", "auto")[0] == 1
    expected = by_id(read_results(alone))
    assert by_id(read_results(output)) == expected
    assert sum("text" in one for one in expected) == 3


@pytest.mark.parametrize("ray", [(True, False), (False, True)], ids=["begun on a cluster", "begun on one machine"])
def test_a_run_goes_on_with_ray_or_without(tmp_path, in_this_process, ray):
    """The driver has no engine, so its manifest can't say how the actors compute."""
    stage, output = STAGES[4], tmp_path / "out.jsonl"
    write_input(tmp_path / "in.jsonl", 10)
    flags = ["--input", tmp_path / "in.jsonl", "--output", output, "--max-tokens", 8, "--quiet"]
    begin, go_on = ([*flags, "--ray", "auto"] if by_ray else flags for by_ray in ray)
    assert stage.main(*begin) == (0, "", "")
    whole = output.read_bytes().splitlines(keepends=True)
    output.write_bytes(b"".join(whole[:5]))
    assert stage.main(*go_on, "--resume") == (0, "", "")
    assert by_id(read_results(output)) == by_id(list(map(json.loads, whole)))


@pytest.mark.soak
def test_batches_at_once_keep_the_engine_full(tmp_path):
    """If each batch ended before the next began, the engine would wait for every batch's last row."""
    rng, source = random.Random(0), tmp_path / "in.jsonl"
    lengths = [max(2, min(60, round(rng.lognormvariate(2, 1)))) for _ in range(64)]
    lines = [{"prompt": "A fox", "sampling": {"max_tokens": n, "ignore_eos": True}} for n in lengths]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    passes = {}
    for at_once in (1, 3):
        own = actor(STAGES[4])
        with ThreadPoolExecutor(at_once) as pool:
            list(pool.map(own, batches(source)))
        passes[at_once] = own.llm.stats.num_forwards
    assert passes[3] < 0.75 * passes[1], passes


def test_an_actor_whose_steps_fail_ends(tmp_path, monkeypatch, capsys):
    """So that Ray starts another one; nothing else makes it do so."""
    own, ends = actor(STAGES[4]), []

    def broken(*_, **__):
        raise MemoryError("out of memory")

    monkeypatch.setattr(own.llm.engine.runner, "forward", broken)
    monkeypatch.setattr(os, "_exit", ends.append)
    own({"place": [0], "number": [1], "raw": [b'{"prompt": "A fox"}'], "id": ['"a"']})
    assert ends == [1]
    assert "scaleout: out of memory" in capsys.readouterr().err


def test_an_actor_says_which_package_is_missing(monkeypatch):
    """Its process goes on: another one would not have it either."""
    own = actor(STAGES[4])
    monkeypatch.setitem(sys.modules, "llguidance", None)
    line = b'{"prompt": "A fox", "sampling": {"structured_outputs": {"choice": ["fox"]}}}'
    with pytest.raises(ValueError, match="needs the package llguidance"):
        own({"place": [0], "number": [1], "raw": [line], "id": ['"a"']})


def test_actors_share_the_memory_of_their_machine(monkeypatch):
    options = {**vars(STAGES[4].part("config").EngineConfig()), "max_num_seqs": 8}
    most = worker.cache_bytes("stage05_paged", options, 1)  # what eight requests can fill
    per_token = most / 8 / 1024
    assert per_token == 2 * 6 * 120 * 4
    monkeypatch.setattr(STAGES[4].part("memory"), "free_memory", lambda device: most)
    assert worker.cache_bytes("stage05_paged", options, 1) == most // 2
    assert worker.cache_bytes("stage05_paged", options, 4) == most // 8


@pytest.mark.parametrize("stage", [STAGES[3], STAGES[4]], ids=str)
def test_a_run_with_the_sizes_of_a_model_of_the_hub(stage):
    """Sizes are known by the model's name; those that equal GPT-2 small's are left out."""
    options = {"model": "gpt2", "load_format": "dummy", "device": "cpu", "max_num_seqs": 2}
    assert stage.setup(options, "cpu").max_model_len == 1024
    assert stage.most_cache_bytes(options) == 2 * 1024 * 2 * 12 * 768 * 4


def test_a_machine_without_the_model():
    assert worker.look_at_model("stage05_paged", {"model": "tinytales"}).startswith("sha256:")
    with pytest.raises(ValueError, match="there is no directory"):
        worker.look_at_model("stage05_paged", {"model": "/not/there", "tokenizer": None})


def test_what_can_not_run_on_a_cluster(tmp_path, in_this_process):
    """It is said before Ray begins."""
    write_input(tmp_path / "in.jsonl", 1)
    files = ["--input", tmp_path / "in.jsonl", "--output", tmp_path / "out.jsonl"]
    assert "unrecognized arguments: --ray; --ray exists in" in STAGES[2].main("--ray", "auto")[2]
    for arguments, says in (
        (["--prompts", "a"], "--ray needs --input"),
        (["--input", "a"], "--input needs --output"),
        (["--interactive"], "--ray needs --input"),
        ([*files, "--actors", "0"], "must be 1 or more, got 0"),
        ([*files, "--model", tmp_path / "none"], "there is no directory"),
    ):
        status, _, stderr = STAGES[3].main("--ray", "auto", *arguments)
        assert status == 2
        assert says in stderr


def test_help_names_the_flags_of_a_cluster_where_there_are_some():
    assert ["--ray ADDRESS" in stage.main("--help")[1] for stage in STAGES] == [stage in SERVING for stage in STAGES]
