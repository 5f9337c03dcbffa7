"""A terminal: lines that end between words, and what is typed while something is printed."""

import contextlib
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterator
from typing import Any

try:
    import termios
except ModuleNotFoundError:  # Windows
    termios: Any = None


def is_terminal() -> bool:
    """Whether somebody types, and reads what is printed."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout is not None and sys.stdout.isatty()


def width_of(text: str) -> int:
    """How many columns a terminal takes for this text."""
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(unicodedata.combining(character) > 0 for character in text)


class Wrapper:
    """Passes a text on that comes in pieces, with line breaks between words where a line would be too long. A word is
    held until its end is known; a control character, which could be a command to the terminal, becomes U+FFFD.

    Args:
        write: takes the pieces.
        columns: of the terminal; by default it is asked at every word, for windows change.
    """

    def __init__(self, write: Callable[[str], object], columns: int | None = None):
        self.write, self.columns = write, columns
        self.word, self.column = "", 0

    def feed(self, text: str) -> None:
        for character in text:
            if character in " \n":
                self._end_word(character)
            else:
                is_control = unicodedata.category(character) == "Cc" and character != "\t"
                self.word += "\ufffd" if is_control else character

    def _end_word(self, space: str = "") -> None:
        """Pass the word on, and what is behind it."""
        columns, width = self.columns or shutil.get_terminal_size().columns, width_of(self.word)
        if self.column and self.word and self.column + width > columns:
            self.write("\n")
            self.column = 0
        self.column = 0 if space == "\n" else self.column + width
        if space == " " and self.column >= columns:
            space = ""  # the line is full; the next word begins another
        self.write(self.word + space)
        self.column += space == " "
        self.word = ""

    def end(self) -> None:
        """Pass on what is still held."""
        if self.word:
            self._end_word()


def wrapped(text: str) -> str:
    """The text as the terminal should have it."""
    pieces: list[str] = []
    wrapper = Wrapper(pieces.append)
    wrapper.feed(text)
    wrapper.end()
    return "".join(pieces)


@contextlib.contextmanager
def without_echo() -> Iterator[None]:
    """What is typed in this block does not appear in the middle of what is printed. It is not lost: whole lines can be
    read from stdin, and the rest appears when the next line is read."""
    if termios is None:
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    silent = before.copy()
    silent[3] &= ~termios.ECHO
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, silent)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
