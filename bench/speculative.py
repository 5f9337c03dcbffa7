"""What guessing gains: stage 7 against stage 6, on real text at GPT-2's cost (bench/wide.py).

    python -m bench.speculative --dtype bfloat16 --json FILE

There are two kinds of text. "tales": openings, sampled with temperature 0.8 and seeds. "list": six lines of the prompt,
copied greedily (`structured_outputs` allows nothing else; the model chooses which).

All engines complete the same requests in every round, one after another. A gain is the ratio to stage 6's speed in the
same round, and the table shows the median. All outputs are compared with stage 6's, which they must equal.
`independent` is the draft model with its own random numbers.
"""

import argparse
import contextlib
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from bench import plots, wide
from bench.run import grid, script, source
from stagewise import sampling_params
from tools.engines import STAGES

sys.path.insert(0, str(Path(__file__).parents[1] / "tools" / "tinytales"))
from tale_grammar import write_tale

SIX, SEVEN = (next(stage for stage in STAGES if stage.number == number) for number in (6, 7))
DRAFT = "tinytales-draft"
TOKENS = 128
COUNTS = (1, 4, 32)
BRIEF = (
    ("tales", "stage 6"), ("tales", "prompt lookup"), ("tales", "draft model"), ("list", "prompt lookup"),
    ("list", "draft model"), ("list", "draft model, 8"),
)  # fmt: skip
FIXED = (1, 2, 4, 8, 16)
OPENINGS = (
    "Once upon a time",
    "In the days when the winters were long, a brave mouse named Otto lived near a windy harbor.",
    "There was once a shy bear",
    "In a village by the sea",
    "One morning a girl named Mara",
    "Long ago, a fox named Anton",
    "A small duck lived in a garden.",
    "Deep in the forest",
)


def sentences(seed: int) -> list[str]:
    text = " ".join(write_tale(seed).split())
    return [sentence.strip() + "." for sentence in text.split(". ") if len(sentence) > 20]


def tales(number: int) -> list[tuple[str, dict]]:
    params = dict(temperature=0.8, max_tokens=TOKENS, ignore_eos=True)
    return [(OPENINGS[i % len(OPENINGS)], {**params, "seed": i}) for i in range(number)]


def lists(number: int) -> list[tuple[str, dict]]:
    jobs = []
    tales = (sorted(set(parts)) for parts in map(sentences, itertools.count(1000)))
    for lines in itertools.islice((lines[:8] for lines in tales if len(lines) > 8), number):
        prompt = "\n".join(f"- {line}" for line in lines) + "\n\nThe same in the order of the tale:\n\n"
        grammar = "start: " + " ".join(["line"] * 6) + "\nline: " + " | ".join(json.dumps(f"- {x}\n") for x in lines)
        jobs.append((prompt, dict(temperature=0, max_tokens=TOKENS, structured_outputs={"grammar": grammar})))
    return jobs


TEXTS: dict[str, Callable[[int], list[tuple[str, dict]]]] = {"tales": tales, "list": lists}


@contextlib.contextmanager
def own_numbers(on: bool) -> Iterator[None]:
    """In this block, if `on`, guesses are drawn with different random numbers than the tokens that verify them."""
    request = SEVEN.part("request").Request
    guessed = request.guessed

    def independent(self: Any, draft: list[int]) -> Any:
        other = guessed(self, draft)
        other.seed = self.seed ^ 0x5DEECE66D
        return other

    if on:
        request.guessed = independent
    try:
        yield
    finally:
        request.guessed = guessed


@contextlib.contextmanager
def tries_of(speculator: Any) -> Iterator[list[int]]:
    """Count, in this block, how many draft tokens are tried: those of a draft up to its first rejection. Yields a list
    whose only item is the count."""
    update, tries = speculator.update, [0]

    def counting(drafts: Any, updated: Any) -> Any:
        accepted = update(drafts, updated)
        tries[0] += sum(n + (n < len(drafts[request]) and not request.finished) for request, n in accepted.items())
        return accepted

    speculator.update = counting
    try:
        yield tries
    finally:
        del speculator.update  # back to the class's


class Bench:
    """The engines for one number of requests at once.

    Args:
        folder: the wide checkpoint's.
        count: how many requests run at once.
    """

    def __init__(self, folder: str, dtype: str, count: int):
        options = dict(dtype=dtype, max_num_seqs=count, device="cpu", enable_prefix_caching=False)
        self.six = SIX.LLM(folder, **options)
        self.by = {name: SEVEN.LLM(folder, speculate=name, **options) for name in ("ngram", DRAFT)}
        self.planners = {name: llm.engine.speculator.planner for name, llm in self.by.items()}
        self.count = count

    def variants(self, text: str) -> list[tuple[str, str, int | str]]:
        """What is measured besides stage 6: (name, drafter, number of guesses)."""
        rows: list[tuple[str, str, int | str]] = [("prompt lookup", "ngram", "auto"), ("draft model", DRAFT, "auto")]
        if text != "tales":
            return rows + [(f"prompt lookup, {k}", "ngram", k) for k in FIXED[2:]] + [("draft model, 8", DRAFT, 8)]
        fixed = FIXED[:3] if self.count >= 16 else FIXED  # with that many requests, more guesses only take longer
        return [*rows, *((f"draft model, {k}", DRAFT, k) for k in fixed), ("independent", DRAFT, "auto")]

    def run(self, text: str) -> list[dict]:
        """One round: a record for each engine."""
        jobs = TEXTS[text](max(self.count, 4))
        first = self.complete(self.six, jobs)
        records = [{"engine": "stage 6", **first, "same": True}]
        for name, drafter, number in self.variants(text):
            llm = self.by[drafter]
            speculator = llm.engine.speculator
            speculator.num_drafts, speculator.planner = number, self.planners[drafter] if number == "auto" else None
            with own_numbers(name == "independent"), tries_of(speculator) as tries:
                record = {"engine": name, "num_drafts": number, **self.complete(llm, jobs)}
            stats = llm.stats
            record |= {"drafts": stats.num_drafts, "drafted": stats.num_draft_tokens}
            record |= {"accepted": stats.num_accepted_tokens, "tried": tries[0]}
            records.append({**record, "same": record["outputs"] == first["outputs"]})
        return records

    def complete(self, llm: Any, jobs: list) -> dict:
        llm.stats = type(llm.stats)()
        start = time.perf_counter()
        params = [sampling_params(llm, **how) for _, how in jobs]
        results = llm.generate([prompt for prompt, _ in jobs], params)
        seconds = time.perf_counter() - start
        outputs = [(c.token_ids, c.text, c.finish_reason) for result in results for c in result.outputs]
        tokens = sum(len(result.outputs[0].token_ids) for result in results)
        told = {"tokens": tokens, "speed": tokens / seconds, "forwards": llm.stats.num_forwards}
        return {**told, "outputs": outputs}


def measure(args: argparse.Namespace) -> Iterator[dict]:
    """The result so far, after each text and number of requests; it has a cell for each engine."""
    cells = []
    with tempfile.TemporaryDirectory() as folder:
        directory = str(wide.make(args.directory or Path(folder, "wide")))
        for count in args.requests:
            bench = Bench(directory, args.dtype, count)
            # With many requests at once, only the first kind: all that matters there is that nothing is guessed.
            for text in args.texts[: 1 if count >= 16 else None]:
                print(f"{args.dtype}, {count} at once, {text}", file=sys.stderr)
                cells += cells_of(bench, text, args.repeat)
                yield {"dtype": args.dtype, "cells": cells}


def cells_of(bench: Bench, text: str, rounds: int) -> Iterator[dict]:
    """A cell for each engine; its rounds are the gains."""
    bench.run(text)  # to warm up
    planner = bench.planners[DRAFT]
    found = [bench.run(text) for _ in range(rounds)]
    for own in zip(*found, strict=True):
        gains = [one["speed"] / records[0]["speed"] for one, records in zip(own, found, strict=True)]
        cell = {"text": text, "count": bench.count, "engine": own[-1]["engine"]}
        cell |= {"same": all(one["same"] for one in own), "rounds": gains}
        cell["speed"] = median(one["speed"] for one in own)
        more = derived({**own[-1], "count": bench.count}, planner.costs.seconds, planner.drafter.draft_cost)
        yield cell | ({"num_drafts": own[-1]["num_drafts"]} if "num_drafts" in own[-1] else {}) | more


def derived(cell: dict, costs: list[float], draft_seconds: float) -> dict:
    """What follows from the counts: the share of right guesses, tokens per step, and the gain that these predict."""
    steps = cell["tokens"] / (cell["forwards"] * cell["count"])
    if not cell.get("drafts"):
        return {"a_step": steps}
    rate = cell["accepted"] / max(1, cell["tried"])
    more = {"a_step": steps, "rate": rate, "refused": (cell["drafted"] - cell["accepted"]) / cell["tokens"]}
    if isinstance(cell["num_drafts"], int) and cell["engine"].startswith("draft") and rate < 1:
        k = cell["num_drafts"]
        expected = (1 - rate ** (k + 1)) / (1 - rate)
        rows = min(cell["count"] * (k + 1), len(costs) - 1)
        slope = costs[-1] - costs[-2]
        seconds = costs[rows] + max(0, cell["count"] * (k + 1) - rows) * slope + k * draft_seconds
        more["predicted"] = expected * costs[cell["count"]] / seconds
    return more


def requests(count: int) -> str:
    return f"{count} request{'' if count == 1 else 's'}"


def table(result: dict, part: str = "all") -> str:
    """A row per text and engine, a column per number of requests. "brief": only the rows in BRIEF."""
    counts = sorted({cell["count"] for cell in result["cells"]})
    cells = {(cell["text"], cell["engine"], cell["count"]): cell for cell in result["cells"]}
    rows = []
    for text, engine in dict.fromkeys((cell["text"], cell["engine"]) for cell in result["cells"]):
        if part == "brief" and (text, engine) not in BRIEF:
            continue
        row = [text, {"stage 6": "no guesses (stage 6)"}.get(engine, engine)]
        for count in counts:
            cell = cells.get((text, engine, count))
            speed = f"{cell['speed']:,.0f} tok/s" if cell and engine == "stage 6" else ""
            row.append(speed or (f"{median(cell['rounds']):.2f} ×" if cell and cell["rounds"] else ""))
        one = cells.get((text, engine, counts[0]), {})
        row += [f"{one['rate']:.0%}", f"{one['a_step']:.1f}", f"{one['refused']:.2f}"] if "rate" in one else [""] * 3
        rows.append(row)
    same = (
        "All outputs are stage 6's, token for token." if all(c["same"] for c in result["cells"]) else "NOT ALL EQUAL."
    )
    titles = ["text", "drafter", *map(requests, counts), "guesses right", "tokens per step", "wasted guesses"]
    return grid(titles, rows, left=(0, 1)) + (
        "\n\nSpeed relative to stage 6 in the same round, by the number of requests running at once. A number after a "
        "drafter is its guesses per step; without one it is `auto`. The last three columns are for "
        f"{requests(counts[0])}: the share of tried guesses that were right, tokens per step, and guesses rejected or "
        "never tried, per output token. A speed whose rounds were more than a quarter apart is left out; 32 requests "
        f"were measured for tales only. {same} {result['dtype']}; "
        f"{source(result)}"
    )


@plots.large
def plot(result: dict) -> plots.Picture:
    """The gain by the number of guesses, measured and predicted, and by the number of requests."""
    picture = plots.Picture(figsize=(10.5, 4.3))
    cells = [cell for cell in result["cells"] if cell["text"] == "tales" and cell["rounds"]]
    left, right = picture.subplots(1, 2)
    counts = sorted({cell["count"] for cell in cells})
    for count, color, marker in zip(counts, (plots.BLUE, plots.ORANGE, plots.PURPLE), ("o", "s", "^"), strict=False):
        own = [cell for cell in cells if cell["count"] == count and "predicted" in cell]
        ks, gains = [cell["num_drafts"] for cell in own], [median(cell["rounds"]) for cell in own]
        left.plot(ks, gains, color=color, marker=marker, label=requests(count))
        if count < 16:  # with more, there are more rows than were timed
            left.plot(ks, [c["predicted"] for c in own], color=color, linestyle=":", linewidth=1)
    fixed = [cell for cell in cells if "predicted" in cell]
    best = {count: max(median(cell["rounds"]) for cell in fixed if cell["count"] == count) for count in counts}
    left.set(xscale="log", xlabel="guesses per step (dotted: predicted)", ylabel="speed relative to stage 6")
    left.set_xticks(FIXED, [str(k) for k in FIXED])
    ends = [f"{best[count]:.2g} × for {requests(count)}" for count in (counts[0], counts[-1])]
    left.set_title(f"The best speed with guesses is {ends[0]},\n{ends[1]}")
    looks = {"draft model": (plots.BLUE, "o"), "independent": (plots.GREEN, "D"), "prompt lookup": (plots.ORANGE, "s")}
    for name, (color, marker) in looks.items():
        own = [cell for cell in cells if cell["engine"] == name]
        gains = [median(cell["rounds"]) for cell in own]
        right.plot([c["count"] for c in own], gains, color=color, marker=marker, label=name)
    right.set(xscale="log", xlabel="requests running at once (guesses: auto)")
    right.set_xticks(counts, [str(count) for count in counts])
    right.set_title("The fewer requests there are,\nthe more a draft model gains")
    for axes in (left, right):
        axes.axhline(1, color="#888888", linewidth=0.8)
        axes.set_ylim(0, None)
        axes.minorticks_off()
        axes.legend(loc="lower center", ncols=3, columnspacing=1, handletextpad=0.4)
    return picture


OPTIONS = {
    "--dtype": dict(choices=("float32", "bfloat16"), default="float32"),
    "--requests": dict(type=int, nargs="+", default=list(COUNTS), metavar="N", help="how many run at once"),
    "--texts": dict(nargs="+", choices=TEXTS, default=list(TEXTS)),
    "--directory": dict(type=Path, metavar="DIR", help="keep the wide checkpoint here, 445 MB"),
}
main = script(measure, table, rounds=3, options=OPTIONS)

if __name__ == "__main__":
    sys.exit(main())
