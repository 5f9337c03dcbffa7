"""A solution of exercise 1.3."""

import codecs


class TextStream:
    """Turns the bytes of tokens into text that may be sent."""

    def __init__(self, stop: tuple[str, ...] = ()):
        self.stopped = False
        self.stop, self.held = stop, ""
        self.decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def add(self, data: bytes) -> str:
        """The text that is now certain, after these bytes."""
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


# --- Wrong answers: (what is wrong, in the solution, instead, words of the message) --------------------------------

DECODE = "self.decoder.decode(data)"
MUTANTS = [
    ("decodes each token alone", DECODE, 'data.decode("utf-8", errors="replace")', "half a character waits"),
    ("an empty token flushes", DECODE, "self.decoder.decode(data, not data)", "an empty token changes nothing"),
    ("swallows what is broken", '(errors="replace")', '(errors="ignore")', "a broken byte becomes"),
    ("one replacement for all broken bytes", DECODE, "__import__('re').sub('�+', '�', self.decoder.decode(data))", "for each broken piece"),
    ("forgets the rest", 'self.decoder.decode(b"", final=True)', '""', "flush turns half a character"),
    ("holds back too much", "stop.startswith(text[-length:]) and len(text) >= length for", "True for", "only what may begin a stop string"),
    ("sends the beginning of a stop string", "default=1) - 1, 0, -1)", "default=1) - 1, 99, -1)", "may begin a stop string is held back"),
    ("loses what it held", 'text, self.held = self.held + new, ""', 'text, self.held = new, ""', "sent when it can't become one"),
    ("flush does not send it", "        if certain is None:  # the end: nothing can follow\n            return text\n", "", "flush returns what was held back"),
    ("looks for stop strings in the new text only", "found = [position for position in map(text.find, self.stop) if position >= 0]",
     "found = [text.find(s) for s in self.stop if s in new]", "span any number of tokens"),
    ("takes the shortest beginning", "default=1) - 1, 0, -1)", "default=1))", "the longest beginning of a stop string"),
    ("one stop string after another", "        for length in range(max(map(len, self.stop), default=1) - 1, 0, -1):\n"
     "            if any(stop.startswith(text[-length:]) and len(text) >= length for stop in self.stop):\n",
     "        pairs = [(n, stop) for stop in self.stop[::-1] for n in range(len(stop) - 1, 0, -1)]\n"
     "        for length, stop in pairs:\n"
     "            if stop.startswith(text[-length:]) and len(text) >= length:\n", "the longest beginning of any stop string"),
    ("holds back for the first stop string only", "if any(stop.startswith(text[-length:]) and len(text) >= length for stop in self.stop):",
     "if self.stop[0].startswith(text[-length:]) and len(text) >= length:", "not only of the first"),
    ("goes on after the stop string", "        if self.stopped:\n            return \"\"\n", "", "nothing is sent after the stop string"),
    ("the first of the list stops", "return text[: min(found)]", "return text[: found[0]]", "not the first in the list"),
    ("one decoder for all", '        self.decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")\n',
     '        TextStream.decoder = getattr(TextStream, "decoder", None) or codecs.getincrementaldecoder("utf-8")(errors="replace")\n',
     "a separate decoder"),
]  # fmt: skip

AGAIN = """    def again(self, data, final=False):
        self.data += data
        text = codecs.getincrementaldecoder("utf-8")(errors="replace").decode(self.data, final)
        before, self.decoded = len(self.decoded), text
        return text[before:]

"""
ALSO_RIGHT = [
    ("decodes everything again", ("        self.decoder = codecs", DECODE, 'self.decoder.decode(b"", final=True)', "    def add("),
     ("        self.data, self.decoded = b'', ''\n        self.decoder = codecs", "self.again(data)", 'self.again(b"", True)',
      AGAIN + "    def add(")),
]  # fmt: skip
