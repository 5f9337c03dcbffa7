"""Stage 4: a continuous scheduler; requests join and leave the batch at every step."""

# Read request.py, policies.py, scheduler.py, batch.py, kv_cache.py, model.py, engine.py and engine_loop.py, in this
# order. The rest serves those who use the engine.

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
