"""The model on its device: from a batch to the logits of the tokens that follow."""

import math

import torch
from torch import Tensor

from .attention import pick_backend
from .batch import Batch
from .config import EngineConfig
from .kv_cache import KVCache, bytes_per_token, check_cache_bytes, default_cache_bytes
from .model import GPT2, ModelConfig
from .support.device import check_fork, describe_device, pick_device, pick_dtype
from .support.weights import Checkpoint


class Runner:
    """Owns the model and the KV cache.

    Args:
        config: the options of the engine.
        model_config: the sizes of the model.
        checkpoint: where its weights come from.
        max_model_len: the longest sequence, in tokens.
    """

    def __init__(self, config: EngineConfig, model_config: ModelConfig, checkpoint: Checkpoint, max_model_len: int):
        check_fork()
        self.device = pick_device(config.device)
        self.dtype = pick_dtype(config.dtype, self.device)
        n_head, head_dim = model_config.n_head, model_config.n_embd // model_config.n_head
        self.attention_backend, paged_attention = pick_backend(config.attention_backend, self.device, head_dim)
        with torch.device("meta"):  # no memory yet: the checkpoint brings the tensors
            self.model = GPT2(model_config).eval()
        checkpoint.load(self.model, self.dtype, self.device)
        self.bytes_per_token = bytes_per_token(model_config.n_layer, model_config.n_embd, self.dtype)

        def new_cache(num_blocks: int) -> KVCache:
            sizes = model_config.n_layer, num_blocks, config.block_size, n_head, head_dim
            return KVCache(*sizes, self.dtype, self.device, paged_attention)

        taken = self.measure_step(config.max_num_batched_tokens, new_cache(1)) if self.device.type == "cuda" else 0
        self.num_blocks = config.num_blocks or self._pick_num_blocks(config, max_model_len, taken)
        self.kv_cache_bytes = self.num_blocks * config.block_size * self.bytes_per_token
        check_cache_bytes(self.kv_cache_bytes, self.device)
        self.cache = new_cache(self.num_blocks)

    def describe(self) -> str:
        """The chosen device, dtype and cache, in words."""
        cache = f"{self.num_blocks:,} blocks in {self.kv_cache_bytes / 1e6:,.0f} MB of KV cache"
        return f"{describe_device(self.device, self.dtype)}, attention: {self.attention_backend}, {cache}"

    def forward(self, batch: Batch) -> Tensor:
        """The logits after the tokens `batch.logits_indices`: [n_logits, vocab_size] float32."""
        return self.model(batch, self.cache)

    def _pick_num_blocks(self, config: EngineConfig, max_model_len: int, taken: int) -> int:
        """How many blocks: as many as `kv_cache_bytes` has room for. By default enough for `max_num_seqs` requests of
        full length, or as many as fit into the free memory, less what a step needs."""
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

    @torch.inference_mode()
    def try_step(self, num_tokens: int, cache: KVCache) -> None:
        """Run a step of one request, with logits for all of its tokens, on whatever the cache holds."""
        tokens = torch.zeros(num_tokens, dtype=torch.int64, device=self.device)
        ends = torch.tensor([0, len(tokens)], dtype=torch.int64, device=self.device)
        table = torch.zeros(1, -(-len(tokens) // cache.block_size), dtype=torch.int64, device=self.device)
        batch = Batch(tokens, tokens, tokens, table, ends, ends[1:], logits_indices=tokens)
        self.model(batch, cache)
