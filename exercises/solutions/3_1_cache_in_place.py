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


# --- Wrong answers: (what is wrong, in the solution, instead, the message) -----------------------------------------

MUTANTS = [
    ("each layer counts by itself", ("        self.length = 0\n", "        end = self.length + k.shape[2]\n", "        keys[:, :, self.length :] = k\n        values[:, :, self.length :] = v\n"),
     ("        self.length, self.filled = 0, [0] * n_layer\n", "        end = self.filled[layer] + k.shape[2]\n",
      "        keys[:, :, self.filled[layer] :] = k\n        values[:, :, self.filled[layer] :] = v\n        self.filled[layer] = end\n"), "only `advance` moves `length`"),
    ("moves within the step", "        return keys, values\n", "        self.length = end\n        return keys, values\n",
     "layer 1 wrote after layer 0's columns"),
    ("returns the new columns", "return keys, values", "return k, v", "attention needs all"),
    ("returns everything", "return keys, values", "return self.data[layer, 0], self.data[layer, 1]", "the empty columns"),
    ("swaps keys and values", "return keys, values", "return values, keys", "are swapped"),
    ("overwrites the beginning", "keys[:, :, self.length :] = k", "keys[:, :, : k.shape[2]] = k", "overwritten"),
    ("one memory for all layers", "self.data[layer, :, :, :, :end]", "self.data[0, :, :, :, :end]", "overwritten"),
    ("concatenates", "        return keys, values", "        return torch.cat([keys, keys[:, :, :0]], dim=2), values",
     "a tensor that grows is copied"),
    ("memory of the class", "        self.data = torch.empty(n_layer, 2, batch, n_head, max_len, head_dim)",
     "        Cache.data = getattr(Cache, \"data\", torch.empty(n_layer, 2, batch, n_head, max_len, head_dim))",
     "is it a class attribute"),
    ("does not look", "        if end > self.data.shape[4]:\n            raise ValueError(f\"{end} columns, there is room for {self.data.shape[4]}\")\n",
     "", "silently"),
    ("drops silently", "            raise ValueError(f\"{end} columns, there is room for {self.data.shape[4]}\")",
     "            return self.data[layer, 0], self.data[layer, 1]", "silently"),
    ("counts from one step further", "end = self.length + k.shape[2]\n", "end = self.length + 1\n", "RuntimeError at line 20"),
    ("a limit of one less", "if end > self.data.shape[4]:", "if end >= self.data.shape[4]:", "ValueError at line 18"),
    ("shapes of the first head", "keys[:, :, self.length :] = k", "keys[:, :1, self.length :] = k[:, :1]", "in some rows or heads"),
    ("a copy", "return keys, values", "return keys.clone(), values.clone()", "a copy is not a view"),
    ("the values are copied", "return keys, values", "return keys, values.clone()", "a copy is not a view"),
    ("the values grow", "        return keys, values", "        return keys, torch.cat([values, values[:, :, :0]], dim=2)",
     "a tensor that grows is copied"),
    ("copies of all layers but the first", "return keys, values",
     "return (keys, values) if layer == 0 else (keys.clone(), values.clone())", "a copy is not a view"),
    ("values of the class", ("        self.data = torch.empty(n_layer, 2, batch, n_head, max_len, head_dim)",
      "keys, values = self.data[layer, :, :, :, :end]"),
     ("        self.data = torch.empty(n_layer, 2, batch, n_head, max_len, head_dim)\n"
      "        Cache.pool = getattr(Cache, \"pool\", {})\n"
      "        self.values = Cache.pool.setdefault(self.data.shape, self.data.new_empty(n_layer, batch, n_head, max_len, head_dim))",
      "keys, values = self.data[layer, 0, :, :, :end], self.values[layer, :, :, :end]"), "is it a class attribute"),
    ("more room than is needed", ("batch, n_head, max_len, head_dim)", "if end > self.data.shape[4]", "room for {self.data.shape[4]}"),
     ("batch, n_head, 1024, head_dim)\n        self.room = max_len", "if end > self.room", "room for {self.room}"), "more columns than max_len"),
    ("only the first layer looks", "if end > self.data.shape[4]:", "if end > self.data.shape[4] and layer == 0:", "before torch does"),
    ("in float64", "n_head, max_len, head_dim)", "n_head, max_len, head_dim, dtype=torch.float64)", "it should be torch.float32"),
    ("writes what fits", "            raise ValueError(f",
     "            self.data[layer, 0, :, :, self.length :] = k[:, :, : self.data.shape[4] - self.length]\n"
     "            raise ValueError(f", "check before you write"),
    ("advances by one", "self.length += n_new", "self.length += 1", "expected:  5"),
    ("looks after it wrote", "        if end > self.data.shape[4]:\n            raise", "        if end > self.data.shape[4]:\n"
     "            self.data[layer, :, :, :, : min(end, 12) - self.length] = 0\n            raise", "check before you write"),
    ("copies the layer at each step", "        end = self.length + k.shape[2]\n", "        self.data[layer] = self.data[layer].clone()\n        end = self.length + k.shape[2]\n",
     "the whole cache is copied"),
]  # fmt: skip

ALSO_RIGHT = [
    ("a list of tensors, one for each layer", ("self.data = torch.empty(n_layer, 2, batch, n_head, max_len, head_dim)",
     "keys, values = self.data[layer, :, :, :, :end]", "self.data.shape[4]"),
     ("self.data = [torch.zeros(2, batch, n_head, max_len, head_dim) for _ in range(n_layer)]",
      "keys, values = (x[:, :, :end] for x in self.data[layer])", "self.data[0].shape[3]")),
]  # fmt: skip
