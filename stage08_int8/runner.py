"""The model on its device: from a batch to the logits of the tokens that follow."""

import contextlib
import math
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from .attention import pick_backend
from .batch import Batch
from .config import EngineConfig, enabled
from .fast_model import FastGPT2, pick_model
from .kernels.c_sampler import CSampler
from .kv_cache import KVCache, bytes_per_token, check_cache_bytes, default_cache_bytes
from .model import GPT2, ModelConfig
from .quantize import quantize_on_load
from .sampler import Token, sample_rows
from .support.device import check_fork, describe_device, pick_device, pick_dtype
from .support.memory import trim_malloc
from .support.openmp import WAITS_BRIEFLY
from .support.scoring import score_prompts
from .support.threads import ThreadLimit
from .support.weights import Checkpoint

MIN_FREE_CORES = 0.85  # with fewer, not even a single thread has a core to itself


def pick_int8(name: str, device: torch.device) -> bool:
    """Whether the option `weights` means int8 on this device. Raises ValueError where that can't run."""
    if name == "int8" and device.type != "cpu":
        raise ValueError(f"weights 'int8' run on a CPU, not on {device}; use 'as-is' there")
    return name != "as-is" and device.type == "cpu"


class Runner:
    """Owns the model and the KV cache.

    Args:
        config: the options of the engine.
        model_config: the sizes of the model.
        checkpoint: where its weights come from.
        max_model_len: the longest sequence, in tokens.
        promised: bytes of another cache that a CPU's system counts as free, because nothing is written there yet.
    """

    def __init__(
        self,
        config: EngineConfig,
        model_config: ModelConfig,
        checkpoint: Checkpoint,
        max_model_len: int,
        promised: int = 0,
    ):
        check_fork()
        self.device = pick_device(config.device)
        self.dtype = pick_dtype(config.dtype, self.device)
        self.thread_limit = ThreadLimit()
        n_head, head_dim, on = model_config.n_head, model_config.n_embd // model_config.n_head, enabled(config.disable)
        self.attention_backend, paged_attention = pick_backend(config.attention_backend, self.device, head_dim, on)
        with torch.device("meta"):  # no memory yet: the checkpoint brings the tensors
            self.model = GPT2(model_config).eval()
        self.int8 = pick_int8(config.weights, self.device)
        checkpoint.load(self.model, self.dtype, self.device, quantize_on_load(self.model) if self.int8 else None)
        self.bytes_per_token = bytes_per_token(model_config.n_layer, model_config.n_embd, self.dtype)
        self.max_num_seqs, large_pages = config.max_num_seqs, "pages" in on and self.device.type == "cpu"

        def new_cache(num_blocks: int) -> KVCache:
            sizes = model_config.n_layer, num_blocks, config.block_size, n_head, head_dim
            return KVCache(*sizes, self.dtype, self.device, paged_attention, large_pages)

        on_cuda = self.device.type == "cuda"
        taken = self.measure_step(config.max_num_batched_tokens, new_cache(1)) if on_cuda else promised
        self.num_blocks = config.num_blocks or self._pick_num_blocks(config, max_model_len, taken)
        self.kv_cache_bytes = self.num_blocks * config.block_size * self.bytes_per_token
        check_cache_bytes(self.kv_cache_bytes, self.device)
        self.cache = new_cache(self.num_blocks)
        if self.attention_backend == "c":
            self.model = pick_model(self.model, on)
            trim_malloc()  # what packing freed
        self.sampler = CSampler() if self.attention_backend == "c" else None
        # If OpenMP's threads wait only briefly, the kernels can share their cores with other programs (kernels/team.h);
        # torch's own operations can't.
        self.waits_briefly = WAITS_BRIEFLY and isinstance(self.model, FastGPT2)
        self.last_step = 0, 0.0  # tokens and seconds of the latest forward pass, on a CPU

    def describe(self) -> str:
        """The chosen device, dtype, number of requests and cache, in words."""
        cache = f"up to {self.max_num_seqs} requests at once, {self.num_blocks:,} blocks in "
        cache += f"{self.kv_cache_bytes / 1e6:,.0f} MB of KV cache"
        weights = ", weights in int8" if self.int8 else ""
        return f"{describe_device(self.device, self.dtype)}{weights}, attention: {self.attention_backend}, {cache}"

    def forward(self, batch: Batch) -> Tensor:
        """The logits after the tokens `batch.logits_indices`: [n_logits, vocab_size] float32."""
        # As many threads as there are free cores. If there are none, all of them: the system shares out the cores.
        oversubscribed = self.waits_briefly and self.thread_limit.free < MIN_FREE_CORES
        with contextlib.nullcontext() if oversubscribed else self.thread_limit:
            start = time.perf_counter()
            logits = self.model(batch, self.cache)
        if self.device.type == "cpu":
            self.last_step = batch.num_tokens, time.perf_counter() - start
        return logits

    def score(self, batch: Batch, logits: Tensor) -> None:
        """Give requests the log-probabilities of their prompts."""
        if batch.score_slices:
            with self.thread_limit:
                (self.sampler.score if self.sampler else score_prompts)(logits, batch.score_slices)

    def sample(self, batch: Batch, logits: list[Tensor]) -> list[Token | Exception]:
        """As `sampler.sample` for each row of the logits."""
        with self.thread_limit:
            return sample_rows(logits, batch.ready, self.sampler)

    def _pick_num_blocks(self, config: EngineConfig, max_model_len: int, taken: int) -> int:
        """How many blocks: as many as `kv_cache_bytes` has room for. By default enough for `max_num_seqs` requests of
        full length, or as many as fit into the free memory without what is taken."""
        block_bytes = config.block_size * self.bytes_per_token
        room, most = config.kv_cache_bytes, math.inf
        if room is None:
            room = default_cache_bytes(self.device, taken)
            most = config.max_num_seqs * -(-max_model_len // config.block_size)
        if room < block_bytes:
            raise ValueError(f"a block of {config.block_size} tokens needs {block_bytes:,} bytes, there are {room:,}")
        return int(min(room // block_bytes, most))

    def measure_step(self, num_tokens: int, cache: KVCache) -> int:
        """The bytes that a step of this size takes on CUDA, besides the weights and the cache."""
        before = torch.cuda.memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        self.try_step(num_tokens, cache)
        taken = torch.cuda.max_memory_allocated(self.device) - before
        torch.cuda.empty_cache()
        return taken

    def time_steps(self, sizes: Sequence[int]) -> dict[int, float]:
        """Seconds of steps of these sizes, in tokens, with logits for all of them; the better of two runs. It writes
        into the cache, so call it before there are requests."""
        seconds = dict.fromkeys(sizes, math.inf)
        self.try_step(sizes[-1], self.cache)  # not timed: some work is done only once
        for size in [*sizes] * 2:
            start = time.perf_counter()
            with self.thread_limit:
                self.try_step(size, self.cache)
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            seconds[size] = min(seconds[size], time.perf_counter() - start)
        return seconds

    @torch.inference_mode()
    def try_step(self, num_tokens: int, cache: KVCache) -> None:
        """Run a step of one request, with logits for all of its tokens, on whatever the cache holds."""
        tokens = torch.zeros(num_tokens, dtype=torch.int64, device=self.device)
        ends = torch.tensor([0, len(tokens)], dtype=torch.int64, device=self.device)
        table = torch.zeros(1, -(-len(tokens) // cache.block_size), dtype=torch.int64, device=self.device)
        batch = Batch(tokens, tokens, tokens, table, ends, ends[1:], logits_indices=tokens)
        self.model(batch, cache)
