"""What surrounds an engine, so that the engine is its loop and nothing else: checks of what comes in, turns, threads,
and who looks on."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .around import around
from .intake import Intake
from .observer import Observer, Stats, StepRecord
from .options import Options
from .sampling_params import SamplingParams
from .threads import ThreadLimit, without_gradients
from .tokenizer import Tokenizer
from .turn import Turn
from .weights import generation_defaults


class Surroundings:
    """The base of a stage's `LLM`: has an engine, and all that is around it.

    Around `step`, from the inside: the observer, the limit of threads, no gradients, the turn.

    Args:
        make_engine: the stage's Engine.
        config: its options.
        make_request: the stage's Request.

    Attributes:
        engine: what does the work, for those who want to look inside.
        config: its options.
    """

    def __init__(self, make_engine: Callable[..., Any], config: Options, make_request: Callable[..., Any]):
        self._turn = Turn()  # before anything is loaded: in a fork that would hang
        self.engine, self.config = make_engine(config), config
        self._intake = Intake(self.engine, make_request, self._turn)
        self._observer, self._threads = Observer(self.engine), ThreadLimit()
        around(self.engine, "step", self._threads.run)
        around(self.engine, "step", without_gradients)
        around(self.engine, "step", self._turn.run)

    def _steps(self, requests: Iterable[Any]) -> Iterator[Any]:
        """Run these requests to their ends; yields each that got a token, step by step."""
        return (request for news in self.engine.run(deque(requests)) for request in news)

    def validate(self, prompt: str | list[int], sampling_params: Any) -> None:
        """Raise the ValueError that `generate` would raise for this prompt."""
        self._intake.request(prompt, sampling_params, number=0)

    def describe(self) -> str:
        """What the options came to, for people."""
        return self.engine.runner.describe()

    def get_default_sampling_params(self) -> SamplingParams:
        """With what the model's generation_config.json says. Raises ValueError if it says what can't be."""
        return SamplingParams(**generation_defaults(self.engine.checkpoint.directory))

    def get_tokenizer(self) -> Tokenizer:
        return self.engine.tokenizer

    @property
    def max_model_len(self) -> int:
        """The longest sequence, in tokens."""
        return self.engine.max_model_len

    @property
    def vocab_size(self) -> int:
        return self.engine.model_config.vocab_size

    @property
    def stats(self) -> Stats:
        """Counters of everything the engine has done. Assign a new one to start from zero."""
        return self._observer.stats

    @stats.setter
    def stats(self, stats: Stats) -> None:
        self._observer.stats = stats

    @property
    def trace(self) -> list[StepRecord] | None:
        """A record of every forward pass, with `LLM(trace=True)`; else None."""
        return self._observer.records

    @property
    def trace_header(self) -> dict[str, Any]:
        """What the engine is, for readers of its trace."""
        return self._observer.header
