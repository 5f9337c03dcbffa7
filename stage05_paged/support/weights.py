"""A model's files: find them, read its sizes, load its weights.

A model is `tinytales` (bundled), a GPT-2 size (downloaded once), or a directory in Hugging Face layout: config.json, a
tokenizer, and the weights as model.safetensors, whole or in shards, or pytorch_model.bin. Anything that would give
other numbers than transformers is refused, with an error that names the file and the key.
"""

import functools
import logging
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from .memory import free_memory
from .tokenizer import Tokenizer
from .vocabulary import SETTINGS, SPARE, check_values, convert_hint, read_json

logger = logging.getLogger(__name__)

ROOT = Path(__file__).parent.parent.parent
# The bundled models: next to the stages, or where a wheel installs them.
BUNDLED = next(filter(Path.is_dir, ROOT.glob("stagewise/models/tinytales")), ROOT / "models" / "tinytales")
BUNDLED_NAMES = ("tinytales", "tinytales-draft")
HUB_SIZES = {
    "gpt2": dict(n_layer=12, n_head=12, n_embd=768),
    "gpt2-medium": dict(n_layer=24, n_head=16, n_embd=1024),
    "gpt2-large": dict(n_layer=36, n_head=20, n_embd=1280),
    "gpt2-xl": dict(n_layer=48, n_head=25, n_embd=1600),
}
GPT2_VOCABULARY = 50257
# Keys of config.json that are sizes, with their limits: a larger one would fill the memory before any weight is read.
LARGEST = dict(n_layer=1000, n_head=1000, n_embd=10**5, n_inner=10**6, n_positions=10**7, vocab_size=10**7)
# Its keys that change numbers, with their supported values, the default first.
SUPPORTED = {
    "model_type": ("gpt2",),
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),  # two names of the tanh form
    "tokenizer_class": SETTINGS["tokenizer_class"],
    **dict.fromkeys(("tie_word_embeddings", "scale_attn_weights"), (True,)),
    **dict.fromkeys(("scale_attn_by_inverse_layer_idx", "add_cross_attention", "is_encoder_decoder"), (False,)),
}
# Its keys that change nothing here: training, other heads, sampling, notes. Any other key is refused.
UNUSED = {
    *("attn_pdrop", "embd_pdrop", "resid_pdrop", "initializer_range", "gradient_checkpointing", "problem_type"),
    *("reorder_and_upcast_attn", "use_cache", "n_ctx", "output_past", "n_special", "predict_special_tokens"),
    *("summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj"),
    *("num_labels", "_num_labels", "id2label", "label2id", "finetuning_task", "task_specific_params", "is_decoder"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "dtype", "torch_dtype", "torchscript", "return_dict"),
    *("output_attentions", "output_hidden_states", "chunk_size_feed_forward", "attn_implementation"),
    *("architectures", "transformers_version", "_name_or_path", "name_or_path", "_commit_hash", "use_bfloat16"),
    *("_attn_implementation", "_attn_implementation_autoset", "do_sample", "max_length", "min_length", "num_beams"),
    *("temperature", "top_k", "top_p", "repetition_penalty", "length_penalty", "early_stopping", "prefix"),
}
STORED_TRANSPOSED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")  # [in, out], the transpose of torch's nn.Linear
STORED_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
GENERATION = "generation_config.json"
MOST_MAPPED = 1 << 24  # bytes read before a file is opened again: what was read stays in memory until then


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
        size = self.sizes["vocab_size"] if self.config.load_format == "auto" else GPT2_VOCABULARY
        directory = tokenizer_directory(self.directory, self.config.tokenizer, size)
        tokenizer = Tokenizer(directory)
        if size > tokenizer.num_tokens + SPARE:
            raise ValueError(f"{directory}: the tokenizer has {tokenizer.num_tokens:,} tokens, config.json {size:,}")
        return tokenizer

    def load(self, model: nn.Module, dtype: torch.dtype, device: torch.device) -> None:
        """Fill a model that was built on the meta device, which takes no memory.

        Raises ValueError naming the file and the tensors that are missing, unexpected, of a wrong shape or not finite.
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


# --- Finding --------------------------------------------------------------------------------------------------------


def find_model(model: str, load_format: str) -> Path:
    """The directory of a model. A GPT-2 size is downloaded unless it is cached; with `load_format="dummy"` it is the
    bundled directory, for its tokenizer.

    Raises ValueError for an unknown name, OSError if the download fails.
    """
    if model in HUB_SIZES:
        return BUNDLED if load_format == "dummy" else download(model)
    directory = BUNDLED.parent / model if model in BUNDLED_NAMES else Path(model)
    if directory.is_dir():
        return directory
    if directory.is_file():
        raise ValueError(f"model {model!r} is a file, not a directory; {convert_hint(directory)}")
    bundled = ", which comes with the repository of these stages" if model in BUNDLED_NAMES else ""
    names = ", ".join([*BUNDLED_NAMES, *HUB_SIZES])
    raise ValueError(
        f"model {model!r}: there is no directory {directory}{bundled}; the named models, all GPT-2s, are {names}"
    )


def download(model: str) -> Path:
    """The files of a GPT-2 size, in huggingface_hub's cache."""
    from huggingface_hub import snapshot_download

    patterns = ["config.json", GENERATION, "merges.txt", "vocab.json", "*.safetensors", "*.safetensors.index.json"]
    try:
        return Path(snapshot_download(f"openai-community/{model}", allow_patterns=patterns))
    except Exception as error:  # network and cache errors of many kinds
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise OSError(
            f"model {model!r} can't be fetched: {reason}; without a network use the bundled 'tinytales', a directory, "
            "or load_format='dummy'"
        ) from error


def tokenizer_directory(directory: Path, tokenizer: str | None = None, vocab_size: int = GPT2_VOCABULARY) -> Path:
    """The directory of a model's tokenizer: what the option says, else the model's own. A model without one gets
    GPT-2's if the vocabulary has GPT-2's size, and the log says so."""
    place = directory if tokenizer is None else find_model(tokenizer, "dummy")
    for pattern in ("*.model", "*.tiktoken", "tekken.json", "vocab.txt"):
        for other in place.glob(pattern):
            raise ValueError(f"{other} is another kind of tokenizer; GPT-2's is tokenizer.json or merges.txt")
    if (place / "tokenizer.json").exists() or (place / "merges.txt").exists():
        return place
    why = f"{place} has no tokenizer (tokenizer.json or merges.txt)"
    is_gpt2 = GPT2_VOCABULARY <= vocab_size <= GPT2_VOCABULARY + SPARE
    if tokenizer is not None or (place / "vocab.json").exists() or not is_gpt2:
        raise ValueError(f"{why}; name one with --tokenizer: a directory, or gpt2")
    logger.warning("%s: GPT-2's is used; --tokenizer names others", why)
    return BUNDLED


# --- Configuration --------------------------------------------------------------------------------------------------


def read_config(model: str, directory: Path, load_format: str) -> dict[str, Any]:
    """The fields of ModelConfig. Raises ValueError for anything that this GPT-2 does not compute."""
    if model in HUB_SIZES and load_format == "dummy":
        return HUB_SIZES[model] | {"n_inner": 4 * HUB_SIZES[model]["n_embd"]}
    path, adapter = directory / "config.json", directory / "adapter_config.json"
    if adapter.exists():
        raise ValueError(f"{adapter} is an adapter, which is not applied here; {convert_hint(directory)}")
    if not path.exists():
        raise ValueError(f"{directory} has no config.json; {convert_hint(directory)}")
    config = read_json(path)
    check_values(path, config, SUPPORTED)
    given = {key for key, value in config.items() if value is not None}
    if unknown := given - {*SUPPORTED, *UNUSED, *LARGEST, "layer_norm_epsilon"}:
        raise ValueError(f"{path}: unsupported key {min(unknown)!r:.60} may change numbers; {convert_hint(directory)}")
    if "n_inner" not in given and isinstance(config.get("n_embd"), int):
        config["n_inner"] = 4 * config["n_embd"]
    for key, largest in LARGEST.items():
        if type(config.get(key)) is not int or not 1 <= config[key] <= largest:  # a bool is an int, too
            raise ValueError(f"{path}: {key} must be a whole number from 1 to {largest}, got {config.get(key)!r:.60}")
    if config["n_embd"] % config["n_head"]:
        raise ValueError(f"{path}: n_embd {config['n_embd']} is not a multiple of n_head {config['n_head']}")
    epsilon = config.get("layer_norm_epsilon", 1e-5)
    if not isinstance(epsilon, float) or not 0 < epsilon < 1:
        raise ValueError(f"{path}: layer_norm_epsilon must be a number between 0 and 1, got {epsilon!r:.60}")
    generation = directory / GENERATION  # alone, if it exists, also if it names no end token
    where, given = (generation, read_json(generation)) if generation.exists() else (path, config)
    eos = end_tokens(where, given.get("eos_token_id"))
    # A small model may keep GPT-2's end token in its configuration although its vocabulary has no such token.
    eos = tuple(dict.fromkeys(token_id for token_id in eos if 0 <= token_id < config["vocab_size"]))
    return {key: config[key] for key in LARGEST} | {"layer_norm_epsilon": epsilon, "eos_token_ids": eos}


def end_tokens(path: Path, eos: Any) -> list[int]:
    """The token ids in an eos_token_id, which is none, one or a list. path: the file, for the error."""
    ids = [] if eos is None else eos if isinstance(eos, list) else [eos]
    if not all(type(token_id) is int for token_id in ids):
        raise ValueError(f"{path}: eos_token_id must be a token id or a list of them, got {eos!r:.60}")
    return ids


# --- Weights --------------------------------------------------------------------------------------------------------


def weight_files(directory: Path) -> list[Path]:
    """The files that hold the weights: safetensors before .bin, whole before sharded."""
    shards = sorted(directory.glob("model-*-of-*.safetensors"))
    for files in ([directory / "model.safetensors"], shards, [directory / "pytorch_model.bin"]):
        if files and files[0].exists():
            return files
    raise ValueError(f"{directory} has neither model.safetensors nor pytorch_model.bin; {convert_hint(directory)}")


def open_weights(path: Path) -> dict[str, Callable[[], Tensor]]:
    """The name of each tensor in a file, and what reads it. Raises ValueError if the file holds something else."""
    opened, num_bytes = None, 0

    def read(name: str) -> Tensor:
        nonlocal opened, num_bytes
        if opened is None or num_bytes > MOST_MAPPED:  # opening for each tensor would be quadratic
            opened, num_bytes = safe_open(path, framework="pt"), 0
        tensor = opened.get_tensor(name)
        num_bytes += tensor.nbytes
        return tensor

    try:
        if path.suffix == ".bin":
            tensors = torch.load(path, map_location="cpu", weights_only=True)  # a pickle from elsewhere can run code
            return {str(name): tensor.detach for name, tensor in tensors.items()}
        with safe_open(path, framework="pt") as file:
            return {name: functools.partial(read, name) for name in list(file.keys())}
    except Exception as error:  # a damaged pickle can raise anything, and torch's message says how to let it run code
        with path.open("rb") as file:
            begin = file.read(24)
        why = f"{path} is damaged, or has more in it than tensors (it begins with {begin!r})"
        raise ValueError(f"{why}; {convert_hint(path.parent)}") from error


def read_tensors(directory: Path, shapes: dict[str, torch.Size]) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a checkpoint under the model's names and in its orientation. All names are checked first."""
    found = {}
    for path in weight_files(directory):
        for stored, read in open_weights(path).items():
            name = stored.removeprefix("transformer.")
            if name in found:
                raise ValueError(f"{path}: tensor {stored!r} appears twice, as {name!r} or in another file")
            if not name.endswith((".attn.bias", ".attn.masked_bias")):  # the causal mask, which old checkpoints stored
                found[name] = path, stored, read
    if unexpected := found.keys() - shapes.keys() - {"lm_head.weight"}:
        names = name_some({found[name][1] for name in unexpected})
        raise ValueError(
            f"{directory}: unexpected {names}, of another model or head, or quantized; {convert_hint(directory)}"
        )
    if missing := shapes.keys() - found.keys():
        raise ValueError(f"{directory}: missing {name_some(missing)}")
    if "lm_head.weight" in found:
        *_, read = found.pop("lm_head.weight")
        if not torch.equal(read(), found["wte.weight"][-1]()):
            raise ValueError(f"{directory}: lm_head.weight differs from wte.weight, as GPT-2's does not")
    for name, (path, stored, read) in found.items():
        tensor, transposed = read(), name.endswith(STORED_TRANSPOSED)
        if tensor.is_meta or tensor.is_nested or tensor.layout != torch.strided or tensor.dtype not in STORED_DTYPES:
            kind = f"{tensor.dtype}, {tensor.layout}, {tensor.device}"
            raise ValueError(f"{path}: tensor {stored!r} is quantized, sparse or of another unsupported type ({kind})")
        shape = shapes[name][::-1] if transposed else shapes[name]
        if tensor.shape != shape:
            raise ValueError(
                f"{path}: tensor {stored!r} has shape {list(tensor.shape)}, config.json implies {list(shape)}"
            )
        yield name, tensor.t() if transposed else tensor


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


def name_some(names: set[str]) -> str:
    """The first few names, and the number of others."""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"{', '.join(sorted(names)[:5])}{more}"
