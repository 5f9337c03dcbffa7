"""Results as plain values, for JSON."""

from dataclasses import asdict, replace
from typing import Any


def as_dict(output: Any) -> dict[str, Any]:
    """A RequestOutput as plain values."""
    names = [name for name in ("ttft", "e2e", "queue_time") if hasattr(output.metrics, name)]
    metrics = {name: getattr(output.metrics, name) for name in names}
    if hasattr(output.metrics, "inter_token_latencies"):
        metrics["inter_token_latencies"] = list(output.metrics.inter_token_latencies)
    if getattr(output, "prompt_logprobs", None) is not None:
        output = replace(output, prompt_logprobs=list(output.prompt_logprobs))
    return {**asdict(output), "metrics": metrics}
