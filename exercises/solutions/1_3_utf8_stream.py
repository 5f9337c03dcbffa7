"""A solution of exercise 1.3."""

import codecs


class TextStream:
    """Turns the bytes of tokens into text that may be sent."""

    def __init__(self, stop: tuple[str, ...] = ()):
        self.stopped = False
        self.stop, self.held = stop, ""
        self.decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def add(self, data: bytes) -> str:
        """The text that is certain, now that these bytes came."""
        return self.send(self.decoder.decode(data), 0)

    def flush(self) -> str:
        """The rest, at the end."""
        return self.send(self.decoder.decode(b"", final=True), None)

    def send(self, new: str, certain: int | None) -> str:
        if self.stopped:
            return ""
        text, self.held = self.held + new, ""
        found = [position for position in map(text.find, self.stop) if position >= 0]
        if found:
            self.stopped = True
            return text[: min(found)]
        if certain is None:  # the end: nothing can follow
            return text
        for length in range(max(map(len, self.stop), default=1) - 1, 0, -1):
            if any(stop.startswith(text[-length:]) and len(text) >= length for stop in self.stop):
                self.held = text[-length:]
                return text[:-length]
        return text


# --- Wrong answers: (what is wrong, in the solution, instead, what the learner is told) --------------------------------

HELD = 'text, self.held = self.held + new, ""'
DECODE = "self.decoder.decode(data)"
MUTANTS = [
    ("decodes each token alone", DECODE, 'data.decode("utf-8", errors="replace")', "each token was decoded alone"),
    ("drops half characters", DECODE, 'data.decode("utf-8", errors="ignore")', "not to be dropped"),
    ("swallows what is broken", '(errors="replace")', '(errors="ignore")', "something is broken"),
    ("forgets the rest", 'self.decoder.decode(b"", final=True)', '""', "what is left at the end"),
    ("sends the beginning of a stop text", "default=1) - 1, 0, -1)", "default=1) - 1, 99, -1)", "can't be taken back"),
    ("goes on after the stop text", "        if self.stopped:\n            return \"\"\n", "", "nothing more is sent"),
    ("loses what it held", HELD, 'text, self.held = new, ""', "what was held back is lost"),
    ("keeps what it held at the end", "            return text\n        for", '            return ""\n        for',
     "left at the end is told"),
    ("holds back too much", "stop.startswith(text[-length:]) and len(text) >= length for", "True for",
     "only what begins a stop text"),
    ("the first of the list stops", "return text[: min(found)]", "return text[: found[0]]", "begins first counts"),
    ("one stop text after another", "        for length in range(max(map(len, self.stop), default=1) - 1, 0, -1):\n"
     "            if any(stop.startswith(text[-length:]) and len(text) >= length for stop in self.stop):\n",
     "        pairs = [(n, stop) for stop in self.stop[::-1] for n in range(len(stop) - 1, 0, -1)]\n"
     "        for length, stop in pairs:\n"
     "            if stop.startswith(text[-length:]) and len(text) >= length:\n", "over all stop texts"),
    ("takes the shortest beginning", "default=1) - 1, 0, -1)", "default=1))", "the longest beginning"),
]  # fmt: skip
