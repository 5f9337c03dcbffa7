"""`stagewise score`: known answers, references as people have them, and files that are no results."""

import io
import json
import math
import os
import sys

import pytest

from stagewise import score
from tests.adapter import outcome, refusal
from tests.test_batch_file import read_results, write_lines


@pytest.fixture
def scored(tmp_path):
    """Score some result lines: (the summary, what stderr says)."""

    def scored(lines, *flags, status=0):
        path = write_lines(tmp_path / "r.jsonl", *lines)
        actual, stdout, stderr = outcome(score.main, path, *flags)
        assert actual == status, stderr
        return json.loads(stdout or "null"), stderr

    return scored


ANSWER = ("--reference", "answer")
FOX = {"id": 1, "text": "The Fox!", "answer": "fox", "token_ids": [1, 2], "cumulative_logprob": -1.0}


def test_texts(scored, tmp_path):
    """Errors count as wrong, but have no log-probability."""
    lines = [
        FOX,
        {"id": 2, "text": "a red fox ran", "answer": ["blue fox", "no"], "token_ids": [1], "cumulative_logprob": -3.0},
        {"id": 3, "text": "foxes", "answer": "fox", "token_ids": [1]},
        {"id": 4, "error": "line 4: not JSON"},
    ]
    summary, _ = scored(lines, *ANSWER, "--per-line", tmp_path / "s.jsonl")
    assert summary == {
        "lines": 4, "errors": 1, "exact_match": 0.25, "contains": 0.25,
        "f1": pytest.approx((1 + 2 * 1 / (3 + 2)) / 4), "mean_logprob": pytest.approx(-1.75),
    }  # fmt: skip
    each = read_results(tmp_path / "s.jsonl")
    assert [one["exact_match"] for one in each] == [1, 0, 0, 0]
    assert each[3]["error"] == "line 4: not JSON"


@pytest.mark.parametrize(
    ("result", "field", "value"),
    [
        pytest.param({"text": "a fox", "answer": "the Fox!"}, "exact_match", 1, id="articles, case and marks"),
        pytest.param({"text": "5", "answer": 5}, "exact_match", 1, id="a number"),
        pytest.param({"text": "7.5", "answer": 7.5}, "exact_match", 1, id="a fraction"),
        pytest.param({"text": " $1,234.50.", "answer": 1234.5}, "exact_match", 1, id="as people write it"),
        pytest.param({"text": "42", "answer": 42.0}, "exact_match", 1, id="as pandas writes it"),
        pytest.param({"text": "420", "answer": 42.0}, "contains", 0, id="another number"),
        pytest.param({"text": "5", "answer": -5}, "contains", 0, id="its sign"),
        pytest.param({"text": "15", "answer": 1.5}, "exact_match", 0, id="its point"),
        pytest.param({"text": "9 - 4 = 5 hens", "answer": 5}, "contains", 1, id="among others"),
        pytest.param({"text": "5 hens", "answer": 5}, "exact_match", 0, id="and a word"),
        pytest.param({"text": "5 hens", "answer": 5}, "f1", 2 / 3, id="a word too many"),
        *(
            pytest.param({"text": text, "answer": answer}, "exact_match", 1, id=text)
            for text, answer in (
                ("**5**!", 5),
                ("the 5.", 5),
                (".5", 0.5),
                ("-1e3", -1000),
                (f"{10**17 + 1}", 10**17 + 1),
            )
        ),
        pytest.param({"text": f"{10**17}", "answer": 10**17 + 1}, "exact_match", 0, id="a long number"),
        pytest.param({"text": "9" * 5000, "answer": 5}, "contains", 0, id="a very long number"),
        pytest.param({"text": "yes", "answer": True}, "exact_match", 0, id="a truth value"),
        pytest.param({"text": "yes", "answer": [1, "yes"]}, "exact_match", 1, id="the best of several"),
        pytest.param({**FOX, "scores": "high", "choice": 3}, "exact_match", 1, id="an input field named scores"),
        pytest.param({**FOX, "error": "no token can be sampled"}, "exact_match", 0, id="failed after some text"),
        pytest.param({"text": "a", "finish_reason": "length", "answer": "a"}, "truncated", 1, id="cut at the limit"),
        pytest.param({"text": "a", "finish_reason": "stop", "answer": "b"}, "truncated", None, id="not cut"),
    ],
)
def test_one_text(scored, result, field, value):
    assert scored([result], *ANSWER)[0].get(field) == value


def choices(answer, *logprobs):
    scores = [{"logprob": p, "num_tokens": 1, "num_bytes": n, "is_greedy": False} for p, n in logprobs]
    return {"score": True, "choices": [" short", "much longer"], "answer": answer, "scores": scores}


def test_choices_and_perplexities(scored):
    """Accuracy by the sum and by the character, an error counts as wrong; perplexity over all texts as one."""
    failed = {"score": True, "choices": ["a"], "answer": 0, "error": "line 4: no"}
    lines = [
        choices(0, (-1.0, 5), (-2.0, 11)),  # the sum says 0, the character says 1
        choices("much longer", (-1.0, 5), (-3.0, 11)),
        choices(1, (-3.0, 5), (-2.0, 11)),
        failed,
        {"score": True, "scores": [{"logprob": -9.0, "num_tokens": 3, "num_bytes": 10, "is_greedy": True}]},
        {"score": True, "scores": [{"logprob": -1.0, "num_tokens": 2, "num_bytes": 10, "is_greedy": True}]},
    ]
    assert scored(lines, *ANSWER)[0] == {
        "lines": 6, "errors": 1, "accuracy": 2 / 4, "accuracy_norm": 1 / 4,
        "perplexity": pytest.approx(math.exp(2)), "byte_perplexity": pytest.approx(math.exp(0.5)),
    }  # fmt: skip
    unread = {"error": "line 7: not JSON"}  # what it could have been counts too
    assert scored([*lines, unread], *ANSWER)[0]["accuracy"] == 2 / 5
    assert scored([failed], *ANSWER)[0]["accuracy"] == 0


def labelled(label, best=1):
    scores = [{"logprob": -1.0 if i == best else -5.0, "num_tokens": 1, "num_bytes": 4} for i in range(3)]
    return {"score": True, "choices": [" hen", "dog", "fox "], "answer": label, "scores": scores}


@pytest.mark.parametrize("label", [1, 1.0, "1", "dog", " dog", [1], ["dog"]])
def test_a_label_is_a_number_or_a_text(scored, label):
    summary, _ = scored([labelled(label), labelled(label, best=2)], *ANSWER)
    assert summary["accuracy"] == summary["accuracy_norm"] == 0.5
    nested = {**labelled(None), "gold": {"label": label}}
    assert scored([nested], "--reference", "gold.label")[0]["accuracy"] == 1


def test_a_blank_choice_is_not_every_label(scored):
    line = {**labelled(1), "choices": ["", "dog", "fox "]}
    assert scored([line], *ANSWER)[0]["accuracy"] == 1


@pytest.mark.parametrize("label", [True, 1.5, "", "B", 3, -1, 10**400, {"a": 1}, [0, 1], "cat", float("nan")])
def test_labels_that_mean_no_choice(scored, label):
    summary, said = scored([labelled(label), labelled(1)], *ANSWER, status=1)
    assert (summary["unscored"], summary["accuracy"]) == (1, 1)
    assert "line 1: the reference must be a choice or its number from 0 to 2, got " in said


def test_null_references_are_counted_and_left_out(scored):
    fox = {"text": "The fox", "answer": "fox"}
    assert scored([fox, {**fox, "answer": None}, {"text": "x"}], *ANSWER) == (
        {"lines": 3, "errors": 0, "without_reference": 2, "exact_match": 1, "contains": 1, "f1": 1},
        "stagewise score: 1 of 3 lines scored, 2 without a reference\n",
    )
    assert scored([{**fox, "answer": None}], *ANSWER)[0] == {"lines": 1, "errors": 0, "without_reference": 1}
    assert "no line has the field 'label'; they have text, answer" in scored([fox], "--reference", "label", status=2)[1]


def test_a_reference_that_is_an_object(scored):
    result = {"text": "Otto", "answer": {"value": "x", "aliases": ["otto"]}}
    assert "is an object: name a field of it (answer.value, answer.aliases)" in scored([result], *ANSWER, status=2)[1]
    assert scored([result], "--reference", "answer.aliases")[0]["exact_match"] == 1


def test_a_null_error_is_none(scored):
    assert scored([{"text": "The fox", "answer": "fox", "error": None}], *ANSWER)[0]["exact_match"] == 1


def test_lines_that_are_no_results_leave_the_others(scored):
    summary, said = scored([FOX, 5, {"id": 1}], *ANSWER, status=1)
    assert (summary["unscored"], summary["exact_match"]) == (2, 1)
    assert "1 of 3 lines scored; 2 can't be scored, the first: " in said


NO_RESULTS = {
    '{"id": 1, "scores": []}': "scores must be a non-empty list, got []",
    '{"id": 1, "scores": [5]}': "a score's logprob must be a number from -1e+300 to 0, got None",
    '{"id": 1, "scores": [{"logprob": -1, "num_tokens": 0}]}': "num_tokens must be a number from 1 to 1e+09, got 0",
    '{"id": 1, "scores": [{"logprob": -1, "num_tokens": 1}, {"logprob": -1, "num_tokens": 1}]}': "has no choices",
    '{"id": 1, "text": "a", "cumulative_logprob": -1.0}': "line 1: cumulative_logprob needs token_ids",
    '{"id": 1, "text": "a", "cumulative_logprob": -1.0, "token_ids": []}': "a non-empty list, got []",
    '{"id": 1, "text": "a", "cumulative_logprob": "x", "token_ids": [1]}': "a finite number, got 'x'",
    '{"id": 1, "text": "a", "cumulative_logprob": NaN, "token_ids": [1]}': "a finite number, got nan",
    f'{{"id": 1, "text": "a", "cumulative_logprob": {"9" * 400}, "token_ids": [1]}}': "a finite number, got 999",
    '{"id": 1, "text": null}': "text must be a string, got None",
    '{"id": 1, "outputs": [{"text": "fox"}]}': "line 1: it has no text: of several outputs",
    "[1]": "a result is a JSON object, got list",
    '{"id": 1, "te': "line 1: not JSON: Unterminated string starting at column 11",
    "[" * 10**5: "line 1: ",
    b"\xff": "line 1: 'utf-8' codec can't decode",
    "": "contains no results",
    "\n\n": "contains no results",
}


@pytest.mark.parametrize("content", NO_RESULTS, ids=lambda content: str(content)[:50])
def test_files_that_are_no_results(tmp_path, content):
    results = tmp_path / "r.jsonl"
    results.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert NO_RESULTS[content] in refusal(score.main, results, "--per-line", tmp_path / "s.jsonl")
    assert not (tmp_path / "s.jsonl").exists()


def test_where_results_come_from(tmp_path, monkeypatch):
    """A file with a byte order mark, and stdin; without numbers of the system where there is none."""
    results = tmp_path / "r.jsonl"
    results.write_bytes(b'\xef\xbb\xbf{"id": 1, "text": "a", "cumulative_logprob": null}\r\n')
    assert outcome(score.main, results)[0] == 0
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"id": 1, "text": "fox", "answer": "fox"}')))
    assert outcome(score.main, "-", *ANSWER)[0] == 0
    none = tmp_path / "none"
    assert refusal(score.main, none) == f"stagewise score: error: {none}: No such file or directory"
    assert str(tmp_path) in refusal(score.main, tmp_path)


def test_nothing_is_overwritten(tmp_path):
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
