"""Exercise 5.6, copy on write. Instructions: 5_6_copy_on_write.md."""


class Blocks:
    """Blocks that forked sequences share until one of them writes."""

    def __init__(self, num_blocks: int, block_size: int):
        raise NotImplementedError

    @property
    def num_free(self) -> int:
        raise NotImplementedError

    def create(self, name: str, num_tokens: int) -> None:
        raise NotImplementedError

    def fork(self, parent: str, child: str) -> None:
        raise NotImplementedError

    def append(self, name: str) -> tuple[int, int] | None:
        raise NotImplementedError

    def free(self, name: str) -> None:
        raise NotImplementedError

    def block_table(self, name: str) -> list[int]:
        raise NotImplementedError
