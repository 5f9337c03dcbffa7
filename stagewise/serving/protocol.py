"""From the JSON of a request to a checked `Job`: OpenAI's fields and vLLM's further ones, each of them used or refused.

A field that is left out and one that is null are the same. Nothing is computed here, and nothing is ignored: a field
that is not known is an error that names it, for a caller who sends it expects something of it. (Where the server is
told --ignore-unknown-fields, the log names it.) Those that ask for nothing are in ../openai_fields.py.
"""

import json
from dataclasses import dataclass
from typing import Any

from ..beams import BEAM_FIELDS, Beams, drawing, read_beams
from ..forms import FORM_FIELDS, form_of
from ..openai_fields import IDLE, FieldError, Others, asks_for_nothing
from ..sampling import Sampling
from ..stages import Stage
from ..strict_json import no_duplicates
from .errors import APIError, bad_request
from .limits import Limits

SAMPLING = (
    *("n", "temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "stop", "max_tokens"),
    *("logit_bias", "top_k", "min_p", "repetition_penalty", "ignore_eos", "min_tokens", "stop_token_ids"),
    *("bad_words", "allowed_token_ids", "include_stop_str_in_output", "skip_special_tokens", "truncate_prompt_tokens"),
    "structured_outputs",
)  # each is a field of Sampling, which checks it
ANSWER = {"stream", "stream_options", "logprobs", "prompt_logprobs", "request_id"}
ANSWER |= {"return_token_ids", "return_tokens_as_token_ids"}
BEAMS = {"use_beam_search", "length_penalty", "early_stopping"}
COMMON = {"model", "priority", "truncation_side", *ANSWER, *SAMPLING, *BEAMS, *FORM_FIELDS}
COMPLETION = COMMON | {"prompt", "best_of", "echo"}
TURNS = {"messages", "add_generation_prompt", "continue_final_message", "chat_template_kwargs"}
TOOL_FIELDS = {"tools", "tool_choice", "parallel_tool_calls"}
CHAT = COMMON | TURNS | TOOL_FIELDS | {"max_completion_tokens", "top_logprobs"}

DEFAULT_PROMPT = "<|endoftext|>"  # OpenAI's: as if a new document began
MAX_TOKENS = 2**31 - 1  # the context ends an output long before
DEFAULT_MAX_TOKENS = 16  # OpenAI's, for completions; a chat may fill the context
MAX_TOKEN_CHARACTERS = 128  # GPT-2's longest token is a line of spaces
TOO_LONG = "context_length_exceeded"
MAX_DEPTH = 64  # of lists and objects in one another
MAX_ID_CHARACTERS = 200  # of a request_id, which comes back in each chunk


@dataclass(frozen=True)
class Served:
    """The model that is served, under which name, and within which limits."""

    stage: Stage
    tokenizer: Any
    name: str
    max_model_len: int
    vocab_size: int
    limits: Limits
    defaults: dict[str, Any]  # of sampling, from the model's generation_config.json
    ignores_unknown: bool = False

    def fields(self, body: dict, known: set[str], others: Others = IDLE) -> "Fields":
        """Those of a request."""
        return Fields(body, known, others=others, ignored=[] if self.ignores_unknown else None)


@dataclass(frozen=True)
class Job:
    """A request that was found right.

    Attributes:
        prompts: as they were given, texts or token ids.
        token_ids: of every prompt.
        sampling: the fields of every prompt.
        params: the SamplingParams of the stage, without processors until the job is checked.
        n: completions of every prompt; choice i * n + j of the answer is completion j of prompt i.
        num_logprobs: how many likely tokens stand beside each; None: no log-probabilities.
        request_id: the end of the answer's id; None: any.
        prompt_logprobs: tell those of the prompt's tokens.
        token_ids_told: tell the token ids.
        tokens_as_ids: in log-probabilities tokens are called by their ids.
        beams: search for the n best completions.
        echo: put the prompt before each completion.
        tools: what the answer may call; None: nothing.
        form_field: the field that asks for a form of the output; None: there is none.
        ignored: fields that the server does not know, where it is told to ignore them.
        usage, usage_in_chunks: a stream ends with the counts of tokens; each chunk has those so far.
    """

    prompts: list[str | list[int]]
    token_ids: list[list[int]]
    sampling: Sampling
    params: Any
    max_model_len: int
    n: int
    priority: int
    stream: bool
    usage: bool
    usage_in_chunks: bool
    num_logprobs: int | None
    request_id: str | None = None
    prompt_logprobs: bool = False
    token_ids_told: bool = False
    tokens_as_ids: bool = False
    beams: Beams | None = None
    echo: bool = False
    chat: bool = False
    tools: Any = None
    form_field: str | None = None
    ignored: tuple[str, ...] = ()

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
        if not isinstance(body, dict):
            raise bad_request(f"{what} must be a JSON object, got {body!r:.80}")
        check_depth(body)
    except RecursionError:
        raise bad_request(f"{what} is not valid JSON: it is nested too deeply, over {MAX_DEPTH} levels") from None
    except ValueError as error:  # UnicodeDecodeError and JSONDecodeError too
        raise bad_request(f"{what} is not valid JSON: {error}") from None
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


class Fields:
    """The fields of a request that are there and not null. All errors are APIErrors that name the field.

    Args:
        known: what is acted on.
        prefix: stands before the names in errors.
        others: what may be there beside, see ../openai_fields.py.
        ignored: a list that gets the names of all further fields; None: they are refused.
    """

    def __init__(
        self,
        body: dict,
        known: set[str],
        prefix: str = "",
        others: Others = {},  # noqa: B006
        ignored: list[str] | None = None,
    ):
        self.ignored = ignored
        given = {name: value for name, value in body.items() if value is not None}
        for name in sorted(given.keys() - known):
            try:
                if not asks_for_nothing(name, given[name], others, prefix):
                    raise FieldError(prefix + name[:80], f"the field {prefix}{name:.80} is not known here")
            except FieldError as error:
                if ignored is None:
                    raise bad_request(str(error), param=error.name) from None
                ignored.append(prefix + name[:80])
        self.prefix, self.values = prefix, {name: value for name, value in given.items() if name in known}

    def get(self, name: str, kinds: type | tuple[type, ...], what: str, default: Any = None) -> Any:
        """A field of one of these types."""
        value = self.values.get(name, default)
        if name in self.values and (not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool)):
            raise bad_request(f"{self.prefix}{name} must be {what}, got {value!r:.80}", param=self.prefix + name)
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        return self.get(name, bool, "true or false", default)

    def number(self, name: str, low: int, high: int, default: int | None = None) -> Any:
        value = self.get(name, int, f"a whole number from {low} to {high}", default)
        if value is not None and not low <= value <= high:
            raise bad_request(f"{name} must be a whole number from {low} to {high}, got {value!s:.80}", param=name)
        return value


def check_model(fields: Fields, name: str) -> None:
    model = fields.get("model", str, "a text")
    if model is None:
        raise bad_request(f"model is missing; this server has {name!r}", param="model")
    if model != name:
        message = f"the model {model!r:.80} does not exist here; this server has {name!r}"
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
    if options and not stream:
        raise bad_request("stream_options needs stream to be true", param="stream_options")
    others: Others = {"include_obfuscation": ((False,), "no chunk is padded")}
    known = {"include_usage", "continuous_usage_stats"}
    options = Fields(options or {}, known, "stream_options.", others, fields.ignored)
    usage, in_chunks = options.flag("include_usage"), options.flag("continuous_usage_stats")
    return {"stream": stream, "usage": usage, "usage_in_chunks": usage and in_chunks}  # without usage, as vLLM, in none


def check_lengths(fields: Fields, limits: Limits) -> None:
    """Raise APIError for more texts or tokens in one of these lists than the limits allow."""
    columns = []
    for name in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
        given = fields.values.get(name)
        num_ids = len(given) if isinstance(given, list | dict) else 0
        columns.append((name, num_ids, limits.max_token_ids, "token ids"))
    for name in ("stop", "bad_words"):
        given = fields.values.get(name, [])
        texts = [given] if isinstance(given, str) else given if isinstance(given, list) else []
        longest = max((len(text) for text in texts if isinstance(text, str)), default=0)
        columns.append((name, len(texts), limits.max_stop_texts, "texts"))
        columns.append((name, longest, limits.max_stop_characters, "characters in one"))
    for name, number, most, what in columns:
        if number > most:
            raise bad_request(f"{name} has {number:,} {what}; the limit is {most:,}", param=name)


def sampling_of(served: Served, fields: Fields, beams: Beams | None, **more: Any) -> Sampling:
    """The sampling fields of a request; `more` goes over them."""
    check_lengths(fields, served.limits)
    if beams is not None and not served.stage.has_beams:
        raise bad_request(f"use_beam_search: stage {served.stage.number} has no beams", param="use_beam_search")
    stage, given = served.stage, {name: fields.values[name] for name in SAMPLING if name in fields.values}
    form_field, form = asked_form(fields) or (None, None)
    given.pop("structured_outputs", None)  # `form` has it
    values = served.defaults | given | ({} if form is None else {"structured_outputs": form}) | more
    if values.get("top_k") == -1:
        values["top_k"] = 0  # vLLM's -1 keeps all tokens, as 0 does
    try:
        if "n" not in stage.SamplingParams.__dataclass_fields__ and values.pop("n", 1) != 1:
            raise ValueError(f"n must be 1, got {fields.values['n']!r:.80}: stage {stage.number} makes one completion")
        sampling = Sampling(stage, **values)
        if beams is not None and (idle := drawing(sampling)):
            raise ValueError(f"{idle[0]} can't go with use_beam_search, which draws nothing")
        return sampling
    except ValueError as error:
        name = str(error).split()[0]
        if name.startswith("structured_outputs"):
            name = form_field or ("tools" if "tools" in fields.values else name)
        raise bad_request(str(error), param=name if name in fields.values else None) from None


def asked_form(fields: Fields) -> tuple[str, Any] | None:
    """As `form_of`. Raises APIError."""
    try:
        return form_of(fields.values)
    except FieldError as error:
        raise bad_request(str(error), param=error.name) from None


def number_of_logprobs(served: Served, fields: Fields, name: str) -> int | None:
    """How many likely tokens are to stand beside each; vLLM's -1 means all."""
    most = served.limits.max_logprobs
    number = fields.get(name, int, "a whole number")
    if number is None:
        return None
    most = served.vocab_size if most == -1 else most
    wanted = served.vocab_size if number == -1 else number
    if not 0 <= wanted <= most:
        all_of_them = f", all {wanted:,}" if number == -1 else ""
        message = f"{name} must be a whole number from 0 to {most:,} (--max-logprobs), got {number!s:.80}{all_of_them}"
        raise bad_request(message, param=name)
    return wanted


def prompt_logprobs(served: Served, fields: Fields, least: int | None = None) -> dict[str, int]:
    """The field, or what another one needs of it (for `echo`, and because with `max_tokens` 0 the engine makes nothing
    of a prompt but these)."""
    asked = [one for one in (number_of_logprobs(served, fields, "prompt_logprobs"), least) if one is not None]
    return {"prompt_logprobs": max(asked)} if asked else {}


def job_fields(fields: Fields, num_prompts: int, limits: Limits) -> dict:
    """What completions and chats have in common."""
    n = fields.number("n", 1, limits.max_choices, 1)
    if num_prompts * n > limits.max_choices:
        raise bad_request(f"{num_prompts} prompts and n {n} are more than {limits.max_choices} choices", param="n")
    priority = fields.number("priority", -(2**63), 2**63 - 1, 0)
    request_id = fields.get("request_id", str, "a text")
    if len(request_id or "") > MAX_ID_CHARACTERS:
        message = f"request_id has {len(request_id):,} characters; the limit is {MAX_ID_CHARACTERS}"
        raise bad_request(message, param="request_id")
    common = {"n": n, "priority": priority, "request_id": request_id, **stream_fields(fields)}
    told = "prompt_logprobs" in fields.values
    if told and common["stream"]:
        raise bad_request("prompt_logprobs are not in streams: ask for a whole answer", param="prompt_logprobs")
    ids = {
        "token_ids_told": fields.flag("return_token_ids"),
        "tokens_as_ids": fields.flag("return_tokens_as_token_ids"),
    }
    side = fields.get("truncation_side", str, '"left" or "right"', "left")
    if side not in ("left", "right"):
        raise bad_request(f'truncation_side must be "left" or "right", got {side!r:.80}', param="truncation_side")
    form = asked_form(fields)
    beams = beam_fields(fields, n)
    if beams is not None and num_prompts * n > limits.max_beams:
        message = f"use_beam_search with {num_prompts} prompts and n {n} is over the limit of {limits.max_beams} beams"
        raise bad_request(f"{message} (--max-beams)", param="n")
    common |= {"prompt_logprobs": told, "beams": beams, "truncated_left": side == "left"}
    return {**common, **ids, "form_field": form and form[0], "ignored": tuple(fields.ignored or ())}


def beam_fields(fields: Fields, n: int) -> Beams | None:
    """The beam search that is asked for."""
    try:
        return read_beams({name: fields.values[name] for name in BEAM_FIELDS if name in fields.values}, n)
    except ValueError as error:
        raise bad_request(str(error), param=str(error).split()[0]) from None


def completion_job(served: Served, body: dict) -> Job:
    """The job of a body of /v1/completions. Raises APIError."""
    fields = served.fields(body, COMPLETION)
    check_model(fields, served.name)
    prompts = split_prompts(fields.values.get("prompt", DEFAULT_PROMPT))
    common = job_fields(fields, len(prompts), served.limits)
    if fields.number("best_of", 1, served.limits.max_choices, common["n"]) != common["n"]:
        raise bad_request(f"best_of must be n, which is {common['n']}: no more are made than given", param="best_of")
    logprobs, echo = number_of_logprobs(served, fields, "logprobs"), fields.flag("echo")
    most = served.defaults.get("max_tokens", DEFAULT_MAX_TOKENS)
    more = {"logprobs": logprobs, "max_tokens": fields.number("max_tokens", 0, MAX_TOKENS, most)}
    least = 0 if more["max_tokens"] == 0 else None
    more |= prompt_logprobs(served, fields, logprobs if echo and logprobs is not None else least)
    sampling = sampling_of(served, fields, common["beams"], **more)
    return make_job(served, prompts, sampling, num_logprobs=logprobs, echo=echo, **common)


def too_long(max_model_len: int, message: str, param: str) -> APIError:
    """The error for more tokens than the context has. Its words and its code are those by which clients know it."""
    message = f"This model's maximum context length is {max_model_len:,} tokens. However, {message}"
    return bad_request(message, param=param, code=TOO_LONG)


def check_length(prompt: str | list[int], max_model_len: int, param: str, name: str | None = None) -> None:
    """Raise APIError for what is so long that to look at it would take seconds."""
    if len(prompt) > max_model_len * MAX_TOKEN_CHARACTERS:
        length = f"{len(prompt):,} {'characters' if isinstance(prompt, str) else 'tokens'}"
        raise too_long(max_model_len, f"{name or param} has {length}, far more than that holds", param)


def make_job(
    served: Served, prompts: list[str | list[int]], sampling: Sampling, truncated_left: bool, **fields: Any
) -> Job:
    """A job with its prompts as token ids. What is too much of one goes at its beginning (left), or at its end."""
    turn = slice(None, None, 1 if truncated_left else -1)
    token_ids: list[list[int]] = []
    for i, prompt in enumerate(prompts):
        check_length(prompt, served.max_model_len, "messages" if fields.get("chat") else "prompt", f"prompt {i}")
        try:
            ids = served.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
            token_ids.append(sampling.last_tokens(ids[turn], served.max_model_len)[turn])
        except ValueError as error:
            name = "truncate_prompt_tokens" if str(error).startswith("truncate") else "prompt"
            raise bad_request(f"prompt {i}: {error}", param=name) from None
        if len(token_ids[-1]) < len(ids):
            prompts = [*prompts[:i], token_ids[-1], *prompts[i + 1 :]]
    more = {"params": sampling.params, "max_model_len": served.max_model_len, **fields}
    return Job(prompts=prompts, token_ids=token_ids, sampling=sampling, **more)
