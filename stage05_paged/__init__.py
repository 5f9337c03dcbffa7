"""Stage 5: paged attention; memory is handed out block by block, shared by equal prefixes, and taken back."""

# Read block_manager.py, batch.py, kv_cache.py and the docstring of attention.py first, then scheduler.py and engine.py,
# then beam_search.py and the rest of attention.py. All else serves those who use the engine.

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
