"""Exercise 4.4, a queue with priorities. Instructions: 4_4_abort_and_priority.md."""


class Queue:
    """Requests that wait, by priority and then by arrival."""

    def __init__(self):
        raise NotImplementedError

    def add(self, name: str, priority: int = 0) -> None:
        raise NotImplementedError

    def pop(self) -> str:
        raise NotImplementedError

    def abort(self, name: str) -> None:
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError
