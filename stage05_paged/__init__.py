"""Stage 5: paged attention; memory is given block by block, shared where it holds the same, and taken back."""

from .config import EngineConfig
from .llm import LLM, AsyncLLM
from .support.async_llm import QueueFullError
from .support.outputs import CompletionOutput, Logprob, RequestOutput, StreamEvent
from .support.sampling_params import SamplingParams
from .support.scoring import SCORING, Pair, Score, score_of

__all__ = [
    "LLM",
    "SCORING",
    "AsyncLLM",
    "CompletionOutput",
    "EngineConfig",
    "Logprob",
    "Pair",
    "QueueFullError",
    "RequestOutput",
    "SamplingParams",
    "Score",
    "StreamEvent",
    "score_of",
]
