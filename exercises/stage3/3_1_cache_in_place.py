"""Exercise 3.1, the cache, in place. Instructions: 3_1_cache_in_place.md."""

from torch import Tensor


class Cache:
    """Keys and values of a batch."""

    def __init__(self, n_layer: int, batch: int, n_head: int, max_len: int, head_dim: int):
        self.length = 0
        raise NotImplementedError

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write new columns, [batch, n_head, n_new, head_dim]; return all length + n_new of keys and values."""
        raise NotImplementedError

    def advance(self, n_new: int) -> None:
        """The step is over: all layers have written these columns."""
        raise NotImplementedError
