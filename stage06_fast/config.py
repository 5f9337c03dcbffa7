"""The options of an engine, each defined once, with its default, its check and its help.

`LLM(**options)`, the checks and the command line's flags all come from these fields.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .support.options import DTYPES, Options, fraction, integer, one_of, option, text, valid_device
from .support.sampling_params import check_boolean

POLICIES = ("fcfs", "priority", "shortest")
BACKENDS = ("auto", "torch", "c", "triton")  # of attention
# What can be turned off (`LLM(disable=...)`).
OPTIMIZATIONS = {
    "linear": "linear layers by kernels, on packed weights; else by torch",
    "tiles": "AMX, in float32 with each number as two bfloat16s; else vectors",
    "prefill": "attention of prompts as matrix products; else a few queries at a time",
    "pages": "weights and KV cache in pages of 2 MB, where the system has them; else of 4 KB",
}


def enabled(disable: Sequence[str]) -> frozenset[str]:
    """The optimizations that are on. Raises ValueError for an unknown name."""
    if isinstance(disable, str):
        raise ValueError(f"disable must be a list of names, got {disable!r}")
    for name in disable:
        if name not in OPTIMIZATIONS:
            raise ValueError(f"disable: there is no optimization {name!r}; there are {', '.join(OPTIMIZATIONS)}")
    return frozenset(OPTIMIZATIONS) - frozenset(disable)


def optimizations(_: str, value: Any) -> tuple[str, ...]:
    """A check: the value lists optimizations by name."""
    names = value if isinstance(value, str) else tuple(value)
    enabled(names)
    return tuple(names)


@dataclass(frozen=True)
class EngineConfig(Options):
    """The options of an engine.

    Raises:
        ValueError: an option is wrong; names it and its value.
    """

    model: str = option("tinytales", text, "tinytales, gpt2, gpt2-medium, gpt2-large, gpt2-xl, or a directory")
    dtype: str = option(
        "auto", one_of("auto", *DTYPES), f"{', '.join(DTYPES)}, or auto: float32 on a CPU, bfloat16 on CUDA"
    )
    device: str = option("auto", valid_device, "cpu, cuda, cuda:N, or auto: CUDA if there is one")
    load_format: str = option(
        "auto",
        one_of("auto", "dummy"),
        "auto reads the checkpoint; dummy makes random weights of the model's sizes, without a download",
    )
    max_model_len: int | None = option(
        None, integer(2), "longest prompt and output together, in tokens (default: the model's context)"
    )
    max_num_seqs: int = option(64, integer(1), "requests that run at once")
    max_num_batched_tokens: int = option(512, integer(1), "tokens in a step; a longer prompt is prefilled in several")
    policy: str = option(
        "fcfs",
        one_of(*POLICIES),
        "which request joins first: fcfs, priority (the lowest first), or shortest (prompt, with aging)",
    )
    block_size: int = option(16, integer(1, 1024), "tokens in a block")
    num_blocks: int | None = option(
        None,
        integer(1),
        "blocks of the KV cache (default: enough for max_num_seqs of full length, or what fits into the free memory)",
    )
    kv_cache_bytes: int | None = option(None, integer(1), "memory for the KV cache, instead of num_blocks")
    enable_prefix_caching: bool = option(
        True,
        check_boolean,
        "don't recompute the beginning of a prompt that is still in the cache",
        name="--no-prefix-caching",
        help="compute every prompt in full",
    )
    watermark: float = option(
        0.01, fraction, "share of the blocks that an admission leaves free, for running requests to grow"
    )
    attention_backend: str = option(
        "auto", one_of(*BACKENDS), "torch, c, triton, or auto: Triton on CUDA, C on a CPU that has a compiler"
    )
    disable: Sequence[str] = option(
        (),
        optimizations,
        f"optimizations to turn off: {', '.join(OPTIMIZATIONS)}",
        nargs="+",
        action="extend",
        metavar="NAME",
    )
    seed: int = option(0, integer(0, 2**64 - 1), "seeds the requests that have no seed of their own")

    def __post_init__(self):
        super().__post_init__()
        if self.num_blocks is not None and self.kv_cache_bytes is not None:
            raise ValueError(
                f"give num_blocks or kv_cache_bytes, not both, got {self.num_blocks} and {self.kv_cache_bytes}"
            )
