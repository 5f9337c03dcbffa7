"""Who may go ahead of a request that waits for memory, and what comes of it: python -m bench.admission [--json FILE]

The requests are the workload `mixed` in a quarter of the blocks that chapter 5 gives it. They run through stage 5's
scheduler and block manager without a model, as neither reads what a token is. So steps and tokens are counted, and the
figures are the same on every machine. Each figure is the mean over four seeds of the workload.

    strict      nobody goes ahead
    anybody     whoever fits goes ahead, in the order of the queue
    best fit    the longest that fits goes ahead
    16          only the 16 requests that came right after the one that waits
    16, room    the same, if a block stays free for each that runs: the scheduler as it is
    4, room     with another number; so is 64, room

`--seconds` takes the time of `strict`, `16` and `16, room` too, in turn on stage 6 with random weights of the bundled
model's sizes: the ratio to `strict`, the median of some rounds.
"""

import argparse
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from bench.report import write_result
from bench.workloads import Workload, make_workload
from stage05_paged.block_manager import BlockManager
from stage05_paged.request import Request
from stage05_paged.scheduler import Scheduler
from stage05_paged.support.sampling_params import SamplingParams

SEEDS = range(4)
NUM_BLOCKS, AT_ONCE, BUDGET = 128, 64, 512
ARRIVALS = {"at once": 0, "one by one": 24}  # the mean number of steps from one to the next, a Poisson process


def policies(base: type) -> dict[str, type]:
    """Schedulers by what they let go ahead. base: that of a stage."""

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
        """The queue has the longest first, so the first of it that fits is the best fit."""

        def add(self, request: Any) -> None:
            if request.rank is not None:  # preempted
                request.rank = -len(request.prompt_token_ids), request.rank[1]
            super().add(request)

        def _rank(self, request: Any) -> tuple:
            return -len(request.prompt_token_ids), super()._rank(request)[1]

        def _admit(self, request: Any) -> None:
            super()._admit(request)
            request.rank = 0, request.rank[1]  # running requests are preempted by their arrival

    def next_few(number: int) -> type:
        def may_overtake(request: Any, skipped: list) -> bool:
            return request.rank[1] <= skipped[0].rank[1] + number

        return type(f"Next{number}", (base,), {"_may_overtake": staticmethod(may_overtake)})

    return {
        "strict": Strict,
        "anybody": Anybody,
        "best fit": BestFit,
        "16": WithoutRoom,
        "16, room": base,
        "4, room": next_few(4),
        "64, room": next_few(64),
    }


class NoText:
    """In the place of a tokenizer: tokens have no text."""

    end_of_text_id = -1

    def token_bytes(self, token_id: int, skip_special: bool = True) -> bytes:
        return b""


def make_request(number: int, prompt: list[int], max_tokens: int) -> Request:
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    return Request(str(number), None, prompt, params, 0, len(prompt) + max_tokens, NoText(), ())  # pyright: ignore[reportArgumentType]


def count(policy: type, workload: Workload, every: float) -> dict[str, float]:
    """What a run takes. every: how many steps pass on average before the next request comes."""
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
        "steps to the first token, mean": statistics.mean(waits.values()),
        "steps to the first token, most": max(waits.values()),
    }


def measure() -> dict[str, dict]:
    """Of each way to arrive, of each policy: the means over the seeds."""
    workloads = [make_workload("mixed", seed=seed) for seed in SEEDS]
    result = {}
    for name, every in ARRIVALS.items():
        counts = {policy: [count(cls, w, every) for w in workloads] for policy, cls in policies(Scheduler).items()}
        result[name] = {
            policy: {what: statistics.mean(one[what] for one in ones) for what in ones[0]}
            for policy, ones in counts.items()
        }
    return result


def seconds(rounds: int) -> dict[str, Any]:
    """The time of a run with all requests at once, over that of `strict` in the same round."""
    from bench.machine import describe
    from stage06_fast import LLM
    from stage06_fast import SamplingParams as Params

    llm = LLM(load_format="dummy", device="cpu", dtype="float32", num_blocks=NUM_BLOCKS, max_num_seqs=AT_ONCE)
    scheduler, workload = llm.engine.scheduler, make_workload("mixed")
    made = policies(type(scheduler))
    prompts = [prompt for prompt, _ in workload]
    params = [Params(temperature=0, max_tokens=n, ignore_eos=True) for _, n in workload]
    times: dict[str, list[float]] = {name: [] for name in ("strict", "16", "16, room")}
    for _ in range(rounds):
        for name, taken in times.items():
            scheduler.__class__ = made[name]
            scheduler.clear()  # and what the last run left in the prefix cache
            start = time.perf_counter()
            for _ in llm.stream(prompts, params):  # in the order of the workload
                pass
            taken.append(time.perf_counter() - start)
    ratios = {
        name: statistics.median(a / b for a, b in zip(taken, times["strict"], strict=True))
        for name, taken in times.items()
    }
    return {"ratios": ratios, "seconds": times, "rounds": rounds, "machine": describe(llm.engine.runner.device)}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, metavar="ROUNDS", help="take the time too, so often")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    result: dict[str, Any] = {"counts": measure()}
    for name, by_policy in result["counts"].items():
        print(name)
        for policy, figures in by_policy.items():
            print(f"  {policy:9}", ", ".join(f"{what} {value:,.1f}" for what, value in figures.items()))
    if args.seconds:
        result["time"] = seconds(args.seconds)
        print("seconds, of strict's:", {name: round(ratio, 3) for name, ratio in result["time"]["ratios"].items()})
    if args.json:
        write_result(args.json, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
