"""Batch runs on datasets: records of a run, several inputs, parquet, the Hub, which rows go first, and uploads."""

import base64
import datetime
import decimal
import hashlib
import json
import math
import os
import subprocess
import sys
import zipfile
from urllib.parse import parse_qs

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import HfFileSystem

from stagewise import batch_file, push, score
from stagewise.dataset import read_dataset
from stagewise.sampling import Sampling
from tests.adapter import ROOT, STAGES, fetch_from, outcome, refusal
from tests.hub import Hub, hub_with
from tests.test_batch_file import ONE, QUICK, by_id, near, read_results, results_by_id, write_input

FOUR, SIX = STAGES[3], STAGES[5]


def write_rows(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


# --- What a run was -------------------------------------------------------------------------------------------------


@pytest.fixture
def begun(tmp_path):
    """A run of stage 6 on three lines whose last result is missing: (source, output, the flags to resume it)."""
    source, output = write_rows(tmp_path / "in.jsonl", *({"prompt": f"A fox {i}"} for i in range(3))), tmp_path / "out"
    command = ["--input", source, "--output", output, *QUICK]
    assert SIX.main(*command)[0] == 0
    output.write_text("".join(output.read_text().splitlines(keepends=True)[:2]))
    return source, output, [*command, "--resume"]


def test_a_manifest_says_what_the_run_was(begun):
    source, output, command = begun
    run = json.loads((output.parent / "out.run.json").read_text())
    assert run["stage"] == SIX.directory
    assert (run["model"], run["dtype"], run["seed"], run["max_model_len"]) == ("tinytales", "float32", 0, 1024)
    assert (run["sampling"]["max_tokens"], run["sampling"]["temperature"]) == (8, 0.8)
    assert run["input_sha256"] == hashlib.sha256(source.read_bytes()).hexdigest()
    assert run["weights"].startswith("sha256:")
    assert "attention: c" in run["arithmetic"]
    assert SIX.main(*command) == (0, "", "")
    assert len(read_results(output)) == 3


def test_resume_refuses_another_run(begun):
    """Other parameters, another model, stage or arithmetic, or no manifest; the output stays."""
    _, output, command = begun
    path, before = output.parent / "out.run.json", output.read_bytes()
    for arguments, says in (
        (["--temperature", 0.5], "temperature is 0.5 now, "),
        (["--max-tokens", 9], "max_tokens is 9 now, "),
        (["--stop", "fox"], "stop is ['fox'] now, "),
        (["--seed", 1], "seed is 1 now, "),
        (["--dtype", "bfloat16"], "dtype is 'bfloat16' now, "),
        (["--max-model-len", 100], "max_model_len is 100 now, "),
        (["--load-format", "dummy"], "weights is 'dummy weights of tinytales' now, "),
        (["--attention-backend", "torch"], "arithmetic is 'products: "),
        (["--disable", "linear"], "arithmetic is 'products: "),
    ):
        assert says in SIX.refusal(*command, *arguments)
    whole = path.read_text()
    for content, says in {
        whole.replace(SIX.directory, "stage09_dreams"): "stage is",
        whole.replace("sha256:", "sha256:0"): "weights differs from",
        whole.replace('"input_sha256": "', '"input_sha256": "0'): "input_sha256 differs from",
        whole.replace('"version": "', '"version": "9'): "version is",
        "{": "is not valid JSON",
        "[]": "is not a JSON object",
        "[" * 100_000: "is not valid JSON",
    }.items():
        path.write_text(content)
        assert says in SIX.refusal(*command)
    path.unlink()
    assert f"there is no {path}" in SIX.refusal(*command)
    assert output.read_bytes() == before


def test_a_model_that_was_moved_is_the_same(begun, tmp_path):
    source, output, command = begun
    (tmp_path / "moved").symlink_to(ROOT / "stagewise" / "models" / "tinytales")
    command[1] = source.rename(tmp_path / "renamed.jsonl")
    assert SIX.main(*command, "--model", tmp_path / "moved")[0] == 0
    assert len(read_results(output)) == 3


def test_nothing_but_a_manifest_is_replaced_by_one(tmp_path):
    source, output, manifest = (tmp_path / name for name in ("in.jsonl", "out.jsonl", "out.jsonl.run.json"))
    command = ["--input", write_rows(source, {"prompt": "A fox"}), "--output", output, *QUICK]
    for content in ('{"precious": 1}', "precious"):
        manifest.write_text(content)
        assert str(manifest) in ONE.refusal(*command)
        assert manifest.read_text() == content
    manifest.unlink()
    status, _, stderr = ONE.main(*command, "--trace", manifest)
    assert (status, "is not a trace" in stderr) == (2, True)
    assert "input_sha256" in json.loads(manifest.read_text())
    output.unlink()
    manifest.unlink()
    for _ in range(2):  # the second time there is the manifest of a run whose output was removed
        assert ONE.main(*command)[0] == 0
        output.unlink()


# --- Several inputs -------------------------------------------------------------------------------------------------


def test_several_inputs_and_one_model(tmp_path):
    write_input(tmp_path / "a.jsonl", 4)
    write_input(tmp_path / "b.jsonl", 7)
    (tmp_path / "out").mkdir()
    both = ["--input", tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    assert ONE.main(*both, "--output", tmp_path / "out", *QUICK)[0] == 0
    assert ONE.main(*both, "--output", tmp_path / "c.jsonl", tmp_path / "d.jsonl", *QUICK)[0] == 0
    for a, b, count in (("out/a.jsonl", "c.jsonl", 4), ("out/b.jsonl", "d.jsonl", 7)):
        assert len(read_results(tmp_path / a)) == count
        assert by_id(read_results(tmp_path / a)) == by_id(read_results(tmp_path / b))
    for outputs, says in (
        (["e.jsonl"], "got 2 --input and 1 --output"),
        (["e.jsonl", "e.jsonl"], "would be the output of two inputs"),
        (["e.jsonl", "c.jsonl"], "exists: add --resume"),
    ):
        assert says in ONE.refusal(*both, "--output", *(tmp_path / name for name in outputs), *QUICK)


VALUES = {  # a column of parquet: a value, and how it is carried
    "id": (7, 7),
    "image": (b"\x00\xff", "AP8="),
    "price": (decimal.Decimal("1.50"), "1.50"),
    "ratio": (math.nan, None),
    "day": (datetime.date(2026, 1, 2), "2026-01-02"),
    "sampling": ({"max_tokens": 3, "top_k": None}, {"max_tokens": 3, "top_k": None}),
}


def test_rows_as_people_have_them(tmp_path):
    """Parquet and an array of JSON: the same rows, and all of their columns in the output, null where a row has no
    value, and under another name where results have that one."""
    prompts = [{"text": "A fox", "uid": "a"}, {"text": "One day", "uid": "b"}]
    values, carried = ({name: pair[i] for name, pair in VALUES.items()} for i in (0, 1))
    pq.write_table(pa.Table.from_pylist([prompts[0] | values, prompts[1]]), tmp_path / "in.parquet")
    none = dict.fromkeys(VALUES)
    (tmp_path / "in.json").write_text(json.dumps([prompts[0] | carried, prompts[1] | none], indent=1))
    outputs = []
    for name in ("in.parquet", "in.json"):
        command = ["--input", tmp_path / name, "--output", tmp_path / f"{name}.out", "--temperature", 0, *QUICK]
        status, _, stderr = ONE.main(*command, "--prompt-column", "text", "--id-column", "uid")
        assert status == 0, stderr
        outputs.append(results_by_id(tmp_path / f"{name}.out"))
    assert outputs[0] == near(outputs[1])
    for prompt, row in zip(prompts, (carried, none), strict=True):
        result = outputs[0][prompt["uid"]]
        kept = {("input_id" if name == "id" else name): value for name, value in row.items()}
        assert (kept | {"uid": prompt["uid"], "input_text": prompt["text"]}).items() <= result.items()
        params = ONE.SamplingParams(temperature=0, max_tokens=3 if row["sampling"] else 8)
        assert result["text"] == ONE.engine().generate(prompt["text"], params)[0].outputs[0].text
    assert "--resume: id is 'id' now, " in ONE.refusal(*command, "--prompt-column", "text", "--resume")


def test_a_folder_is_no_input(tmp_path):
    said = ONE.refusal("--input", tmp_path, "--output", tmp_path / "o", "--model", "nonesuch")
    assert said.endswith("is a folder: name a file in it")


# --- How a run goes, and what it tells ------------------------------------------------------------------------------


def test_the_longest_outputs_go_first(tmp_path):
    """So that no long one runs alone at the end: the fewest forward passes there can be, here."""
    body = {"model": "tinytales", "prompt": "A fox", "max_tokens": 12, "ignore_eos": True}
    request = {"custom_id": "last", "method": "POST", "url": "/v1/completions", "body": body}
    ours = [{"prompt": "A fox", "sampling": {"max_tokens": n, "ignore_eos": True}} for n in (2, 2, 2, 2, 2, 2, 12)]
    source = str(write_rows(tmp_path / "in.jsonl", *ours, request))
    llm, how = ONE.LLM(max_num_seqs=3, device="cpu"), batch_file.How(Sampling(ONE))
    with batch_file.open_output(source, tmp_path / "out.jsonl", False) as file:
        batch_file.run_batch_file(ONE, llm, read_dataset(source), file, how, quiet=True)
    assert llm.stats.num_forwards == 12  # 16 in the order of the file


@pytest.mark.parametrize("stage", [STAGES[1], STAGES[4]], ids=str)
def test_outputs_that_reach_their_greatest_length_are_counted(stage):
    arguments = ["--prompts", "A fox", "One day", "--max-tokens", 3, "--ignore-eos"]
    assert "\n  ended by length:      2\n" in stage.main(*arguments, "--stats")[2]


@pytest.mark.parametrize("stage", [STAGES[0], STAGES[2], STAGES[4]], ids=str)
def test_a_run_says_what_auto_has_picked(stage):
    _, _, stderr = stage.main("--prompts", "A fox", "--max-tokens", 1)
    first = stderr.splitlines()[0]
    assert first.startswith("tinytales on cpu (")
    assert "threads), float32" in first
    assert ("KV cache" in first) == (stage.number >= 3)
    assert ("attention: " in first) == (stage.number >= 5)
    assert "tinytales on" not in stage.main("--prompts", "A fox", "--max-tokens", 1, "--quiet")[2]


# --- The Hub, by a stand-in on loopback -----------------------------------------------------------------------------


class Dataset(Hub):
    """The dataset USER/tales, and what is sent to a new one: `server.created`, and `server.commits`."""

    def do_POST(self):
        length = int(self.headers.get("Content-Length") or 0)
        body, path = self.rfile.read(length), self.path.split("?")[0]
        new = f"http://127.0.0.1:{self.server.server_port}/datasets/USER/new"
        if "/paths-info/" in path:
            asked = json.loads(body)["paths"] if body.startswith(b"{") else parse_qs(body.decode())["paths"]
            self.answer([self.entry(n) for n in asked if n in self.server.files])
        elif path == "/api/repos/create":
            self.server.created.append(json.loads(body))
            self.answer({"url": new})
        elif path.endswith("/preupload/main"):
            asked = json.loads(body)["files"]
            modes = [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in asked]
            self.answer({"files": modes})
        elif path.endswith("/commit/main"):
            self.server.commits.append([json.loads(line) for line in body.splitlines()])
            self.answer({"commitUrl": f"{new}/commit/1", "commitOid": "1" * 40, "success": True})
        else:
            self.answer({})


@pytest.fixture
def hub(tmp_path, monkeypatch):
    with hub_with("datasets/USER/tales", Dataset) as server:
        server.commits, server.created = [], []
        fetch_from(monkeypatch, f"http://127.0.0.1:{server.server_port}", tmp_path)
        yield server


def test_a_dataset_of_the_hub(hub, tmp_path):
    lines = write_input(tmp_path / "in.jsonl", 5)
    pq.write_table(pa.Table.from_pylist([{"prompt": "A fox", "id": "p"}]), tmp_path / "p.parquet")
    names = []
    for name in ("in.jsonl", "p.parquet"):
        hub.files[name] = (tmp_path / name).read_bytes()
        names.append(f"hf://datasets/USER/tales/{name}")
    (tmp_path / "out").mkdir()
    status, _, stderr = ONE.main("--input", *names, "--output", tmp_path / "out", *QUICK)
    assert status == 0, stderr
    assert len(read_results(tmp_path / "out" / "in.jsonl")) == len(lines)
    assert [result["id"] for result in read_results(tmp_path / "out" / "p.jsonl")] == ["p"]
    for name, says in (
        ("hf://datasets/USER/tales/none.jsonl", "can't be fetched"),
        ("hf://USER/tales", "a file on the Hub is hf://datasets/USER/NAME/FILE"),
    ):
        assert says in ONE.refusal("--input", name, "--output", tmp_path / "o.jsonl", *QUICK)


def test_push(hub, tmp_path, monkeypatch):
    source = write_rows(tmp_path / "in.jsonl", {"prompt": "A fox", "answer": "x"}, {"answer": "y"})
    output = tmp_path / "out.jsonl"
    assert FOUR.main("--input", source, "--output", output, *QUICK)[0] == 1
    monkeypatch.setenv("HF_TOKEN", "hf_made_up")
    status, _, stderr = outcome(push.main, output, "--repo", "USER/new", "--reference", "answer")
    assert status == 0, stderr
    assert hub.created[0]["visibility"] == "private"
    (commit,) = hub.commits
    sent = {e["value"]["path"]: base64.b64decode(e["value"]["content"]) for e in commit if e["key"] == "file"}
    assert sent.keys() == {"README.md", "out.jsonl", "out.jsonl.run.json", "scores.json"}
    assert sent["out.jsonl"] == output.read_bytes()
    assert json.loads(sent["scores.json"])["errors"] == 1
    card = sent["README.md"].decode()
    assert card.startswith("---\n")
    assert "2 lines that `python -m stage04_continuous`" in card
    assert "1 of them are\nerrors" in card
    assert '| weights | `"sha256:' in card
    assert "| seed | `0` |" in card
    fetch_from(monkeypatch, "http://127.0.0.1:9", tmp_path)
    assert "USER/new can't be written" in refusal(push.main, output, "--repo", "USER/new")


def test_a_card_counts_what_was_cut(tmp_path):
    """In every form of results, OpenAI's too."""
    body = {"choices": [{"finish_reason": "length"}, {"finish_reason": "stop"}]}
    answer = {"id": "1", "custom_id": "a", "response": {"body": body}, "error": None}
    failed = {"id": "2", "custom_id": "b", "response": None, "error": {"message": "no"}}
    several = {"outputs": [{"finish_reason": "length"}] * 2}
    results = [answer, failed, several, {"text": "a", "finish_reason": "length"}, {"error": "no"}]
    run = {"stage": "stage04_continuous", "version": "1", "model": "m", "sampling": {}}
    assert "4 outputs" in push.card("USER/new", tmp_path / "out.jsonl", results, run, None)


def test_scores_of_the_hub(hub, tmp_path):
    """The same scores as for the file on disk. If a dataset has only one result file, it need not be named."""
    texts = enumerate(["A fox", "a cat", "fox"])
    results = write_rows(tmp_path / "out.jsonl", *({"id": i, "text": text, "answer": "a fox"} for i, text in texts))
    hub.files |= {"README.md": b"", "out.jsonl": results.read_bytes(), "out.jsonl.run.json": b"{}"}
    expected = outcome(score.main, results, "--reference", "answer")
    assert json.loads(expected[1])["exact_match"] == 2 / 3
    for name in ("hf://datasets/USER/tales/out.jsonl", "hf://datasets/USER/tales", "hf://datasets/USER/tales/"):
        assert outcome(score.main, name, "--reference", "answer") == expected
    hub.files["more.jsonl"] = b"{}"
    HfFileSystem.clear_instance_cache()
    for name, says in (
        ("hf://datasets/USER/tales", "name the result file, hf://datasets/USER/tales/FILE (one of more.jsonl, out.js"),
        ("hf://datasets/USER/tales/none.jsonl", "hf://datasets/USER/tales/none.jsonl can't be fetched"),
        ("hf://USER/tales", "results on the Hub are hf://datasets/USER/NAME"),
        ("hf://datasets/USER/tales/more.jsonl", "more.jsonl, line 1: it has no text"),
    ):
        assert says in refusal(score.main, name, "--reference", "answer")


def cells_of(card):
    """The rows of a card's tables, without their heads."""
    rows = [row.strip("| ").split(" | ") for row in card.splitlines() if row.startswith("| ")]
    return [row for row in rows if len(row) == 2]


def test_a_card_says_the_seed_and_the_parameters_as_they_were(tmp_path):
    """The run's seed, and each line's own parameters before those of the command line."""
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [{"prompt": "A fox", "sampling": {"max_tokens": 3, "seed": i, "stop": ["|"]}} for i in range(9)]
    scored = {"prompt": "A fox", "score": True}
    flags = ["--seed", "5", "--temperature", "0.5", "--max-tokens", "4", "--quiet"]

    def cells(*lines):
        output.unlink(missing_ok=True)
        FOUR.main("--input", write_rows(source, *lines), "--output", output, *flags)
        folder = tmp_path / f"folder of {len(lines)}"
        assert push.main([str(output), "--folder", str(folder)]) == 0
        return cells_of((folder / "README.md").read_text())

    of_run = cells(*lines, {"prompt": "A fox"}, scored, {"sampling": {"max_tokens": 7}})
    assert next(value for name, value in of_run if name == "seed") == "`5`"
    values = dict(of_run)  # the later table's
    assert values["max_tokens"] == "`3` (9 of 10 lines), `4` (1 of 10 lines)"
    assert values["temperature"] == "`0.5`"
    assert values["stop"] == r'`["\|"]` (9 of 10 lines), `[]` (1 of 10 lines)'
    assert values["seed"].endswith("and 5 other values")
    assert [value for name, value in cells(scored) if name == "seed"] == ["`5`"]


def test_push_tells_what_is_wrong(tmp_path):
    path = tmp_path / "r.jsonl"
    for content, manifest, says in (
        (None, None, "No such file"),
        ("", None, "it contains no results"),
        ("[1]\n", None, "it contains no results"),
        ('{"id": 1}\n[1\n', None, "r.jsonl, line 2: not JSON: Expecting ',' delimiter at column 3"),
        ('{"id": 1, "text": "a"}\n', None, "is not the output of a batch run"),
        ('{"id": 1, "text": "a"}\n', "{", "r.jsonl.run.json is not valid JSON: "),
        ('{"id": 1, "text": "a"}\n', "{}", "is not the manifest of a batch run"),
    ):
        if content is not None:
            path.write_text(content)
        if manifest is not None:
            (tmp_path / "r.jsonl.run.json").write_text(manifest)
        assert says in refusal(push.main, path, "--folder", tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


# --- Installed, not checked out -------------------------------------------------------------------------------------


RUN_ALL = """
import contextlib, io, json, runpy, sys
shown = {}
for command in sys.argv[1:]:
    sys.argv = [command, "--prompts", "A fox", "--max-tokens", "3", "--quiet"]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            runpy.run_module(command, run_name="__main__")
        except SystemExit as exit:
            shown[command] = [exit.code, out.getvalue()]
files = [module.__file__ for name, module in sys.modules.items() if name.startswith("stage") and module.__file__]
print(json.dumps([shown, files]))
"""


def test_the_default_model_comes_with_a_wheel(tmp_path):
    """The wheel has the model, and runs from an empty directory without this checkout."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", str(ROOT), "--no-deps", "--no-build-isolation", "-w", str(tmp_path)], check=True)
    (wheel,) = tmp_path.glob("stagewise-*.whl")
    installed, empty = tmp_path / "site", tmp_path / "empty"
    zipfile.ZipFile(wheel).extractall(installed)  # of pure Python, that is what installing it comes to
    empty.mkdir()
    # One process for all stages: torch takes longer to import than they take to answer.
    command = [sys.executable, "-P", "-c", RUN_ALL, *(stage.command for stage in STAGES)]
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(command, cwd=empty, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    shown, files = json.loads(done.stdout)
    for stage in STAGES:
        status, stdout = shown[stage.command]
        assert status == 0, done.stderr
        assert stdout.startswith("A fox")
    assert all(file.startswith(str(installed)) for file in files)
