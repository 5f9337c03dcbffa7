"""A checkpoint that computes as long as GPT-2 and writes tinytales: tales at GPT-2's cost, without a download.

    python -m bench.wide DIRECTORY     # 445 MB, in seconds

How many guesses are right depends on the text, so random weights can't tell what speculation gains; and tinytales
itself is so small that a step costs next to nothing. So each of its 120 features is repeated six times. Means and
variances, and with them the norms, stay the same. A product sums six times as many terms, so its weights are divided by
six. The heads are repeated six times, too. For the vocabulary's matrix, the last norm is divided by six instead. Six
more layers multiply like the others but add nothing, because the weights of what they would add are zero. The wide
model computes the same function with a width of 720, 12 layers, 30 heads and 111 million parameters; GPT-2 has 768, 12,
12 and 124 million.
"""

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from stagewise.layout import write_config
from tools.engines import TINYTALES

TIMES = 6  # copies of each feature
MORE_LAYERS = 6
FILES = ("merges.txt", "vocab.json", "generation_config.json")


def widen(tensors: dict[str, Tensor], n_layer: int, n_head: int) -> dict[str, Tensor]:
    """The weights of the wide model, by their names in a GPT-2 checkpoint, where matrices are [in, out]."""

    def features(x: Tensor, dim: int = -1) -> Tensor:
        return x.repeat_interleave(TIMES, dim)

    def heads(x: Tensor, dim: int = -1) -> Tensor:
        """[..., n_head * head_dim, ...] -> [..., n_head * TIMES * head_dim, ...], whole heads repeated"""
        size = x.shape[dim] // n_head
        whole = torch.arange(n_head).repeat_interleave(TIMES)[:, None] * size + torch.arange(size)
        return x.index_select(dim, whole.flatten())

    wide = {}
    for name, tensor in tensors.items():
        x = tensor.float()
        if "ln_f" in name:
            x = features(x) / TIMES
        elif "attn.c_attn" in name:
            parts = [heads(part) for part in x.chunk(3, dim=-1)]  # queries, keys, values
            x = torch.cat(parts, dim=-1)
            x = features(x, 0) / TIMES if x.dim() == 2 else x
        elif "attn.c_proj.weight" in name:
            x = features(heads(x, 0)) / TIMES
        elif x.dim() == 2 and ("c_fc" in name or "c_proj" in name):
            x = features(features(x), 0) / TIMES
        else:  # embeddings, norms, biases
            x = features(x)
        wide[name] = x.contiguous()
    for i in range(MORE_LAYERS):
        for name in [name for name in wide if f"h.{i % n_layer}." in name]:
            like = wide[name]
            x = torch.zeros_like(like) if "c_proj" in name else like.clone()
            wide[name.replace(f"h.{i % n_layer}.", f"h.{n_layer + i}.")] = x
    return wide


def make(directory: Path, source: Path = TINYTALES) -> Path:
    """Write a model's wide checkpoint, unless it exists. Returns its directory."""
    if (directory / "model.safetensors").exists():
        return directory
    directory.mkdir(parents=True, exist_ok=True)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    wide = widen(load_file(source / "model.safetensors"), config["n_layer"], config["n_head"])
    config |= {"n_embd": TIMES * config["n_embd"], "n_head": TIMES * config["n_head"], "dtype": "float32"}
    config |= {"n_layer": config["n_layer"] + MORE_LAYERS, "n_inner": None}  # four times as wide as n_embd
    for name in FILES:
        shutil.copy(source / name, directory)
    write_config(directory, config)
    save_file(wide, directory / "new.safetensors", metadata={"format": "pt"})
    (directory / "new.safetensors").rename(directory / "model.safetensors")
    return directory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, metavar="DIRECTORY")
    print(make(parser.parse_args().directory))


if __name__ == "__main__":
    main()
