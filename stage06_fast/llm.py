"""What users call: prompts in, completions out."""

import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from tqdm import tqdm

from .beam_search import BeamEngine, make_searches
from .config import EngineConfig
from .engine import Engine
from .engine_loop import EngineLoop
from .request import Request
from .support.inputs import InputProcessor, Params, Prompts
from .support.llm_base import LLMBase
from .support.outputs import RequestOutput, StreamEvent
from .support.sampling_params import SamplingParams, check_integer
from .support.scoring import SCORING, Pair, Score, score_of


class LLM(LLMBase):
    """A GPT-2 that completes prompts. May be used by several threads at once.

        llm = LLM(model="tinytales")
        llm.generate(["Once upon a time"], SamplingParams(temperature=0))[0].outputs[0].text

    Args:
        model: "tinytales" (bundled), "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", or a directory that
            `stagewise convert` wrote.
        options: the other fields of EngineConfig, documented in config.py.

    Attributes:
        engine: does the work.

    Raises:
        ValueError: an option or a file of the model is wrong; the message names it.
        OSError: the model can't be fetched or read.
    """

    def __init__(self, model: str = "tinytales", **options: Any):
        config = EngineConfig(model, **options)
        self.loop = EngineLoop(lambda: Engine(config))
        self.engine, self.inputs = self.loop.engine, InputProcessor(self.loop.engine, Request)
        self.beams = BeamEngine(self.engine)
        weakref.finalize(self, self.loop.close, abort=True)  # a dropped LLM closes its engine

    def close(self, *, abort: bool = False) -> None:
        """Accept no more requests, finish the unfinished ones (or abort them), and end the engine's thread. Blocks
        until then. Optional: dropping the LLM, or exiting, aborts what is unfinished."""
        self.loop.close(abort=abort)
        self.loop.thread.join()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(abort=kind is not None)

    def generate(
        self,
        prompts: Prompts,
        sampling_params: Params | None = None,
        *,
        use_tqdm: bool = False,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Complete every prompt. Blocks until all are done. Results come in the order of the prompts.

        Args:
            prompts: strings or lists of token ids; a single string is one prompt.
            sampling_params: one for all prompts, or one per prompt.
            use_tqdm: show a progress bar on stderr.
            priority: one per prompt, under the policy "priority"; lower is admitted earlier.

        Raises:
            ValueError: a prompt or parameter is wrong; raised before anything is computed, names the prompt's index.
        """
        groups = [request.completions() for request in self.inputs.requests(prompts, sampling_params, priority)]
        requests = [request for group in groups for request in group]
        with tqdm(total=len(requests), unit="request", disable=not use_tqdm) as bar:
            for _ in self.loop.run(requests, finished):
                bar.update()
        return [RequestOutput.of(group) for group in groups]

    def as_completed(
        self, prompts: Prompts, sampling_params: Params | None = None, priority: Sequence[int] | None = None
    ) -> Iterator[tuple[int, RequestOutput]]:
        """Like `generate`, but yields (index of the prompt, result) as soon as a result is ready."""
        requests = self.inputs.requests(prompts, sampling_params, priority)
        groups = {i: request.completions() for i, request in enumerate(requests)}
        index = {request: i for i, group in groups.items() for request in group}

        def results(updated: list[Request]) -> list[tuple[int, RequestOutput]]:
            indices = dict.fromkeys(index.pop(request) for request in finished(updated))
            ended = [i for i in indices if all(request.finished for request in groups[i])]
            return [(i, RequestOutput.of(groups.pop(i))) for i in ended]

        return self._keep_alive(self.loop.run(list(index), results))

    def stream(
        self, prompts: Prompts, sampling_params: Params | None = None, priority: Sequence[int] | None = None
    ) -> Iterator[StreamEvent]:
        """Like `generate`, but yields each token as it is made.

        The texts of a completion's events, joined, are the text that `generate` returns.
        """
        requests = self.inputs.requests(prompts, sampling_params, priority)
        index = {completion: i for i, request in enumerate(requests) for completion in request.completions()}

        def events(updated: list[Request]) -> list[StreamEvent]:
            return [StreamEvent.take(one, index.pop(one) if one.finished else index[one]) for one in updated]

        return self._keep_alive(self.loop.run(list(index), events))

    def _keep_alive(self, results: Iterator[Any]) -> Iterator[Any]:
        """Yield the results. A method, so that an LLM with an open stream is not dropped."""
        yield from results

    def beam_search(
        self,
        prompts: Prompts,
        beam_width: int = 4,
        max_tokens: int = 64,
        length_penalty: float = 1.0,
    ) -> list[RequestOutput]:
        """The `beam_width` best completions that beam search finds for each prompt, the best first.

        Like Hugging Face's `generate(num_beams=beam_width, num_return_sequences=beam_width)`: a completion's score is
        its `cumulative_logprob` divided by its number of tokens to the power of `length_penalty`. The search ends when
        `beam_width` completions have ended, and the best beam is no better. All other requests wait in the meantime.

        Raises:
            ValueError: a prompt or an argument is wrong, or the beams of a prompt could outgrow the KV cache.
        """
        max_tokens = check_integer("max_tokens", max_tokens, 1)
        requests = self.inputs.requests(prompts, SamplingParams(temperature=0, max_tokens=max_tokens))
        searches = make_searches(self.engine, requests, beam_width, length_penalty)
        has_left = threading.Event()
        try:
            self.loop.call(lambda: self.beams.run(searches, lambda: has_left.is_set() or self.loop.aborting))
        finally:  # after a Ctrl-C the engine's thread need not finish them
            has_left.set()
        return [search.output() for search in searches]

    def score(
        self, prompts: Sequence[str | list[int]], continuations: Sequence[str | list[int]], *, use_tqdm: bool = False
    ) -> list[Score]:
        """How likely each continuation is after its prompt.

        Args:
            prompts: strings, or lists of token ids; after an empty string a continuation begins a text.
            continuations: one per prompt, of the same type. For multiple choice, give the prompt once per choice.
            use_tqdm: show a progress bar on stderr.

        Raises:
            ValueError: as `generate`; or a continuation is empty.
            RuntimeError: a request was aborted, or failed.
        """
        prompts, continuations = ([x] if isinstance(x, str) else x for x in (prompts, continuations))
        if len(prompts) != len(continuations):
            raise ValueError(f"got {len(prompts)} prompts but {len(continuations)} continuations; give one per prompt")
        pairs = [Pair(*pair) for pair in zip(prompts, continuations, strict=True)]
        return [score_of(output) for output in self.generate(pairs, SCORING, use_tqdm=use_tqdm)]


def finished(requests: list[Request]) -> list[Request]:
    return [request for request in requests if request.finished]
