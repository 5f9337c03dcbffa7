"""The fields of a request: OpenAI's and vLLM's additional ones, each with its allowed values.

A missing field and a null one mean the same. Nothing is ignored, because a caller who sends a field expects it to have
an effect. A field is one of three kinds:

    COMPLETION, CHAT   used. `Field` checks most of them; `Sampling` checks those in SAMPLING
    IDLE               not used here: accepted if it asks for nothing, else refused by name
    any other          refused by name

Sources: OpenAI's API reference, "Create chat completion" and "Create completion"; vLLM's documentation, "OpenAI-
compatible server", extra parameters.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from .errors import APIError, bad_request
from .forms import FORM_FIELDS
from .limits import Limits

# Field -> its allowed type or values, and why nothing else is possible.
Others = Mapping[str, tuple[type | tuple, str]]


@dataclass(frozen=True)
class Field:
    """The allowed values of a field. A number's upper bound may be the name of one of `Limits`.

    Attributes:
        kinds: its types; None: the code that uses it checks it.
        what: the same in words, for errors.
        default: its value if a request has none.
        low, high: bounds of a number.
        values: all allowed values, if there are few.
    """

    kinds: type | tuple[type, ...] | None = None
    what: str = ""
    default: Any = None
    low: int | None = None
    high: int | str = 0
    values: tuple = ()

    def check(self, name: str, value: Any, limits: Limits | None) -> None:
        """Raise APIError, which names the field, for a value that is not allowed."""
        if self.kinds is None:
            return
        what, fits = self.what, isinstance(value, self.kinds) and (self.kinds is bool or not isinstance(value, bool))
        fits = fits and (not self.values or value in self.values)
        if self.low is not None:
            high = getattr(limits, self.high) if isinstance(self.high, str) else self.high
            what, fits = f"a whole number from {self.low} to {high}", fits and self.low <= value <= high
        if not fits:
            raise bad_request(f"{name} must be {what}, got {value!r:.80}", param=name)


def number(low: int, high: int | str, default: int | None = None) -> Field:
    return Field(int, "", default, low, high)


def flag(default: bool = False) -> Field:
    return Field(bool, "true or false", default)


MAX_TOKENS = 2**31 - 1  # the context ends an output long before
ANY, TEXT, OBJECT, WHOLE = Field(), Field(str, "a string"), Field(dict, "an object"), Field(int, "a whole number")
SAMPLING = (
    *("n", "temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "stop", "max_tokens"),
    *("logit_bias", "top_k", "min_p", "repetition_penalty", "ignore_eos", "min_tokens", "stop_token_ids"),
    *("bad_words", "allowed_token_ids", "include_stop_str_in_output", "skip_special_tokens", "truncate_prompt_tokens"),
    "structured_outputs",
)
COMMON = {
    **dict.fromkeys((*SAMPLING, *FORM_FIELDS), ANY),  # `Sampling` and `form_of` check them
    "model": TEXT,
    "n": number(1, "max_choices", 1),
    "priority": number(-(2**63), 2**63 - 1, 0),
    "request_id": TEXT,
    "stream": flag(),
    "stream_options": Field(dict, "an object", {}),
    "prompt_logprobs": WHOLE,
    "return_token_ids": flag(),
    "return_tokens_as_token_ids": flag(),
}
COMPLETION = COMMON | {
    "prompt": Field(default="<|endoftext|>"),  # OpenAI's default: as at the beginning of a new document
    "max_tokens": number(0, MAX_TOKENS),
    "logprobs": WHOLE,
    "echo": flag(),
}
TURNS = {
    "messages": Field(list, "a list of messages", []),
    "add_generation_prompt": flag(),
    "continue_final_message": flag(),
    "chat_template_kwargs": Field(dict, "an object", {}),
}
CHAT = COMMON | TURNS
CHAT |= dict.fromkeys(("max_tokens", "max_completion_tokens"), number(1, MAX_TOKENS))
CHAT |= {"logprobs": flag(), "top_logprobs": WHOLE}
STREAM_OPTIONS = {"include_usage": flag(), "continuous_usage_stats": flag()}

NO_TOOLS = "no functions are called here; response_format gives an answer a form"
ONLY_TEXT = "this model reads and writes only text"
NO_BEAMS = "a search has the engine to itself: take --beam-width, for prompts on the command line, or LLM.beam_search"
BEAM_FIELDS = {"use_beam_search": (False,), "length_penalty": (1, 1.0), "early_stopping": (False,)}
IDLE: Others = {
    # The caller's notes, and hints for machines that don't exist here: they have no effect.
    "user": (str, "it must be a string"),
    "safety_identifier": (str, "it must be a string"),
    "prompt_cache_key": (str, "it must be a string"),
    "prompt_cache_retention": (str, "it must be a string"),
    "metadata": (dict, "it must be an object"),
    "cache_control": (dict, "it must be an object"),
    "reasoning_effort": (str, "it must be a string"),  # of models that reason
    "store": ((False,), "answers are not stored here"),
    "service_tier": (("auto", "default"), "this server has one tier"),
    # What this model can't do.
    "suffix": (("",), "GPT-2 can't fill in text before a given ending"),
    "modalities": ((["text"],), ONLY_TEXT),
    "audio": ((), ONLY_TEXT),
    "mm_processor_kwargs": (({},), ONLY_TEXT),
    "prompt_embeds": ((), "a prompt is a string, or token ids"),
    "best_of": ((1,), "all completions are returned: ask for n"),
    **{name: (values, NO_BEAMS) for name, values in BEAM_FIELDS.items()},
    "prediction": ((), "predictions are not used"),
    "web_search_options": ((), "this model searches nothing"),
    "include_reasoning": (bool, "it must be true or false"),
    "thinking_token_budget": ((-1,), "this model does not reason"),
    "typical_p": ((1, 1.0), "take top_p or min_p"),
    "top_a": ((0, 0.0), "take top_p or min_p"),
    "tfs": ((1, 1.0), "take top_p or min_p"),
    "verbosity": (("medium",), "the length of an output depends on the model, and on max_tokens"),
    "tools": (([],), NO_TOOLS),
    "tool_choice": (("none",), NO_TOOLS),
    "parallel_tool_calls": (bool, "it must be true or false"),
    "functions": (([],), NO_TOOLS),
    "function_call": (("none",), NO_TOOLS),
    "logits_processors": (([],), "code in a request is not run here"),
    "documents": (([],), "put them into the messages"),
    "chat_template": ((), "it is chosen when the server starts, with --chat-template"),
    "chat_template_kwargs": (({},), "only chats have a template"),
    "cache_salt": ((), "all requests share one prefix cache"),
    "kv_transfer_params": (({},), "the KV cache stays on this machine"),
    "vllm_xargs": (({},), "there are no plug-ins"),
    # True anyway.
    "add_special_tokens": (bool, "it must be true or false"),  # GPT-2 adds none
    "spaces_between_special_tokens": (bool, "it must be true or false"),  # GPT-2's are written without
    "detokenize": ((True,), "an answer is text"),
}


class Fields(dict[str, Any]):
    """The fields of a request that are used, present and not null. `fields[name]` of an absent one is its default.

    Args:
        known: the fields that are used.
        prefix: precedes the names in errors.
        others: what else may be present, see IDLE.
        limits: has the bounds of numbers.

    Raises:
        APIError: names the field.
    """

    def __init__(
        self,
        body: Mapping[str, Any],
        known: Mapping[str, Field],
        prefix: str = "",
        others: Others = MappingProxyType({}),
        limits: Limits | None = None,
    ):
        super().__init__({name: value for name, value in body.items() if value is not None and name in known})
        self.known, self.prefix = known, prefix
        for name in sorted(body.keys() - known.keys()):
            if body[name] is not None and (error := objection(name, body[name], others, prefix)):
                raise error
        for name, value in self.items():
            known[name].check(prefix + name, value, limits)

    def __missing__(self, name: str) -> Any:
        return self.known[name].default


def objection(name: str, value: Any, others: Others = IDLE, prefix: str = "") -> APIError | None:
    """Why an unused field is refused; None if it is one of `others` and asks for nothing."""
    if name not in others:
        return bad_request(f"unknown field {prefix}{name:.80}", param=prefix + name[:80])
    allowed, why = others[name]
    if isinstance(allowed, type):
        fine = isinstance(value, allowed)
    else:
        fine = any(type(value) is type(one) and value == one for one in allowed)  # because 1 is not True
    return None if fine else bad_request(f"{prefix}{name} {value!r:.80} is not supported: {why}", param=prefix + name)
