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


# --- Wrong answers: (what is wrong, in the solution, instead, the message) -----------------------------------------

HELD = 'text, self.held = self.held + new, ""'
DECODE = "self.decoder.decode(data)"
PASTE = "Paste this into Python"  # the message where the random comparison finds it, and nothing is certain
MUTANTS = [
    ("one decoder for all", '        self.decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")\n',
     '        TextStream.decoder = getattr(TextStream, "decoder", None) or codecs.getincrementaldecoder("utf-8")(errors="replace")\n',
     "a shared one mixes up half characters"),
    ("holds back eleven characters", "default=1) - 1, 0, -1)", "default=1) - 1, 0, -1)[-11:]", "longer than the held-back text"),
    ("whatever the case", "map(text.find, self.stop)", "map(text.lower().find, map(str.lower, self.stop))", PASTE),
    ("a mark that is dropped", "self.decoder.decode(data)", "self.decoder.decode(data).replace(chr(0xFEFF), '')", PASTE),
    ("decodes each token alone", DECODE, 'data.decode("utf-8", errors="replace")', "each token was decoded alone"),
    ("drops half characters", DECODE, 'data.decode("utf-8", errors="ignore")', "held back, not dropped"),
    ("swallows what is broken", '(errors="replace")', '(errors="ignore")', "something is broken"),
    ("forgets the rest", 'self.decoder.decode(b"", final=True)', '""', "what is left at the end"),
    ("sends the beginning of a stop string", "default=1) - 1, 0, -1)", "default=1) - 1, 99, -1)", "can't be taken back"),
    ("goes on after the stop string", "        if self.stopped:\n            return \"\"\n", "", "nothing more is sent"),
    ("loses what it held", HELD, 'text, self.held = new, ""', "what was held back is lost"),
    ("keeps what it held at the end", "            return text\n        for", '            return ""\n        for',
     "left at the end must be returned"),
    ("holds back too much", "stop.startswith(text[-length:]) and len(text) >= length for", "True for",
     "only what begins a stop string"),
    ("the first of the list stops", "return text[: min(found)]", "return text[: found[0]]", "begins first counts"),
    ("one stop string after another", "        for length in range(max(map(len, self.stop), default=1) - 1, 0, -1):\n"
     "            if any(stop.startswith(text[-length:]) and len(text) >= length for stop in self.stop):\n",
     "        pairs = [(n, stop) for stop in self.stop[::-1] for n in range(len(stop) - 1, 0, -1)]\n"
     "        for length, stop in pairs:\n"
     "            if stop.startswith(text[-length:]) and len(text) >= length:\n", "over all stop strings"),
    ("takes the shortest beginning", "default=1) - 1, 0, -1)", "default=1))", "the longest beginning"),
    ("looks for stop strings in the new text only", "found = [position for position in map(text.find, self.stop) if position >= 0]",
     "found = [text.find(s) for s in self.stop if s in new]", "held-back text and the new text together"),
    ("flush does not stop", "        if certain is None:  # the end: nothing can follow\n            return text\n", "", "what was held back is lost"),
    ("never says that it stopped", "            self.stopped = True\n            return text[: min(found)]\n",
     "            self.stop, self.held = (\"\",), \"\"\n            return text[: min(found)]\n", "stopped, after the stop string"),
    ("the last place of a stop string", "map(text.find, self.stop)", "map(text.rfind, self.stop)", PASTE),
    ("an empty token flushes", "        return self.send(self.decoder.decode(data), 0)", "        return self.send(self.decoder.decode(data, not data), 0)", PASTE),
    ("one replacement for all broken bytes", DECODE, "__import__('re').sub('�+', '�', self.decoder.decode(data))", "for each broken piece"),
    ("holds back sixteen characters", "default=1) - 1, 0, -1)", "default=1) - 1, 0, -1)[-16:]", "a stop string of 100 characters"),
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
