"""Exercise 5.4, preempt and recompute. Instructions: 5_4_preempt.md."""

from dataclasses import dataclass


@dataclass(eq=False)
class Sequence:
    name: str
    num_tokens: int  # prompt and output so far
    num_blocks: int = 0
    num_computed_tokens: int = 0


def make_room(running: list[Sequence], num_free: int, block_size: int) -> tuple[list[Sequence], list[Sequence], int]:
    """(sequences that keep running, preempted ones in queue order, number of free blocks)"""
    raise NotImplementedError
