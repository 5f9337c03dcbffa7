"""Options of an engine, and how they are checked."""

import dataclasses
import functools
import os
from collections.abc import Callable
from dataclasses import Field, dataclass, fields
from typing import Any, ClassVar

import torch

from .sampling_params import check_integer

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def option(default: Any, check: Callable[[str, Any], Any], meaning: str, *, kw_only: bool = False, **flag: Any) -> Any:
    """A field of a dataclass of options.

    Args:
        check: (name, value) -> the value to keep, or ValueError. The default itself is not checked.
        meaning: --help shows it, with the default.
        kw_only: whether it can't be a positional argument.
        flag: where its command-line flag differs: `name` (None: there is none), `help`, and other arguments of
            `ArgumentParser.add_argument`.
    """
    return dataclasses.field(default=default, metadata={"check": check, "help": meaning, "flag": flag}, kw_only=kw_only)


# --- Checks ---------------------------------------------------------------------------------------------------------


def integer(low: int, high: int | None = None) -> Callable[[str, Any], int]:
    """A whole number within these bounds."""
    return functools.partial(check_integer, low=low, high=high)


def one_of(*names: str) -> Callable[[str, Any], str]:
    def check(name: str, value: Any) -> str:
        if value not in names:
            raise ValueError(f"{name} must be one of {', '.join(names)}, got {value!r}")
        return value

    return check


def valid_device(_: str, value: Any) -> str:
    pick_device(value)
    return value


def text(_: str, value: Any) -> str:
    """A string or a path, checked where it is used."""
    return str(value)


@dataclass(frozen=True)
class Options:
    """The base of EngineConfig: checks every option, and has the one that only `support/` reads."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    tokenizer: str | None = option(
        None, text, "the tokenizer: a directory, or a name as for --model (default: the model's)", kw_only=True
    )

    def __post_init__(self):
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not field.default:
                object.__setattr__(self, field.name, field.metadata["check"](field.name, value))


# --- Values from options --------------------------------------------------------------------------------------------


def pick_device(device: str) -> torch.device:
    """The torch device with this name. Raises ValueError if it is unknown or not available."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        picked = torch.device(device)
    except (RuntimeError, TypeError):
        picked = None
    if picked is None or picked.type not in ("cpu", "cuda"):
        raise ValueError(f"device must be 'auto', 'cpu', 'cuda' or 'cuda:N', got {device!r}")
    if picked.type == "cuda" and (picked.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device {device!r} is not available: torch sees {torch.cuda.device_count()} CUDA devices")
    return picked


def pick_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """The torch dtype with this name; "auto" is float32 on a CPU, bfloat16 on CUDA."""
    if dtype == "auto":
        dtype = "bfloat16" if device.type == "cuda" else "float32"
    return DTYPES[dtype]


def describe_device(device: torch.device, dtype: torch.dtype) -> str:
    """For display: "cpu (2 threads), float32"."""
    name = f"{torch.get_num_threads()} threads" if device.type == "cpu" else torch.cuda.get_device_name(device)
    return f"{device} ({name}), {str(dtype).removeprefix('torch.')}"


def pick_max_model_len(max_model_len: int | None, n_positions: int) -> int:
    """The longest sequence, in tokens. Raises ValueError if the model has too few positions."""
    if max_model_len is not None and max_model_len > n_positions:
        raise ValueError(f"max_model_len must be at most {n_positions}, the model's positions, got {max_model_len}")
    return n_positions if max_model_len is None else max_model_len


_first_process: int | None = None  # the one that made the first engine


def check_fork() -> None:
    """Raise RuntimeError in a fork of the process that made the first engine: it lacks torch's threads, and would
    hang."""
    global _first_process
    _first_process = _first_process or os.getpid()
    if os.getpid() != _first_process:
        raise RuntimeError(
            f"process {os.getpid()} is a fork of {_first_process}, which has made an engine: no engine can run here; "
            "start processes with multiprocessing's 'spawn' or 'forkserver'"
        )
