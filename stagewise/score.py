"""Score a result file against a field of reference answers. Needs no model: it reads the lines that a batch run wrote.

    python -m stagewise score results.jsonl --reference answer                 # a summary as JSON
    python -m stagewise score results.jsonl --reference answer --per-line scores.jsonl
    python -m stagewise score hf://datasets/USER/NAME --reference answer       # what `stagewise push` has put there

A line's `text` is compared with its reference field, a text or a list of texts of which the best counts:

    exact_match   1 if they are equal once normalized: lower case, no punctuation, no articles, single spaces
    contains      1 if the normalized reference is in the normalized text
    f1            harmonic mean of the precision and recall of the words they share
    mean_logprob  mean log-probability of the generated tokens, where the run had --logprobs

Of a line with `choices` (`"score": true`, see batch_file.py) the reference field names the right one, by its text or by
its number from 0:

    accuracy       1 if its log-probability is the highest
    accuracy_norm  1 if its log-probability per byte is the highest: else short choices win

Of the other scored texts the summary has the perplexity: exp of minus the mean log-probability per token, and per byte,
which compares models whatever their tokens are. Lines that are errors have none.

The summary also counts the outputs that ended because they reached their greatest length: `truncated`.

exact_match and f1 are those of SQuAD (Rajpurkar et al. 2016, arXiv:1606.05250); the others are lm-evaluation-harness's
(acc, acc_norm, byte_perplexity). Lines that are errors score 0, because
leaving them out would make a run that fails look better; the summary counts them.
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
from collections.abc import Callable
from pathlib import Path
from statistics import mean

from .console import naming
from .dataset import HUB, fetch, find_results


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


def score_line(result: dict, reference_field: str | None) -> dict:
    """The scores of one result line. Raises ValueError if it is no result, or its reference is missing or not text."""
    if not isinstance(result, dict):
        raise ValueError(f"a result is a JSON object, got {type(result).__name__}")
    scores = {"id": result.get("id")}
    if "error" in result:  # it may not even have a reference, if the input line could not be read
        names = ("exact_match", "contains", "f1")
        if result.get("score") is True:
            names = ("accuracy", "accuracy_norm") if "choices" in result else ()
        zeros = {} if reference_field is None else dict.fromkeys(names, 0)
        return {**scores, **zeros, "error": result["error"]}
    if "scores" in result and "text" not in result:  # else it is a field that the input had
        return {**scores, **score_choices(result, reference_field), **likelihood(result)}
    if "text" not in result:
        raise ValueError("it has no text; of a run with n > 1 choose one of the outputs first")
    if not isinstance(result["text"], str):
        raise ValueError(f"text must be a text, got {result['text']!r:.80}")
    if result.get("finish_reason") == "length":
        scores["truncated"] = 1
    text = normalize(result["text"])
    if reference_field is not None:
        references = result.get(reference_field)
        references = [references] if isinstance(references, str) else references
        if not isinstance(references, list) or not references or not all(isinstance(r, str) for r in references):
            raise ValueError(f"field {reference_field!r} must be a text or a list of texts, got {references!r:.80}")
        normalized = [normalize(reference) for reference in references]
        scores["exact_match"] = max(int(text == r) for r in normalized)
        scores["contains"] = max(int(f" {r} " in f" {text} ") for r in normalized)
        scores["f1"] = max(f1(text, r) for r in normalized)
    if result.get("cumulative_logprob") is not None:
        logprob, token_ids = result["cumulative_logprob"], result.get("token_ids")
        if isinstance(logprob, bool) or not isinstance(logprob, int | float) or not abs(logprob) < 1e300:
            raise ValueError(f"cumulative_logprob must be a finite number, got {logprob!r:.80}")
        if not isinstance(token_ids, list) or not token_ids:
            raise ValueError(f"cumulative_logprob needs token_ids, a list that is not empty, got {token_ids!r:.80}")
        scores["mean_logprob"] = logprob / len(token_ids)
    return scores


def read_likelihoods(result: dict) -> list[dict]:
    """The field `scores`, checked. Raises ValueError if it is not as a batch run writes it."""
    scores = result["scores"]
    if not isinstance(scores, list) or not scores:
        raise ValueError(f"scores must be a list that is not empty, got {scores!r:.80}")
    for score in scores:
        for name, low, high in (("logprob", -1e300, 0), ("num_tokens", 1, 1e9), ("num_bytes", 1, 1e12)):
            value = score.get(name, 1 if name == "num_bytes" else None) if isinstance(score, dict) else None
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                raise ValueError(f"a score's {name} must be a number from {low:g} to {high:g}, got {value!r:.80}")
    return scores


def score_choices(result: dict, reference_field: str | None) -> dict:
    """Whether the right one of several choices is the likeliest."""
    scores, choices = read_likelihoods(result), result.get("choices")
    if reference_field is None or choices is None:
        return {}
    if not isinstance(choices, list) or len(choices) != len(scores):
        raise ValueError(f"choices must be a list of {len(scores)}, as many as scores, got {choices!r:.80}")
    answer = result.get(reference_field)
    if isinstance(answer, str) and answer in choices:
        answer = choices.index(answer)
    if isinstance(answer, bool) or not isinstance(answer, int) or not 0 <= answer < len(choices):
        raise ValueError(f"field {reference_field!r} must be a choice or its number from 0, got {answer!r:.80}")

    def right(value: Callable[[dict], float]) -> int:
        return int(max(range(len(scores)), key=lambda i: value(scores[i])) == answer)

    correct = {"accuracy": right(lambda score: score["logprob"])}
    if all("num_bytes" in score for score in scores):
        correct["accuracy_norm"] = right(lambda score: score["logprob"] / score["num_bytes"])
    return correct


def likelihood(result: dict) -> dict:
    """How likely the text of a line without choices is."""
    if "choices" in result:
        return {}
    score, *more = read_likelihoods(result)
    if more:
        raise ValueError(f"scores has {1 + len(more)} entries, but the line has no choices")
    return {name: score[name] for name in ("logprob", "num_tokens", "num_bytes") if name in score}


def perplexities(lines: list[dict]) -> dict:
    """Of all texts together, as one: long ones count more."""
    result = {}
    for name, length in (("perplexity", "num_tokens"), ("byte_perplexity", "num_bytes")):
        texts = [line for line in lines if length in line]
        if texts:
            mean_loss = -sum(line["logprob"] for line in texts) / sum(line[length] for line in texts)
            result[name] = math.exp(min(mean_loss, 700))  # e^710 is no float any more
    return result


def summarize(scores: list[dict]) -> dict:
    """How many lines, how many errors, the mean of every score over the lines that have it, and perplexities."""
    summary = {"lines": len(scores), "errors": sum("error" in line for line in scores)}
    if truncated := sum(line.get("truncated", 0) for line in scores):
        summary["truncated"] = truncated
    for name in ("exact_match", "contains", "f1", "mean_logprob", "accuracy", "accuracy_norm"):
        values = [line[name] for line in scores if name in line]
        if values and name.startswith("accuracy"):  # of a line that could not be read nobody knows that it had choices
            values += [0 for line in scores if "error" in line and name not in line]
        if values:
            summary[name] = mean(values)
    return {**summary, **perplexities(scores)}


def read_results(source: Path | str) -> bytes:
    """A result file of the disk or of the Hub: hf://datasets/USER/NAME, maybe /FILE. Raises ValueError, OSError."""
    name = str(source)
    if not name.startswith(HUB):
        return Path(source).read_bytes()
    kind, *rest = name.removeprefix(HUB).rstrip("/").split("/")
    if kind != "datasets" or len(rest) < 2:
        raise ValueError(f"{name}: results on the Hub are hf://datasets/USER/NAME or hf://datasets/USER/NAME/FILE")
    return fetch(find_results(name.rstrip("/")) if len(rest) == 2 else name, "")


def read_scores(source: Path | str, reference_field: str | None) -> list[dict]:
    """The scores of every line of a result file. Raises ValueError if it is none."""
    scores = []
    for number, line in enumerate(read_results(source).removeprefix(codecs.BOM_UTF8).split(b"\n"), start=1):
        if line.strip():
            try:
                scores.append(score_line(json.loads(line.decode("utf-8")), reference_field))
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{source}, line {number}: {error}") from None
    if not scores:
        raise ValueError(f"{source} holds no results")
    return scores


def main(argv: list[str] | None = None, prog: str = "stagewise score") -> int:
    parser = argparse.ArgumentParser(prog, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    help = "the --output of a batch run; of the Hub hf://datasets/USER/NAME, with /FILE if it has several"
    parser.add_argument("results", help=help)
    parser.add_argument("--reference", metavar="FIELD", help="the field with the reference answer")
    parser.add_argument("--per-line", type=Path, metavar="FILE", help="write the scores of each line to this new file")
    args = parser.parse_args(argv)
    try:
        if sys.stdout is None:
            raise ValueError("stdout is closed: there is no place for the summary")
        if args.per_line and os.path.lexists(args.per_line):
            raise ValueError(f"--per-line {args.per_line} exists: remove it, or take another name")
        scores = read_scores(args.results, args.reference)
        with naming("stdout"):
            print(json.dumps(summarize(scores), indent=2, allow_nan=False), flush=True)
        if args.per_line:
            with naming(args.per_line), args.per_line.open("x", encoding="utf-8") as file:
                file.writelines(json.dumps(line, allow_nan=False) + "\n" for line in scores)
    except (ValueError, OSError) as error:
        print(f"{prog}: error: {error}", file=sys.stderr)
        return 2
    return 0
