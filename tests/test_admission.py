"""Which requests are admitted while the first in the queue waits for memory: few, only if they leave room, and none
starves.

The policy is that of stage 5's scheduler, run without a model. (Stage 6 has the same scheduler, which a test of the
staging ensures.) That tokens stay the same is tested with whole engines.
"""

import copy
import json
import random
import statistics

import pytest

from bench.admission import SEEDS, count, make_request, policies
from bench.run import rounded
from bench.workloads import make_workload
from stage05_paged.block_manager import BlockManager
from stage05_paged.policies import POLICIES
from stage05_paged.scheduler import AHEAD, SCORED, Scheduler
from stage05_paged.support.scoring import PromptLogprobs
from tests.adapter import ROOT, STAGES, random_prompts
from tools.engines import traced

pytestmark = pytest.mark.covers("scheduler.py", "policies.py", "block_manager.py")
SIZE = 4  # tokens in a block


class Run:
    """A scheduler, and what it did: which requests were admitted in which step, and which were preempted."""

    def __init__(
        self, num_blocks, policy="fcfs", at_once=64, caching=False, budget=10_000, watermark=0.0, chunked=True
    ):
        manager = BlockManager(num_blocks, SIZE, caching, watermark)
        self.scheduler = Scheduler(manager, at_once, budget, policy, chunked)
        self.scheduler.emit = self.emit
        self.admitted, self.preempted, self.refused, self.step, self.number = {}, [], [], 0, 0
        self.live = []

    def emit(self, kind, request=None, **details):
        if kind == "admitted":
            self.admitted.setdefault(request, self.step)
        elif kind == "preempted":
            self.preempted.append((self.step, request))
        elif kind == "refused":
            self.refused.append((self.step, request, details["reason"]))

    def add(self, blocks, max_tokens=8, priority=0, prompt=None, num_ahead=0):
        """A request whose prompt fills this many blocks."""
        self.number += 1
        one = make_request(self.number, prompt or [self.number] * (blocks * SIZE), max_tokens)
        one.priority, one.num_ahead = priority, num_ahead
        self.scheduler.add(one)
        self.live.append(one)
        return one

    def go(self, steps=1):
        for _ in range(steps):
            for request, num_tokens, ready in self.scheduler.schedule():
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


def test_the_next_go_ahead_of_the_head_of_the_line():
    """30 of 60 blocks are free, the first needs 40 and the next need 2: they run at once, and it when there is room."""
    run = Run(60)
    run.add(30, max_tokens=4)
    head, *others = run.add(40), run.add(2), run.add(35), run.add(2)
    run.go()
    assert [run.admitted.get(one) for one in (head, *others)] == [None, 0, None, 0]
    assert run.refused == [(0, head, "blocks")]  # the trace names who waits, once
    run.finish()
    assert run.admitted[head] == 4  # the step after the one that ran has ended, as if nobody had gone ahead


def test_only_those_that_came_right_after_it():
    run = Run(200)
    run.add(50, max_tokens=40)
    head = run.add(180)
    small = [run.add(1, max_tokens=2) for _ in range(2 * AHEAD)]
    run.go(10)
    assert [one in run.admitted for one in small] == [True] * AHEAD + [False] * AHEAD
    assert head not in run.admitted
    run.finish()
    assert run.admitted[head] == 40
    assert all(run.admitted[one] >= 40 for one in small[AHEAD:])


@pytest.mark.parametrize(("n", "overtakes"), [(AHEAD, True), (AHEAD + 1, False)])
def test_every_completion_counts(n, overtakes):
    """A request for many completions counts as that many when it overtakes, or does not overtake at all."""
    run = Run(200)
    run.add(50, max_tokens=40)
    head = run.add(180)
    many = make_request(100, [5] * SIZE, 4)
    many.group = [many, *(many.fork(index) for index in range(1, n))]
    run.scheduler.add(many)
    run.live.append(many)
    after = run.add(1)
    run.go()
    assert (many in run.admitted) == overtakes
    assert after not in run.admitted  # it came after more than AHEAD completions
    assert head not in run.admitted


@pytest.mark.parametrize(("number", "seen"), [(AHEAD - 1, True), (AHEAD, False)])
def test_only_so_many_are_passed(number, seen):
    """Also if they came before the first one, as under "fair": each of them costs time in each step."""
    run = Run(60, "fair")
    run.add(30, max_tokens=40)
    run.go()
    siblings = [*(make_request(100 + i, [i] * 31 * SIZE, 4) for i in range(number)), make_request(200, [7], 4)]
    for i, one in enumerate(siblings, start=1):
        one.num_ahead = 1000**i  # in this order
        run.scheduler.add(one)
    head = run.add(31)
    run.go()
    assert run.scheduler.waiting[0] is head
    assert (siblings[-1] in run.admitted) == seen


def test_whoever_goes_ahead_leaves_a_block_to_each_that_runs():
    run = Run(13)
    first = run.add(8, max_tokens=8)
    head = run.add(6)
    small = [run.add(1) for _ in range(4)]
    run.go()
    # 5 are free: 1 and a block for one that runs, then 1 and two. The third would leave 2, and 3 run.
    assert [one in run.admitted for one in (first, head, *small)] == [True, False, True, True, False, False]


@pytest.mark.parametrize("policy", POLICIES)
def test_nobody_starves(policy):
    """Small requests keep coming, faster than they end, and there would always be room for one of them."""
    run = Run(40, policy)
    for _ in range(3):
        run.add(8, max_tokens=20)
    head = run.add(30, max_tokens=6)
    overtook = []
    while not head.finished:
        for _ in range(3):
            run.add(1, max_tokens=12)
        before = set(run.admitted)
        run.go()
        if head not in run.admitted:
            overtook += [one for one in run.admitted if one not in before and int(one.request_id) > 4]
        assert run.step < 300
    if policy != "shortest":  # which ranks the short ones before it, as long as they do not come much later
        assert len(overtook) <= AHEAD
        assert all(int(one.request_id) <= 4 + AHEAD for one in overtook)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(6))
def test_random_runs(policy, seed):
    """All requests end, each step keeps the invariants, and none is overtaken by one that came much later."""
    rng = random.Random(seed)
    run = Run(24, policy, at_once=rng.choice([3, 8, 64]), caching=rng.random() < 0.5)
    places = {}
    for _ in range(120):
        if rng.random() < 0.6:
            size = rng.choice([1, 1, 1, 2, 8, 16])
            prompt = [rng.randrange(2)] * (size * SIZE - rng.randrange(SIZE))
            priority = rng.randrange(3) if policy == "priority" else 0
            one = run.add(size, max_tokens=rng.randrange(1, 24), priority=priority, prompt=prompt)
            places[one] = one.rank
        waiting = set(run.scheduler.waiting)
        seen = len(run.admitted)
        run.go()
        new = [one for one in list(run.admitted)[seen:] if one in waiting]
        left = waiting.intersection(run.scheduler.waiting)
        for one in new:
            for passed in [other for other in left if places[other] < places[one]]:
                assert one.priority == passed.priority
                assert places[one][1] <= places[passed][1] + AHEAD or policy in ("fair", "shortest")
        if run.live and rng.random() < 0.05:  # somebody leaves
            gone = rng.choice(run.live)
            gone.finish("abort")
            run.scheduler.remove(gone)
            run.live.remove(gone)
    run.finish()


def test_a_more_urgent_one_is_not_overtaken():
    run = Run(60, "priority")
    run.add(30, max_tokens=4, priority=1)
    head, less, same = run.add(40, priority=1), run.add(2, priority=2), run.add(2, priority=1)
    run.go()
    assert same in run.admitted
    assert less not in run.admitted
    run.finish()
    assert run.admitted[head] <= run.admitted[less]


def test_the_head_leaves():
    """It is aborted while it waits and others have gone ahead: the next is the head, and all end."""
    run = Run(60)
    run.add(30, max_tokens=20)
    head, small = run.add(40), run.add(2)
    next_head = run.add(45)
    run.go(2)
    assert small in run.admitted
    head.finish("abort")
    run.scheduler.remove(head)
    run.live.remove(head)
    run.go()
    assert run.refused[-1][1] is next_head
    run.finish()
    assert head not in run.admitted
    assert next_head in run.admitted


def test_the_trace_names_who_waits_after_a_preemption():
    run = Run(5)
    _, last = run.add(2), run.add(2)
    run.go(2)
    assert run.preempted == [(1, last)]
    assert run.refused == [(1, last, "preempted")]
    run.finish()


def test_under_fair_nobody_is_preempted_in_vain():
    """One that went ahead would be preempted for the first in every step, if that were no help; when it is, it is."""
    run = Run(60, "fair")
    first = run.add(30, max_tokens=8)
    run.go()
    head, small = run.add(31), run.add(2, max_tokens=40)
    run.go(6)
    assert run.admitted[small] == 1
    assert run.preempted == []
    run.finish()
    assert first.finished
    assert run.admitted[head] == 8  # the step after `first` had ended
    assert run.preempted == []  # 60 - 31 leaves room for the small one

    run = Run(60, "fair")
    run.add(30, max_tokens=8)
    run.go()
    head, small = run.add(58), run.add(2, max_tokens=40)
    run.finish()
    assert run.admitted[head] == 8
    assert run.preempted[0] == (8, small)


@pytest.mark.parametrize(("num_tokens", "left"), [(40, 0), (15, 0), (14, 1)])
def test_under_fair_nobody_is_preempted_for_want_of_tokens(num_tokens, left):
    """A prompt that ranks before both takes all tokens of a step, or leaves one: room is made for that alone."""
    run = Run(60, "fair", budget=8)
    last = run.add(1, max_tokens=40, num_ahead=1)
    run.go()
    run.add(10, max_tokens=1, prompt=[5] * num_tokens)
    newcomer = run.add(1)
    run.go(2)
    assert (newcomer in run.admitted, run.preempted) == (bool(left), [(2, last)] * left)
    run.finish()


def test_under_fair_a_scored_prompt_leaves_for_who_ranks_before_it():
    """It has fewer tokens left than fit into a step, but counts as many more."""
    run = Run(60, "fair", budget=8 * SCORED)
    scored = run.add(25, max_tokens=1, num_ahead=1)
    scored.prompt_logprobs = PromptLogprobs(100, 1, 0, scored.tokenizer)
    run.go(5)
    assert scored.num_computed_tokens == 5 * 8
    newcomer = run.add(1, max_tokens=1)
    run.go()
    assert newcomer.finished
    assert run.preempted == [(5, scored)]
    run.finish()


def test_under_fair_nobody_is_preempted_for_a_prompt_that_does_not_fit_whole():
    run = Run(60, "fair", budget=8, chunked=False)
    run.add(1, max_tokens=5)
    run.add(1, max_tokens=5, num_ahead=1)
    run.go()
    run.add(2, max_tokens=1)  # eight tokens, and the first takes one
    run.go(2)
    assert run.preempted == []
    run.finish()


def test_under_fair_one_may_have_all_blocks():
    """The part that is left free is for others that run; who ranks last leaves first, and only if it helps."""
    run = Run(10, "fair", watermark=0.2)
    run.add(1, max_tokens=20, num_ahead=1)
    run.go()
    newcomer = run.add(10, max_tokens=1)
    run.go()
    assert newcomer.finished
    assert [step for step, _ in run.preempted] == [1]
    run.finish()

    run = Run(10, "fair", watermark=0.2)
    for n in range(3):
        run.add(1, max_tokens=3, num_ahead=n)
    run.go()
    run.add(8, max_tokens=1)
    run.go()
    assert run.preempted == []  # with the two that rank after it there are eight, and two stay free
    run.finish()

    run = Run(10, "fair")
    _, last = (run.add(2, max_tokens=3, num_ahead=n) for n in (1, 2))
    run.go()
    newcomer = run.add(5, max_tokens=1)
    run.go()
    assert newcomer.finished
    assert run.preempted == [(1, last)]
    run.finish()


def test_fair_where_the_budget_is_short():
    """Eight tokens a step, and eight run that ask for a lot: a newcomer does not wait until one of them ends."""
    run = Run(60, "fair", budget=8)
    for number in range(8):
        one = make_request(number, [number] * SIZE, 60)
        one.num_ahead = number  # of one caller
        run.scheduler.add(one)
        run.live.append(one)
    run.go(12)
    newcomer = run.add(1, max_tokens=4)
    run.go(2)
    assert newcomer in run.admitted
    run.finish()


@pytest.mark.parametrize(("step", "next_one"), [(47, "another's"), (49, "second")])
def test_fair_counts_prompt_and_output(step, next_one):
    """Of a list, the second ranks as if it came when the first could have ended: 40 tokens of prompt, 8 of output."""
    run = Run(60, "fair", at_once=1)
    run.add(1, max_tokens=step + 1)
    second = make_request(100, [3] * 40, 8)
    second.num_ahead = 1
    run.scheduler.add(second)
    run.go(step)
    another = run.add(1)
    run.live.append(second)
    run.go(2)
    assert {"second": second, "another's": another}[next_one] in run.admitted
    assert len(run.admitted) == 2


@pytest.mark.parametrize("policy", POLICIES)
def test_where_the_completions_of_a_prompt_wait(policy):
    """Right after the first, before what came later; under "fair" when those before them could have ended."""
    run = Run(60, policy, at_once=1)
    first = make_request(0, [5] * SIZE, 8)
    first.group = [first, first.fork(1), first.fork(2)]
    run.scheduler.add(first)
    run.go()
    later = run.add(1)
    for child in first.group[1:]:
        run.scheduler.fork(first, child)
    assert run.scheduler.waiting == ([later, *first.group[1:]] if policy == "fair" else [*first.group[1:], later])
    number, arrival = first.rank
    lag = SIZE + 8 if policy == "fair" else 0
    assert [child.rank for child in first.group] == [(number + i * lag, arrival + i) for i in range(3)]
    assert later.rank[1] == arrival + 3


@pytest.mark.parametrize("seed", range(20))
def test_what_could_be_allocated(seed):
    """The answer is the same as if the others really gave their blocks back."""
    rng, answers = random.Random(seed), set()
    manager, running = BlockManager(10, SIZE, watermark=0.0), []
    for number in range(60):
        prompt = [rng.randrange(2)] * SIZE * rng.randrange(1, 6) + [9] * rng.randrange(3)
        one = make_request(number, prompt, 8)
        if running and rng.random() < 0.3:
            parent = rng.choice(running)
            one = make_request(number, parent.prompt_token_ids, 8)
            manager.fork(parent, one)
        elif manager.can_allocate(manager.num_blocks_to_allocate(one)):
            manager.allocate(one)
        else:
            manager.free(running.pop(rng.randrange(len(running))))
            continue
        manager.cache_full_blocks(one, one.num_tokens)
        running.append(one)
        wanted = make_request(99, [rng.randrange(2)] * SIZE * rng.randrange(1, 11), 8)
        others, reserve = rng.sample(running, rng.randrange(len(running) + 1)), rng.randrange(3)
        tried = copy.deepcopy((manager, others, wanted))
        for other in tried[1]:
            tried[0].free(other)
        expected = tried[0].can_allocate(tried[0].num_blocks_to_allocate(tried[2]), reserve)
        assert manager.could_allocate(wanted, others, reserve) == expected
        answers.add(expected)
    assert answers == {True, False}


@pytest.mark.parametrize("stage", STAGES[4:], ids=str)
@pytest.mark.parametrize("policy", POLICIES)
def test_the_tokens_are_the_same(stage, policy, small_checkpoint):
    """Requests of all sizes, some with several completions, in a pool where the long ones wait and others go ahead."""
    prompts = random_prompts(211, [40, 36, 5, 3, 44, 7, 2, 36, 4, 6])
    params = [
        stage.SamplingParams(n=1 + i % 3, max_tokens=6 + i, temperature=i % 2, seed=i, ignore_eos=True)
        for i in range(len(prompts))
    ]
    roomy = stage.LLM(small_checkpoint, device="cpu", max_num_seqs=32)
    expected = [[c.token_ids for c in output.outputs] for output in roomy.generate(prompts, params)]
    llm = traced(stage.stepper(small_checkpoint, block_size=4, num_blocks=16, max_num_seqs=16, policy=policy))
    finished, waiting = {}, list(enumerate(prompts))
    while waiting or llm.has_unfinished_requests():  # they come one by one, in every second step
        if waiting and llm.stats.num_forwards >= 2 * waiting[0][0]:
            i, prompt = waiting.pop(0)
            llm.add_request(str(i), prompt, params[i])
        finished |= {int(output.request_id): output for output in llm.step() if output.finished}
        llm.engine.scheduler.check_integrity()
    assert [[c.token_ids for c in finished[i].outputs] for i in range(len(prompts))] == expected
    kinds = [[event["kind"] for event in step.before if event["kind"] in ("refused", "admitted")] for step in llm.trace]
    assert any("admitted" in told[told.index("refused") :] for told in kinds if "refused" in told)


def test_the_committed_counts():
    """Counting again gives what chapter 5 says of two of the policies."""
    committed = json.loads((ROOT / "bench/results/admission.json").read_text())["counts"]["at once"]
    for name in ("nobody", "the next 16, keeping a free block per running request"):
        policy = policies(Scheduler)[name]
        counts = [count(policy, make_workload("mixed", seed=seed), 0) for seed in SEEDS]
        assert rounded({what: statistics.mean(one[what] for one in counts) for what in counts[0]}) == committed[name]


@pytest.mark.parametrize("damage", ["a block", "a request without", "a block without", "too many", "more than tokens"])
def test_the_integrity_check_can_fail(damage):
    run = Run(20, at_once=3, budget=20)
    run.add(2)
    run.add(2)
    run.go()
    scheduler = run.scheduler
    if damage == "a block":
        scheduler.block_manager.ref_counts[0] += 1
    elif damage == "a request without":
        scheduler.running.append(make_request(9, [1], 1))
    elif damage == "a block without":
        scheduler.running.pop()
    elif damage == "too many":
        scheduler.max_num_seqs = 1
    else:
        scheduler.max_num_batched_tokens = 1
    with pytest.raises(RuntimeError):
        scheduler.check_integrity()
