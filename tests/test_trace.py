"""What the engine counts, exactly: forward passes, tokens computed, padding, and the trace that the plots read."""

import pytest

from tests.adapter import STAGES, random_prompts

LENGTHS, OUTPUTS = [5, 12, 3, 9, 7], [4, 2, 6, 6, 1]


def run(stage, checkpoint, **arguments):
    known = {name: value for name, value in arguments.items() if stage.has_argument(name)}
    llm = stage.LLM(checkpoint, device="cpu", trace=True, **known)
    params = [stage.SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in OUTPUTS]
    outputs = llm.generate(random_prompts(211, LENGTHS), params)
    assert [len(output.outputs[0].token_ids) for output in outputs] == OUTPUTS
    return llm


def test_stats_are_the_sums_of_the_trace(stage, small_checkpoint):
    llm = run(stage, small_checkpoint, max_num_seqs=2)
    rows = [row for step in llm.trace for row in step.rows]
    assert llm.stats.num_forwards == len(llm.trace)
    assert llm.stats.num_tokens_computed == sum(row.num_tokens for row in rows)
    assert llm.stats.num_padding_tokens == sum(row.num_padding for row in rows)
    assert llm.stats.num_output_tokens == sum(OUTPUTS)
    assert llm.stats.num_requests == len(OUTPUTS)
    assert llm.stats.seconds == pytest.approx(sum(step.seconds for step in llm.trace))
    assert [step.step for step in llm.trace] == list(range(len(llm.trace)))
    starts = [step.start for step in llm.trace]
    assert starts == sorted(starts)


def test_phases(stage, small_checkpoint):
    """The pass that gives a request its first token is its prefill; every later one is a decode."""
    llm = run(stage, small_checkpoint, max_num_seqs=3)
    phases = {}
    for step in llm.trace:
        for row in step.rows:
            if row.num_tokens:
                phases.setdefault(row.request_id, []).append(row.phase)
    assert sorted(phases) == [str(i) for i in range(len(OUTPUTS))]
    for i, n in enumerate(OUTPUTS):
        assert phases[str(i)] == ["prefill"] + ["decode"] * (n - 1)


def test_no_trace_unless_asked(stage, small_checkpoint):
    llm = stage.LLM(small_checkpoint, device="cpu")
    llm.generate([[1]], stage.SamplingParams(max_tokens=1))
    assert llm.trace is None
    assert llm.stats.num_forwards == 1


def test_metrics(stage, small_checkpoint):
    outputs = stage.engine(small_checkpoint).generate(random_prompts(211, [4, 9]), stage.SamplingParams(max_tokens=5))
    for output in outputs:
        assert 0 < output.metrics.ttft <= output.metrics.e2e
        assert output.finished


def test_stage01_recomputes_everything(small_checkpoint):
    """A forward pass per token, each over the whole sequence: prompt, prompt + 1, prompt + 2 …"""
    llm = run(STAGES[0], small_checkpoint)
    assert llm.stats.num_forwards == sum(OUTPUTS)
    assert llm.stats.num_padding_tokens == 0
    expected = sum(prompt + i for prompt, n in zip(LENGTHS, OUTPUTS, strict=True) for i in range(n))
    assert llm.stats.num_tokens_computed == expected


@pytest.mark.parametrize("max_num_seqs", [1, 2, 5, 8])
@pytest.mark.parametrize("sort_by_length", [True, False])
def test_stage02_runs_every_batch_to_its_last_row(small_checkpoint, max_num_seqs, sort_by_length):
    """Each step computes the rectangle of its batch; what is no live row's own token in it is padding."""
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
