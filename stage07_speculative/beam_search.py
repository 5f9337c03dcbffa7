"""Beam search: of all continuations of the `beam_width` best sequences, keep the `beam_width` best, token by token.

The beams of a prompt share the blocks of what they have in common. In each step a beam may die, go on, or become the
parent of several; a child is a fork, so of the KV cache only a shared last block is copied, when a beam writes to it.

The rules (what counts as finished, and when to stop) are those of Hugging Face's `generate(num_beams=...)`:
transformers, generation/utils.py, `_beam_search`.
"""

import copy
import math
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from .batch import Batch
from .engine import Engine
from .request import Request
from .scheduler import Row
from .support.logprobs import NOT_FINITE
from .support.outputs import RequestOutput
from .support.sampling_params import check_integer, check_number


class BeamSearch:
    """The search for one prompt.

    Attributes:
        beams: the sequences that are still growing, the best first; at first the prompt alone, at the end none.
        logprobs: the log-probability of each beam.
        finished: (score, log-probability, output tokens) of the best that have ended, the best first.
        finished_time: when the search was done, in seconds of time.perf_counter.
    """

    def __init__(self, request: Request, beam_width: int, length_penalty: float):
        self.request, self.beam_width, self.length_penalty = request, beam_width, length_penalty
        self.beams, self.logprobs = [request], [0.0]
        self.finished: list[tuple[float, float, list[int]]] = []
        self.finished_time: float | None = None

    def num_blocks(self, block_size: int) -> int:
        """The most blocks that its beams can hold: at worst they share only the prompt's full blocks."""
        shared = len(self.request.prompt_token_ids) // block_size
        longest = len(self.request.prompt_token_ids) + self.request.max_tokens - 1
        return shared + self.beam_width * (-(-longest // block_size) - shared)

    def score(self, logprob: float, length: int) -> float:
        """A number that orders sequences as logprob / length**length_penalty does: minus the log of its absolute value,
        which can't overflow."""
        return math.inf if logprob >= 0 else self.length_penalty * math.log(length) - math.log(-logprob)

    def advance(self, logits: Tensor) -> list[Request]:
        """Replace the beams by their best continuations, or by none if the search is done. Returns the parent of each.

        logits: [n_beams, vocab_size] float32, of all beams
        """
        so_far = torch.tensor(self.logprobs, dtype=torch.float32, device=logits.device)
        logprobs = logits.log_softmax(dim=-1) + so_far[:, None]  # [n_beams, vocab_size]
        end_tokens, vocab_size = self.request.eos_token_ids, logits.shape[-1]
        # Enough candidates that beam_width are left even if every beam's end tokens are among them.
        count = min(max(2, 1 + len(end_tokens)) * self.beam_width, logprobs.numel())
        best, indices = logprobs.flatten().topk(count)
        if best.isnan().any():
            self.request.add_or_fail(ValueError(NOT_FINITE))
            self.beams = self.logprobs = []
            return []
        length = len(self.beams[0].output_token_ids) + 1
        parents, children, values = [], [], []
        for rank, (logprob, index) in enumerate(zip(best.tolist(), indices.tolist(), strict=True)):
            parent, token_id = self.beams[index // vocab_size], index % vocab_size
            if token_id in end_tokens or length == self.request.max_tokens:
                if rank < self.beam_width:
                    self.finished.append((self.score(logprob, length), logprob, [*parent.output_token_ids, token_id]))
            elif len(children) < self.beam_width:
                parents.append(parent)
                children.append(fork(parent, len(children), token_id))
                values.append(logprob)
        self.finished.sort(key=lambda hypothesis: -hypothesis[0])  # stable: of equal ones the earlier first
        del self.finished[self.beam_width :]
        # The best beam counts as if it ended now. With a penalty over 0 a longer one could still do better.
        full = len(self.finished) == self.beam_width
        if children and full and self.score(values[0], length) <= self.finished[-1][0]:
            parents, children, values = [], [], []
        self.beams, self.logprobs = children, values
        return parents

    def output(self) -> RequestOutput:
        """The result of a search that is done, was aborted or failed."""
        if self.request.finished:
            return RequestOutput.of([self.request])
        completions = [self.request.completion(index) for index in range(len(self.finished))]
        for completion, (_, _, token_ids) in zip(completions, self.finished, strict=True):
            for token_id in token_ids:
                completion.add(token_id)
        output = RequestOutput.of(completions)
        times = dict(first_token_time=None, finished_time=self.finished_time, inter_token_latencies=())  # all at once
        metrics = replace(output.metrics, **times)
        pairs = zip(output.outputs, self.finished, strict=True)
        outputs = [replace(completion, cumulative_logprob=logprob) for completion, (_, logprob, _) in pairs]
        return replace(output, outputs=outputs, metrics=metrics)


def fork(parent: Request, index: int, token_id: int) -> Request:
    """A beam that goes on from another with this token."""
    child = copy.copy(parent)
    child.index, child.output_token_ids = index, [*parent.output_token_ids, token_id]
    return child


def make_searches(engine: Engine, requests: list[Request], beam_width: int, length_penalty: float) -> list[BeamSearch]:
    """A search for each request, checked.

    Raises:
        ValueError: an argument is wrong, or the beams of a prompt could outgrow the KV cache.
    """
    most = min(engine.config.max_num_seqs, engine.config.max_num_batched_tokens)
    try:
        beam_width = check_integer("beam_width", beam_width, 1, most)
    except ValueError as error:
        raise ValueError(f"{error} (max_num_seqs and max_num_batched_tokens set the maximum)") from None
    length_penalty = check_number("length_penalty", length_penalty, -100, 100)
    searches = [BeamSearch(request, beam_width, length_penalty) for request in requests]
    manager = engine.block_manager
    for i, search in enumerate(searches):
        if (needed := search.num_blocks(manager.block_size)) > manager.num_blocks:
            raise ValueError(
                f"prompt {i}: its {beam_width} beams may need {needed} blocks of the KV cache, there are "
                f"{manager.num_blocks}"
            )
    return searches


class BeamEngine:
    """The engine's loop with another scheduler and another commit: same runner, same blocks. Other requests wait.

    Attributes:
        waiting: the searches that have not started, the next one last.
        active: the running searches, only as many as are sure to fit.
    """

    def __init__(self, engine: Engine):
        self.scheduler, self.block_manager, self.runner = engine.scheduler, engine.block_manager, engine.runner
        self.engine, self.waiting, self.active = engine, [], []
        self.copies: list[tuple[int, int]] = []  # (from, to) of the blocks to copy before the step

    def run(self, searches: list[BeamSearch], is_over: Callable[[], bool]) -> None:
        """Run all searches until they are done. When `is_over()` turns true, abort the rest."""
        self.waiting, self.active = searches[::-1], []
        try:
            while (self.waiting or self.active) and not is_over():
                with self.engine.stats.timing():
                    self.step()
            for beam in [beam for search in self.active for beam in search.beams]:
                self.block_manager.free(beam)
            for search in [*self.waiting, *self.active]:
                search.request.finish("abort")
        except BaseException:  # a step may have failed anywhere; only beams hold blocks
            self.block_manager.clear()
            raise
        finally:
            self.waiting, self.active = [], []
        for search in searches:
            self.engine.stats.count_ended(search.request)

    @torch.inference_mode()
    def step(self) -> None:
        """One forward pass over all beams that grow, and the next generation of them."""
        rows = self.schedule()
        self.runner.cache.copy_blocks(self.copies)
        batch = Batch.of(rows, self.block_manager, self.runner.device)
        logits = self.runner.forward(batch)  # [num_tokens] -> [n_beams, vocab_size]
        self.commit(batch, logits)

    def schedule(self) -> list[Row]:
        """All beams that grow, and as much of the prompts as the step has room for."""
        for request in list(self.scheduler.running):
            self.scheduler.preempt(request)
        while self.waiting and self._fits(self.waiting[-1]):
            self._admit(self.waiting.pop())
        manager, budget, rows, self.copies = self.block_manager, self.scheduler.max_num_batched_tokens, [], []
        for search in sorted(self.active, key=lambda search: search.beams[0].num_new_tokens > 1):  # decodes first
            for beam in search.beams:
                if num_tokens := min(beam.num_new_tokens, budget):
                    budget -= num_tokens
                    manager.append(beam)
                    self.copies += manager.copy_on_write(beam)
                    manager.cache_full_blocks(beam, beam.num_computed_tokens, beam.num_computed_tokens + num_tokens)
                    rows.append(Row(beam, num_tokens, ready=num_tokens == beam.num_new_tokens))
        return rows

    def _fits(self, search: BeamSearch) -> bool:
        """Whether a search is sure to fit next to the active ones. The first one always does: see `make_searches`."""
        config, candidates = self.engine.config, [*self.active, search]
        num_blocks = sum(search.num_blocks(self.block_manager.block_size) for search in candidates)
        num_beams = sum(search.beam_width for search in candidates)
        return num_beams <= min(config.max_num_seqs, config.max_num_batched_tokens) and (
            num_blocks <= self.block_manager.num_blocks
        )

    def _admit(self, search: BeamSearch) -> None:
        (beam,) = search.beams
        beam.num_computed_tokens = beam.num_cached_tokens = self.block_manager.allocate(beam)
        beam.first_scheduled_time = time.perf_counter()
        self.active.append(search)
        self.scheduler.emit("admitted", beam, num_cached_tokens=beam.num_computed_tokens)

    def commit(self, batch: Batch, logits: Tensor) -> None:
        """Replace the beams by their children, which take over their blocks. logits: [n_beams, vocab_size]"""
        for request, num_tokens, _ in batch.rows:
            request.num_computed_tokens += num_tokens
        self.engine.stats.count(batch, self.engine.kv_use())
        index = {beam: i for i, beam in enumerate(batch.ready)}
        for search in [search for search in self.active if search.beams[0] in index]:
            old = search.beams
            parents = search.advance(logits[[index[beam] for beam in old]])
            for parent, child in zip(parents, search.beams, strict=True):
                self.block_manager.fork(parent, child)
            for beam in old:
                self.block_manager.free(beam)
            token_ids = [child.output_token_ids[-1] for child in search.beams]
            parents = [parent.index for parent in parents]
            self.scheduler.emit("beams", search.request, parents=parents, token_ids=token_ids)
            if not search.beams:
                search.finished_time = time.perf_counter()
                self.scheduler.emit("finished", search.request, reason="beams")
        self.active = [search for search in self.active if search.beams]
