"""What surrounds the engines, once for all of them: the command line, batch runs, traces, replay, serving, clusters."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .tracing import Trace

__version__ = "0.1.0"


def trace(llm: Any) -> "Trace":
    """Record every step of an LLM of any stage from now on: `trace(llm).records`; `close()` ends it."""
    from .tracing import Trace  # not earlier: the stages load torch when they are needed

    return Trace(llm)
