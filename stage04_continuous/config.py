"""The options of an engine, each defined once, with its default, its check and its help.

`LLM(**options)`, the checks and the command line's flags all come from these fields.
"""

from dataclasses import dataclass

from .support.options import DTYPES, Options, integer, one_of, option, text, valid_device

POLICIES = ("fcfs", "priority", "shortest")


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
    max_num_seqs: int = option(8, integer(1), "requests that run at once")
    max_num_batched_tokens: int = option(512, integer(1), "tokens in a step; a longer prompt is prefilled in several")
    policy: str = option(
        "fcfs",
        one_of(*POLICIES),
        "which request joins first: fcfs, priority (the lowest first), or shortest (prompt, with aging)",
    )
    kv_cache_bytes: int | None = option(
        None, integer(1), "the most memory for the slots of the KV cache (default: half of the free memory)"
    )
    seed: int = option(0, integer(0, 2**64 - 1), "seeds the requests that have no seed of their own")
