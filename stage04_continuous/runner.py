"""The model on its device: from a batch to the logits of the tokens that follow."""

import torch
from torch import Tensor

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
        with torch.device("meta"):  # no memory yet: the checkpoint brings the tensors
            self.model = GPT2(model_config).eval()
        checkpoint.load(self.model, self.dtype, self.device)
        self.bytes_per_token = bytes_per_token(model_config.n_layer, model_config.n_embd, self.dtype)
        kv_cache_bytes = config.kv_cache_bytes or default_cache_bytes(self.device)
        self.slot_bytes = max_model_len * self.bytes_per_token
        self.num_slots = min(config.max_num_seqs, kv_cache_bytes // self.slot_bytes)
        if self.num_slots < 1:
            raise ValueError(
                f"a slot of max_model_len {max_model_len} tokens needs {self.slot_bytes:,} bytes of KV cache, "
                f"kv_cache_bytes is {kv_cache_bytes:,}"
            )
        check_cache_bytes(self.num_slots * self.slot_bytes, self.device)
        n_head, head_dim = model_config.n_head, model_config.n_embd // model_config.n_head
        self.cache = KVCache(
            model_config.n_layer, self.num_slots, n_head, max_model_len, head_dim, self.dtype, self.device
        )

    def describe(self) -> str:
        """The chosen device, dtype and cache, in words."""
        cache = f"{self.num_slots} slots in {self.num_slots * self.slot_bytes / 1e6:,.0f} MB of KV cache"
        return f"{describe_device(self.device, self.dtype)}, {cache}"

    def forward(self, batch: Batch) -> Tensor:
        """The logits after the tokens `batch.logits_indices`: [n_logits, vocab_size] float32."""
        return self.model(batch, self.cache)
