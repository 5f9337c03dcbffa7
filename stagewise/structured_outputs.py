"""Structured output: a logits processor that allows only tokens with which the whole output can still have a form: one
of several choices, a regular expression, a JSON schema, a grammar. Names and meanings are those of vLLM's
`StructuredOutputsParams`.

A form is compiled into a matcher over tokens by llguidance (https://github.com/guidance-ai/llguidance, MIT license), an
optional dependency. A matcher advances one token at a time; what may follow an output depends only on the output, so a
missing matcher is rebuilt from the tokens.

A form may come from a stranger. The limits below keep each step short, by counting the work. That can't limit
compiling: form_compiler.py does it first, in a process that can be killed.
"""

import functools
import json
import math
import re
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from .exits import MissingPackageError
from .form_compiler import SECONDS, FormCheck, Words
from .stages import end_tokens, llm_of

if TYPE_CHECKING:  # else imported where it is used: the command line's flags need no torch
    import numpy as np
    from torch import Tensor

MAX_CHARACTERS = 2**16  # of a form
MAX_MATCHERS = 1024  # kept for one form: at least one for each output that runs at once
STEP_SECONDS = 0.05  # that compiling a form may take within a step
MAX_RULES = 250  # that may refer to each other; a chain of 3,000 is too deep for the stack of llguidance's thread
# llguidance's own limits are 10 to 50 times as high: then an ambiguous grammar takes over a second of CPU time for each
# step. Its limits on regular expressions (`fuel`) stay: `\W\w` needs 30,000 for its hundreds of ranges of letters.
LIMITS: dict[str, Any] = dict(step_max_items=5_000, max_grammar_size=20_000, max_lexer_states=5_000)
# Between two parts of JSON one space, or none. A small model that may write more, or line breaks, does not stop.
SPACES = r" "
MISSING = 'structured_outputs needs the package llguidance: pip install "stagewise[structured]"'


@dataclass(frozen=True)
class Form:
    """The form of an output: exactly one of the first five fields.

    Attributes:
        json: a JSON schema, as an object or as text. An object that lists `properties` has no others, unless the schema
            says `additionalProperties`.
        regex: a regular expression that the whole output matches, in the syntax of Rust's crate `regex`: no look-around
            and no backreferences. `\\d` is a digit from 0 to 9.
        choice: texts, one of which is the output.
        grammar: in Lark's syntax, beginning with a rule `start`, or in GBNF, beginning with `root`.
        json_object: any JSON object.
        disable_any_whitespace: no space between the parts of the JSON; otherwise there may be one.

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
    def of(cls, given: Any) -> "Form":
        """From JSON values. Raises ValueError."""
        if isinstance(given, cls):
            return given
        if not isinstance(given, Mapping):
            raise ValueError(f"structured_outputs must be an object, got {given!r:.80}")
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
            raise ValueError(f"structured_outputs.choice must be a list of at least one string, got {value!r:.80}")
        return tuple(checked_text("choice", text) for text in value)

    def _checked_json_object(self, value: Any) -> bool:
        return True


FORMS = ("json", "regex", "choice", "grammar", "json_object")


def checked_text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"structured_outputs.{name} must be a non-empty text, got {value!r:.80}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"structured_outputs.{name} is not valid Unicode: {error.reason}") from None
    return str(value)


class Structured:
    """The logits processor of a form. Each output with this form, of any request, has a copy of its matcher. Copies
    share llguidance's lexer, which keeps every state that one of them reaches; when it is full, the form is compiled
    again, unless that takes too long.

    Args:
        llm: the model's LLM, or AsyncLLM.
        form: the form of the whole output.
        seconds: CPU time that compiling it may take.

    Raises:
        ValueError: no output can have this form, or the form exceeds the limits; or llguidance is missing.
    """

    def __init__(self, llm: Any, form: Form, seconds: float = SECONDS):
        llm = llm_of(llm)
        ends = end_tokens(llm)
        if not ends:
            raise ValueError("structured_outputs needs a model with an end token, which ends the form")
        self._compile = functools.partial(make_matcher, form, llm.get_tokenizer(), ends)
        self._start, self._seconds = self._compile(seconds)
        self._matchers: OrderedDict[tuple[int, ...], Any] = OrderedDict()  # output -> the matcher after it

    def __call__(self, prompt_token_ids: list[int], output_token_ids: list[int], logits: "Tensor") -> "Tensor":
        """Raises ValueError if no token is allowed, or if that can't be determined within the limits."""
        import numpy as np
        import torch

        allowed = self.allowed(output_token_ids)[: len(logits)]
        forbidden = np.ones(len(logits), bool)  # a model's vocabulary may be larger than its tokenizer's
        np.logical_not(allowed, out=forbidden[: len(allowed)])
        logits.masked_fill_(torch.from_numpy(forbidden).to(logits.device), -math.inf)
        if logits.max() == -math.inf:
            raise ValueError("structured_outputs leaves no token to choose, given the other parameters")
        return logits

    def allowed(self, output_token_ids: list[int]) -> "np.ndarray":
        """Which tokens may follow an output: [at least as many as the tokenizer has] bool."""
        output = tuple(output_token_ids)
        matcher = self._matchers.pop(output, None)
        if matcher is None and output and (matcher := self._matchers.pop(output[:-1], None)):
            matcher.consume_token(output[-1])
        if matcher is None:
            matcher = self._start.deep_copy()
            matcher.consume_tokens(output_token_ids)
        allowed = next_tokens(matcher)
        if matcher.is_error() and self._seconds < STEP_SECONDS:  # the lexer may be full: here, within a step
            self._start, self._seconds = self._compile()
            self._matchers.clear()  # they share the old lexer
            matcher = self._start.deep_copy()
            matcher.consume_tokens(output_token_ids)
            allowed = next_tokens(matcher)
        if matcher.is_error():
            where = f"structured_outputs fails after {len(output)} tokens"
            raise ValueError(f"{where}: {reason(matcher.get_error())}")
        self._matchers[output] = matcher
        if len(self._matchers) > MAX_MATCHERS:
            self._matchers.popitem(last=False)
        return allowed


def make_matcher(
    asked: Form, tokenizer: Any, eos_token_ids: tuple[int, ...], seconds: float | None = None
) -> tuple[Any, float]:
    """llguidance's matcher for a form, at the beginning of an output, and the CPU time in seconds that compiling it
    took in this thread. Raises ValueError.

    seconds: of CPU time that it may take; it is tried first, in another process. None: it is known to be quick.
    """
    try:
        import llguidance
    except ModuleNotFoundError:
        raise MissingPackageError(MISSING) from None
    name = next(name for name in FORMS if getattr(asked, name) is not None)
    words, setup = vocabulary(tokenizer, eos_token_ids)
    try:
        grammar = grammar_of(asked, llguidance)
    except Exception as error:  # llguidance's converters raise several kinds
        raise ValueError(f"structured_outputs.{name}: {reason(str(error))}") from None
    if seconds is not None and (error := check(grammar, setup, seconds)):
        raise ValueError(f"structured_outputs.{name}: {reason(error)}")
    limits = llguidance.LLParserLimits(verbose_errors=False, **LIMITS)
    started = time.thread_time()
    matcher = llguidance.LLMatcher(words, grammar, log_level=0, limits=limits)
    if matcher.is_error():
        raise ValueError(f"structured_outputs.{name}: {reason(matcher.get_error())}")
    return matcher, time.thread_time() - started


@functools.lru_cache(maxsize=64)
def check(grammar: str, setup: bytes, seconds: float) -> str:
    """Why a grammar can't be compiled; empty if it can. Cached, so that one that takes too long is tried only once."""
    global _check
    with _checking:
        if _check is None or not _check.is_usable(setup):
            _check = FormCheck(setup)
        return _check.compile(grammar, seconds)


_check: FormCheck | None = None
_checking = threading.Lock()


def next_tokens(matcher: Any) -> "np.ndarray":
    """The tokens that may come next: [at least as many as the tokenizer has] bool."""
    import numpy as np

    return np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little").view(bool)


def grammar_of(asked: Form, llguidance: Any) -> str:
    """A form in llguidance's own format."""
    if asked.is_json:
        how = {"whitespace_flexible": False} if asked.disable_any_whitespace else {"whitespace_pattern": SPACES}
        schema = '{"type": "object"}' if asked.json_object else json.dumps(closed(json.loads(str(asked.json))))
        return llguidance.LLMatcher.grammar_from_json_schema(schema, defaults=how)
    if asked.choice is not None:
        return llguidance.grammar_from("choice", json.dumps(asked.choice, ensure_ascii=False))
    if asked.regex is not None:
        return llguidance.grammar_from("regex", with_ascii_digits(asked.regex))
    return llguidance.grammar_from("grammar", asked.grammar)


def with_ascii_digits(regex: str) -> str:
    r"""The same regular expression with `\d` as 0 to 9, as in JSON Schema and other engines: in Rust it is any script's
    digit. Rust allows a class within a class."""
    digits = {"d": "[0-9]", "D": "[^0-9]"}
    return re.sub(r"\\(.)", lambda escape: digits.get(escape[1], escape[0]), regex, flags=re.DOTALL)


def closed(schema: Any) -> Any:
    """The schema without fields that its objects allow but don't list: a model that finds no end would make up fields
    until `max_tokens`. JSON that is valid under the result is valid under the schema.

    A schema that combines objects, for example with `allOf`, is not changed: a field may be listed in another part.
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
    """A schema and all schemas in it, but not what only looks like one in literal values."""
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


TOO_MUCH = ("too big", "too large", "too many", "too complex", "fuel", "precomputation")  # in llguidance's errors


def reason(error: str) -> str:
    """llguidance's error in one line, in our words if a limit was exceeded."""
    line = " ".join(error.partition("<")[0].split())
    if line.startswith("NoExtension"):
        return "no text has this form"
    if any(word in line.lower() for word in TOO_MUCH) and not line.startswith("it is"):
        return f"it is too large or too complex ({line:.120})"
    return line[:400]


_vocabularies: weakref.WeakKeyDictionary[Any, dict[tuple[int, ...], Any]] = weakref.WeakKeyDictionary()
_making = threading.Lock()


def vocabulary(tokenizer: Any, eos_token_ids: tuple[int, ...]) -> tuple[Any, bytes]:
    """All tokens as llguidance and as form_compiler.py need them; made once, because it takes some tenths of a
    second."""
    import llguidance

    with _making:
        made = _vocabularies.setdefault(tokenizer, {})
        if eos_token_ids not in made:
            num = max(tokenizer.num_tokens - 1, *eos_token_ids) + 1
            tokens = [tokenizer.token_bytes(i) or f"<|{i}|>".encode() for i in range(num)]
            special = sorted({*tokenizer.special, *eos_token_ids})
            words = Words(tokens, special, eos_token_ids[0], tokenizer.encode)
            setup = dict(tokens=[token.hex() for token in tokens], special=special, eos=eos_token_ids, limits=LIMITS)
            words = llguidance.LLTokenizer(llguidance.TokenizerWrapper(words), eos_token=[*eos_token_ids])
            made[eos_token_ids] = words, json.dumps(setup).encode()
        return made[eos_token_ids]
