"""Options of an engine, and what checks them."""

import functools
import os
from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar

import numpy as np
import torch

from .sampling_params import whole_number

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def option(default: Any, check: Callable[[str, Any], Any], text: str, *, kw_only: bool = False, **flag: Any) -> Any:
    """A field of a dataclass of options.

    Args:
        check: (name, value) -> the value as it is kept, or ValueError. None, as a default, is not checked.
        text: what it means; --help shows it with the default.
        kw_only: it is no positional argument.
        flag: where a flag of a command line differs: its `name` (None: there is none), its `help`, and other
            arguments of `ArgumentParser.add_argument`.
    """
    return field(default=default, metadata={"check": check, "help": text, "flag": flag}, kw_only=kw_only)


def one_of(*names: str) -> Callable[[str, Any], str]:
    """A check: the value is one of these names."""

    def check(name: str, value: Any) -> str:
        if value not in names:
            raise ValueError(f"{name} must be one of {', '.join(names)}, got {value!r}")
        return value

    return check


def whole(low: int, high: int | None = None) -> Callable[[str, Any], int]:
    """A check: the value is a whole number within these bounds."""
    return functools.partial(whole_number, low=low, high=high)


def yes_or_no(name: str, value: Any) -> bool:
    """A check: the value is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def known_device(_: str, value: Any) -> str:
    """A check: there is such a device."""
    pick_device(value)
    return value


def any_text(name: str, value: Any) -> str:
    """No check: what comes of it is checked where it is used. A path is a text too."""
    return str(value)


@dataclass(frozen=True)
class Options:
    """The base of a dataclass of options: each is checked when it is made. It has the one that support/ alone reads."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    tokenizer: str | None = option(
        None, any_text, "whose tokenizer: a directory, or a name as of --model (default: the model's)", kw_only=True
    )

    def __post_init__(self):
        for one in fields(self):
            value = getattr(self, one.name)
            if value is not one.default:
                object.__setattr__(self, one.name, one.metadata["check"](one.name, value))


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


_first_process: int | None = None  # the one that has made an engine


def check_fork() -> None:
    """Raise RuntimeError in a fork of the process that made the first engine: torch's threads are missing there, and it
    would hang."""
    global _first_process
    _first_process = _first_process or os.getpid()
    if os.getpid() != _first_process:
        raise RuntimeError(
            f"process {os.getpid()} is a fork of {_first_process}, which has made an engine: no engine can run here; "
            "start processes with multiprocessing's 'spawn' or 'forkserver'"
        )


def pick_max_model_len(max_model_len: int | None, n_positions: int) -> int:
    """The longest sequence, in tokens. Raises ValueError if the model has no positions for it."""
    if max_model_len is None:
        return n_positions
    try:
        return whole_number("max_model_len", max_model_len, 2, n_positions)
    except ValueError as error:
        raise ValueError(f"{error}; the model has {n_positions} positions") from None
