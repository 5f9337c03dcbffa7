"""Stage 5: paged attention; memory is given block by block, shared where it holds the same, and taken back."""

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
