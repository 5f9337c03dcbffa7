"""What the engine counts, exactly: forward passes, tokens computed, padding, and the trace that the plots read."""

import json
import threading
import time

import pytest

import stagewise
from stagewise import tracing
from stagewise.replay.state import states
from stagewise.trace_file import Trace, check_step, lines_of, whole_step
from stagewise.tracing import free_blocks
from tests.adapter import STAGES, random_prompts, stages_that_change, unfinished
from tools.engines import traced

pytestmark = pytest.mark.covers(
    "engine.py", "batch.py", "scheduler.py", "block_manager.py", "support/stats.py", "support/outputs.py"
)
LENGTHS, OUTPUTS = [5, 12, 3, 9, 7], [4, 2, 6, 6, 1]
# What records is in stagewise/, for all stages: here without a scheduler, and with all that there is to record.
LAST = stages_that_change("engine.py")[-1]
first_and_last = pytest.mark.parametrize("stage", [STAGES[0], LAST], ids=str)
scheduled = pytest.mark.parametrize("stage", [STAGES[3], STAGES[4], LAST], ids=str)
paged = pytest.mark.parametrize("stage", [STAGES[4], LAST], ids=str)


def run(stage, checkpoint, **arguments):
    known = {name: value for name, value in arguments.items() if stage.has_option(name)}
    llm = stage.traced(checkpoint, **known)
    params = [stage.SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in OUTPUTS]
    outputs = llm.generate(random_prompts(211, LENGTHS), params)
    assert [len(output.outputs[0].token_ids) for output in outputs] == OUTPUTS
    return llm


def test_stats_are_the_sums_of_the_trace(stage, small_checkpoint):
    llm = run(stage, small_checkpoint, max_num_seqs=2)
    rows = [row for step in llm.trace for row in step.rows]
    assert llm.stats.num_forwards == len(llm.trace)
    assert llm.stats.num_tokens_computed == sum(row.num_tokens + len(getattr(row, "drafts", ())) for row in rows)
    if stage.number > 1:
        assert llm.stats.num_padding_tokens == sum(row.num_padding for row in rows)
    assert llm.stats.num_output_tokens == sum(OUTPUTS)
    assert llm.stats.num_requests == len(OUTPUTS)
    assert llm.stats.seconds >= sum(sum(step.parts.values()) for step in llm.trace) > 0
    assert [step.step for step in llm.trace] == list(range(len(llm.trace)))
    starts = [step.start for step in llm.trace]
    assert starts == sorted(starts)


def test_phases(stage, small_checkpoint):
    """The pass that gives a request its first token is its prefill; every later one is a decode."""
    llm = run(stage, small_checkpoint, max_num_seqs=3, **stage.one_by_one)
    phases = {}
    for step in llm.trace:
        for row in step.rows:
            if row.num_tokens:
                phases.setdefault(row.request_id, []).append(row.phase)
    assert sorted(phases) == [str(i) for i in range(len(OUTPUTS))]
    for i, n in enumerate(OUTPUTS):
        assert phases[str(i)] == ["prefill"] + ["decode"] * (n - 1)


@first_and_last
def test_a_trace_begins_and_ends_when_it_is_told_to(stage, small_checkpoint):
    """No part of the engine is wrapped before or after, and nothing is kept when nobody listens."""
    llm, params = stage.LLM(small_checkpoint, device="cpu"), stage.SamplingParams(max_tokens=3, ignore_eos=True)
    llm.generate([[1]], params)
    before = vars(llm.engine).keys() | vars(llm.engine.runner).keys()
    with stagewise.trace(llm) as trace:
        llm.generate([[1]], params)
        assert "step" in vars(llm.engine)
    llm.generate([[1]], params)
    assert [step.step for step in trace.records] == [0, 1, 2]
    assert tracing.recorders[llm.engine]._events == []
    assert vars(llm.engine).keys() | vars(llm.engine.runner).keys() == before
    again = stagewise.trace(llm)
    llm.generate([[1]], params)
    assert len(again.records) == 3
    assert len(trace.records) == 3


@first_and_last
def test_two_traces_of_one_engine(stage, small_checkpoint):
    """They come and go without each other."""
    llm, params = stage.LLM(small_checkpoint, device="cpu"), stage.SamplingParams(max_tokens=2, ignore_eos=True)
    first = stagewise.trace(llm)
    llm.generate([[1]], params)
    second = stagewise.trace(llm)
    llm.generate([[1]], params)
    first.close()
    llm.generate([[1]], params)
    assert [len(trace.records) for trace in (first, second)] == [4, 4]
    assert first.records[2:] == second.records[:2]
    second.close()
    llm.generate([[1]], params)
    assert len(second.records) == 4


def test_metrics(stage, small_checkpoint):
    outputs = stage.engine(small_checkpoint).generate(random_prompts(211, [4, 9]), stage.SamplingParams(max_tokens=5))
    for output in outputs:
        times = output.metrics
        assert 0 < times.ttft <= times.e2e == times.finished_time - times.arrival_time
        assert output.finished


@pytest.mark.parametrize("max_num_seqs", [1, 2, 8])
@pytest.mark.parametrize("sort_by_length", [True, False])
def test_stage02_runs_every_batch_to_its_last_row(small_checkpoint, max_num_seqs, sort_by_length):
    """Each step computes the rectangle of its batch; all of it except live rows' own tokens is padding."""
    llm = run(STAGES[1], small_checkpoint, max_num_seqs=max_num_seqs, sort_by_length=sort_by_length)
    order = sorted(range(5), key=lambda i: -LENGTHS[i]) if sort_by_length else list(range(5))
    steps = []
    for start in range(0, 5, max_num_seqs):
        batch = order[start : start + max_num_seqs]
        for step in range(max(OUTPUTS[i] for i in batch)):
            lengths = [LENGTHS[i] + min(step, OUTPUTS[i]) for i in batch]
            live = [step < OUTPUTS[i] for i in batch]
            tokens = [n if alive else 0 for n, alive in zip(lengths, live, strict=True)]
            steps.append([(str(i), t, max(lengths) - t) for i, t in zip(batch, tokens, strict=True)])
    traced = [[(row.request_id, row.num_tokens, row.num_padding) for row in step.rows] for step in llm.trace]
    assert traced == steps


def test_finished_rows_are_carried_not_sampled(small_checkpoint):
    stage = STAGES[1]
    with stage.recorded_logits() as sampled:
        llm = run(stage, small_checkpoint, max_num_seqs=5)
    assert len(sampled) == sum(OUTPUTS)
    carried = [row for step in llm.trace for row in step.rows if row.num_tokens == 0]
    assert len(carried) == 5 * max(OUTPUTS) - sum(OUTPUTS)
    assert all(row.num_padding > 0 for row in carried)


# --- What is told -------------------------------------------------------------------------------------------------


def events(steps, *kinds):
    return [event for step in steps for event in (*step.before, *step.after) if event["kind"] in kinds]


def test_every_token_is_told(stage, small_checkpoint):
    """The tokens of the events are the outputs; each request is queued first and finished last; all have a text."""
    llm = run(stage, small_checkpoint, max_num_seqs=2)
    made, kinds, known = {}, {}, set()
    for step in llm.trace:
        known |= step.texts.keys()
        for event in (*step.before, *step.after):
            if "request_id" in event and event["kind"] != "refused":
                kinds.setdefault(event["request_id"], []).append(event["kind"])
            if event["kind"] == "token":
                made.setdefault(event["request_id"], []).append(event["token_id"])
                assert event["token_id"] in known
    params = [stage.SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in OUTPUTS]
    expected = stage.engine(small_checkpoint, max_num_seqs=2).generate(random_prompts(211, LENGTHS), params)
    assert list(map(made.get, "01234")) == [output.outputs[0].token_ids for output in expected]
    assert all(kinds[str(i)] == ["queued", "admitted", *["token"] * n, "finished"] for i, n in enumerate(OUTPUTS))
    assert {event["reason"] for event in events(llm.trace, "finished")} == {"length"}
    queued = events(llm.trace, "queued")
    queued.sort(key=lambda event: event["request_id"])
    assert [event["prompt_token_ids"] for event in queued] == random_prompts(211, LENGTHS)
    assert {token_id for event in queued for token_id in event["prompt_token_ids"]} <= known


def test_rows_say_which_tokens_they_compute(stage, small_checkpoint):
    """From stage 3 on each position is computed once, in order; before, every step computes all from the start."""
    llm = run(stage, small_checkpoint, max_num_seqs=2, max_num_batched_tokens=7)
    computed = {}
    for row in (row for step in llm.trace for row in step.rows if row.num_tokens):
        num_right = getattr(row, "num_accepted", 0)  # guesses, which are computed behind the others
        computed.setdefault(row.request_id, []).append((row.start, row.num_tokens + num_right))
    for i, (length, num_output) in enumerate(zip(LENGTHS, OUTPUTS, strict=True)):
        if stage.number <= 2:
            assert computed[str(i)] == [(0, length + n) for n in range(num_output)]
        else:
            ends = [0, *(start + num_tokens for start, num_tokens in computed[str(i)])]
            assert [start for start, _ in computed[str(i)]] == ends[:-1]
            assert ends[-1] == length + num_output - 1


def test_parts_of_a_step(stage, small_checkpoint):
    """They make up the step, and come in the order of the work."""
    llm = run(stage, small_checkpoint)
    parts = (["schedule"] if stage.number >= 4 else []) + ["build", "forward", "sample", "commit"]
    parts[1:1] = ["draft"] if stage.number >= 7 else []
    for step in llm.trace:
        assert [part for part in parts if part in step.parts] == parts
        assert len(step.parts) == len(parts)
        assert min(step.parts.values()) >= 0
        assert sum(step.parts[part] for part in ("forward", "sample", "commit")) == pytest.approx(step.seconds, abs=0.1)


def test_where_the_keys_and_values_lie(small_checkpoint):
    """Slots in stages 3 and 4, block tables from stage 5 on, and every block is in a table or free."""
    for stage in STAGES[:2]:
        rows = [row for step in list(lines_of(run(stage, small_checkpoint).traced))[1:] for row in step["rows"]]
        assert all(row["slot"] is row["blocks"] is None for row in rows)
    for stage in STAGES[2:4]:
        for step in run(stage, small_checkpoint, max_num_seqs=3).trace:
            slots = [row.slot for row in step.rows]
            assert sorted(set(slots)) == sorted(slots)
            assert set(slots) <= {0, 1, 2}
    for stage in (STAGES[4], LAST):
        llm = run(stage, small_checkpoint, max_num_seqs=3, num_blocks=9, block_size=4)
        for state in states(Trace("made", llm.trace_header, list(lines_of(llm.traced))[1:])):
            held = {block for row in state.rows.values() for block in row["blocks"]}
            assert sorted([*held, *state.free]) == list(range(9))
        check_free_blocks(llm)


def check_free_blocks(llm):
    """The free list that follows from the events is the manager's."""
    *_, state = states(Trace("made", llm.trace_header, list(lines_of(llm.traced))[1:]))
    assert {"free": state.free, "num_findable": state.num_findable} == free_blocks(llm.engine.block_manager)


PROMPT, OTHER = random_prompts(211, [13, 13])


def greedy(stage, max_tokens):
    return stage.SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)


@paged
def test_hits_and_evictions_are_told(stage, small_checkpoint):
    llm = stage.traced(small_checkpoint, num_blocks=8, block_size=4, watermark=0.0)
    llm.generate([PROMPT], greedy(stage, 8))
    llm.generate([PROMPT], greedy(stage, 8))
    assert [event["num_cached_tokens"] for event in events(llm.trace, "admitted")] == [0, 12]
    assert not events(llm.trace, "evicted")
    free, num_findable = free_blocks(llm.engine.block_manager).values()
    assert num_findable
    num_steps = len(llm.trace)
    llm.generate([OTHER], greedy(stage, 8))
    evicted, taken = ([e["block"] for e in events(llm.trace[num_steps:], kind)] for kind in ("evicted", "taken"))
    assert evicted
    assert taken[: len(free)] == free[: len(taken)]  # those that can be found come last
    assert evicted == [block for block in taken if block in free[-num_findable:]]
    check_free_blocks(llm)


@paged
def test_preemptions_are_told(stage, small_checkpoint):
    llm = stage.traced(small_checkpoint, num_blocks=9, block_size=4, watermark=0.0)
    llm.generate([PROMPT, OTHER], greedy(stage, 8))
    preempted = events(llm.trace, "preempted")
    assert len(preempted) == llm.stats.num_preemptions > 0
    assert {event["request_id"] for event in preempted} == {"1"}


@paged
def test_completions_and_copies_are_told(stage, small_checkpoint):
    llm = stage.traced(small_checkpoint, block_size=4)
    llm.generate([PROMPT], stage.SamplingParams(n=3, max_tokens=4, seed=1, ignore_eos=True))
    assert [e["num_cached_tokens"] for e in events(llm.trace, "admitted")] == [0, 12, 12]
    assert [event["index"] for event in events(llm.trace, "queued")] == [0, 1, 2]
    llm = stage.traced(small_checkpoint, block_size=4)
    llm.beam_search([PROMPT], beam_width=3, max_tokens=4)
    copies = events(llm.trace, "copied")
    first = [event["index"] for event in copies if event["source"] == copies[0]["source"]]
    assert first == [0, 1]  # the last beam that holds the block writes in place


@scheduled
def test_why_the_head_of_the_queue_waits(stage, small_checkpoint):
    """The trace words the reason; the engine only says no."""
    prompts = random_prompts(211, [8, 8])

    def reason(**options):
        llm = traced(stage.stepper(small_checkpoint, **options, **stage.one_by_one))
        for i in range(2):
            llm.add_request(str(i), prompts[i], greedy(stage, 4))
        for _ in range(3):
            llm.step()
        told = events(llm.trace, "refused")
        return {name: value for name, value in told[0].items() if name not in ("kind", "index")} if told else None

    assert reason() is None
    assert reason(max_num_seqs=1) == {"request_id": "1", "reason": "running", "most": 1}
    assert reason(max_num_batched_tokens=8) == {"request_id": "1", "reason": "budget"}
    if stage.number > 4:
        pool = dict(block_size=4, num_blocks=4, watermark=0.25)
        assert reason(**pool) == {"request_id": "1", "reason": "blocks", "needed": 2, "free": 2, "reserve": 1}
        assert reason(**{**pool, "watermark": 0.0}) == {"request_id": "1", "reason": "preempted"}


@pytest.mark.covers("engine.py", "scheduler.py", "beam_search.py")
@paged
def test_beams_are_told(stage, small_checkpoint):
    """The tokens of the beams, followed from parent to child, end in the outputs that were cut by max_tokens."""
    llm = stage.traced(small_checkpoint)
    (prompt,) = random_prompts(211, [5])
    (output,) = llm.beam_search([prompt], beam_width=3, max_tokens=5)
    beams = [[]]
    for event in events(llm.trace, "beams"):
        if event["parents"]:
            beams = [[*beams[p], t] for p, t in zip(event["parents"], event["token_ids"], strict=True)]
    assert len(beams) == 3
    assert output.outputs[0].token_ids[:4] in beams
    assert [event["reason"] for event in events(llm.trace, "finished")] == ["beams"]
    assert [event["prompt_token_ids"] for event in events(llm.trace, "queued")] == [prompt]


def interrupt_third_step(monkeypatch, llm):
    forward, calls = llm.engine.runner.forward, []

    def failing(batch):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return forward(batch)

    monkeypatch.setattr(llm.engine.runner, "forward", failing)


@scheduled
def test_an_interrupted_step_is_told(stage, small_checkpoint, monkeypatch):
    """All requests wait again, with the tokens that they had."""
    llm = traced(stage.stepper(small_checkpoint))
    interrupt_third_step(monkeypatch, llm)
    llm.add_request("a", [1, 2, 3], greedy(stage, 5))
    outputs = []
    while llm.has_unfinished_requests():
        try:
            outputs += llm.step()
        except KeyboardInterrupt:
            outputs.append(None)
    assert outputs.count(None) == 1
    told = [event for step in llm.trace for event in (*step.before, *step.after)]
    at = [event["kind"] for event in told].index("restarted")
    (again,) = [event for event in told[at:] if event["kind"] == "queued"]
    tokens = [event["token_id"] for event in told if event["kind"] == "token"]
    assert tokens == outputs[-1].outputs[0].token_ids
    assert again["output_token_ids"] == tokens[:2]


@scheduled
def test_who_is_aborted_last_is_told_though_no_step_comes(stage, small_checkpoint):
    """Whenever the engine comes to rest there is a record without rows, and one only, for those that want it."""
    is_left = threading.Event()

    def until_it_is_left(prompt, output, logits):  # or the engine may have ended it before
        assert not output or is_left.wait(60)
        return logits

    params = stage.SamplingParams(max_tokens=100, ignore_eos=True, logits_processors=(until_it_is_left,))
    llm, trace = stage.LLM(small_checkpoint, device="cpu"), []
    tracing.look_on(llm, trace.append)
    stream = llm.stream([[1, 2, 3]], params)
    next(stream)
    stream.close()
    is_left.set()
    assert unfinished(llm) == []
    assert not trace[-1].rows
    llm.generate([[4, 5]], stage.SamplingParams(max_tokens=2, ignore_eos=True))
    rests = [step for step in trace if not step.rows]
    assert [event["reason"] for event in events(rests[:1], "finished")] == ["abort"]
    assert (rests[0].parts, rests[0].seconds) == ({}, 0.0)
    if stage.number >= 5:
        assert events(rests[:1], "released")  # its blocks are free
    assert len(rests) == 2
    assert trace[-1] is rests[1]
    assert not events(rests[1:], "finished")
    for number, step in enumerate(trace):
        check_step(json.loads(json.dumps(whole_step(step.to_dict()))), number)


@paged
def test_an_interrupted_beam_search_is_gone(stage, small_checkpoint, monkeypatch):
    llm = stage.traced(small_checkpoint)
    interrupt_third_step(monkeypatch, llm)
    with pytest.raises(KeyboardInterrupt):
        llm.beam_search([[1, 2, 3]], beam_width=2, max_tokens=6)
    llm.generate([[4, 5]], stage.SamplingParams(max_tokens=2, ignore_eos=True))
    *_, last = states(Trace("made", llm.trace_header, list(lines_of(llm.traced))[1:]))
    assert [completion.status for completion in last.completions.values()] == ["gone", "gone", "finished"]


@paged
def test_an_aborted_beam_search_has_finished(stage, small_checkpoint):
    """Its blocks are free again, as those of other requests are; what was cached can be found."""
    llm, steps = stage.traced(small_checkpoint), iter([False] * 3 + [True])
    llm.generate([list(range(40))], stage.SamplingParams(max_tokens=2, ignore_eos=True))
    requests = [llm.inputs.request(prompt, stage.SamplingParams(max_tokens=9)) for prompt in ([1, 2, 3], [4])]
    searches = stage.part("beam_search").make_searches(llm.engine, requests, 2, 1.0)
    llm.loop.call(lambda: llm.beams.run(searches, lambda: next(steps)))
    llm.generate([[4, 5]], stage.SamplingParams(max_tokens=2, ignore_eos=True))
    *_, last = states(Trace("made", llm.trace_header, list(lines_of(llm.traced))[1:]))
    assert {completion.status for completion in last.completions.values()} == {"finished"}
    assert {"free": last.free, "num_findable": last.num_findable} == free_blocks(llm.engine.block_manager)
    assert last.num_findable == 2


# --- The end ----------------------------------------------------------------------------------------------------------


def test_a_trace_ends_with_the_engine_at_rest(stage, small_checkpoint):
    """All are finished and no memory is held, in a record of its own; it is no forward pass, and is not counted."""
    llm = run(stage, small_checkpoint, max_num_seqs=2)
    header, *steps = json.loads(json.dumps(list(lines_of(llm.traced))))
    assert len(steps) == len(llm.trace) + 1 == llm.stats.num_forwards + 1
    for number, step in enumerate(steps):
        check_step(step, number)
    assert steps[-1]["rows"] == steps[-1]["before"] == steps[-1]["after"] == []
    assert not steps[-1]["kv_tokens_reserved"]
    *_, last = states(Trace("made", header, steps))
    assert {completion.status for completion in last.completions.values()} == {"finished"}
    assert not any(completion.blocks or completion.slot for completion in last.completions.values())


@scheduled
def test_a_trace_of_an_engine_that_is_not_done_has_no_such_end(stage, small_checkpoint):
    llm = traced(stage.stepper(small_checkpoint))
    llm.add_request("a", [1, 2, 3], greedy(stage, 5))
    llm.step()
    assert list(lines_of(llm.traced))[-1]["rows"]


@paged
def test_the_engine_rests_after_a_beam_search_not_in_it(stage, small_checkpoint):
    llm, records = stage.LLM(small_checkpoint, device="cpu"), []
    tracing.look_on(llm, records.append)
    llm.beam_search([[1, 2, 3]], beam_width=3, max_tokens=5)
    assert [bool(record.rows) for record in records] == [True] * 5 + [False]


@scheduled
def test_a_trace_of_an_engine_that_is_being_closed_ends_too(stage, small_checkpoint):
    """While its last requests still run, as when a server ends while somebody watches it."""
    with stage.AsyncLLM(model=str(small_checkpoint), device="cpu") as engine:
        trace = stagewise.trace(engine.llm)
        requests = [engine.llm.inputs.request([1, 2], stage.SamplingParams(max_tokens=40, ignore_eos=True))]
        engine.llm.loop.submit(requests, lambda *_: time.sleep(0.01))
        engine.llm.loop.close()
        trace.close()
    assert requests[0].finish_reason == "length"
    trace.close()  # its thread has ended
