"""The stages: their numbers, packages and commands; and how the rest of this package reaches them.

A stage is used through what its package exports: `stage.LLM`, `stage.SamplingParams`, and so on. Everything else is in
`ELSEWHERE`, in the methods of `Stage` and in the functions below. Only what shows a running engine (`tracing`, the
server's metrics and levers) looks into its scheduler and blocks.
"""

import ast
import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import Any

from .wrap import weakly, wrap

# The stages in order, each with its idea as in titles and figures. Other lists of stages are made from this one, or
# tests/test_registry.py compares them with it.
IDEAS = {
    "stage01_single": "one at a time",
    "stage02_static_batch": "static batch",
    "stage03_kvcache": "KV cache",
    "stage04_continuous": "continuous batch",
    "stage05_paged": "paged KV",
    "stage06_fast": "fast kernels",
    "stage07_speculative": "speculation",
    "stage08_int8": "weights in int8",
}
PACKAGES = dict(enumerate(IDEAS, start=1))
# The newest stage whose tokens are the checkpoint's, and the default: adding a stage must not change the tokens of a
# server or a batch run. Stage 8 rounds weights unless told otherwise.
EXACT = 7

# Name -> the module that has it.
ELSEWHERE = {
    "ThreadLimit": "threads",
    **dict.fromkeys(("completion_seed", "derive_seed"), "philox"),
    "find_model": "weights",
    "free_memory": "memory",
    "Detokenizer": "tokenizer",
    **dict.fromkeys(("GPT2", "ModelConfig"), "model"),
    **dict.fromkeys(("Checkpoint", "BUNDLED", "MARK", "STORED_TRANSPOSED", "is_converted", "mark_of"), "weights"),
    **dict.fromkeys(("FILES", "Tokenizer", "byte_alphabet"), "tokenizer"),
    "cache_directory": "compiler",
    "MIN_TEMPERATURE": "sampling_params",
}
SIDE_FILES = ("generation_config.json", "tokenizer_config.json", "chat_template.jinja")  # for what is around an engine


@dataclass(frozen=True)
class Setup:
    """What an engine's answers depend on, besides its requests.

    Attributes:
        config: its EngineConfig.
        directory: of the model.
        dtype: as torch names it, such as "float32"; with rounded weights, "float32, weights in int8".
        arithmetic: what computes products and attention, and which parts are disabled; None if no engine is here.
    """

    config: Any
    directory: Path
    dtype: str
    max_model_len: int
    arithmetic: str | None = None


class Stage:
    """A stage: its exports as attributes, and what it can do."""

    def __init__(self, number: int):
        if number not in PACKAGES:
            raise ValueError(f"stage must be one of {', '.join(map(str, PACKAGES))}, got {number}")
        self.number, self.package, self.command = number, PACKAGES[number], f"stage{number:02}"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # never an export; pickle asks before __init__ has run
            raise AttributeError(name)
        if name not in ELSEWHERE:
            return getattr(importlib.import_module(self.package), name)
        if (part := self._part(ELSEWHERE[name])) is None:
            raise AttributeError(f"{self.package} has no {name}")
        return getattr(part, name)

    @functools.cache  # noqa: B019 (there are few stages, and they stay)
    def _part(self, name: str) -> Any:
        """A module of the stage; None if it has no such module."""
        importlib.import_module(self.package)
        for place in (self.package, f"{self.package}.support"):
            try:
                return importlib.import_module(f"{place}.{name}")
            except ModuleNotFoundError as error:
                if error.name not in (place, f"{place}.{name}"):
                    raise
        return None

    # --- What the command line needs, without torch -----------------------------------------------------------------

    def _alone(self, module: str, name: str) -> Any:
        """What the stage exports; before it is imported, from a module that needs no torch, without the stage's
        __init__.py, which does. The next import runs both."""
        return getattr(self, name) if self.package in sys.modules else self._read_alone(module, name)

    @functools.cache  # noqa: B019 (as above)
    def _read_alone(self, module: str, name: str) -> Any:
        spec = importlib.util.find_spec(self.package)
        sys.modules[self.package] = importlib.util.module_from_spec(spec)  # pyright: ignore[reportArgumentType]
        try:
            return getattr(importlib.import_module(f"{self.package}.{module}"), name)
        finally:
            for loaded in [loaded for loaded in sys.modules if loaded.partition(".")[0] == self.package]:
                del sys.modules[loaded]

    @property
    def options(self) -> tuple[Field[Any], ...]:
        """The options of its engine, as EngineConfig has them."""
        return fields(self._alone("config", "EngineConfig"))

    @property
    def sampling(self) -> Any:
        """SamplingParams with all defaults."""
        return self._alone("support.sampling_params", "SamplingParams")()

    @property
    def description(self) -> str:
        """The docstring of the package."""
        if self.package in sys.modules:
            return sys.modules[self.package].__doc__ or ""
        spec = importlib.util.find_spec(self.package)
        return ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""  # pyright: ignore

    # --- What it can do ---------------------------------------------------------------------------------------------

    def has_option(self, name: str) -> bool:
        return name in {option.name for option in self.options}

    @functools.cached_property
    def is_batched(self) -> bool:
        """Whether it runs several requests at once."""
        return self.has_option("max_num_seqs")

    @property
    def can_serve(self) -> bool:
        """Whether requests may come at any time and join the running ones."""
        return self.number >= 4

    @property
    def can_score(self) -> bool:
        return self.number >= 4

    @property
    def has_beams(self) -> bool:
        return self.number >= 5

    @property
    def has_priority(self) -> bool:
        """Whether a request may have a priority."""
        return self.number >= 4

    # --- What an engine is made of ----------------------------------------------------------------------------------

    def _sizes(self, options: dict) -> tuple[Any, Path, Any, int]:
        """The EngineConfig, directory, ModelConfig and max_model_len of an engine with these options, without loading
        it."""
        config, weights = self.EngineConfig(**options), self._part("weights")
        directory = weights.find_model(config.model, config.load_format)
        sizes = self._part("model").ModelConfig(**weights.read_config(config.model, directory, config.load_format))
        longest = self._part("options").pick_max_model_len(config.max_model_len, sizes.n_positions)
        return config, directory, sizes, longest

    def setup(self, options: dict, device: str) -> Setup:
        """The Setup of an engine with these options on this kind of device, without loading it.

        Raises:
            ValueError, OSError: as LLM does.
        """
        import torch

        config, directory, _, longest = self._sizes(options)
        dtype = self._part("device").pick_dtype(config.dtype, torch.device(device))
        int8 = self.has_option("weights") and self._part("runner").pick_int8(config.weights, torch.device(device))
        return Setup(config, directory, type_of_numbers(dtype, int8), longest)

    def most_cache_bytes(self, options: dict) -> int:
        """The largest KV cache that an engine with these options can fill."""
        config, _, sizes, longest = self._sizes(options)
        pick, block = self._part("device"), getattr(config, "block_size", 1)
        dtype = pick.pick_dtype(config.dtype, pick.pick_device(config.device))
        per_token = self._part("kv_cache").bytes_per_token(sizes.n_layer, sizes.n_embd, dtype)
        return config.max_num_seqs * -(-longest // block) * block * per_token

    def check_number(self, name: str, value: Any, low: float, high: float) -> None:
        """Raise ValueError, which names it, unless it is a number within these bounds."""
        self._part("sampling_params").check_number(name, value, low, high)

    def check_whole_number(self, name: str, value: Any, low: int, high: int | None = None) -> None:
        self._part("sampling_params").check_integer(name, value, low, high)

    # --- Its model's files ------------------------------------------------------------------------------------------

    def is_named(self, model: str) -> bool:
        """Whether this is the name of a model that is bundled or fetched, not a directory's."""
        weights = self._part("weights")
        return model in (*weights.BUNDLED_NAMES, *weights.HUB_SIZES)

    def place_of(self, model: str, load_format: str = "auto") -> Path:
        """Where a model is, in whatever layout. Raises ValueError or OSError if a named one can't be fetched."""
        return self.find_model(model, load_format) if self.is_named(model) else Path(model)

    def tokenizer_files(self, model: str, load_format: str, tokenizer: str | None) -> Path:
        """The directory of a model's tokenizer. Raises ValueError or OSError."""
        place = self.place_of(model, load_format) if tokenizer is None else self.place_of(tokenizer, "dummy")
        return place.parent if place.is_file() else place

    def checkpoint_files(self, directory: Path, tokenizer: str | None) -> list[Path]:
        """The files that a model is read from."""
        place = directory if tokenizer is None else self.place_of(tokenizer, "dummy")
        files = [directory / "config.json", *sorted(directory.glob("model*.safetensors"))]
        files += [place / name for name in (*self.FILES, *SIDE_FILES)]
        return [file for file in files if file.exists()]


STAGES = {number: Stage(number) for number in PACKAGES}
SERVING = {number: stage for number, stage in STAGES.items() if stage.can_serve}


def stage_of(package: str) -> Stage:
    for stage in STAGES.values():
        if stage.package == package:
            return stage
    raise TypeError(f"{package} is no stage; the stages are {', '.join(IDEAS)}")


# --- What is asked of an LLM, whatever its stage --------------------------------------------------------------------


def llm_of(llm: Any) -> Any:
    """The LLM itself, given it or an AsyncLLM, also of a subclass. Raises TypeError for anything else."""
    llm = getattr(llm, "llm", llm)
    if not hasattr(llm, "engine"):
        raise TypeError(f"llm must be a stage's LLM or AsyncLLM, got {llm!r:.80}")
    return llm


def stage_of_llm(llm: Any) -> Stage:
    return stage_of(type(llm_of(llm).engine).__module__.partition(".")[0])


def setup_of(llm: Any) -> Setup:
    core = llm.engine
    dtype = type_of_numbers(core.runner.dtype, getattr(core.runner, "int8", False))
    return Setup(
        llm.config, core.checkpoint.directory, dtype, llm.max_model_len, arithmetic_of(core.runner, llm.config)
    )


def arithmetic_of(runner: Any, config: Any) -> str:
    """Which instructions multiply, what computes attention, and which of stage 6's parts are disabled."""
    import torch

    by_torch = f"torch, {torch.backends.cpu.get_cpu_capability()}" if runner.device.type == "cpu" else "torch, CUDA"
    kinds = [getattr(runner.model, name, None) for name in ("kind", "int8_kind")]
    products = " and ".join(filter(None, kinds)) or by_torch
    parts = f"products: {products}; attention: {getattr(runner, 'attention_backend', by_torch)}"
    disabled = getattr(config, "disable", ())
    return parts + (f"; disabled: {', '.join(sorted(disabled))}" if disabled else "")


def type_of_numbers(dtype: Any, int8: bool) -> str:
    return str(dtype).removeprefix("torch.") + (", weights in int8" if int8 else "")


def limit_threads(stage: Stage, llm: Any) -> None:
    """Let each step use as many threads as other programs leave free cores. From stage 6 on the runner does so
    itself."""
    if stage.number >= 6:
        return
    limit = STAGES[6]._alone("support.threads", "ThreadLimit")()

    def step(step: Callable, *arguments: Any) -> list[Any]:
        with limit:
            return step(*arguments)

    wrap(llm.engine, "step", step)


def end_tokens(llm: Any) -> tuple[int, ...]:
    """The model's end tokens."""
    return llm.engine.model_config.eos_token_ids


# --- Watching an engine -----------------------------------------------------------------------------------------------


def core_of(llm: Any) -> Any:
    return llm.engine


def watch_requests(llm: Any, made: Callable[[Any], None], added: Callable[[Any], None]) -> None:
    """Report each request: when it is made, in the caller's thread, and just before the engine gets it, between two
    steps. These are methods of an object that the engine does not keep alive."""
    made, added = weakly(made), weakly(added)

    def make(make: Callable, prompt: Any, params: Any, priority: int = 0, number: int | None = None) -> Any:
        request = make(prompt, params, priority, number)
        if number is None:  # otherwise it is only checked
            made(request)
        return request

    def add(add: Callable, request: Any) -> None:
        added(request)
        add(request)

    wrap(llm.inputs, "request", make)
    wrap(llm.engine, "add", add)


def unfinished_requests(llm: Any) -> list[Any]:
    """The waiting and running requests. Any thread may call this."""
    return list(llm.loop.callbacks)
