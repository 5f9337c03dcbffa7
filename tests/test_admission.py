"""Which requests are admitted while the first in the queue waits for memory: none, so none starves.

The policy is that of stage 5's scheduler, run without a model. (Stage 6 has the same scheduler, which a test of the
staging ensures.) That tokens stay the same is tested with whole engines.
"""

import random

import pytest

from stage05_paged.block_manager import BlockManager
from stage05_paged.config import POLICIES
from stage05_paged.request import Request
from stage05_paged.scheduler import Scheduler
from stage05_paged.support.sampling_params import SamplingParams

pytestmark = pytest.mark.covers("scheduler.py", "policies.py", "block_manager.py")
SIZE = 4  # tokens in a block


class NoText:
    """Takes the place of a tokenizer: tokens have no text."""

    def token_bytes(self, token_id: int, skip_special: bool = True) -> bytes:
        return b""


def make_request(number: int, prompt: list[int], max_tokens: int) -> Request:
    params, tokenizer = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True), NoText()
    return Request(str(number), None, prompt, params, 0, len(prompt) + max_tokens, tokenizer, ())  # pyright: ignore


class Run:
    """A scheduler, and what it did: which requests were admitted in which step, and which were preempted."""

    def __init__(self, num_blocks, policy, at_once=64, caching=False):
        manager = BlockManager(num_blocks, SIZE, caching)
        self.scheduler = Scheduler(manager, at_once, 10_000, policy, 0.0)
        self.admitted, self.preempted, self.step, self.number = {}, [], 0, 0
        self.live = []

    def add(self, blocks, max_tokens=8, priority=0, prompt=None):
        """A request whose prompt fills this many blocks."""
        self.number += 1
        one = make_request(self.number, prompt or [self.number] * (blocks * SIZE), max_tokens)
        one.priority = priority
        self.scheduler.add(one)
        self.live.append(one)
        return one

    def go(self, steps=1):
        for _ in range(steps):
            counts = {one: one.num_preemptions for one in self.live}
            rows = self.scheduler.schedule()
            self.preempted += [(self.step, one) for one, count in counts.items() if one.num_preemptions > count]
            self.admitted |= {one: self.step for one in self.scheduler.running if one not in self.admitted}
            for request, num_tokens, ready in rows:
                request.num_computed_tokens += num_tokens
                if ready:
                    request.add(7)
                    if request.finished:
                        self.scheduler.remove(request)
            self.scheduler.check_integrity()
            self.live = [one for one in self.live if not one.finished]
            self.step += 1

    def finish(self, most=10_000):
        while self.live:
            assert self.step < most
            self.go()


@pytest.mark.parametrize("policy", POLICIES)
def test_nobody_starves(policy):
    """Small requests keep coming, faster than they end, and there would always be room for one of them."""
    run = Run(40, policy)
    for _ in range(3):
        run.add(8, max_tokens=20)
    head = run.add(30, max_tokens=6)
    while not head.finished:
        for _ in range(3):
            run.add(1, max_tokens=12)
        run.go()
        assert run.step < 300
    if policy != "shortest":  # which ranks short prompts first, as long as they do not come much later
        assert all(run.admitted[one] >= run.admitted[head] for one in run.admitted if int(one.request_id) > 4)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(6))
def test_random_runs(policy, seed):
    """All requests end, each step keeps the invariants, and they are admitted in the order of their ranks."""
    rng = random.Random(seed)
    run = Run(24, policy, at_once=rng.choice([3, 8, 64]), caching=rng.random() < 0.5)
    ranks = {}
    for _ in range(120):
        if rng.random() < 0.6:
            size = rng.choice([1, 1, 1, 2, 8, 16])
            prompt = [rng.randrange(2)] * (size * SIZE - rng.randrange(SIZE))
            priority = rng.randrange(3) if policy == "priority" else 0
            one = run.add(size, max_tokens=rng.randrange(1, 24), priority=priority, prompt=prompt)
            ranks[one] = one.rank
        waiting = set(run.scheduler.waiting)
        run.go()
        left = waiting.intersection(run.scheduler.waiting)
        assert max((ranks[one] for one in waiting - left), default=(-1,)) <= min(map(ranks.get, left), default=(1e9,))
        if run.live and rng.random() < 0.05:  # somebody leaves
            gone = rng.choice(run.live)
            gone.finish("abort")
            run.scheduler.remove(gone)
            run.live.remove(gone)
    run.finish()


def test_a_step_that_preempts_admits_nobody():
    """The blocks of the preempted request would do for the first in the queue: it gets them in the next step."""
    run = Run(8, "priority")
    run.add(3, priority=0)
    last = run.add(4, priority=1)
    run.go()
    head = run.add(3, priority=0)
    run.go(2)
    assert run.preempted == [(1, last)]
    assert run.admitted[head] == 2
    run.finish()
