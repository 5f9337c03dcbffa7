"""What users call: prompts in, completions out."""

from collections.abc import Iterator, Sequence
from typing import Any

from tqdm import tqdm

from .config import EngineConfig
from .engine import Engine
from .request import Request
from .support.async_llm import BackgroundLLM
from .support.intake import Params, Prompts
from .support.outputs import RequestOutput, StreamEvent
from .support.scoring import SCORING, Pair, Score, score_of
from .support.surroundings import Surroundings
from .support.turn import Events


class LLM(Surroundings):
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

    def __init__(self, model: str = "tinytales", **options: Any):
        super().__init__(Engine, EngineConfig(model, **options), Request)

    def generate(
        self,
        prompts: Prompts,
        sampling_params: Params | None = None,
        *,
        use_tqdm: bool = False,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Complete every prompt. Blocks until all are done; results come in the order of the prompts, whose longest
        outputs are begun first.

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
            for _ in self._router.run(
                longest_first(requests, priority), lambda news: [request for request in news if request.finished]
            ):
                bar.update()
        return [RequestOutput.of(request) for request in requests]

    def as_completed(
        self, prompts: Prompts, sampling_params: Params | None = None, priority: Sequence[int] | None = None
    ) -> Iterator[tuple[int, RequestOutput]]:
        """Like `generate`, but yields (index of the prompt, result) the moment a result is there."""
        requests = self._intake.requests(prompts, sampling_params, priority)
        index = {request: i for i, request in enumerate(requests)}

        def results(news: list[Request]) -> list[tuple[int, RequestOutput]]:
            return [(index.pop(request), RequestOutput.of(request)) for request in news if request.finished]

        return Events(self._turn, self._router.run(longest_first(requests, priority), results))

    def stream(
        self, prompts: Prompts, sampling_params: Params | None = None, priority: Sequence[int] | None = None
    ) -> Iterator[StreamEvent]:
        """Like `generate`, but yields each token as it is made.

        The texts of an index, joined, are the text that `generate` returns for it.
        """
        requests = self._intake.requests(prompts, sampling_params, priority)
        index = {request: i for i, request in enumerate(requests)}

        def events(news: list[Request]) -> list[StreamEvent]:
            return [StreamEvent.take(request, index[request]) for request in news]

        return Events(self._turn, self._router.run(requests, events))

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


def longest_first(requests: list[Request], priority: Sequence[int] | None) -> list[Request]:
    """The order in which requests that are all known are submitted: those first that may get the most tokens, since one
    that begins last would run alone at the end. Equal ones keep their order, and all do if there are priorities."""
    return requests if priority is not None else sorted(requests, key=lambda request: -request.max_tokens)


class AsyncLLM(BackgroundLLM):
    """An LLM that runs in the background, for coroutines and threads; see support/async_llm.py."""

    make_llm = LLM
