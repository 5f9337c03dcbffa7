"""Results as plain values, for JSON."""

from dataclasses import asdict, replace
from typing import Any


def length_limit(completion: Any, params: Any) -> str | None:
    """The limit that ended a completion: "max_tokens", or "max_model_len", the context. None if no limit did."""
    if completion.finish_reason != "length":
        return None
    return "max_model_len" if len(completion.token_ids) < params.max_tokens else "max_tokens"


def as_dict(output: Any, params: Any) -> dict[str, Any]:
    """A RequestOutput as plain values. params: its SamplingParams."""
    names = [name for name in ("ttft", "e2e", "queue_time") if hasattr(output.metrics, name)]
    metrics = {name: getattr(output.metrics, name) for name in names}
    if hasattr(output.metrics, "inter_token_latencies"):
        metrics["inter_token_latencies"] = list(output.metrics.inter_token_latencies)
    if getattr(output, "prompt_logprobs", None) is not None:
        output = replace(output, prompt_logprobs=list(output.prompt_logprobs))
    fields = {**asdict(output), "metrics": metrics}
    for completion, own in zip(output.outputs, fields["outputs"], strict=True):
        own["length_limit"] = length_limit(completion, params)
    return fields
