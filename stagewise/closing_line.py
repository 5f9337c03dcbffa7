"""What a run did, in a line: for people, or as JSON."""

import json
from typing import Any

from .stages import Stage

WAITS = {"ttft": "TTFT", "itl": "ITL", "e2e": "end to end", "queue_time": "queue"}


def closing_line(stage: Stage, stats: Any, seconds: float, as_json: bool) -> str:
    """stats: of an LLM; what its stage does not count is left out. Only stages that count latencies make JSON."""
    tokens_per_second, has = stats.num_output_tokens / seconds, stats.__dataclass_fields__.keys()
    latencies = stats.latencies.percentiles() if "latencies" in has else None
    cached = stats.num_cached_tokens / max(1, stats.num_prompt_tokens) if "num_cached_tokens" in has else None
    if as_json and latencies is not None:
        counts = {"requests": stats.num_requests, "truncated": stats.num_truncated}
        counts |= {"output_tokens": stats.num_output_tokens, "seconds": seconds}
        if cached is not None:
            counts |= {"prefix_cache_hit_rate": cached, "preemptions": stats.num_preemptions}
        return json.dumps({**counts, "tokens_per_second": tokens_per_second, **latencies})
    requests = "1 request" if stats.num_requests == 1 else f"{stats.num_requests} requests"
    line = f"{requests}, {stats.num_output_tokens} tokens in {seconds:.2f} s: {tokens_per_second:.1f} tok/s; "
    if stats.num_truncated:
        line += f"{stats.num_truncated} ended by length; "
    if latencies is None:
        line += f"mean TTFT {1e3 * stats.ttft_seconds / max(1, stats.num_requests):.0f} ms; "
    line += f"{stats.num_forwards} forward passes"
    if stage.is_batched:
        padding = stats.num_padding_tokens / max(1, stats.num_padding_tokens + stats.num_tokens_computed)
        line += f", {padding:.0%} padding"
    if "kv_tokens_used" in has:
        kv_use = stats.kv_tokens_used / max(1, stats.kv_tokens_reserved)
        line += f", {kv_use:.0%} of the {'KV cache' if cached is None else 'reserved KV cache'} used"
    if cached is not None:
        line += f", {cached:.0%} of the prompts found in it"
        line += f", preempted {stats.num_preemptions} ×" if stats.num_preemptions else ""
    if latencies is not None:
        waits = [f"{WAITS[k]} {'/'.join(f'{1e3 * s:.0f}' for s in v.values())} ms" for k, v in latencies.items()]
        line += f"; p50/p95/p99: {', '.join(waits) or 'nothing finished'}"
    return line
