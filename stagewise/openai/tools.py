"""Tools: functions that an answer calls. The caller runs them, and sends their results with the next request.

With `tool_choice` "required", or a function's name, structured output forces the call, so that any model makes it. With
"auto" the model decides, in the format of the Hermes and Qwen models, which the chat template explains to it: a call is
`<tool_call>{"name": …, "arguments": {…}}</tool_call>` in its text.
"""

import json
import uuid
from dataclasses import dataclass
from typing import Any

from .errors import bad_request
from .fields import ANY, TEXT, Field, Fields
from .forms import form_of

BEGIN, END = "<tool_call>", "</tool_call>"
MAX_TOOLS = 128  # OpenAI's
FUNCTION = {"name": TEXT, "description": ANY, "parameters": Field(dict, "a JSON schema"), "strict": ANY}


@dataclass(frozen=True)
class Tools:
    """What an answer may call.

    Attributes:
        given: as in the request, for the template.
        parameters: each function's JSON schema.
        choice: "auto", "required", or a function's name.
        parallel: whether it may call more than one.
    """

    given: list[dict]
    parameters: dict[str, dict]
    choice: str
    parallel: bool

    @property
    def is_named(self) -> bool:
        return self.choice in self.parameters

    @property
    def form(self) -> dict | None:
        """The structured_outputs that an answer must have."""
        if self.is_named:
            return {"json": self.parameters[self.choice]}
        if self.choice == "auto":
            return None
        # Each function's schema is under its name, and its references must point there.
        calls = [call_of(name, {"$ref": f"#/$defs/{pointer(name)}"}) for name in self.parameters]
        schemas = {name: moved(schema, f"#/$defs/{pointer(name)}") for name, schema in self.parameters.items()}
        most = {} if self.parallel else {"maxItems": 1}
        return {"json": {"type": "array", "minItems": 1, **most, "items": {"anyOf": calls}, "$defs": schemas}}


def call_of(name: str, arguments: dict) -> dict:
    fields = {"name": {"const": name}, "arguments": arguments}
    return {"type": "object", "properties": fields, "required": [*fields], "additionalProperties": False}


def pointer(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def moved(schema: Any, place: str) -> Any:
    """A schema to be embedded at this place in another one: its references into itself point there."""
    if isinstance(schema, list):
        return [moved(one, place) for one in schema]
    if not isinstance(schema, dict):
        return schema
    new = {key: moved(value, place) for key, value in schema.items()}
    if isinstance(to := schema.get("$ref"), str) and to.startswith("#"):
        new["$ref"] = place + to[1:]
    return new


def tools_of(fields: Fields) -> Tools | None:
    """What a request lets its answer call; None: nothing. Raises APIError."""
    given, parallel, choice = fields["tools"], fields["parallel_tool_calls"], fields["tool_choice"]
    if len(given) > MAX_TOOLS:
        raise bad_request(f"tools has {len(given)} functions; the limit is {MAX_TOOLS}", param="tools")
    parameters: dict[str, dict] = {}
    for i, tool in enumerate(given):
        name, schema = read_tool(tool, f"tools[{i}]")
        if name in parameters:
            raise bad_request(f"tools[{i}].function.name {name!r:.80} appears twice", param="tools")
        parameters[name] = schema
    if isinstance(choice, dict):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) and choice.get("type") == "function" else None
        if not isinstance(name, str) or name not in parameters:
            raise bad_request(f"tool_choice names a function that is not in tools: {choice!r:.80}", param="tool_choice")
        choice = name
    elif choice not in (None, "none", "auto", "required"):
        kinds = '"none", "auto", "required" or {"type": "function", "function": {"name": …}}'
        raise bad_request(f"tool_choice must be {kinds}, got {choice!r:.80}", param="tool_choice")
    elif choice == "required" and not parameters:
        raise bad_request("tool_choice is required, but there are no tools", param="tool_choice")
    if choice == "none" or not parameters:
        return None
    tools = Tools(given, parameters, choice or "auto", parallel)
    if tools.form is not None and form_of(fields) is not None:
        raise bad_request("an answer that must call a tool can't have another form", param="tool_choice")
    return tools


def read_tool(tool: Any, where: str) -> tuple[str, dict]:
    """A function's name, and the JSON schema of its arguments."""
    if not isinstance(tool, dict) or tool.get("type") != "function" or not isinstance(tool.get("function"), dict):
        raise bad_request(f'{where} must be {{"type": "function", "function": {{…}}}}, got {tool!r:.80}', param="tools")
    fields = Fields(tool["function"], FUNCTION, f"{where}.function.")
    if not fields["name"]:
        raise bad_request(f"{where}.function.name is missing", param="tools")
    return fields["name"], fields["parameters"] or {"type": "object", "properties": {}, "additionalProperties": False}


class CallReader:
    """Finds the calls in an answer as it streams.

    Attributes:
        num_calls: so far.
    """

    def __init__(self, tools: Tools):
        self.tools, self.num_calls, self._text = tools, 0, ""

    def read(self, text: str, ended: bool) -> tuple[str, list[dict]]:
        """Add a piece; returns new text for the reader, and new calls, as in a chunk's `tool_calls`. An incomplete call
        at the end of the answer is text: nothing gets lost."""
        if self.tools.is_named:
            return "", self._arguments(text)
        self._text += text
        said, calls = self._marked() if self.tools.choice == "auto" else self._listed()
        if ended:
            rest = self._text if self.tools.choice == "auto" or self._text.strip(" \t\n]") else ""
            said, self._text = said + rest, ""
        return said, calls

    def _arguments(self, text: str) -> list[dict]:
        """For a named function: its arguments are the whole answer, and come piece by piece."""
        if not self.num_calls:
            return [self._call(self.tools.choice, text)]
        return [{"index": 0, "function": {"arguments": text}}] if text else []

    def _listed(self) -> tuple[str, list[dict]]:
        """For "required": the complete calls in a JSON list."""
        calls = []
        while (start := self._text.find("{")) >= 0:
            try:
                call, end = json.JSONDecoder().raw_decode(self._text, start)
                arguments = to_text(call["arguments"])
            except RecursionError:
                message = "the arguments of a call are nested too deeply to be read"
                raise bad_request(message, code="generation_failed") from None
            except ValueError:
                break
            calls.append(self._call(call["name"], arguments))
            self._text = self._text[end:]
        return "", calls

    def _marked(self) -> tuple[str, list[dict]]:
        """For "auto": the complete calls, and the text up to where one begins or could begin."""
        said, calls = "", []
        while BEGIN in self._text and END in self._text.partition(BEGIN)[2]:
            before, _, rest = self._text.partition(BEGIN)
            inside, _, self._text = rest.partition(END)
            call = read_call(inside)
            known = call is not None and call["name"] in self.tools.parameters and (self.tools.parallel or not calls)
            said += before if known else before + BEGIN + inside + END
            calls += [self._call(call["name"], call["arguments"])] if call is not None and known else []
        at = self._text.find(BEGIN)
        if at < 0:
            at = next((i for i in range(len(self._text)) if BEGIN.startswith(self._text[i:])), len(self._text))
        said, self._text = said + self._text[:at], self._text[at:]
        return said.strip() if calls else said, calls

    def _call(self, name: str, arguments: str) -> dict:
        self.num_calls += 1
        function = {"name": name, "arguments": arguments}
        return {
            "index": self.num_calls - 1,
            "id": f"call_{uuid.uuid4().hex[:24]}",
            "type": "function",
            "function": function,
        }


def read_call(text: str) -> dict | None:
    """A call written as JSON, its arguments as text; None if it is not one."""
    try:
        call = json.loads(text)
        fits = isinstance(call, dict) and isinstance(call.get("name"), str) and isinstance(call.get("arguments"), dict)
        return {**call, "arguments": to_text(call["arguments"])} if fits else None
    except (ValueError, RecursionError):
        return None


def to_text(arguments: Any) -> str:
    return json.dumps(arguments, ensure_ascii=False)
