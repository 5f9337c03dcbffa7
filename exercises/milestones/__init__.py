"""The six milestones on the way to an engine of one's own: what each asks, and the functions to write for it.

What checks them stands in a module for each, single.py to sharing.py, in functions `check_…` that run one after the
other. The first line of a function's docstring is what `python -m exercises engine` prints for it.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Milestone:
    """One of the six.

    Attributes:
        module: in this package, has the checks.
        stage: whose files the skeleton is made of.
        minutes: to be written in, from and to.
        to_write: file -> functions whose signatures and docstrings are all that the skeleton has of them.
        later: file -> functions of a later milestone -> what stands in them until then.
    """

    number: int
    title: str
    module: str
    stage: str
    minutes: tuple[int, int]
    to_write: Mapping[str, Sequence[str]]
    later: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def checks(self) -> list[Callable]:
        """In the order in which they run. Imports torch."""
        found = vars(importlib.import_module(f"{__name__}.{self.module}"))
        return [value for name, value in found.items() if name.startswith("check_")]


MILESTONES = [
    Milestone(
        1, "one sequence", "single", "stage01_single", (90, 120),
        {
            "engine.py": ("Engine.run", "Engine.step", "Engine.commit"),
            "batch.py": ("Batch.of",),
            "runner.py": ("Runner.forward",),
            "model.py": ("Attention.forward", "Attention._split_heads", "MLP.forward", "Layer.forward", "GPT2.forward"),
            "sampler.py": ("sample", "keep_top_k", "keep_top_p", "keep_min_p", "draw"),
            "request.py": ("Request.add", "Request.finish"),
            "support/text.py": ("Text._append", "Text.num_certain"),
        },
    ),
    Milestone(
        2, "a batch", "batch", "stage02_static_batch", (60, 90),
        {
            "engine.py": ("Engine.run", "Engine.next_batch", "Engine.step", "Engine.commit"),
            "batch.py": ("Batch.of", "Batch.num_padding_tokens"),
            "runner.py": ("Runner.forward",),
            "model.py": ("GPT2.forward",),
            "sampler.py": ("choose", "for_rows"),
        },
    ),
    Milestone(
        3, "a cache", "cache", "stage03_kvcache", (60, 90),
        {
            "engine.py": ("Engine.check_fits", "Engine.run", "Engine.next_batch", "Engine.cache_len", "Engine.step"),
            "batch.py": ("Batch.of",),
            "runner.py": ("Runner.new_cache", "Runner.forward"),
            "kv_cache.py": ("KVCache.update", "bytes_per_token"),
            "model.py": ("Attention.forward", "GPT2.forward"),
        },
    ),
    Milestone(
        4, "slots", "slots", "stage04_continuous", (90, 120),
        {
            "scheduler.py": (
                "Scheduler.add", "Scheduler.schedule", "Scheduler._refusal", "Scheduler._row", "Scheduler._admit",
                "Scheduler.remove",
            ),
            "engine.py": ("Engine.add", "Engine.abort", "Engine.step", "Engine.commit"),
            "batch.py": ("Batch.of",),
            "kv_cache.py": ("KVCache.update",),
            "model.py": ("Attention.forward", "Attention._attend_singles", "attend", "GPT2.forward"),
        },
    ),
    Milestone(
        5, "blocks", "blocks", "stage05_paged", (90, 120),
        {
            "block_manager.py": (
                "BlockManager.slot_mapping", "BlockManager.num_to_take", "BlockManager.can_allocate",
                "BlockManager.allocate", "BlockManager.needs_block", "BlockManager.can_append", "BlockManager.append",
                "BlockManager.free", "BlockManager._take", "BlockManager._hold", "BlockManager._release",
            ),
            "scheduler.py": (
                "Scheduler.schedule", "Scheduler._refusal", "Scheduler._admit", "Scheduler._make_room",
                "Scheduler.preempt",
            ),
            "engine.py": ("Engine.check_fits", "Engine.step"),
            "batch.py": ("Batch.of",),
            "kv_cache.py": ("KVCache.write",),
            "attention.py": ("paged_attention",),
            "model.py": ("Attention.forward",),
        },
        later={"block_manager.py": {
            "BlockManager.enter": "return  # milestone 6",
            "BlockManager._find": "return []  # milestone 6",
            "BlockManager._key": "raise NotImplementedError  # milestone 6",
            "BlockManager._forget": "raise NotImplementedError  # milestone 6",
            "BlockManager.fork": "raise NotImplementedError  # milestone 6",
        }},
    ),
    Milestone(
        6, "sharing", "sharing", "stage05_paged", (60, 90),
        {
            "block_manager.py": (
                "BlockManager.enter", "BlockManager._find", "BlockManager._key", "BlockManager._forget",
                "BlockManager.fork",
            ),
        },
    ),
]  # fmt: skip
