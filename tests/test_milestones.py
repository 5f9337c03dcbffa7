"""Build your own engine: every stage passes its milestones, an engine with a mistake fails with its name and reason,
and a skeleton is its stage without the idea."""

import ast
import copy
import functools
import shutil
import sys
import textwrap
import types
from dataclasses import dataclass
from pathlib import Path

import pytest

from exercises import __main__ as cli
from exercises import skeletons
from exercises.grading import Wrong
from exercises.milestones import MILESTONES, verbs
from exercises.milestones.lab import Lab, prompts_of
from exercises.milestones.run import BLANK, MISSING, PASSED, WRONG, outcomes, outcomes_in_time, run_check
from exercises.milestones.single import LENGTHS
from tests.adapter import ROOT, STAGES
from tools.engines import OwnEngine

OF_STAGE = {1: [1], 2: [2], 3: [3], 4: [4], 5: [5, 6], 6: [6], 7: [7], 8: [8]}  # what each is about


@pytest.fixture(autouse=True)
def same_name():
    """Each test's first engine gets the same name, so their kernels are compiled only once."""
    yield
    for name in [name for name in sys.modules if name.startswith("own_engine_")]:
        del sys.modules[name]


@pytest.fixture(scope="module", autouse=True)
def one_reference(tmp_path_factory):
    """All labs share their models and stage 1's results, each of which is computed once."""
    reference, known = Lab(OwnEngine(ROOT / STAGES[0].directory), tmp_path_factory.mktemp("models")), {}

    def expected(lab, *case):
        if repr(case) not in known:
            known[repr(case)] = of_stage_1(reference, *case)
        return copy.deepcopy(known[repr(case)])  # a check may change what it gets

    with pytest.MonkeyPatch.context() as patch:
        of_stage_1 = Lab.expected
        for name in ("model", "tokenizer", "first", "network"):
            patch.setattr(reference, name, functools.partial(getattr(Lab, name), reference))
            patch.setattr(Lab, name, staticmethod(getattr(reference, name)))
        patch.setattr(Lab, "expected", expected)
        yield


def told(directory: Path, numbers: list[int]) -> list[tuple]:
    return [outcome for outcome in outcomes(directory, numbers) if outcome[2] != PASSED]


@pytest.mark.parametrize("stage", STAGES, ids=str)
def test_a_stage_passes_its_own_milestones(stage):
    assert told(ROOT / stage.directory, OF_STAGE[stage.number]) == []


@pytest.mark.parametrize("stage", STAGES[:-1], ids=str)
def test_a_stage_does_not_pass_the_next(stage):
    assert told(ROOT / stage.directory, [OF_STAGE[stage.number][-1] + 1])


@pytest.mark.soak
@pytest.mark.parametrize("stage", STAGES, ids=str)
def test_a_stage_passes_those_before(stage):
    numbers = sorted({number for earlier in range(1, stage.number + 1) for number in OF_STAGE[earlier]})
    assert told(ROOT / stage.directory, numbers) == []


# --- Engines with one mistake -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mistake:
    """A stage with something wrong in it: `edits` are (file, text of it, what stands there instead)."""

    name: str
    stage: int
    milestone: int
    words: str  # that it is told
    edits: list[tuple[str, str, str]]

    def make(self, folder: Path) -> Path:
        """The engine with the mistake."""
        directory = folder / "engine"
        shutil.copytree(ROOT / STAGES[self.stage - 1].directory, directory)  # with what Python has compiled
        for name, right, wrong in self.edits:
            text = (directory / name).read_text(encoding="utf-8")
            assert right in text, f"{self.name}: {name} has no {right!r}"
            (directory / name).write_text(text.replace(right, wrong), encoding="utf-8")
        return directory


SEARCH_ALL = """        request = batch.request
        if set(request.eos_token_ids) & set(request.token_ids) and not request.params.ignore_eos:
            request.finish("stop")
        return [request]"""
UNVERIFIED = """            guesses = [batch.drafts.get(request, [])[:1] for request in batch.ready]
            tokens = [(*guess, token[1]) if guess else token for guess, token in zip(guesses, tokens, strict=True)]
            updated += self.commit("""
TOP_K = "    if params.top_k > 0:\n        scores = keep_top_k(scores, params.top_k)\n"
TOP_P = "    if params.top_p < 1:\n        weights = keep_top_p(weights, params.top_p)\n"
MIN_P = "    if params.min_p > 0:\n        weights = keep_min_p(weights, params.min_p)\n"
MISTAKES = [
    Mistake("erf GELU", 1, 1, "GPT-2's GELU is the tanh form", [("model.py", 'F.gelu(x, approximate="tanh")', "F.gelu(x)")]),
    Mistake("no causal mask", 1, 1, "the causal mask is missing", [("model.py", "visible = positions <= positions[:, None]", "visible = positions >= 0 * positions[:, None]")]),
    Mistake("the end token is searched in the prompt", 1, 1, "found in the prompt", [("engine.py", "        return [batch.request]", SEARCH_ALL)]),
    Mistake("silent left-cropping at the context", 1, 1, "silently cut at its beginning", [
        ("engine.py", "if num_tokens >= self.max_model_len", "if False"),
        ("request.py", "min(params.max_tokens, max_length - len(prompt_token_ids))", "params.max_tokens"),
        ("batch.py", "torch.tensor(request.token_ids", "torch.tensor(request.token_ids[-64:]"),
    ]),
    Mistake("a parameter that is accepted and ignored", 1, 1, "min_p is accepted and ignored", [("sampler.py", "if params.min_p > 0", "if False")]),
    Mistake("an option that is accepted and ignored", 1, 1, "LLM(no_such_thing=1)", [("llm.py", "EngineConfig(model, **options)", "EngineConfig(model, device='cpu')")]),
    Mistake("a stop string only within a token", 1, 1, "may begin in one token and end in a later one", [("support/text.py", "max(0, old_length - len(stop) + 1)", "old_length")]),
    Mistake("a stop string at the last token", 1, 1, "finish_reason and stop_reason", [("request.py", "elif stop := self.text.add(token_id, self._past_min_tokens):", "elif (stop := self.text.add(token_id, self._past_min_tokens)) and len(self.output_token_ids) < self.max_tokens:")]),
    Mistake("what is held back is lost", 1, 1, "held-back text was not sent", [("support/outputs.py", "len(text) if request.finished else request.text.num_final", "request.text.num_final")]),
    Mistake("one bad prompt kills a whole run", 1, 1, "a bad one must not cost the others", [("support/inputs.py", "if bad := [t for t in token_ids if not 0 <= t < vocab_size]", "if bad := []")]),
    Mistake("right padding, read at the last column", 2, 2, "rows are padded on the right", [
        ("batch.py", "[0] * n + sequence", "sequence + [0] * n"),
        ("batch.py", "num_padding=torch.tensor(num_padding", "num_padding=torch.tensor([0] * len(num_padding)"),
    ]),
    Mistake("no attention mask in a batch", 2, 2, "attend to it: the attention mask is missing", [("model.py", "own = columns >= num_padding[:, None]", "own = columns >= 0 * num_padding[:, None]")]),
    Mistake("no position ids in a batch", 2, 2, "count it as positions: a row's own first token has position 0", [("model.py", "(columns - num_padding[:, None])", "(columns - 0 * num_padding[:, None])")]),
    Mistake("one random generator for all rows", 2, 2, "rows share one random generator", [("sampler.py", "uniform(request.seed, len(request.output_token_ids))", "__import__('random').random()")]),
    Mistake("ended rows are not counted", 2, 2, "padding is everything that goes through the model in vain", [("batch.py", "return self.token_ids.numel() - self.num_tokens", "return int(self.num_padding.sum())")]),
    Mistake("batches in the order of the prompts", 2, 2, "the longest prompts first", [("engine.py", "if self.config.sort_by_length", "if False")]),
    Mistake("results in the order of the lengths", 2, 2, "the right results in the wrong order", [("llm.py", "[RequestOutput.of(request) for request in requests]", "[RequestOutput.of(r) for r in sorted(requests, key=lambda r: len(r.prompt_token_ids))]")]),
    Mistake("everything is computed again", 2, 3, "you computed 459 tokens where 96 suffice", []),
    Mistake("decodes count the padding", 3, 3, "the first decode is wrong", [("model.py", "positions = (new - num_padding[:, None])", "positions = (new - num_padding[:, None] * (cache.length == 0))")]),
    Mistake("slots are filled when all are free", 3, 4, "a free slot stays empty", []),
    Mistake("prefills before decodes", 4, 4, "decodes come first", [("scheduler.py", "for request in self.running:", "for request in self.running[::-1]:\n            if not budget:\n                break")]),
    Mistake("a bad request is found in the step", 4, 4, "add_request must refuse", [("support/inputs.py", "if bad := [t for t in token_ids if not 0 <= t < vocab_size]", "if bad := []")]),
    Mistake("who is preempted goes on where it was", 5, 5, "prompt and output are computed again", [("scheduler.py", "request.num_computed_tokens = self.block_manager.allocate(request)", "request.num_computed_tokens = max(self.block_manager.allocate(request), request.num_tokens - 1 if request.output_token_ids else 0)")]),
    Mistake("blocks for all that may come", 5, 5, "each request reserves everything it may need", [("block_manager.py", "self.num_needed(sequence.num_tokens) - len(found))]", "self.num_needed(len(sequence.prompt_token_ids) + sequence.max_tokens - 1) - len(found))]")]),
    Mistake("blocks are named by their own tokens", 5, 6, "must stand for its whole prefix", [("block_manager.py", "Key(prefix_ids[-1] if prefix_ids else ROOT, ", "Key(ROOT, ")]),
    Mistake("a hash is trusted", 5, 6, "must stand for its whole prefix", [("block_manager.py", "tuple(token_ids[start : start + self.block_size]))", "(sum(token_ids[start : start + self.block_size]),))")]),
    Mistake("what is taken can still be found", 5, 6, "evict a block's entry when the block is taken", [("block_manager.py", "            self._evict(block)\n", "")]),
    Mistake("guesses are committed unverified", 7, 7, "guess that differs is replaced", [("engine.py", "            updated += self.commit(", UNVERIFIED)]),
    Mistake("the row behind a rejected guess is read", 7, 7, "the rows after a rejected guess saw a wrong token", [("batch.py", " and request.output_token_ids[-1] == draft[0]", "")]),
    Mistake("rejected guesses count as computed", 7, 7, "likely:", [("speculator.py", "            if not request.finished:\n", "            request.num_computed_tokens += len(drafts[request]) - accepted[request]\n            if not request.finished:\n")]),
    Mistake("right guesses are computed again", 7, 7, "it counts as computed", [("batch.py", "Row(request, 1, ready=True)", "Row(request, 0, ready=True)")]),
    Mistake("nothing comes behind the last guess", 7, 7, "after the last right guess there is one more token", [("batch.py", "return bool(draft) and", "return len(draft or ()) > 1 and")]),
    Mistake("guesses beyond max_tokens", 7, 7, "don't guess past the end", [("speculator.py", "min(request.max_tokens - len(request.output_token_ids) - 1, MAX_DRAFTS)", "MAX_DRAFTS")]),
    Mistake("a guess counts behind the end", 7, 7, "nothing follows a token that ends the output", [("batch.py", " and not request.finished", "")]),
    Mistake("guesses take blocks that are not free", 7, 7, "dictionary is empty", [("block_manager.py", " and self.num_free > self.watermark_blocks:\n            blocks.append", ":\n            blocks.append")]),
    Mistake("scales in the type of the row", 8, 8, "it should be torch.float32", [("quantize.py", "    x = x.float()\n    scale", "    scale")]),
    Mistake("one scale for all rows", 8, 8, "one scale for all rows; each row has its own", [("quantize.py", "x.abs().amax(dim=-1, keepdim=True) / LARGEST", "x.abs().amax().expand(*x.shape[:-1], 1) / LARGEST")]),
    Mistake("a scale for each column", 8, 8, "a scale per column", [("quantize.py", "x.abs().amax(dim=-1, keepdim=True)", "x.abs().amax(dim=-2, keepdim=True)")]),
    Mistake("integers are cut off", 8, 8, "this truncates", [("quantize.py", ".round()", "")]),
    Mistake("the largest becomes 128", 8, 8, "becomes 127 or -127", [("quantize.py", "LARGEST = 127", "LARGEST = 128"), ("quantize.py", ".round()", ".round().clamp(-128, 127)")]),
    Mistake("a row of zeros is NaN", 8, 8, "a row of zeros", [("quantize.py", "torch.where(scale > 0, 1 / scale, 0)", "1 / scale"), ("quantize.py", ".to(torch.int8), scale", ".to(torch.int8), scale * per_unit / per_unit")]),
    Mistake("activations stay floats", 8, 8, "activations are rounded too", [("quantize.py", "        integers, scale = quantize(x)  # [n, in], [n, 1]\n        y = multiply(integers, self.weight) * (scale * self.scales)", "        y = x @ self.weight.to(x.dtype).t() * self.scales")]),
    Mistake("the row's scale is forgotten", 8, 8, "the row's is missing", [("quantize.py", "* (scale * self.scales)", "* self.scales")]),
    Mistake("the bias is scaled", 8, 8, "add the bias at the end", [("quantize.py", "y + self.bias.float()", "y + self.bias.float() * scale * self.scales")]),
    Mistake("the vocabulary is not quantized", 8, 8, "whether wte.weight is taken", [("quantize.py", ' or path == "wte"):', "):")]),
    Mistake("all matrices are taken", 8, 8, "norms, biases and positions stay", [("quantize.py", "isinstance(module, nn.Linear)", "isinstance(module, nn.Linear | nn.Embedding)"), ("quantize.py", "module.bias)", "getattr(module, 'bias', None))")]),
    Mistake("what is taken is kept in floats, too", 8, 8, "whether", [("quantize.py", "        return True\n", "        return False\n")]),
    Mistake("nothing takes the place of a layer", 8, 8, "replaces a module", [("quantize.py", "        model.set_submodule(path, Int8", "        (path, Int8")]),
    Mistake("the vocabulary is a layer like others", 8, 8, "Int8Embedding", [("quantize.py", 'Int8Embedding(tensor) if path == "wte" else Int8Linear(tensor, module.bias)', 'Int8Linear(tensor, getattr(module, "bias", None))')]),
    Mistake("layers lose their biases", 8, 8, "a layer keeps its bias", [("quantize.py", "Int8Linear(tensor, module.bias)", "Int8Linear(tensor)")]),
    Mistake("vectors are integers", 8, 8, "multiply each by its token's scale", [("quantize.py", "self.weight[x] * self.scales[x, None]", "self.weight[x].float()")]),
    Mistake("as-is is rounded, too", 8, 8, "from output token", [("runner.py", "quantize_on_load(self.model) if self.int8 else None", "quantize_on_load(self.model)")]),
    Mistake("int8 is only a name", 8, 8, "nothing was rounded", [("runner.py", "quantize_on_load(self.model) if self.int8 else None", "None")]),
    Mistake("a request without tokens is admitted", 4, 4, "no token of the step is left", [("scheduler.py", " or not budget", "")]),
    Mistake("a prompt that must come whole is cut", 4, 4, "B's prompt must come whole", [("scheduler.py", "return self.enable_chunked_prefill or request.num_new_tokens <= budget", "return True")]),
    Mistake("steps are not counted", 4, 4, "the policies use", [("scheduler.py", "self.num_steps += 1", "pass")]),
    Mistake("who comes back gets another rank", 4, 4, "keeps it, and its place in the queue", [("scheduler.py", "if request.rank is None:", "if True:")]),
    Mistake("an abort without a reason", 4, 4, "others get `abort`", [("engine.py", 'request.finish("abort")', "pass")]),
    Mistake("no row is single", 4, 4, "A is the only single token", [("batch.py", "if num_tokens == 1:", "if False:")]),
    Mistake("n-grams of 16 bits", 7, 7, "tokens are compared whole", [("drafters.py", "ends[tuple(token_ids[end - n : end])]", "ends[tuple(t % 65536 for t in token_ids[end - n : end])]")]),
    Mistake("the drafter is asked for nothing", 7, 7, "don't call the drafter, which takes time", [("speculator.py", "self.drafter.draft(counts) if any(counts.values()) else {}", "self.drafter.draft(counts)")]),
    Mistake("token 0 is none", 7, 7, "0 is an ordinary token", [("speculator.py", "not 0 <= token_id < size", "not 0 < token_id < size")]),
    Mistake("a key has the first prefix id", 5, 6, "the last of `prefix_ids`", [("block_manager.py", "Key(prefix_ids[-1] if", "Key(prefix_ids[0] if")]),
    Mistake("a shared block is freed with its first holder", 5, 6, "A still holds the block", [("block_manager.py", "if self.ref_counts[block] == 0:\n            self._free[block] = None", "if True:\n            self._free[block] = None")]),
    Mistake("a duplicate takes the entry", 5, 6, "do not agree", [("block_manager.py", "if key not in self._entries:", "if True:")]),
    Mistake("rows and columns are added up", 3, 3, "as the longest prompt plus the longest output", [("engine.py", "len(larger) * self.cache_len(larger) > room", "len(larger) + self.cache_len(larger) > room")]),
    Mistake("sorted in any case", 2, 2, "in the given order", [("engine.py", "if self.config.sort_by_length:", "if True:")]),
    Mistake("the shortest first", 2, 2, "the longest prompts first", [("engine.py", "reverse=True", "reverse=False")]),
    Mistake("always sorted", 3, 3, "in the given order", [("engine.py", "if self.config.sort_by_length:", "if True:")]),
    Mistake("never sorted", 3, 3, "the longest prompts first", [("engine.py", "if self.config.sort_by_length:", "if False:")]),
    Mistake("a batch of all that have room", 3, 3, "at most `max_num_seqs` rows", [("engine.py", " and len(rows) < self.config.max_num_seqs", "")]),
    Mistake("a failed row has no token", 3, 3, "failed before its first token", [("batch.py", "[-1:] or [0]", "[-1:]")]),
    Mistake("a prompt as long as the context", 3, 1, "must not be cut silently", [("engine.py", "if num_tokens >= self.max_model_len", "if num_tokens > self.max_model_len")]),
    Mistake("what just fits is refused", 3, 3, "all 40 are computed", [("engine.py", "if needed > room", "if needed >= room")]),
    Mistake("the first eight tokens of a block", 5, 6, "all tokens of its block", [("block_manager.py", "tuple(token_ids[start : start + self.block_size])", "tuple(token_ids[start : start + self.block_size][:8])")]),
    Mistake("a decode is called a prefill", 3, 3, "while the cache is empty", [("batch.py", "is_prefill=cache.length == 0", "is_prefill=True")]),
    Mistake("blocks that can be found are taken first", 5, 6, "that are not in the cache are taken first", [("block_manager.py", "if block not in self._keys:", "if block in self._keys:")]),
    Mistake("found blocks cost nothing", 5, 6, "because they are free", [("block_manager.py", "num_new + sum(self.ref_counts[block] == 0 for block, _ in found)", "num_new")]),
    Mistake("no reserve", 5, 5, "which is the reserve for running requests", [("scheduler.py", "reserve = manager.watermark_blocks if self.running else 0", "reserve = 0")]),
    Mistake("more run than may", 5, 5, "`max_num_seqs` is 3", [("scheduler.py", "len(self.running) >= self.max_num_seqs or ", "")]),
    Mistake("a request that fits goes ahead", 5, 5, "C comes after B, which waits for blocks", [
        ("scheduler.py", "self._can_admit(self.waiting[0], budget):", "any(self._can_admit(request, budget) for request in self.waiting):"),
        ("scheduler.py", "request = self.waiting.pop(0)", "request = next(request for request in self.waiting if self._can_admit(request, budget))\n            self.waiting.remove(request)"),
    ]),
    Mistake("admitted in a step with a preemption", 5, 5, "in such a step no request is admitted", [("scheduler.py", " and not was_preempted", "")]),
    Mistake("no free block, although none is needed", 5, 5, "A's last block has room for its last token", [("block_manager.py", "return self.num_free > 0 or self.num_needed(sequence.num_tokens) <= len(self._tables[sequence].blocks)", "return self.num_free > 0")]),
    Mistake("preemptions count twice", 5, 5, "B was preempted once", [("scheduler.py", "request.num_preemptions += 1", "request.num_preemptions += 2")]),
    Mistake("first scheduled when it comes back", 5, 5, "it stays as it was", [("scheduler.py", "if request.first_scheduled_time is None:", "if True:")]),
    Mistake("a key has a hash", 5, 6, "not a hash of them", [("block_manager.py", "tuple(token_ids[start : start + self.block_size])", "(hash(tuple(token_ids[start : start + self.block_size])),)")]),
    Mistake("freed blocks are taken last", 5, 6, "not in the cache are taken first", [("block_manager.py", "self._free.move_to_end(block, last=False)", "pass")]),
    Mistake("steps without a count", 1, 1, "after the token is added", [("engine.py", "        self.stats.count(batch, [batch.request])\n", "")]),
    Mistake("multiplied by the temperature", 1, 1, "divided by the temperature", [("sampler.py", "(scores - best) / params.temperature", "(scores - best) * params.temperature")]),
    Mistake("a nucleus of what is likelier than average", 1, 1, "sum to at least p", [("sampler.py", "(1 - p) * total", "(1 + p) * total")]),
    Mistake("a token of weight 0 is drawn", 1, 1, "is never drawn", [("sampler.py", "right=True", "right=False")]),
    Mistake("a stop string that was allowed", 1, 1, "within the first min_tokens tokens", [("support/text.py", "old_length - len(stop) + 1)", "old_length - len(stop))")]),
    Mistake("the stop string that is first in the alphabet", 1, 1, "the one that begins first", [("support/text.py", "key=lambda pair: pair[0])", "key=lambda pair: pair[1])")]),
    Mistake("what may be a stop string is told", 1, 1, "they are held back", [("support/text.py", "return min((self._held_back_from(stop) for", "return max((self._held_back_from(stop) for")]),
    Mistake("what is kept is held back", 1, 1, "nothing is held back", [("support/text.py", "            return len(self.text)\n        return min", "            pass\n        return min")]),
    Mistake("more than p", 1, 1, "the others are dropped", [("sampler.py", "(descending.cumsum(dim=-1) < p * total)", "(descending.cumsum(dim=-1) <= p * total)")]),
    Mistake("an error that is lost", 1, 1, "and `sample` returns it", [("sampler.py", "        return error\n", "        return None\n")]),
    Mistake("the end token is never ignored", 1, 1, "is an ordinary token", [("request.py", "if token_id in self.eos_token_ids and not self.params.ignore_eos:", "if token_id in self.eos_token_ids:")]),
    Mistake("min-p before top-p", 1, 1, "top_p comes before min_p", [("sampler.py", TOP_P + MIN_P, MIN_P + TOP_P)]),
    Mistake("top-k after top-p", 1, 1, "top_k comes before top_p", [("sampler.py", TOP_K, ""), ("sampler.py", TOP_P, TOP_P + "    if params.top_k > 0:\n        weights = keep_top_k(weights.log(), params.top_k).exp()\n")]),
    Mistake("log-probabilities after the penalties", 1, 1, "before penalties and temperature", [("sampler.py", "raw_logprobs(logits, token_id", "raw_logprobs(penalize(logits, request), token_id")]),
    Mistake("log-probabilities after the temperature", 1, 1, "before penalties and temperature", [("sampler.py", "raw_logprobs(logits, token_id", "raw_logprobs(logits / (request.params.temperature or 1), token_id")]),
    Mistake("columns are copied", 3, 3, "views without a copy", [("kv_cache.py", "return keys, values", "return keys.clone(), values.clone()")]),
    Mistake("values are copied", 3, 3, "views without a copy", [("kv_cache.py", "return keys, values", "return keys, values.clone()")]),
    Mistake("the highest priority number first", 4, 4, "the lowest number first", [("scheduler.py", "request.rank = policy_rank", "request.rank = -policy_rank")]),
    Mistake("all are ranked by arrival", 4, 4, "the lowest number first", [("scheduler.py", "policy_rank(self.policy, request, self.num_steps)", "0")]),
    Mistake("who is preempted goes to the end of the queue", 5, 5, "keeps its rank", [("scheduler.py", "        request.reset_to_waiting()\n", "        request.reset_to_waiting()\n        request.rank = None\n")]),
    Mistake("the last admitted is preempted", 5, 5, "the last in rank", [("scheduler.py", "last, preempted = by_rank.pop() if by_rank else request, True", "last, preempted = self.running[-1], True\n                by_rank = deque(one for one in by_rank if one is not last)")]),
    Mistake("blocks in the order of admission", 5, 5, "the last in rank", [
        ("scheduler.py", "deque(sorted(self.running, key=lambda request: request.rank))", "deque(self.running)"),
    ]),
    Mistake("blocks are freed from the front", 5, 6, "the last one first", [("block_manager.py", "reversed(self._tables.pop(sequence).blocks)", "self._tables.pop(sequence).blocks")]),
    Mistake("a prefix id is its block's number", 5, 6, "never used again", [("block_manager.py", "= block, self._next_prefix_id", "= block, block + 1")]),
    Mistake("another prompt's keys", 5, 6, "never used again", [
        ("block_manager.py", "reversed(self._tables.pop(sequence).blocks)", "self._tables.pop(sequence).blocks"),
        ("block_manager.py", "= block, self._next_prefix_id", "= block, block + 1"),
    ]),
    Mistake("cached tokens are counted again", 5, 6, "the first time", [("scheduler.py", "            request.num_cached_tokens = request", "        request.num_cached_tokens = request")]),
    Mistake("no matches of four tokens", 7, 7, "the longest match counts", [("drafters.py", "range(self.longest, self.shortest - 1, -1)", "range(self.longest - 1, self.shortest - 1, -1)")]),
    Mistake("matches of a single token", 7, 7, "at least `shortest`", [("drafters.py", "longest, shortest = 4, 2", "longest, shortest = 4, 1")]),
    Mistake("small numbers become 0", 8, 8, "a row of small numbers", [("quantize.py", "keepdim=True) / LARGEST", "keepdim=True).clamp_min(1e-5) / LARGEST")]),
]  # fmt: skip
FOUND_EARLIER = (  # by a milestone whose engine of the learner's could not make the mistake
    "a bad request is found in the step",
    "one random generator for all rows",
    "decodes count the padding",
    "who is preempted goes on where it was",
    "blocks for all that may come",
    "what is taken can still be found",
    "blocks are named by their own tokens",
    "more run than may",
)
by_mistake = pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)


@by_mistake
def test_a_mistake_is_told(mistake, tmp_path):
    (number, _, state, message) = told(mistake.make(tmp_path), [mistake.milestone])[-1]
    assert (number, state) == (mistake.milestone, WRONG)
    assert mistake.words in message
    assert message.startswith("case:")


@pytest.mark.soak
@by_mistake
def test_the_milestones_before_a_mistake_pass(mistake, tmp_path):
    if mistake.name in FOUND_EARLIER or mistake.stage >= 7:  # which guesses by default
        pytest.skip("an earlier milestone finds it, in another way")
    assert told(mistake.make(tmp_path), list(range(1, mistake.milestone))) == []


# Right engines of other styles: (name, stage and milestone, edits)
RIGHT = [
    ("an ended row is only padding", 2, 2, [
        ("batch.py", "sequences = [request.token_ids for", "sequences = [[] if request.finished else request.token_ids for"),
        ("batch.py", "n_seq = max(map(len, sequences))", "n_seq = max(len(request.token_ids) for request in requests)"),
    ]),
    ("a prefill is what has no output", 3, 3, [("batch.py", "is_prefill=cache.length == 0", "is_prefill=not any(request.output_token_ids for request in requests)")]),
    ("the scale of zeros is 1", 8, 8, [("quantize.py", "    per_unit = torch.where(scale > 0, 1 / scale, 0)", "    scale = torch.where(scale > 0, scale, 1.0)\n    per_unit = 1 / scale")]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "stage", "milestone", "edits"), RIGHT, ids=[name for name, *_ in RIGHT])
def test_another_right_engine_passes(name, stage, milestone, edits, tmp_path):
    assert told(Mistake(name, stage, milestone, "", edits).make(tmp_path), [milestone]) == []


# (a stage, a milestone, what checks the verb, and an edit of a file that only this verb needs to notice)
VERBS = [
    (1, 1, "batch: the whole sequence", "batch.py", "torch.tensor(request.token_ids", "torch.tensor(request.prompt_token_ids"),
    (1, 1, "forward: the logits", "runner.py", "self.model(batch.token_ids)", "self.model(batch.token_ids[:-1])"),
    (1, 1, "sample: the best token", "sampler.py", "len(request.output_token_ids)))", "0))"),
    (1, 1, "commit: the token", "engine.py", "request.add_or_fail(token)", "request.add_or_fail((token[0] + 1, token[1]))"),
    (2, 2, "batch: a rectangle", "batch.py", "if not request.finished", "if True"),
    (3, 3, "cache: new columns", "kv_cache.py", "values[:, :, self.length :] = v", "values[:, :, self.length :] = k"),
    (3, 3, "batch: the prompts", "batch.py", "request.output_token_ids[-1:]", "request.output_token_ids[:1] * 2"),
    (4, 4, "schedule: the four steps", "scheduler.py", "self.free_slots = list(range(self.max_num_seqs))", "self.free_slots = list(range(self.max_num_seqs + 1))"),
    (4, 4, "batch: single tokens first", "batch.py", "positions += range(start, end)", "positions += range(num_tokens)"),
    (4, 4, "cache: each token", "kv_cache.py", "values[slots, :, positions] = v", "values[slots, :, positions] = k"),
    (5, 5, "blocks: allocated when", "block_manager.py", "-(-num_tokens // self.block_size)", "num_tokens // self.block_size + 1"),
    (5, 5, "cache: keys and values", "kv_cache.py", "self.values[layer][blocks, :, offsets] = v", "self.values[layer][blocks, :, offsets] = k"),
    (5, 6, "blocks: the chapter's two prompts", "block_manager.py", "<= sequence.num_cacheable", "<= sequence.num_cacheable + 1"),
    (7, 7, "look up: what followed", "drafters.py", "ends[tuple(token_ids[end - n : end])] = end", "ends.setdefault(tuple(token_ids[end - n : end]), end)"),
    (7, 7, "verify: which requests go on", "batch.py", "at[request] + 1", "at[request]"),
    (7, 7, "blocks: room for guesses", "block_manager.py", "while len(blocks) > self.num_needed(num_tokens)", "while len(blocks) > self.num_needed(num_tokens) + 1"),
    (8, 8, "quantize: each row", "quantize.py", ".round()", ".floor()"),
    (8, 8, "linear layer: sums", "quantize.py", "(y if self.bias is None else y + self.bias.float()).to(x.dtype)", "(y if self.bias is None else y + self.bias.float())"),
    (8, 8, "vocabulary: the vectors", "quantize.py", "self.scales[x, None]", "self.scales[:1]"),
    (8, 8, "weights: every matrix", "quantize.py", "isinstance(module, nn.Linear)", "isinstance(module, nn.Linear) and 'c_fc' not in name"),
]  # fmt: skip


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: f"{verb[1]} {verb[2]}")
def test_a_verb_is_checked_by_itself(verb, tmp_path):
    """It is checked before any whole engine runs."""
    stage, milestone, what, *edit = verb
    (number, first, state, message) = told(
        Mistake(what, stage, milestone, "", [tuple(edit)]).make(tmp_path), [milestone]
    )[0]
    assert (number, state) == (milestone, WRONG)
    assert first.startswith(what)
    assert "case:" in message


CUT = """            draft = self.truncate_at_eos(request, draft[: counts[request]])[:left]
            if draft := draft[: self.block_manager.extend(request, len(draft))]:
"""
CUT_AT_END = "            draft = self.truncate_at_eos(request, draft[: counts[request]])\n"
CUT_AT_BUDGET = "            draft = draft[: counts[request]][:left]\n"
TAKEN = "            room = self.block_manager.extend(request, len(draft))\n"
# (what checks the verb of stage 7, module, text of it, what stands there instead, what is told)
OF_SPECULATION = [
    ("check_ahead", "block_manager", "while len(blocks) < self.num_needed(end) and", "if len(blocks) < self.num_needed(end) and", "several blocks may be needed"),
    ("check_ahead", "block_manager", "while len(blocks) > self.num_needed(num_tokens)", "if len(blocks) > self.num_needed(num_tokens)", "not only the last"),
    ("check_ahead", "block_manager", "self.num_free > self.watermark_blocks:\n            blocks", "self.num_free > 0:\n            blocks", "the reserve is for running requests"),
    ("check_drafts", "speculator", "[:left]\n", "\n", "toward the step's budget"),
    ("check_drafts", "speculator", "token_id in ending or not", "not", "nothing follows the end token"),
    ("check_drafts", "speculator", " or not 0 <= token_id < size", "", "not in the vocabulary"),
    ("check_drafts", "speculator", "if row.ready and row.request", "if row.request", "C's row is not ready"),
    ("check_drafts", "speculator", "if row.ready and row.request.output_token_ids", "if row.ready", "B has no output yet"),
    ("check_drafts", "speculator", "self.block_manager.extend(request, len(draft))]", "self.block_manager.extend(request, len(draft)) + 4]", "is room"),
    ("check_drafts", "speculator", CUT, CUT_AT_BUDGET + TAKEN + CUT.replace("self.block_manager.extend(request, len(draft))", "room"), "only for guesses that go through"),
    ("check_drafts", "speculator", CUT, CUT_AT_END + TAKEN + CUT.replace("self.block_manager.extend(request, len(draft))", "room"), "only for guesses that go through"),
    ("check_stepped", "engine", "return list(dict.fromkeys(updated))", "return updated", "each request once"),
    ("check_stepped", "engine", "self.speculator.update(drafts, updated).items()", "{}.items()", "frees the blocks of rejected guesses"),
    ("check_stepped", "engine", "self.speculator.update(drafts, updated)", "self.speculator.update(drafts, list(dict.fromkeys(updated)))", "each as many times as it got one"),
    ("check_stepped", "speculator", "                self.block_manager.trim(request, request.num_computed_tokens)", "                pass", "frees the blocks of rejected guesses"),
]  # fmt: skip


def test_what_milestone_7_may_leave_out(tmp_path, monkeypatch):
    """One engine's methods are replaced, by one mistake after another."""
    lab = Lab(OwnEngine(ROOT / STAGES[6].directory), tmp_path)
    for name in {name for name, *_ in OF_SPECULATION}:
        getattr(verbs, name)(lab)
    for name, part, right, wrong, words in OF_SPECULATION:
        module = lab.own.part(part)
        text = Path(module.__file__).read_text(encoding="utf-8")
        assert right in text
        edited = dict(vars(module))
        exec(compile(text.replace(right, wrong), module.__file__, "exec"), edited)
        with monkeypatch.context() as patch:
            for kind in [kind for kind in vars(module).values() if getattr(kind, "__module__", "") == module.__name__]:
                for method, value in vars(edited[kind.__name__]).items():
                    if isinstance(value, types.FunctionType) and not method.startswith("__"):
                        patch.setattr(kind, method, value)
            with pytest.raises(Wrong, match=words):
                getattr(verbs, name)(lab)


@pytest.mark.soak
def test_a_request_that_waits_for_ever_is_ended(tmp_path):
    """A request larger than the whole cache is preempted forever: the limit on CPU time ends it, and says where."""
    fits = ("engine.py", "if needed > self.runner.num_blocks", "if False")
    idle = (
        "engine.py",
        "        batch = Batch.of(rows,",
        "        if not rows:\n            return []\n        batch = Batch.of(rows,",
    )
    directory = Mistake("a request larger than the cache", 5, 3, "", [fits, idle]).make(tmp_path)
    *passed, (number, _, state, message) = outcomes_in_time(directory, [3], seconds=6)
    assert {outcome[2] for outcome in passed} == {PASSED}
    assert (number, state) == (3, WRONG)
    assert "a cache of 40 tokens" in message
    assert "is there a loop that does not end?" in message


# --- What an engine does not have -------------------------------------------------------------------------------------

SMALL = """
    from {stage} import LLM as Whole, SamplingParams

    class LLM:
        def __init__(self, model, device="cpu"):
            self._whole = Whole(model, device=device)

        def generate(self, prompts, sampling_params):
            return self._whole.generate(prompts, sampling_params)
"""


@pytest.fixture
def small_engine(tmp_path):
    """An engine that can only `generate`."""
    (tmp_path / "small").mkdir()
    text = textwrap.dedent(SMALL.format(stage=STAGES[0].directory))
    (tmp_path / "small" / "__init__.py").write_text(text)
    return tmp_path / "small"


def test_what_an_engine_does_not_have_is_told(small_engine):
    """It passes what can be checked."""
    found = told(small_engine, [1])
    assert {outcome[2:] for outcome in found} == {(MISSING, "LLM has no `stream`")}


def test_an_engine_without_any_of_it_is_stopped(small_engine, capsys):
    assert cli.main(["engine", "--directory", str(small_engine), "2"]) == 1
    out = capsys.readouterr().out
    assert "– the first token of rows of unequal lengths, in one batch (LLM takes no option 'max_num_seqs')" in out
    assert "nothing of this milestone is written yet" in out


def test_an_error_of_the_engine_names_the_case_and_the_line(small_engine):
    path = small_engine / "__init__.py"
    path.write_text(path.read_text().replace("return self._whole", "len(5)\n        return self._whole"))
    ((_, what, state, message),) = told(small_engine, [1])
    assert what.startswith("the first token")
    assert state == WRONG
    assert "a prompt of 3 tokens, greedy, 1 token" in message
    assert "TypeError: object of type 'int' has no len()" in message
    assert "__init__.py, line 9: len(5)" in message


def test_an_error_of_the_check_is_not_the_engines(small_engine, tmp_path):
    lab = Lab(OwnEngine(small_engine), tmp_path)

    def in_a_case(lab):
        with lab.case("a file that is not there"):
            Path("/nothing_like_it").read_text()

    for check in (lambda lab: Path("/nothing_like_it").read_text(), in_a_case):
        with pytest.raises(FileNotFoundError):
            run_check(check, lab)
    path = small_engine / "__init__.py"
    path.write_text(
        path.read_text().replace("return self._whole", "open('/nothing_like_it')\n        return self._whole")
    )
    ((*_, state, message),) = told(small_engine, [1])
    assert (state, "__init__.py, line 9" in message) == (WRONG, True)


def test_an_engine_that_ends_the_process_fails(small_engine):
    (small_engine / "__init__.py").write_text("import os\nos._exit(7)\n")
    ((*_, state, message),) = outcomes_in_time(small_engine, [1])
    assert (state, message) == (WRONG, "got:       the process that ran it ended with status 7")


def test_what_is_no_engine_is_named(tmp_path, capsys):
    with pytest.raises(ValueError, match=r"is not an engine: it has no __init__\.py"):
        OwnEngine(tmp_path)
    (tmp_path / "__init__.py").write_text("LLM = 1")
    with pytest.raises(ValueError, match=r"its __init__\.py has no SamplingParams"):
        OwnEngine(tmp_path)
    (tmp_path / "__init__.py").write_text("import nothing_like_it")
    assert cli.main(["engine", "--directory", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert f"{tmp_path} can't be imported: ModuleNotFoundError: No module named 'nothing_like_it'" in err


def test_bad_arguments_are_named(tmp_path, capsys):
    assert cli.main(["engine", "--directory", str(tmp_path / "none")]) == 2
    assert "`python -m exercises start 1` makes one" in capsys.readouterr().err
    for arguments, words in ((["engine", "9"], "there is no milestone 9"), (["start", "0"], "invalid choice: 0")):
        with pytest.raises(SystemExit):
            cli.main(arguments)
        assert words in capsys.readouterr().err


def test_the_cases_are_what_they_say(tmp_path):
    """What a check relies on: the network without mistakes is stage 1's, and no mistake gives the right result."""
    lab = Lab(OwnEngine(ROOT / STAGES[0].directory), tmp_path)
    network, prompts = lab.network(lab.model()), prompts_of(*LENGTHS)
    best = lambda logits: float(logits.log_softmax(-1).max())  # noqa: E731
    right = [best(network.logits(prompt)) for prompt in prompts]
    settings = {"temperature": 0, "max_tokens": 1, "logprobs": 1}
    assert [result.logprobs[0] for result in lab.expected(prompts, settings)] == pytest.approx(right, abs=1e-5)
    mistakes = [{**network.mistakes(prompt), **network.mistakes_in_company(prompt, 32)} for prompt in prompts]
    for said in mistakes[0]:
        apart = [abs(best(logits[said]) - one) for logits, one in zip(mistakes, right, strict=True)]
        assert max(apart) > 1e-4, said
    whole = lab.expected([[1, 2]], {"temperature": 0, "max_tokens": 60}, lab.model(readable=False))[0]
    assert "\ufffd" in whole.text


# --- Skeletons --------------------------------------------------------------------------------------------------------

by_milestone = pytest.mark.parametrize("milestone", MILESTONES, ids=lambda milestone: milestone.title)


@by_milestone
def test_a_skeleton_is_its_stage_without_the_idea(milestone):
    for name, content in skeletons.skeleton(milestone).items():
        original = (ROOT / milestone.stage / name).read_bytes()
        empty = {*milestone.to_write.get(name, ()), *milestone.later.get(name, {})}
        if not empty:
            assert content == original
            continue
        before, after = (skeletons.functions(ast.parse(text)) for text in (original, content))
        assert before.keys() == after.keys()
        for function, node in before.items():
            assert ast.get_docstring(after[function]) == ast.get_docstring(node)
            assert ast.dump(after[function].args) == ast.dump(node.args)
            same = ast.dump(after[function]) == ast.dump(node)
            assert same == (function not in empty), function


@by_milestone
def test_a_skeleton_says_what_is_not_written(milestone, tmp_path):
    skeletons.start(milestone.number, tmp_path / "mine")
    (*_, state, message) = told(tmp_path / "mine", [milestone.number])[-1]
    assert state == BLANK
    assert "is not written yet" in message


def test_the_loop_has_four_verbs(tmp_path):
    skeletons.start(1, tmp_path / "mine")
    step = (tmp_path / "mine" / "engine.py").read_text().split("def step")[1].split("def commit")[0]
    assert [line.split()[1] for line in step.splitlines() if "# " in line] == [
        "build:",
        "forward:",
        "sample:",
        "commit:",
    ]


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def test_nobodys_work_is_overwritten(tmp_path, capsys):
    mine = tmp_path / "mine"
    command = ["start", "2", "--directory", str(mine)]
    assert cli.main(command) == 0
    assert cli.main(command) == 0  # nobody has written anything
    (mine / "engine.py").write_text("# my work\n")
    before = contents(mine)
    capsys.readouterr()
    assert cli.main(command) == 2
    err = capsys.readouterr().err
    assert err == (
        f"exercises: {mine}/ contains your work (engine.py); `start 2 --aside` moves it to mine-1/ and goes on from there\n"
    )
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


def test_what_needs_no_change_stays_the_learners(tmp_path):
    """From 2 to 3: the sampler is the same in both stages, the model is not, and the learner's own helpers are kept."""
    mine = tmp_path / "mine"
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


def test_what_is_not_finished_is_taken_from_the_stage(tmp_path):
    mine = tmp_path / "mine"
    skeletons.start(1, mine)
    with (mine / "sampler.py").open("a") as file:
        file.write("# begun\n")
    said = skeletons.start(2, mine, aside=True)
    assert "Not finished, so replaced by the stage's: sampler.py" in said
    assert (mine / "sampler.py").read_bytes() == (ROOT / STAGES[1].directory / "sampler.py").read_bytes()


def test_from_blocks_to_sharing_only_the_new_functions_are_empty(tmp_path):
    mine = tmp_path / "mine"
    skeletons.start(5, mine)
    manager = mine / "block_manager.py"
    own = (ROOT / STAGES[4].directory / "block_manager.py").read_text() + "\n# written by me\n"
    manager.write_text(own)
    skeletons.start(6, mine, aside=True)
    text = manager.read_text()
    assert text.endswith("# written by me\n")
    assert text.count("raise NotImplementedError") == len(MILESTONES[5].to_write["block_manager.py"])
