"""What users call: prompts in, completions out."""

from collections.abc import Iterator, Sequence
from typing import Any

from tqdm import tqdm

from .beam_search import BeamEngine, make_searches
from .config import EngineConfig
from .engine import Engine
from .request import Request
from .support.around import around
from .support.async_llm import BackgroundLLM
from .support.intake import Params, Prompts
from .support.outputs import RequestOutput, StreamEvent, finished_groups
from .support.sampling_params import SamplingParams
from .support.scoring import SCORING, Pair, Score, score_of
from .support.surroundings import Surroundings
from .support.threads import without_gradients
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
            for _ in self._router.run(longest_first(requests, priority), finished_groups):
                bar.update()
        return [RequestOutput.of(request) for request in requests]

    def as_completed(
        self, prompts: Prompts, sampling_params: Params | None = None, priority: Sequence[int] | None = None
    ) -> Iterator[tuple[int, RequestOutput]]:
        """Like `generate`, but yields (index of the prompt, result) the moment a result is there."""
        requests = self._intake.requests(prompts, sampling_params, priority)
        index = {request: i for i, request in enumerate(requests)}

        def results(news: list[Request]) -> list[tuple[int, RequestOutput]]:
            return [(index.pop(request), RequestOutput.of(request)) for request in finished_groups(news)]

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
            return [StreamEvent.take(c, index[c.group[0]]) for c in news]

        return Events(self._turn, self._router.run(requests, events))

    def beam_search(
        self,
        prompts: Prompts,
        beam_width: int = 4,
        max_tokens: int = 64,
        length_penalty: float = 1.0,
        early_stopping: bool | str = False,
    ) -> list[RequestOutput]:
        """The `beam_width` best completions of every prompt that beam search finds, the best first.

        As Hugging Face's `generate(num_beams=beam_width, num_return_sequences=beam_width)`: a completion's score is its
        `cumulative_logprob` divided by its number of tokens to the power of `length_penalty`. The search ends when
        `beam_width` completions have ended, with `early_stopping` True; with False when the best beam is no better than
        these; with "never" when none can get better. Streams that are open meanwhile wait.

        Raises:
            ValueError: a prompt or an argument is wrong, or the beams of a prompt could outgrow the KV cache.
        """
        requests = self._intake.requests(prompts, SamplingParams(temperature=0, max_tokens=max_tokens))
        beams = BeamEngine(
            self.engine, make_searches(self.engine, requests, beam_width, length_penalty, early_stopping)
        )
        self._observer.look_at(beams, beams)
        around(beams, "step", without_gradients)
        self._router.change(self._observer.queued, requests)
        self._router.change(beams.run)
        self.stats.num_requests += len(requests)
        self.stats.num_output_tokens += sum(search.num_tokens for search in beams.searches)
        return [search.output() for search in beams.searches]

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
