"""A request's structured output, from OpenAI's field, `response_format`, or vLLM's, `structured_outputs`."""

from collections.abc import Mapping
from typing import Any

from .errors import bad_request

FORM_FIELDS = ("response_format", "structured_outputs")


def form_of(values: Mapping[str, Any]) -> tuple[str, Any] | None:
    """The field that asks for a form, and the form as structured_outputs; None if no field does. Raises APIError."""
    asked = {name: as_structured(name, values[name]) for name in FORM_FIELDS if values.get(name) is not None}
    asked = {name: form for name, form in asked.items() if form is not None}
    if len(asked) > 1:
        name = [*asked][-1]
        raise bad_request(f"{' and '.join(asked)} can't be combined: an output has one form", param=name)
    return next(iter(asked.items()), None)


def may_have_form(body: Mapping[str, Any]) -> bool:
    """Whether a body's fields ask for a form."""
    return any(body.get(name) not in (None, {"type": "text"}) for name in FORM_FIELDS)


def as_structured(name: str, value: Any) -> Any:
    """A field's value as structured_outputs; None if it asks for nothing."""
    return of_response_format(value) if name == "response_format" else value or None


def of_response_format(value: Any) -> dict | None:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind not in ("text", "json_object", "json_schema"):
        kinds = '{"type": "text"}, {"type": "json_object"} or {"type": "json_schema", "json_schema": {"schema": …}}'
        raise bad_request(f"response_format must be {kinds}, got {value!r:.80}", param="response_format")
    if unknown := sorted(value.keys() - {"type", *(["json_schema"] if kind == "json_schema" else [])}):
        raise bad_request(f"response_format has no field {unknown[0]!r:.80}", param="response_format")
    if kind != "json_schema":
        return {"json_object": True} if kind == "json_object" else None
    inner = value.get("json_schema")
    if not isinstance(inner, dict) or not isinstance(inner.get("schema"), dict):
        raise bad_request(f"response_format.json_schema must have a schema, got {inner!r:.80}", param="response_format")
    if unknown := sorted(inner.keys() - {"name", "description", "schema", "strict"}):
        raise bad_request(f"response_format.json_schema has no field {unknown[0]!r:.80}", param="response_format")
    return {"json": inner["schema"]}  # if it is enforced at all, it is enforced strictly
