"""The model again, with the kernels: the same function as `GPT2.forward`, at the machine's speed.

model.py says what is computed, and runs where the kernels can't (no compiler, CUDA). Here its weights are packed once
for the kernels, and a step is one call of C. The README explains each optimization, and what it gains.
"""

# pyright: reportInvalidTypeForm=false
# (A function makes the types of C's structs.)

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .batch import Batch
from .kernels import c_kernel as c
from .kv_cache import KVCache
from .model import GPT2
from .support.memory import Arena


def pick_kind(dtype: torch.dtype, on: frozenset[str]) -> str:
    """How to multiply weights of this type (kernels/product.c): the first of tiles, dots and vectors that the CPU has
    and that is on. Bits depend on the choice, so nothing else may enter it. float16 is widened to float32, because few
    CPUs compute with it."""
    if dtype != torch.bfloat16:
        return "tiles_split" if "tiles" in on and c.has_kind("tiles_split") else "fma_float32"
    kinds = ["tiles_bfloat16"] * ("tiles" in on) + ["dot_bfloat16"]
    return next(filter(c.has_kind, kinds), "fma_bfloat16")


def pick_model(model: GPT2, on: frozenset[str]) -> nn.Module:
    """The model that runs the steps: with the kernels if they are on, else with torch."""
    return FastGPT2(model, on, pick_kind(model.wte.weight.dtype, on)) if "linear" in on else model


def rows(num_tokens: int, width: int, format: int, owner: list[Tensor]) -> c.Rows:
    """Memory for activations, kept alive by `owner`, zero where nothing is written. A row is 64 bytes longer than its
    numbers, because rows of 4,096 bytes would compete for the same few sets of the CPU's cache."""
    stride = c.round_up(width, 32) * (4 if format == c.DTYPES[torch.float32] else 2) + 64
    planes = torch.zeros(2 if format == c.SPLIT else 1, num_tokens * stride, dtype=torch.uint8, device="cpu")
    owner.append(planes)
    return c.Rows(c.address(planes, torch.uint8), stride, num_tokens * stride, format)


class FastGPT2(nn.Module):
    """The kernels' GPT-2. It takes the weights of a loaded `GPT2`, and leaves its linear layers empty.

    Args:
        model: on the CPU.
        on: the optimizations, from `enabled`.
        kind: how to multiply, from `pick_kind`.
    """

    def __init__(self, model: GPT2, on: frozenset[str], kind: str):
        super().__init__()
        self.config, self.wte, self.wpe, self.h, self.ln_f = model.config, model.wte, model.wpe, model.h, model.ln_f
        self.library, self.on, self.kind = c.load_kernel(), on, kind
        dtype = model.wte.weight.dtype
        self.attention_kind = c.attention_kind(dtype, "tiles" in on)
        # C's structs point into these three, and into the caches.
        self.arena = Arena() if "pages" in on else None
        self.weights: list[Tensor] = []
        self.activations: list[Tensor] = []
        self.layers = (c.Layer * len(model.h))(*map(self.layer, model.h))
        wte, wpe = model.wte.weight, model.wpe.weight
        self.model = c.Model(
            n_layer=len(model.h),
            n_embd=model.config.n_embd,
            format=c.DTYPES[dtype],
            epsilon=model.config.layer_norm_epsilon,
            wte=self.pointer(wte, dtype),  # a step reads one row per token, so these stay where they are
            wpe=self.pointer(wpe, dtype),
            layers=self.layers,
            ln_f_weight=self.copied(model.ln_f.weight.float()),
            ln_f_bias=self.copied(model.ln_f.bias.float()),
            head=c.Linear(self.pack(wte), None, wte.shape[1], wte.shape[0], c.KINDS[self.kind][0]),
        )
        self.cache: KVCache | None = None  # what `caches` points to
        self.max_tokens = 0  # that fit into the workspace
        self.logits = torch.empty(0, model.config.vocab_size, dtype=torch.float32, device="cpu")

    def copied(self, tensor: Tensor) -> int:
        """The address of a tensor, or of its copy in large pages, which lives as long as the model."""
        return self.arena.copy(tensor) if self.arena else self.pointer(tensor)

    def pack(self, weight: Tensor) -> int:
        """The address of a matrix packed in panels, which live as long as the model."""
        panels = c.pack(weight, self.kind, self.arena.alloc if self.arena else None)
        self.weights.append(panels)
        return c.address(panels, torch.uint8)

    def pointer(self, tensor: Tensor, dtype: torch.dtype = torch.float32) -> int:
        """The address of a tensor, which lives as long as the model."""
        self.weights.append(tensor.contiguous())
        return c.address(self.weights[-1], dtype)

    def layer(self, block: Any) -> c.Layer:
        norms = {
            f"{name}_{part}": self.copied(getattr(getattr(block, name), part).float())
            for name in ("ln_1", "ln_2")
            for part in ("weight", "bias")
        }
        linears = (block.attn.c_attn, block.attn.c_proj, block.mlp.c_fc, block.mlp.c_proj)
        names = ("c_attn", "attn_c_proj", "c_fc", "mlp_c_proj")
        return c.Layer(**norms, **dict(zip(names, map(self.linear, linears), strict=True)))

    def linear(self, module: nn.Linear) -> c.Linear:
        """A linear layer with packed weights; the module loses its own."""
        panels, bias = self.pack(module.weight), self.padded(module.bias)
        module.weight = None  # pyright: ignore[reportAttributeAccessIssue]
        return c.Linear(panels, bias, module.in_features, module.out_features, c.KINDS[self.kind][0])

    def padded(self, numbers: Tensor) -> int:
        """The address of a layer's numbers, one per output, padded to whole panels."""
        return self.copied(F.pad(numbers.float(), (0, -len(numbers) % 32)))

    def prepare(self, cache: KVCache, num_tokens: int, num_rows: int) -> None:
        """Point to this cache, and make room for a step's activations and logits."""
        config = self.config
        if cache is not self.cache:
            self.cache, self.caches = cache, (c.Cache * config.n_layer)(*map(c.cache_struct, cache.keys, cache.values))
        if num_tokens > self.max_tokens:
            n, width = c.round_up(num_tokens, 32), config.n_embd
            operand = c.KINDS[self.kind][1]  # the format that the products read
            x = torch.empty(n, width, dtype=torch.float32, device="cpu")
            activations = [x]
            workspace = c.Workspace(
                x=c.address(x, torch.float32),
                normed=rows(n, width, operand, activations),
                qkv=rows(n, 3 * width, self.model.format, activations),
                attended=rows(n, width, operand, activations),
                inner=rows(n, config.n_inner, operand, activations),
            )
            # All at once: if memory runs out before this line, the old workspace remains intact.
            self.max_tokens, self.activations, self.workspace = n, activations, workspace
        if num_rows > len(self.logits):
            self.logits = torch.empty(num_rows, config.vocab_size, dtype=torch.float32, device="cpu")

    def forward(self, batch: Batch, cache: KVCache) -> Tensor:
        """As `GPT2.forward`. The logits are overwritten by the next call."""
        num_tokens, num_rows = len(batch.token_ids), len(batch.logits_indices)
        self.prepare(cache, num_tokens, num_rows)
        sizes = (num_tokens, len(batch.seq_lens), batch.block_tables.shape[1], num_rows)
        tensors = (
            batch.token_ids,
            batch.positions,
            batch.slot_mapping,
            batch.block_tables,
            batch.query_start_loc,
            batch.seq_lens,
            batch.logits_indices,
        )
        c_step = c.Step(*(c.address(tensor, torch.int64) for tensor in tensors), *sizes)
        logits = self.logits[:num_rows]
        options = self.attention_kind, "prefill" in self.on, torch.get_num_threads()
        pointers = self.model, self.workspace, self.caches, c_step, c.address(logits, torch.float32)
        self.library.forward(*pointers, *options)
        return logits
