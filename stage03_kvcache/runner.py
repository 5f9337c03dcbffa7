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
    """Owns the model, and knows how much memory there is for a KV cache.

    Args:
        config: the options of the engine.
        model_config: the sizes of the model.
        checkpoint: where its weights come from.
    """

    def __init__(self, config: EngineConfig, model_config: ModelConfig, checkpoint: Checkpoint):
        check_fork()
        self.device = pick_device(config.device)
        self.dtype = pick_dtype(config.dtype, self.device)
        with torch.device("meta"):  # no memory yet: the checkpoint brings the tensors
            self.model = GPT2(model_config).eval()
        checkpoint.load(self.model, self.dtype, self.device)
        self.bytes_per_token = bytes_per_token(model_config.n_layer, model_config.n_embd, self.dtype)
        self.kv_cache_bytes = config.kv_cache_bytes or default_cache_bytes(self.device)
        check_cache_bytes(self.kv_cache_bytes, self.device)

    def new_cache(self, n_rows: int, max_len: int) -> KVCache:
        """An empty cache for a batch of `n_rows` sequences of up to `max_len` tokens."""
        config = self.model.config
        head_dim = config.n_embd // config.n_head
        return KVCache(config.n_layer, n_rows, config.n_head, max_len, head_dim, self.dtype, self.device)

    def describe(self) -> str:
        """The chosen device and dtype, in words."""
        cache = f"at most {self.kv_cache_bytes / 1e6:,.0f} MB of KV cache"
        return f"{describe_device(self.device, self.dtype)}, {cache}"

    def forward(self, batch: Batch) -> Tensor:
        """The logits of the token that follows each live row: [n_live, vocab_size] float32."""
        check_fork()
        with torch.autocast(self.device.type, enabled=False):  # ignore the caller's autocast
            return self.model(batch.token_ids, batch.num_padding, batch.cache)[batch.live_rows]
