"""Draft the tokens that may follow, and take back what was rejected (Leviathan et al. 2023, "Fast Inference from
Transformers via Speculative Decoding").

The drafts go through the model in the same step as the token before them. The engine verifies them without the paper's
rejection sampling: a draft is right if the ordinary sampler picks it (`Engine.step`, `Batch.verified`).
"""

import logging

from .config import MAX_DRAFTS, EngineConfig
from .draft_planner import DraftPlanner
from .drafters import pick_drafter
from .model import ModelConfig
from .request import Request
from .runner import Runner
from .scheduler import Row, Scheduler
from .support.logits_processors import end_token_ids

logger = logging.getLogger(__name__)


class Speculator:
    """Drafts for the requests of a step.

    Args:
        config: the engine's options.
        runner: of the model.
        scheduler: its free blocks are for drafts, too.
        model_config, max_model_len: of the model.

    Attributes:
        drafter: proposes tokens; None if speculation is off, or has failed.
        num_drafts: draft tokens of each request in a step, or "auto".
        planner: chooses that number in each step; None if it is fixed.
    """

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        scheduler: Scheduler,
        model_config: ModelConfig,
        max_model_len: int,
    ):
        self.scheduler, self.block_manager = scheduler, scheduler.block_manager
        self.max_num_batched_tokens = config.max_num_batched_tokens
        self.num_drafts, self.vocab_size = config.num_drafts, model_config.vocab_size
        self.drafter = pick_drafter(config, runner, model_config, max_model_len)
        self.planner: DraftPlanner | None = None
        if self.drafter is not None and self.num_drafts == "auto":
            self.planner = DraftPlanner(self.drafter, runner)

    def draft(self, rows: list[Row]) -> dict[Request, list[int]]:
        """Draft tokens for the requests that decode in this step, to follow the token that each brings."""
        if self.drafter is None:
            return {}
        num_tokens, drafts = sum(row.num_tokens for row in rows), {}
        try:
            counts = self.plan([row.request for row in rows if row.ready and row.request.output_token_ids], num_tokens)
            proposed = self.drafter.draft(counts) if any(counts.values()) else {}
        except Exception as error:  # such as too little memory; no request needs drafts
            logger.warning("goes on without speculation: %s: %s", type(error).__name__, error)
            self.drafter = self.planner = None
            return {}
        left = self.max_num_batched_tokens - num_tokens
        for request, draft in proposed.items():
            draft = self.truncate_at_eos(request, draft[: counts[request]])[:left]
            if draft := draft[: self.block_manager.extend(request, len(draft), self.scheduler.watermark_blocks)]:
                drafts[request], left = draft, left - len(draft)
        return drafts

    def plan(self, requests: list[Request], num_tokens: int) -> dict[Request, int]:
        """How many tokens to draft for each request, in a step of num_tokens without them."""
        max_drafts = {request: self.max_drafts(request) for request in requests}
        if self.planner is not None:
            return self.planner.plan(max_drafts, num_tokens)
        return {request: min(count, int(self.num_drafts)) for request, count in max_drafts.items()}

    @staticmethod
    def max_drafts(request: Request) -> int:
        """The most draft tokens that can be of use: the last token of an output needs no draft."""
        return min(request.max_tokens - len(request.output_token_ids) - 1, MAX_DRAFTS)

    def truncate_at_eos(self, request: Request, draft: list[int]) -> list[int]:
        """The draft up to a token that would end the output (the row before it samples that token anyway), or that is
        not in the vocabulary."""
        ending, size = end_token_ids(request), self.vocab_size
        ends = (i for i, token_id in enumerate(draft) if token_id in ending or not 0 <= token_id < size)
        return draft[: next(ends, len(draft))]

    def update(self, drafts: dict[Request, list[int]], updated: list[Request]) -> dict[Request, int]:
        """Return the blocks of rejected drafts after a step, in which `updated` has each request once per token that it
        got. Returns how many draft tokens of each request were accepted."""
        accepted = {request: max(0, updated.count(request) - 1) for request in drafts}
        if self.planner is not None:
            self.planner.update(drafts, accepted)
        for request in drafts:
            if not request.finished:
                self.block_manager.trim(request, request.num_computed_tokens)
        return accepted
