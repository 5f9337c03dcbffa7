"""Batch files: every line is answered once, bad lines are reported, and runs killed at any byte resume without loss."""

import asyncio
import contextlib
import itertools
import json
import math
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from safetensors.torch import load_file, save_file

from stagewise import batch_file, cli, manifest, push, score, trace_file
from stagewise.dataset import read_dataset
from stagewise.openai.limits import Limits
from stagewise.sampling import Sampling
from stagewise.serving.service import Run, Service
from tests.adapter import ROOT, STAGES, outcome, refusal

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None

NUMBERS = (2, 5)  # of the stages that this runs on, see conftest.py
ONE = STAGES[4]  # where a stage only has to be there

QUICK = ["--max-tokens", "8", "--quiet"]


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


def test_results_carry_the_input_and_the_answer(batched_stage, tmp_path):
    """The answers are what `generate` gives."""
    lines, output = write_input(tmp_path / "in.jsonl", count=12), tmp_path / "out.jsonl"
    command = ("--input", tmp_path / "in.jsonl", "--output", output, "--temperature", "0", *QUICK)
    assert batched_stage.main(*command) == (0, "", "")
    results = {result["id"]: result for result in read_results(output)}
    assert len(results) == len(lines)
    for number, line in enumerate(lines, start=1):
        result = results[line.get("id", f"line-{number}")]
        assert {name: result[name] for name in line} == line
        params = batched_stage.SamplingParams(**{"temperature": 0, "max_tokens": 8, **line.get("sampling", {})})
        prompt = line.get("prompt", line.get("prompt_token_ids"))
        (completion,) = batched_stage.engine().generate([prompt], params)[0].outputs
        assert (result["text"], result["token_ids"]) == (completion.text, completion.token_ids)
        assert result["finish_reason"] in ("stop", "length")
        asked = "sampling" in line
        assert ("logprobs" in result) == ("cumulative_logprob" in result) == asked
        if asked:
            assert len(result["token_ids"]) <= 5
            chosen = [step[str(t)]["logprob"] for step, t in zip(result["logprobs"], result["token_ids"], strict=True)]
            assert result["cumulative_logprob"] == pytest.approx(sum(chosen))


BAD_LINES = {
    "not json": "line 2: not JSON: Expecting value at column 1",
    '{"prompt": "a"': "line 2: not JSON: Expecting ',' delimiter at column 15",
    '["a"]': "a line is a JSON object, got list",
    '{"text": "x", "prompt": "a", "input_text": 1}': "'text' is a result field, and 'input_text' is taken too",
    '{"question": "a"}': "either prompt or prompt_token_ids",
    '{"prompt": "a", "prompt_token_ids": [1]}': "either prompt or prompt_token_ids",
    '{"prompt": 5}': "prompt must be a string",
    '{"prompt": {"0": "a"}}': "prompt must be a string or a chat, prompt_token_ids a list of token ids, got {'0': 'a'}",
    '{"prompt": ["a"]}': "prompt must be a string",
    '{"prompt": [{"role": "user", "content": "Hi"}]}': "a chat needs a chat template, and the model has none: give",
    '{"prompt_token_ids": ["a"]}': "prompt_token_ids a list",
    '{"prompt": "a", "prompt": "b"}': "the key 'prompt' appears twice",
    '{"prompt": "a", "sampling": {"top_k": 1, "top_k": 2}}': "the key 'top_k' appears twice",
    '{"prompt": null}': "either prompt or prompt_token_ids",
    '{"prompt_token_ids": "a"}': "prompt_token_ids a list",
    '{"prompt_token_ids": []}': "empty list",
    '{"prompt_token_ids": [99999]}': "token 99999 is outside",
    '{"prompt": "a", "sampling": {"temperature": -1}}': "temperature must be",
    '{"prompt": "a", "sampling": {"best_of": 2}}': "sampling has no field 'best_of'",
    '{"prompt": "a", "sampling": {"use_beam_search": true, "n": 2}}': "sampling.use_beam_search True is not supported",
    '{"prompt": "a", "sampling": {"use_beam_search": 0}}': "sampling.use_beam_search 0 is not supported: a search has",
    '{"prompt": "a", "sampling": {"length_penalty": 2}}': "sampling.length_penalty 2 is not supported: a search has",
    '{"prompt": "a", "sampling": {"early_stopping": "never"}}': "sampling.early_stopping 'never' is not supported",
    '{"prompt": "a", "sampling": [1]}': "sampling must be a JSON object",
    '{"prompt": "a", "id": [1]}': "id must be a string or a whole number",
    '{"prompt": "a", "id": 1.5}': "id must be a string or a whole number",
    '{"prompt": "a", "id": "first"}': "an earlier line has the same id, 'first'",
    '{"prompt": "\\ud83d"}': "not valid Unicode",
}


def test_bad_lines_become_error_lines(batched_stage, tmp_path):
    """One file with all of them, and good lines before, between and after."""
    long = json.dumps({"prompt": "word " * 2000})
    bad = {**BAD_LINES, long: "no room"}
    lines = [b'{"prompt": "A fox", "id": "first"}']
    for text in bad:
        lines += [text.encode(), b'{"prompt": "A bear"}']
    lines += [b"\xff\xfe not UTF-8", b"", b"   ", b'{"prompt": "A duck", "id": "last"}']
    (tmp_path / "in.jsonl").write_bytes(b"\n".join(lines))
    status, _, stderr = batched_stage.main("--input", tmp_path / "in.jsonl", "--output", tmp_path / "out.jsonl", *QUICK)
    assert status == 1
    assert f"{len(bad) + 1} of {2 * len(bad) + 3} lines are errors" in stderr
    results = read_results(tmp_path / "out.jsonl")
    assert len(results) == 2 * len(bad) + 3
    errors = {result["error"].split(":")[0]: result["error"] for result in results if "error" in result}
    for number, says in enumerate(bad.values()):
        assert says.replace("line 2: ", "") in errors[f"line {2 + 2 * number}"]
    assert "codec can't decode" in errors[f"line {2 * len(bad) + 2}"]
    good = [result for result in results if "error" not in result]
    assert len(good) == len(bad) + 2
    assert all(result["token_ids"] for result in good)


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
            for flag in ("--input", "--output", "--trace"):
                paths = {"--input": source, "--output": new, flag: place}
                cases.append(([*itertools.chain(*paths.items()), "--resume"], f"{flag} {place} is not a regular file"))
        os.link(source, tmp_path / "hard")
        for link, to in (("to-in", source), ("to-out", output), ("to-new", new)):
            os.symlink(to, tmp_path / link)
        for place in (output, new):
            for name in ("in.jsonl", "hard", "to-in", "sub/../in.jsonl", place.name, f"to-{place.stem}"):
                cases.append(([*batch, place, "--resume", "--trace", f"{tmp_path}/{name}"], "put too"))
    for arguments, says in cases:
        new.unlink(missing_ok=True)  # a trace must not lead to it, there or not
        assert says in ONE.refusal(*arguments)
        assert (source.read_text(), output.read_text()) == ('{"prompt": "a", "id": 1}\n', "precious\n")
        assert not new.exists() or new.read_text() == ""
    for content in ("my notes\nlast line without newline", "a line", "\n\nx", '{"prompt": "b"}', '{"prompt": "a"}'):
        new.write_text(content)
        assert "--resume" in ONE.refusal(*batch, new, "--resume", *QUICK)
        assert new.read_text() == content


def test_a_line_is_written_as_soon_as_it_is_done(batched_stage, tmp_path, monkeypatch):
    """Before each step the file has the lines of all that have finished: none waits for its batch to end."""
    write_input(tmp_path / "in.jsonl", count=12)
    output, requests, counts = tmp_path / "out.jsonl", {}, []
    engine = batched_stage.part("engine").Engine
    original = engine.step

    def spy(self, *rows):
        running = rows[0] if rows else [*self.scheduler.running, *self.scheduler.waiting]
        requests.update(dict.fromkeys(running))
        num_finished, deadline = sum(request.finished for request in requests), time.monotonic() + 60
        num_lines = lambda: output.read_text(encoding="utf-8").count("\n")  # noqa: E731
        while batched_stage.number >= 4 and num_lines() < num_finished:  # another thread writes it
            assert time.monotonic() < deadline
            time.sleep(0.001)
        counts.append((num_lines(), num_finished))
        return original(self, *rows)

    monkeypatch.setattr(engine, "step", spy)
    arguments = ["--max-num-seqs", "4", "--input", tmp_path / "in.jsonl", "--output", output]
    assert batched_stage.main(*arguments, *QUICK)[0] == 0
    assert all(num_lines == num_finished for num_lines, num_finished in counts)
    assert len({num_lines for num_lines, _ in counts}) > 2


around_the_loop = pytest.mark.covers("llm.py")  # what runs beside it is the same in all stages
KILL = getattr(signal, "SIGKILL", signal.SIGTERM)


@around_the_loop
@pytest.mark.parametrize(
    ("kill", "times"), [(KILL, 1), *(pytest.param(kill, 2, marks=pytest.mark.soak) for kill in (KILL, signal.SIGINT))]
)
def test_killed_and_resumed(batched_stage, tmp_path, kill, times):
    """A real process, killed repeatedly while it writes. Ctrl-C ends it with status 130 and loses nothing."""
    source = tmp_path / "in.jsonl"
    write_input(source, count=10)
    flags = ["--max-num-seqs", "2", "--max-tokens", "30", "--ignore-eos", "--quiet", "--input", source]
    assert batched_stage.main(*flags, "--output", tmp_path / "whole.jsonl")[0] == 0
    output, grown, kills = tmp_path / "out.jsonl", 0, 0
    for _ in range(times):
        process = batched_stage.start(*flags, "--output", output, "--resume")
        while process.poll() is None:
            if output.exists() and output.stat().st_size > grown:  # it has written something: now
                process.send_signal(kill)
                break
            time.sleep(0.002)
        _, stderr = process.communicate(timeout=600)
        assert "Traceback" not in stderr
        if process.returncode == 0:
            break
        assert process.returncode in (130, -kill)
        kills, grown = kills + 1, output.stat().st_size
    assert kills > 0
    status, _, stderr = batched_stage.main(*flags, "--output", output, "--resume")
    assert status == 0, stderr
    assert by_id(read_results(output)) == by_id(read_results(tmp_path / "whole.jsonl"))


@pytest.mark.parametrize("batched_stage", STAGES[1:], ids=str)
def test_what_of_a_resumed_run_may_differ(batched_stage, tmp_path):
    """The last digits of log-probabilities, in stages 2 to 5, by no more than USING.md says; in stage 6 not a byte."""
    source, whole = tmp_path / "in.jsonl", tmp_path / "whole.jsonl"
    write_input(source, count=7)
    batch = ["--max-num-seqs", "3", "--max-tokens", "5", "--logprobs", "2", "--quiet", "--input", source]
    assert batched_stage.main(*batch, "--output", whole)[0] == 0
    content = whole.read_bytes()
    for cut in random.Random(0).sample(range(len(content)), 2):
        output = tmp_path / f"cut-{cut}.jsonl"
        output.write_bytes(content[:cut])
        shutil.copy(f"{whole}.run.json", f"{output}.run.json")
        assert batched_stage.main(*batch, "--output", output, "--resume")[0] == 0
        before, after = (sorted(path.read_bytes().splitlines(), key=id_of) for path in (whole, output))
        if batched_stage.number >= 6:
            assert before == after
        assert [json.loads(line) for line in after] == near([json.loads(line) for line in before], 1e-4)


def id_of(line):
    return json.dumps(json.loads(line)["id"])


def test_output_is_strict_json(batched_stage, tmp_path, small_checkpoint):
    """Infinities and NaN of the input are null, in good lines and in bad ones, also where a run goes on; and so are
    those of the model: here a token that is impossible."""
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
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
    batch = ["--model", model, "--input", source, "--output", output, "--max-tokens", "2", "--ignore-eos", "--quiet"]
    assert batched_stage.main(*batch)[0] == 1
    content = output.read_bytes()
    for cut in (len(content), len(content) - 3, content.index(b"deep") + 30):
        output.write_bytes(content[:cut])
        assert batched_stage.main(*batch, "--resume")[0] == 1
        results = {}
        for line in output.read_text(encoding="utf-8").splitlines():
            result = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
            results[result["id"]] = result
        assert results.keys() == {"good", "bad", "line-3", "all"}
        good, bad = results["good"], results["bad"]
        assert (good["x"], good["deep"], good["z"]) == (None, [{"y": [None, None, 1.5]}], "\ud800")
        assert (bad["x"], bad["sampling"]) == (None, {"temperature": None})
        assert "temperature must be a number" in bad["error"]
        assert "got nan" in bad["error"]
        assert results["all"]["logprobs"][0]["5"]["logprob"] is None
        assert isinstance(results["all"]["logprobs"][0]["6"]["logprob"], float)


@pytest.mark.parametrize("stage", STAGES[4:], ids=str)
def test_resume_refuses_another_arithmetic(stage, tmp_path):
    """Another attention backend, or fewer of stage 6's optimizations, changes the last bits; the error names them."""
    source, output = write_lines(tmp_path / "in.jsonl", {"prompt": "A fox", "id": 1}), tmp_path / "out.jsonl"
    batch = ("--input", source, "--output", output, *QUICK)
    assert stage.main(*batch)[0] == 0
    assert "attention: c" in json.loads(Path(f"{output}.run.json").read_text())["arithmetic"]
    for other in [("--attention-backend", "torch")] + [("--disable", "linear")] * (stage.number >= 6):
        assert "--resume: arithmetic is 'products: " in stage.refusal(*batch, "--resume", *other)
    assert stage.main(*batch, "--resume")[0] == 0


def test_resume_refuses_lines_that_are_no_results_of_the_input(tmp_path):
    """Even if the manifest is this run's: the output was replaced by another file."""
    output, line = tmp_path / "out.jsonl", {"prompt": "A fox", "id": 1, "answer": "red"}
    source = write_lines(tmp_path / "in.jsonl", line, openai_request("2"))
    batch = ("--input", source, "--output", output, *QUICK)
    assert ONE.main(*batch)[0] == 0
    request, own = sorted(output.read_bytes().splitlines(keepends=True), key=id_of)
    for results, says in (
        (({**line, "prompt": "A bear", "text": ""},), "the input line with this id has other fields"),
        (({**line, "id": 2, "text": ""},), "the input has no such id"),
        (({"prompt": "A fox", "id": 1, "text": ""},), "lacks the field 'answer' of the input line"),
        ((line,), "it has no text, outputs"),
        ((own, own), "an earlier line has the same id, 1"),
        ((request, request), "an earlier line has the same id, '2'"),
    ):
        before = b"".join(one if isinstance(one, bytes) else json.dumps(one).encode() + b"\n" for one in results)
        output.write_bytes(before)
        said = ONE.refusal(*batch, "--resume")
        assert f"line {len(results)} is not a result of this input" in said
        assert says in said
        assert output.read_bytes() == before


def test_ids_that_look_like_numbers_of_lines(tmp_path):
    """A line without an id gets a unique one; NaN, which Python's JSON has, is carried; resume agrees."""
    lines = {"prompt": "A fox", "id": "line-2", "x": math.nan}, {"prompt": "A bear"}, {"prompt": "A", "id": "line-2+"}
    source, output = write_lines(tmp_path / "in.jsonl", *lines), tmp_path / "out.jsonl"
    batch = ("--input", source, "--output", output, *QUICK)
    assert ONE.main(*batch)[0] == 0
    assert sorted(result["id"] for result in read_results(output)) == ["line-2", "line-2+", "line-2++"]
    content = output.read_bytes()
    output.write_bytes(content[: content.index(b"\n") + 1])
    assert ONE.main(*batch, "--resume")[0] == 0
    assert sorted(output.read_bytes().split(b"\n")) == sorted(content.split(b"\n"))


def test_seed_of_a_line_is_its_own(batched_stage, tmp_path):
    """Lines without a seed draw by the engine's seed and their number, as an editor counts: other lines around them
    change nothing, nor does a run that resumes after some of them."""
    line = '{"prompt": "Once upon a time", "id": "x"}\n'
    seed = batched_stage.part("philox").derive_seed(5, 3)
    params = batched_stage.SamplingParams(max_tokens=8, temperature=0.8, seed=seed)
    (expected,) = batched_stage.engine().generate("Once upon a time", params)[0].outputs
    for name, content in (
        ("a", '{"prompt": "A fox"}\n\n' + line + '{"prompt": "A bear"}\n'),
        ("b", "broken\n\n" + line),
    ):
        source, output = tmp_path / f"{name}.jsonl", tmp_path / f"{name}.out"
        source.write_text(content)
        batch = ("--input", source, "--output", output, "--seed", 5, *QUICK)
        for resume in ((), ("--resume",)):
            batched_stage.main(*batch, *resume)
            results = output.read_bytes().splitlines(keepends=True)
            assert [r["token_ids"] for r in map(json.loads, results) if r["id"] == "x"] == [expected.token_ids]
            output.write_bytes(b"".join(one for one in results if json.loads(one)["id"] != "x"))


def test_lines_that_are_hard_to_read(tmp_path):
    """Nested as deep as can be read, or deeper; very long ids and numbers, twice: an error or a result for each."""
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [
        '{"prompt": "A", "x": ' + "[" * depth + "]" * depth + "}" for depth in (10, 500, 900, 950, 980, 990, 10**5)
    ]
    lines += ['{"prompt": "A", "id": "' + "x" * 10**6 + '"}'] * 2 + ['{"prompt": "A", "id": ' + "9" * 4000 + "}"] * 2
    lines += ['{"prompt": "A", "id": ' + "9" * 5000 + "}", '{"prompt": "A", "x": 1e400}', '{"prompt": "A\\u0000"}']
    lines += ['{"prompt": "\0"}', '{"prompt": "A", "sampling": {"' + "y" * 10**5 + '": 1}}', "NaN", '"A"']
    source.write_text("\n".join(lines) + "\n")
    for _ in range(2):
        status, _, stderr = ONE.main("--input", source, "--output", output, "--resume", *QUICK)
        assert (status, stderr.count("\n")) == (1, 1), stderr
        assert len({result["id"] for result in read_results(output)}) == output.read_bytes().count(b"\n") == len(lines)
    assert all(len(result.get("error", "")) < 200 for result in read_results(output))


TAKEN = [  # input lines with fields that a result has: they are errors, which carry these fields
    {"error": "a reference", "id": "a"},
    {"text": "ü", "id": 7},
    {"id": "b", "error": None, "text": "x"},
    {"outputs": [1], "error": {"error": ""}},
    {"prompt": "half a pair: \ud83d", "error": "x"},
]


@around_the_loop
def test_resume_from_every_byte(batched_stage, tmp_path, small_checkpoint, monkeypatch):
    """At the ends of lines, inside a character, and in lines whose input has fields that the result has, too: nothing
    is lost, and no finished line is done again."""
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [*TAKEN, {"prompt_token_ids": [4], "answer": "ü"}]
    write_lines(source, *lines)
    llm = batched_stage.engine(small_checkpoint)
    params = Sampling(batched_stage, max_tokens=1)
    monkeypatch.setattr(os, "fsync", lambda number: None)  # hundreds of runs; the disk may take its time

    def run(resume=True):
        with batch_file.open_output(str(source), output, resume) as file:
            how = batch_file.How(params)
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


@pytest.mark.skipif(fcntl is None, reason="POSIX only")
def test_two_runs_on_one_output(tmp_path, monkeypatch):
    """The second is refused before it reads or cuts anything; the lock is held as long as the first one runs."""
    source, output = write_lines(tmp_path / "in.jsonl", {"prompt": "A fox", "id": 1}), tmp_path / "out.jsonl"
    batch = ["--input", source, "--output", output, *QUICK]
    assert ONE.main(*batch)[0] == 0
    output.write_text('{"prompt": "A f')  # the first run is in the middle of a line
    with output.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for resume in ([], ["--resume"]):
            assert ONE.refusal(*batch, *resume).endswith(f"--output {output}: another run is writing to this file")
    assert output.read_text() == '{"prompt": "A f'

    seen = []

    def try_to_lock(*arguments, **more):
        with output.open("ab") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        seen.append(ONE.main(*batch, "--resume")[0])
        return original(*arguments, **more)

    original = cli.run_batch_file
    monkeypatch.setattr(cli, "run_batch_file", try_to_lock)
    assert ONE.main(*batch, "--resume")[0] == 0
    assert seen == [2]
    assert len(read_results(output)) == 1
    with output.open("ab") as file:  # and no longer
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.soak
@pytest.mark.parametrize("batched_stage", [STAGES[1]], ids=str)
@pytest.mark.skipif(fcntl is None, reason="POSIX only")
def test_two_processes_on_one_output(batched_stage, tmp_path):
    """Started at once: every line is there once, from the one that was not refused."""
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write_input(source, count=12)
    flags = ["--input", source, "--output", output, "--resume", "--max-tokens", "25", "--ignore-eos", "--quiet"]
    processes = [batched_stage.start(*flags) for _ in range(2)]
    for process in processes:
        _, stderr = process.communicate(timeout=600)
        assert process.returncode == 0 or "another run is writing" in stderr
    assert 0 in [process.returncode for process in processes]
    assert len(by_id(read_results(output))) == 12


def test_what_is_written_is_synced(tmp_path, monkeypatch):
    """On a schedule and at the end, so that a machine which fails loses little."""
    calls = []
    write_input(tmp_path / "in.jsonl", count=6)
    monkeypatch.setattr(os, "fsync", lambda number: calls.append(os.fstat(number).st_size))
    flags = ["--input", tmp_path / "in.jsonl", "--max-num-seqs", "2", *QUICK]
    assert ONE.main(*flags, "--output", tmp_path / "a.jsonl")[0] == 0
    assert calls[-1] == (tmp_path / "a.jsonl").stat().st_size
    assert len(calls) < 3
    monkeypatch.setattr(batch_file, "SYNC_SECONDS", 0)
    calls.clear()
    assert ONE.main(*flags, "--output", tmp_path / "b.jsonl")[0] == 0
    assert len(set(calls)) == 6


@pytest.mark.skipif(fcntl is None, reason="POSIX only")
def test_a_full_disk_loses_nothing_that_is_written(tmp_path, monkeypatch):
    """The file may not grow further in the middle of a line: one clear line, and --resume goes on from there."""
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write_input(source, count=16)
    batch = ["--input", source, "--max-num-seqs", "2", *QUICK]
    assert ONE.main(*batch, "--output", tmp_path / "whole.jsonl")[0] == 0
    limit = 2000  # more than the manifest takes, less than the results
    original = cli.run_batch_file

    def full(*arguments, **more):
        with files_of_at_most(limit):
            return original(*arguments, **more)

    with monkeypatch.context() as context:
        context.setattr(cli, "run_batch_file", full)
        assert ONE.refusal(*batch, "--output", output).endswith(f"error: {output}: File too large")
    assert output.stat().st_size == limit
    assert ONE.main(*batch, "--output", output, "--resume")[0] == 0
    assert by_id(read_results(output)) == by_id(read_results(tmp_path / "whole.jsonl"))


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


@pytest.mark.skipif(fcntl is None, reason="POSIX only")
def test_errors_of_the_disk_name_the_file(tmp_path):
    """For every file that is written (the output, its manifest, a trace, scores, a dataset for the Hub) or read."""
    results, long = write_lines(tmp_path / "r.jsonl", *[{"id": 1, "text": "a"}] * 200), {"long": "word " * 1000}
    made = SimpleNamespace(header=long, records=[])
    with (tmp_path / "o.jsonl").open("ab", buffering=0) as file:
        writes = {
            "o.jsonl": lambda: batch_file.append(file, json.dumps(long).encode()),
            "o.jsonl.run.json.new": lambda: manifest.begin(file.name, long),
            "trace": lambda: trace_file.write_trace(tmp_path / "trace", made),
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


def test_control_c_twice(batched_stage, tmp_path, monkeypatch):
    """Ctrl-C after the third line, and once more: finished results are in the file, status 130, a closing line."""
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write_input(source, count=8)
    batch = ["--input", source, "--output", output, "--max-num-seqs", "2", "--max-tokens", "8"]
    count, original = 0, batch_file.append

    def append(file, result):
        nonlocal count
        original(file, result)
        count += 1
        if count == 3:
            signal.raise_signal(signal.SIGINT)

    def sync(file):
        signal.raise_signal(signal.SIGINT)

    try:
        with monkeypatch.context() as context:
            context.setattr(batch_file, "append", append)
            context.setattr(batch_file, "sync", sync)
            status, stdout, stderr = batched_stage.main(*batch)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    assert (status, stdout) == (130, "")
    assert "interrupted; run the same command with --resume to continue" in stderr
    assert "tok/s" in stderr.split("\n")[-2]
    assert 3 <= len(read_results(output)) < 8
    assert batched_stage.main(*batch, "--resume")[0] == 0
    assert len(by_id(read_results(output))) == 8


def summary(path, lines, *flags):
    """What `stagewise score` says of these results, with their field `answer` as the reference."""
    status, stdout, stderr = outcome(score.main, write_lines(path, *lines), "--reference", "answer", *flags)
    assert status == 0, stderr
    return json.loads(stdout)


def test_score(tmp_path):
    """The scores of known answers, and what has none."""
    lines = [
        {"id": 1, "text": "The Fox!", "answer": "fox", "token_ids": [1, 2], "cumulative_logprob": -1.0},
        {"id": 2, "text": "a red fox ran", "answer": ["blue fox", "no"], "token_ids": [1], "cumulative_logprob": -3.0},
        {"id": 3, "text": "foxes", "answer": "fox", "token_ids": [1]},
        {"id": 4, "error": "line 4: not JSON"},
    ]
    results = tmp_path / "r.jsonl"
    assert summary(results, lines, "--per-line", tmp_path / "s.jsonl") == {
        "lines": 4, "errors": 1, "exact_match": 0.25, "contains": 0.25,
        "f1": pytest.approx((1 + 2 * 1 / (3 + 2)) / 4), "mean_logprob": pytest.approx(-1.75),
    }  # fmt: skip
    scores = read_results(tmp_path / "s.jsonl")
    assert [s["exact_match"] for s in scores] == [1, 0, 0, 0]
    assert scores[3]["error"] == "line 4: not JSON"
    says = "no line has the field 'label'; they have id, text, answer, "
    assert says in refusal(score.main, results, "--reference", "label")
    write_lines(results, {"id": 1, "outputs": [{"text": "fox"}], "answer": "fox"})
    assert "line 1: it has no text; for a run with n > 1" in refusal(score.main, results, "--reference", "answer")
    # A data set may have a field with that name, but its line was generated, not scored.
    assert summary(results, [{**lines[0], "scores": "high", "choice": 3}])["exact_match"] == 1
    # A line that failed after some text is an error, whatever the text.
    assert summary(results, [lines[0], {**lines[0], "error": "no token can be sampled"}])["exact_match"] == 0.5


def test_scored_lines(tmp_path):
    """From stage 4 on: choices, continuations, whole texts; wrong lines are told; a resumed run has the same."""
    lines = [
        {"id": "a", "prompt": "Once upon a", "score": True, "choices": [" time", " fox"], "answer": 0},
        {"id": "b", "prompt": "Once upon a", "score": True, "continuation": " time"},
        {"id": "c", "prompt": "Once upon a time", "score": True},
        {"id": "d", "prompt_token_ids": [7454, 2402, 257], "score": True, "continuation": [640]},
        {"id": "e", "prompt": "Once", "score": 0.5, "choice": 7, "sampling": {"max_tokens": 1, "prompt_logprobs": 0}},
        {"id": "f", "prompt": "Once", "score": True, "choices": []},
        {"id": "g", "prompt": "Once", "score": True, "choices": ["a"], "continuation": "b"},
        {"id": "h", "prompt": "Once", "score": True, "sampling": {}},
        {"id": "i", "prompt": "Once", "score": True, "choice": 1},
        {"id": "j", "prompt": "Once", "score": True, "continuation": " ü “…”"},
    ]
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write_lines(source, *lines)
    for stage in STAGES[3:]:
        output.unlink(missing_ok=True)
        command = ["--input", source, "--output", output, "--quiet"]
        assert stage.main(*command)[0] == 1
        results = {result["id"]: result for result in read_results(output)}
        expected = stage.engine().score(["Once upon a"] * 2, [" time", " fox"])
        logprobs = [[score["logprob"] for score in results[i]["scores"]] for i in "abd"]
        assert logprobs == [[pytest.approx(e.logprob, abs=1e-3) for e in expected[:n]] for n in (2, 1, 1)]
        assert (results["a"]["choice"], results["a"]["answer"]) == (0, 0)
        assert results["b"]["scores"][0]["num_bytes"] == 5
        assert results["j"]["scores"][0]["num_bytes"] == len(" ü “…”".encode()) > len(" ü “…”")
        assert results["c"]["scores"][0]["num_tokens"] == 4
        assert (results["e"]["choice"], len(results["e"]["prompt_logprobs"])) == (7, 1)
        says = {
            "f": "choices must be a non-empty list",
            "g": "either continuation or choices",
            "h": "can't have sampling",
        }
        assert all(words in results[i]["error"] for i, words in says.items())
        assert results["i"]["input_choice"] == 1
        whole = output.read_bytes()
        output.write_bytes(whole[: len(whole) // 2])
        assert stage.main(*command, "--resume")[0] == 1
        assert sorted(result["id"] for result in read_results(output)) == sorted(results)
    output.unlink()
    status, _, stderr = STAGES[2].main(*command)
    assert (status, "can't score lines: use a later stage" in stderr) == (2, True)


def openai_request(custom_id, **body):
    body = {"model": "tinytales", "prompt": "Once upon a time", "max_tokens": 5, "temperature": 0} | body
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body}


TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}bot:"


def test_openai_lines(tmp_path):
    """Requests as for OpenAI's batches are answered as the server would, next to lines in our own format, and what a
    server refuses is refused."""
    hello, chats = {"prompt": None, "messages": [{"role": "user", "content": "Hi"}]}, {"url": "/v1/chat/completions"}
    lines = [
        openai_request("text", stop=None, echo=False, best_of=1, user="me", store=False, metadata={"a": 1}, foo=None),
        openai_request("ids", prompt=[7454, 2402, 257], stop=["."], max_tokens=30),
        {"id": "own", "prompt": "Once", "body": "of mine", "custom_id": "text", "response": 1},
        openai_request("many", prompt=["A fox", "Once upon a time"]),
        openai_request("chat", **hello, logprobs=True) | chats,
        openai_request("echo", echo=True, max_tokens=3, logprobs=1),
        openai_request("hot", temperature=-1),
        openai_request("other", model="gpt2"),
        openai_request("any", model=None),
        openai_request("stream", stream=True),
        openai_request("tools", tools=[1]),
        openai_request("beams", use_beam_search=True),
        openai_request("foo", foo=False),
        openai_request("text", prompt="again"),
        openai_request(7),
        {"custom_id": "none", "method": "POST", "url": "/v1/completions", "body": 1},
        openai_request("url") | {"url": "/v1/nothing"},
        openai_request("method") | {"method": "GET"},
        openai_request("more") | {"more": 1},
        openai_request("silent") | chats,
    ]
    source, output, template = tmp_path / "in.jsonl", tmp_path / "out.jsonl", tmp_path / "template"
    write_lines(source, *lines)
    template.write_text(TEMPLATE)
    command = ["--input", source, "--output", output, "--quiet", "--max-tokens", 3, "--chat-template", template]
    for stage in STAGES[1:]:
        output.unlink(missing_ok=True)
        assert stage.main(*command)[0] == 1
        results = read_results(output)
        assert len(results) == len(lines)
        good = {r["custom_id"]: r["response"]["body"] for r in results if isinstance(r.get("response"), dict)}
        expected = stage.engine().generate(
            ["Once upon a time", [7454, 2402, 257], "A fox", "user: Hi\nbot:"],
            [
                stage.SamplingParams(temperature=0, max_tokens=n, stop=stop, **greedy)
                for n, stop, greedy in ((5, (), {}), (30, ".", {}), (5, (), {}), (5, (), {"logprobs": 0}))
            ],
        )
        text, ids, fox, chat = (one.outputs[0] for one in expected)
        assert good["any"]["model"] == "tinytales"
        for name, completions in {"text": [text], "any": [text], "ids": [ids], "many": [fox, text]}.items():
            for i, (choice, one) in enumerate(zip(good[name]["choices"], completions, strict=True)):
                limit = {"length_limit": "max_tokens"} if one.finish_reason == "length" else {}
                same = {"index": i, "text": one.text, "logprobs": None, "finish_reason": one.finish_reason, **limit}
                assert same.items() <= choice.items()
        assert good["many"]["usage"]["completion_tokens"] == len(fox.token_ids) + len(text.token_ids)
        assert good["chat"]["object"] == "chat.completion"
        (choice,) = good["chat"]["choices"]
        assert choice["message"] == {"role": "assistant", "content": chat.text}
        assert [t["logprob"] for t in choice["logprobs"]["content"]] == [
            pytest.approx(entry[token].logprob, abs=1e-3)
            for token, entry in zip(chat.token_ids, chat.logprobs, strict=True)
        ]
        own = [r for r in results if r["id"] == "own"]
        assert [(r["body"], r["custom_id"], r["response"]) for r in own] == [("of mine", "text", 1)]
        errors = {r["custom_id"]: r["error"]["message"] for r in results if "response" in r and r["response"] is None}
        says = {
            "hot": "line 7: temperature must be",
            "other": "body.model is 'gpt2', but this run has 'tinytales': name that, or leave model out",
            "stream": "stream must be false",
            "beams": "take --beam-width, for all prompts of a run, or LLM.beam_search",
            "tools": "tools [1] is not supported: no functions are called here",
            "foo": "unknown field foo",
            "text": "line 14: an earlier line has the same id, 'text'",
            "none": "body must be a JSON object",
            "url": "url one of /v1/completions, /v1/chat/completions",
            "method": "method must be 'POST'",
            "more": "a request has no field 'more'",
            "silent": "unknown field prompt",
        }
        if stage.number < 4:
            says["echo"] = f"stage {stage.number} computes no log-probabilities of prompts"
        else:
            (choice,) = good["echo"]["choices"]
            assert choice["text"].startswith("Once upon a time")
            assert len(choice["logprobs"]["tokens"]) == 4 + 3
        assert errors.keys() == says.keys()
        assert all(words in errors[name] for name, words in says.items())
        assert {r["id"] for r in results} >= {"line-14", "line-15"}  # told from the first of that custom_id
        assert [r["error"] for r in results if r["id"] == "line-15"] == ["line 15: custom_id must be a string, got 7"]


def test_a_template_that_can_not_be_used(tmp_path):
    """One that is given is an error at the start; without one chats are refused."""
    chat = openai_request("chat", prompt=None, messages=[{"role": "user", "content": "Hi"}])
    source, path = write_lines(tmp_path / "in.jsonl", chat | {"url": "/v1/chat/completions"}), tmp_path / "template"
    command = ["--input", source, "--output", tmp_path / "out.jsonl", "--quiet"]
    assert "a chat needs a chat template, and the model has none" in ONE.refusal(*command)
    for content, says in ((b"{% if %}", "--chat-template, line 1"), (b"\xff", f"{path} is not UTF-8")):
        path.write_bytes(content)
        assert says in ONE.refusal(*command, "--chat-template", path)


def test_the_example_of_openai_lines(tmp_path):
    output = tmp_path / "out.jsonl"
    assert STAGES[4].main("--input", ROOT / "docs/examples/requests.jsonl", "--output", output, "--quiet")[0] == 0
    assert {result["response"]["status_code"] for result in read_results(output)} == {200}


def test_openai_lines_resume(tmp_path):
    """A run resumes wherever the file was cut. If a request has changed, its answer does not belong to the input."""
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [openai_request(str(i), max_tokens=2 + i, temperature=1) for i in range(6)] + [openai_request("x", n=0)]
    write_lines(source, *lines)

    def answers():
        results = {r["custom_id"]: r for r in read_results(output)}
        for result in results.values():
            if result["response"]:
                del result["response"]["body"]["created"]
        return results

    stage = STAGES[4]
    command = ["--input", source, "--output", output, "--quiet"]
    assert stage.main(*command)[0] == 1
    whole, expected = output.read_bytes(), answers()
    assert len(expected) == 7
    for cut in (0, 10, len(whole) // 3, len(whole) // 2, len(whole) - 1, len(whole)):
        output.write_bytes(whole[:cut])
        assert stage.main(*command, "--resume")[0] == 1
        assert answers() == expected
    output.write_bytes(whole.replace(b"batch_req_", b"batch_req_0"))
    status, _, stderr = stage.main(*command, "--resume")
    assert status == 2
    assert "the input's request with this custom_id is a different one" in stderr


@pytest.mark.covers("beam_search.py")
@pytest.mark.parametrize("stage", STAGES[4:], ids=lambda stage: stage.directory)
def test_beams_for_every_line(stage, tmp_path):
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    prompts = ["A fox", "Once", "word " * 1100, "There was"]
    lines = [{"prompt": prompt, "sampling": {"max_tokens": 3 + i}} for i, prompt in enumerate(prompts)]
    lines.append({"prompt": "A fox", "score": True, "continuation": " ran"})
    lines.append({"prompt": "A fox", "sampling": {"top_k": 5}})
    lines.append(openai_request("openai", prompt="A fox", max_tokens=3))
    lines.append(openai_request("drawn", seed=3, temperature=0.5, top_k=5))
    write_lines(source, *lines)
    command = ["--input", source, "--output", output, "--quiet", "--beam-width", "2"]
    assert stage.main(*command)[0] == 1  # one is too long, and two want to draw
    results = {result.get("custom_id", result["id"]): result for result in read_results(output)}
    for i in (0, 1, 3):
        (expected,) = stage.engine().beam_search([prompts[i]], 2, 3 + i)
        assert [o["token_ids"] for o in results[f"line-{i + 1}"]["outputs"]] == [c.token_ids for c in expected.outputs]
    assert "leave no room" in (too_long := results["line-3"]["error"])
    assert too_long.endswith("; --truncate-prompt-tokens N keeps only the last N tokens")
    assert results["line-5"]["scores"][0]["num_tokens"] == 1
    says = "top_k can't be combined with beam search, which draws nothing"
    assert (says in results["line-6"]["error"], says in results["drawn"]["error"]["message"]) == (True, True)
    (first,) = {choice["text"] for choice in results["openai"]["response"]["body"]["choices"][:1]}
    assert first == results["line-1"]["outputs"][0]["text"]
    status, _, stderr = stage.main(*command[:-2], "--resume")
    assert status == 2
    assert "beam_search is None now" in stderr


@pytest.mark.covers("llm.py", "support/outputs.py")
@pytest.mark.parametrize("stage", STAGES[4:], ids=lambda stage: stage.directory)
def test_openai_lines_are_answered_as_by_the_server(stage, tmp_path):
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [
        openai_request("a", n=2, temperature=1, seed=3, max_tokens=20),
        openai_request("b", stop=".", echo=True, logprobs=2, return_token_ids=True),
        openai_request("c", stop_token_ids=[640], min_tokens=2, prompt=["Once", "A fox"], prompt_logprobs=1),
    ]
    write_lines(source, *lines)
    assert stage.main("--input", source, "--output", output, "--quiet")[0] == 0

    async def served(body):
        async with Run(service, service.job(body)) as run:
            return await service.whole(run)

    ours = {r["custom_id"]: r["response"]["body"] for r in read_results(output)}
    with stage.AsyncLLM(model="tinytales", max_num_seqs=4) as engine:
        service = Service(stage, engine, "tinytales", Limits())
        for line in lines:
            body, theirs = ours[line["custom_id"]], asyncio.run(served({"temperature": 0.8, **line["body"]}))
            theirs["usage"].pop("prompt_tokens_details")  # what the cache had is no part of an answer to a line
            for answer in (body, theirs):
                del answer["id"], answer["created"]
            assert body == near(theirs)


def test_score_of_choices_and_texts(tmp_path):
    """Accuracy by the sum and by the byte, an error counts as wrong; perplexity over all texts as one."""

    def choices(answer, *logprobs):
        scores = [{"logprob": p, "num_tokens": 1, "num_bytes": n, "is_greedy": False} for p, n in logprobs]
        return {"score": True, "choices": ["short", "much longer"][: len(scores)], "answer": answer, "scores": scores}

    lines = [
        choices(0, (-1.0, 5), (-2.0, 11)),  # the sum says 0, the byte says 1
        choices("much longer", (-1.0, 5), (-2.0, 11)),
        choices(1, (-3.0, 5), (-2.0, 11)),
        {"score": True, "choices": ["a"], "answer": 0, "error": "line 4: no"},
        {"score": True, "scores": [{"logprob": -6.0, "num_tokens": 3, "num_bytes": 10, "is_greedy": True}]},
        {"score": True, "scores": [{"logprob": -4.0, "num_tokens": 2, "num_bytes": 10, "is_greedy": True}]},
    ]
    assert summary(tmp_path / "r.jsonl", lines) == {
        "lines": 6, "errors": 1, "accuracy": 2 / 4, "accuracy_norm": 2 / 4,
        "perplexity": pytest.approx(math.exp(2)), "byte_perplexity": pytest.approx(math.exp(0.5)),
    }  # fmt: skip
    lines.append({"error": "line 7: not JSON"})  # what it could have been counts too
    assert summary(tmp_path / "r.jsonl", lines)["accuracy"] == 2 / 5
    assert summary(tmp_path / "r.jsonl", [lines[3]])["accuracy"] == 0  # all have failed, and that is no reason for none


SCORE_ERRORS = {
    '{"id": 1, "scores": []}': "scores must be a non-empty list, got []",
    '{"id": 1, "scores": [5]}': "a score's logprob must be a number from -1e+300 to 0, got None",
    '{"id": 1, "scores": [{"logprob": -1, "num_tokens": 0}]}': "num_tokens must be a number from 1 to 1e+09, got 0",
    '{"id": 1, "scores": [{"logprob": -1, "num_tokens": 1}, {"logprob": -1, "num_tokens": 1}]}': "has no choices",
    '{"id": 1, "text": "a", "cumulative_logprob": -1.0}': "line 1: cumulative_logprob needs token_ids",
    '{"id": 1, "text": "a", "cumulative_logprob": -1.0, "token_ids": []}': "a non-empty list, got []",
    '{"id": 1, "text": "a", "cumulative_logprob": -1.0, "token_ids": 5}': "a non-empty list, got 5",
    '{"id": 1, "text": "a", "cumulative_logprob": "x", "token_ids": [1]}': "a finite number, got 'x'",
    '{"id": 1, "text": "a", "cumulative_logprob": NaN, "token_ids": [1]}': "a finite number, got nan",
    f'{{"id": 1, "text": "a", "cumulative_logprob": {"9" * 400}, "token_ids": [1]}}': "a finite number, got 999",
    '{"id": 1, "text": 5}': "text must be a string, got 5",
    '{"id": 1, "text": null}': "text must be a string, got None",
    '{"id": 1}': "it has no text",
    "[1]": "a result is a JSON object, got list",
    "null": "a result is a JSON object, got NoneType",
    '{"id": 1, "te': "line 1: not JSON: Unterminated string starting at column 11",
    "notes": "line 1: not JSON: Expecting value at column 1",
    "[" * 10**5: "line 1: ",
    b"\xff": "line 1: 'utf-8' codec can't decode",
    "": "contains no results",
    "\n\n": "contains no results",
}


def test_score_tells_what_is_wrong(tmp_path):
    results = tmp_path / "r.jsonl"
    for content, says in SCORE_ERRORS.items():
        results.write_bytes(content if isinstance(content, bytes) else content.encode())
        assert says in refusal(score.main, results, "--per-line", tmp_path / "s.jsonl")
        assert not (tmp_path / "s.jsonl").exists()
    assert str(tmp_path) in refusal(score.main, tmp_path)
    results.write_bytes(b'\xef\xbb\xbf{"id": 1, "text": "a", "cumulative_logprob": null}\r\n')
    assert outcome(score.main, results)[0] == 0


def test_score_overwrites_nothing(tmp_path):
    """Neither the results, by whatever name, nor any other file; if the scores can't be written, the summary is out."""
    results, names = write_lines(tmp_path / "r.jsonl", {"id": 1, "text": "a"}), ["r.jsonl"]
    if os.name == "posix":
        os.link(results, tmp_path / "hard")
        os.symlink("r.jsonl", tmp_path / "link")
        os.symlink("nowhere", tmp_path / "dangling")
        names += ["hard", "link", "dangling"]
    for name in names:
        assert f"{name} exists" in refusal(score.main, results, "--per-line", tmp_path / name)
    assert read_results(results) == [{"id": 1, "text": "a"}]
    status, stdout, stderr = outcome(score.main, results, "--per-line", tmp_path / "none" / "s.jsonl")
    assert (status, json.loads(stdout)["lines"], stderr.count("\n")) == (2, 1, 1)
