"""How many tokens to draft where `num_drafts` is "auto": a controller, which a first reading may skip.

If each draft token is accepted with probability a, a step with k of them gives 1 + a + a^2 + … + a^k tokens (Leviathan
et al. 2023, section 3). But a step with more rows takes longer. So each step gets the drafts that gain the most for
their time, by the measured costs of a step and the acceptance rates of the latest drafts.

The most means the largest product of the requests' speeds, so no request pays much for another's drafts (proportional
fairness: Kelly, Maulloo and Tan 1998, "Rate Control for Communication Networks"). The largest sum would give all drafts
to the request that is easiest to predict. The others would run slower, and end later, than without drafts.
"""

import itertools
import math
import weakref

from .drafters import Drafter, smoothed
from .request import Request
from .runner import Runner

TIMED_SIZES = (1, 2, 4, 8, 12, 16, 24, 32)  # tokens of the steps that are timed when the engine is made
MAX_TOKENS = TIMED_SIZES[-1]  # in a step with drafts; in a larger one, a draft token costs as much as a prompt's
PRIOR_RATE = 0.5  # the acceptance rate before anything was tried
MIN_SPEEDUP = 1.03  # the least predicted speedup that is worth drafting for: the predicted costs are incomplete
FEW_TRIES, NUM_PROBES = 8, 2  # one request gets 2 drafts until 8 have been tried, if good ones would pay
GOOD_RATE = 0.9  # the acceptance rate of a good drafter
LEAST_SECONDS = 1e-9  # a step's cost, even if the clock stands still
FORGET = 200  # a step without drafts moves their measured costs 1/200 of the way back to the first ones


class DraftPlanner:
    """Chooses the number of draft tokens of each request.

    Args:
        drafter: its drafts cost time too.
        runner: its model's steps are timed.

    Attributes:
        costs: seconds of a step.
        overall, by_request: acceptance rates.
    """

    def __init__(self, drafter: Drafter, runner: Runner):
        self.drafter, self.runner, self.costs = drafter, runner, Costs(runner.time_steps(TIMED_SIZES))
        self.first_draft_cost = drafter.draft_cost
        self.overall = Acceptance(100)
        self.by_request: weakref.WeakKeyDictionary[Request, Acceptance] = weakref.WeakKeyDictionary()

    def plan(self, max_drafts: dict[Request, int], num_tokens: int) -> dict[Request, int]:
        """Draft tokens per request, given each one's maximum and the step's other tokens."""
        if not self.drafter.draft_cost and self.can_pay(GOOD_RATE, len(max_drafts), num_tokens):
            found = self.drafter.draft(max_drafts)  # it is free, so see what it finds before choosing
            max_drafts = {request: len(found.get(request, ())) for request in max_drafts}
        counts = self.best_counts(max_drafts, num_tokens)
        for request in max_drafts.keys() - counts.keys():
            if request in self.by_request:
                self.by_request[request].decay(100)
        if not counts:
            self.overall.decay(500)
            load = self.costs.forget(num_tokens)
            self.drafter.draft_cost += (self.first_draft_cost * load - self.drafter.draft_cost) / FORGET
            counts = self.probe(max_drafts, num_tokens)
        return {request: counts.get(request, 0) for request in max_drafts}

    def update(self, drafts: dict[Request, list[int]], accepted: dict[Request, int]) -> None:
        """Learn from a step: how long it took, and how many of its draft tokens were accepted."""
        self.costs.add(*self.runner.last_step)
        for request, draft in drafts.items():
            num_accepted = accepted[request]
            num_tried = num_accepted + (num_accepted < len(draft) and not request.finished)
            self.by_request.setdefault(request, Acceptance(30)).add(num_accepted, num_tried)
            self.overall.add(num_accepted, num_tried)

    def best_counts(self, max_drafts: dict[Request, int], num_tokens: int) -> dict[Request, int]:
        """The draft tokens that gain the most."""
        overall = self.overall.rate(PRIOR_RATE, 2)
        rates = {r: self.by_request[r].rate(overall, 6) if r in self.by_request else overall for r in max_drafts}
        if not self.can_pay(max(rates.values(), default=0), len(max_drafts), num_tokens):
            return {}
        gains = []  # (logarithm of the speedup that the k-th draft token gives its request, k, request)
        for request, rate in rates.items():
            expected = 1.0  # tokens: 1 + a + a^2 + …, because the k-th counts only if all before it are accepted
            for k in range(1, max_drafts[request] + 1):
                gains.append((math.log1p(rate**k / expected), k, request))
                expected += rate**k
        ordered = sorted(gains, key=lambda gain: -gain[0])[: MAX_TOKENS - num_tokens]
        seconds, total_gain, deepest = self.costs.seconds, 0.0, 0
        best, num_best = math.log(MIN_SPEEDUP), 0
        for i, (gain, k, _) in enumerate(ordered, start=1):
            total_gain, deepest = total_gain + gain / len(max_drafts), max(deepest, k)
            slowdown = (seconds[num_tokens + i] + deepest * self.drafter.draft_cost) / seconds[num_tokens]
            speedup = total_gain - math.log(slowdown)
            if speedup > best:
                best, num_best = speedup, i
        counts: dict[Request, int] = {}
        for _, k, request in ordered[:num_best]:
            counts[request] = max(k, counts.get(request, 0))
        return counts

    def probe(self, max_drafts: dict[Request, int], num_tokens: int) -> dict[Request, int]:
        """A few draft tokens for one request, if good ones would pay and few have been tried: without a try, nothing is
        learned."""
        request = next((request for request, count in max_drafts.items() if count), None)
        tried = self.overall.num_tried >= FEW_TRIES
        if not request or tried or not self.can_pay(GOOD_RATE, len(max_drafts), num_tokens):
            return {}
        return {request: min(max_drafts[request], NUM_PROBES, MAX_TOKENS - num_tokens)}

    def can_pay(self, rate: float, num_requests: int, num_tokens: int) -> bool:
        """Whether some number of draft tokens would pay if each were accepted at this rate, independently of others.
        A quick test, which rules out drafts if many requests run."""
        seconds = self.costs.seconds
        if num_tokens > MAX_TOKENS:
            return False
        now = MIN_SPEEDUP * num_requests / seconds[num_tokens]
        return any(
            (num_requests + i * rate) / seconds[num_tokens + i] > now for i in range(1, len(seconds) - num_tokens)
        )


class Acceptance:
    """The acceptance rate of draft tokens, averaged over about the last `num_steps` steps with drafts."""

    def __init__(self, num_steps: int):
        self.num_steps, self.num_accepted, self.num_tried = num_steps, 0.0, 0.0

    def rate(self, prior: float, prior_weight: int) -> float:
        """The rate, where the assumption `prior` counts as `prior_weight` tries."""
        return (self.num_accepted + prior_weight * prior) / (self.num_tried + prior_weight)

    def add(self, num_accepted: int, num_tried: int) -> None:
        self.decay(self.num_steps)
        self.num_accepted, self.num_tried = self.num_accepted + num_accepted, self.num_tried + num_tried

    def decay(self, num_steps: int) -> None:
        """Forget one part in `num_steps`, so that failed drafts are tried again some day."""
        keep = 1 - 1 / num_steps
        self.num_accepted, self.num_tried = self.num_accepted * keep, self.num_tried * keep


class Costs:
    """Seconds of a step by its number of tokens: timed when the engine is made, and corrected by every step since that
    is no larger than the largest timed one. So they follow the machine's load and the length of the contexts.

    Attributes:
        measured: of the timed sizes; of two sizes, the larger one never has the lower cost.
        seconds: of all sizes up to the largest; [0] is not used.
    """

    def __init__(self, measured: dict[int, float]):
        self.first, largest = {}, LEAST_SECONDS
        for size in sorted(measured):
            self.first[size] = largest = max(largest, measured[size])
        self.measured = dict(self.first)
        self.seconds = interpolate(self.measured)

    def add(self, num_tokens: int, seconds: float) -> None:
        """Correct the measured size at or above a step's by its time, and each size that would then contradict it."""
        if 0 < num_tokens <= max(self.measured):
            size = next(size for size in self.measured if size >= num_tokens)
            ratio = max(seconds, LEAST_SECONDS) / self.seconds[num_tokens]
            cost = smoothed(self.measured[size], self.measured[size] * ratio)
            for other, known in self.measured.items():
                self.measured[other] = min(known, cost) if other < size else max(known, cost)
            self.measured[size] = cost
            self.seconds = interpolate(self.measured)

    def forget(self, num_tokens: int) -> float:
        """While steps have this size, and no drafts, larger ones are not measured. Let these return to what was timed
        first, times the present load, so that one busy moment does not end all drafts. Returns the load: the time of
        a step of this size, divided by its time at first."""
        size = next((size for size in self.measured if size >= num_tokens), max(self.measured))
        load = self.measured[size] / self.first[size]
        for larger in (other for other in self.measured if other > size):
            self.measured[larger] += (self.first[larger] * load - self.measured[larger]) / FORGET
        return load


def interpolate(measured: dict[int, float]) -> list[float]:
    """Values for all sizes from 0 to the largest, from those of some, in order; linear in between."""
    values = [0.0]
    for (low, at_low), (high, at_high) in itertools.pairwise([(0, values[0]), *measured.items()]):
        values += [at_low + (size - low) / (high - low) * (at_high - at_low) for size in range(low + 1, high + 1)]
    return values
