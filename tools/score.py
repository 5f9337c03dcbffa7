"""Score a result file against a field of reference answers. Needs no model: it reads the lines that a batch run wrote.

    python tools/score.py results.jsonl --reference answer                 # a summary as JSON
    python tools/score.py results.jsonl --reference answer --per-line scores.jsonl

A line's `text` is compared with its reference field, a text or a list of texts of which the best counts:

    exact_match   1 if they are equal once normalized: lower case, no punctuation, no articles, single spaces
    contains      1 if the normalized reference stands in the normalized text
    f1            harmonic mean of the precision and recall of the words they share
    mean_logprob  mean log-probability of the generated tokens, where the run had --logprobs

The first and third are those of SQuAD (Rajpurkar et al. 2016, arXiv:1606.05250). Lines that are errors score 0, because
leaving them out would make a run that fails look better; the summary counts them.
"""

import argparse
import codecs
import json
import os
import re
import string
import sys
from collections import Counter
from pathlib import Path
from statistics import mean


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
        zeros = {} if reference_field is None else {"exact_match": 0, "contains": 0, "f1": 0.0}
        return {**scores, **zeros, "error": result["error"]}
    if "text" not in result:
        raise ValueError("it has no text; of a run with n > 1 choose one of the outputs first")
    if not isinstance(result["text"], str):
        raise ValueError(f"text must be a text, got {result['text']!r:.80}")
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


def summarize(scores: list[dict]) -> dict:
    """How many lines, how many errors, and the mean of every score over the lines that have it."""
    summary = {"lines": len(scores), "errors": sum("error" in line for line in scores)}
    for name in ("exact_match", "contains", "f1", "mean_logprob"):
        values = [line[name] for line in scores if name in line]
        if values:
            summary[name] = mean(values)
    return summary


def read_scores(path: Path, reference_field: str | None) -> list[dict]:
    """The scores of every line of a result file. Raises ValueError if it is none."""
    scores = []
    for number, line in enumerate(path.read_bytes().removeprefix(codecs.BOM_UTF8).split(b"\n"), start=1):
        if line.strip():
            try:
                scores.append(score_line(json.loads(line.decode("utf-8")), reference_field))
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path}, line {number}: {error}") from None
    if not scores:
        raise ValueError(f"{path} holds no results")
    return scores


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="the --output of a batch run")
    parser.add_argument("--reference", metavar="FIELD", help="the field with the reference answer")
    parser.add_argument("--per-line", type=Path, metavar="FILE", help="write the scores of each line to this new file")
    args = parser.parse_args(argv)
    try:
        if sys.stdout is None:
            raise ValueError("stdout is closed: there is no place for the summary")
        if args.per_line and os.path.lexists(args.per_line):
            raise ValueError(f"--per-line {args.per_line} exists: remove it, or take another name")
        scores = read_scores(args.results, args.reference)
        print(json.dumps(summarize(scores), indent=2), flush=True)
        if args.per_line:
            with args.per_line.open("x", encoding="utf-8") as file:
                file.writelines(json.dumps(line) + "\n" for line in scores)
    except (ValueError, OSError) as error:
        print(f"score.py: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
