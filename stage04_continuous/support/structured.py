"""Structured outputs: the tokens that may come next, so that the whole output has a given form: one of some choices, a
regular expression, a JSON schema, a grammar. Names and meanings are those of vLLM's `StructuredOutputsParams`.

A form is made into a parser over tokens by llguidance (https://github.com/guidance-ai/llguidance, MIT license), an
optional dependency. What may come next follows from the form and the output so far. So the parser's state is never
kept with a batch: it belongs to one output, goes on by the tokens that this has got since, and is made from them
wherever it is missing.

A form may come from a stranger. The limits below keep all work on it short, whatever it is, by counting the work and
not the time: a form that is refused is refused on every machine.
"""

import json
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import Any

import numpy as np

from .tokenizer import Tokenizer

MAX_CHARACTERS = 2**16  # of a form
MAX_RULES = 250  # that may refer to one another; 3,000 in a chain are too deep for the stack of llguidance's thread
# llguidance's own limits are 2 to 50 times as high; with them `(a{1000}){1000}` takes minutes for its first token.
LIMITS: dict[str, Any] = dict(
    initial_lexer_fuel=20_000,
    step_lexer_fuel=20_000,
    step_max_items=5_000,
    max_grammar_size=20_000,
    max_lexer_states=5_000,
)
TRIAL_STEPS = 4  # before a form is accepted
# Between two parts of JSON one, or none. A small model that may write more, or new lines, goes on with them.
SPACES = r" "
MISSING = (
    "structured_outputs needs the package llguidance, which is not installed: pip install 'stagewise[structured]', or, "
    "in a checkout, pip install -e '.[structured]'"
)


@dataclass(frozen=True)
class StructuredOutputsParams:
    """The form of an output. Exactly one of the first five.

    Attributes:
        json: a JSON schema, as an object or as text. An object that lists `properties` has no others, unless the schema
            says `additionalProperties`.
        regex: a regular expression that the whole output matches, in the syntax of Rust's crate `regex`: no look-around
            and no references back.
        choice: texts, one of which is the output.
        grammar: in Lark's syntax, beginning with a rule `start`, or in GBNF, beginning with `root`.
        json_object: any JSON object.
        disable_any_whitespace: no space between the parts of the JSON; else there may be one.

    Raises:
        ValueError: names the field and its value.
    """

    json: str | Mapping[str, Any] | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False

    def __post_init__(self):
        given = [name for name in FORMS if getattr(self, name) is not None]
        if (given == ["json_object"] and self.json_object is not True) or len(given) != 1:
            raise ValueError(
                f"structured_outputs must have exactly one of {', '.join(FORMS)}, got {', '.join(given) or 'none'}"
            )
        if not isinstance(self.disable_any_whitespace, bool):
            message = f"must be True or False, got {self.disable_any_whitespace!r:.80}"
            raise ValueError(f"structured_outputs.disable_any_whitespace {message}")
        (name,) = given
        object.__setattr__(self, name, getattr(self, f"_checked_{name}")(getattr(self, name)))
        size = sum(map(len, self.choice)) if self.choice is not None else len(str(getattr(self, name)))
        if size > MAX_CHARACTERS:
            raise ValueError(f"structured_outputs.{name} has {size:,} characters; the limit is {MAX_CHARACTERS:,}")
        num_rules = (self.grammar or "").replace("::", ":").count(":") + str(self.json or "").count('"$ref"')
        if num_rules > MAX_RULES:
            raise ValueError(
                f"structured_outputs.{name} has {num_rules:,} rules or references; the limit is {MAX_RULES}"
            )

    @classmethod
    def of(cls, given: Any) -> "StructuredOutputsParams":
        """From what came as JSON. Raises ValueError."""
        if isinstance(given, cls):
            return given
        if not isinstance(given, Mapping):
            raise ValueError(f"structured_outputs must be StructuredOutputsParams or their fields, got {given!r:.80}")
        if unknown := sorted(map(str, given.keys() - {field.name for field in fields(cls)})):
            raise ValueError(f"structured_outputs has no field {unknown[0]!r:.80}")
        return cls(**given)

    @property
    def is_json(self) -> bool:
        return self.json is not None or bool(self.json_object)

    def _checked_json(self, value: Any) -> str:
        """As text, which can't change under the engine."""
        try:
            schema = json.loads(value) if isinstance(value, str) else value
            if not isinstance(schema, Mapping):
                raise ValueError(f"a schema is an object, got {schema!r:.80}")
            return json.dumps(schema, default=dict, allow_nan=False)
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"structured_outputs.json is not a JSON schema: {error}") from None

    def _checked_regex(self, value: Any) -> str:
        return checked_text("regex", value)

    def _checked_grammar(self, value: Any) -> str:
        return checked_text("grammar", value)

    def _checked_choice(self, value: Any) -> tuple[str, ...]:
        if isinstance(value, str) or not isinstance(value, Sequence) or not value:
            raise ValueError(f"structured_outputs.choice must be a list of at least one text, got {value!r:.80}")
        return tuple(checked_text("choice", text) for text in value)

    def _checked_json_object(self, value: Any) -> bool:
        return True

    # What was made of it for a tokenizer goes with it, so that a request that was checked in one thread takes no time
    # in another. It is no part of its value, and does not travel to another process.

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


TOO_MUCH = ("too big", "too large", "too many", "too complex", "fuel", "precomputation")  # in llguidance's errors
FORMS = ("json", "regex", "choice", "grammar", "json_object")


def checked_text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"structured_outputs.{name} must be a text that is not empty, got {value!r:.80}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"structured_outputs.{name} is not valid Unicode: {error.reason}") from None
    return str(value)


class FormError(ValueError):
    """An output can't go on in its form."""


class Guide:
    """The form of one output: says what may come behind each of its beginnings.

    Each has a matcher of its own. Copies of a llguidance matcher share a lexer, and with it its limits: what one output
    has used of them another would miss.

    Args:
        asked: the form.
        tokenizer, eos_token_ids: the model's.
        index: which completion of its request it is for.

    Raises:
        ValueError: there can't be such an output, or the form goes beyond the limits; or llguidance is missing.
    """

    def __init__(
        self, asked: StructuredOutputsParams, tokenizer: Tokenizer, eos_token_ids: tuple[int, ...], index: int = 0
    ):
        if not eos_token_ids:
            raise ValueError("structured_outputs needs a model with an end token, which ends the form")
        self._form, self._index = (asked, tokenizer, eos_token_ids), index
        # What a check has made, maybe in another thread, serves the output itself.
        self._stock = vars(asked).setdefault("_stock", {}).setdefault((tokenizer, eos_token_ids), [])
        if not self._stock:
            try_out(make_matcher(*self._form))
        while len(self._stock) <= index:
            self._stock.append(make_matcher(*self._form))
        self._matcher: Any = None
        self._seen: list[int] | None = []  # the tokens behind which the matcher is; None: nobody knows

    def fork(self, index: int) -> "Guide":
        """That of another completion."""
        return Guide(*self._form, index)

    def allowed(self, output_token_ids: list[int]) -> np.ndarray:
        """Which tokens may come behind these: [at least as many as the tokenizer has] bool.

        Raises FormError if that can't be found out within the limits.
        """
        seen, self._seen = self._seen, None  # whatever cuts this short, the next call begins with a new matcher
        if self._matcher is None or seen is None or output_token_ids[: len(seen)] != seen:
            self._matcher, seen = self._stock.pop() if self._stock else make_matcher(*self._form), []
        self._matcher.consume_tokens(output_token_ids[len(seen) :])
        allowed = next_tokens(self._matcher)
        if self._matcher.is_error():
            where = f"structured_outputs fails behind {len(output_token_ids)} tokens"
            raise FormError(f"{where}: {reason(self._matcher.get_error())}")
        self._seen = [*output_token_ids]
        return allowed


def make_matcher(asked: StructuredOutputsParams, tokenizer: Tokenizer, eos_token_ids: tuple[int, ...]) -> Any:
    """What llguidance makes of a form, at the beginning of an output. Raises ValueError."""
    try:
        import llguidance
    except ModuleNotFoundError:
        raise ValueError(MISSING) from None
    name = next(name for name in FORMS if getattr(asked, name) is not None)
    try:
        limits = llguidance.LLParserLimits(verbose_errors=False, **LIMITS)
        matcher = llguidance.LLMatcher(
            vocabulary(tokenizer, eos_token_ids), grammar_of(asked, llguidance), log_level=0, limits=limits
        )
    except Exception as error:  # of a converter of grammars
        raise ValueError(f"structured_outputs.{name}: {reason(str(error))}") from None
    if matcher.is_error():
        raise ValueError(f"structured_outputs.{name}: {reason(matcher.get_error())}")
    return matcher


def try_out(matcher: Any) -> None:
    """Take a few steps: some things are wrong, or too much, only there. Raises ValueError."""
    for _ in range(TRIAL_STEPS):
        allowed = next_tokens(matcher)
        if matcher.is_error():
            raise ValueError(f"structured_outputs: {reason(matcher.get_error())}")
        if matcher.is_accepting():
            return
        matcher.consume_token(int(allowed.argmax()))


def next_tokens(matcher: Any) -> np.ndarray:
    """What may come next: [at least as many as the tokenizer has] bool."""
    return np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little").view(bool)


def grammar_of(asked: StructuredOutputsParams, llguidance: Any) -> str:
    """In llguidance's own form."""
    if asked.is_json:
        how = {"whitespace_flexible": False} if asked.disable_any_whitespace else {"whitespace_pattern": SPACES}
        schema = '{"type": "object"}' if asked.json_object else json.dumps(closed(json.loads(str(asked.json))))
        return llguidance.LLMatcher.grammar_from_json_schema(schema, defaults=how)
    if asked.choice is not None:
        return llguidance.grammar_from("choice", json.dumps(asked.choice, ensure_ascii=False))
    if asked.regex is not None:
        return llguidance.grammar_from("regex", asked.regex)
    return llguidance.grammar_from("grammar", asked.grammar)


def closed(schema: Any) -> Any:
    """The schema without what it allows by saying nothing: fields beyond those that its objects list. JSON that is
    valid under this is valid under the schema; a model that knows no end would make up fields until `max_tokens`.

    A schema that puts objects together, with `allOf` say, stays as it is: what one part lists, another need not.
    """
    parts = list(nodes(schema))
    if any("allOf" in one or ("properties" in one and one.keys() & {"anyOf", "oneOf", "$ref"}) for one in parts):
        return schema
    for one in parts:
        others = {"additionalProperties", "patternProperties", "unevaluatedProperties"}
        if isinstance(one.get("properties"), dict) and not one.keys() & others:
            one["additionalProperties"] = False
    return schema


def nodes(schema: Any) -> Iterator[dict[str, Any]]:
    """The objects in a schema that are schemas themselves, but for what is given as a value."""
    if isinstance(schema, list):
        for one in schema:
            yield from nodes(one)
    elif isinstance(schema, dict):
        yield schema
        for name, value in schema.items():
            if name in ("properties", "$defs", "definitions") and isinstance(value, dict):
                yield from nodes([*value.values()])
            elif name not in ("enum", "const", "default", "examples"):
                yield from nodes(value)


def reason(error: str) -> str:
    """llguidance's, in a line, and in the words of the limits where it is one of these."""
    line = " ".join(error.partition("<")[0].split())
    if line.startswith("NoExtension"):
        return "no text has this form"
    if any(
        word in line.lower() for word in ("too big", "too large", "too many", "fuel", "too complex", "precomputation")
    ):
        return f"it is too large or too intricate ({line:.120})"
    return line[:400]


_vocabularies: weakref.WeakKeyDictionary[Tokenizer, dict[tuple[int, ...], Any]] = weakref.WeakKeyDictionary()
_making = threading.Lock()


def vocabulary(tokenizer: Tokenizer, eos_token_ids: tuple[int, ...]) -> Any:
    """All tokens as llguidance wants them, made once: that takes some tenths of a second."""
    import llguidance

    with _making:
        made = _vocabularies.setdefault(tokenizer, {})
        if eos_token_ids not in made:
            num = max(tokenizer.num_tokens - 1, *eos_token_ids) + 1
            tokens = [tokenizer.token_bytes(i) or f"<|{i}|>".encode() for i in range(num)]
            special = sorted({*tokenizer.special, *eos_token_ids})
            words = Words(
                encode=tokenizer.encode,
                tokens=tokens,
                special_token_ids=special,
                eos_token_id=eos_token_ids[0],
                bos_token_id=None,
            )
            made[eos_token_ids] = llguidance.LLTokenizer(llguidance.TokenizerWrapper(words), eos_token=[*eos_token_ids])
        return made[eos_token_ids]


class Words(SimpleNamespace):
    """A vocabulary, and how a text that is the only one possible is cut into tokens."""

    def __call__(self, text: str | bytes) -> list[int]:
        if isinstance(text, bytes):
            raise TypeError("texts only")
        return self.encode(text) if text else []
