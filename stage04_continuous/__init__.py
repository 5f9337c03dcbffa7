"""Stage 4: a continuous scheduler; requests join and leave the batch at every step."""

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
