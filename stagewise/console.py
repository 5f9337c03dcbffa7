"""What a command shows on a terminal: lines that wrap between words, progress, the closing line. And what is typed
while something is printed."""

import contextlib
import json
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from .stages import Stage

if TYPE_CHECKING:
    from tqdm import tqdm

try:
    import termios
except ModuleNotFoundError:  # Windows
    termios: Any = None

WAITS = {
    "ttft": "time to first token",
    "itl": "inter-token latency",
    "e2e": "whole request",
    "queue_time": "in the queue",
}


def is_terminal() -> bool:
    """Whether a person types the input and reads the output."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def width_of(text: str) -> int:
    """How many terminal columns this text takes."""
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(unicodedata.combining(character) > 0 for character in text)


class Wrapper:
    """Passes on a text that comes in pieces, with line breaks between words where a line would be too long. A word is
    held back until it is complete; a control character, which could be a terminal command, becomes U+FFFD.

    Args:
        write: takes the pieces.
        columns: of the terminal; by default it is queried at every word, because windows are resized.
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
        """Pass the word on, and what follows it."""
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
        """Pass on what is still held back."""
        if self.word:
            self._end_word()


def wrapped(text: str) -> str:
    """A whole text, wrapped for the terminal."""
    pieces: list[str] = []
    wrapper = Wrapper(pieces.append)
    wrapper.feed(text)
    wrapper.end()
    return "".join(pieces)


@contextlib.contextmanager
def without_echo() -> Iterator[None]:
    """Input that is typed in this block does not appear in the middle of the output. It is not lost: whole lines can be
    read from stdin, and the rest appears when the next line is read."""
    if termios is None:
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    silent = before.copy()
    silent[3] = silent[3] & ~termios.ECHO | termios.NOFLSH  # nor does Ctrl-C discard it
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, silent)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


# --- Progress ---------------------------------------------------------------------------------------------------------


def progress_bar(total: int, unit: str, *, done: int = 0, quiet: bool = False) -> "tqdm[NoReturn]":
    """A bar on stderr, if that is a terminal. Results come in bursts, so the estimate uses the mean speed.

    Args:
        total: the number of items.
        unit: what an item is called.
        done: items that an earlier run did.
        quiet: show nothing.
    """
    from tqdm import tqdm

    return tqdm(total=total, initial=done, unit=unit, smoothing=0, disable=quiet or not sys.stderr.isatty())


# --- The closing line -------------------------------------------------------------------------------------------------


def closing_line(
    stage: Stage,
    stats: Any,
    seconds: float,
    as_json: bool,
    details: bool = False,
    at_once: int | None = None,
) -> str:
    """What to print when a run is over.

    Args:
        stats: of an LLM.
        seconds: how long the run took.
        as_json: make it JSON, in stages that count latencies.
        details: add a line for each thing that the stage counts.
        at_once: in a batch run, how many requests may run at once.
    """
    tokens_per_second, has = stats.num_output_tokens / max(seconds, 1e-9), stats.__dataclass_fields__.keys()
    latencies = stats.latencies.percentiles() if "latencies" in has else None
    cached = stats.num_cached_tokens / max(1, stats.num_prompt_tokens) if "num_cached_tokens" in has else None
    if as_json and latencies is not None:
        counts = {"requests": stats.num_requests, "truncated": stats.num_truncated}
        counts |= {"output_tokens": stats.num_output_tokens, "seconds": seconds}
        if "num_drafts" in has:
            counts |= {"drafted": stats.num_draft_tokens, "accepted": stats.num_accepted_tokens}
        if cached is not None:
            counts |= {"prefix_cache_hit_rate": cached, "preemptions": stats.num_preemptions}
        return json.dumps({**counts, "tokens_per_second": tokens_per_second, **latencies})
    requests = "1 request" if stats.num_requests == 1 else f"{stats.num_requests:,} requests"
    requests += "" if at_once is None else f" (up to {at_once:,} at once)"
    line = f"{requests}, {stats.num_output_tokens:,} tokens in {seconds:.2f} s: {tokens_per_second:.1f} tok/s"
    if stats.num_truncated:
        line += f"; {stats.num_truncated:,} stopped at the length limit"
    if not details:
        return line
    rows = {"ended by length": f"{stats.num_truncated:,}", "forward passes": f"{stats.num_forwards:,}"}
    if stage.is_batched:
        padding = stats.num_padding_tokens / max(1, stats.num_padding_tokens + stats.num_tokens_computed)
        rows["padding"] = f"{padding:.0%} of the places computed"
    if "kv_tokens_used" in has:
        kv_use = stats.kv_tokens_used / max(1, stats.kv_tokens_reserved)
        rows["KV cache"] = f"{kv_use:.0%} of what was reserved is used"
    if cached is not None:
        rows["prefix cache"] = f"{cached:.0%} of the prompts' tokens found"
        rows["preemptions"] = f"{stats.num_preemptions:,}"
    if "num_drafts" in has and stats.num_drafts:
        rate = stats.num_accepted_tokens / stats.num_draft_tokens
        a_step = 1 + stats.num_accepted_tokens / stats.num_drafts
        rows["drafted"] = f"{stats.num_draft_tokens:,} tokens, {stats.num_accepted_tokens:,} accepted ({rate:.0%})"
        rows["tokens a step"] = f"{a_step:.1f} where there were drafts ({stats.num_drafts:,} times)"
    elif "num_drafts" in has:
        rows["drafted"] = "nothing"
    if latencies is None:
        rows["time to first token"] = f"mean {1e3 * stats.ttft_seconds / max(1, stats.num_requests):,.0f} ms"
    for kind, percentiles in (latencies or {}).items():
        rows[WAITS[kind]] = ", ".join(f"{p} {1e3 * s:,.0f} ms" for p, s in percentiles.items())
    return "\n".join([line, *(f"  {name + ':':22}{value}" for name, value in rows.items())])
