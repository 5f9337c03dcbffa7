"""A model's files: find them, read its sizes, and load its weights.

A model is `tinytales` (bundled with the repository), one of the GPT-2 sizes (fetched once by huggingface_hub and
cached), or a directory in Hugging Face layout: config.json, merges.txt, and the weights as model.safetensors or
pytorch_model.bin, whole or in shards; or the one file of a training checkpoint. Whatever is wrong with a file is said
in one line that names it.
"""

import functools
import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from .memory import give_back
from .tokenizer import Tokenizer, read_json
from .training_checkpoint import SUFFIXES, read_sizes, training_tensors

logger = logging.getLogger(__name__)

ROOT = Path(__file__).parent.parent.parent
# The bundled models: beside the stages, or, if they are installed as a wheel, where that puts them.
BUNDLED = next(filter(Path.is_dir, ROOT.glob("stagewise/models/tinytales")), ROOT / "models" / "tinytales")
BUNDLED_NAMES = ("tinytales", "tinytales-draft")
HUB_SIZES = {
    "gpt2": dict(n_layer=12, n_head=12, n_embd=768),
    "gpt2-medium": dict(n_layer=24, n_head=16, n_embd=1024),
    "gpt2-large": dict(n_layer=36, n_head=20, n_embd=1280),
    "gpt2-xl": dict(n_layer=48, n_head=25, n_embd=1600),
}
# Linear layers that a GPT-2 checkpoint stores as [in, out], the transpose of torch's nn.Linear.
STORED_TRANSPOSED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
GENERATION = "generation_config.json"
DEFAULTS = {name: name for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")}
DEFAULTS |= {"max_new_tokens": "max_tokens"}  # its names -> those of SamplingParams
STORED_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
# The sizes in config.json, and what no GPT-2 exceeds: larger ones would fill the memory before a weight is read.
LARGEST = dict(n_layer=1000, n_head=1000, n_embd=10**5, n_inner=10**6, n_positions=10**7, vocab_size=10**7)


Take = Callable[[str, Tensor], bool]  # whether it takes a tensor of this name


class Checkpoint:
    """A model's directory, found and looked into.

    Args:
        config: has the options `model`, `load_format` and `tokenizer`.

    Attributes:
        directory: where it is; of a training checkpoint the file.
        sizes: of the model, the fields of ModelConfig by name.
        tokenizer: its tokenizer, read when it is first asked for.

    Raises:
        ValueError: there is no such model, or a file is wrong; the message names it.
        OSError: the model can't be fetched or read.
    """

    def __init__(self, config: Any):
        self.load_format, self._tokenizer = config.load_format, config.tokenizer
        self.directory = find_model(config.model, config.load_format)
        self.sizes = read_config(config.model, self.directory, config.load_format)

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer(tokenizer_directory(self.directory, self._tokenizer))

    def load(self, model: nn.Module, dtype: torch.dtype, device: torch.device, take: Take | None = None) -> None:
        """Fill the model (built on the meta device, so that it holds no memory yet) with weights of this dtype and
        device. What `take` takes, as it is read, the model has from there.

        Raises ValueError naming the file and the tensors that are missing, unexpected, of a wrong shape or not finite.
        """
        shapes = {name: tuple(parameter.shape) for name, parameter in model.state_dict().items()}
        if self.load_format == "dummy":
            source = "dummy"
            tensors = (("dummy", *named) for named in dummy_tensors(shapes, self.sizes["n_layer"]))
        else:
            source, files = weight_files(self.directory)
            read = training_tensors if self.directory.is_file() else read_tensors
            tensors = checkpoint_tensors(source, files, shapes, read)
        loaded = checked(tensors, source, shapes, dtype, device, take or (lambda name, tensor: False))
        model.load_state_dict(loaded, assign=True)
        model.requires_grad_(False)


# --- Finding --------------------------------------------------------------------------------------------------------


def find_model(model: str, load_format: str) -> Path:
    """The directory of a model, fetched if it is a GPT-2 size that is not in huggingface_hub's cache.

    With `load_format="dummy"` nothing is fetched: for a GPT-2 size it is the bundled directory, for its tokenizer.
    Raises ValueError for an unknown name, OSError if it can't be fetched.
    """
    if model in HUB_SIZES:
        return BUNDLED if load_format == "dummy" else fetch(model)
    directory = BUNDLED.parent / model if model in BUNDLED_NAMES else Path(model)
    if os.path.isfile(directory):
        if directory.suffix not in SUFFIXES:
            raise ValueError(
                f"model {model!r} is a file: give its directory; as a file, {', '.join(SUFFIXES)} are read"
            )
    elif not os.path.isdir(directory):
        names = ", ".join([*BUNDLED_NAMES, *HUB_SIZES])
        why = f"model {model!r}: there is no directory {directory}"
        if model in BUNDLED_NAMES:
            why += ", which comes with the repository of these stages; without it take --model gpt2, which is fetched"
        raise ValueError(f"{why}; the named models are {names}")
    return directory


def fetch(model: str) -> Path:
    """The cached files of a GPT-2 size, downloaded on first use."""
    from huggingface_hub import snapshot_download

    patterns = ["config.json", GENERATION, "merges.txt", "vocab.json", "*.safetensors", "*.safetensors.index.json"]
    try:
        return Path(snapshot_download(f"openai-community/{model}", allow_patterns=patterns))
    except Exception as error:  # the client's many network and cache errors, told as one
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise OSError(
            f"model {model!r} can't be fetched: {reason}; without a network use the bundled 'tinytales', a directory, "
            "or load_format='dummy'"
        ) from error


def tokenizer_directory(directory: Path, tokenizer: str | None = None) -> Path:
    """Where a model's tokenizer is: where the option says, else in its own directory; if there is nothing of one, it is
    GPT-2's, bundled, and the log says so."""
    own = find_model(tokenizer, "dummy") if tokenizer is not None else directory
    own = own.parent if own.is_file() else own
    files = [name for name in ("merges.txt", "tokenizer.json", "vocab.json") if (own / name).exists()]
    if files and files != ["vocab.json"]:
        return own
    if files or tokenizer is not None:
        raise ValueError(f"{own} has neither merges.txt nor tokenizer.json, one of which the tokenizer needs")
    logger.warning(
        "%s has no tokenizer (merges.txt or tokenizer.json): GPT-2's is taken; --tokenizer names others", own
    )
    return BUNDLED


# --- Configuration --------------------------------------------------------------------------------------------------


def read_config(model: str, directory: Path, load_format: str) -> dict[str, Any]:
    """The sizes in config.json. Raises ValueError for anything that this GPT-2 does not compute."""
    if model in HUB_SIZES and load_format == "dummy":
        return HUB_SIZES[model] | {"n_inner": 4 * HUB_SIZES[model]["n_embd"]}
    is_training = directory.is_file()
    path = directory if is_training else directory / "config.json"
    config = read_sizes(path) if is_training else read_json(path)
    supported = {
        "model_type": ("gpt2",),
        "activation_function": ("gelu_new", "gelu_pytorch_tanh"),  # two names of the tanh form
        "tie_word_embeddings": (True,),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
    }
    for key, values in supported.items():
        if repr(config.get(key, values[0])) not in map(repr, values):  # 1 is not True
            raise ValueError(f"{path}: {key} is {config[key]!r:.60}, supported: {', '.join(map(repr, values))}")
    if config.get("n_inner") is None and isinstance(config.get("n_embd"), int):
        config["n_inner"] = 4 * config["n_embd"]
    sizes = {}
    for key, largest in LARGEST.items():
        sizes[key] = config.get(key)
        if type(sizes[key]) is not int or not 1 <= sizes[key] <= largest:  # a bool is an int, too
            raise ValueError(f"{path}: {key} must be a whole number from 1 to {largest}, got {sizes[key]!r:.60}")
    if sizes["n_embd"] % sizes["n_head"]:
        raise ValueError(f"{path}: n_embd {sizes['n_embd']} is not a multiple of n_head {sizes['n_head']}")
    epsilon = config.get("layer_norm_epsilon", 1e-5)
    if not isinstance(epsilon, float) or not 0 < epsilon < 1:
        raise ValueError(f"{path}: layer_norm_epsilon must be a number between 0 and 1, got {epsilon!r:.60}")
    eos = end_tokens(path, config.get("eos_token_id", 50256))
    eos += end_tokens(directory / GENERATION, read_generation_config(directory).get("eos_token_id"))
    # A small model may keep GPT-2's end token in its configuration although its vocabulary has no such token.
    eos = tuple(dict.fromkeys(token_id for token_id in eos if 0 <= token_id < sizes["vocab_size"]))
    return sizes | {"layer_norm_epsilon": epsilon, "eos_token_ids": eos}


def end_tokens(path: Path, eos: Any) -> list[int]:
    """What an eos_token_id says: none, one or several. path: of the file that says it, for the error."""
    ids = [] if eos is None else eos if isinstance(eos, list) else [eos]
    if not all(type(token_id) is int for token_id in ids):
        raise ValueError(f"{path}: eos_token_id must be a token id or a list of them, got {eos!r:.60}")
    return ids


def read_generation_config(directory: Path) -> dict[str, Any]:
    """A model's generation_config.json; empty if there is none. Its end tokens end an output beside config.json's."""
    path = directory / GENERATION
    return read_json(path) if path.is_file() else {}


def generation_defaults(directory: Path) -> dict[str, Any]:
    """What generation_config.json gives for fields of SamplingParams, by their names here. As vLLM reads it."""
    given = read_generation_config(directory)
    return {name: given[other] for other, name in DEFAULTS.items() if given.get(other) is not None}


# --- Weights --------------------------------------------------------------------------------------------------------


def checked(
    tensors: Iterable[tuple[Path | str, str, Tensor]],
    source: Path | str,
    shapes: dict[str, tuple],
    dtype: torch.dtype,
    device: torch.device,
    take: Take,
) -> dict[str, Tensor]:
    """The tensors by name, on their device, but for those that were taken; all of them were there, and finite."""
    loaded, there = {}, set()
    for path, name, tensor in tensors:
        there.add(name)
        values = tensor
        if take(name, tensor):
            if tensor.nbytes >= 1 << 22:  # it takes milliseconds
                give_back()
        else:
            # A copy, or the whole file would stay mapped into memory, and who changes it would change the model.
            values = tensor.to(device=device, dtype=dtype, copy=True, memory_format=torch.contiguous_format)
            loaded[name] = values
        if not all(map(math.isfinite, values.aminmax())):  # NaN is the least and the greatest of its tensor
            raise ValueError(f"{path}: tensor {name!r} has values that are not finite in {values.dtype}")
    if missing := sorted(shapes.keys() - there):
        raise ValueError(f"{source}: missing {name_some(missing)}")
    return loaded


def checkpoint_tensors(
    source: Path, files: list[Path], shapes: dict[str, tuple], read: Callable[[Path], Iterable[tuple[str, Tensor]]]
) -> Iterator[tuple[Path, str, Tensor]]:
    """The tensors of a checkpoint, each with its file, under the model's names and in the model's orientation, checked.

    source: the file that an error names if it is about the whole.
    read: gives the names and tensors of a file.
    """
    seen, embedding, head = set(), None, None
    for path in files:
        unexpected = []
        for stored_name, tensor in read(path):
            name = stored_name.removeprefix("transformer.")
            if name.endswith((".attn.bias", ".attn.masked_bias")):  # the causal mask, which old checkpoints stored
                continue
            if name not in shapes and name != "lm_head.weight":
                unexpected.append(stored_name)
                continue
            if name in seen:
                raise ValueError(f"{path}: tensor {stored_name!r} was there before, as {name!r} or in another file")
            seen.add(name)
            plain = not tensor.is_meta and not tensor.is_nested and tensor.layout == torch.strided
            if not plain or tensor.dtype not in STORED_DTYPES:
                kinds = ", ".join(str(dtype) for dtype in STORED_DTYPES)
                raise ValueError(
                    f"{path}: tensor {stored_name!r} is of a kind that is not supported ({tensor.dtype}, "
                    f"{tensor.layout}, {tensor.device}); supported are dense ones of {kinds}"
                )
            shape = shapes.get(name, shapes["wte.weight"])
            shape = tuple(reversed(shape)) if name.endswith(STORED_TRANSPOSED) else shape
            if tuple(tensor.shape) != shape:
                raise ValueError(
                    f"{path}: tensor {stored_name!r} has shape {list(tensor.shape)}, config.json implies {list(shape)}"
                )
            if name == "lm_head.weight":
                head = tensor
                continue
            if name == "wte.weight":
                embedding = tensor
            tensor = tensor.detach()
            yield path, name, tensor.t() if name.endswith(STORED_TRANSPOSED) else tensor
        if unexpected:
            raise ValueError(f"{path}: unexpected {name_some(sorted(unexpected))}")
    if head is not None and embedding is not None and not torch.equal(head, embedding):
        raise ValueError(
            f"{source}: lm_head.weight differs from wte.weight; an output layer of its own is not supported"
        )


def weight_files(directory: Path) -> tuple[Path, list[Path]]:
    """The files that hold the weights: safetensors before .bin, whole before sharded; before them, what lists them."""
    if directory.is_file():
        return directory, [directory]
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (directory / name).exists():
            return directory / name, [directory / name]
        index = directory / f"{name}.index.json"
        if index.exists():
            weight_map = read_json(index).get("weight_map")
            if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
                raise ValueError(f"{index} has no weight_map from tensors to files")
            shards = sorted(set(weight_map.values()))
            if strange := [repr(shard) for shard in shards if shard in ("", ".", "..") or set(shard) & set("/\\:\0")]:
                raise ValueError(f"{index} lists {name_some(strange)}, which is not the name of a file beside it")
            if lost := [shard for shard in shards if not os.path.isfile(directory / shard)]:
                raise ValueError(f"{index} lists {name_some(lost)}, not in the directory")
            if shards:
                return index, [directory / shard for shard in shards]
            raise ValueError(f"{index} lists no file in its weight_map")
    raise ValueError(f"{directory} has neither model.safetensors nor pytorch_model.bin, nor an index of their shards")


def read_tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    """Name and tensor of everything in one file. Raises ValueError if the file is damaged."""
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as file:
                names = list(file.keys())
            for name in names:  # opened for each: what has been read stays in memory until the file is closed
                with safe_open(path, framework="pt") as file:
                    yield name, file.get_tensor(name)
            return
        # weights_only: a pickle from elsewhere must not run code.
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle can raise anything
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise ValueError(f"{path} can't be read, it is probably truncated or damaged: {reason[:200]}") from error
    named = tensors if isinstance(tensors, dict) else {}
    for name, inner in named.items():
        if isinstance(inner, dict) and any(isinstance(tensor, Tensor) for tensor in inner.values()):
            raise ValueError(
                f"{path} is a training checkpoint, whose weights are under {name!r}: give the file itself as the model"
            )
    if named is not tensors or not all(isinstance(name, str) and isinstance(t, Tensor) for name, t in named.items()):
        raise ValueError(f"{path} can't be read: it holds something else than named tensors")
    yield from named.items()


def dummy_tensors(shapes: dict[str, tuple], n_layer: int) -> Iterator[tuple[str, Tensor]]:
    """Random weights as GPT-2 was initialized: the same numbers on every device and in every stage."""
    generator = torch.Generator("cpu").manual_seed(0)
    for name, shape in shapes.items():
        tensor = torch.empty(shape, dtype=torch.float32, device="cpu")
        if name.endswith("bias"):
            yield name, tensor.zero_()
        elif ".ln_" in name or name.startswith("ln_f"):
            yield name, tensor.fill_(1)
        else:
            std = 0.02 / math.sqrt(2 * n_layer) if name.endswith("c_proj.weight") else 0.02
            yield name, tensor.normal_(0, std, generator=generator)


def name_some(names: list[str]) -> str:
    """The first few names and how many more there are."""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"{', '.join(names[:5])}{more}"
