"""What surrounds the engines, once for all of them: the command line, batch runs, traces, replay, serving, clusters;
and logits processors."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .processors import allowed_token_ids, bad_words, logit_bias, structured
    from .sampling import sampling_params
    from .tracing import trace

__version__ = "0.1.0"
__all__ = ["allowed_token_ids", "bad_words", "logit_bias", "sampling_params", "structured", "trace"]
HOMES = {"sampling_params": "sampling", "trace": "tracing"}  # the others are in processors.py


def __getattr__(name: str) -> Any:
    """Made at their first use: a command that only prints its help has no time for torch."""
    from importlib import import_module

    if name in __all__:
        return getattr(import_module(f"{__name__}.{HOMES.get(name, 'processors')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
