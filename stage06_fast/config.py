"""The options of an engine: each stands here once, with its default, its check and its help.

`LLM(**options)`, the checks and the flags of the command line are made from these fields.
"""

import argparse
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import get_args

import numpy as np
import torch

from .attention import BACKENDS
from .fast_model import OPTIMIZATIONS, enabled
from .sampling_params import number, whole_number
from .scheduler import POLICIES

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def option(default, check: Callable, text: str, **flag):
    """A field of EngineConfig.

    Args:
        check: (name, value) -> the value as it is kept, or ValueError. None, as a default, is not checked.
        text: what it means; --help shows it with the default.
        flag: where the flag of the command line differs: its `name` (None: there is none), its `help`, and other
            arguments of `ArgumentParser.add_argument`.
    """
    return field(default=default, metadata={"check": check, "help": text, "flag": flag})


def one_of(*names: str) -> Callable:
    """A check: the value is one of these names."""

    def check(name: str, value) -> str:
        if value not in names:
            raise ValueError(f"{name} must be one of {', '.join(names)}, got {value!r}")
        return value

    return check


def whole(low: int, high: int | None = None) -> Callable:
    """A check: the value is a whole number within these bounds."""
    return functools.partial(whole_number, low=low, high=high)


def yes_or_no(name: str, value) -> bool:
    """A check: the value is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def share(name: str, value) -> float:
    """A check: the value is a number from 0 to less than 1."""
    if number(name, value, 0, 1) == 1:
        raise ValueError(f"{name} must be a number from 0 to less than 1, got {value!r}")
    return float(value)


def optimizations(_: str, value) -> tuple[str, ...]:
    """A check: the value is a list of names of optimisations."""
    names = value if isinstance(value, str) else tuple(value)
    enabled(names)
    return names


def known_device(_: str, value) -> str:
    """A check: there is such a device."""
    pick_device(value)
    return value


def any_text(name: str, value) -> str:
    """No check: what comes of it is checked where it is used. A path is a text too."""
    return str(value)


@dataclass(frozen=True)
class EngineConfig:
    """What an engine is made with.

    Raises:
        ValueError: an option is wrong; names it and its value.
    """

    model: str = option("tinytales", any_text, "tinytales, gpt2, gpt2-medium, gpt2-large, gpt2-xl, or a directory")
    dtype: str = option(
        "auto", one_of("auto", *DTYPES), f"{', '.join(DTYPES)}, or auto: float32 on a CPU, bfloat16 on CUDA"
    )
    device: str = option("auto", known_device, "cpu, cuda, cuda:N, or auto: CUDA if there is one")
    load_format: str = option(
        "auto",
        one_of("auto", "dummy"),
        "auto reads the checkpoint; dummy makes random weights of the model's sizes, without a download",
    )
    max_model_len: int | None = option(
        None, whole(2), "longest prompt and output together, in tokens (default: the model's context)"
    )
    max_num_seqs: int = option(8, whole(1), "requests that run at once")
    max_num_batched_tokens: int = option(512, whole(1), "tokens in a step; a longer prompt is prefilled in several")
    policy: str = option(
        "fcfs",
        one_of(*POLICIES),
        "who joins first: fcfs, fair (nobody waits for all that another asked for), priority (the lowest first), or "
        "shortest (prompt, with aging)",
    )
    enable_chunked_prefill: bool = option(
        True,
        yes_or_no,
        "cut a prompt that does not fit into a step",
        name="--no-chunked-prefill",
        help="prefill every prompt in a single step, which then takes as long as it takes",
    )
    block_size: int = option(16, whole(1, 1024), "tokens in a block")
    num_blocks: int | None = option(
        None, whole(1), "blocks of the KV cache (default: as many as can be of use, in a share of what memory is free)"
    )
    kv_cache_bytes: int | None = option(None, whole(1), "memory for the KV cache, instead of num_blocks")
    enable_prefix_caching: bool = option(
        True,
        yes_or_no,
        "do not compute again the beginning of a prompt that the cache still holds",
        name="--no-prefix-caching",
        help="compute every prompt whole",
    )
    watermark: float = option(
        0.01, share, "share of the blocks that an admission leaves free, for running requests to grow"
    )
    attention_backend: str = option(
        "auto", one_of(*BACKENDS), "torch, c, triton, or auto: Triton on CUDA, C on a CPU that has a compiler"
    )
    disable: Sequence[str] = option(
        (),
        optimizations,
        f"optimisations to turn off (see fast_model.py): {', '.join(OPTIMIZATIONS)}",
        nargs="+",
        action="extend",
        metavar="NAME",
    )
    seed: int = option(
        0, whole(0, 2**64 - 1), "requests without a seed of their own take one from it and from their number"
    )
    trace: bool = option(False, yes_or_no, "keep a StepRecord of every forward pass", name=None)

    def __post_init__(self):
        for one in fields(self):
            value = getattr(self, one.name)
            if value is not one.default:
                object.__setattr__(self, one.name, one.metadata["check"](one.name, value))
        if self.num_blocks is not None and self.kv_cache_bytes is not None:
            raise ValueError(
                f"give num_blocks or kv_cache_bytes, not both, got {self.num_blocks} and {self.kv_cache_bytes}"
            )


def add_flags(add: Callable) -> None:
    """A flag of the command line for each option.

    add: `ArgumentParser.add_argument`
    """
    for one in fields(EngineConfig):
        settings = {"name": "--" + one.name.replace("_", "-"), "help": one.metadata["help"], **one.metadata["flag"]}
        name, help, kind = settings.pop("name"), settings.pop("help"), (*get_args(one.type), one.type)[0]
        if name is None:
            continue
        if kind is bool:
            settings["action"] = "store_false" if one.default else "store_true"
        else:
            settings["default"] = list(one.default) if isinstance(one.default, tuple) else one.default
            help += "" if one.default in (None, ()) or "default" in help else " (default: %(default)s)"
        if kind in (int, float):
            settings = {"type": kind, "metavar": "N", **settings}
        add(name, dest=one.name, help=help, **settings)


def engine_options(args: argparse.Namespace) -> dict:
    """The options that the flags gave."""
    return {one.name: getattr(args, one.name) for one in fields(EngineConfig) if one.metadata["flag"].get("name", True)}


def pick_device(device: str) -> torch.device:
    """The torch device of a name. Raises ValueError if it is unknown or not there."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        picked = torch.device(device)
    except (RuntimeError, TypeError):
        picked = None
    if picked is None or picked.type not in ("cpu", "cuda"):
        raise ValueError(f"device must be 'auto', 'cpu', 'cuda' or 'cuda:N', got {device!r}")
    if picked.type == "cuda" and (picked.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device {device!r} is not there: torch sees {torch.cuda.device_count()} CUDA devices")
    return picked


def pick_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """The torch dtype of a name; "auto" is float32 on a CPU, bfloat16 on CUDA."""
    if dtype == "auto":
        dtype = "bfloat16" if device.type == "cuda" else "float32"
    return DTYPES[dtype]


def in_words(device: torch.device, dtype: torch.dtype) -> str:
    """A device and a type, for people."""
    name = f"{torch.get_num_threads()} threads" if device.type == "cpu" else torch.cuda.get_device_name(device)
    return f"{device} ({name}), {str(dtype).removeprefix('torch.')}"


def pick_max_model_len(max_model_len: int | None, n_positions: int) -> int:
    """The longest sequence, in tokens. Raises ValueError if the model has no positions for it."""
    if max_model_len is None:
        return n_positions
    try:
        return whole_number("max_model_len", max_model_len, 2, n_positions)
    except ValueError as error:
        raise ValueError(f"{error}; the model has {n_positions} positions") from None
