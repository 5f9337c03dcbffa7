"""Stage 7: several tokens per step, and exactly the same tokens: guesses, verified by the ordinary sampler."""

from .support import openmp  # noqa: F401 (first: it comes before torch)  # pyright: ignore[reportUnusedImport]

# isort: split
from .async_llm import AsyncLLM
from .config import EngineConfig
from .llm import LLM
from .support.engine_thread import EngineClosedError
from .support.outputs import CompletionOutput, Logprob, RequestOutput, StreamEvent
from .support.sampling_params import SamplingParams
from .support.scoring import SCORING, Pair, Score, score_of

__all__ = [
    "LLM",
    "SCORING",
    "AsyncLLM",
    "CompletionOutput",
    "EngineClosedError",
    "EngineConfig",
    "Logprob",
    "Pair",
    "RequestOutput",
    "SamplingParams",
    "Score",
    "StreamEvent",
    "score_of",
]
