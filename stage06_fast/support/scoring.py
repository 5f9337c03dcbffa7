"""How likely a text is: log-probabilities of the tokens of a prompt, and of a continuation after it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from .logprobs import logprob_entries
from .outputs import Logprob, RequestOutput
from .sampling_params import SamplingParams
from .tokenizer import Tokenizer

SCORING = SamplingParams(max_tokens=0, prompt_logprobs=0)  # nothing is generated


class Pair(NamedTuple):
    """A prompt and a continuation to be scored: two strings, or two lists of token ids. Pass it in place of a prompt,
    with the parameters SCORING."""

    prompt: str | list[int]
    continuation: str | list[int]


@dataclass(frozen=True)
class Score:
    """How likely a continuation is: the sum of its tokens' log-probabilities, their number, and whether greedy decoding
    would choose each of them."""

    logprob: float
    num_tokens: int
    is_greedy: bool


def encode_pair(pair: tuple[Any, Any], tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The tokens of both, by the rules of EleutherAI's lm-evaluation-harness (`_encode_pair`): spaces at the end of
    the prompt go to the continuation, since they belong to its first word. The two are encoded together, and split
    after as many tokens as the prompt has alone."""
    prompt, continuation = pair
    if not any(all(isinstance(part, kind) for part in pair) for kind in (str, list | tuple)):
        raise ValueError("a prompt and its continuation are two texts, or two lists of token ids")
    if not continuation:
        raise ValueError("an empty continuation: there is nothing to score")
    if not isinstance(prompt, str):
        return prompt, continuation
    if not prompt.strip():  # the beginning of a text
        return tokenizer.encode(""), tokenizer.encode(prompt + continuation)
    begin, whole = tokenizer.encode(prompt.rstrip()), tokenizer.encode(prompt + continuation)
    if len(whole) <= len(begin):  # "walk" and "ing" together are one token: encode each by itself
        return begin, tokenizer.encode(prompt[len(prompt.rstrip()) :] + continuation)
    return begin, whole[len(begin) :]


def score_prompts(logits: Tensor, scored: Sequence[tuple[Any, slice]]) -> None:
    """Give requests the log-probabilities of their prompts.

    Args:
        logits: [n_logits, vocab_size]
        scored: requests, each with its rows of the logits; see `Batch.scored`.
    """
    for request, rows in scored:
        request.prompt_logprobs += score_rows(logits[rows], request)


def score_rows(logits: Tensor, request: Any) -> list[dict[int, Logprob]]:
    """[n, vocab_size] -> the entries of the next n tokens of the prompt, each with the token itself first."""
    start, n = len(request.prompt_logprobs), len(logits)
    token_ids = request.prompt_token_ids[start : start + n]
    return logprob_entries(logits, token_ids, [request.params.prompt_logprobs] * n, request.tokenizer.token_text)


def score_of(output: RequestOutput) -> Score:
    """The score in the result of a Pair. Raises RuntimeError if it was aborted, or failed."""
    (completion,) = output.outputs
    if completion.finish_reason in ("abort", "error"):
        why = "was aborted" if completion.finish_reason == "abort" else f"failed: {completion.stop_reason}"
        raise RuntimeError(f"request {output.request_id} {why}")
    columns = zip(output.prompt_token_ids, output.prompt_logprobs, strict=True)  # pyright: ignore[reportArgumentType]
    chosen = [entries[token_id] for token_id, entries in columns if entries is not None]
    return Score(sum(c.logprob for c in chosen), len(chosen), all(c.rank == 1 for c in chosen))
