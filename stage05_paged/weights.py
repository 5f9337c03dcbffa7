"""Find a model's files, read its configuration, and load its weights into the model.

A model is `tinytales` (bundled with the repository), one of the GPT-2 sizes (fetched once by huggingface_hub and
cached), or a directory in Hugging Face layout: config.json, merges.txt, and the weights as model.safetensors or
pytorch_model.bin, whole or in shards. Whatever is wrong with a file is said in one line that names it.
"""

import json
import math
import pickle
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .model import GPT2, ModelConfig

BUNDLED = Path(__file__).parent.parent / "models" / "tinytales"
HUB_SIZES = {
    "gpt2": dict(n_layer=12, n_head=12, n_embd=768),
    "gpt2-medium": dict(n_layer=24, n_head=16, n_embd=1024),
    "gpt2-large": dict(n_layer=36, n_head=20, n_embd=1280),
    "gpt2-xl": dict(n_layer=48, n_head=25, n_embd=1600),
}
# Linear layers that a GPT-2 checkpoint stores as [in, out], the transpose of torch's nn.Linear.
STORED_TRANSPOSED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")


# --- Finding --------------------------------------------------------------------------------------------------------


def find_model(model: str, load_format: str) -> Path:
    """The directory of a model, fetched if it is a GPT-2 size that is not in huggingface_hub's cache.

    With `load_format="dummy"` nothing is fetched: for a GPT-2 size it is the bundled directory, for its tokenizer.
    Raises ValueError for an unknown name, OSError if it can't be fetched.
    """
    if model in HUB_SIZES:
        return BUNDLED if load_format == "dummy" else fetch(model)
    directory = BUNDLED if model == "tinytales" else Path(model)
    if not directory.is_dir():
        names = ", ".join(["tinytales", *HUB_SIZES])
        raise ValueError(f"model {model!r}: there is no directory {directory}; the named models are {names}")
    return directory


def fetch(model: str) -> Path:
    """The cached files of a GPT-2 size, downloaded on first use."""
    from huggingface_hub import snapshot_download

    patterns = ["config.json", "merges.txt", "vocab.json", "*.safetensors", "*.safetensors.index.json"]
    try:
        return Path(snapshot_download(f"openai-community/{model}", allow_patterns=patterns))
    except Exception as error:  # the client's many network and cache errors, told as one
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise OSError(
            f"model {model!r} can't be fetched: {reason}; without a network use the bundled 'tinytales', a directory, "
            "or load_format='dummy'"
        ) from error


def tokenizer_directory(directory: Path) -> Path:
    """Where the tokenizer of a model is: in its own directory, else, if there is nothing of one, GPT-2's, bundled."""
    for place in (directory, BUNDLED):
        if (place / "merges.txt").exists() or (place / "tokenizer.json").exists():
            return place
        if (place / "vocab.json").exists():
            break
    raise ValueError(f"{directory} has neither merges.txt nor tokenizer.json, one of which the tokenizer needs")


# --- Configuration --------------------------------------------------------------------------------------------------


def read_config(model: str, directory: Path, load_format: str) -> ModelConfig:
    """The sizes in config.json. Raises ValueError for anything that this GPT-2 does not compute."""
    if model in HUB_SIZES and load_format == "dummy":
        return ModelConfig(**HUB_SIZES[model], n_inner=4 * HUB_SIZES[model]["n_embd"])
    path = directory / "config.json"
    config = read_json(path)
    supported = {
        "model_type": ("gpt2",),
        "activation_function": ("gelu_new", "gelu_pytorch_tanh"),  # two names of the tanh form
        "tie_word_embeddings": (True,),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
    }
    for key, values in supported.items():
        if config.get(key, values[0]) not in values:
            raise ValueError(f"{path}: {key} is {config[key]!r}, supported: {', '.join(map(repr, values))}")
    if config.get("n_inner") is None and isinstance(config.get("n_embd"), int):
        config["n_inner"] = 4 * config["n_embd"]
    sizes = {}
    for key in ("n_layer", "n_head", "n_embd", "n_inner", "n_positions", "vocab_size"):
        sizes[key] = config.get(key)
        if not isinstance(sizes[key], int) or sizes[key] < 1:
            raise ValueError(f"{path}: {key} must be a whole number of at least 1, got {sizes[key]!r}")
    if sizes["n_embd"] % sizes["n_head"]:
        raise ValueError(f"{path}: n_embd {sizes['n_embd']} is not a multiple of n_head {sizes['n_head']}")
    epsilon = config.get("layer_norm_epsilon", 1e-5)
    if not isinstance(epsilon, float) or not 0 < epsilon < 1:
        raise ValueError(f"{path}: layer_norm_epsilon must be a number between 0 and 1, got {epsilon!r}")
    eos = config.get("eos_token_id", 50256)
    eos = [] if eos is None else eos if isinstance(eos, list) else [eos]
    if not all(isinstance(token_id, int) for token_id in eos):
        raise ValueError(f"{path}: eos_token_id must be a token id or a list of them, got {config['eos_token_id']!r}")
    # A small model may keep GPT-2's end token in its configuration although its vocabulary has no such token.
    eos = tuple(token_id for token_id in eos if 0 <= token_id < sizes["vocab_size"])
    return ModelConfig(**sizes, layer_norm_epsilon=epsilon, eos_token_ids=eos)


def read_json(path: Path) -> dict:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path.parent} has no {path.name}") from None
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds no JSON object")
    return content


# --- Weights --------------------------------------------------------------------------------------------------------


def load_weights(model: GPT2, directory: Path, load_format: str, dtype: torch.dtype, device: torch.device) -> None:
    """Fill the model (built on the meta device, so that it holds no memory yet) with weights of this dtype and device.

    Raises ValueError naming the file and the tensors that are missing, unexpected, of a wrong shape or not finite.
    """
    shapes = {name: tuple(parameter.shape) for name, parameter in model.state_dict().items()}
    if load_format == "dummy":
        tensors, source = dummy_tensors(shapes, model.config.n_layer), "dummy"
    else:
        files = weight_files(directory)
        tensors, source = checkpoint_tensors(files, shapes), str(files[0] if len(files) == 1 else directory)
    loaded = {}
    for name, tensor in tensors:
        loaded[name] = tensor.to(device=device, dtype=dtype)
        if not math.isfinite(loaded[name].sum(dtype=torch.float32)):
            raise ValueError(f"{source}: tensor {name!r} has values that are not finite in {dtype}")
    if missing := sorted(shapes.keys() - loaded.keys()):
        raise ValueError(f"{source}: missing {name_some(missing)}")
    model.load_state_dict(loaded, assign=True)
    model.requires_grad_(False)


def checkpoint_tensors(files: list[Path], shapes: dict[str, tuple]) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a checkpoint under the model's names, in the model's orientation, their shapes checked."""
    unexpected, embedding, head = [], None, None
    for path in files:
        for stored_name, tensor in read_tensors(path):
            name = stored_name.removeprefix("transformer.")
            if name.endswith((".attn.bias", ".attn.masked_bias")):  # the causal mask, which old checkpoints stored
                continue
            if name == "lm_head.weight":
                head = tensor
                continue
            if name not in shapes:
                unexpected.append(stored_name)
                continue
            shape = tuple(reversed(shapes[name])) if name.endswith(STORED_TRANSPOSED) else shapes[name]
            if tuple(tensor.shape) != shape:
                raise ValueError(
                    f"{path}: tensor {stored_name!r} has shape {list(tensor.shape)}, config.json implies {list(shape)}"
                )
            if name == "wte.weight":
                embedding = tensor
            yield name, tensor.t().contiguous() if name.endswith(STORED_TRANSPOSED) else tensor
    if unexpected:
        raise ValueError(f"{files[0].parent}: unexpected {name_some(sorted(unexpected))}")
    if head is not None and embedding is not None and not torch.equal(head, embedding):
        raise ValueError(
            f"{files[0].parent}: lm_head.weight differs from wte.weight; an output layer of its own is not supported"
        )


def weight_files(directory: Path) -> list[Path]:
    """The files that hold the weights: safetensors before .bin, whole before sharded."""
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (directory / name).exists():
            return [directory / name]
        index = directory / f"{name}.index.json"
        if index.exists():
            weight_map = read_json(index).get("weight_map")
            if not isinstance(weight_map, dict):
                raise ValueError(f"{index} has no weight_map from tensors to files")
            files = [directory / shard for shard in sorted(set(map(str, weight_map.values())))]
            if lost := [path.name for path in files if not path.exists()]:
                raise ValueError(f"{index} lists {name_some(lost)}, not in the directory")
            if files:
                return files
            raise ValueError(f"{index} lists no file in its weight_map")
    raise ValueError(f"{directory} has neither model.safetensors nor pytorch_model.bin, nor an index of their shards")


def read_tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    """Name and tensor of everything in one file. Raises ValueError if the file is damaged."""
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 (not a dict)
                    yield name, file.get_tensor(name)
        else:
            # weights_only: a pickle from elsewhere must not run code.
            tensors = torch.load(path, map_location="cpu", weights_only=True)
            if not isinstance(tensors, dict) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
                raise RuntimeError("it holds something else than named tensors")
            yield from tensors.items()
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, OSError) as error:
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise ValueError(f"{path} can't be read, it is probably truncated or damaged: {reason[:200]}") from error


def dummy_tensors(shapes: dict[str, tuple], n_layer: int) -> Iterator[tuple[str, Tensor]]:
    """Random weights as GPT-2 was initialised: the same numbers on every device and in every stage."""
    generator = torch.Generator().manual_seed(0)
    for name, shape in shapes.items():
        if name.endswith("bias"):
            yield name, torch.zeros(shape)
        elif ".ln_" in name or name.startswith("ln_f"):
            yield name, torch.ones(shape)
        else:
            std = 0.02 / math.sqrt(2 * n_layer) if name.endswith("c_proj.weight") else 0.02
            yield name, torch.empty(shape).normal_(0, std, generator=generator)


def name_some(names: list[str]) -> str:
    """The first few names and how many more there are."""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"{', '.join(names[:5])}{more}"
