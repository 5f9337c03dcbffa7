"""What users call: prompts in, completions out."""

from collections import deque
from collections.abc import Iterator
from typing import Any

from tqdm import tqdm

from .config import EngineConfig
from .engine import Engine
from .request import Request
from .support.inputs import InputProcessor, Params, Prompts
from .support.llm_base import LLMBase
from .support.outputs import RequestOutput, StreamEvent


class LLM(LLMBase):
    """A GPT-2 that completes prompts.

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
        self.engine = Engine(EngineConfig(model, **options))
        self.inputs = InputProcessor(self.engine, Request)

    def generate(
        self, prompts: Prompts, sampling_params: Params | None = None, *, use_tqdm: bool = False
    ) -> list[RequestOutput]:
        """Complete every prompt. Blocks until all are done; results come in the order of the prompts.

        Args:
            prompts: strings or lists of token ids; a single string is one prompt.
            sampling_params: one for all prompts, or one per prompt.
            use_tqdm: show a progress bar on stderr.

        Raises:
            ValueError: a prompt or parameter is wrong; raised before anything is computed, names the prompt's index.
        """
        requests = self.inputs.requests(prompts, sampling_params)
        with tqdm(total=len(requests), unit="request", disable=not use_tqdm) as bar:
            for updated in self.engine.run(deque(requests)):
                bar.update(sum(request.finished for request in updated))
        return [RequestOutput.of(request) for request in requests]

    def as_completed(
        self, prompts: Prompts, sampling_params: Params | None = None
    ) -> Iterator[tuple[int, RequestOutput]]:
        """Like `generate`, but yields (index of the prompt, result) as soon as a result is ready."""
        requests = self.inputs.requests(prompts, sampling_params)
        index = {request: i for i, request in enumerate(requests)}
        steps = self.engine.run(deque(requests))
        return ((index.pop(r), RequestOutput.of(r)) for updated in steps for r in updated if r.finished)

    def stream(self, prompts: Prompts, sampling_params: Params | None = None) -> Iterator[StreamEvent]:
        """Like `generate`, but yields each token as it is made.

        The texts of an index, joined, are the text that `generate` returns for it.
        """
        requests = self.inputs.requests(prompts, sampling_params)
        index = {request: i for i, request in enumerate(requests)}
        return (StreamEvent.take(r, index[r]) for updated in self.engine.run(deque(requests)) for r in updated)
