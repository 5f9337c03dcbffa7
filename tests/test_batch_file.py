"""Batch files: every line is answered once, bad lines are reported, and runs killed at any byte resume without loss."""

import contextlib
import json
import math
import os
import random
import shutil
import signal
import sys
import time
from io import FileIO
from types import SimpleNamespace

import pytest
from safetensors.torch import load_file, save_file

from stagewise import batch_file, cli, manifest, push, score, trace_file
from stagewise.dataset import read_dataset
from stagewise.sampling import Sampling
from tests.adapter import STAGES, outcome, wait_until

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None

NUMBERS = (2, 5)  # of the stages that this runs on, see conftest.py
TWO, THREE, ONE = STAGES[1], STAGES[2], STAGES[4]  # ONE: where a stage only has to be there

QUICK = ["--max-tokens", "8", "--quiet"]
posix = pytest.mark.skipif(fcntl is None, reason="POSIX only")


def write_lines(path, *lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def write_input(path, count=20):
    """Lines of every kind: texts and tokens, ids and none, parameters of their own, fields to be carried through."""
    rng, lines = random.Random(0), []
    for i in range(count):
        line = {"answer": f"reference {i}", "nested": {"ü": [i, None]}}
        if i % 3:
            line["id"] = f"q{i}" if i % 2 else i
        if i % 4:
            line["prompt"] = " ".join(rng.choices(["A", "fox", "named", "Tom", "went", "home"], k=rng.randrange(1, 30)))
        else:
            line["prompt_token_ids"] = [rng.randrange(50257) for _ in range(rng.randrange(1, 20))]
        if i % 5 == 0:
            line["sampling"] = {"temperature": 0, "max_tokens": 5, "logprobs": 1}
        lines.append(line)
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    return lines


def read_results(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def results_by_id(path):
    return {result["id"]: result for result in read_results(path)}


def near(value, tolerance=1e-3):
    """A value whose numbers may be off by as much as another batch would round them differently."""
    if isinstance(value, dict):
        return {name: near(inner, tolerance) for name, inner in value.items()}
    if isinstance(value, list):
        return [near(inner, tolerance) for inner in value]
    return pytest.approx(value, rel=0, abs=tolerance) if isinstance(value, float) else value


def by_id(results):
    """Results in the order of their ids, to be compared with others."""
    assert len({json.dumps(result["id"]) for result in results}) == len(results), "a line was answered twice"
    return near(sorted(results, key=lambda result: json.dumps(result["id"])))


def id_of(line):
    return json.dumps(json.loads(line)["id"])


def openai_request(custom_id, **body):
    body = {"model": "tinytales", "prompt": "Once upon a time", "max_tokens": 5, "temperature": 0} | body
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body}


@pytest.fixture
def files(tmp_path):
    """An input, its output, and the flags that run one into the other."""
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    return source, output, ["--input", source, "--output", output, *QUICK]


def test_a_null_field_in_a_template_is_empty(files):
    source, output, command = files
    write_lines(source, {"ask": "Once upon", "more": None, "temperature": None}, {"ask": "Once", "more": "upon"})
    assert ONE.main(*command, "--temperature", 0, "--prompt-template", "{ask} {more}")[0] == 0
    assert [result.get("error") for result in read_results(output)] == [None, None]


def test_null_parameters_on_a_card_are_the_defaults():
    results = [{"text": "a", "sampling": None}, {"text": "b", "sampling": {"top_k": None}}]
    assert push.sampling_values(results, {"top_k": 3}) == [("top_k", "`3`")]


# --- Lines and their results ----------------------------------------------------------------------------------------


def test_results_carry_the_input_and_the_answer(batched_stage, files):
    """The answers are what `generate` gives."""
    source, output, command = files
    lines = write_input(source, count=12)
    assert batched_stage.main(*command, "--temperature", "0") == (0, "", "")
    results = results_by_id(output)
    assert len(results) == len(lines)
    for number, line in enumerate(lines, start=1):
        result = results[line.get("id", f"line-{number}")]
        assert {name: result[name] for name in line} == line
        params = batched_stage.SamplingParams(**{"temperature": 0, "max_tokens": 8, **line.get("sampling", {})})
        prompt = line.get("prompt", line.get("prompt_token_ids"))
        (completion,) = batched_stage.engine().generate([prompt], params)[0].outputs
        assert (result["text"], result["token_ids"]) == (completion.text, completion.token_ids)
        assert result["finish_reason"] == completion.finish_reason
        assert ("logprobs" in result) == ("cumulative_logprob" in result) == ("sampling" in line)
        if "sampling" in line:
            chosen = [step[str(t)]["logprob"] for step, t in zip(result["logprobs"], result["token_ids"], strict=True)]
            assert result["cumulative_logprob"] == pytest.approx(sum(chosen))


BAD_LINES = {
    "not json": "line 2: not JSON: Expecting value at column 1",
    '{"prompt": "a"': "line 2: not JSON: Expecting ',' delimiter at column 15",
    '["a"]': "a line is a JSON object, got list",
    '{"text": "x", "prompt": "a", "input_text": 1}': "'text' is a result field, and 'input_text' is taken too",
    '{"question": "a"}': "either prompt or prompt_token_ids",
    '{"prompt": "a", "prompt_token_ids": [1]}': "either prompt or prompt_token_ids",
    '{"prompt": null}': "either prompt or prompt_token_ids",
    '{"prompt": 5}': "prompt must be a string",
    '{"prompt": {"0": "a"}}': "prompt must be a string or a chat, prompt_token_ids a list of token ids, got {'0': 'a'}",
    '{"prompt": ["a"]}': "prompt must be a string",
    '{"prompt": [{"role": "user", "content": "Hi"}]}': "a chat needs a chat template, and the model has none: give",
    '{"prompt_token_ids": ["a"]}': "prompt_token_ids a list",
    '{"prompt_token_ids": "a"}': "prompt_token_ids a list",
    '{"prompt_token_ids": []}': "empty list",
    '{"prompt_token_ids": [99999]}': "token 99999 is outside",
    '{"prompt": "a", "prompt": "b"}': "the key 'prompt' appears twice",
    '{"prompt": "a", "sampling": {"top_k": 1, "top_k": 2}}': "the key 'top_k' appears twice",
    '{"prompt": "a", "sampling": [1]}': "sampling must be a JSON object",
    '{"prompt": "a", "sampling": {"temperature": -1}}': "temperature must be",
    '{"prompt": "a", "sampling": {"best_of": 2}}': "sampling has no field 'best_of'",
    '{"prompt": "a", "sampling": {"use_beam_search": true, "n": 2}}': "sampling.use_beam_search True is not supported",
    '{"prompt": "a", "id": [1]}': "id must be a string or a whole number",
    '{"prompt": "a", "id": 1.5}': "id must be a string or a whole number",
    '{"prompt": "a", "id": "first"}': "an earlier line has the same id, 'first'",
    '{"prompt": "\\ud83d"}': "not valid Unicode",
    json.dumps({"prompt": "word " * 2000}): "no room",
}


def test_bad_lines_become_error_lines(batched_stage, files):
    """One file with all of them, and good lines before, between and after."""
    source, output, command = files
    lines = [b'{"prompt": "A fox", "id": "first"}']
    for text in BAD_LINES:
        lines += [text.encode(), b'{"prompt": "A bear"}']
    lines += [b"\xff\xfe not UTF-8", b"", b"   ", b'{"prompt": "A duck", "id": "last"}']
    source.write_bytes(b"\n".join(lines))
    status, _, stderr = batched_stage.main(*command)
    assert status == 1
    bad = len(BAD_LINES)
    assert f"{bad + 1} of {2 * bad + 3} lines are errors" in stderr
    results = read_results(output)
    errors = {result["error"].split(":")[0]: result["error"] for result in results if "error" in result}
    for number, says in enumerate(BAD_LINES.values()):
        assert says.removeprefix("line 2: ") in errors[f"line {2 + 2 * number}"]
    assert "codec can't decode" in errors[f"line {2 * bad + 2}"]
    good = [result for result in results if "error" not in result]
    assert (len(good), len(results)) == (bad + 2, 2 * bad + 3)
    assert all(result["token_ids"] for result in good)


def test_lines_that_are_hard_to_read(files):
    """Nested as deep as can be read, or deeper; very long ids and numbers, twice: an error or a result for each."""
    source, output, command = files
    lines = ['{"prompt": "A", "x": ' + "[" * depth + "]" * depth + "}" for depth in (500, 900, 950, 980, 990, 10**5)]
    lines += ['{"prompt": "A", "id": "' + "x" * 10**6 + '"}'] * 2 + ['{"prompt": "A", "id": ' + "9" * 4000 + "}"] * 2
    lines += ['{"prompt": "A", "id": ' + "9" * 5000 + "}", '{"prompt": "A", "x": 1e400}', '{"prompt": "A\\u0000"}']
    lines += ['{"prompt": "\0"}', '{"prompt": "A", "sampling": {"' + "y" * 10**5 + '": 1}}', "NaN", '"A"']
    source.write_text("\n".join(lines) + "\n")
    for _ in range(2):
        status, _, stderr = ONE.main(*command, "--resume")
        assert (status, stderr.count("\n")) == (1, 1), stderr
        assert len(results_by_id(output)) == output.read_bytes().count(b"\n") == len(lines)
    assert all(len(result.get("error", "")) < 200 for result in read_results(output))


def test_ids_that_look_like_numbers_of_lines(files):
    """A line without an id gets a unique one; resume agrees."""
    source, output, command = files
    write_lines(source, {"prompt": "A fox", "id": "line-2"}, {"prompt": "A bear"}, {"prompt": "A", "id": "line-2+"})
    assert ONE.main(*command)[0] == 0
    assert sorted(results_by_id(output)) == ["line-2", "line-2+", "line-2++"]
    content = output.read_bytes()
    output.write_bytes(content[: content.index(b"\n") + 1])
    assert ONE.main(*command, "--resume")[0] == 0
    assert sorted(output.read_bytes().split(b"\n")) == sorted(content.split(b"\n"))


def test_seed_of_a_line_is_its_own(batched_stage, files):
    """Lines without a seed draw by the engine's seed and their number, as an editor counts: other lines around them
    change nothing, nor does a run that resumes after some of them."""
    source, output, command = files
    line = '{"prompt": "Once upon a time", "id": "x"}\n'
    seed = batched_stage.part("philox").derive_seed(5, 3)
    params = batched_stage.SamplingParams(max_tokens=8, temperature=0.8, seed=seed)
    (expected,) = batched_stage.engine().generate("Once upon a time", params)[0].outputs
    for content in ('{"prompt": "A fox"}\n\n' + line + '{"prompt": "A bear"}\n', "broken\n\n" + line):
        source.write_text(content)
        output.unlink(missing_ok=True)
        for resume in ((), ("--resume",)):
            batched_stage.main(*command, "--seed", 5, *resume)
            assert results_by_id(output)["x"]["token_ids"] == expected.token_ids
            others = [one for one in output.read_bytes().splitlines(keepends=True) if id_of(one) != '"x"']
            output.write_bytes(b"".join(others))


def test_output_is_strict_json(batched_stage, files, tmp_path, small_checkpoint):
    """Infinities and NaN of the input are null, in good lines and in bad ones; and so are those of the model: here a
    token that is impossible."""
    source, output, command = files
    model = shutil.copytree(small_checkpoint, tmp_path / "model")
    tensors = load_file(model / "model.safetensors")
    tensors["transformer.ln_f.bias"].fill_(1)
    tensors["transformer.ln_f.weight"].fill_(0)
    tensors["transformer.wte.weight"][5].fill_(-3e38)  # finite, but its logit is not, nor is the tensor's sum
    save_file(tensors, model / "model.safetensors")
    source.write_text(
        '{"prompt_token_ids": [1], "id": "good", "x": NaN, "deep": [{"y": [-Infinity, 1e999, 1.5]}], "z": "\\ud800"}\n'
        '{"prompt_token_ids": [1], "id": "bad", "x": Infinity, "sampling": {"temperature": NaN}}\n'
        '{"prompt_token_ids": [1], "id": NaN}\n'
        '{"prompt_token_ids": [1], "id": "all", "sampling": {"logprobs": 211}}\n'
    )
    assert batched_stage.main(*command, "--model", model, "--ignore-eos")[0] == 1
    read = json.JSONDecoder(parse_constant=lambda name: pytest.fail(f"{name} is no JSON")).decode
    results = {result["id"]: result for result in map(read, output.read_text(encoding="utf-8").splitlines())}
    assert results.keys() == {"good", "bad", "line-3", "all"}
    good, bad = results["good"], results["bad"]
    assert (good["x"], good["deep"], good["z"]) == (None, [{"y": [None, None, 1.5]}], "\ud800")
    assert (bad["x"], bad["sampling"]) == (None, {"temperature": None})
    assert "temperature must be a number from 0 to 100000.0, got nan" in bad["error"]
    first = results["all"]["logprobs"][0]
    assert first["5"]["logprob"] is None
    assert isinstance(first["6"]["logprob"], float)


def test_a_line_is_written_as_soon_as_it_is_done(batched_stage, files, monkeypatch):
    """A short one does not wait for a long one next to it."""
    source, _, command = files
    steps, written, half = [], [], 10
    lengths = ({"max_tokens": 1}, {"max_tokens": 2 * half, "ignore_eos": True})
    write_lines(source, *({"prompt": "A", "sampling": length} for length in lengths))
    engine, append = batched_stage.part("engine").Engine, batch_file.append
    step = engine.step

    def counted(self, *rows):
        steps.append(1)
        if len(steps) == half and batched_stage.number >= 4:  # another thread writes: it may take its time
            wait_until(lambda: written, 60)
        return step(self, *rows)

    def noticed(file, result):
        append(file, result)
        written.append(len(steps))

    monkeypatch.setattr(engine, "step", counted)
    monkeypatch.setattr(batch_file, "append", noticed)
    assert batched_stage.main(*command)[0] == 0
    short, long = written
    assert short <= half < long


def test_scored_lines(files):
    """From stage 4 on: choices, continuations, whole texts; wrong lines are told; a resumed run has the same."""
    source, output, command = files
    lines = {
        "a": {"prompt": "Once upon a", "score": True, "choices": [" time", " fox"], "answer": 0, "choice": 1},
        "b": {"prompt": "Once upon a", "score": True, "continuation": " ü “…”"},
        "c": {"prompt": "Once upon a time", "score": True},
        "d": {"prompt_token_ids": [7454, 2402, 257], "score": True, "continuation": [640]},
        "e": {"prompt": "Once", "score": 0.5, "choice": 7, "sampling": {"max_tokens": 1, "prompt_logprobs": 0}},
        "f": {"prompt": "Once", "score": True, "choices": []},
        "g": {"prompt": "Once", "score": True, "choices": ["a"], "continuation": "b"},
        "h": {"prompt": "Once", "score": True, "sampling": {}},
    }
    write_lines(source, *({"id": name, **line} for name, line in lines.items()))
    assert STAGES[3].main(*command)[0] == 1
    results = results_by_id(output)
    time, fox, other = STAGES[3].engine().score(["Once upon a"] * 3, [" time", " fox", " ü “…”"])
    logprobs = [score["logprob"] for name in "adb" for score in results[name]["scores"]]
    assert logprobs == [pytest.approx(one.logprob, abs=1e-3) for one in (time, fox, time, other)]
    assert (results["a"]["choice"], results["a"]["answer"], results["a"]["input_choice"]) == (0, 0, 1)
    assert results["b"]["scores"][0]["num_bytes"] == len(" ü “…”".encode())
    assert results["c"]["scores"][0]["num_tokens"] == 4
    assert (results["e"]["choice"], len(results["e"]["prompt_logprobs"])) == (7, 1)  # it is completed
    assert "choices must be a non-empty list" in results["f"]["error"]
    assert "either continuation or choices" in results["g"]["error"]
    assert "can't have sampling" in results["h"]["error"]
    whole = output.read_bytes()
    output.write_bytes(whole[: len(whole) // 2])
    assert STAGES[3].main(*command, "--resume")[0] == 1
    assert by_id(read_results(output)) == by_id([*results.values()])
    output.unlink()
    assert "can't score lines: use a later stage" in THREE.refusal(*command)


def test_a_line_is_written_whole(tmp_path):
    """A file may take only a part of what it is given, as when a disk is almost full."""

    class Slow(FileIO):
        def write(self, data):
            return super().write(data[:7])

    with Slow(tmp_path / "out.jsonl", "w") as file:
        batch_file.append(file, b'{"id": "a long line"}')
    assert (tmp_path / "out.jsonl").read_bytes() == b'{"id": "a long line"}\n'


# --- Files that a run may not touch ---------------------------------------------------------------------------------


def test_wrong_paths_are_refused_before_the_work(tmp_path):
    """In one line, and no file is changed. Pipes would block, and devices could be read forever."""
    source, output, new = (tmp_path / name for name in ("in.jsonl", "out.jsonl", "new.jsonl"))
    (tmp_path / "sub").mkdir()
    source.write_text('{"prompt": "a", "id": 1}\n')
    output.write_text("precious\n")
    batch = ["--input", source, "--output"]
    cases = [
        (["--input", source], "--input needs --output"),
        ([*batch, output], f"--output {output} exists: add --resume"),
        ([*batch, source, "--resume"], "is the input file"),
        (["--input", tmp_path / "none", *batch[2:], output], f"{tmp_path / 'none'}"),
        ([*batch, tmp_path / "none" / "out.jsonl"], f"there is no directory {tmp_path / 'none'}"),
        ([*batch, output, "--prompts", "a"], "--prompts"),
    ]
    if os.name == "posix":
        os.mkfifo(tmp_path / "fifo")
        for place in (tmp_path, tmp_path / "fifo", "/dev/zero", "/dev/null"):
            says = f"{place} is not a regular file"
            cases.append((["--input", place, "--output", new], f"--input {place} is "))
            into = f"--output {tmp_path}/in.jsonl is the input file"
            cases.append(([*batch, place, "--resume"], into if place == tmp_path else f"--output {says}"))
            cases.append(([*batch, new, "--trace", place], f"--trace {says}"))
        os.link(source, tmp_path / "hard")
        for link, to in (("to-in", source), ("to-out", output), ("to-new", new)):
            os.symlink(to, tmp_path / link)
        for place in (output, new):
            for name in ("in.jsonl", "hard", "to-in", "sub/../in.jsonl", place.name, f"to-{place.stem}"):
                cases.append(([*batch, place, "--resume", "--trace", f"{tmp_path}/{name}"], "is not a trace"))
    for arguments, says in cases:
        new.unlink(missing_ok=True)  # a trace must not lead to it, there or not
        assert says in ONE.refusal(*arguments)
        assert (source.read_text(), output.read_text()) == ('{"prompt": "a", "id": 1}\n', "precious\n")
        assert not new.exists() or new.read_text() == ""
    for content in ("my notes\nlast line without newline", "\n\nx", '{"prompt": "a"}'):
        new.write_text(content)
        assert "--resume" in ONE.refusal(*batch, new, "--resume", *QUICK)
        assert new.read_text() == content


def test_resume_refuses_lines_that_are_no_results_of_the_input(files):
    """Even if the manifest is this run's: the output was replaced by another file."""
    source, output, command = files
    line = {"prompt": "A fox", "id": 1, "answer": "red"}
    write_lines(source, line, openai_request("2"))
    assert ONE.main(*command)[0] == 0
    request, own = sorted(output.read_bytes().splitlines(keepends=True), key=id_of)
    for results, says in (
        (({**line, "id": 2, "text": ""},), "the input has no such id"),
        ((own, own), "an earlier line has the same id, 1"),
        ((request, request), "an earlier line has the same id, '2'"),
    ):
        before = b"".join(one if isinstance(one, bytes) else json.dumps(one).encode() + b"\n" for one in results)
        output.write_bytes(before)
        said = ONE.refusal(*command, "--resume")
        assert f"line {len(results)} is not a result of this input" in said
        assert says in said
        assert output.read_bytes() == before


@posix
def test_two_runs_on_one_output(files, monkeypatch):
    """The second is refused before it reads or cuts anything; the lock is held as long as the first one runs."""
    source, output, command = files
    write_lines(source, {"prompt": "A fox", "id": 1})
    assert ONE.main(*command)[0] == 0
    output.write_text('{"prompt": "A f')  # the first run is in the middle of a line
    refusals = []

    def first_run(*arguments, **more):
        for resume in ([], ["--resume"]):
            refusals.append(ONE.main(*command, *resume))
        assert output.read_text() == '{"prompt": "A f'
        return original(*arguments, **more)

    original = cli.run_batch_file
    monkeypatch.setattr(cli, "run_batch_file", first_run)
    assert ONE.main(*command, "--resume")[0] == 0
    assert [status for status, _, _ in refusals] == [2, 2]
    assert all(f"--output {output}: another run is writing to this file" in stderr for _, _, stderr in refusals)
    assert len(read_results(output)) == 1
    with output.open("ab") as file:  # and no longer
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


# --- Runs that end early --------------------------------------------------------------------------------------------

around_the_loop = pytest.mark.covers("llm.py")  # what runs beside it is the same in all stages
KILL = getattr(signal, "SIGKILL", signal.SIGTERM)


@pytest.mark.parametrize("kill", [KILL, pytest.param(signal.SIGINT, marks=pytest.mark.soak)])
def test_killed_and_resumed(files, tmp_path, kill):
    """A real process, killed while it writes. Ctrl-C ends it with status 130 and loses nothing."""
    source, output, command = files
    write_input(source, count=10)
    command += ["--max-num-seqs", "2", "--max-tokens", "30", "--ignore-eos"]
    assert ONE.main(*command, "--output", tmp_path / "whole.jsonl")[0] == 0
    process = ONE.start(*command)
    while process.poll() is None and not (output.exists() and output.stat().st_size):
        time.sleep(0.002)
    process.send_signal(kill)
    _, stderr = process.communicate(timeout=600)
    assert "Traceback" not in stderr
    assert process.returncode in (130, -kill)
    status, _, stderr = ONE.main(*command, "--resume")
    assert status == 0, stderr
    assert by_id(read_results(output)) == by_id(read_results(tmp_path / "whole.jsonl"))


@pytest.mark.parametrize("stage", [STAGES[number - 1] for number in (2, 5, 6, 8)], ids=str)
def test_what_of_a_resumed_run_may_differ(stage, files):
    """The last digits of log-probabilities, in stages 2 to 5, by no more than USING.md says; in stage 6 not a byte."""
    source, output, command = files
    write_input(source, count=7)
    command += ["--max-num-seqs", "3", "--max-tokens", "5", "--logprobs", "2"]
    assert stage.main(*command)[0] == 0
    whole = output.read_bytes()
    output.write_bytes(whole[: len(whole) // 2])
    assert stage.main(*command, "--resume")[0] == 0
    before, after = (sorted(content.splitlines(), key=id_of) for content in (whole, output.read_bytes()))
    if stage.number >= 6:
        assert before == after
    assert [json.loads(line) for line in after] == near([json.loads(line) for line in before], 1e-4)


TAKEN = [  # input lines with fields that a result has: they are errors, which carry these fields
    {"error": "a reference", "id": "a"},
    {"text": "ü", "id": 7},
    {"id": "b", "error": None, "text": "x"},
    {"outputs": [1], "error": {"error": ""}},
    {"prompt": "half a pair: \ud83d", "error": "x"},
    {"custom_id": "ö", "body": {"prompt": "A fox"}},  # of OpenAI's, without a method
]


@around_the_loop
def test_resume_from_every_byte(batched_stage, files, small_checkpoint, monkeypatch):
    """At the ends of lines, inside a character, and in lines whose input has fields that the result has, too: nothing
    is lost, and no finished line is done again."""
    source, output, _ = files
    lines = [*TAKEN, {"prompt_token_ids": [4], "answer": "ü", "x": [math.nan]}]
    write_lines(source, *lines)
    llm = batched_stage.engine(small_checkpoint)
    how = batch_file.How(Sampling(batched_stage, max_tokens=1))
    monkeypatch.setattr(os, "fsync", lambda number: None)  # hundreds of runs; the disk may take its time
    monkeypatch.setattr(manifest, "hash_of_checkpoint", lambda *_: "sha256:0")  # nor need the model be read again

    def run(resume=True):
        with batch_file.open_output(str(source), output, resume) as file:
            done = batch_file.run_batch_file(batched_stage, llm, read_dataset(str(source)), file, how, quiet=True)
            assert done == (len(lines), len(TAKEN))

    run(resume=False)
    content = output.read_bytes()
    expected = sorted(content.split(b"\n"))
    written, append = [], batch_file.append
    monkeypatch.setattr(batch_file, "append", lambda *arguments: written.append(append(*arguments)))
    for cut in range(len(content) + 1):
        output.write_bytes(content[:cut])
        written.clear()
        run()
        assert sorted(output.read_bytes().split(b"\n")) == expected, f"cut at byte {cut}"
        assert len(written) == len(lines) - content[:cut].count(b"\n"), "a line was done again"


def test_control_c_twice(batched_stage, files, monkeypatch):
    """Ctrl-C after the third line, and once more: finished results are in the file, status 130, a closing line."""
    source, output, _ = files
    write_input(source, count=8)
    command = ["--input", source, "--output", output, "--max-num-seqs", "2", "--max-tokens", "8"]
    count, original = 0, batch_file.append

    def append(file, result):
        nonlocal count
        original(file, result)
        count += 1
        if count == 3:
            signal.raise_signal(signal.SIGINT)

    try:
        with monkeypatch.context() as context:
            context.setattr(batch_file, "append", append)
            context.setattr(batch_file, "sync", lambda file: signal.raise_signal(signal.SIGINT))
            status, stdout, stderr = batched_stage.main(*command)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    assert (status, stdout) == (130, "")
    assert "interrupted; run the same command with --resume to continue" in stderr
    assert "tok/s" in stderr.split("\n")[-2]
    assert 3 <= len(read_results(output)) < 8
    assert batched_stage.main(*command, "--resume")[0] == 0
    assert len(by_id(read_results(output))) == 8


# --- The disk -------------------------------------------------------------------------------------------------------


def test_what_is_written_is_synced(files, monkeypatch):
    """On a schedule and at the end, so that a machine which fails loses little."""
    source, output, command = files
    sizes = []
    write_input(source, count=6)
    monkeypatch.setattr(os, "fsync", lambda number: sizes.append(os.fstat(number).st_size))
    assert ONE.main(*command)[0] == 0
    assert sizes[-1] == output.stat().st_size
    assert len(sizes) < 4  # the manifest too
    monkeypatch.setattr(batch_file, "SYNC_SECONDS", 0)
    sizes.clear()
    output.unlink()
    assert ONE.main(*command)[0] == 0
    assert len({*sizes[1:]}) == 6


@contextlib.contextmanager
def files_of_at_most(num_bytes):
    """Simulate a full disk: no file of this process can grow beyond this many bytes."""
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@posix
def test_a_full_disk_loses_nothing_that_is_written(files, tmp_path, monkeypatch):
    """The file may not grow further in the middle of a line: one clear line, and --resume goes on from there."""
    source, output, command = files
    write_input(source, count=16)
    assert ONE.main(*command, "--output", tmp_path / "whole.jsonl")[0] == 0
    limit = 2000  # more than the manifest takes, less than the results
    original = cli.run_batch_file

    def full(*arguments, **more):
        with files_of_at_most(limit):
            return original(*arguments, **more)

    with monkeypatch.context() as context:
        context.setattr(cli, "run_batch_file", full)
        assert ONE.refusal(*command).endswith(f"error: {output}: File too large")
    assert output.stat().st_size == limit
    assert ONE.main(*command, "--resume")[0] == 0
    assert by_id(read_results(output)) == by_id(read_results(tmp_path / "whole.jsonl"))


@posix
def test_errors_of_the_disk_name_the_file(tmp_path):
    """For every file that is written (the output, its manifest, a trace, scores, a dataset for the Hub) or read."""
    results, long = write_lines(tmp_path / "r.jsonl", *[{"id": 1, "text": "a"}] * 200), {"long": "word " * 1000}
    with (tmp_path / "o.jsonl").open("ab", buffering=0) as file:
        writes = {
            "o.jsonl": lambda: batch_file.append(file, json.dumps(long).encode()),
            "o.jsonl.run.json.new": lambda: manifest.begin(file.name, long),
            "trace": lambda: trace_file.write_trace(tmp_path / "trace", SimpleNamespace(header=long, records=[])),
            "README.md": lambda: push.write(tmp_path, {"README.md": b"a" * 2000}),
        }
        for name, write in writes.items():
            with files_of_at_most(1000), pytest.raises(OSError, match="File too large") as raised:
                write()
            assert str(raised.value).endswith(f": '{tmp_path / name}'"), name
    with files_of_at_most(1000):
        status, _, stderr = outcome(score.main, results, "--per-line", tmp_path / "scores")
    assert (status, stderr.endswith(f"error: {tmp_path / 'scores'}: File too large\n")) == (2, True)
    if sys.platform == "linux":
        with pytest.raises(OSError, match="Input/output error: '/proc/self/mem'"):
            read_dataset("/proc/self/mem")


@pytest.mark.skipif(sys.platform != "linux", reason="file names of bytes")
def test_names_that_are_not_utf8(tmp_path):
    source, output = tmp_path / os.fsdecode(b"in-\xff.jsonl"), tmp_path / "out.jsonl"
    write_lines(source, {"prompt": "A fox"})
    for flags in ((), ("--resume",)):
        assert ONE.main("--input", source, "--output", output, *QUICK, *flags)[0] == 0
