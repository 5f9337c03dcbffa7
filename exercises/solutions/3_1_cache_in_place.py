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


# --- Wrong answers: (what is wrong, in the solution, instead, words of the message) --------------------------------

MUTANTS = [
    ("moves within the step", "        return keys, values\n",
     "        self.length = end\n        return keys, values\n", "Each layer writes to the same columns"),
    ("returns the new columns", "return keys, values", "return k, v", "got       [2, 2, 1, 4]"),
    ("returns everything", "return keys, values", "return self.data[layer, 0], self.data[layer, 1]",
     "got       ([2, 2, 12, 4]"),
    ("swaps keys and values", "return keys, values", "return values, keys", "keys of layer 0 in step 0"),
    ("overwrites the beginning", "keys[:, :, self.length :] = k", "keys[:, :, : k.shape[2]] = k",
     "keys of layer 0 in step 1"),
    ("one memory for all layers", "self.data[layer, :, :, :, :end]", "self.data[0, :, :, :, :end]",
     "keys of layer 0 in step 1"),
    ("concatenates", "        return keys, values", "        return torch.cat([keys, keys[:, :, :0]], dim=2), values",
     "the keys of layer 0 are at a new address"),
    ("the values are copied", "return keys, values", "return keys, values.clone()",
     "the values of layer 0 are at a new address"),
    ("memory of the class", "        self.data = torch.empty(n_layer, 2, batch, n_head, max_len, head_dim)",
     "        Cache.data = getattr(Cache, \"data\", torch.empty(n_layer, 2, batch, n_head, max_len, head_dim))",
     "Two caches share no memory"),
    ("does not look",
     "        if end > self.data.shape[4]:\n            raise ValueError(f\"{end} columns, there is room for {self.data.shape[4]}\")\n",
     "", "More columns than max_len raise ValueError"),
    ("only the first layer looks", "if end > self.data.shape[4]:", "if end > self.data.shape[4] and layer == 0:",
     "layer = 2"),
    ("writes what fits", "            raise ValueError(f",
     "            self.data[layer, 0, :, :, self.length :] = k[:, :, : self.data.shape[4] - self.length]\n"
     "            raise ValueError(f", "before anything is written"),
    ("a limit of one less", "if end > self.data.shape[4]:", "if end >= self.data.shape[4]:",
     "12 columns, there is room for 12"),
    ("more room than is needed",
     ("batch, n_head, max_len, head_dim)", "if end > self.data.shape[4]", "room for {self.data.shape[4]}"),
     ("batch, n_head, 1024, head_dim)\n        self.room = max_len", "if end > self.room", "room for {self.room}"),
     "more columns than max_len"),
    ("advances by one", "self.length += n_new", "self.length += 1", "only `advance` moves `length`"),
]  # fmt: skip

ALSO_RIGHT = [
    ("a list of tensors, one for each layer", ("self.data = torch.empty(n_layer, 2, batch, n_head, max_len, head_dim)",
     "keys, values = self.data[layer, :, :, :, :end]", "self.data.shape[4]"),
     ("self.data = [torch.zeros(2, batch, n_head, max_len, head_dim) for _ in range(n_layer)]",
      "keys, values = (x[:, :, :end] for x in self.data[layer])", "self.data[0].shape[3]")),
]  # fmt: skip
