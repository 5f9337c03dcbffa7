"""Batch files: every line answered once, bad lines told, killed at any byte and resumed without loss."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from tests.adapter import ROOT

QUICK = ["--max-tokens", "8", "--quiet"]


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


def by_id(results):
    """Results in an order of their own; log-probabilities rounded, as other batches round otherwise in the last bit."""
    assert len({json.dumps(result["id"]) for result in results}) == len(results), "a line was answered twice"

    def rounded(value):
        if isinstance(value, float):
            return round(value, 3)
        if isinstance(value, dict):
            return {key: rounded(v) for key, v in value.items()}
        return [rounded(v) for v in value] if isinstance(value, list) else value

    return sorted((rounded(result) for result in results), key=lambda result: json.dumps(result["id"]))


def test_results_carry_the_input_and_the_answer(batched_stage, tmp_path):
    lines = write_input(tmp_path / "in.jsonl")
    status, stdout, stderr = batched_stage.main(
        "--input", tmp_path / "in.jsonl", "--output", tmp_path / "out.jsonl", *QUICK
    )
    assert (status, stdout, stderr) == (0, "", "")
    results = {result["id"]: result for result in read_results(tmp_path / "out.jsonl")}
    assert len(results) == len(lines)
    for number, line in enumerate(lines, start=1):
        result = results[line.get("id", f"line-{number}")]
        assert {name: result[name] for name in line} == line
        assert result["text"] == batched_stage.tokenizer().decode(result["token_ids"])
        assert result["finish_reason"] in ("stop", "length")
        asked = "sampling" in line
        assert ("logprobs" in result) == ("cumulative_logprob" in result) == asked
        if asked:
            assert len(result["token_ids"]) <= 5
            chosen = [step[str(t)]["logprob"] for step, t in zip(result["logprobs"], result["token_ids"], strict=True)]
            assert result["cumulative_logprob"] == pytest.approx(sum(chosen))


def test_greedy_lines_equal_generate(batched_stage, tmp_path):
    write_input(tmp_path / "in.jsonl")
    batched_stage.main(
        "--input", tmp_path / "in.jsonl", "--output", tmp_path / "out.jsonl", "--temperature", "0", *QUICK
    )
    for result in read_results(tmp_path / "out.jsonl"):
        params = batched_stage.SamplingParams(**{"temperature": 0, "max_tokens": 8, **result.get("sampling", {})})
        prompt = result.get("prompt", result.get("prompt_token_ids"))
        completion = batched_stage.engine().generate([prompt], params)[0].outputs[0]
        assert completion.token_ids == result["token_ids"]


BAD_LINES = {
    "not json": "line 2: Expecting value",
    '{"prompt": "a"': "line 2: Expecting",
    '["a"]': "a line is a JSON object, got list",
    '{"text": "x", "prompt": "a"}': "the field 'text' is the result's",
    '{"question": "a"}': "either prompt or prompt_token_ids",
    '{"prompt": "a", "prompt_token_ids": [1]}': "either prompt or prompt_token_ids",
    '{"prompt": 5}': "prompt must be a text",
    '{"prompt": null}': "prompt must be a text",
    '{"prompt_token_ids": "a"}': "prompt_token_ids a list",
    '{"prompt_token_ids": []}': "empty list",
    '{"prompt_token_ids": [99999]}': "token 99999 is outside",
    '{"prompt": "a", "sampling": {"temperature": -1}}': "temperature must be",
    '{"prompt": "a", "sampling": {"best_of": 2}}': "sampling has no field 'best_of'",
    '{"prompt": "a", "sampling": [1]}': "sampling must be a JSON object",
    '{"prompt": "a", "id": [1]}': "id must be a text or a whole number",
    '{"prompt": "a", "id": 1.5}': "id must be a text or a whole number",
    '{"prompt": "a", "id": "first"}': "the id 'first' stands on an earlier line too",
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


@pytest.mark.parametrize("problem", ["no output", "exists", "same file", "no input", "no directory", "prompts too"])
def test_bad_paths(batched_stage, tmp_path, problem):
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"prompt": "a"}\n')
    output.write_text("precious\n")
    arguments = {
        "no output": ["--input", source],
        "exists": ["--input", source, "--output", output],
        "same file": ["--input", source, "--output", source, "--resume"],
        "no input": ["--input", tmp_path / "none.jsonl", "--output", output],
        "no directory": ["--input", source, "--output", tmp_path / "none" / "out.jsonl"],
        "prompts too": ["--input", source, "--output", output, "--prompts", "a"],
    }[problem]
    status, stdout, stderr = batched_stage.main(*arguments)
    assert (status, stdout) == (2, "")
    assert len(stderr.strip().split("\n")) == 1
    assert source.read_text() == '{"prompt": "a"}\n'
    assert output.read_text() == "precious\n"


def test_lines_are_written_as_batches_end(batched_stage, tmp_path, monkeypatch):
    """A batch's lines are in the file before the next batch begins."""
    write_input(tmp_path / "in.jsonl", count=12)
    seen, llm_class = [], batched_stage.LLM
    original = llm_class._run

    def spy(self, batch):
        text = (tmp_path / "out.jsonl").read_text() if (tmp_path / "out.jsonl").exists() else ""
        seen.append(text.count("\n"))
        return original(self, batch)

    if batched_stage.number < 4:
        monkeypatch.setattr(llm_class, "_run", spy)
        arguments = ["--max-num-seqs", "4", "--input", tmp_path / "in.jsonl", "--output", tmp_path / "out.jsonl"]
        assert batched_stage.main(*arguments, *QUICK)[0] == 0
        assert seen == [0, 4, 8]


def test_resume_from_every_kind_of_cut(batched_stage, tmp_path):
    """The output cut at random bytes, at line ends, inside a character: the result is the uninterrupted one."""
    source, whole = tmp_path / "in.jsonl", tmp_path / "whole.jsonl"
    write_input(source, count=14)
    with source.open("a") as file:
        file.write("a bad line\n")
    batch = ["--max-num-seqs", "4", "--max-tokens", "4", "--quiet", "--input", source]
    assert batched_stage.main(*batch, "--output", whole)[0] == 1
    content, expected = whole.read_bytes(), by_id(read_results(whole))
    newline = content.index(b"\n")
    character = content.index("ü".encode()) + 1
    cuts = [0, 1, newline, newline + 1, newline + 2, character, len(content) - 1, len(content)]
    for cut in cuts + random.Random(0).sample(range(len(content)), 6):
        output = tmp_path / f"cut-{cut}.jsonl"
        output.write_bytes(content[:cut])
        status, _, stderr = batched_stage.main(*batch, "--output", output, "--resume")
        assert status == 1, stderr
        assert "1 of 15 lines are errors" in stderr
        assert by_id(read_results(output)) == expected, f"cut at byte {cut}"
        kept = content[: content.rfind(b"\n", 0, cut) + 1]
        assert output.read_bytes().startswith(kept), "a finished line was done again"


@pytest.mark.parametrize("kill", [getattr(signal, "SIGKILL", signal.SIGTERM), signal.SIGINT])
def test_killed_and_resumed(batched_stage, tmp_path, kill):
    """A real process, killed again and again while it writes; Ctrl-C ends with status 130 and loses nothing."""
    source = tmp_path / "in.jsonl"
    write_input(source, count=10)
    flags = ["--max-num-seqs", "2", "--max-tokens", "40", "--ignore-eos", "--quiet", "--input", source]
    assert batched_stage.main(*flags, "--output", tmp_path / "whole.jsonl")[0] == 0
    output, grown, kills = tmp_path / "out.jsonl", 0, 0
    for _ in range(2):
        process = batched_stage.start(*flags, "--output", output, "--resume")
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            if output.exists() and output.stat().st_size > grown:  # it has written something: now
                process.send_signal(kill)
                break
            time.sleep(0.002)
        _, stderr = process.communicate(timeout=60)
        assert "Traceback" not in stderr
        if process.returncode == 0:
            break
        assert process.returncode in (130, -kill)
        kills, grown = kills + 1, output.stat().st_size
    assert kills > 0
    status, _, stderr = batched_stage.main(*flags, "--output", output, "--resume")
    assert status == 0, stderr
    assert by_id(read_results(output)) == by_id(read_results(tmp_path / "whole.jsonl"))


def test_resume_refuses_another_input(batched_stage, tmp_path):
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"prompt": "A fox", "id": 1}\n')
    assert batched_stage.main("--input", source, "--output", output, *QUICK)[0] == 0
    for text in ('{"prompt": "A bear", "id": 1}\n', '{"prompt": "A fox", "id": 2}\n'):
        source.write_text(text)
        before = output.read_bytes()
        status, _, stderr = batched_stage.main("--input", source, "--output", output, "--resume", *QUICK)
        assert status == 2
        assert "line 1 is no result of this input" in stderr
        assert output.read_bytes() == before
    source.write_text('{"prompt": "A fox", "id": 1, "answer": "red"}\n')
    status, _, stderr = batched_stage.main("--input", source, "--output", output, "--resume", *QUICK)
    assert status == 2
    assert "lacks the field 'answer' of the input's line" in stderr


@pytest.mark.parametrize(
    "content", ["my notes\nlast line without newline", "a line", "\n\nx", '{"prompt": "A bear"}', '{"prompt": "A fox"}']
)
def test_resume_leaves_a_foreign_file_as_it_is(batched_stage, tmp_path, content):
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"prompt": "A fox", "id": 1}\n')
    output.write_text(content)
    status, _, stderr = batched_stage.main("--input", source, "--output", output, "--resume", *QUICK)
    assert status == 2
    assert "--resume" in stderr
    assert output.read_text() == content


def test_ids_that_look_like_numbers_of_lines(batched_stage, tmp_path):
    """A line without an id gets one that nobody else has; NaN, which Python's JSON has, is carried; resume agrees."""
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(
        '{"prompt": "A fox", "id": "line-2", "x": NaN}\n{"prompt": "A bear"}\n{"prompt": "A cat", "id": "line-2+"}\n'
    )
    assert batched_stage.main("--input", source, "--output", output, *QUICK)[0] == 0
    assert sorted(result["id"] for result in read_results(output)) == ["line-2", "line-2+", "line-2++"]
    content = output.read_bytes()
    output.write_bytes(content[: content.index(b"\n") + 1])
    assert batched_stage.main("--input", source, "--output", output, "--resume", *QUICK)[0] == 0
    assert sorted(output.read_bytes().split(b"\n")) == sorted(content.split(b"\n"))


def test_seed_of_a_line_is_its_own(batched_stage, tmp_path):
    """Lines without a seed draw by the engine's seed and their number: other lines around them change nothing."""
    line = '{"prompt": "Once upon a time", "id": "x"}\n'
    (tmp_path / "a.jsonl").write_text('{"prompt": "A fox"}\n' + line + '{"prompt": "A bear"}\n')
    (tmp_path / "b.jsonl").write_text("broken\n" + line)
    texts = []
    for name in "ab":
        batched_stage.main("--input", tmp_path / f"{name}.jsonl", "--output", tmp_path / f"{name}.out", *QUICK)
        texts += [r["token_ids"] for r in read_results(tmp_path / f"{name}.out") if r["id"] == "x"]
    assert texts[0] == texts[1]


def test_score(tmp_path):
    """The scores of known answers, and a run of the tool as a user would."""
    lines = [
        {"id": 1, "text": "The Fox!", "answer": "fox", "token_ids": [1, 2], "cumulative_logprob": -1.0},
        {
            "id": 2,
            "text": "a red fox ran",
            "answer": ["blue fox", "nothing"],
            "token_ids": [1],
            "cumulative_logprob": -3.0,
        },
        {"id": 3, "text": "foxes", "answer": "fox", "token_ids": [1]},
        {"id": 4, "error": "line 4: not JSON"},
    ]
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = [sys.executable, ROOT / "tools" / "score.py", tmp_path / "r.jsonl"]
    result = subprocess.run(
        [*command, "--reference", "answer", "--per-line", tmp_path / "s.jsonl"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(result.stdout) == {
        "lines": 4, "errors": 1, "exact_match": 0.25, "contains": 0.25,
        "f1": pytest.approx((1 + 2 * 1 / (3 + 2)) / 4), "mean_logprob": pytest.approx(-1.75),
    }  # fmt: skip
    scores = [json.loads(line) for line in (tmp_path / "s.jsonl").read_text().splitlines()]
    assert [s["exact_match"] for s in scores] == [1, 0, 0, 0]
    assert scores[3]["error"] == "line 4: not JSON"
    result = subprocess.run([*command, "--reference", "label"], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "line 1: field 'label' must be a text" in result.stderr
    (tmp_path / "r.jsonl").write_text('{"id": 1, "outputs": [{"text": "fox"}], "answer": "fox"}\n')
    result = subprocess.run([*command, "--reference", "answer"], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "line 1: it has no text; of a run with n > 1" in result.stderr


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="POSIX only")
def test_an_input_that_is_no_file(batched_stage, tmp_path):
    status, _, stderr = batched_stage.main("--input", tmp_path, "--output", tmp_path / "out.jsonl")
    assert status == 2
    assert "there is no such file" in stderr
