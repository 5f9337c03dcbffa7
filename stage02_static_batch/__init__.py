"""Stage 2: many prompts in one left-padded batch, sampled row by row in one pass."""

from .llm import LLM
from .outputs import CompletionOutput, Logprob, RequestOutput, StreamEvent
from .sampling_params import SamplingParams

__all__ = ["LLM", "CompletionOutput", "Logprob", "RequestOutput", "SamplingParams", "StreamEvent"]
