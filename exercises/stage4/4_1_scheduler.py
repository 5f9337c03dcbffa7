"""Exercise 4.1, the scheduler. Instructions: 4_1_scheduler.md."""

from dataclasses import dataclass


@dataclass(eq=False)
class Request:
    name: str
    num_tokens: int  # prompt and output so far
    num_computed_tokens: int = 0


class Scheduler:
    """Fills every step with tokens, at most `max_num_batched_tokens`, of at most `max_num_seqs` requests."""

    def __init__(self, max_num_seqs: int, max_num_batched_tokens: int):
        raise NotImplementedError

    def add(self, request: Request) -> None:
        raise NotImplementedError

    def schedule(self) -> list[tuple[Request, int]]:
        """The requests of the next step, each with how many tokens it computes."""
        raise NotImplementedError

    def finish(self, request: Request) -> None:
        raise NotImplementedError
