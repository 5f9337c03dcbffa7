"""How likely a text is: log-probabilities of the tokens of a prompt."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .request import Request
from .sampler import logprob_entries


def score_prompts(logits: Tensor, scored: Sequence[tuple[Request, slice]]) -> None:
    """Give requests the log-probabilities of the next tokens of their prompts. These are the same however often they
    are computed, so it does not matter whether the step then happens.

    logits: [n_asked, vocab_size]; scored: whose of these rows are behind tokens of a prompt.
    """
    for request, rows in scored:
        start, params = len(request.prompt_logprobs), request.params
        token_ids = request.prompt_token_ids[start : start + rows.stop - rows.start]
        request.prompt_logprobs += logprob_entries(
            logits[rows],  # [n, vocab_size]
            torch.tensor(token_ids, device=logits.device),  # [n]
            [params.prompt_logprobs] * len(token_ids),
            request.tokenizer.token_text,
        )
