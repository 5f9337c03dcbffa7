"""Stage 6: the same engine at the speed of the machine: packed weights, fused kernels, a step in one call."""

from . import openmp  # noqa: F401 (first: it comes before torch)
from .async_llm import AsyncLLM, QueueFullError
from .llm import LLM
from .outputs import CompletionOutput, Logprob, RequestOutput, StreamEvent
from .sampling_params import SamplingParams
from .scoring import Score

__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "Logprob",
    "QueueFullError",
    "RequestOutput",
    "SamplingParams",
    "Score",
    "StreamEvent",
]
