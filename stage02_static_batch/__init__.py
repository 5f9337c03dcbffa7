"""Stage 2: many prompts in one left-padded batch, and a sampler for each row."""

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
