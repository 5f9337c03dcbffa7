"""Exercise 5.1, the allocator. Instructions: 5_1_allocator.md."""


class Allocator:
    """Blocks for sequences that grow."""

    def __init__(self, num_blocks: int, block_size: int):
        raise NotImplementedError

    @property
    def num_free(self) -> int:
        raise NotImplementedError

    def allocate(self, name: str, num_tokens: int) -> bool:
        raise NotImplementedError

    def append(self, name: str) -> bool:
        raise NotImplementedError

    def free(self, name: str) -> None:
        raise NotImplementedError

    def block_table(self, name: str) -> list[int]:
        raise NotImplementedError

    def slot(self, name: str, position: int) -> int:
        raise NotImplementedError
