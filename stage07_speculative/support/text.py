"""A completion's text as it grows: whole characters only, and nothing after a stop string."""

from .sampling_params import SamplingParams
from .tokenizer import Detokenizer, Tokenizer


class Text:
    """The text of the tokens so far.

    Args:
        tokenizer: turns tokens into text.
        params: has the stop strings, and whether the text ends before or after the first of them.

    Attributes:
        text: whole characters only: the bytes of a character may be spread over several tokens.
    """

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams):
        self.text, self._stops, self._params = "", params.stop, params
        self._detokenizer = Detokenizer(tokenizer, params.skip_special_tokens)

    def add(self, token_id: int, past_min_tokens: bool) -> str | None:
        """Append a token. Returns the stop string that it completes, if `past_min_tokens`; the text then ends there."""
        return self._append(self._detokenizer.add(token_id), past_min_tokens)

    def flush(self, past_min_tokens: bool, stop_token_id: int | None = None) -> str | None:
        """No token follows: append what is left of an incomplete character. Returns what `add` does.

        stop_token_id: the token that ended the output. Its text is appended if stop strings are to be in the text.
        """
        last = ""
        if stop_token_id is not None and self._params.include_stop_str_in_output:
            last = self._detokenizer.add(stop_token_id)
        return self._append(last + self._detokenizer.flush(), past_min_tokens)

    def _append(self, new_text: str, past_min_tokens: bool) -> str | None:
        old_length = len(self.text)
        self.text += new_text
        if not (new_text and past_min_tokens):
            return None
        # A stop string that is complete only now may begin in the old text, but ends in the new.
        found = [(self.text.find(stop, max(0, old_length - len(stop) + 1)), stop) for stop in self._stops]
        position, stop = min((pair for pair in found if pair[0] >= 0), default=(0, None), key=lambda pair: pair[0])
        if stop is not None:
            self.text = self.text[: position + len(stop) * self._params.include_stop_str_in_output]
        return stop

    @property
    def num_final(self) -> int:
        """Length of the text that is final; the rest might be the start of a stop string."""
        if self._params.include_stop_str_in_output:
            return len(self.text)
        return min((self._held_back_from(stop) for stop in self._stops), default=len(self.text))

    def _held_back_from(self, stop: str) -> int:
        """Start of the longest suffix of the text that is a prefix of the stop string."""
        start = self.text.find(stop[0], max(0, len(self.text) - len(stop) + 1))
        while start >= 0 and not stop.startswith(self.text[start:]):
            start = self.text.find(stop[0], start + 1)
        return len(self.text) if start < 0 else start
