"""What a run did: a sentence, more with --stats, or JSON."""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from .stages import Stage

WAITS = {
    "ttft": "time to first token",
    "itl": "inter-token latency",
    "e2e": "whole request",
    "queue_time": "in the queue",
}


def closing_line(
    stage: Stage,
    stats: Any,
    seconds: float,
    as_json: bool,
    details: bool = False,
    at_once: int | None = None,
    limits: Mapping[str, int] = MappingProxyType({}),
) -> str:
    """What to print when a run is over.

    Args:
        stats: of an LLM.
        seconds: what the run took.
        as_json: a line of JSON, from stages that count latencies.
        at_once: as many requests as may run at once, in a run of files.
        limits: how many outputs stopped at each, as far as that is known.
        details: below the sentence, a line for each thing that the stage counts.
    """
    tokens_per_second, has = stats.num_output_tokens / max(seconds, 1e-9), stats.__dataclass_fields__.keys()
    latencies = stats.latencies.percentiles() if "latencies" in has else None
    cached = stats.num_cached_tokens / max(1, stats.num_prompt_tokens) if "num_cached_tokens" in has else None
    if as_json and latencies is not None:
        counts = {"requests": stats.num_requests, "truncated": stats.num_truncated}
        counts |= {"output_tokens": stats.num_output_tokens, "seconds": seconds}
        if "num_drafts" in has:
            counts |= {"drafted": stats.num_draft_tokens, "accepted": stats.num_accepted_tokens}
        if cached is not None:
            counts |= {"prefix_cache_hit_rate": cached, "preemptions": stats.num_preemptions}
        return json.dumps({**counts, "tokens_per_second": tokens_per_second, **latencies})
    requests = "1 request" if stats.num_requests == 1 else f"{stats.num_requests:,} requests"
    requests += "" if at_once is None else f" (up to {at_once:,} at once)"
    line = f"{requests}, {stats.num_output_tokens:,} tokens in {seconds:.2f} s: {tokens_per_second:.1f} tok/s"
    if stats.num_truncated and sum(limits.values()) == stats.num_truncated:
        parts = [f"{number:,} stopped at --{name.replace('_', '-')}" for name, number in sorted(limits.items())]
        line += f"; {', '.join(parts)}"
    elif stats.num_truncated:
        line += f"; {stats.num_truncated:,} stopped at the length limit"
    if not details:
        return line
    rows = {"ended by length": f"{stats.num_truncated:,}", "forward passes": f"{stats.num_forwards:,}"}
    if stage.is_batched:
        padding = stats.num_padding_tokens / max(1, stats.num_padding_tokens + stats.num_tokens_computed)
        rows["padding"] = f"{padding:.0%} of the places computed"
    if "kv_tokens_used" in has:
        kv_use = stats.kv_tokens_used / max(1, stats.kv_tokens_reserved)
        rows["KV cache"] = f"{kv_use:.0%} of what was reserved is used"
    if cached is not None:
        rows["prefix cache"] = f"{cached:.0%} of the prompts' tokens found"
        rows["preemptions"] = f"{stats.num_preemptions:,}"
    if "num_drafts" in has and stats.num_drafts:
        rate, a_step = (
            stats.num_accepted_tokens / stats.num_draft_tokens,
            1 + stats.num_accepted_tokens / stats.num_drafts,
        )
        rows["drafted"] = f"{stats.num_draft_tokens:,} tokens, {stats.num_accepted_tokens:,} accepted ({rate:.0%})"
        rows["tokens a step"] = f"{a_step:.1f} where there were drafts ({stats.num_drafts:,} times)"
    elif "num_drafts" in has:
        rows["drafted"] = "nothing"
    if latencies is None:
        rows["time to first token"] = f"mean {1e3 * stats.ttft_seconds / max(1, stats.num_requests):,.0f} ms"
    for kind, percentiles in (latencies or {}).items():
        rows[WAITS[kind]] = ", ".join(f"{p} {1e3 * s:,.0f} ms" for p, s in percentiles.items())
    return "\n".join([line, *(f"  {name + ':':22}{value}" for name, value in rows.items())])
