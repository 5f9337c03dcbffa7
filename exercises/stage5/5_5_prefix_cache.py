"""Exercise 5.5, the prefix cache. Instructions: 5_5_prefix_cache.md."""

from collections.abc import Callable


class PrefixCache:
    """Finds blocks by the tokens in them and before them."""

    def __init__(self, block_size: int, hash_function: Callable[[tuple], int] = hash):
        raise NotImplementedError

    def enter(self, token_ids: list[int], blocks: list[int]) -> None:
        """The full blocks of these tokens can be found from now on."""
        raise NotImplementedError

    def find(self, token_ids: list[int]) -> list[int]:
        """The blocks of the longest cached prefix, with at least one token left to compute."""
        raise NotImplementedError

    def evict(self, block: int) -> None:
        """This block, and those after it, can no longer be found. A block that is not there is ignored."""
        raise NotImplementedError
