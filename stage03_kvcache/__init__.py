"""Stage 3: the batch of prompts is prefilled once, then decoded one token per step from a KV cache."""

from .llm import LLM
from .outputs import CompletionOutput, Logprob, RequestOutput, StreamEvent
from .sampling_params import SamplingParams

__all__ = ["LLM", "CompletionOutput", "Logprob", "RequestOutput", "SamplingParams", "StreamEvent"]
