"""Logits processors, applied before penalties; and `min_tokens`.

A processor is a function of its arguments alone, so a request gets the same tokens alone and in any batch.
"""

import math
from threading import current_thread, main_thread
from typing import Any

import torch
from torch import Tensor


def is_processed(request: Any) -> bool:
    """Whether `apply_logits_processors` would change its next logits."""
    return bool(request.params.logits_processors) or len(request.output_token_ids) < request.params.min_tokens


def apply_logits_processors(logits: Tensor, request: Any) -> None:
    """Change the logits of a request, in place. [vocab_size]"""
    if request.params.logits_processors and (result := processed(logits, request)) is not logits:
        logits.copy_(result)
    if len(request.output_token_ids) < request.params.min_tokens:
        end = torch.tensor(end_token_ids(request), dtype=torch.int64, device=logits.device)
        longer = logits.index_fill(0, end, -math.inf)
        if longer.max() > -math.inf:  # else the processors allow only the end, as when a JSON object is complete
            logits.copy_(longer)


def end_token_ids(request: Any) -> tuple[int, ...]:
    """The tokens that end a request."""
    return request.params.stop_token_ids + (() if request.params.ignore_eos else request.eos_token_ids)


def processed(logits: Tensor, request: Any) -> Tensor:
    """The logits after all of a request's processors. [vocab_size] -> same"""
    for process in request.params.logits_processors:
        given = [*request.prompt_token_ids], [*request.output_token_ids]  # copies: the processor may change them
        try:
            result = process(*given, logits)
        except Exception:
            raise
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and current_thread() is main_thread():  # Ctrl-C, for the caller
                raise
            # Nothing else ends more than this request: not sys.exit() either.
            raise RuntimeError(f"a logits processor raised {error!r:.80}") from error
        if not isinstance(result, Tensor) or result.shape != logits.shape:
            raise ValueError(f"a logits processor must return logits [{len(logits)}], got {result!r:.80}")
        logits = result.to(logits)
    return logits
