"""From the fields of a request to a checked `Job`: its sampling parameters, and its prompts as tokens.

Nothing is computed here. `make_job` is shared by completions and chats.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..sampling import Sampling
from ..stages import Stage
from .errors import APIError, bad_request
from .fields import CHAT, COMPLETION, IDLE, MAX_TOKENS, SAMPLING, STREAM_OPTIONS, Field, Fields, Others
from .forms import form_of
from .limits import Limits

if TYPE_CHECKING:  # it needs Jinja, and completions do not
    from .chat import ChatTemplate

DEFAULT_MAX_TOKENS = 16  # OpenAI's default for completions; a chat may fill the context
MAX_TOKEN_CHARACTERS = 128  # GPT-2's longest token is a line of spaces
MAX_ID_CHARACTERS = 200  # of a request_id, which is repeated in each chunk
TOO_LONG = "context_length_exceeded"


@dataclass(eq=False)
class Served:
    """The served model, its name, and its limits.

    Attributes:
        engine: an AsyncLLM of this stage, or an LLM.
        model_name: clients' name for the model.
        limits: what one client may ask for; `max_queue_size` is the engine's.
        chat: turns chats into prompts; None: the model has no template.
        defaults: sampling fields for requests that leave them out.
    """

    stage: Stage
    engine: Any
    model_name: str
    limits: Limits
    chat: "ChatTemplate | None" = None
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        llm = getattr(self.engine, "llm", self.engine)
        self.tokenizer, self.max_model_len, self.vocab_size = llm.get_tokenizer(), llm.max_model_len, llm.vocab_size

    def fields(self, body: dict, known: Mapping[str, Field], others: Others = IDLE) -> Fields:
        """The fields of a request's body, checked."""
        return Fields(body, known, others=others, limits=self.limits)


@dataclass(frozen=True)
class Job:
    """A valid request.

    Attributes:
        fields, stream_options: the request's.
        prompts: as given, texts or token ids.
        token_ids: each prompt's.
        sampling: the sampling fields, the same for all prompts.
        params: the SamplingParams of the stage, without processors until the job is checked.
        num_logprobs: how many likely tokens to return with each; None: no log-probabilities.
        form_field: the field that asks for structured output; None: there is none.
    """

    fields: Fields
    stream_options: Fields
    prompts: list[str | list[int]]
    token_ids: list[list[int]]
    sampling: Sampling
    params: Any
    max_model_len: int
    num_logprobs: int | None
    form_field: str | None
    chat: bool = False

    @property
    def n(self) -> int:
        """Completions of every prompt; choice i * n + j of the answer is completion j of prompt i."""
        return self.fields["n"]

    @property
    def echo(self) -> bool:
        """Whether each completion begins with the prompt."""
        return self.fields.get("echo", False)

    @property
    def num_choices(self) -> int:
        return len(self.prompts) * self.n

    @property
    def num_prompt_tokens(self) -> int:
        return sum(map(len, self.token_ids))

    @property
    def num_tokens(self) -> int:
        """How many tokens it may have, including prompts. Each likely token that is returned with one of them counts as
        another: it takes as much memory, and longer to format."""
        each, of_prompt = (1 + (count or 0) for count in (self.num_logprobs, self.num_prompt_logprobs))
        lengths = [(len(ids), max(0, self.max_model_len - len(ids))) for ids in self.token_ids]
        return self.n * sum(of_prompt * num + each * min(self.params.max_tokens, room) for num, room in lengths)

    @property
    def num_prompt_logprobs(self) -> int | None:
        """As `num_logprobs`, for the tokens of prompts. Before stage 4 there are none."""
        return getattr(self.params, "prompt_logprobs", None)


def completion_job(served: Served, body: dict) -> Job:
    """The job for a body of /v1/completions. Raises APIError."""
    fields = served.fields(body, COMPLETION)
    check_model(fields, served.model_name)
    logprobs = number_of_logprobs(served, fields, "logprobs")
    max_tokens = fields.get("max_tokens", served.defaults.get("max_tokens", DEFAULT_MAX_TOKENS))
    of_prompt = logprobs if fields["echo"] else None
    asked = {"max_tokens": max_tokens, "logprobs": logprobs, "prompt_logprobs": of_prompt}
    return make_job(served, fields, split_prompts(fields["prompt"]), asked)


def chat_job(served: Served, body: dict) -> Job:
    """The job for a body of /v1/chat/completions. Raises APIError."""
    from .chat import chat_prompt

    fields = served.fields(body, CHAT, {**IDLE, "echo": ((False,), "an answer contains only the new message")})
    check_model(fields, served.model_name)
    logprobs = number_of_logprobs(served, fields, "top_logprobs") or 0
    if logprobs and not fields["logprobs"]:
        raise bad_request("top_logprobs needs logprobs to be true", param="top_logprobs")
    limits = {fields[name] for name in ("max_tokens", "max_completion_tokens") if name in fields}
    if len(limits) > 1:
        raise bad_request("max_tokens and max_completion_tokens are the same limit: give only one", param="max_tokens")
    max_tokens = limits.pop() if limits else served.defaults.get("max_tokens", MAX_TOKENS)
    asked = {"max_tokens": max_tokens, "logprobs": logprobs if fields["logprobs"] else None}
    return make_job(served, fields, [chat_prompt(fields, served.chat)], asked, chat=True)


def make_job(
    served: Served,
    fields: Fields,
    prompts: list[str | list[int]],
    asked: dict[str, int | None],
    *,
    chat: bool = False,
) -> Job:
    """The job for these prompts. asked: sampling fields that completions and chats read differently; its
    `prompt_logprobs` is a minimum. Raises APIError."""
    n, most = fields["n"], served.limits.max_choices
    if len(prompts) * n > most:
        raise bad_request(f"{len(prompts)} prompts and n {n} are more than {most} choices", param="n")
    check_lengths(fields, served.limits)
    own = number_of_logprobs(served, fields, "prompt_logprobs")
    if own is not None:
        asked = {**asked, "prompt_logprobs": max(own, asked.get("prompt_logprobs") or 0)}
    form_field, form = form_of(fields) or (None, None)
    given: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    given["structured_outputs"] = form or served.defaults.get("structured_outputs")
    sampling = sampling_of(served, fields, given, form_field)
    kept = [cut(served, sampling, prompt, i, chat) for i, prompt in enumerate(prompts)]
    return Job(
        fields=fields,
        stream_options=read_stream_options(fields),
        prompts=[prompt for prompt, _ in kept],
        token_ids=[token_ids for _, token_ids in kept],
        sampling=sampling,
        params=sampling.params,
        max_model_len=served.max_model_len,
        num_logprobs=sampling.params.logprobs,
        form_field=form_field,
        chat=chat,
    )


# --- Checks of single fields ------------------------------------------------------------------------------------------


def check_model(fields: Fields, name: str) -> None:
    if "model" not in fields:
        raise bad_request(f"model is missing; this server has {name!r}", param="model")
    if fields["model"] != name:
        message = f"the model {fields['model']!r:.80} does not exist here; this server has {name!r}"
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
        f"prompt must be a string, a list of strings, a list of token ids, or a list of such lists, got {prompt!r:.80}",
        param="prompt",
    )


def check_lengths(fields: Fields, limits: Limits) -> None:
    """Raise APIError for a field with more strings, characters or tokens than the limits allow."""
    columns = [("request_id", len(fields["request_id"] or ""), MAX_ID_CHARACTERS, "characters")]
    for name in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
        given = fields[name]
        num_ids = len(given) if isinstance(given, list | dict) else 0
        columns.append((name, num_ids, limits.max_token_ids, "token ids"))
    for name in ("stop", "bad_words"):
        given = fields[name]
        texts = [given] if isinstance(given, str) else given if isinstance(given, list) else []
        longest = max((len(text) for text in texts if isinstance(text, str)), default=0)
        columns.append((name, len(texts), limits.max_stop_texts, "strings"))
        columns.append((name, longest, limits.max_stop_characters, "characters in one"))
    for name, number, most, what in columns:
        if number > most:
            raise bad_request(f"{name} has {number:,} {what}; the limit is {most:,}", param=name)


def read_stream_options(fields: Fields) -> Fields:
    if fields["stream_options"] and not fields["stream"]:
        raise bad_request("stream_options needs stream to be true", param="stream_options")
    if "prompt_logprobs" in fields and fields["stream"]:
        raise bad_request("prompt_logprobs can't be streamed: ask for a whole answer", param="prompt_logprobs")
    others: Others = {"include_obfuscation": ((False,), "no chunk is padded")}
    return Fields(fields["stream_options"], STREAM_OPTIONS, "stream_options.", others)


def number_of_logprobs(served: Served, fields: Fields, name: str) -> int | None:
    """How many likely tokens to return with each; vLLM's -1 means all."""
    number, most = fields[name], served.limits.max_logprobs
    if number is None:
        return None
    most = served.vocab_size if most == -1 else most
    wanted = served.vocab_size if number == -1 else number
    if not 0 <= wanted <= most:
        all_of_them = f", all {wanted:,}" if number == -1 else ""
        message = f"{name} must be a whole number from 0 to {most:,} (--max-logprobs), got {number!s:.80}{all_of_them}"
        raise bad_request(message, param=name)
    return wanted


# --- Sampling and prompts ---------------------------------------------------------------------------------------------


def sampling_of(served: Served, fields: Fields, asked: dict[str, Any], form_field: str | None) -> Sampling:
    """The sampling fields of a request; `asked` overrides them."""
    stage = served.stage
    values = {**served.defaults, **{name: fields[name] for name in SAMPLING if name in fields}, **asked}
    if values.get("top_k") == -1:
        values["top_k"] = 0  # vLLM's -1 keeps all tokens, as 0 does
    try:
        known = stage.SamplingParams.__dataclass_fields__
        if "n" not in known and values.pop("n", 1) != 1:
            raise ValueError(f"n must be 1, got {fields['n']!r:.80}: stage {stage.number} makes one completion")
        if "prompt_logprobs" in values.keys() - known.keys():
            raise ValueError(f"stage {stage.number} computes no log-probabilities of prompts: use a later stage")
        return Sampling(stage, **values)
    except ValueError as error:
        raise bad_request(str(error), param=field_of(error, fields, form_field)) from None


def field_of(error: ValueError, fields: Fields, form_field: str | None) -> str | None:
    """The field of a request that an error is about: its first word. None if that is not a field."""
    name = str(error).split()[0]
    if name.startswith("structured_outputs"):
        return form_field
    return name if name in fields else None


def cut(
    served: Served, sampling: Sampling, prompt: str | list[int], number: int, chat: bool
) -> tuple[str | list[int], list[int]]:
    """A prompt and its token ids, without those at the beginning that `truncate_prompt_tokens` removes."""
    check_length(prompt, served.max_model_len, "messages" if chat else "prompt", f"prompt {number}")
    try:
        token_ids = served.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        kept = sampling.last_tokens(token_ids, served.max_model_len)
    except ValueError as error:
        name = "truncate_prompt_tokens" if str(error).startswith("truncate") else "prompt"
        raise bad_request(f"prompt {number}: {error}", param=name) from None
    return (kept if len(kept) < len(token_ids) else prompt), kept


def check_length(prompt: str | list[int], max_model_len: int, param: str, name: str | None = None) -> None:
    """Raise APIError for a prompt so long that even looking at it would take seconds."""
    if len(prompt) > max_model_len * MAX_TOKEN_CHARACTERS:
        length = f"{len(prompt):,} {'characters' if isinstance(prompt, str) else 'tokens'}"
        raise too_long(max_model_len, f"{name or param} has {length}, far more than fit", param)


def too_long(max_model_len: int, message: str, param: str) -> APIError:
    """The error for more tokens than the context has, in the words and with the code that clients recognize."""
    message = f"This model's maximum context length is {max_model_len:,} tokens. However, {message}"
    return bad_request(message, param=param, code=TOO_LONG)
