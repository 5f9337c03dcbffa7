"""From stage 4 on: requests join and leave at every step, in any order, and nothing is lost."""

import json
import math
import queue
import random
import time

import pytest
import torch

from stagewise.wrap import wrap
from tests.adapter import STAGES, random_prompts, unfinished
from tools.engines import traced

pytestmark = pytest.mark.covers("scheduler.py", "policies.py", "engine_loop.py", "engine.py")
NUMBERS = range(4, 9)  # of the stages that this runs on, see conftest.py
on_stage_4 = pytest.mark.parametrize("stage", STAGES[3:4], ids=str)


def workload(stage, count, seed=0, longest=25):
    """Prompts of unequal lengths with parameters of every kind; each has a seed, so it has one right answer."""
    rng = random.Random(seed)
    prompts = random_prompts(211, [rng.randrange(1, longest) for _ in range(count)], seed)
    kinds = [dict(temperature=0), dict(), dict(temperature=0.6, top_k=5), dict(top_p=0.8, repetition_penalty=1.2)]
    params = [
        stage.SamplingParams(**kinds[i % 4], seed=i, max_tokens=rng.randrange(1, 20), min_tokens=0)
        for i in range(count)
    ]
    return prompts, params


@pytest.fixture(scope="module")
def answers(small_checkpoint):
    """What stage 1 says to the workload, one request at a time."""
    stage = STAGES[0]
    outputs = stage.engine(small_checkpoint).generate(*workload(stage, 24))
    return [output.outputs[0].token_ids for output in outputs]


def check(llm):
    llm.engine.scheduler.check_integrity()
    for request in llm.engine.scheduler.running:
        assert 0 <= request.num_computed_tokens < len(request.token_ids) + 1


@pytest.mark.parametrize(
    ("policy", "budget"),
    [
        *(("fcfs", budget) for budget in (1, 2, 7, 64, 512)),
        ("priority", 7),
        ("priority", 64),
        ("shortest", 1),
        ("shortest", 64),
    ],
)
def test_arrivals_and_aborts_at_random_steps(stage, small_checkpoint, answers, policy, budget):
    """With any policy, budget and company: requests that finish say what they say alone, and all end exactly once."""
    prompts, params = workload(stage, 24)
    rng = random.Random(f"{policy} {budget}")
    options = dict(max_num_seqs=4, max_num_batched_tokens=budget, policy=policy)
    llm = traced(stage.stepper(small_checkpoint, **options))
    arriving, finished, aborted = list(range(24)), {}, set()
    while arriving or llm.has_unfinished_requests():
        while arriving and rng.random() < 0.3:
            i = arriving.pop(0)
            priority = rng.randrange(3) if policy == "priority" else 0
            llm.add_request(f"r{i}", prompts[i], params[i], priority=priority)
        if rng.random() < 0.03 and llm.unfinished:
            victim = rng.choice(sorted(llm.unfinished))
            llm.abort_request(victim)
            aborted.add(int(victim[1:]))
        for output in llm.step():
            if output.finished:
                assert output.request_id not in finished
                finished[int(output.request_id[1:])] = output.outputs[0].token_ids
        check(llm)
        assert sum(row.num_tokens for step in llm.trace[-1:] for row in step.rows) <= budget
    assert sorted([*finished, *aborted]) == list(range(24))
    assert all(answers[i] == token_ids for i, token_ids in finished.items())
    assert not llm.engine.scheduler.running
    assert llm.stats.num_padding_tokens == 0


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.soak)])
def test_many_requests_through_eight_slots(stage, small_checkpoint, count):
    prompts, params = workload(stage, count, seed=3, longest=8)
    llm = stage.LLM(small_checkpoint, device="cpu", max_num_seqs=8)
    outputs = llm.generate(prompts, params)
    assert [output.prompt_token_ids for output in outputs] == prompts
    assert all(output.finished for output in outputs)
    assert llm.stats.num_requests == count
    assert llm.stats.num_output_tokens == sum(len(output.outputs[0].token_ids) for output in outputs)
    check(llm)
    assert not unfinished(llm)
    some = random.Random(0).sample(range(count), 20)
    params = workload(STAGES[0], count, seed=3, longest=8)[1]
    alone = STAGES[0].engine(small_checkpoint).generate([prompts[i] for i in some], [params[i] for i in some])
    assert [outputs[i].outputs[0].token_ids for i in some] == [output.outputs[0].token_ids for output in alone]


# --- What the scheduler promises -------------------------------------------------------------------------------------


class FakeRequest:
    """What the scheduler reads of a request."""

    def __init__(self, prompt_len, priority=0):
        self.prompt_token_ids, self.priority = [0] * prompt_len, priority
        self.num_new_tokens = self.num_tokens = prompt_len
        self.slot, self.state = None, None
        self.token_ids, self.rank, self.index, self.first_scheduled_time = self.prompt_token_ids, None, 0, None
        self.num_cacheable = prompt_len - 1

    def cost(self, num_tokens):
        return num_tokens


def order_of_admission(stage, requests, policy, arrive_every=0):
    """One slot, each request runs for one step; request i arrives at step i * arrive_every."""
    scheduler = stage.make_scheduler(1, 10_000, policy, num_blocks=4000)
    for request in requests:
        request.rank = None
    order, arriving, step = [], list(requests), 0
    while arriving or scheduler.running or scheduler.waiting:
        while arriving and (requests.index(arriving[0]) * arrive_every <= step):
            scheduler.add(arriving.pop(0))
        for request, *_ in scheduler.schedule():
            order.append(requests.index(request))
            scheduler.remove(request)
        scheduler.check_integrity()
        step += 1
    return order


def test_policies(stage):
    requests = [FakeRequest(n, priority) for n, priority in [(9, 2), (3, 1), (5, 2), (3, 0), (1, 1)]]
    assert order_of_admission(stage, requests, "fcfs") == [0, 1, 2, 3, 4]
    assert order_of_admission(stage, requests, "priority") == [3, 1, 4, 0, 2]
    assert order_of_admission(stage, requests, "shortest") == [4, 1, 3, 2, 0]
    rank = stage.part("policies").policy_rank
    assert [rank("shortest", FakeRequest(17), 0), rank("shortest", FakeRequest(1), 3)] == [17, 1 + 3 * 16]


DAMAGE = {  # in which stages, and how
    "a slot is held twice": ((4,), lambda scheduler: setattr(scheduler.running[0], "slot", 1)),
    "a slot is held and free": ((4,), lambda scheduler: scheduler.free_slots.append(0)),
    "a slot is lost": ((4,), lambda scheduler: scheduler.free_slots.clear()),
    "more run than there are tokens": ((4, 5), lambda scheduler: setattr(scheduler, "max_num_batched_tokens", 1)),
    "more run than may": ((5,), lambda scheduler: setattr(scheduler, "max_num_seqs", 1)),
    "one without blocks runs": ((5,), lambda scheduler: scheduler.running.append(FakeRequest(1))),
    "one with blocks does not run": ((5,), lambda scheduler: scheduler.running.pop()),
    "the count of a block is wrong": ((5, 7), lambda scheduler: scheduler.block_manager.ref_counts.__setitem__(0, 9)),
    "a block is held and free": ((5, 7), lambda scheduler: scheduler.block_manager._free.update({0: None})),
    "a cached block has no key": ((5, 7), lambda scheduler: scheduler.block_manager._key_of.clear()),
}


@pytest.mark.covers("scheduler.py", "block_manager.py")
@pytest.mark.parametrize(
    ("stage", "what"),
    [(stage, what) for what, (numbers, _) in DAMAGE.items() for stage in STAGES if stage.number in numbers],
    ids=str,
)
def test_the_integrity_check_can_fail(stage, what):
    scheduler = stage.make_scheduler(3, 64, caching=True)
    for _ in range(2):
        scheduler.add(FakeRequest(5))
    scheduler.schedule()
    scheduler.max_num_batched_tokens = 2
    scheduler.check_integrity()
    DAMAGE[what][1](scheduler)
    with pytest.raises(RuntimeError):
        scheduler.check_integrity()


@on_stage_4
def test_who_comes_back_has_the_same_place(stage):
    scheduler, requests = stage.part("scheduler").Scheduler(1, 8, "fcfs"), [FakeRequest(n) for n in (3, 4, 5)]
    for request in requests:
        scheduler.add(request)
    scheduler.clear()
    for request in reversed(requests):
        scheduler.add(request)
    assert [requests.index(request) for request in scheduler.waiting] == [0, 1, 2]


@pytest.mark.covers("batch.py")
@on_stage_4
def test_a_batch_is_flat(stage):
    rows = []
    for slot, num_tokens, num_computed in ((2, 9, 0), (0, 5, 4), (3, 4, 1), (1, 8, 7)):
        request = stage.make_request(stage.SamplingParams(), range(num_tokens))
        request.slot, request.num_computed_tokens = slot, num_computed
        rows.append(stage.part("scheduler").Row(request, num_tokens - num_computed, True))
    batch = stage.part("batch").Batch.of(rows, torch.device("cpu"))
    assert batch.rows == rows
    assert batch.spans == [(0, 9, 2, 9), (9, 10, 0, 5), (10, 13, 3, 4), (13, 14, 1, 8)]
    assert batch.token_ids.tolist() == batch.positions.tolist() == [*range(9), 4, 1, 2, 3, 7]
    assert batch.slots.tolist() == [*[2] * 9, 0, *[3] * 3, 1]
    assert batch.logits_indices.tolist() == [8, 9, 12, 13]


@on_stage_4
def test_what_a_slot_held_before_is_not_read(stage, small_checkpoint):
    """Not even next to a longer sequence: it may be NaN, if the request before overflowed."""
    prompts, params = [[1, 2, 3], [4] * 30], stage.SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    llm = stage.LLM(small_checkpoint, device="cpu", max_num_seqs=2)
    expected = [output.outputs[0].token_ids for output in llm.generate(prompts, params)]
    llm.engine.runner.cache.data.fill_(float("nan"))
    assert [output.outputs[0].token_ids for output in llm.generate(prompts, params)] == expected


@pytest.mark.parametrize("prompt_len", [1, 17, 64, 500])
def test_the_shortest_policy_starves_nobody(stage, prompt_len):
    """A long prompt, and two of the shortest in every step, twice what the slot can do: it is overtaken by those that
    come within the bound, and by no others."""
    aging = stage.part("policies").AGING
    requests = [FakeRequest(prompt_len if i == 1 else 1) for i in range(200)]
    order = order_of_admission(stage, requests, "shortest", arrive_every=0.5)
    overtakers = order[: order.index(1)]
    late = [math.ceil(i / 2) - 1 for i in overtakers]  # steps after the long one's arrival
    assert max(late, default=0) <= prompt_len / aging
    assert len(overtakers) >= prompt_len / aging - 1  # and it is not first come, first served either


def test_priority_needs_its_policy(stage, small_checkpoint):
    with pytest.raises(ValueError, match="needs the policy 'priority'"):
        stage.engine(small_checkpoint).generate([[1]], priority=[3])
    llm = stage.traced(small_checkpoint, policy="priority", max_num_seqs=1)
    llm.generate([[1], [2], [3]], stage.SamplingParams(max_tokens=1), priority=[2, 0, 1])
    assert [step.rows[0].request_id for step in llm.trace] == ["1", "2", "0"]
    with pytest.raises(ValueError, match="2 prompts but 1 priorities"):
        llm.generate([[1], [2]], priority=[1])


@pytest.mark.covers("config.py")
def test_an_unknown_policy(stage):
    with pytest.raises(ValueError, match="policy"):
        stage.LLM(policy="random")


# --- The engine underneath ------------------------------------------------------------------------------------------


def test_what_ends_between_two_events_is_told_once(stage, small_checkpoint):
    """While nobody reads a stream, its requests go on, and end."""
    llm = stage.LLM(small_checkpoint, device="cpu", max_num_seqs=3)
    params = stage.SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    (expected,) = llm.generate([[3, 4]], params)
    stream, results = llm.stream([[1, 2], [3, 4]], params), llm.as_completed([[1, 2], [3, 4]], params)
    events = [next(stream)]
    llm.generate([[6]], params)
    events += list(stream)
    assert [event.index for event in events if event.finish_reason] in ([0, 1], [1, 0])
    assert [t for event in events if event.index == 1 for t in event.token_ids] == expected.outputs[0].token_ids
    indices = [next(results)[0]]
    llm.generate([[6]], params)
    assert sorted([*indices, *(index for index, _ in results)]) == [0, 1]


def test_aborting_a_request_that_a_stream_waits_for(stage, small_checkpoint):
    """Its stream ends with "abort"; the others go on."""
    llm = stage.LLM(small_checkpoint, device="cpu", max_num_seqs=2)
    wrap(llm.engine, "step", lambda step: time.sleep(0.05) or step())  # the engine waits for no reader
    events = llm.stream([[1, 2], [3, 4], [5]], stage.SamplingParams(max_tokens=6, ignore_eos=True))
    first = next(events)
    leaving = [request for request in unfinished(llm) if request.request_id != "1"]  # the last still waits
    llm.loop.abort(leaving)
    leaving.clear()  # it is the caller's
    reasons = {event.index: event.finish_reason for event in [first, *events] if event.finish_reason}
    assert reasons == {0: "abort", 1: "length", 2: "abort"}
    check(llm)


@pytest.mark.parametrize("broken", ["sample", "add"])
def test_a_step_that_fails_late_loses_no_slot(stage, small_checkpoint, monkeypatch, broken):
    """In the sampler or after it: the requests end, and every slot comes back."""
    where = stage.part("runner" if stage.number >= 6 else "engine")
    name = "sample_rows" if stage.number >= 6 else "sample"
    target, broken = (where, name) if broken == "sample" else (stage.part("request").Request, broken)
    llm = stage.LLM(small_checkpoint, device="cpu", max_num_seqs=2)
    with monkeypatch.context() as patch:
        patch.setattr(target, broken, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            llm.generate([[1], [2], [3]])
    assert not unfinished(llm)
    check(llm)
    (output,) = llm.generate([[1, 2]], stage.SamplingParams(max_tokens=3, ignore_eos=True))
    assert len(output.outputs[0].token_ids) == 3


@pytest.mark.parametrize(
    ("fails", "options", "num_steps"),
    [
        (lambda step: step % 2 == 0, {}, None),  # each other one gives a token
        (lambda step: step in (3, 5, 6), {}, 6),  # two in a row
        (lambda step: step % 2 == 0, {"max_num_batched_tokens": 1}, 4),  # and nobody gets a token in between
    ],
    ids=["each other one", "two in a row", "no token in between"],
)
def test_how_long_steps_that_fail_are_tried_again(stage, small_checkpoint, fails, options, num_steps):
    llm = stage.LLM(small_checkpoint, device="cpu", **stage.one_by_one, **options)
    params, steps = stage.SamplingParams(temperature=0, max_tokens=25, ignore_eos=True), []
    expected = llm.generate([[1, 2, 3]], params)[0].outputs

    def sometimes(step):
        steps.append(1)
        return 1 / 0 if fails(len(steps)) else step()

    wrap(llm.engine, "step", sometimes)
    if num_steps is None:
        assert llm.generate([[1, 2, 3]], params)[0].outputs == expected
        return
    for _ in range(2):  # the next caller is not told what the one before was
        steps.clear()
        with pytest.raises(ZeroDivisionError):
            llm.generate([[1, 2, 3]], params)
        assert len(steps) == num_steps


def test_a_caller_that_can_not_be_told_is_aborted(stage, small_checkpoint):
    llm, told = stage.LLM(small_checkpoint, device="cpu"), []
    params = stage.SamplingParams(max_tokens=30, ignore_eos=True)
    requests = [llm.inputs.request(prompt, params) for prompt in ([1], [2])]

    def callback(updated, error):
        told.append(([request.finish_reason for request in updated], str(error)))
        if len(told) == 1:
            raise KeyError("mine")

    llm.loop.submit(requests, callback)
    llm.generate([[3]], params)
    assert told == [([None] * 2, "None"), ([], "'mine'")]
    assert [request.finish_reason for request in requests] == ["abort"] * 2
    assert not unfinished(llm)
    check(llm)


def test_a_caller_that_can_not_be_told_while_steps_fail(stage, small_checkpoint, monkeypatch):
    """Its error ends its own requests, not the engine."""
    llm = stage.LLM(small_checkpoint, device="cpu")
    requests = [llm.inputs.request([1], stage.SamplingParams(max_tokens=most, ignore_eos=True)) for most in (1, 9)]
    forward, commit, told, steps = llm.engine.runner.forward, llm.engine.commit, queue.SimpleQueue(), []

    def fail_first(batch):
        steps.append(1)
        return 1 / 0 if len(steps) == 1 else forward(batch)

    def fail_late(*arguments):
        updated = commit(*arguments)
        return 1 / 0 if len(steps) == 2 else updated

    def callback(updated, error):
        told.put(error)
        if updated:
            raise KeyError("mine")

    monkeypatch.setattr(llm.engine.runner, "forward", fail_first)
    monkeypatch.setattr(llm.engine, "commit", fail_late)
    llm.loop.submit(requests, callback)
    assert [str(told.get(timeout=60)) for _ in range(2)] == ["None", "'mine'"]
    (output,) = llm.generate([[3]], stage.SamplingParams(max_tokens=2, ignore_eos=True))
    assert len(output.outputs[0].token_ids) == 2
    assert not unfinished(llm)
    check(llm)


def test_a_step_that_failed_does_not_end_the_wait(stage, small_checkpoint, monkeypatch):
    """The queue time ends with the step that computed something."""
    llm = stage.LLM(small_checkpoint, device="cpu")
    forward, moments = llm.engine.runner.forward, []

    def fail_first(batch):
        moments.append(time.perf_counter())
        return 1 / 0 if len(moments) == 1 else forward(batch)

    monkeypatch.setattr(llm.engine.runner, "forward", fail_first)
    (output,) = llm.generate([[1, 2]], stage.SamplingParams(max_tokens=2))
    assert output.metrics.first_scheduled_time > moments[0]


def test_thousands_of_requests_may_be_left_at_once(stage, small_checkpoint):
    """When their stream is closed, none of them waits or runs any more."""
    llm = stage.LLM(small_checkpoint, device="cpu", max_num_seqs=2)
    events = llm.stream([[1]] * 4_000, stage.SamplingParams(max_tokens=20, ignore_eos=True))
    next(events)
    events.close()
    assert not unfinished(llm)
    assert llm.engine.scheduler.waiting == []
    check(llm)


def test_priorities_in_a_batch_file(stage, tmp_path):
    lines = [{"prompt": "A fox", "id": i, "priority": p} for i, p in enumerate([2, 0, 1])] + [
        {"prompt": "A", "priority": "x"}
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    flags = ["--policy", "priority", "--max-num-seqs", "1", "--max-tokens", "2", "--quiet"]
    status, *_ = stage.main("--input", tmp_path / "in.jsonl", "--output", tmp_path / "out.jsonl", *flags)
    results = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert status == 1
    assert "priority must be a whole number" in results[0]["error"]
    assert [result["id"] for result in results[1:]] == [1, 2, 0]
    status, _, stderr = stage.main("--prompts", "a", "b", "--policy", "priority")
    assert status == 2
    assert "--policy priority needs --input" in stderr


def test_metrics(stage, small_checkpoint):
    llm = stage.LLM(small_checkpoint, device="cpu", max_num_seqs=1)
    outputs = llm.generate([[1, 2]] * 3, stage.SamplingParams(max_tokens=4, ignore_eos=True))
    for output in outputs:
        m = output.metrics
        assert 0 <= m.queue_time < m.ttft < m.e2e
        assert len(m.inter_token_latencies) == 3
        assert m.ttft + sum(m.inter_token_latencies) == pytest.approx(m.e2e)
    assert outputs[0].metrics.queue_time < outputs[1].metrics.queue_time < outputs[2].metrics.queue_time
    percentiles = llm.stats.latencies.percentiles()
    assert sorted(percentiles) == ["e2e", "itl", "queue_time", "ttft"]
    for values in percentiles.values():
        assert list(values) == ["p50", "p95", "p99"]
        assert values["p50"] <= values["p95"] <= values["p99"]


def test_closing_line_and_json(stage):
    status, _, stderr = stage.main("--prompts", "A fox", "One day", "--max-tokens", "5", "--stats")
    assert status == 0
    for name in (
        "time to first token:  p50 ",
        "inter-token latency:",
        "whole request:",
        "in the queue:",
        "p99 ",
        "tok/s",
    ):
        assert name in stderr
    status, stdout, stderr = stage.main("--prompts", "A fox", "One day", "--max-tokens", "5", "--json")
    assert status == 0
    summary = json.loads(stderr.strip().split("\n")[-1].split("\r")[-1])
    assert summary["requests"] == 2
    assert summary["ttft"]["p95"] > 0
    assert json.loads(stdout.split("\n")[0])["metrics"]["queue_time"] >= 0


@on_stage_4
def test_slots_by_memory(stage, small_checkpoint):
    slot = 48 * 2 * 2 * 48 * 4  # max_model_len x (key + value) x layers x n_embd x float32
    assert stage.LLM(small_checkpoint, device="cpu", kv_cache_bytes=3 * slot + 5).engine.runner.num_slots == 3
    assert stage.LLM(small_checkpoint, device="cpu", kv_cache_bytes=10**15).engine.runner.num_slots == 8
    with pytest.raises(ValueError, match=f"needs {slot:,} bytes of KV cache, kv_cache_bytes is {slot - 1:,}"):
        stage.LLM(small_checkpoint, device="cpu", kv_cache_bytes=slot - 1)
