"""Sampling fields under vLLM's names, for the command line, files and the server: most are a stage's SamplingParams,
some become logits processors, and one truncates prompts."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from .form_compiler import SECONDS
from .processors import AllowedTokenIds, BadWords, LogitBias, checked_words, whole_number
from .stages import Stage, end_tokens, llm_of, stage_of_llm
from .structured_outputs import Form, Structured

PROCESSED = ("logit_bias", "allowed_token_ids", "bad_words", "structured_outputs")  # in the order in which they apply
MORE_FIELDS = (*PROCESSED, "truncate_prompt_tokens")  # besides those of SamplingParams


def sampling_params(llm: Any, **fields: Any) -> Any:
    """SamplingParams for this LLM, or AsyncLLM, from its own fields and from `logit_bias`, `bad_words`,
    `allowed_token_ids` and `structured_outputs`, which become logits processors. Stop strings and stop tokens don't end
    structured output.

    Raises:
        ValueError: names the field and its value, or what is wrong with the form.
        TypeError: this is no LLM.
    """
    if "truncate_prompt_tokens" in fields:
        raise ValueError(
            "truncate_prompt_tokens is not a field here: truncate the prompt before you pass it to generate"
        )
    return Sampling(stage_of_llm(llm), **fields).params_for(llm_of(llm))


@contextlib.contextmanager
def cut_hint() -> Iterator[None]:
    """Add to the error of a prompt that leaves no room for an output the flag that truncates prompts."""
    try:
        yield
    except ValueError as error:
        if "leave no room" not in str(error):
            raise
        raise ValueError(f"{error}; --truncate-prompt-tokens N keeps only the last N tokens") from None


class Sampling:
    """Sampling fields, checked as far as possible without a model.

    Attributes:
        fields: as given.
        params: the stage's SamplingParams, without processors.
        given: those of MORE_FIELDS that ask for something, checked.

    Raises:
        ValueError: names the field and its value.
    """

    def __init__(self, stage: Stage, **fields: Any):
        self.stage, self.fields = stage, fields
        given = {name: fields[name] for name in MORE_FIELDS if fields.get(name) is not None}
        if unknown := sorted(fields.keys() - {*MORE_FIELDS, *stage.SamplingParams.__dataclass_fields__}):
            raise ValueError(f"{unknown[0]} is no sampling parameter of {stage.package}")
        own = {name: fields[name] for name in fields.keys() - {*MORE_FIELDS}}
        self.params = stage.SamplingParams(**mapped(own, stage.MIN_TEMPERATURE))
        self.given = {name: CHECKS[name](value) for name, value in given.items()}
        self.given = {name: value for name, value in self.given.items() if value}
        if "structured_outputs" in self.given:
            if self.params.ignore_eos:
                raise ValueError("ignore_eos can't be combined with structured_outputs: the end token ends the form")
            self.params = replace(self.params, stop=(), stop_token_ids=())
        self._made: tuple[Any, tuple] = None, ()

    def replace(self, **fields: Any) -> "Sampling":
        """The same with other values of these fields. Processors are reused if they don't depend on them."""
        other = Sampling(self.stage, **{**self.fields, **fields})
        if not fields.keys() & {*PROCESSED}:
            other.given, other._made = self.given, self._made
        return other

    def params_for(self, llm: Any, seconds: float = SECONDS) -> Any:
        """The stage's SamplingParams, with processors for an LLM. seconds: CPU time that compiling a form may take.

        Raises ValueError.
        """
        if self._made[0] is not llm:
            self._made = llm, self._processors(llm, seconds)
        self._check_choice(llm)
        processors = (*self.params.logits_processors, *self._made[1])
        return replace(self.params, logits_processors=processors) if self._made[1] else self.params

    def _processors(self, llm: Any, seconds: float) -> tuple:
        given = self.given
        made = [given[name] for name in ("logit_bias", "allowed_token_ids") if name in given]
        for processor in made:
            processor.ids.check(llm.vocab_size)
        if "bad_words" in given:
            made.append(BadWords(llm, given["bad_words"]))
        if "structured_outputs" in given:
            made.append(Structured(llm, given["structured_outputs"], seconds))
        return tuple(made)

    def _check_choice(self, llm: Any) -> None:
        """Raise ValueError if every allowed token is also forbidden."""
        if "allowed_token_ids" in self.given:
            words = (word for made in self._made[1] if isinstance(made, BadWords) for word in made.words)
            forbidden = {word[0] for word in words if len(word) == 1}
            if self.params.min_tokens:
                forbidden.update(self.params.stop_token_ids, () if self.params.ignore_eos else end_tokens(llm))
            if forbidden.issuperset(self.given["allowed_token_ids"].ids.token_ids):
                message = "leaves nothing to choose: bad_words or min_tokens forbid all of them"
                raise ValueError(f"allowed_token_ids {message}")

    def prompt(self, llm: Any, prompt: Any) -> Any:
        """A prompt; if it is truncated, its token ids. Raises ValueError."""
        if "truncate_prompt_tokens" not in self.given:
            return prompt
        token_ids = llm.get_tokenizer().encode(prompt) if isinstance(prompt, str) else prompt
        kept = self.last_tokens(token_ids, llm.max_model_len)
        return prompt if len(kept) == len(token_ids) else kept

    def last_tokens(self, token_ids: list[int], max_model_len: int) -> list[int]:
        """The last tokens of a prompt, as many as `truncate_prompt_tokens` says. Raises ValueError."""
        most = self.given.get("truncate_prompt_tokens")
        if most is None:
            return token_ids
        if most > max_model_len:
            raise ValueError(f"truncate_prompt_tokens {most} is over max_model_len {max_model_len}")
        if most == -1:  # room for the output; if the context is too small for any such output, for one token
            most = max_model_len - (self.params.max_tokens if self.params.max_tokens < max_model_len else 1)
        return token_ids[-most:]

    def to_dict(self) -> dict[str, Any]:
        """All fields, as in a manifest."""
        form = self.given.get("structured_outputs")
        more = {name: self.fields.get(name) for name in MORE_FIELDS} | {"structured_outputs": form and asdict(form)}
        return {**asdict(self.params), **more}

    def __getstate__(self) -> dict[str, Any]:
        """Processors are not sent to another process."""
        return vars(self) | {"_made": (None, ())}


def mapped(fields: dict[str, Any], min_temperature: float) -> dict[str, Any]:
    """Clients' values in a stage's terms: a seed of -1 is no seed, another negative one is taken modulo 2^64, and a
    temperature over 0 is at least the minimum."""
    fields, temperature = dict(fields), fields.get("temperature")
    if isinstance(temperature, int | float) and 0 < temperature < min_temperature:
        fields["temperature"] = min_temperature
    seed = fields.get("seed")
    if type(seed) is int and -(2**63) <= seed < 0:
        fields["seed"] = None if seed == -1 else seed % 2**64
    return fields


def checked_bias(bias: Any) -> LogitBias | None:
    return None if isinstance(bias, Mapping) and not bias else LogitBias(bias)


def checked_length(value: Any) -> int:
    if value == 0:
        raise ValueError("truncate_prompt_tokens must be at least 1, or -1, got 0")
    return whole_number("truncate_prompt_tokens", value, -1)


CHECKS = {
    "logit_bias": checked_bias,
    "allowed_token_ids": AllowedTokenIds,
    "bad_words": checked_words,
    "structured_outputs": Form.of,
    "truncate_prompt_tokens": checked_length,
}
