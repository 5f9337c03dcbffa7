"""Score a result file against a field of reference answers. Needs no model: it reads the lines that a batch run wrote.

    stagewise score results.jsonl --reference answer                 # a summary as JSON
    stagewise score results.jsonl --reference answer --per-line scores.jsonl
    stagewise score hf://datasets/USER/NAME --reference answer       # what `stagewise push` has put there

Read next: docs/USING.md, "A dataset".

A line's `text` is compared with its reference field: a text, a number, or a list of these, of which the best match
counts. A nested field is OUTER.INNER, as in `answer.aliases`:

    exact_match   1 if they are equal once normalized: lower case, no punctuation, no articles, single spaces
    contains      1 if the normalized reference is in the normalized text
    f1            harmonic mean of the precision and recall of the words they share
    mean_logprob  mean log-probability of the generated tokens, where the run had --logprobs

A reference that is a number is compared by its value: "42" is 42.0, and "5" is not -5.

For a line with `choices` (scored by a run) the reference field names the right one: by its text, or
by its number from 0, as a number or as digits:

    accuracy       1 if its log-probability is the highest
    accuracy_norm  1 if its log-probability per character is the highest, which does not favor short choices

For a line with a `continuation` the accuracy says whether greedy decoding would choose it, and continuation_perplexity
is exp(-mean log-probability) of all continuations. For other scored texts the summary has the perplexity, exp(-mean
log-probability) per token, and per byte, which compares models whatever their tokens are.

The summary also counts the outputs that reached their maximum length (`truncated`), the lines whose reference is null
or missing (`without_reference`), which have no scores, and lines that can't be scored (`unscored`; stderr says why, and
the exit status is 1).

exact_match and f1 are those of SQuAD (Rajpurkar et al. 2016, arXiv:1606.05250); the others are lm-evaluation-harness's
(acc, acc_norm, byte_perplexity; acc and perplexity of its LAMBADA). Lines that are errors score 0, because leaving them
out would make a failing run look better; the summary counts them.
"""

import argparse
import codecs
import json
import math
import os
import re
import string
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from .dataset import HUB, STDIN, fetch, find, find_results, has, unpacked
from .exits import Outcome, naming, prepare_streams, tell
from .parser import Parser
from .strict_json import from_line

NUMBER = re.compile(r"(?<![\w.])[-+]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?(?!\w)")


def normalize(text: str) -> str:
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def f1(text: str, reference: str) -> float:
    """Token F1 of two normalized texts; two empty ones agree."""
    words, expected = text.split(), reference.split()
    if not words or not expected:
        return float(words == expected)
    shared = sum((Counter(words) & Counter(expected)).values())
    return 2 * shared / (len(words) + len(expected))  # = 2PR / (P + R)


def score_line(result: Any, field: str | None) -> dict:
    """The scores of one result line; its reference is in this field. Raises ValueError if it is not a result, or its
    reference can't be compared."""
    if not isinstance(result, dict):
        raise ValueError(f"a result is a JSON object, got {type(result).__name__}")
    scores: dict[str, Any] = {"id": result.get("id")}
    if result.get("error") is not None:  # it may not even have a reference, if the input line could not be read
        names = ("exact_match", "contains", "f1")
        if result.get("score") is True:
            names = ("accuracy", "accuracy_norm") if "choices" in result else ()
        zeros = {} if field is None else dict.fromkeys(names, 0)
        return {**scores, **zeros, "error": result["error"]}
    is_scored = "scores" in result and "text" not in result  # else it is a field that the input had
    expected = find(result, field, "") if field is not None and has(result, field) else None
    if field is not None and expected is None and not (is_scored and "choices" not in result):
        scores["without_reference"] = 1
    if is_scored:
        correct = {} if expected is None else score_choices(result, expected)
        return {**scores, **correct, **likelihood(result)}
    if "text" not in result:
        raise ValueError("it has no text: of several outputs, or of an answer of OpenAI's, choose one text first")
    if not isinstance(result["text"], str):
        raise ValueError(f"text must be a string, got {result['text']!r:.80}")
    if result.get("finish_reason") == "length":
        scores["truncated"] = 1
    if expected is not None:
        scores |= compare(result["text"], references_of(field, expected))
    if result.get("cumulative_logprob") is not None:
        logprob, token_ids = result["cumulative_logprob"], result.get("token_ids")
        if isinstance(logprob, bool) or not isinstance(logprob, int | float) or not abs(logprob) < 1e300:
            raise ValueError(f"cumulative_logprob must be a finite number, got {logprob!r:.80}")
        if not isinstance(token_ids, list) or not token_ids:
            raise ValueError(f"cumulative_logprob needs token_ids, a non-empty list, got {token_ids!r:.80}")
        scores["mean_logprob"] = logprob / len(token_ids)
    return scores


def references_of(field: str | None, expected: Any) -> list[str | int | float]:
    """A reference as a list of texts and numbers. Raises ValueError if it is not one."""
    if isinstance(expected, dict):
        names = ", ".join(f"{field}.{name}" for name in expected)
        raise ValueError(f"field {field!r} is an object: name a field of it ({names})")
    expected = expected if isinstance(expected, list) else [expected]
    if not expected or not all(isinstance(one, str | int | float) for one in expected):
        raise ValueError(f"field {field!r} must be a string, a number or a list of these, got {expected!r:.80}")
    return [json.dumps(one) if isinstance(one, bool) else one for one in expected]


def compare(text: str, references: list[Any]) -> dict[str, float]:
    """The scores of a text against the best of its references."""
    all_scores = [compare_text(text, one) if isinstance(one, str) else compare_number(text, one) for one in references]
    return {name: max(scores[name] for scores in all_scores) for name in all_scores[0]}


def compare_text(text: str, reference: str) -> dict[str, float]:
    text, reference = normalize(text), normalize(reference)
    contains = f" {reference} " in f" {text} "
    return {"exact_match": int(text == reference), "contains": int(contains), "f1": f1(text, reference)}


def compare_number(text: str, reference: float) -> dict[str, float]:
    """A number is compared by its value: without punctuation, as texts are, -1.5 would be 15."""
    values = [as_number(found.replace(",", "")) for found in NUMBER.findall(text)]
    only = values == [reference] and not normalize(NUMBER.sub("", text))
    contains, num_words = reference in values, len(text.split())
    return {"exact_match": int(only), "contains": int(contains), "f1": 2 * contains / (num_words + 1)}


def as_number(text: str) -> int | float:
    """As JSON has it: digits alone are a whole number, of any length that Python reads."""
    return int(text) if text.lstrip("+-").isdecimal() and len(text) < 4000 else float(text)


def read_likelihoods(result: dict) -> list[dict]:
    """The field `scores`, checked. Raises ValueError if a batch run can't have written it."""
    scores = result["scores"]
    if not isinstance(scores, list) or not scores:
        raise ValueError(f"scores must be a non-empty list, got {scores!r:.80}")
    for score in scores:
        for name, low, high in (("logprob", -1e300, 0), ("num_tokens", 1, 1e9), ("num_bytes", 1, 1e12)):
            value = score.get(name, 1 if name == "num_bytes" else None) if isinstance(score, dict) else None
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                raise ValueError(f"a score's {name} must be a number from {low:g} to {high:g}, got {value!r:.80}")
    return scores


def score_choices(result: dict, expected: Any) -> dict:
    """Whether the right one of several choices is the likeliest."""
    scores, choices = read_likelihoods(result), result.get("choices")
    if choices is None:
        return {}
    if not isinstance(choices, list) or len(choices) != len(scores):
        raise ValueError(f"choices must be a list of {len(scores)}, one per score, got {choices!r:.80}")
    answer = number_of_choice(expected, choices)

    def right(value: Callable[[int], float]) -> int:
        return int(max(range(len(scores)), key=value) == answer)

    correct = {"accuracy": right(lambda i: scores[i]["logprob"])}
    if all(isinstance(choice, str) and choice.strip() for choice in choices):
        lengths = [len(choice.lstrip()) for choice in choices]  # without the space after the prompt
        correct["accuracy_norm"] = right(lambda i: scores[i]["logprob"] / lengths[i])
    return correct


def number_of_choice(label: Any, choices: Sequence[Any]) -> int:
    """The choice that a label names, from 0. Raises ValueError if it names none."""
    if isinstance(label, list) and len(label) == 1:
        (label,) = label
    stripped = [choice.strip() if isinstance(choice, str) else choice for choice in choices]
    number = None
    if isinstance(label, str):
        text = label.strip()
        if text in stripped:
            return stripped.index(text)
        number = int(text) if text.isdecimal() else None
    elif (isinstance(label, int) and not isinstance(label, bool)) or (isinstance(label, float) and label.is_integer()):
        number = int(label)
    if number is None or not 0 <= number < len(choices):
        last = len(choices) - 1
        raise ValueError(f"the reference must be a choice or its number from 0 to {last}, got {label!r:.80}")
    return number


def likelihood(result: dict) -> dict:
    """How likely the text of a line without choices is."""
    if "choices" in result:
        return {}
    score, *more = read_likelihoods(result)
    if more:
        raise ValueError(f"scores has {1 + len(more)} entries, but the line has no choices")
    counts = {name: score[name] for name in ("logprob", "num_tokens", "num_bytes") if name in score}
    return counts | ({"accuracy": int(score["is_greedy"])} if "continuation" in result and "is_greedy" in score else {})


def perplexities(lines: list[dict]) -> dict:
    """The perplexities of all texts together, so that long ones count more."""
    result = {}
    for name, length in (("perplexity", "num_tokens"), ("byte_perplexity", "num_bytes")):
        texts = [line for line in lines if length in line]
        if texts:
            mean_loss = -sum(line["logprob"] for line in texts) / sum(line[length] for line in texts)
            result[name] = math.exp(min(mean_loss, 700))  # e^710 overflows a float
    if continuations := [line["logprob"] for line in lines if "accuracy" in line and "logprob" in line]:
        result["continuation_perplexity"] = math.exp(min(-mean(continuations), 700))
    return result


def summarize(scores: list[dict]) -> dict:
    """How many lines, how many errors, the mean of every score over the lines that have it, and perplexities."""
    summary = {"lines": len(scores), "errors": sum("error" in line for line in scores)}
    for name in ("truncated", "without_reference", "unscored"):
        if number := sum(line.get(name, 0) for line in scores):
            summary[name] = number
    for name in ("exact_match", "contains", "f1", "mean_logprob", "accuracy", "accuracy_norm"):
        values = [line[name] for line in scores if name in line]
        if values and name.startswith("accuracy"):  # a line that could not be read may have had choices
            values += [0 for line in scores if "error" in line and name not in line]
        if values:
            summary[name] = mean(values)
    return {**summary, **perplexities(scores)}


def read_results(source: Path | str) -> bytes:
    """A result file from the disk or the Hub, hf://datasets/USER/NAME, maybe /FILE; or stdin, `-`. Raises ValueError,
    OSError."""
    name = str(source)
    if name == STDIN:
        return sys.stdin.buffer.read()
    if not name.startswith(HUB):
        with naming(name):
            return unpacked(name, Path(source).read_bytes())
    kind, *rest = name.removeprefix(HUB).rstrip("/").split("/")
    if kind != "datasets" or len(rest) < 2:
        raise ValueError(f"{name}: results on the Hub are hf://datasets/USER/NAME or hf://datasets/USER/NAME/FILE")
    return fetch(find_results(name.rstrip("/")) if len(rest) == 2 else name, "")


def read_scores(source: Path | str, reference: str | None) -> tuple[list[dict], str | None]:
    """The scores of every line of a result file, and the error of the first line that can't be scored. Raises
    ValueError if none can be, or if no line has the reference."""
    scores, fields, problem = [], {}, None
    for number, line in enumerate(read_results(source).removeprefix(codecs.BOM_UTF8).split(b"\n"), start=1):
        if line.strip():
            result = None
            try:
                result = from_line(line)
                scores.append(score_line(result, reference))
                fields |= dict.fromkeys(result)
            except (ValueError, RecursionError) as error:
                problem = problem or f"{source}, line {number}: {error}"
                name = result.get("id") if isinstance(result, dict) else None
                scores.append({"id": name, "unscored": 1})
    if not scores:
        raise ValueError(f"{source} contains no results")
    if problem and all("unscored" in line for line in scores):
        raise ValueError(problem)
    compared = [line for line in scores if "error" not in line and "unscored" not in line]
    lacking = [line for line in compared if "without_reference" in line]
    if lacking and len(lacking) == len(compared) and str(reference).split(".")[0] not in fields:
        raise ValueError(f"{source}: no line has the field {reference!r}; they have {', '.join(fields)}")
    return scores, problem


def check_used(args: argparse.Namespace, scores: list[dict]) -> None:
    """Raise ValueError for a --reference that applies to none of these lines."""
    lines = [line for line in scores if "error" not in line and "unscored" not in line]
    if args.reference is not None and lines and all("logprob" in line for line in lines):
        raise ValueError(f"--reference is for lines with a text or with choices: {args.results} has neither")


def build_parser(prog: str) -> Parser:
    parser = Parser(prog, description=__doc__)
    help = "the --output of a batch run; on the Hub hf://datasets/USER/NAME, with /FILE if it has several; - is stdin"
    parser.add_argument("results", metavar="RESULTS", help=help)
    parser.add_argument("--reference", metavar="FIELD", help="the field with the reference answer")
    parser.add_argument("--per-line", type=Path, metavar="FILE", help="write the scores of each line to this new file")
    return parser


def main(argv: list[str] | None = None, prog: str = "stagewise score") -> int:
    prepare_streams()
    args, outcome = build_parser(prog).parse_args(argv), Outcome(prog)
    with outcome:
        if args.per_line and os.path.lexists(args.per_line):
            raise ValueError(f"--per-line {args.per_line} exists: remove it, or choose another name")
        scores, problem = read_scores(args.results, args.reference)
        check_used(args, scores)
        with naming("stdout"):
            print(json.dumps(summarize(scores), indent=2, allow_nan=False), flush=True)
        if args.per_line:
            with naming(args.per_line), args.per_line.open("x", encoding="utf-8") as file:
                file.writelines(json.dumps(line, allow_nan=False) + "\n" for line in scores)
        unscored, without = (sum(name in line for line in scores) for name in ("unscored", "without_reference"))
        scored = f"{len(scores) - unscored - without:,} of {len(scores):,} lines scored"
        lacking = f", {without:,} without a reference" if without else ""
        tell(
            f"{prog}: {scored}{lacking}" + (f"; {unscored:,} can't be scored, the first: {problem}" if problem else "")
        )
        if problem:
            outcome.status = 1
    return outcome.status
