"""Engines by name, for code that runs several of them: the tests, the benchmarks, the exercises, the notebooks."""

import contextlib
import functools
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stagewise import stages, tracing
from tools.sync_stages import ROOT

if TYPE_CHECKING:  # torch is not imported here, since stage 6 wants to load it itself
    from torch import Tensor

TINYTALES = ROOT / "stagewise" / "models" / "tinytales"


class Stage(stages.Stage):
    """A stage, with its modules by name and its engines."""

    def __str__(self) -> str:
        return self.package

    @property
    def directory(self) -> str:
        return self.package

    def part(self, name: str) -> Any:
        """A module such as "sampler": the stage's, one of its support/, or else stagewise's."""
        return self._part(name) or importlib.import_module(f"stagewise.{name}")

    @functools.cache  # noqa: B019 (stages live as long as the process)
    def engine(self, model="tinytales", **arguments):
        """An LLM that all callers share. Arguments that this stage doesn't have yet are left out."""
        known = {name: value for name, value in arguments.items() if self.has_option(name)}
        return self.LLM(str(model), device="cpu", **known)

    def stepper(self, model="tinytales", **arguments) -> "Stepper":
        """An engine whose steps the caller runs."""
        return Stepper(self, str(model), **{"device": "cpu", **arguments})

    def traced(self, model="tinytales", **arguments):
        """An LLM that is traced from the start; its attribute `trace` has the records."""
        return traced(self.LLM(str(model), **{"device": "cpu", **arguments}))

    @property
    def one_by_one(self) -> dict[str, str]:
        """Options with which a step gives each request exactly one token, for callers that count steps."""
        return {"speculate": "off"} if self.has_option("speculate") else {}

    @property
    def exact(self) -> dict[str, str]:
        """Options with which its tokens are the checkpoint's, for callers that compare them with another stage's."""
        return {"weights": "as-is"} if self.has_option("weights") else {}

    # --- Looking inside ---------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def recorded_logits(self, key: Callable[[Any], Any] | None = None) -> Iterator[dict[Any, "Tensor"]]:
        """Record, in this block, the logits that the sampler gets: (request id, number of output tokens before) ->
        [vocab_size], or by another key of the request."""
        key = key or (lambda request: (request.request_id, len(request.output_token_ids)))
        records, where = {}, self.part("runner" if self.number >= 6 else "engine")
        name = "sample_rows" if self.number >= 6 else "sample"
        original = getattr(where, name)

        def spy(logits, requests, *how):
            rows = zip(logits, requests, strict=True) if self.number >= 6 else [(logits, requests)]
            for row, request in rows:
                records[key(request)] = row.clone()
            return original(logits, requests, *how)

        setattr(where, name, spy)
        try:
            yield records
        finally:
            setattr(where, name, original)

    def make_request(self, params, prompt_token_ids=(1,), output_token_ids=(), seed=0, eos_token_ids=()):
        """A request with this prompt and these output tokens so far."""
        request = self.part("request").Request(
            request_id="0",
            prompt=None,
            prompt_token_ids=list(prompt_token_ids),
            params=params,
            seed=seed,
            max_model_len=10**9,
            tokenizer=self.tokenizer(),
            eos_token_ids=tuple(eos_token_ids),
        )
        request.output_token_ids.extend(output_token_ids)
        return request

    def make_scheduler(self, max_num_seqs, budget, policy="fcfs", num_blocks=100, caching=False):
        """From stage 5 on with a pool of blocks of 4, and no watermark."""
        Scheduler = self.part("scheduler").Scheduler
        if self.number < 5:
            return Scheduler(max_num_seqs, budget, policy)
        manager = self.part("block_manager").BlockManager(num_blocks, 4, caching)
        return Scheduler(manager, max_num_seqs, budget, policy, watermark=0)

    @functools.cache  # noqa: B019 (as above)
    def tokenizer(self, directory: Path = TINYTALES):
        return self.part("tokenizer").Tokenizer(directory)

    def sample(self, logits: "Tensor", requests: list) -> list[tuple]:
        """(token, logprobs) for each row of logits, [n_rows, vocab_size]."""
        sample = self.part("sampler").sample
        return [sample(row, request) for row, request in zip(logits, requests, strict=True)]

    def filtered(self, logits: "Tensor", requests: list) -> "Tensor":
        """The scores that tokens are drawn by, after penalties, temperature and filters. -> [n_rows, vocab_size]"""
        import torch

        sampler, seen = self.part("sampler"), []
        original = sampler.draw
        sampler.draw = lambda weights, u: seen.append(weights.log()) or original(weights, u)
        try:
            self.sample(logits, requests)
        finally:
            sampler.draw = original
        return torch.stack(seen).float()


def traced(llm: Any) -> Any:
    """Trace an LLM or a Stepper from now on. Its attribute `trace` has the records, and `trace_header` the header."""
    llm.traced = tracing.Trace(llm)
    llm.trace, llm.trace_header = llm.traced.records, llm.traced.header
    return llm


class Stepper:
    """The engine of stage 4 or later, or one with the same files, but without its thread: the caller runs the steps, as
    with vLLM's LLMEngine.

    Attributes:
        engine: the stage's Engine.
        unfinished: by request id, the requests of its completions, until all have ended.
    """

    def __init__(self, stage: "Stage | OwnEngine", model: str, **options):
        self.stage = stage
        self.engine = stage.part("engine").Engine(stage.part("config").EngineConfig(model, **options))
        self.inputs = stage.part("inputs").InputProcessor(self.engine, stage.part("request").Request)
        self.unfinished: dict[str, list[Any]] = {}
        self._ended: list[Any] = []  # requests whose last token came in a step that then failed

    @property
    def stats(self) -> Any:
        return self.engine.stats

    @stats.setter
    def stats(self, stats: Any) -> None:
        self.engine.stats = stats

    def add_request(self, request_id: str, prompt: Any, params: Any = None, *, priority: int = 0) -> None:
        """Raises ValueError if the prompt or a parameter is invalid, or an unfinished request has this id."""
        if request_id in self.unfinished:
            raise ValueError(f"request_id {request_id!r} belongs to a request that is not finished")
        request = self.inputs.request(prompt, params or self.stage.SamplingParams(), priority)
        request.request_id = request_id
        self.unfinished[request_id] = getattr(request, "completions", lambda: [request])()
        for completion in self.unfinished[request_id]:
            self.engine.add(completion)

    def step(self) -> list[Any]:
        """Run one step. Returns the results so far of the requests that got a token. If it fails, all start over."""
        if not self.unfinished:
            return []
        updated, self._ended = [one for one in self._ended if one.request_id in self.unfinished], []
        try:
            updated += self.engine.step()
        except BaseException:
            unfinished = [request for completions in self.unfinished.values() for request in completions]
            self._ended = [request for request in unfinished if request.finished]
            self.engine.restart(unfinished)
            raise
        for request in updated:
            if request.finished:
                self.engine.stats.count_ended(request)
        make, outputs = self.stage.part("outputs").RequestOutput.of, []
        for request in {request.request_id: request for request in updated}.values():
            completions = self.unfinished[request.request_id]
            outputs.append(make(completions if hasattr(request, "completions") else request))
        for output in outputs:
            if output.finished:
                del self.unfinished[output.request_id]
        return outputs

    def abort_request(self, request_id: str) -> None:
        """Abort a request. An unknown id is ignored, because the request may just have ended."""
        for request in self.unfinished.pop(request_id, ()):
            self.engine.abort(request)

    def has_unfinished_requests(self) -> bool:
        return bool(self.unfinished)


def load_package(directory: Path, name: str) -> Any:
    """Import a directory as a package of this name."""
    spec = importlib.util.spec_from_file_location(
        name, directory / "__init__.py", submodule_search_locations=[str(directory)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def said_at(error: BaseException) -> str:
    """An error in a line, with the place where it was raised."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({frame.filename}:{frame.lineno})"


class OwnEngine:
    """A user's own engine: any package with `LLM` and `SamplingParams`. Nothing else is known about it.

    Raises:
        ValueError: there is no such package, or it lacks one of the two.
    """

    def __init__(self, directory: str | Path):
        self.directory = Path(directory).resolve()
        if not (self.directory / "__init__.py").is_file():
            raise ValueError(f"{directory} is not an engine: it has no __init__.py")
        # A name that no other module has, whatever the directory's name is.
        name = f"own_engine_{sum(name.startswith('own_engine_') for name in sys.modules)}"
        module = load_package(self.directory, name)
        for part in ("LLM", "SamplingParams"):
            if not hasattr(module, part):
                raise ValueError(f"{directory} is not an engine: its __init__.py has no {part}")
        self.module, self.LLM, self.SamplingParams = name, module.LLM, module.SamplingParams

    def part(self, name: str) -> Any:
        """One of its modules, from the directory or its support/. Raises ImportError if there is none, or it fails."""
        folder = "" if (self.directory / f"{name}.py").is_file() else ".support"
        return importlib.import_module(f"{self.module}{folder}.{name}")

    def __str__(self) -> str:
        return self.directory.name

    def engine(self, model: str | Path, options: dict, **needed):
        """Make an LLM. Of `options`, it gets those that it knows; if it doesn't know all of `needed`, it raises
        TypeError."""
        while True:
            try:
                return self.LLM(str(model), **options, **needed)
            except TypeError as error:
                unknown = unknown_argument(error, options)
                if unknown is None:
                    raise
                options = {name: value for name, value in options.items() if name != unknown}

    def stepper(self, model: str | Path, options: dict, **needed):
        """The same for an engine whose steps the caller runs: a Stepper around its Engine if it has the files of stage
        4, or else an LLM, which has to have a Stepper's methods."""
        if not (self.directory / "engine_loop.py").is_file():
            return self.engine(model, options, **needed)
        config = self.part("config").EngineConfig
        known = {name: value for name, value in options.items() if hasattr(config, name)}
        return Stepper(self, str(model), **known, **needed)


def unknown_argument(error: TypeError, names: Iterable[str]) -> str | None:
    """Which of these keyword arguments the called function does not know, if that is what the error says."""
    if "unexpected keyword" not in str(error):
        return None
    return next((name for name in names if f"'{name}'" in str(error)), None)


STAGES = [Stage(number) for number in stages.PACKAGES]


def random_prompts(vocab_size: int, lengths: list[int], seed: int = 0) -> list[list[int]]:
    """Prompts of these lengths, without token 0, which is the end token in the tests' checkpoints."""
    import torch

    generator = torch.Generator("cpu").manual_seed(seed)
    return [torch.randint(1, vocab_size, (n,), generator=generator).tolist() for n in lengths]
