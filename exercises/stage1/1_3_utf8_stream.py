"""Exercise 1.3, a stream of text from tokens of bytes. Instructions: 1_3_utf8_stream.md."""


class TextStream:
    """Turns the bytes of tokens into text that may be sent."""

    def __init__(self, stop: tuple[str, ...] = ()):
        self.stopped = False
        raise NotImplementedError

    def add(self, data: bytes) -> str:
        """The text that is now certain, after these bytes."""
        raise NotImplementedError

    def flush(self) -> str:
        """The rest, at the end."""
        raise NotImplementedError
