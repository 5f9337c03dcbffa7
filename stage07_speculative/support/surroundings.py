"""What surrounds an engine, so that the engine is its loop and nothing else: checks of what comes in, turns, threads,
and who looks on."""

import weakref
from collections.abc import Callable
from typing import Any

from .around import around
from .intake import Intake, Prompt
from .observer import Observer, Stats, StepRecord
from .options import Options
from .outputs import RequestOutput
from .router import Router
from .sampling_params import SamplingParams
from .threads import without_gradients
from .tokenizer import Tokenizer
from .turn import Turn
from .weights import generation_defaults


class Surroundings:
    """The base of a stage's `LLM`: has an engine, and all that is around it.

    Around `step`, from the inside: the observer, no gradients. The router takes the turn.

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
        self._observer = Observer(self.engine)
        around(self.engine, "step", without_gradients)
        self._router = Router(self.engine, self._turn, self._observer)
        self._inbox: list[Any] = []  # of `step`
        # Those of `add_request`, as long as somebody else has them; those of `generate` have ids of their own.
        self._by_id: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()

    def add_request(
        self,
        request_id: str,
        prompt: str | list[int],
        sampling_params: SamplingParams | None = None,
        *,
        priority: int = 0,
    ) -> None:
        """Put a request into the queue; the next steps will take it up.

        Raises:
            ValueError: the prompt or a parameter is wrong, or an unfinished request has this id.
        """
        params = SamplingParams() if sampling_params is None else sampling_params
        request = self._intake.request(prompt, params, priority)
        for completion in request.group:
            completion.request_id = request_id
        earlier = self._by_id.get(request_id)
        if earlier is not None and not earlier.group_finished:
            raise ValueError(f"request_id {request_id!r} belongs to a request that is not finished")
        self._by_id[request_id] = request
        self._router.add(request, self._inbox)

    def step(self) -> list[RequestOutput]:
        """Run one step; returns the requests of `add_request` that got a token, as they are now (`finished` says if
        that was all): in this step, or in one that `generate` or `stream` has run since the last call."""
        news: list[Any] = []

        def outputs(completions: list[Any]) -> list[RequestOutput]:
            news.extend(dict.fromkeys(completion.group[0] for completion in completions))
            return [RequestOutput.of(request) for request in news]

        try:
            self._router.advance()
            return self._router.take(self._inbox, outputs)
        except BaseException:  # it was not told: the next call tells it
            self._inbox[:0] = news
            raise

    def abort_request(self, request_id: str) -> None:
        """End an unfinished request as it is; what it held is free for the next step. An id that is not there is
        ignored: the request may have ended a moment ago."""
        self._turn.check_process()
        request = self._by_id.pop(request_id, None)
        if request is None or request.group_finished:  # `generate` and streams call theirs by their numbers
            request = next((r for r in list(self._router.unfinished) if r.request_id == request_id), None)
        if request is not None:
            self._router.abort(request, tell=request.inbox is not self._inbox)

    def has_unfinished_requests(self) -> bool:
        return bool(self._router.has_notes or self._router.unfinished or self._inbox)

    def validate(self, prompt: Prompt, sampling_params: SamplingParams, priority: int = 0) -> None:
        """Raise the ValueError that `generate` would raise for this prompt."""
        self._intake.request(prompt, sampling_params, priority, number=0)

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
