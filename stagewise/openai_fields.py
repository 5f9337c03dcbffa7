"""Fields of OpenAI's and vLLM's requests on which nothing here acts: where each asks for nothing it is accepted, where
it asks for something it is refused by name. The server, batch files and `--input` share this list.

Sources: OpenAI's API reference, "Create chat completion" and "Create completion"; vLLM's documentation, "OpenAI-
compatible server", extra parameters.
"""

from collections.abc import Mapping
from typing import Any

# Field -> what it may be, a type or some values, and why it can't be anything else.
Others = Mapping[str, tuple[type | tuple, str]]

NO_TOOLS = "only chats call tools"
OLD_TOOLS = "`tools` and `tool_choice` have taken its place"
ONLY_TEXT = "this model reads and writes text alone"
IDLE: Others = {
    # Notes of the caller, and hints for machines that are not there: nothing follows from them.
    "user": (str, "it must be a text"),
    "safety_identifier": (str, "it must be a text"),
    "prompt_cache_key": (str, "it must be a text"),
    "prompt_cache_retention": (str, "it must be a text"),
    "metadata": (dict, "it must be an object"),
    "guided_decoding_backend": (str, "it must be a text"),  # vLLM's; any library may compile a form
    "cache_control": (dict, "it must be an object"),
    "reasoning_effort": (str, "it must be a text"),  # of models that reason
    "store": ((False,), "no answer is kept here"),
    "service_tier": (("auto", "default"), "this server has one tier"),
    # What this model can't do.
    "suffix": (("",), "GPT-2 can't write towards a given end"),
    "modalities": ((["text"],), ONLY_TEXT),
    "audio": ((), ONLY_TEXT),
    "mm_processor_kwargs": (({},), ONLY_TEXT),
    "prompt_embeds": ((), "a prompt is a text, or token ids"),
    "prediction": ((), "no prediction is made use of"),
    "web_search_options": ((), "this model searches nothing"),
    "include_reasoning": (bool, "it must be true or false"),
    "thinking_token_budget": ((-1,), "this model does not reason"),
    "typical_p": ((1, 1.0), "take top_p or min_p"),
    "top_a": ((0, 0.0), "take top_p or min_p"),
    "tfs": ((1, 1.0), "take top_p or min_p"),
    "verbosity": (("medium",), "how long an output gets is up to the model, and to max_tokens"),
    "tools": (([],), NO_TOOLS),
    "tool_choice": (("none", "auto"), NO_TOOLS),
    "parallel_tool_calls": (bool, "it must be true or false"),
    "functions": (([],), OLD_TOOLS),
    "function_call": (("none", "auto"), OLD_TOOLS),
    "logits_processors": (([],), "no code of a request runs here"),
    "documents": (([],), "put them into the messages"),
    "chat_template": ((), "who starts the server names it, with --chat-template"),
    "chat_template_kwargs": (({},), "only chats have a template"),
    "cache_salt": ((), "all requests share one prefix cache"),
    "kv_transfer_params": (({},), "the KV cache stays on this machine"),
    "vllm_xargs": (({},), "there are no plug-ins"),
    # What is so anyway.
    "add_special_tokens": (bool, "it must be true or false"),  # GPT-2 adds none
    "spaces_between_special_tokens": (bool, "it must be true or false"),  # GPT-2's are written without
    "detokenize": ((True,), "an answer is text"),
}


class FieldError(ValueError):
    """A field that is refused, by its name."""

    def __init__(self, name: str, message: str):
        super().__init__(message)
        self.name = name


def asks_for_nothing(name: str, value: Any, others: Others = IDLE, prefix: str = "") -> bool:
    """Whether a field is one of these others, at a value where it asks for nothing; False if it is none of them.

    Raises FieldError if it asks for something.
    """
    if name not in others:
        return False
    allowed, why = others[name]
    if isinstance(allowed, type):
        fine = isinstance(value, allowed)
    else:
        fine = any(type(value) is type(one) and value == one for one in allowed)  # for 1 is not True
    if not fine:
        raise FieldError(prefix + name, f"{prefix}{name} {value!r:.80} is not supported: {why}")
    return True
