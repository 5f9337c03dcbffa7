"""A checkpoint as training programs write it: one file with a dictionary, the weights under one of its keys, maybe
their sizes under another. `--model ckpt.pt` reads it.

Names are those of Hugging Face's GPT-2 or of nanoGPT, which are the same; some programs put a prefix before them, and
most store linear layers as torch does, [out, in], where Hugging Face's GPT-2 has [in, out].

No tensor shows how a GELU was computed. GPT-2's is the tanh form, and so is this engine's; whoever trained with the
exact one (nanoGPT does since 2023) gets activations that differ by up to 0.0005.
"""

import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SUFFIXES = (".pt", ".pth", ".ckpt", ".bin")
WEIGHTS = ("model", "state_dict", "model_state_dict", "module")  # where the weights are
SIZES = ("config", "model_args", "model_config", "hyper_parameters", "args")  # where their sizes are
# Of torch.compile, DataParallel, Lightning and Hugging Face.
PREFIXES = ("_orig_mod.", "module.", "model.", "transformer.")
HEADS = ("n_head", "n_heads", "num_heads", "num_attention_heads")
HEADS_OF = {(12, 768): 12, (24, 1024): 16, (36, 1280): 20, (48, 1600): 25}  # GPT-2's own: (n_layer, n_embd) -> n_head
LINEAR = ("c_attn.weight", "c_proj.weight", "c_fc.weight")


def load_dictionary(path: Path) -> dict[str, Any]:
    """What the file holds. Nothing in it is run. Raises ValueError if it is something else."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # a damaged pickle can raise anything
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise ValueError(
            f"{path} can't be read ({reason[:120]}): it is damaged, or holds more than tensors and plain values, which "
            "could run code; save it as torch.save({'model': model.state_dict(), 'config': {'n_head': N}}, path)"
        ) from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds no dictionary of weights")
    return content


def weights_of(content: dict[str, Any], path: Path) -> dict[str, Tensor]:
    """The tensors under Hugging Face's names and in its orientation. Raises ValueError if there are none."""
    inner = next((content[key] for key in WEIGHTS if isinstance(content.get(key), dict)), content)
    tensors = {bare(name): tensor for name, tensor in inner.items() if isinstance(tensor, Tensor)}
    if "wte.weight" not in tensors or "h.0.attn.c_attn.weight" not in tensors:
        raise ValueError(f"{path} has no weights of a GPT-2 (wte.weight, h.0.attn.c_attn.weight and so on)")
    n_embd = tensors["wte.weight"].shape[-1]
    if tensors["h.0.attn.c_attn.weight"].shape[0] != n_embd:  # [3 * n_embd, n_embd], as torch has it
        tensors = {n: t.t() if n.endswith(LINEAR) and t.dim() == 2 else t for n, t in tensors.items()}
    if "ln_f.bias" not in tensors:  # trained without any: as if they were zero
        weights = {name: t for name, t in tensors.items() if ".ln_" in name or "ln_f" in name or name.endswith(LINEAR)}
        tensors |= {n.removesuffix("weight") + "bias": t.new_zeros(t.shape[-1]) for n, t in weights.items()}
    return tensors


def training_tensors(path: Path) -> Iterable[tuple[str, Tensor]]:
    """Name and tensor of all weights. Raises ValueError if there are none."""
    return weights_of(load_dictionary(path), path).items()


def bare(name: str) -> str:
    """A name without what programs put before it."""
    while prefix := next((one for one in PREFIXES if name.startswith(one)), None):
        name = name.removeprefix(prefix)
    return name


def read_sizes(path: Path) -> dict[str, Any]:
    """A config.json's sizes, from the tensors. Raises ValueError if there is no telling how many heads there are."""
    content = load_dictionary(path)
    tensors = weights_of(content, path)
    if "wpe.weight" not in tensors or "h.0.mlp.c_fc.weight" not in tensors:
        raise ValueError(f"{path} has no wpe.weight or no h.0.mlp.c_fc.weight: its weights are not a whole GPT-2's")
    vocab_size, n_embd = tensors["wte.weight"].shape
    layers = {name.split(".")[1] for name in tensors if name.startswith("h.")}
    told: dict[str, Any] = {}
    for key in SIZES:
        told |= content[key] if isinstance(content.get(key), dict) else {}
    n_head = next((told[name] for name in HEADS if name in told), HEADS_OF.get((len(layers), n_embd)))
    if n_head is None:
        raise ValueError(
            f"{path} does not say n_head, which no tensor shows: save it as "
            "torch.save({'model': model.state_dict(), 'config': {'n_head': N}}, path)"
        )
    sizes = {"n_layer": len(layers), "n_head": n_head, "n_embd": n_embd, "vocab_size": vocab_size}
    n_inner = tensors["h.0.mlp.c_fc.weight"].shape[-1]
    epsilon = {"layer_norm_epsilon": told["layer_norm_epsilon"]} if "layer_norm_epsilon" in told else {}
    return {**sizes, "n_positions": tensors["wpe.weight"].shape[0], "n_inner": n_inner, **epsilon}
