"""Decode steps on CUDA as graphs: recorded once for some batch sizes, then replayed.

A decode step of GPT-2 is hundreds of small kernels, and for each of them Python and the driver may take longer
than the GPU. A CUDA graph is the whole sequence as one object, launched at once. It replays the same kernels on the
same addresses, so a step's numbers are copied into tensors that stay where they are, and a batch is filled up to the
next size that was recorded, with rows that attend to a token in a block that no request owns.

Source: NVIDIA, "CUDA Programming Guide", CUDA graphs; Ng et al. 2021, "Accelerating PyTorch with CUDA Graphs".
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .batch import Batch
from .kv_cache import KVCache
from .model import GPT2


def batch_sizes(max_num_seqs: int) -> list[int]:
    """The sizes that are recorded: powers of two up to 8, then multiples of 8, so that filling up costs little."""
    sizes = [1, 2, 4, *range(8, max_num_seqs + 8, 8)]
    return [size for size in sizes if size < max_num_seqs] + [max_num_seqs]


class Recorder:
    """Records what a function does on the current GPU; the result replays it and gives the same output tensor, with new
    numbers.

    Its recordings share the memory between their kernels, as only one of them runs at a time, and a stream: libraries
    keep workspaces for every stream they have seen.
    """

    def __init__(self):
        self.stream, self.pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()

    def __call__(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        current = torch.cuda.current_stream()
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            run()  # compiles what is compiled on first use, which must not be recorded
        current.wait_stream(self.stream)
        graph = torch.cuda.CUDAGraph()
        # thread_local: what other threads do with the GPU meanwhile does not spoil the recording.
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
            out = run()

        def replay() -> Tensor:
            graph.replay()
            return out

        return replay


class GraphedGPT2(nn.Module):
    """A GPT-2 that replays decode steps, and runs all others as they are. A size is recorded when it is first needed.

    Args:
        model: the model whose steps are recorded.
        max_num_seqs: the largest batch.
        table_width: the most blocks of a request.
        spare_block: a block of the cache that no request gets.
        make_recorder: makes what records; `Recorder`, but for tests on a CPU.
    """

    def __init__(
        self, model: GPT2, max_num_seqs: int, table_width: int, spare_block: int, make_recorder: Callable = Recorder
    ):
        super().__init__()
        self.config, self.model, self.make_recorder = model.config, model, make_recorder
        self.record: Any = None  # made with the first graph, on the GPU of the cache
        self.logits: Tensor | None = None  # of all graphs, [max_num_seqs, vocab_size]
        self.sizes, self.table_width, self.spare_block = batch_sizes(max_num_seqs), table_width, spare_block
        self.graphs: dict[int, tuple[Batch, Callable[[], Tensor]]] = {}  # size -> (its inputs, its replay)

    def forward(self, batch: Batch, cache: KVCache) -> Tensor:
        """As `GPT2.forward`. The logits of a decode step are overwritten by the next one."""
        n = len(batch.token_ids)
        if not n == len(batch.seq_lens) == len(batch.last) or n > self.sizes[-1]:
            return self.model(batch, cache)
        size = next(size for size in self.sizes if size >= n)
        with torch.cuda.device_of(cache.keys):  # which need not be the current one
            if size not in self.graphs:
                self.graphs[size] = self.record_size(size, cache)
            inputs, replay = self.graphs[size]
            slot = self.spare_block * cache.block_size
            for name, empty in (("token_ids", 0), ("positions", 0), ("slot_mapping", slot), ("seq_lens", 1)):
                getattr(inputs, name)[:n] = getattr(batch, name)
                getattr(inputs, name)[n:] = empty
            inputs.block_tables[:n, : batch.block_tables.shape[1]] = batch.block_tables
            inputs.block_tables[n:] = self.spare_block
            return replay()[:n]  # [size, vocab_size] -> [n, vocab_size]

    def record_size(self, size: int, cache: KVCache) -> tuple[Batch, Callable[[], Tensor]]:
        if self.record is None or self.logits is None:
            self.record = self.make_recorder()
            shape = (self.sizes[-1], self.config.vocab_size)
            self.logits = torch.empty(shape, dtype=torch.float32, device=cache.keys.device)
        inputs, out = self.empty_step(size, cache), self.logits[:size]
        return inputs, self.record(lambda: out.copy_(self.model(inputs, cache)))

    def empty_step(self, size: int, cache: KVCache) -> Batch:
        """A decode step of requests that have one token, in the spare block."""
        number = lambda value: torch.full((size,), value, dtype=torch.int64, device=cache.keys.device)  # noqa: E731
        order = torch.arange(size + 1, dtype=torch.int64, device=cache.keys.device)
        tables = number(self.spare_block)[:, None].repeat(1, self.table_width)  # [size, table_width]
        slot = self.spare_block * cache.block_size
        return Batch(number(0), number(0), number(slot), tables, order, number(1), order[:-1])
