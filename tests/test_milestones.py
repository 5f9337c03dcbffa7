"""Build your own engine: the tests of a milestone exist, an engine with a mistake fails in the part that it is about, and
a skeleton is its stage without the idea."""

import ast
import contextlib
import multiprocessing
import os
import re
import shutil
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest

from exercises import __main__ as cli
from exercises import engine, engine_report, report, skeletons
from exercises.milestones import CONTRACT, MILESTONES
from tests.adapter import ROOT, STAGES


def checked(directory: Path, number: int, out: Path, seconds: int) -> None:
    """What the command `engine` does, in this process, which must not have imported a stage."""
    descriptor = os.open(out, os.O_CREAT | os.O_WRONLY)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    from exercises import engine

    engine.SECONDS = seconds
    os.chdir(out.parent)  # a learner may be in any folder
    engine.run(directory, [number])


@pytest.fixture(scope="session")
def check(tmp_path_factory):
    """A function: the exit status and the output of `engine N`. Each runs in another process, which begins with the
    modules that take seconds to import."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["torch", "transformers.models.gpt2.modeling_gpt2", "tests.test_milestones"])

    def run(directory, number=1, seconds=120):
        out = tmp_path_factory.mktemp("check") / "out"
        process = processes.Process(target=checked, args=(directory, number, out, seconds))
        process.start()
        process.join(1200)
        return process.exitcode, out.read_text(encoding="utf-8")

    return run


@pytest.mark.parametrize("milestone", [*MILESTONES, CONTRACT], ids=lambda milestone: milestone.title)
def test_the_tests_of_a_milestone_exist(milestone):
    for test in milestone.tests:
        file, _, name = test.partition("::")
        assert f"\ndef {name}(" in (ROOT / file).read_text(encoding="utf-8"), test


@pytest.mark.soak
@pytest.mark.parametrize("milestone", MILESTONES, ids=lambda milestone: milestone.title)
def test_a_stage_passes_its_milestone(milestone, check, tmp_path):
    """And every part has tests that run on it."""
    status, said = check(make(milestone.number, [], tmp_path / "engine"), milestone.number)
    assert (status, "✗" in said) == (0, False)
    assert milestone is MILESTONES[-1] or f"start {milestone.number + 1} --aside" in said
    assert set(re.findall("✓ (.*)", said)) == {look for look, *_ in milestone.parts}


# --- Engines with one mistake -----------------------------------------------------------------------------------------

KERNEL = "linear.py: Linear; kernels/linear.c: pack, linear"

# (milestone, what is wrong, the part that fails, edits of its stage: file, text, what stands there instead)
FAST = [
    (1, "only the prompt", "batch.py: Batch.of", [("batch.py", "torch.tensor(request.token_ids", "torch.tensor(request.prompt_token_ids")]),
    (2, "rows that have ended are live", "batch.py: Batch.of, Batch.num_padding_tokens", [("batch.py", "if not request.finished", "if True")]),
    (3, "columns are copied", "kv_cache.py: KVCache.update", [("kv_cache.py", "return keys, values", "return keys.clone(), values.clone()")]),
    (4, "prefills before decodes", "scheduler.py: Scheduler.add, Scheduler.schedule", [("scheduler.py", "for request in self.running:", "for request in self.running[::-1]:\n            if not budget:\n                break")]),
    (5, "no block, although none is needed", "block_manager.py", [("block_manager.py", "return not needs_block or self.num_free > 0", "return self.num_free > 0")]),
    (6, "blocks are named by their own tokens", "block_manager.py: BlockManager.cache_full_blocks, BlockManager._find_cached", [("block_manager.py", "Key(parent, ", "Key(ROOT, ")]),
    (7, "no matches of four tokens", "drafters.py: PromptLookup._look_up", [("drafters.py", "range(self.longest, self.shortest - 1, -1)", "range(self.longest - 1, self.shortest - 1, -1)")]),
    (8, "a scale for each column", "quantize.py: quantize", [("quantize.py", "x.abs().amax(dim=-1, keepdim=True)", "x.abs().amax(dim=-2, keepdim=True)")]),
    (9, "weights are packed in each step", "linear.py: Linear.__init__", [("linear.py", "        x = x.contiguous()\n", "        x = x.contiguous()\n        load_kernel().pack(self.weight.data_ptr(), self.panels.data_ptr(), self.in_, self.out)\n"), ("linear.py", "        weight, self.bias", "        self.weight = weight = layer.weight\n        weight, self.bias")]),
]  # fmt: skip
MISTAKES = [
    (1, "heads are mixed up", "model.py: Attention._split_heads", [("model.py", "x.unflatten(-1, (self.n_head, -1)).transpose(-3, -2)", "x.unflatten(-1, (-1, self.n_head)).transpose(-3, -1).transpose(-2, -1)")]),
    (1, "the GELU with erf", "model.py: Attention, MLP, Layer", [("model.py", "F.gelu(x, approximate=\"tanh\")", "F.gelu(x)")]),
    (1, "nothing is added to the input", "model.py: Attention, MLP, Layer", [("model.py", "x = x + self.mlp(self.ln_2(x))", "x = self.mlp(self.ln_2(x))")]),
    (1, "no causal mask", "model.py: GPT2.forward", [("model.py", "visible = positions <= positions[:, None]", "visible = positions >= 0 * positions[:, None]")]),
    (1, "the last token is left out", "runner.py: Runner.forward", [("runner.py", "self.model(batch.token_ids)", "self.model(batch.token_ids[:-1])")]),
    (1, "an error that is lost", "sampler.py: sample, choose", [("sampler.py", "        return error\n", "        return None\n")]),
    (1, "log-probabilities after the penalties", "sampler.py: sample, choose", [("sampler.py", "raw_logprobs(logits, token_id", "raw_logprobs(penalize(logits, request), token_id")]),
    (1, "ties with the k-th are dropped", "sampler.py: keep_top_k", [("sampler.py", "scores < kth", "scores <= kth")]),
    (1, "more than p", "sampler.py: keep_top_p, keep_min_p", [("sampler.py", "(descending.cumsum(dim=-1) < p * total)", "(descending.cumsum(dim=-1) <= p * total)")]),
    (1, "min-p before top-p", "sampler.py: keep_top_p, keep_min_p", [("sampler.py", "    if params.top_p < 1:\n        weights = keep_top_p(weights, params.top_p)\n    if params.min_p > 0:\n        weights = keep_min_p(weights, params.min_p)\n", "    if params.min_p > 0:\n        weights = keep_min_p(weights, params.min_p)\n    if params.top_p < 1:\n        weights = keep_top_p(weights, params.top_p)\n")]),
    (1, "top-p before the temperature", "sampler.py: keep_top_p, keep_min_p", [("sampler.py", "weights = keep_top_p(weights, params.top_p)", "weights = weights * (keep_top_p(weights**params.temperature, params.top_p) > 0)")]),
    (1, "a token of weight 0 is drawn", "sampler.py: keep_top_p, keep_min_p", [("sampler.py", "right=True", "right=False")]),
    (1, "the end token is never ignored", "request.py: Request.add, Request.finish", [("request.py", "if token_id in self.eos_token_ids and not self.params.ignore_eos:", "if token_id in self.eos_token_ids:")]),
    (1, "what is held back is lost", "request.py: Request.add, Request.finish", [("request.py", "if stop := self.text.flush(self._past_min_tokens, stop_token_id):", "if False:")]),
    (1, "a stop string only within a token", "support/text.py: Text._append, Text.num_final", [("support/text.py", "max(0, old_length - len(stop) + 1)", "old_length")]),
    (1, "what may be a stop string is told", "support/text.py: Text._append, Text.num_final", [("support/text.py", "return min((self._held_back_from(stop) for", "return max((self._held_back_from(stop) for")]),
    (2, "right padding", "batch.py: Batch.of, Batch.num_padding_tokens", [("batch.py", "[0] * n + sequence", "sequence + [0] * n"), ("batch.py", "num_padding=torch.tensor(num_padding", "num_padding=torch.tensor([0] * len(num_padding)")]),
    (2, "ended rows are not counted", "batch.py: Batch.of, Batch.num_padding_tokens", [("batch.py", "return self.token_ids.numel() - self.num_tokens", "return int(self.num_padding.sum())")]),
    (2, "no attention mask", "model.py: GPT2.forward; runner.py: Runner.forward", [("model.py", "own = columns >= num_padding[:, None]", "own = columns >= 0 * num_padding[:, None]")]),
    (2, "rows that have ended get tokens", "engine.py: Engine.commit", [("engine.py", "zip(batch.live, tokens, strict=True)", "zip(batch.requests, tokens)")]),
    (2, "the shortest first", "engine.py: Engine.run, Engine.next_batch", [("engine.py", "reverse=True", "reverse=False")]),
    (3, "keys are the values", "kv_cache.py: KVCache.update", [("kv_cache.py", "values[:, :, self.length :] = v", "values[:, :, self.length :] = k")]),
    (3, "a failed row has no token", "batch.py: Batch.of", [("batch.py", "[-1:] or [0]", "[-1:]")]),
    (3, "decodes count the padding", "model.py: Attention.forward, GPT2.forward; runner.py: Runner.new_cache, Runner.forward", [("model.py", "positions = (new - num_padding[:, None])", "positions = (new - num_padding[:, None] * (cache.length == 0))")]),
    (3, "rows and columns are added up", "engine.py: Engine.next_batch, Engine.cache_len", [("engine.py", "len(larger) * self.cache_len(larger) > room", "len(larger) + self.cache_len(larger) > room")]),
    (3, "what just fits is refused", "engine.py: Engine.check_fits", [("engine.py", "if needed > room", "if needed >= room")]),
    (4, "a request without tokens is admitted", "scheduler.py: Scheduler._can_admit, Scheduler._admit", [("scheduler.py", " and self.budget > 0", "")]),
    (4, "a prompt is never cut", "scheduler.py: Scheduler.add, Scheduler.schedule", [("scheduler.py", "min(request.num_new_tokens, self.budget)", "request.num_new_tokens")]),
    (4, "a slot is not given back", "scheduler.py: Scheduler.add, Scheduler.schedule", [("scheduler.py", "            self.free_slots.append(request.slot)\n", "")]),
    (4, "the highest number first", "scheduler.py: Scheduler.add", [("scheduler.py", "request.rank = policy_rank", "request.rank = -policy_rank")]),
    (4, "positions begin at 0", "batch.py: Batch.of", [("batch.py", "positions += range(start, end)", "positions += range(num_tokens)")]),
    (4, "keys are the values", "kv_cache.py: KVCache.update", [("kv_cache.py", "values[slots, :, positions] = v", "values[slots, :, positions] = k")]),
    (4, "each query reads all", "model.py: Attention.forward, attend, GPT2.forward", [("model.py", ".tril(n_seq - n_new)", ".tril(n_seq - n_new + 1)")]),
    (4, "an abort without a reason", "engine.py: Engine.add, Engine.abort", [("engine.py", "request.finish(\"abort\")", "pass")]),
    (4, "what is computed is not counted", "engine.py: Engine.commit", [("engine.py", "request.num_computed_tokens += num_tokens", "request.num_computed_tokens += 1")]),
    (4, "memory is counted when requests have left", "engine.py: Engine.commit", [("engine.py", "        kv_use = self.kv_use()  # while they still hold their memory\n", ""), ("engine.py", "self.stats.count(batch, kv_use)", "self.stats.count(batch, self.kv_use())")]),
    (5, "blocks for all that may come", "block_manager.py", [("block_manager.py", "while len(blocks) < self.num_needed(request.num_tokens):", "while len(blocks) < self.num_needed(len(request.prompt_token_ids) + request.max_tokens - 1):")]),
    (5, "blocks are lost", "block_manager.py", [("block_manager.py", "            self._free[block] = None\n", "            pass\n")]),
    (5, "no reserve", "scheduler.py: Scheduler._can_admit", [("scheduler.py", "reserve = self.watermark_blocks if self.running else 0", "reserve = 0")]),
    (5, "preempted to the end of the queue", "scheduler.py: Scheduler._reserve_blocks, Scheduler.preempt", [("scheduler.py", "        request.num_preemptions += 1\n", "        request.num_preemptions += 1\n        request.rank = None\n")]),
    (5, "blocks in the order of admission", "scheduler.py: Scheduler._reserve_blocks, Scheduler.preempt", [("scheduler.py", "deque(sorted(self.running, key=attrgetter(\"rank\")))", "deque(self.running)")]),
    (5, "the preempted go on where they were", "scheduler.py: Scheduler._reserve_blocks, Scheduler.preempt", [("scheduler.py", "request.num_computed_tokens = self.block_manager.allocate(request)", "request.num_computed_tokens = max(self.block_manager.allocate(request), request.num_tokens - 1 if request.output_token_ids else 0)")]),
    (5, "keys are the values", "kv_cache.py: KVCache.write", [("kv_cache.py", "self.values[layer][blocks, :, offsets] = v", "self.values[layer][blocks, :, offsets] = k")]),
    (5, "each query reads all", "attention.py: paged_attention", [("attention.py", ".tril(seq_len - scores.shape[1])", ".tril(seq_len)")]),
    (6, "what is taken can still be found", "block_manager.py: BlockManager.free, BlockManager._pop_free", [("block_manager.py", "            del self._cached[self._key_of.pop(block)]\n", "")]),
    (6, "blocks are freed from the front", "block_manager.py: BlockManager.free, BlockManager._pop_free", [("block_manager.py", "reversed(self.tables.pop(request))", "self.tables.pop(request)")]),
    (6, "another prompt's keys", "block_manager.py: BlockManager.free, BlockManager._pop_free", [("block_manager.py", "reversed(self.tables.pop(request))", "self.tables.pop(request)"), ("block_manager.py", "= self._last_prefix_id", "= blocks[i] + 1")]),
    (6, "found blocks cost nothing", "block_manager.py", [("block_manager.py", "sum(self.ref_counts[block] > 0 for block in self._find_cached(request))", "len(self._find_cached(request))")]),
    (6, "cached tokens are counted again", "scheduler.py: Scheduler._admit", [("scheduler.py", "            request.num_cached_tokens = request", "        request.num_cached_tokens = request")]),
    (7, "one block at most", "block_manager.py: BlockManager.extend, BlockManager.trim", [("block_manager.py", "while len(blocks) < self.num_needed(end) and", "if len(blocks) < self.num_needed(end) and")]),
    (7, "guesses beyond max_tokens", "speculator.py: Speculator.draft, Speculator.max_drafts", [("speculator.py", "min(request.max_tokens - len(request.output_token_ids) - 1, MAX_DRAFTS)", "MAX_DRAFTS")]),
    (7, "guesses after the end token", "speculator.py: Speculator.truncate_at_eos", [("speculator.py", "token_id in ending or not", "not")]),
    (7, "blocks before the cut at the end token", "speculator.py: Speculator.draft", [("speculator.py", "            draft = self.truncate_at_eos(request, draft[: counts[request]])[:left]\n            if draft := draft[: self.block_manager.extend(request, len(draft), self.scheduler.watermark_blocks)]:\n", "            draft = self.truncate_at_eos(request, draft[: counts[request]])\n            room = self.block_manager.extend(request, len(draft), self.scheduler.watermark_blocks)\n            draft = self.truncate_at_eos(request, draft[: counts[request]])[:left]\n            if draft := draft[: room]:\n")]),
    (7, "blocks before the cut at the budget", "speculator.py: Speculator.truncate_at_eos", [("speculator.py", "            draft = self.truncate_at_eos(request, draft[: counts[request]])[:left]\n            if draft := draft[: self.block_manager.extend(request, len(draft), self.scheduler.watermark_blocks)]:\n", "            draft = draft[: counts[request]][:left]\n            room = self.block_manager.extend(request, len(draft), self.scheduler.watermark_blocks)\n            draft = self.truncate_at_eos(request, draft[: counts[request]])[:left]\n            if draft := draft[: room]:\n")]),
    (7, "the row behind a rejected guess is read", "batch.py: Batch.verified, Batch.was_right", [("batch.py", " and request.output_token_ids[-1] == draft[0]", "")]),
    (7, "guesses are committed unverified", "engine.py: Engine.step, Engine.verify", [("engine.py", "            updated += self.commit(", "            guesses = [batch.drafts.get(request, [])[:1] for request in batch.ready]\n            tokens = [(*guess, token[1]) if guess else token for guess, token in zip(guesses, tokens, strict=True)]\n            updated += self.commit(")]),
    (7, "blocks of rejected guesses stay", "engine.py: Engine.step, Engine.verify", [("engine.py", "self.speculator.update(drafts, updated).items()", "{}.items()")]),
    (8, "small numbers become 0", "quantize.py: quantize", [("quantize.py", "keepdim=True) / LARGEST", "keepdim=True).clamp_min(1e-5) / LARGEST")]),
    (8, "activations stay floats", "quantize.py: Int8Linear.forward", [("quantize.py", "        integers, scale = quantize(x)  # [n, in], [n, 1]\n        y = multiply(integers, self.weight) * (scale * self.scales)", "        y = x @ self.weight.to(x.dtype).t() * self.scales")]),
    (8, "vectors are integers", "quantize.py: Int8Embedding.forward, Int8Embedding.logits", [("quantize.py", "self.weight[x] * self.scales[x, None]", "self.weight[x].float()")]),
    (8, "the vocabulary is not quantized", "quantize.py: quantize_on_load", [("quantize.py", " or path == \"wte\"):", "):")]),
    (9, "only whole panels", KERNEL, [("kernels/linear.c", "_Pragma(\"omp parallel for schedule(dynamic) num_threads((int)num_threads)\")\n    for (int64_t o = 0; o < out;", "for (int64_t o = 0; o + PANEL <= out;")]),
    (9, "only whole groups", KERNEL, [("kernels/linear.c", "for (int64_t t = 0; t < n; t += GROUP) {", "for (int64_t t = 0; t + GROUP <= n; t += GROUP) {")]),
    (9, "columns where inputs should be", KERNEL, [("kernels/linear.c", "weight[c * in + i]", "weight[i * out + c]")]),
    (9, "no bias", KERNEL, [("kernels/linear.c", " + bias[o + c]", "")]),
    (9, "the bias by the panel", KERNEL, [("kernels/linear.c", "bias[o + c]", "bias[c]")]),
    (9, "rows are taken to lie one after another", "linear.py: Linear.forward", [("linear.py", "        x = x.contiguous()\n", "")]),
    (9, "the matrix is kept too", "linear.py: Linear.__init__", [("linear.py", "        weight, self.bias", "        self.layer = layer\n        weight, self.bias")]),
    (9, "other bits in the rest", "kernels/linear.c: linear", [("kernels/linear.c", "sums[k][c] + bias", "sums[k][c] * (count < GROUP ? 1.0000002f : 1) + bias")]),
    (9, "other bits with more threads", "kernels/linear.c: linear", [("kernels/linear.c", "sums[k][c] + bias", "sums[k][c] * (num_threads > 2 ? 1.0000002f : 1) + bias")]),
    (9, "two bytes are taken for four", "linear.py: use_own_kernel", [("linear.py", " and layer.weight.dtype == torch.float32", "")]),
    (9, "nothing calls it", "runner.py: Runner.__init__", [("runner.py", "        use_own_kernel(self.model)\n", "")]),
    (9, "weights are packed before they are loaded", "runner.py: Runner.__init__", [("runner.py", "        use_own_kernel(self.model)\n", ""), ("runner.py", "        checkpoint.load(", "        use_own_kernel(self.model)\n        checkpoint.load(")]),
]  # fmt: skip
# Right engines of other styles.
RIGHT = [
    (2, "an ended row is only padding", [
        ("batch.py", "sequences = [request.token_ids for", "sequences = [[] if request.finished else request.token_ids for"),
        ("batch.py", "n_seq = max(map(len, sequences))", "n_seq = max(len(request.token_ids) for request in requests)"),
    ]),
    (3, "another message", [("engine.py", "need {needed:,} bytes of \"", "would take {needed} bytes of \"")]),
    (3, "a prefill is what has no output", [("batch.py", "is_prefill=cache.length == 0", "is_prefill=not any(request.output_token_ids for request in requests)")]),
    (8, "the scale of zeros is 1", [("quantize.py", "    per_unit = torch.where(scale > 0, 1 / scale, 0)", "    scale = torch.where(scale > 0, scale, 1.0)\n    per_unit = 1 / scale")]),
]  # fmt: skip


IMPORT, BYTES = "from .model import", "        self.bytes_per_token ="
CALLS_IT = [
    ("runner.py", IMPORT, f"from .linear import use_own_kernel\n{IMPORT}"),
    ("runner.py", BYTES, f"        use_own_kernel(self.model)\n{BYTES}"),
]


def make(milestone: int, edits: list[tuple[str, str, str]], directory: Path) -> Path:
    """The milestone's stage, with what it adds and these edits."""
    shutil.copytree(ROOT / MILESTONES[milestone - 1].stage, directory)  # with what Python has compiled
    for name, solution in MILESTONES[milestone - 1].added.items():
        shutil.copy(ROOT / solution, directory / name)
    for name, right, wrong in [*(CALLS_IT if milestone == 9 else []), *edits]:
        text = (directory / name).read_text(encoding="utf-8")
        assert right in text, f"{name} has no {right!r}"
        (directory / name).write_text(text.replace(right, wrong), encoding="utf-8")
    return directory


def test_what_the_mistakes_replace_is_there():
    """In today's stages, also for the mistakes that only `make soak` makes."""
    for milestone, what, *_, edits in [*FAST, *MISTAKES, *RIGHT]:
        for name, right, _ in edits:
            file = ROOT / MILESTONES[milestone - 1].stage / name
            assert milestone == 9 or right in file.read_text(encoding="utf-8"), f"{milestone} {what}: {right!r}"


@pytest.mark.parametrize(
    ("milestone", "what", "part", "edits"),
    [*FAST, *(pytest.param(*mistake, marks=pytest.mark.soak) for mistake in MISTAKES)],
    ids=[f"{milestone} {what}" for milestone, what, *_ in (*FAST, *MISTAKES)],
)
def test_a_mistake_fails(milestone, what, part, edits, check, tmp_path):
    status, said = check(make(milestone, edits, tmp_path / "engine"), milestone)
    assert (status, "the test itself failed" in said) == (1, False)
    assert f"✗ {part}" in said
    assert re.search(r"test:  \S+/test_", said)


@pytest.mark.soak
@pytest.mark.parametrize(("milestone", "what", "edits"), RIGHT, ids=[what for _, what, _ in RIGHT])
def test_another_right_engine_passes(milestone, what, edits, check, tmp_path):
    status, said = check(make(milestone, edits, tmp_path / "engine"), milestone)
    assert (status, "✗" in said) == (0, False)


@pytest.mark.soak
def test_a_loop_that_does_not_end_is_ended(check, tmp_path):
    """In the engine's own thread, while the test waits for it."""
    build = "        batch = Batch.of(rows"
    loop = [("engine.py", build, f"        while True:\n            pass\n{build}")]
    status, said = check(make(4, loop, tmp_path / "engine"), 4, seconds=10)
    assert status == 1
    assert "Timeout" in said
    assert re.search(r"yours: engine\.py, line \d+: (while True:|pass)", said)


# --- Engines that are built differently, and what is none -------------------------------------------------------------

SMALL = """
    from {stage} import LLM as Whole, SamplingParams

    class LLM:
        def __init__(self, model, device="cpu"):
            self._whole = Whole(model, device=device)

        def generate(self, prompts, sampling_params):
            return self._whole.generate(prompts, sampling_params)
"""


def small(tmp_path, body="return self._whole") -> Path:
    """An engine that is one file."""
    (tmp_path / "small").mkdir()
    text = textwrap.dedent(SMALL.format(stage=STAGES[0].directory)).replace("return self._whole", body)
    (tmp_path / "small" / "__init__.py").write_text(text)
    return tmp_path / "small"


@pytest.mark.soak
def test_an_engine_that_is_built_differently(check, tmp_path):
    """Its public contract is tested."""
    status, said = check(small(tmp_path))
    assert status == 0, said
    assert said.startswith("small/ is not built like a stage, so only the public contract is tested.")


def test_an_error_names_its_line(check, tmp_path):
    status, said = check(small(tmp_path, "len(5)\n        return self._whole"), 3)
    assert status == 1
    assert said.startswith("small/ is not built like a stage, so only the public contract is tested.")
    assert "TypeError: object of type 'int' has no len()" in said
    assert "yours: __init__.py, line 9: len(5)" in said


def test_an_engine_that_ends_the_process(tmp_path, capfd):
    (tmp_path / "__init__.py").write_text("import os\nos._exit(7)\n")
    assert cli.main(["engine", "--directory", str(tmp_path), "1"]) == 1
    assert "The process that ran your engine ended with status 7." in capfd.readouterr().out


def test_what_is_no_engine_is_named(check, tmp_path, capsys):
    (tmp_path / "__init__.py").write_text("import nothing_like_it")
    status, said = check(tmp_path)
    assert status == 1
    assert f"{tmp_path} can't be imported: ModuleNotFoundError: No module named 'nothing_like_it'" in said
    assert cli.main(["engine", "--directory", str(tmp_path / "none")]) == 2
    assert "`python -m exercises start 1` makes one" in capsys.readouterr().err
    for arguments, words in ((["engine", "10"], "there is no milestone 10"), (["start", "0"], "invalid choice: 0")):
        with pytest.raises(SystemExit):
            cli.main(arguments)
        assert words in capsys.readouterr().err


def test_milestone_9_goes_back_to_stage_5(tmp_path):
    """Milestones 7 and 8 ask for files that it does not have."""
    assert [engine.up_to(number)[-3:] for number in (6, 8, 9)] == [[4, 5, 6], [6, 7, 8], [5, 6, 9]]
    skeletons.start(9, tmp_path / "mine")
    places = [engine.stands_in_for(tmp_path / "mine", MILESTONES[number - 1]) for number in (3, 6, 8, 9)]
    assert [place.stage[:7] for place in places if place is not CONTRACT] == ["stage05"] * 3


def test_an_error_of_a_test_is_not_the_engines(capsys):
    """As one of the system's is that no line of the engine has raised."""
    report = engine_report.Report(ROOT / STAGES[0].directory, MILESTONES[:1])
    report.part = MILESTONES[0], "engine.py"
    for error, broken in ((FileNotFoundError("x"), True), (TypeError("x"), False)):
        item = SimpleNamespace(path=Path(__file__), function=make, originalname="test_x")
        with contextlib.suppress(Exception):
            raise error
        report.failed = False
        report.pytest_runtest_makereport(item, SimpleNamespace(excinfo=pytest.ExceptionInfo.from_exception(error)))
        assert report.broken == broken
        assert ("The test itself failed." in capsys.readouterr().out) == broken


def documented():
    """A rule whose sentence goes on
    in the next line.

    More."""


def test_a_message_has_whole_sentences_and_no_addresses():
    stage_and_phrase = SimpleNamespace(id="stage03_kvcache-a phrase", params={"stage": 3, "says": "a phrase"})
    item = SimpleNamespace(originalname="test_it", function=documented, callspec=stage_and_phrase)
    assert report.rule(item) == "A rule whose sentence goes on in the next line."
    with pytest.raises(AssertionError) as error:
        raise AssertionError(
            "too many\nassert False\n +  where False = all(<generator object f.<locals>.<genexpr> at 0x7f>)\n"
            f" +    and   tensor([{'True, ' * 99}]) = <built-in method isinf of Tensor object at 0x7f>()\n"
            " +  where 3 = <function f at 0x7f>(5)"
        )
    assert report.said(error) == ["too many", "+  where 3 = <function f at 0x7f>(5)"]


# --- Skeletons --------------------------------------------------------------------------------------------------------


@pytest.fixture
def mine(tmp_path):
    return tmp_path / "mine"


@pytest.mark.parametrize("milestone", MILESTONES, ids=lambda milestone: milestone.title)
def test_a_skeleton_is_its_stage_without_the_idea(milestone):
    for name, content in skeletons.skeleton(milestone).items():
        original = (ROOT / milestone.added.get(name, f"{milestone.stage}/{name}")).read_bytes()
        empty = {*milestone.to_write.get(name, ()), *milestone.later.get(name, {})}
        if not empty:
            assert content == b"".join(original.partition(skeletons.TO_WRITE.encode())[:2])
            continue
        before, after = (skeletons.functions(ast.parse(text)) for text in (original, content))
        assert before.keys() == after.keys()
        for function, node in before.items():
            assert ast.get_docstring(after[function]) == ast.get_docstring(node)
            assert ast.dump(after[function].args) == ast.dump(node.args)
            same = ast.dump(after[function]) == ast.dump(node)
            assert same == (function not in empty), function


@pytest.mark.parametrize("number", [5, *(pytest.param(n, marks=pytest.mark.soak) for n in (1, 2, 3, 4, 6, 7, 8, 9))])
def test_a_skeleton_says_what_is_not_written(number, check, tmp_path):
    skeletons.start(number, tmp_path / "mine")
    status, said = check(tmp_path / "mine", number)
    first = next(iter(MILESTONES[number - 1].parts))[0]
    assert (status, said.count("✗"), said.count("✓")) == (1, 1, 0)
    assert f"✗ {first}" in said
    assert re.search(r"_?\w+ is not written yet: \w+\.py, line \d+", said)


def test_the_loop_has_four_verbs(mine):
    skeletons.start(1, mine)
    step = (mine / "engine.py").read_text().split("def step")[1].split("def commit")[0]
    verbs = [line.split()[1] for line in step.splitlines() if "# " in line]
    assert verbs == ["build:", "forward:", "sample:", "commit:"]


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def test_nobodys_work_is_overwritten(tmp_path, mine, capsys):
    command = ["start", "2", "--directory", str(mine)]
    assert cli.main(command) == 0
    assert cli.main(command) == 0  # nobody has written anything
    (mine / "engine.py").write_text("# my work\n")
    before = contents(mine)
    capsys.readouterr()
    assert cli.main(command) == 2
    words = "contains your work (engine.py); `start 2 --aside` moves it to mine-1/ and goes on from there"
    assert capsys.readouterr().err == f"exercises: {mine}/ {words}\n"
    assert contents(mine) == before
    assert cli.main([*command, "--aside"]) == 0
    assert contents(tmp_path / "mine-1") == before
    assert (mine / "engine.py").read_text() != "# my work\n"
    (mine / "engine.py").write_text("# again\n")
    assert cli.main([*command, "--aside"]) == 0
    assert (tmp_path / "mine-2" / "engine.py").read_text() == "# again\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "mine-1", "mine-2"]


def test_a_directory_that_start_has_not_made_is_somebodys_work(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"contains your work \(notes.txt\)"):
        skeletons.start(1, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file"):
        skeletons.start(1, tmp_path / "file")


def test_what_needs_no_change_stays_the_learners(tmp_path, mine):
    """From 2 to 3: the sampler is the same in both stages, the model is not, and the learner's own helpers are kept."""
    skeletons.start(2, mine)
    sampler = (ROOT / STAGES[1].directory / "sampler.py").read_text() + "\n# written by me\n"
    (mine / "sampler.py").write_text(sampler)
    (mine / "model.py").write_text("# a model of mine\n")
    (mine / "helpers.py").write_text("# of mine\n")
    said = skeletons.start(3, mine, aside=True)
    assert (mine / "sampler.py").read_text() == sampler
    assert (mine / "helpers.py").read_text() == "# of mine\n"
    assert "raise NotImplementedError" in (mine / "model.py").read_text()
    assert (tmp_path / "mine-1" / "model.py").read_text() == "# a model of mine\n"
    assert "Carried over from your work: helpers.py, sampler.py" in said
    (mine / "kv_cache.py").write_text("# again\n")
    assert "Carried over from your work: helpers.py, sampler.py" in skeletons.start(4, mine, aside=True)


def test_what_is_not_finished_is_taken_from_the_stage(mine):
    skeletons.start(1, mine)
    with (mine / "sampler.py").open("a") as file:
        file.write("# begun\n")
    said = skeletons.start(2, mine, aside=True)
    assert "Not finished, so replaced by the stage's: sampler.py" in said
    assert (mine / "sampler.py").read_bytes() == (ROOT / STAGES[1].directory / "sampler.py").read_bytes()


def test_from_blocks_to_sharing_only_the_new_functions_are_empty(mine):
    skeletons.start(5, mine)
    manager = mine / "block_manager.py"
    own = (ROOT / STAGES[4].directory / "block_manager.py").read_text() + "\n# written by me\n"
    manager.write_text(own)
    skeletons.start(6, mine, aside=True)
    text = manager.read_text()
    assert text.endswith("# written by me\n")
    assert text.count("raise NotImplementedError") == len(MILESTONES[5].to_write["block_manager.py"])
