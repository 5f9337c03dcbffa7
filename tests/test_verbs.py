"""The verbs of the loop and their parts, each by itself: input and result are written by hand or Hugging Face's. The
exercises' milestones begin with these, so that a failure is about one function."""

from collections import deque

import pytest
import torch
from transformers import GPT2LMHeadModel

from tests.adapter import STAGES, random_prompts

CPU = torch.device("cpu")
A, B = [7, 4, 1, 9], [3, 8]  # prompts of four tokens and of two


def on(*numbers):
    return pytest.mark.parametrize("stage", [STAGES[number - 1] for number in numbers], ids=str)


def make(stage, prompt, output=(), **params):
    """A request with this output so far."""
    return stage.make_request(stage.SamplingParams(**{"temperature": 0, "max_tokens": 9, **params}), prompt, output)


@pytest.fixture(scope="module")
def theirs(small_checkpoint):
    return GPT2LMHeadModel.from_pretrained(small_checkpoint).eval()


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.inference_mode():
        yield


def core_of(stage, checkpoint, **options):
    """An Engine whose attention is in torch, and without a thread."""
    options = {"attention_backend": "torch", **options}
    return stage.part("engine").Engine(
        stage.EngineConfig(
            str(checkpoint), device="cpu", **{key: value for key, value in options.items() if stage.has_option(key)}
        )
    )


def check_logits(got, model, sequences):
    """Row i has the logits after the last token of sequence i."""
    assert tuple(got.shape) == (len(sequences), model.config.vocab_size)
    longest = max(map(len, sequences))
    for i, (row, sequence) in enumerate(zip(got, sequences, strict=True)):
        expected = model(torch.tensor([sequence])).logits[0, -1]
        what = f"logits {i}, after {len(sequence)} tokens (the longest sequence has {longest})"
        torch.testing.assert_close(row, expected, rtol=0, atol=1e-3, msg=lambda m, what=what: f"{what}: {m}")


# --- Stage 1: the model, from the inside out --------------------------------------------------------------------------


@on(1)
def test_heads_are_pieces_of_a_vector(stage, small_checkpoint):
    attention = core_of(stage, small_checkpoint).runner.model.h[0].attn
    x = torch.arange(96.0).view(2, 48)  # two tokens, three heads of 16
    assert attention._split_heads(x).tolist() == [
        [x[t, h * 16 : h * 16 + 16].tolist() for t in (0, 1)] for h in (0, 1, 2)
    ]


@on(1)
@pytest.mark.parametrize("part", ["attn", "mlp", "layer"])
def test_parts_of_the_model(stage, small_checkpoint, theirs, part):
    """A causal attention layer, a feed-forward layer with the tanh form of GELU, and both added to their input."""
    ours, reference = core_of(stage, small_checkpoint).runner.model.h[1], theirs.transformer.h[1]
    x, visible = torch.randn(7, 48, generator=torch.Generator().manual_seed(0)), torch.ones(7, 7).tril().bool()
    if part == "mlp":
        got, expected = ours.mlp(x), reference.mlp(x[None])
    elif part == "attn":
        got, expected = ours.attn(x, visible), reference.attn(x[None])
    else:
        got, expected = ours(x, visible), reference(x[None])
    expected = expected[0] if isinstance(expected, tuple) else expected
    torch.testing.assert_close(got, expected.view(7, 48), rtol=0, atol=1e-4)


@on(1)
@pytest.mark.parametrize("length", [1, 9, 48])
def test_the_model(stage, small_checkpoint, theirs, length):
    """The logits after the last token, up to the longest sequence."""
    (prompt,) = random_prompts(211, [length])
    check_logits(core_of(stage, small_checkpoint).runner.model(torch.tensor(prompt))[None], theirs, [prompt])


@on(1)
def test_batch_of_one_sequence(stage):
    """Prompt and output: nothing is kept from the step before."""
    assert stage.part("batch").Batch.of(make(stage, A, [5, 2]), CPU).token_ids.tolist() == [*A, 5, 2]


@on(1)
def test_forward_of_one_sequence(stage, small_checkpoint, theirs):
    batch = stage.part("batch").Batch.of(make(stage, A, [5, 2]), CPU)
    check_logits(core_of(stage, small_checkpoint).runner.forward(batch)[None], theirs, [[*A, 5, 2]])


# --- Stages 2 and 3: a rectangle --------------------------------------------------------------------------------------


@on(2)
def test_batch_is_a_rectangle(stage):
    """Padded on the left; a row that has ended is not live. (Its tokens may stay or become padding.)"""
    ended = make(stage, B, [5])
    ended.finish("length")
    batch = stage.part("batch").Batch.of([make(stage, A), make(stage, B), ended], CPU)
    assert (batch.token_ids[0].tolist(), batch.token_ids[1, 2:].tolist()) == (A, B)
    assert batch.num_padding[:2].tolist() == [0, 2]
    assert (batch.live_rows, len(batch.live)) == ([0, 1], 2)
    assert (batch.num_tokens, batch.num_padding_tokens) == (6, 6), "a row that has ended is padding"


@on(2)
def test_forward_of_a_rectangle(stage, small_checkpoint, theirs):
    """A row of logits for each live row, as if it were alone."""
    prompts = random_prompts(211, [9, 3, 1, 5])
    requests = [make(stage, prompt) for prompt in prompts]
    requests[2].finish("length")
    got = core_of(stage, small_checkpoint).runner.forward(stage.part("batch").Batch.of(requests, CPU))
    check_logits(got, theirs, [prompts[0], prompts[1], prompts[3]])


@on(3)
def test_update_returns_all_columns_as_views(stage):
    cache = stage.part("kv_cache").KVCache(2, 1, 2, 8, 4, torch.float32, CPU)
    first, second = torch.arange(48.0).view(2, 1, 2, 3, 4), torch.arange(100.0, 116.0).view(2, 1, 2, 1, 4)
    cache.update(1, *first)
    assert cache.length == 0, "the model moves it, when all layers have written"
    cache.length = 3
    for got, expected in zip(cache.update(1, *second), torch.cat([first, second], dim=3), strict=True):
        assert torch.equal(got, expected)
        assert got.untyped_storage().data_ptr() == cache.data.untyped_storage().data_ptr(), "a copy, not a view"


@on(3)
def test_batch_takes_what_is_not_in_the_cache(stage):
    """The prompts, then the last token of each row; any token for a row that failed before its first."""
    cache = stage.part("kv_cache").KVCache(2, 2, 3, 9, 16, torch.float32, CPU)
    batch = stage.part("batch").Batch.of([make(stage, A), make(stage, B)], cache, CPU)
    assert (batch.token_ids[0].tolist(), batch.token_ids[1, 2:].tolist()) == (A, B)
    assert (batch.num_padding.tolist(), batch.is_prefill) == ([0, 2], True)
    assert (batch.num_tokens, batch.num_padding_tokens) == (6, 2)
    cache.length, failed = 4, make(stage, B)
    failed.add_or_fail(ValueError("no logit is finite"))
    batch = stage.part("batch").Batch.of([make(stage, A, [6, 5]), failed], cache, CPU)
    assert (tuple(batch.token_ids.shape), batch.token_ids[0].tolist()) == ((2, 1), [5])
    assert (batch.num_padding.tolist(), batch.is_prefill, batch.live_rows) == ([0, 2], False, [0])
    assert (batch.num_tokens, batch.num_padding_tokens) == (1, 1)


@on(3)
def test_forward_goes_on_from_the_cache(stage, small_checkpoint, theirs):
    """A prefill and two decodes, by rows of unequal lengths."""
    core, prompts = core_of(stage, small_checkpoint), random_prompts(211, [9, 3])
    requests, cache = [make(stage, prompt) for prompt in prompts], core.runner.new_cache(2, 12)
    for tokens in ([], [5, 6], [7, 8]):
        for request, token in zip(requests, tokens, strict=False):
            request.output_token_ids.append(token)
        got = core.runner.forward(stage.part("batch").Batch.of(requests, cache, CPU))
        check_logits(got, theirs, [request.token_ids for request in requests])
    assert cache.length == 11


# --- Commit, and the order in which requests run ----------------------------------------------------------------------


@on(1, 2, 4)
def test_commit(stage, small_checkpoint):
    """Each unfinished request gets its token or its error, and may end; these requests are returned.
    The step is counted; in stage 4 with the memory of the requests that end."""
    core, of = core_of(stage, small_checkpoint), stage.part("batch").Batch.of
    requests, ended = [make(stage, A, max_tokens=1), make(stage, B)][: 1 if stage.number == 1 else 2], make(stage, B)
    ended.finish("length")
    if stage.number == 4:
        for request in requests:
            core.add(request)
    rows = {1: requests[0], 2: [ended, *requests]}.get(stage.number) or core.scheduler.schedule()
    tokens = (42, None) if stage.number == 1 else [(42, None), ValueError("no token")]
    names = {ended: "ended", **dict(zip(requests, ("first", "second"), strict=False))}
    updated = core.commit(of(rows, CPU), tokens)
    assert [names[request] for request in updated] == ["first", "second"][: len(requests)]
    assert requests[0].output_token_ids == [42]
    assert [request.finish_reason for request in requests] == ["length", "error"][: len(requests)]
    assert (core.stats.num_forwards, core.stats.num_output_tokens) == (1, 1)
    assert core.stats.num_requests == (stage.number < 4)  # from stage 4 on, the thread counts those that have ended
    if stage.number == 4:
        assert [request.num_computed_tokens for request in requests] == [4, 2]
        assert (core.stats.kv_tokens_used, core.stats.kv_tokens_reserved) == (6, 2 * core.max_model_len)
        assert len(core.scheduler.running) == 0, "requests that have ended still run"


@on(1, 2, 3, 4, 5)
def test_what_is_computed(stage, small_checkpoint):
    """Tokens that go through the model, and steps, for outputs of unequal lengths. Stages 1 and 2 compute a sequence
    again for each token; stages 2 and 3 carry rows until the last one ends; from 4 on a request leaves at once."""
    prompts, lengths = random_prompts(211, [5, 12, 3, 9, 1, 20]), [4, 2, 6, 9, 1, 3]
    params = [stage.SamplingParams(temperature=0, ignore_eos=True, max_tokens=n) for n in lengths]
    llm = stage.LLM(str(small_checkpoint), device="cpu", **({"max_num_seqs": 2} if stage.number > 1 else {}))
    outputs = llm.generate(prompts, params)
    assert [len(output.outputs[0].token_ids) for output in outputs] == lengths
    again = sum(len(prompt) * n + n * (n - 1) // 2 for prompt, n in zip(prompts, lengths, strict=True))
    once = sum(len(prompt) + n - 1 for prompt, n in zip(prompts, lengths, strict=True))
    assert llm.stats.num_tokens_computed == (again if stage.number <= 2 else once)
    # Batches of the longest prompts first: (20, 12), (9, 5), (3, 1). From stage 4 on, two slots are filled greedily.
    assert llm.stats.num_forwards == {1: sum(lengths), 2: 3 + 9 + 6, 3: 3 + 9 + 6}.get(stage.number, 13)
    if stage.number not in (2, 3):
        assert llm.stats.num_padding_tokens == 0


@on(2, 3)
@pytest.mark.parametrize("sort", [True, False])
def test_run_takes_the_longest_prompts_first(stage, small_checkpoint, sort):
    """Batches of at most `max_num_seqs`: the longest prompts first, or without `sort_by_length` in the given order."""
    core = core_of(stage, small_checkpoint, max_num_seqs=2, sort_by_length=sort)
    requests = [make(stage, prompt, max_tokens=1) for prompt in (B, [5], A)]
    got = [[requests.index(one) for one in updated] for updated in core.run(deque(requests))]
    assert got == ([[2, 0], [1]] if sort else [[0, 1], [2]])


# --- From stage 4 on: rows that the scheduler picks -------------------------------------------------------------------


def add(stage, scheduler, *lengths):
    """Requests with prompts of these lengths, and two tokens of output, in the queue."""
    requests = [make(stage, range(1, length + 1), max_tokens=2) for length in lengths]
    for request in requests:
        scheduler.add(request)
    return requests


def step(scheduler, requests):
    """The rows of a step as (request, tokens, whether it is ready), after which the tokens are there."""
    rows = scheduler.schedule()
    for request, num_tokens, ready in rows:
        request.num_computed_tokens += num_tokens
        if ready:
            request.add(11)
        if request.finished:
            scheduler.remove(request)
    scheduler.check_integrity()
    return [("ABCD"[requests.index(request)], num_tokens, ready) for request, num_tokens, ready in rows]


@on(4, 5)
def test_the_four_steps_of_the_chapter(stage):
    """Prompts of 4, 6 and 2 tokens, two at once, six tokens a step, two tokens of output each."""
    scheduler = stage.make_scheduler(2, 6)
    requests = add(stage, scheduler, 4, 6, 2)
    assert step(scheduler, requests) == [("A", 4, True), ("B", 2, False)]  # B's prompt is cut
    assert step(scheduler, requests) == [("A", 1, True), ("B", 4, True)]  # decodes first; C has to wait
    assert step(scheduler, requests) == [("B", 1, True), ("C", 2, True)]  # A has ended
    assert step(scheduler, requests) == [("C", 1, True)]
    assert scheduler.schedule() == []
    assert scheduler.num_steps == 5


@on(4, 5)
@pytest.mark.parametrize(
    ("lengths", "rows"),
    [
        ((4, 2, 2), [("A", 4, True), ("B", 2, True)]),  # no token is left for C
        ((4, 5, 2), [("A", 4, True), ("B", 2, False)]),  # B is cut
        ((1, 1, 1, 1), [("A", 1, True), ("B", 1, True), ("C", 1, True)]),  # three at once
    ],
)
def test_who_is_admitted(stage, lengths, rows):
    scheduler = stage.make_scheduler(3, 6)
    requests = add(stage, scheduler, *lengths)
    assert step(scheduler, requests) == rows
    times = [request.first_scheduled_time for request in requests]
    assert [isinstance(time, float) for time in times] == [i < len(rows) for i in range(len(requests))]


@on(4)
def test_slots_are_given_back(stage):
    """The lowest is taken. A removed request may be removed again, and keeps its first_scheduled_time."""
    scheduler = stage.make_scheduler(2, 64)
    a, b, c = add(stage, scheduler, 4, 2, 3)
    scheduler.schedule()
    assert [request.slot for request in (a, b)] == [0, 1]
    first = a.first_scheduled_time
    for _ in range(2):
        scheduler.remove(a)
    scheduler.schedule()
    assert (c.slot, scheduler.running) == (0, [b, c])
    scheduler.add(a)
    scheduler.remove(b)
    scheduler.schedule()
    assert (a.slot, a.first_scheduled_time) == (1, first)
    scheduler.remove(c)
    scheduler.check_integrity()


@on(4, 5)
def test_an_abort(stage, small_checkpoint):
    """Of a request that waits or has ended: it leaves the scheduler, and keeps the reason that it has."""
    core = core_of(stage, small_checkpoint)
    a, b = make(stage, A), make(stage, B)
    core.add(a)
    b.finish("stop")
    for request in (a, b):
        core.abort(request)
    assert (a.finish_reason, b.finish_reason, core.scheduler.waiting) == ("abort", "stop", [])


@on(4)
def test_update_writes_to_slots(stage):
    new = torch.arange(16.0).view(2, 2, 2, 2)  # keys and values of two tokens
    cache = stage.part("kv_cache").KVCache(2, 3, 2, 8, 2, torch.float32, CPU)
    cache.data.zero_()
    keys, values = cache.update(1, torch.tensor([1, 0]), torch.tensor([4, 2]), *new)
    assert [keys[1, :, 4].tolist(), keys[0, :, 2].tolist()] == new[0].tolist()
    assert [values[1, :, 4].tolist(), values[0, :, 2].tolist()] == new[1].tolist()
    assert all(t.untyped_storage().data_ptr() == cache.data.untyped_storage().data_ptr() for t in (keys, values))
    assert int(cache.data.count_nonzero()) == 15  # one of the 16 is 0


@on(5)
def test_write_puts_keys_into_blocks(stage):
    """A block's keys are stored transposed."""
    new = torch.arange(1.0, 17.0).view(2, 2, 2, 2)
    cache = stage.part("kv_cache").KVCache(2, 3, 4, 2, 2, torch.float32, CPU, None)
    cache.write(1, torch.tensor([9, 2]), *new)
    assert [cache.keys[1, 2, :, :, 1].tolist(), cache.keys[1, 0, :, :, 2].tolist()] == new[0].tolist()
    assert [cache.values[1, 2, :, 1].tolist(), cache.values[1, 0, :, 2].tolist()] == new[1].tolist()


@on(5)
def test_batch_has_slots_from_the_tables(stage):
    """A's decode, and two of B's four tokens."""
    manager = stage.part("block_manager").BlockManager(9, 4, False)
    a, b = make(stage, [1, 2, 3, 4], [5]), make(stage, [6, 7, 8, 9])
    for request in (a, b):
        manager.allocate(request)
    a.num_computed_tokens, row = 4, stage.part("scheduler").Row
    batch = stage.part("batch").Batch.of([row(a, 1, True), row(b, 2, False)], manager, CPU)
    place, first = manager.tables[a][1] * 4, manager.tables[b][0] * 4
    assert (batch.token_ids.tolist(), batch.positions.tolist()) == ([5, 6, 7], [4, 0, 1])
    assert batch.slot_mapping.tolist() == [place, first, first + 1]
    assert (batch.query_start_loc.tolist(), batch.seq_lens.tolist()) == ([0, 1, 3], [5, 2])
    assert (batch.ready, batch.logits_indices.tolist()) == ([a], [0])
    assert batch.block_tables[0].tolist() == manager.tables[a]


@on(4, 5)
def test_forward_of_a_flat_batch(stage, small_checkpoint, theirs):
    """Decodes next to prompts, whole and in pieces: each request's logits are those that it has alone."""
    core = core_of(stage, small_checkpoint, block_size=4, num_blocks=20)
    requests = a, b, c = [make(stage, prompt) for prompt in random_prompts(211, [9, 6, 1])]
    for request, slot in zip(requests, (2, 0, 1), strict=True):
        if stage.number == 4:
            request.slot = slot
        else:
            core.block_manager.allocate(request)
    row, of = stage.part("scheduler").Row, stage.part("batch").Batch.of
    for rows in ([(a, 9), (c, 1)], [(a, 1), (b, 4), (c, 1)], [(b, 2), (a, 1)], [(a, 1), (b, 1)]):
        memory = [core.block_manager] if stage.number == 5 else []
        batch = of([row(request, num, num == request.num_new_tokens) for request, num in rows], *memory, CPU)
        got = core.runner.forward(batch)
        check_logits(got, theirs, [request.token_ids for request in batch.ready])
        for request, num in rows:
            request.num_computed_tokens += num
        for request in batch.ready:
            request.output_token_ids.append(17)
            if stage.number == 5:
                core.block_manager.append(request)


# --- Stage 5: requests that outgrow the pool --------------------------------------------------------------------------


def long(stage, *lengths):
    return [make(stage, range(1, length + 1), max_tokens=20) for length in lengths]


@on(5)
def test_the_last_in_rank_gives_its_blocks_back(stage):
    """Four blocks of 4: at A's ninth token none is free, so B, the last that runs, waits, and keeps its tokens. When it
    is back, prompt and output are computed again, before C, which came later and waits all the time."""
    scheduler, (a, b, c) = stage.make_scheduler(4, 16, num_blocks=4), long(stage, 6, 4, 5)
    for request in (a, b, c):
        scheduler.add(request)
    got = [step(scheduler, [a, b, c]) for _ in range(5)]
    assert got == [[("A", 6, True), ("B", 4, True)]] + 2 * [[("A", 1, True), ("B", 1, True)]] + 2 * [[("A", 1, True)]]
    assert (b.num_computed_tokens, len(b.output_token_ids), b.num_preemptions) == (0, 3, 1)
    first = b.first_scheduled_time
    scheduler.remove(a)
    assert step(scheduler, [a, b, c]) == [("B", 7, True), ("C", 5, True)]
    assert b.first_scheduled_time == first


@on(5)
def test_blocks_go_to_the_first_in_rank(stage):
    """B, which ranks before A, joins later. Both need another block, and A, the last in rank, is preempted."""
    scheduler, (a, b) = stage.make_scheduler(4, 16, num_blocks=2), long(stage, 3, 4)
    scheduler.add(a)
    assert step(scheduler, [a, b]) == [("A", 3, True)]
    b.rank = (a.rank[0], a.rank[1] - 1)
    scheduler.add(b)
    assert step(scheduler, [a, b]) == [("A", 1, True), ("B", 4, True)]
    assert step(scheduler, [a, b]) == [("B", 1, True)]


@on(5)
def test_admission_waits_for_blocks(stage):
    """Those in the queue behind a prompt that finds no blocks wait with it. If others run, a reserve stays free."""
    for lengths, num_blocks, reserve, names in (
        ((4, 12, 2), 3, 0, "A"),
        ((4, 2), 2, 0, "AB"),
        ((4, 2), 2, 1, "A"),
        ((4, 2), 3, 1, "AB"),
        ((5,), 2, 1, "A"),
    ):
        scheduler, requests = stage.make_scheduler(3, 64, num_blocks=num_blocks), long(stage, *lengths)
        scheduler.watermark_blocks = reserve
        for request in requests:
            scheduler.add(request)
        assert "".join(name for name, *_ in step(scheduler, requests)) == names, (lengths, num_blocks, reserve)


@on(5)
def test_what_was_found_is_counted_once(stage):
    """`num_cached_tokens` is what was found when a request was first admitted, not after a preemption."""
    scheduler, (a,) = stage.make_scheduler(4, 16, num_blocks=4, caching=True), long(stage, 6)
    scheduler.add(a)
    step(scheduler, [a])
    scheduler.preempt(a)
    assert step(scheduler, [a]) == [("A", 3, True)]  # a full block of 4 is still there
    assert a.num_cached_tokens == 0


# --- Stage 7: several tokens from one pass ----------------------------------------------------------------------------


@on(7)
def test_room_ahead_and_back(stage):
    """Room for guesses in free blocks, without the reserve, and only what is left after them is taken back."""
    manager, a = stage.part("block_manager").BlockManager(3, 4, False), make(stage, range(1, 7))
    manager.allocate(a)
    got = [(manager.extend(a, num, 0), len(manager.tables[a])) for num in (2, 4, 9)]
    assert got == [(2, 2), (4, 3), (6, 3)]  # the rest of the last block, the free block, and no more
    manager.trim(a, 6)
    assert (len(manager.tables[a]), manager.num_free) == (2, 1)
    manager.check_integrity()
    manager, b = stage.part("block_manager").BlockManager(6, 4, False), make(stage, range(1, 7))
    manager.allocate(b)
    assert (manager.extend(b, 20, 1), len(manager.tables[b])) == (14, 5)  # several blocks, and one stays free
    manager.trim(b, 4)
    assert (len(manager.tables[b]), manager.num_free) == (1, 5)


@on(7)
def test_verified(stage):
    """A guessed 6 and 7. If 6 is right, its next token comes from the next row; otherwise the rows after it saw a wrong
    token. Nothing follows a token that ends the output."""
    manager, row = stage.part("block_manager").BlockManager(9, 4, False), stage.part("scheduler").Row
    a, b = make(stage, A, [5]), make(stage, B)
    for request in (a, b):
        manager.allocate(request)
    a.num_computed_tokens = 4
    manager.extend(a, 2, 0)
    batch = stage.part("batch").Batch.of([row(a, 1, True), row(b, 2, True)], manager, CPU, {a: [6, 7]})
    a.output_token_ids.append(6)
    b.output_token_ids.append(9)
    batch = batch.verified()
    assert (batch.ready, list(batch.sample_indices)) == ([a], [1])
    assert [(num_tokens, ready) for _, num_tokens, ready in batch.rows] == [(1, True)]  # computed with the guess
    assert batch.num_tokens == 0
    a.output_token_ids.append(8)
    assert batch.verified().rows == []
    a.output_token_ids[-1] = 7
    last = batch.verified()
    assert (last.ready, list(last.sample_indices)) == ([a], [2])  # the row after the last right guess
    a.finish("stop")
    assert batch.verified().rows == []


class Says:
    """A drafter with these tokens for each; `asked` is what it was asked for."""

    draft_cost = 0.0

    def __init__(self, *tokens):
        self.tokens, self.asked = tokens, None

    def draft(self, counts):
        self.asked = dict(counts)
        return {request: list(self.tokens[:count]) for request, count in counts.items() if count}


@pytest.fixture
def draft(small_checkpoint):
    """A function: the drafts for these rows of a step, if the drafter says these tokens, in 20 blocks of 4."""
    stage = STAGES[6]
    core = core_of(stage, small_checkpoint, speculate="ngram", num_drafts=4)
    row = stage.part("scheduler").Row

    def run(rows, says, budget=64, num_blocks=20):
        speculator = core.speculator
        speculator.block_manager = stage.part("block_manager").BlockManager(num_blocks, 4, False)
        speculator.scheduler.watermark_blocks = 0
        speculator.drafter, speculator.max_num_batched_tokens = Says(*says), budget
        for request, _, _ in rows:
            speculator.block_manager.allocate(request)
        got = speculator.draft([row(*one) for one in rows])
        return got, speculator.drafter.asked, speculator.block_manager.num_free

    return run


@on(7)
def test_who_gets_guesses(stage, draft):
    """Requests that decode in this step: not a prompt, and not what is computed again in part. If there is none, the
    drafter, which takes time, is not asked."""
    a, new, again = make(stage, A, [5]), make(stage, B), make(stage, A, [6, 7])
    a.num_computed_tokens = 4
    drafts, asked, _ = draft([(a, 1, True), (new, 2, True), (again, 2, False)], [11, 12, 13, 14])
    assert (drafts, asked) == ({a: [11, 12, 13, 14]}, {a: 4})
    assert draft([(new, 2, True)], [11])[:2] == ({}, None)
    for max_tokens, count in ((2, 0), (3, 1), (100, 4)):  # the last token needs no guess
        one = make(stage, A, [5], max_tokens=max_tokens)
        one.num_computed_tokens = 4
        assert len(draft([(one, 1, True)], [11, 12, 13, 14])[0].get(one, [])) == count


@on(7)
@pytest.mark.parametrize(
    ("says", "left"),
    [([11, 2, 12], [11]), ([2, 11, 12, 13], []), ([11, 211, 12], [11]), ([-1, 11], []), ([11, 0, 12], [11, 0, 12])],
)
def test_guesses_end_before_an_end_token(stage, draft, says, left):
    """And before what is not in the vocabulary. Blocks are taken only for what goes through the model."""
    one = make(stage, A, [5], stop_token_ids=[2])
    one.num_computed_tokens = 4
    drafts, _, num_free = draft([(one, 1, True)], says)
    assert drafts == ({one: left} if left else {})
    assert num_free == 18


@on(7)
def test_guesses_take_what_is_left(stage, draft):
    """Of the step's tokens, and of the blocks."""
    rows = [(make(stage, A, [5]), 1, True), (make(stage, B, [4]), 1, True)]
    for request, _, _ in rows:
        request.num_computed_tokens = request.num_tokens - 1
    for budget, left, num_free in ((5, 3, 17), (2, 0, 17)):
        drafts, _, free = draft(rows, [11, 12, 13, 14], budget)
        assert (sum(map(len, drafts.values())), free) == (left, num_free)
    drafts, _, num_free = draft(rows[:1], [11, 12, 13, 14], num_blocks=2)  # 5 tokens, and room for 8
    assert (list(drafts.values()), num_free) == ([[11, 12, 13]], 0)


@on(7)
def test_a_step_with_guesses(stage, small_checkpoint):
    """Wrong guesses cost no token, and their blocks are free after the step; right ones give several, for which `step`
    returns the request once, and `update` gets it once for each."""
    (prompt,) = random_prompts(211, [10])
    params = dict(temperature=0, max_tokens=8, ignore_eos=True)
    alone = STAGES[0].engine(small_checkpoint).generate([prompt], STAGES[0].SamplingParams(**params))
    right = alone[0].outputs[0].token_ids
    llm = stage.stepper(small_checkpoint, speculate="ngram", num_drafts=4, block_size=4, enable_prefix_caching=False)
    speculator, heard = llm.engine.speculator, []
    update = speculator.update
    speculator.update = lambda drafts, updated: heard.append(len(updated)) or update(drafts, updated)
    llm.add_request("a", prompt, stage.SamplingParams(**params))
    (one,) = llm.unfinished["a"]
    for says, tokens, counts in (
        ([], right[:1], 1),
        ([(token + 1) % 211 for token in right[1:5]], right[:2], 1),
        ([*right[2:4], (right[4] + 1) % 211], right[:5], 3),
    ):
        speculator.drafter, heard[:] = Says(*says), []
        assert llm.engine.step() == [one]
        assert one.output_token_ids == tokens
        assert heard == [counts]
        assert one.num_computed_tokens == one.num_tokens - 1
        assert len(llm.engine.block_manager.tables[one]) == -(-one.num_computed_tokens // 4)
