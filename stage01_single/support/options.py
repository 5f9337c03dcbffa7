"""Options of an engine, and how they are checked."""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import Field, dataclass, fields
from typing import Any, ClassVar

from .sampling_params import check_integer

DTYPES = ("float32", "bfloat16", "float16")


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
    from .device import pick_device  # not earlier: it needs torch, and `--help` does not

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


def pick_max_model_len(max_model_len: int | None, n_positions: int) -> int:
    """The longest sequence, in tokens. Raises ValueError if the model has too few positions."""
    if max_model_len is not None and max_model_len > n_positions:
        raise ValueError(f"max_model_len must be at most {n_positions}, the model's positions, got {max_model_len}")
    return n_positions if max_model_len is None else max_model_len
