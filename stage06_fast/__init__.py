"""Stage 6: the same engine at the speed of the machine: packed weights, fused kernels, a step in one call."""

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
