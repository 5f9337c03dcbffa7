"""What changes the bits of a request's logits: other requests in the step, where its prompt is cut, a hit in the cache.

    python -m bench.bits --stages 5 6 --json FILE

A few requests are sampled with seeds: first each alone, in a new engine, with its prompt in one step; then the
same requests with one thing changed at a time. Logits are compared bit for bit wherever the tokens before them are the
same. A token that differs is counted separately, since what follows it can't be compared.

If a change does not apply to a stage, the table has a dash. If nothing was preempted, or nothing was found in the
prefix cache, the run fails instead of counting zeros.
"""

import argparse
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from bench.run import Failure, grid, script, source
from tools.engines import STAGES, Stage, random_prompts

LENGTHS = [15, 116, 51, 325]
MAX_TOKENS = 6
WIDE = dict(max_num_seqs=8, max_num_batched_tokens=1024, enable_prefix_caching=False)


@dataclass(frozen=True)
class Variation:
    """One change: options of the engine, and how the requests are sent."""

    options: dict
    together: bool = True
    backwards: bool = False
    twice: bool = False
    threads: int | None = None


VARIATIONS = {
    "in a batch": Variation({}),
    "in another order": Variation({}, backwards=True),
    "one at a time": Variation({"max_num_seqs": 1}),
    "by one thread": Variation({}, together=False, threads=1),
    "64 tokens a step": Variation({"max_num_batched_tokens": 64}),
    "48 tokens a step": Variation({"max_num_batched_tokens": 48}),
    "33 tokens a step": Variation({"max_num_batched_tokens": 33}),
    "found in the prefix cache": Variation({"enable_prefix_caching": True}, together=False, twice=True),
    "preempted": Variation({"num_blocks": 34}),
    "blocks of 32": Variation({"block_size": 32}, together=False),
}
BRIEF = ("in a batch", "by one thread", "64 tokens a step", "found in the prefix cache", "preempted")


def requests_of(stage: Stage, vocab_size: int, most: int) -> list[tuple]:
    prompts = random_prompts(vocab_size, [n for n in LENGTHS if n + MAX_TOKENS <= most])
    kinds = [stage.SamplingParams(max_tokens=MAX_TOKENS, seed=i, ignore_eos=True) for i in range(len(prompts))]
    return list(zip(prompts, kinds, strict=True))


def logits_of(stage: Stage, make, requests: list[tuple], variation: Variation) -> tuple[dict, int]:
    """({tokens before: logits}, how many requests were preempted or found in the prefix cache)"""
    before = torch.get_num_threads()
    torch.set_num_threads(variation.threads or before)
    records, events = {}, []

    def count_preemptions(scheduler) -> None:
        preempt = scheduler.preempt
        scheduler.preempt = lambda request: (events.append(request), preempt(request))[1]

    try:
        for group in [requests] if variation.together else [[request] for request in requests]:
            llm = make(**variation.options)
            scheduler = getattr(llm.engine, "scheduler", None)
            if hasattr(scheduler, "preempt"):
                count_preemptions(scheduler)
            group = group[::-1] if variation.backwards else group
            for _ in range(1 + variation.twice):
                with stage.recorded_logits(lambda request: tuple(request.token_ids)) as records_of_run:
                    outputs = llm.generate([prompt for prompt, _ in group], [params for _, params in group])
            if variation.twice:
                events += [output for output in outputs if output.num_cached_tokens]
            records |= records_of_run
    finally:
        torch.set_num_threads(before)
    return records, len(events)


def compare(expected: dict, got: dict) -> dict:
    both = expected.keys() & got.keys()
    different = [tokens for tokens in both if not torch.equal(expected[tokens], got[tokens])]
    largest = max((float((expected[tokens] - got[tokens]).abs().max()) for tokens in different), default=0.0)
    return {
        "compared": len(both),
        "different": len(different),
        "largest": largest,
        "lost": len(expected.keys() - got.keys()),
    }


def compare_all(stage: Stage, model: str, dtype: str, variations: Iterable[str] = VARIATIONS) -> dict:
    """{name of a variation: what differs, or None if it does not apply}"""

    def make(**options):
        known = {name: value for name, value in (WIDE | options).items() if stage.has_option(name)}
        return stage.LLM(model, load_format="dummy", device="cpu", dtype=dtype, **known)

    config = make(num_blocks=64).engine.runner.model.config
    requests = requests_of(stage, config.vocab_size, config.n_positions)
    expected, _ = logits_of(stage, make, requests, Variation({"num_blocks": 64}, together=False))
    table = {}
    for name, variation in ((name, VARIATIONS[name]) for name in variations):
        if not all(stage.has_option(option) for option in variation.options) or stage.number == 1:
            table[name] = None
            continue
        if "num_blocks" not in variation.options and stage.has_option("num_blocks"):
            variation = replace(variation, options={"num_blocks": 64} | variation.options)
        got, events = logits_of(stage, make, requests, variation)
        if not events and (variation.twice or name == "preempted"):
            raise Failure(f"{stage}: nothing was {name}")
        table[name] = compare(expected, got)
    return table


def cell(measured: dict | None) -> str:
    if measured is None:
        return "–"
    text = f"{measured['different']} of {measured['compared']}"
    if measured["different"]:
        text += f", {measured['largest']:.0e}"
    return text + (f"; {measured['lost']} lost" if measured["lost"] else "")


def table(result: dict, part: str = "") -> str:
    """A row per change, a column per stage and dtype. "brief": only the rows in BRIEF, without float16."""
    shown, columns = VARIATIONS, result["columns"]
    if part == "brief":
        shown, columns = BRIEF, {name: own for name, own in columns.items() if not name.endswith(" float16")}
    rows = [[name, *(cell(own[name]) for own in columns.values())] for name in shown]
    return grid(["what changes", *columns], rows) + (
        f"\n\nLogits that differ, of those compared, and by how much at most; {result['model']} with random weights; "
        f"{source(result)}"
    )


def measure(args: argparse.Namespace) -> dict:
    columns = {
        f"stage {stage.number}, {dtype}": compare_all(stage, args.model, dtype)
        for stage in STAGES
        if stage.number in args.stages
        for dtype in args.dtypes
    }
    return {"model": args.model, "columns": columns}


OPTIONS = {
    "--stages": dict(type=int, nargs="+", default=[3, 4, 5, 6], metavar="N"),
    "--dtypes": dict(nargs="+", default=["float32", "bfloat16"], metavar="DTYPE"),
    "--model": dict(default="gpt2", help="sizes of the model; its weights are random"),
}
main = script(measure, table, options=OPTIONS)


if __name__ == "__main__":
    sys.exit(main())
