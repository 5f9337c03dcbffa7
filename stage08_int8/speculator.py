"""How many tokens to draft, and how many were accepted (Leviathan et al. 2023, "Fast Inference from Transformers via
Speculative Decoding", section 3).

A request whose guesses are right with probability a, each by itself, gets 1 + a + a^2 + … + a^k tokens from a step with
k guesses. A step over more rows takes longer: by how much the engine has measured when it was made. What is worth most
for its time is chosen anew in every step, from how often the latest guesses were right.

Worth most is what makes the product of the requests' speeds largest, so that nobody pays much for another's guesses
(proportional fairness: Kelly, Maulloo and Tan 1998, "Rate Control for Communication Networks"). The largest sum would
give them all to whoever is guessed best; the others, slower than before, would be waited for in the end.
"""

import math
import weakref

from .block_manager import BlockManager
from .config import MOST_DRAFTS, EngineConfig
from .drafters import Drafter, DraftModel, PromptLookup
from .model import ModelConfig
from .request import Request
from .runner import Runner
from .scheduler import Row
from .support.logits_processors import end_token_ids

SIZES = (1, 2, 4, 8, 12, 16, 24, 32)  # of the steps that are timed when the engine is made, in tokens
MOST_TOKENS = 64  # of a step that has guesses, with "auto": in larger ones a token takes as long as one of a prompt
BEFORE = 0.5  # how likely a guess is right, before any was tried
MARGIN = 1.03  # guesses must promise so much: not all is in the costs
FEW_TRIES, PROBE = 8, 2  # one request gets so many guesses while so few were tried, if good ones would pay
GOOD = 0.9  # as likely as a good guess is right


class Acceptance:
    """How likely a guess is right, from the latest steps that had some: about so many."""

    def __init__(self, num_steps: int):
        self.num_steps, self.num_right, self.num_tried = num_steps, 0.0, 0.0

    def rate(self, before: float, weight: int) -> float:
        """`before` is what is assumed before anything has been tried, and counts as so many tries."""
        return (self.num_right + weight * before) / (self.num_tried + weight)

    def add(self, num_right: int, num_tried: int) -> None:
        self.forget(self.num_steps)
        self.num_right, self.num_tried = self.num_right + num_right, self.num_tried + num_tried

    def forget(self, num_steps: int) -> None:
        """One of so many: what has been in vain is tried again when it is forgotten."""
        keep = 1 - 1 / num_steps
        self.num_right, self.num_tried = self.num_right * keep, self.num_tried * keep


class Speculator:
    """Has a step's requests guessed, and remembers how that went.

    Args:
        config: the engine's options.
        runner: of the model, whose steps are timed.
        block_manager: gives guesses room.
        model_config, max_model_len: of the model.

    Attributes:
        drafter: who guesses; None if nobody does.
        costs: with "auto": what a step takes.
    """

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        block_manager: BlockManager,
        model_config: ModelConfig,
        max_model_len: int,
    ):
        self.block_manager, self.most_tokens = block_manager, config.max_num_batched_tokens
        self.num_drafts, self.vocab_size = config.num_drafts, model_config.vocab_size
        who = config.speculate
        self.drafter: Drafter | None = None
        if who == "auto":
            who = "ngram" if runner.device.type == "cpu" else "off"
        if who == "ngram":
            self.drafter = PromptLookup()
        elif who != "off":
            self.drafter = DraftModel(config, model_config, max_model_len)
        self.runner, self.costs = runner, Costs({1: 1.0, 2: 1.0})
        if self.drafter is not None and self.num_drafts == "auto":
            self.costs = Costs(runner.time_rows(SIZES))
        self.overall = Acceptance(100)
        self.of_request: weakref.WeakKeyDictionary[Request, Acceptance] = weakref.WeakKeyDictionary()

    def draft(self, rows: list[Row]) -> dict[Request, list[int]]:
        """What may follow in the requests of a step that are about to get a token, behind the one that they bring."""
        if self.drafter is None:
            return {}
        num_tokens, found, drafts = sum(row.num_tokens for row in rows), {}, {}
        rooms = {row.request: self.room(row.request) for row in rows if row.ready and row.request.output_token_ids}
        # Who guesses in no time does it first: what there is to choose from is known then.
        if self.num_drafts == "auto" and not self.drafter.seconds and self.can_pay(GOOD, len(rooms), num_tokens):
            found = self.drafter.draft(rooms)
            rooms = {request: len(found.get(request, ())) for request in rooms}
        counts, left = self.plan(rooms, num_tokens), self.most_tokens - num_tokens
        if any(counts.values()):
            found = found or self.drafter.draft(counts)
        for request, draft in found.items():
            draft = self.before_end(request, draft[: counts[request]])[:left]
            if draft := draft[: self.block_manager.extend(request, len(draft))]:
                drafts[request], left = draft, left - len(draft)
        return drafts

    def before_end(self, request: Request, draft: list[int]) -> list[int]:
        """The guesses before one that would end the output: the model says that by itself, and nothing follows it. Nor
        does anything follow what is no token."""
        ending, size = end_token_ids(request), self.vocab_size
        wrong = (i for i, token_id in enumerate(draft) if token_id in ending or not 0 <= token_id < size)
        return draft[: next(wrong, len(draft))]

    def plan(self, rooms: dict[Request, int], num_tokens: int) -> dict[Request, int]:
        """How many guesses each request is to have, of those that may have so many, beside so many tokens."""
        if isinstance(self.num_drafts, int):
            return {request: min(room, self.num_drafts) for request, room in rooms.items()}
        counts = self.best_counts(rooms, num_tokens)
        for request in rooms.keys() - counts.keys():
            if request in self.of_request:
                self.of_request[request].forget(100)
        if not counts:
            self.overall.forget(500)
            counts = self.probe(rooms, num_tokens)
        return {request: counts.get(request, 0) for request in rooms}

    @staticmethod
    def room(request: Request) -> int:
        """How many guesses a request may have: its last token need not be guessed."""
        return min(request.max_tokens - len(request.output_token_ids) - 1, MOST_DRAFTS)

    def best_counts(self, rooms: dict[Request, int], num_tokens: int) -> dict[Request, int]:
        """The guesses that are worth most, beside so many tokens that are none."""
        most = MOST_TOKENS - num_tokens
        overall = self.overall.rate(BEFORE, 2)
        rates = {r: self.of_request[r].rate(overall, 6) if r in self.of_request else overall for r in rooms}
        if not self.can_pay(max(rates.values(), default=0), len(rooms), num_tokens):
            return {}
        gains = []
        for request, rate in rates.items():
            expected = 1.0  # tokens: 1 + a + a^2 + …, since the k-th guess counts if all before it are right, too
            for k in range(1, rooms[request] + 1):
                gains.append((math.log1p(rate**k / expected), k, request))
                expected += rate**k
        ordered = sorted(gains, key=lambda gain: -gain[0])[:most]
        seconds, a_guess = self.costs.seconds, 0.0 if self.drafter is None else self.drafter.seconds
        faster, deepest, num_best = 0.0, 0, 0  # logarithms: their mean is that of the product's root
        best = math.log(MARGIN)
        for i, (gain, k, _) in enumerate(ordered, start=1):
            faster, deepest = faster + gain / len(rooms), max(deepest, k)
            speedup = faster - math.log((seconds[num_tokens + i] + deepest * a_guess) / seconds[num_tokens])
            if speedup > best:
                best, num_best = speedup, i
        counts: dict[Request, int] = {}
        for _, k, request in ordered[:num_best]:
            counts[request] = max(k, counts.get(request, 0))
        return counts

    def probe(self, rooms: dict[Request, int], num_tokens: int) -> dict[Request, int]:
        """A few guesses of one request where none seem to pay, if they would if they were good, and little is known:
        what is never tried is never learned."""
        request = next((request for request, room in rooms.items() if room), None)
        if not request or self.overall.num_tried >= FEW_TRIES or not self.can_pay(GOOD, len(rooms), num_tokens):
            return {}
        return {request: min(rooms[request], PROBE)}

    def can_pay(self, rate: float, num_requests: int, num_tokens: int) -> bool:
        """Whether there is any number of guesses that pays if each is right with this probability, whatever is before
        it: a quick look, which says no where many requests run."""
        seconds = self.costs.seconds
        if num_tokens > MOST_TOKENS:
            return False
        now = MARGIN * num_requests / seconds[num_tokens]
        return any(
            (num_requests + i * rate) / seconds[num_tokens + i] > now for i in range(1, len(seconds) - num_tokens)
        )

    def learn(self, drafts: dict[Request, list[int]], news: list[Request]) -> dict[Request, int]:
        """A step with these guesses has been done, and each request is in the news as often as it got a token: take
        back the blocks of wrong guesses. Returns how many were right."""
        accepted = {}
        if self.drafter is not None and self.num_drafts == "auto":
            self.costs.add(*self.runner.last)
        for request, draft in drafts.items():
            num_right = accepted[request] = max(0, news.count(request) - 1)
            num_tried = num_right + (num_right < len(draft) and not request.finished)
            self.of_request.setdefault(request, Acceptance(30)).add(num_right, num_tried)
            self.overall.add(num_right, num_tried)
            if not request.finished:
                self.block_manager.trim(request, request.num_computed_tokens)
        return accepted


class Costs:
    """Seconds of a step by its number of tokens: what was measured when the engine was made, corrected by every step
    since. So they are those of now: beside other programs, behind long contexts."""

    def __init__(self, measured: dict[int, float]):
        self.measured, self._num_added = measured, 0
        self.seconds = interpolated(measured, MOST_TOKENS)  # [0] is no step

    def add(self, num_tokens: int, seconds: float) -> None:
        """A step has taken so long. It counts for the next of the measured sizes."""
        if 0 < num_tokens <= max(self.measured):
            size = next(size for size in sorted(self.measured) if size >= num_tokens)
            ratio = seconds / self.seconds[num_tokens]
            self.measured[size] *= 1 + 0.1 * (min(max(ratio, 0.5), 2.0) - 1)  # an odd one shall not count for much
            self._num_added += 1
            if self._num_added % 8 == 0:
                self.seconds = interpolated(self.measured, MOST_TOKENS)


def interpolated(measured: dict[int, float], most: int) -> list[float]:
    """What has been measured of some sizes, for each size up to the largest: on straight lines, beyond the last too.
    More never takes less, whatever was measured."""
    sizes, values = sorted(measured), [0.0]
    for size in range(1, most + 1):
        i = next((i for i, one in enumerate(sizes) if one >= size), len(sizes) - 1) or 1
        low, high = sizes[i - 1], sizes[i]
        slope = (measured[high] - measured[low]) / (high - low)
        values.append(max(values[-1], measured[low] + slope * (size - low)))
    return values
