"""Which requests may go ahead of one that waits for memory, and what that does to the others' waits.

    python -m bench.admission --json bench/results/admission.json

The requests are the workload `mixed`, in a quarter of the blocks that chapter 5 gives it. They run through stage 5's
scheduler and block manager without a model, since neither depends on what the tokens are. Steps and tokens are counted,
so the figures are the same on every machine. Each figure is the mean over four seeds of the workload.
"""

import argparse
import random
import statistics
import sys
from typing import Any

from bench.run import command, grid, script
from bench.workloads import Workload, make_workload
from stage05_paged.block_manager import BlockManager
from stage05_paged.request import Request
from stage05_paged.scheduler import Scheduler
from stage05_paged.support.sampling_params import SamplingParams

SEEDS = range(4)
NUM_BLOCKS, AT_ONCE, BUDGET = 128, 64, 512
ARRIVALS = {"at once": 0, "one by one": 24}  # the mean number of steps between arrivals, a Poisson process


def policies(base: type) -> dict[str, type]:
    """Schedulers by which requests may go ahead. base: the stage's own scheduler, which is the last of them."""

    class Strict(base):
        def _may_overtake(self, request: Any, skipped: list) -> bool:
            return False

    class WithoutRoom(base):
        def _blocked_by(self, request: Any, budget: int, overtakes: bool = False) -> dict | None:
            return super()._blocked_by(request, budget)

    class Anybody(WithoutRoom):
        def _may_overtake(self, request: Any, skipped: list) -> bool:
            return True

    class BestFit(Anybody):
        """The longest requests are first in the queue, so the first that fits is the best fit."""

        def add(self, request: Any) -> None:
            if request.rank is not None:  # preempted
                request.rank = -len(request.prompt_token_ids), request.rank[1]
            super().add(request)

        def _rank(self, request: Any) -> tuple:
            return -len(request.prompt_token_ids), super()._rank(request)[1]

        def _admit(self, request: Any) -> None:
            super()._admit(request)
            request.rank = 0, request.rank[1]  # running requests are preempted by their arrival

    return {
        "nobody": Strict,
        "any that fits": Anybody,
        "the longest that fits (*best fit*)": BestFit,
        "the next 16": WithoutRoom,
        "the next 16, keeping a free block per running request": base,
    }


class NoText:
    """Takes the place of a tokenizer: tokens have no text."""

    end_of_text_id = -1

    def token_bytes(self, token_id: int, skip_special: bool = True) -> bytes:
        return b""


def make_request(number: int, prompt: list[int], max_tokens: int) -> Request:
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    return Request(str(number), None, prompt, params, 0, len(prompt) + max_tokens, NoText(), ())  # pyright: ignore[reportArgumentType]


def count(policy: type, workload: Workload, every: float) -> dict[str, float]:
    """Count a run's steps, tokens, preemptions and waits. every: the mean number of steps between arrivals."""
    rng, moment = random.Random(0), 0.0
    scheduler = policy(BlockManager(NUM_BLOCKS, 16), AT_ONCE, BUDGET)
    requests = [make_request(i, *request) for i, request in enumerate(workload)]
    arrivals = {}
    for request in requests:
        arrivals[request] = int(moment)
        moment += rng.expovariate(1 / every) if every else 0
    told = {"preempted": 0}
    scheduler.emit = lambda kind, *_, **__: told.update(preempted=told["preempted"] + (kind == "preempted"))
    arriving, step, num_tokens, waits = requests[:], 0, 0, {}
    while any(not request.finished for request in requests):
        while arriving and arrivals[arriving[0]] <= step:
            scheduler.add(arriving.pop(0))
        rows, step = scheduler.schedule(), step + 1
        for request, num_new, ready in rows:
            num_tokens += num_new
            request.num_computed_tokens += num_new
            if ready:
                request.add(rng.randrange(50257))
                waits.setdefault(request, step - arrivals[request])
                if request.finished:
                    scheduler.remove(request)
    return {
        "steps": step,
        "tokens computed": num_tokens,
        "preemptions": told["preempted"],
        "steps to the first token": statistics.mean(waits.values()),
    }


def measure(args: argparse.Namespace) -> dict:
    """The means over the seeds, for each way to arrive and each policy."""
    workloads = [make_workload("mixed", seed=seed) for seed in SEEDS]
    counts = {}
    for name, every in ARRIVALS.items():
        by_policy = {policy: [count(cls, w, every) for w in workloads] for policy, cls in policies(Scheduler).items()}
        counts[name] = {
            policy: {what: statistics.mean(one[what] for one in ones) for what in ones[0]}
            for policy, ones in by_policy.items()
        }
    return {"counts": counts}


def table(result: dict) -> str:
    """A row for each policy: with all requests at once, and in the last column with requests one by one."""
    at_once, one_by_one = result["counts"]["at once"], result["counts"]["one by one"]
    rows = []
    for policy, found in at_once.items():
        last = one_by_one[policy]["steps to the first token"]
        rows.append([policy, *(f"{int(value + 0.5):,}" for value in found.values()), f"{last:.1f}"])
    titles = ["who goes ahead", *next(iter(at_once.values())), "steps to the first token, arriving one by one"]
    return f"{grid(titles, rows)}\n\nMeans of {len(SEEDS)} draws of the workload. `{command(result)}`"


main = script(measure, table)


if __name__ == "__main__":
    sys.exit(main())
