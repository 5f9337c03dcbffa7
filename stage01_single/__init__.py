"""Stage 1: one prompt at a time, the whole sequence recomputed for every token."""

from .config import EngineConfig
from .llm import LLM
from .support.outputs import CompletionOutput, Logprob, RequestOutput, StreamEvent
from .support.sampling_params import SamplingParams

__all__ = [
    "LLM",
    "CompletionOutput",
    "EngineConfig",
    "Logprob",
    "RequestOutput",
    "SamplingParams",
    "StreamEvent",
]
