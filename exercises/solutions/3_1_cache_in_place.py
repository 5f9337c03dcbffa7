"""A solution of exercise 3.1."""

import torch
from torch import Tensor


class Cache:
    """Keys and values of a batch."""

    def __init__(self, n_layer: int, batch: int, n_head: int, max_len: int, head_dim: int):
        self.length = 0
        self.data = torch.empty(n_layer, 2, batch, n_head, max_len, head_dim)

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write new columns, [batch, n_head, n_new, head_dim]; return all length + n_new of keys and values."""
        end = self.length + k.shape[2]
        if end > self.data.shape[4]:
            raise ValueError(f"{end} columns, there is room for {self.data.shape[4]}")
        keys, values = self.data[layer, :, :, :, :end]
        keys[:, :, self.length :] = k
        values[:, :, self.length :] = v
        return keys, values

    def advance(self, n_new: int) -> None:
        """The step is over: all layers have written these columns."""
        self.length += n_new


# --- Wrong answers: (what is wrong, in the solution, instead, words of the message) -----------------------------------------

MUTANTS = [
    ("each layer counts by itself", ("        self.length = 0\n", "        end = self.length + k.shape[2]\n", "        keys[:, :, self.length :] = k\n        values[:, :, self.length :] = v\n"),
     ("        self.length, self.filled = 0, [0] * n_layer\n", "        end = self.filled[layer] + k.shape[2]\n",
      "        keys[:, :, self.filled[layer] :] = k\n        values[:, :, self.filled[layer] :] = v\n        self.filled[layer] = end\n"), "only `advance` moves"),
    ("moves within the step", "        return keys, values\n", "        self.length = end\n        return keys, values\n",
     "update returns the filled columns and the new ones, and no empty ones"),
    ("returns the new columns", "return keys, values", "return k, v", "update returns the filled columns and the new ones, and no empty ones"),
    ("returns everything", "return keys, values", "return self.data[layer, 0], self.data[layer, 1]", "update returns the filled columns and the new ones, and no empty ones"),
    ("swaps keys and values", "return keys, values", "return values, keys", "Keys come first, then values, with the numbers of every row and head"),
    ("overwrites the beginning", "keys[:, :, self.length :] = k", "keys[:, :, : k.shape[2]] = k", "Caches of every small size, filled step by step: the same"),
    ("one memory for all layers", "self.data[layer, :, :, :, :end]", "self.data[0, :, :, :, :end]", "Caches of every small size, filled step by step: the same"),
    ("concatenates", "        return keys, values", "        return torch.cat([keys, keys[:, :, :0]], dim=2), values",
     "Keys and values are views of memory that was allocated once"),
    ("memory of the class", "        self.data = torch.empty(n_layer, 2, batch, n_head, max_len, head_dim)",
     "        Cache.data = getattr(Cache, \"data\", torch.empty(n_layer, 2, batch, n_head, max_len, head_dim))",
     "two caches share nothing"),
    ("counts from one step further", "end = self.length + k.shape[2]\n", "end = self.length + 1\n", "update returns the filled columns and the new ones, and no empty ones"),
    ("copies of all layers but the first", "return keys, values",
     "return (keys, values) if layer == 0 else (keys.clone(), values.clone())", "Keys and values are views of memory that was allocated once"),
    ("only the first layer looks", "if end > self.data.shape[4]:", "if end > self.data.shape[4] and layer == 0:", "More columns than max_len raise ValueError, before anything is written"),
    ("writes what fits", "            raise ValueError(f",
     "            self.data[layer, 0, :, :, self.length :] = k[:, :, : self.data.shape[4] - self.length]\n"
     "            raise ValueError(f", "More columns than max_len raise ValueError, before anything is written"),
    ("advances by one", "self.length += n_new", "self.length += 1", "update returns the filled columns and the new ones, and no empty ones"),
]  # fmt: skip

ALSO_RIGHT = [
    ("a list of tensors, one for each layer", ("self.data = torch.empty(n_layer, 2, batch, n_head, max_len, head_dim)",
     "keys, values = self.data[layer, :, :, :, :end]", "self.data.shape[4]"),
     ("self.data = [torch.zeros(2, batch, n_head, max_len, head_dim) for _ in range(n_layer)]",
      "keys, values = (x[:, :, :end] for x in self.data[layer])", "self.data[0].shape[3]")),
]  # fmt: skip
