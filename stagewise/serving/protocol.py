"""From the JSON of a request to a checked `Job`: OpenAI's fields and vLLM's further ones, each of them used or refused.

A field that is left out and one that is null are the same. Nothing is computed here, and nothing is ignored: a field
that is not known is an error that names it, for a caller who sends it expects something of it.
"""

import json
from dataclasses import dataclass
from typing import Any

from ..stages import Stage
from .errors import APIError, bad_request
from .limits import Limits

SAMPLING = (
    *("n", "temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "stop", "max_tokens"),
    *("top_k", "min_p", "repetition_penalty", "ignore_eos", "min_tokens", "stop_token_ids"),  # vLLM's
)  # each is a field of SamplingParams, which checks it
COMMON = {"model", "stream", "stream_options", "logprobs", "logit_bias", "user", "priority", *SAMPLING}
COMPLETION = COMMON | {"prompt", "best_of", "echo", "suffix"}
CHAT = COMMON | {"messages", "max_completion_tokens", "top_logprobs"}

DEFAULT_PROMPT = "<|endoftext|>"  # OpenAI's: as if a new document began
MAX_TOKENS = 2**31 - 1  # the context ends an output long before
DEFAULT_MAX_TOKENS = 16  # OpenAI's, for completions; a chat may fill the context
MAX_TOKEN_CHARACTERS = 128  # GPT-2's longest token is a line of spaces
TOO_LONG = "context_length_exceeded"
MAX_LOGPROBS = 20  # a token; each has to be put into words
MAX_DEPTH = 64  # of lists and objects in one another


@dataclass(frozen=True)
class Job:
    """A request that was found right.

    Attributes:
        prompts: as they were given, texts or token ids.
        token_ids: of every prompt.
        params: of every prompt.
        n: completions of every prompt; choice i * n + j of the answer is completion j of prompt i.
        num_logprobs: how many likely tokens stand beside each; None: no log-probabilities.
        echo: put the prompt before each completion.
        usage, usage_in_chunks: a stream ends with the counts of tokens; each chunk has those so far.
    """

    prompts: list[str | list[int]]
    token_ids: list[list[int]]
    params: Any  # SamplingParams of the stage
    max_model_len: int
    n: int
    priority: int
    stream: bool
    usage: bool
    usage_in_chunks: bool
    num_logprobs: int | None
    echo: bool = False
    chat: bool = False

    @property
    def num_choices(self) -> int:
        return len(self.prompts) * self.n

    @property
    def num_prompt_tokens(self) -> int:
        return sum(map(len, self.token_ids))

    @property
    def num_tokens(self) -> int:
        """What it may come to, prompts included. Each log-probability that is told beside a token counts as another:
        it takes as much memory, and longer to be put into words."""
        most, each = self.params.max_tokens, 1 + (self.num_logprobs or 0)
        return each * self.n * sum(min(len(ids) + most, max(len(ids), self.max_model_len)) for ids in self.token_ids)


def parse_json(raw: bytes, what: str = "the body", max_values: int | None = None) -> dict:
    """The fields of a body. Raises APIError unless it is one object of strict JSON, with each key once."""
    if max_values is not None and (num_values := sum(map(raw.count, (b",", b"[", b"{")))) > max_values:
        # A comma in a text counts too: this is for finding out without a parser, which can't be interrupted.
        raise APIError(413, f"{what} has about {num_values:,} values of JSON; the limit is {max_values:,}")
    try:
        body = json.loads(raw.decode("utf-8"), parse_constant=no_constant, object_pairs_hook=no_duplicates)
        check_depth(body)
    except RecursionError:
        raise bad_request(f"{what} is not valid JSON: it is nested too deeply, over {MAX_DEPTH} levels") from None
    except ValueError as error:  # UnicodeDecodeError and JSONDecodeError too
        raise bad_request(f"{what} is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise bad_request(f"{what} must be a JSON object, got {body!r:.80}")
    return body


def check_depth(body: Any) -> None:
    """Raise RecursionError if lists and objects lie too deep in one another."""
    level = [body]
    for _ in range(MAX_DEPTH):
        inner = (value for outer in level for value in (outer.values() if isinstance(outer, dict) else outer))
        level = [value for value in inner if isinstance(value, list | dict)]
        if not level:
            return
    raise RecursionError


def no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def no_duplicates(pairs: list[tuple[str, Any]]) -> dict:
    fields: dict = {}
    for name, value in pairs:
        if name in fields:
            raise ValueError(f"the key {name!r:.80} is there twice")
        fields[name] = value
    return fields


class Fields:
    """The fields of a request that are there and not null. All errors are APIErrors that name the field."""

    def __init__(self, body: dict, known: set[str], prefix: str = ""):
        if unknown := sorted(body.keys() - known):
            name = prefix + unknown[0][:80]
            raise bad_request(f"the field {name} is not known here", param=name)
        self.prefix, self.values = prefix, {name: value for name, value in body.items() if value is not None}

    def get(self, name: str, kinds: type | tuple[type, ...], what: str, default: Any = None) -> Any:
        """A field of one of these types."""
        value = self.values.get(name, default)
        if name in self.values and (not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool)):
            raise bad_request(f"{self.prefix}{name} must be {what}, got {value!r:.80}", param=self.prefix + name)
        return value

    def flag(self, name: str) -> bool:
        return self.get(name, bool, "true or false", False)

    def number(self, name: str, low: int, high: int, default: int | None = None) -> Any:
        value = self.get(name, int, f"a whole number from {low} to {high}", default)
        if value is not None and not low <= value <= high:
            raise bad_request(f"{name} must be a whole number from {low} to {high}, got {value!s:.80}", param=name)
        return value

    def refuse(self, name: str, why: str) -> None:
        """Refuse a known field unless it is empty, and asks for nothing."""
        if self.values.get(name, "") not in ("", {}, []):
            raise bad_request(f"{name} is not supported: {why}", param=name)


def check_model(fields: Fields, served: str) -> None:
    model = fields.get("model", str, "a text")
    if model is None:
        raise bad_request(f"model is missing; this server has {served!r}", param="model")
    if model != served:
        message = f"the model {model!r:.80} does not exist here; this server has {served!r}"
        raise APIError(404, message, param="model", code="model_not_found")


def split_prompts(prompt: Any) -> list[str | list[int]]:
    """One prompt or many, as a list."""
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, list) and prompt:
        if all(type(item) is int for item in prompt):
            return [prompt]
        if all(isinstance(item, str) for item in prompt):
            return prompt
        if all(isinstance(item, list) and all(type(token) is int for token in item) for item in prompt):
            return prompt
    raise bad_request(
        f"prompt must be a text, a list of texts, a list of token ids, or a list of such lists, got {prompt!r:.80}",
        param="prompt",
    )


def stream_fields(fields: Fields) -> dict:
    """How the answer is to come."""
    stream, options = fields.flag("stream"), fields.get("stream_options", dict, "an object")
    if options is not None and not stream:
        raise bad_request("stream_options needs stream to be true", param="stream_options")
    options = Fields(options or {}, {"include_usage", "continuous_usage_stats"}, "stream_options.")
    usage, usage_in_chunks = options.flag("include_usage"), options.flag("continuous_usage_stats")
    if usage_in_chunks and not usage:
        name = "stream_options.continuous_usage_stats"
        raise bad_request(f"{name} needs stream_options.include_usage", param=name)
    return {"stream": stream, "usage": usage, "usage_in_chunks": usage_in_chunks}


def check_stops(fields: Fields, limits: Limits) -> None:
    """Raise APIError for more stop texts or tokens than the limits allow."""
    stop, token_ids = fields.values.get("stop", []), fields.values.get("stop_token_ids", [])
    texts = [stop] if isinstance(stop, str) else stop if isinstance(stop, list) else []
    longest = max((len(text) for text in texts if isinstance(text, str)), default=0)
    num_ids = len(token_ids) if isinstance(token_ids, list) else 0
    columns = [
        ("stop", len(texts), limits.max_stop_texts, "texts"),
        ("stop", longest, limits.max_stop_characters, "characters in one"),
        ("stop_token_ids", num_ids, limits.max_stop_token_ids, "token ids"),
    ]
    for name, number, most, what in columns:
        if number > most:
            raise bad_request(f"{name} has {number:,} {what}; the limit is {most:,}", param=name)


def sampling_params(stage: Stage, fields: Fields, limits: Limits, **more: Any) -> Any:
    """The SamplingParams of a request; `more` goes over its fields."""
    check_stops(fields, limits)
    values = {name: fields.values[name] for name in SAMPLING if name in fields.values} | more
    if values.get("top_k") == -1:
        values["top_k"] = 0  # vLLM's -1 keeps all tokens, as 0 does
    try:
        if "n" not in stage.SamplingParams.__dataclass_fields__ and values.pop("n", 1) != 1:
            raise ValueError(f"n must be 1, got {fields.values['n']!r:.80}: stage {stage.number} makes one completion")
        return stage.SamplingParams(**values)
    except ValueError as error:
        name = str(error).split()[0]
        raise bad_request(str(error), param=name if name in fields.values else None) from None


def job_fields(fields: Fields, num_prompts: int, limits: Limits) -> dict:
    """What completions and chats have in common."""
    fields.refuse("logit_bias", "this sampler adds nothing to logits")
    fields.get("user", str, "a text")  # it is for OpenAI's abuse detection; nothing is done with it here
    n = fields.number("n", 1, limits.max_choices, 1)
    if num_prompts * n > limits.max_choices:
        raise bad_request(f"{num_prompts} prompts and n {n} are more than {limits.max_choices} choices", param="n")
    priority = fields.number("priority", -(2**63), 2**63 - 1, 0)
    return {"n": n, "priority": priority, **stream_fields(fields)}


def completion_job(stage: Stage, tokenizer: Any, body: dict, served: str, limits: Limits, max_model_len: int) -> Job:
    """The job of a body of /v1/completions. Raises APIError."""
    fields = Fields(body, COMPLETION)
    check_model(fields, served)
    fields.refuse("suffix", "GPT-2 can't write towards a given end")
    prompts = split_prompts(fields.values.get("prompt", DEFAULT_PROMPT))
    common = job_fields(fields, len(prompts), limits)
    if fields.number("best_of", 1, limits.max_choices, common["n"]) != common["n"]:
        raise bad_request(f"best_of must be n, which is {common['n']}: no more are made than given", param="best_of")
    logprobs, echo = fields.number("logprobs", 0, MAX_LOGPROBS), fields.flag("echo")
    more = {"logprobs": logprobs, "max_tokens": fields.number("max_tokens", 0, MAX_TOKENS, DEFAULT_MAX_TOKENS)}
    if echo and logprobs is not None:
        more["prompt_logprobs"] = logprobs
    elif more["max_tokens"] == 0:
        more["prompt_logprobs"] = 0  # the engine makes nothing of a prompt but these
    params = sampling_params(stage, fields, limits, **more)
    return make_job(tokenizer, max_model_len, prompts, params=params, num_logprobs=logprobs, echo=echo, **common)


def check_length(prompt: str | list[int], max_model_len: int, param: str, name: str | None = None) -> None:
    """Raise APIError for what is so long that to look at it would take seconds."""
    if len(prompt) > max_model_len * MAX_TOKEN_CHARACTERS:
        length = f"{len(prompt):,} {'characters' if isinstance(prompt, str) else 'tokens'}"
        message = f"{name or param} has {length}, far more than the context of {max_model_len:,} tokens holds"
        raise bad_request(message, param=param, code=TOO_LONG)


def make_job(tokenizer: Any, max_model_len: int, prompts: list[str | list[int]], **fields: Any) -> Job:
    """A job with its prompts as token ids."""
    token_ids: list[list[int]] = []
    for i, prompt in enumerate(prompts):
        check_length(prompt, max_model_len, "messages" if fields.get("chat") else "prompt", f"prompt {i}")
        try:
            token_ids.append(tokenizer.encode(prompt) if isinstance(prompt, str) else prompt)
        except ValueError as error:
            raise bad_request(f"prompt {i}: {error}", param="prompt") from None
    return Job(prompts=prompts, token_ids=token_ids, max_model_len=max_model_len, **fields)
