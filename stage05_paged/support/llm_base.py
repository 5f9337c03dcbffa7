"""What every stage's `LLM` has in common."""

from typing import Any

from .sampling_params import SamplingParams
from .stats import Stats
from .tokenizer import Tokenizer


class LLMBase:
    """The base of a stage's `LLM`.

    Attributes:
        engine: does the work.
        inputs: makes requests from prompts.
    """

    engine: Any
    inputs: Any

    def validate(self, prompt: Any, sampling_params: SamplingParams, priority: int = 0) -> None:
        """Raise the ValueError that `generate` would raise for this prompt."""
        self.inputs.request(prompt, sampling_params, priority, number=0)

    def describe(self) -> str:
        """What the engine runs on, in a line."""
        return self.engine.runner.describe()

    def get_tokenizer(self) -> Tokenizer:
        return self.engine.tokenizer

    @property
    def config(self) -> Any:
        """The engine's options."""
        return self.engine.config

    @property
    def max_model_len(self) -> int:
        """The longest sequence, in tokens."""
        return self.engine.max_model_len

    @property
    def vocab_size(self) -> int:
        return self.engine.model_config.vocab_size

    @property
    def stats(self) -> Stats:
        """Counters. Assign new ones, `Stats()`, to start from zero."""
        return self.engine.stats

    @stats.setter
    def stats(self, stats: Stats) -> None:
        self.engine.stats = stats
