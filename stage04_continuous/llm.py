"""What users call: prompts in, completions out."""

import weakref
from collections.abc import Iterator, Sequence

from tqdm import tqdm

from .config import EngineConfig
from .engine import Engine
from .intake import Intake, Params, Prompt, Prompts
from .outputs import RequestOutput, StreamEvent
from .request import Request
from .router import Router
from .sampling_params import SamplingParams
from .scoring import SCORING, Pair, Score, score_of
from .stats import Stats
from .trace import StepRecord
from .turn import Events


class LLM:
    """A GPT-2 that completes prompts. May be used by several threads at once.

        llm = LLM(model="tinytales")
        llm.generate(["Once upon a time"], SamplingParams(temperature=0))[0].outputs[0].text

    Args:
        model: "tinytales" (bundled), "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", or a directory in Hugging Face
            layout.
        options: the other fields of EngineConfig, which stand in config.py with what they mean.

    Attributes:
        engine: what does the work, for those who want to look inside.

    Raises:
        ValueError: an option or a file of the model is wrong; the message names it.
        OSError: the model can't be fetched or read.
    """

    def __init__(self, model: str = "tinytales", **options):
        self.engine = Engine(EngineConfig(model, **options))
        self._intake, self._router = Intake(self.engine), Router(self.engine)
        self._inbox: list[Request] = []  # of `step`
        # Those of `add_request`, as long as somebody else has them; those of `generate` have ids of their own.
        self._by_id: weakref.WeakValueDictionary[str, Request] = weakref.WeakValueDictionary()

    def generate(
        self,
        prompts: Prompts,
        sampling_params: Params | None = None,
        *,
        use_tqdm: bool = False,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Complete every prompt. Blocks until all are done; results come in the order of the prompts.

        Args:
            prompts: texts or lists of token ids; a single text is one prompt.
            sampling_params: one for all prompts, or one per prompt.
            use_tqdm: show a progress bar on stderr.
            priority: one per prompt, under the policy "priority"; lower is admitted earlier.

        Raises:
            ValueError: a prompt or parameter is wrong; raised before anything is computed, names the prompt's index.
        """
        requests = self._intake.requests(prompts, sampling_params, priority)
        with tqdm(total=len(requests), unit="request", disable=not use_tqdm) as bar:
            for _ in self._router.run(requests, lambda news: [request for request in news if request.finished]):
                bar.update()
        return [request.output() for request in requests]

    def as_completed(
        self, prompts: Prompts, sampling_params: Params | None = None, priority: Sequence[int] | None = None
    ) -> Iterator[tuple[int, RequestOutput]]:
        """Like `generate`, but yields (index of the prompt, result) the moment a result is there."""
        requests = self._intake.requests(prompts, sampling_params, priority)
        index = {request: i for i, request in enumerate(requests)}

        def results(news: list[Request]) -> list[tuple[int, RequestOutput]]:
            return [(index.pop(request), request.output()) for request in news if request.finished]

        return Events(self.engine.turn, self._router.run(requests, results))

    def stream(
        self, prompts: Prompts, sampling_params: Params | None = None, priority: Sequence[int] | None = None
    ) -> Iterator[StreamEvent]:
        """Like `generate`, but yields each token as it is made.

        The texts of an index, joined, are the text that `generate` returns for it.
        """
        requests = self._intake.requests(prompts, sampling_params, priority)
        index = {request: i for i, request in enumerate(requests)}

        def events(news: list[Request]) -> list[StreamEvent]:
            return [request.take_event(index[request]) for request in news]

        return Events(self.engine.turn, self._router.run(requests, events))

    def score(
        self, prompts: Sequence[str | list[int]], continuations: Sequence[str | list[int]], *, use_tqdm: bool = False
    ) -> list[Score]:
        """How likely each continuation is behind its prompt.

        Args:
            prompts: texts, or lists of token ids; the empty text is the beginning of a text.
            continuations: one per prompt, of the same kind. For a multiple choice give the prompt once per choice.
            use_tqdm: show a progress bar on stderr.

        Raises:
            ValueError: as `generate`; or a continuation is empty.
            RuntimeError: somebody has aborted one.
        """
        prompts, continuations = ([x] if isinstance(x, str) else x for x in (prompts, continuations))
        if len(prompts) != len(continuations):
            raise ValueError(f"got {len(prompts)} prompts but {len(continuations)} continuations; give one per prompt")
        pairs = [Pair(*pair) for pair in zip(prompts, continuations, strict=True)]
        return [score_of(output) for output in self.generate(pairs, SCORING, use_tqdm=use_tqdm)]

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
        request.request_id = request_id
        earlier = self._by_id.get(request_id)
        if earlier is not None and not earlier.finished:
            raise ValueError(f"request_id {request_id!r} belongs to a request that is not finished")
        self._by_id[request_id] = request
        self._router.add(request, self._inbox)

    def step(self) -> list[RequestOutput]:
        """Run one step; returns the requests of `add_request` that got a token, as they are now (`finished` says if
        that was all): in this step, or in one that `generate` or `stream` has run since the last call."""
        news: list[Request] = []

        def outputs(completions: list[Request]) -> list[RequestOutput]:
            news.extend(completions)
            return [request.output() for request in news]

        try:
            self._router.advance()
            return self._router.take(self._inbox, outputs)
        except BaseException:  # it was not told: the next call tells it
            self._inbox[:0] = news
            raise

    def abort_request(self, request_id: str) -> None:
        """End an unfinished request as it is; what it held is free for the next step. An id that is not there is
        ignored: the request may have ended a moment ago."""
        self.engine.turn.check_process()
        request = self._by_id.pop(request_id, None)
        if request is None or request.finished:  # `generate` and streams call theirs by their numbers
            request = next((r for r in list(self.engine.unfinished) if r.request_id == request_id), None)
        if request is not None:
            self._router.abort(request, tell=request.inbox is not self._inbox)

    def has_unfinished_requests(self) -> bool:
        return bool(self._router.has_notes or self.engine.unfinished or self._inbox)

    def validate(self, prompt: Prompt, sampling_params: SamplingParams, priority: int = 0) -> None:
        """Raise the ValueError that `generate` would raise for this prompt."""
        self._intake.request(prompt, sampling_params, priority, number=0)

    @property
    def stats(self) -> Stats:
        """Counters of everything the engine has done. Assign a new one to start from zero."""
        return self.engine.recorder.stats

    @stats.setter
    def stats(self, stats: Stats) -> None:
        self.engine.recorder.stats = stats

    @property
    def trace(self) -> list[StepRecord] | None:
        """A record of every forward pass, with `LLM(trace=True)`; else None."""
        return self.engine.tracer.records
