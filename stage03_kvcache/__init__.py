"""Stage 3: the batch of prompts is prefilled once, then decoded one token per step from a KV cache."""

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
