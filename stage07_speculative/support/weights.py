"""A model's files: find them, read its sizes, load its weights.

A model is a name, `tinytales` (bundled) or a GPT-2 size (downloaded once), or a directory that `stagewise convert`
wrote. Both have the layout of OpenAI's GPT-2 on the Hub: config.json, vocab.json, merges.txt, and the weights as
model.safetensors, whole or in shards.
"""

import functools
import hashlib
import json
import math
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from .memory import free_memory
from .tokenizer import FILES, Tokenizer

ROOT = Path(__file__).parent.parent.parent
BUNDLED = ROOT / "stagewise" / "models" / "tinytales"  # if the stages have not been copied elsewhere
BUNDLED_NAMES = ("tinytales", "tinytales-draft")  # the draft uses the tokenizer of tinytales
HUB_SIZES = {
    "gpt2": dict(n_layer=12, n_head=12, n_embd=768),
    "gpt2-medium": dict(n_layer=24, n_head=16, n_embd=1024),
    "gpt2-large": dict(n_layer=36, n_head=20, n_embd=1280),
    "gpt2-xl": dict(n_layer=48, n_head=25, n_embd=1600),
}
MARK = "stagewise"  # the key of config.json whose value says that `stagewise convert` wrote these files
SIZES = ("n_layer", "n_head", "n_embd", "n_positions", "vocab_size")
STORED_TRANSPOSED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")  # [in, out], the transpose of torch's nn.Linear


class Checkpoint:
    """The files of a model.

    Args:
        config: has the options `model`, `load_format` and `tokenizer`.

    Attributes:
        directory: where the files are.
        sizes: the fields of ModelConfig, by name.

    Raises:
        ValueError: there is no such model, or a file is wrong; the message names it.
        OSError: the model can't be downloaded or read.
    """

    def __init__(self, config: Any):
        self.config, self.directory = config, find_model(config.model, config.load_format)
        self.sizes = read_config(config.model, self.directory, config.load_format)

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        if self.config.tokenizer is not None:
            return Tokenizer(find_model(self.config.tokenizer, "dummy"))
        return Tokenizer(self.directory if (self.directory / "vocab.json").exists() else BUNDLED)

    def load(self, model: nn.Module, dtype: torch.dtype, device: torch.device) -> None:
        """Fill a model that was built on the meta device, which takes no memory.

        Raises ValueError naming the file and a tensor that is missing, unexpected, of a wrong shape or not finite.
        """
        shapes = {name: parameter.shape for name, parameter in model.state_dict().items()}
        check_memory(sum(map(math.prod, shapes.values())) * dtype.itemsize, device)
        is_dummy, loaded = self.config.load_format == "dummy", {}
        for name, tensor in dummy_tensors(shapes) if is_dummy else read_tensors(self.directory, shapes):
            # A copy, or the whole file would stay mapped into memory, and a change to it would change the model.
            values = loaded[name] = tensor.to(device, dtype, copy=True, memory_format=torch.contiguous_format)
            check_finite(self.directory, name, values)
        model.load_state_dict(loaded, assign=True)
        model.requires_grad_(False)


def find_model(model: str, load_format: str) -> Path:
    """The directory of a model. A GPT-2 size is downloaded unless it is cached; with `load_format="dummy"` it is the
    bundled directory, for its tokenizer.

    Raises ValueError for an unknown name and for a directory in another layout, OSError if the download fails.
    """
    if model in HUB_SIZES:
        return BUNDLED if load_format == "dummy" else download(model)
    directory = BUNDLED.parent / model if model in BUNDLED_NAMES else Path(model)
    if not directory.exists():
        names = ", ".join([*BUNDLED_NAMES, *HUB_SIZES])
        where = ", which comes with the repository" if model in BUNDLED_NAMES else ""
        raise ValueError(f"model {model!r}: there is no directory {directory}{where}; give a GPT-2's or one of {names}")
    if model not in BUNDLED_NAMES and not is_converted(directory):
        raise ValueError(f"{directory} is not in the layout that a stage reads; {convert_hint(directory)}")
    return directory


def download(model: str) -> Path:
    """The files of a GPT-2 size, in huggingface_hub's cache."""
    from huggingface_hub import snapshot_download

    patterns = ["config.json", *FILES, "*.safetensors", "*.safetensors.index.json"]
    try:
        return Path(snapshot_download(f"openai-community/{model}", allow_patterns=patterns))
    except Exception as error:  # network and cache errors of many kinds
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise OSError(
            f"model {model!r} can't be fetched: {reason}; without a network use the bundled 'tinytales', a directory, "
            "or load_format='dummy'"
        ) from error


def is_converted(directory: Path) -> bool:
    """Whether a directory's files, but for the weights, are what `stagewise convert` wrote."""
    try:
        config = json.loads((directory / "config.json").read_bytes())
        return config.get(MARK) == mark_of(directory, config)
    except (OSError, ValueError, AttributeError, RecursionError):
        return False


def mark_of(directory: Path, config: dict[str, Any]) -> str:
    """A hash of config.json and of the other files but the weights. If a program changes one of them later, or adds
    one, the mark no longer fits."""
    total = hashlib.sha256(json.dumps({**config, MARK: None}, sort_keys=True).encode())
    for path in sorted({*directory.glob("*.json"), *directory.glob("*.txt")} - {directory / "config.json"}):
        total.update(path.name.encode() + path.read_bytes())
    return total.hexdigest()


def convert_hint(path: Path) -> str:
    """What to do with a directory or file that can't be read here."""
    return f"`stagewise convert {shlex.quote(str(path))} DIRECTORY` makes a directory that can be read, or says why not"


def read_config(model: str, directory: Path, load_format: str) -> dict[str, Any]:
    """The fields of ModelConfig."""
    if model in HUB_SIZES and load_format == "dummy":
        return HUB_SIZES[model] | {"n_inner": 4 * HUB_SIZES[model]["n_embd"]}
    config = json.loads((directory / "config.json").read_bytes())
    eos = config.get("eos_token_id")
    sizes = {name: config[name] for name in SIZES} | {"n_inner": config.get("n_inner") or 4 * config["n_embd"]}
    sizes |= {"layer_norm_epsilon": config.get("layer_norm_epsilon", 1e-5)}
    return sizes | {"eos_token_ids": tuple(eos if isinstance(eos, list) else [] if eos is None else [eos])}


def read_tensors(directory: Path, shapes: dict[str, torch.Size]) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a checkpoint under the model's names and in its orientation. All names are checked first."""
    found, path = {}, directory
    try:
        for path in sorted(directory.glob("model*.safetensors")):
            with safe_open(path, framework="pt") as file:
                found |= {name.removeprefix("transformer."): (path, name) for name in list(file.keys())}
        found = {name: place for name, place in found.items() if not name.endswith(".attn.bias")}  # the causal mask
        for what, names in (("missing", shapes.keys() - found.keys()), ("unexpected", found.keys() - shapes.keys())):
            if names:
                raise ValueError(f"{directory}: {what} {min(names)}; {convert_hint(directory)}")
        for name, (path, stored) in found.items():
            with safe_open(path, framework="pt") as file:  # for each, or what was read would stay in memory
                tensor = file.get_tensor(stored)
            tensor = tensor.t() if name.endswith(STORED_TRANSPOSED) else tensor
            if tensor.shape != shapes[name]:
                raise ValueError(f"{path}: the shape of {stored} does not fit config.json; {convert_hint(directory)}")
            yield name, tensor
    except SafetensorError as error:
        raise ValueError(f"{path} can't be read: {error}; {convert_hint(directory)}") from None


def dummy_tensors(shapes: dict[str, torch.Size]) -> Iterator[tuple[str, Tensor]]:
    """Random weights as GPT-2 was initialized: the same numbers on every device and in every stage."""
    generator = torch.Generator("cpu").manual_seed(0)
    n_layer = sum(name.endswith("attn.c_attn.weight") for name in shapes)
    for name, shape in shapes.items():
        tensor = torch.empty(shape, dtype=torch.float32, device="cpu")
        if name.endswith("bias"):
            yield name, tensor.zero_()
        elif ".ln_" in name or name.startswith("ln_f"):
            yield name, tensor.fill_(1)
        else:
            std = 0.02 / math.sqrt(2 * n_layer) if name.endswith("c_proj.weight") else 0.02
            yield name, tensor.normal_(0, std, generator=generator)


def check_finite(directory: Path, name: str, tensor: Tensor) -> None:
    if not all(map(math.isfinite, tensor.aminmax())):  # both are NaN if any value is
        raise ValueError(f"{directory}: tensor {name!r} has values that are not finite in {tensor.dtype}")


def check_memory(num_bytes: int, device: torch.device) -> None:
    """Raise ValueError if the device lacks the memory: a system that overcommits may kill the process later."""
    free = free_memory(device)
    if num_bytes > free:
        raise ValueError(f"the weights take {num_bytes:,} bytes of memory, but only {free:,} are free; see --dtype")
