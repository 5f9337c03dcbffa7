"""Your Llama in an engine with a KV cache. Write what is missing. Instructions: README.md, part two.

The engine is stage 3's. If you have built milestone 3, write `mine` for `stage03_kvcache`.
"""

import torch
from llama import Attention, Config, Llama
from torch import Tensor

from stage03_kvcache import LLM, SamplingParams
from stage03_kvcache.kv_cache import KVCache, default_cache_bytes
from stage03_kvcache.runner import Runner


def attend(attention: Attention, x: Tensor, positions: Tensor, visible: Tensor, cache: KVCache, index: int) -> Tensor:
    """`attention.forward` for a batch, with the keys and values of layer `index` in a cache.

    [batch, n_new, n_embd] -> same; positions: [batch, n_new], of these tokens in their sequences; visible: [batch, 1,
    n_new, n_seq], True where query i may read from key j
    """
    raise NotImplementedError


class CachedLlama(Llama):
    def __init__(self, config: Config):
        super().__init__(config)
        self.config = config

    def forward(self, token_ids: Tensor, num_padding: Tensor, cache: KVCache) -> Tensor:
        """The logits of the token that follows each sequence: [batch, n_new] int64 -> [batch, vocab_size] float32.

        num_padding: [batch], how many columns of padding each row has on its left.
        cache: has the keys and values of the columns before token_ids; those of token_ids are added.
        """
        raise NotImplementedError


class LlamaRunner(Runner):
    """The engine's runner for a Llama in float32 on the CPU. `forward` is as for GPT-2."""

    def __init__(self, model: CachedLlama):
        self.model, self.device, self.dtype = model.eval(), torch.device("cpu"), torch.float32
        self.kv_cache_bytes = default_cache_bytes(self.device)
        self.bytes_per_token = self.count_bytes_per_token()

    def count_bytes_per_token(self) -> int:
        """The bytes that one token takes in the cache, in all layers."""
        raise NotImplementedError

    def new_cache(self, n_rows: int, max_len: int) -> KVCache:
        """An empty cache for a batch of `n_rows` sequences of up to `max_len` tokens."""
        raise NotImplementedError


def complete(model: CachedLlama, prompts: list[list[int]], counts: list[int]) -> list[list[int]]:
    """The engine's greedy tokens: as many after each prompt as `counts` says. Its tokenizer is GPT-2's, so texts mean
    nothing."""
    llm = LLM("tinytales", device="cpu", max_num_seqs=4)
    llm.engine.runner = LlamaRunner(model)
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in counts]
    return [list(output.outputs[0].token_ids) for output in llm.generate(prompts, params)]
