"""The eight milestones on the way to your own engine: what each asks for, and the functions to write for it.

The checks are functions `check_…` that run in order: first those of verbs.py, each verb of the loop separately, then
those of the milestone's own module, single.py to int8.py. The first line of a function's docstring is what `python -m
exercises engine` prints for it.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Milestone:
    """A milestone.

    Attributes:
        module: the module of this package with the checks.
        stage: the stage whose files make up the skeleton.
        minutes: how long it takes to write, at least and at most.
        to_write: file -> functions of which the skeleton has only signature and docstring.
        verbs: the checks of verbs.py that run first, in this order.
        later: file -> functions of a later milestone -> their body until then.
    """

    number: int
    title: str
    module: str
    stage: str
    minutes: tuple[int, int]
    to_write: Mapping[str, Sequence[str]]
    later: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    verbs: Sequence[str] = ()

    @property
    def checks(self) -> list[Callable]:
        """The checks of a whole engine, in the order in which they run. Imports torch."""
        found = vars(importlib.import_module(f"{__name__}.{self.module}"))
        return [value for name, value in found.items() if name.startswith("check_")]

    def checks_of(self, directory: Path) -> list[Callable]:
        """The same for an engine in this directory, preceded by those of its verbs if it is built like this milestone's
        stage: a later stage's verbs take other arguments."""
        found = vars(importlib.import_module(f"{__name__}.verbs"))
        verbs = [found[name] for name in self.verbs] if built_like(directory) == min(self.number, 5) else []
        return [*verbs, *self.checks]


FILES = ("engine.py", "batch.py", "runner.py", "request.py", "sampler.py")  # of each stage


def built_like(directory: Path) -> int:
    """The milestone whose files an engine has (5 also for later ones); 0 if it is built differently."""
    if not all((directory / name).is_file() for name in FILES):
        return 0
    brought = {5: "block_manager.py", 4: "scheduler.py", 3: "kv_cache.py"}
    number = next((number for number, name in brought.items() if (directory / name).is_file()), 0)
    return number or (2 if "num_padding" in (directory / "batch.py").read_text(encoding="utf-8") else 1)


MILESTONES = [
    Milestone(
        1, "one sequence", "single", "stage01_single", (90, 120),
        {
            "engine.py": ("Engine.run", "Engine.step", "Engine.commit"),
            "batch.py": ("Batch.of",),
            "runner.py": ("Runner.forward",),
            "model.py": ("Attention.forward", "Attention._split_heads", "MLP.forward", "Layer.forward", "GPT2.forward"),
            "sampler.py": ("sample", "choose", "keep_top_k", "keep_top_p", "keep_min_p", "draw"),
            "request.py": ("Request.add", "Request.finish"),
            "support/text.py": ("Text._append", "Text.num_final"),
        },
        verbs=(
            "check_one_batch", "check_one_forward", "check_one_sample", "check_one_draw", "check_one_commit",
            "check_one_end",
        ),
    ),
    Milestone(
        2, "a batch", "batch", "stage02_static_batch", (60, 90),
        {
            "engine.py": ("Engine.run", "Engine.next_batch", "Engine.step", "Engine.commit"),
            "batch.py": ("Batch.of", "Batch.num_padding_tokens"),
            "runner.py": ("Runner.forward",),
            "model.py": ("GPT2.forward",),
        },
        verbs=("check_rows_batch", "check_rows_forward", "check_run_order"),
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
        verbs=("check_cache", "check_cache_batch", "check_batches", "check_run_order"),
    ),
    Milestone(
        4, "slots", "slots", "stage04_continuous", (90, 120),
        {
            "scheduler.py": (
                "Scheduler.add", "Scheduler.schedule", "Scheduler._can_admit", "Scheduler._row", "Scheduler._admit",
                "Scheduler.remove",
            ),
            "engine.py": ("Engine.add", "Engine.abort", "Engine.step", "Engine.commit"),
            "batch.py": ("Batch.of",),
            "kv_cache.py": ("KVCache.update",),
            "model.py": ("Attention.forward", "Attention._attend_singles", "attend", "GPT2.forward"),
        },
        verbs=("check_schedule", "check_admission", "check_flat_batch", "check_slot_cache"),
    ),
    Milestone(
        5, "blocks", "blocks", "stage05_paged", (90, 120),
        {
            "block_manager.py": (
                "BlockManager.slot_mapping", "BlockManager.num_blocks_to_allocate", "BlockManager.can_allocate",
                "BlockManager.allocate", "BlockManager.can_append", "BlockManager.append",
                "BlockManager.free", "BlockManager._pop_free", "BlockManager._incref", "BlockManager._decref",
            ),
            "scheduler.py": (
                "Scheduler.schedule", "Scheduler._can_admit", "Scheduler._admit", "Scheduler._reserve_blocks",
                "Scheduler.preempt",
            ),
            "engine.py": ("Engine.check_fits", "Engine.step"),
            "batch.py": ("Batch.of",),
            "kv_cache.py": ("KVCache.write",),
            "attention.py": ("paged_attention",),
            "model.py": ("Attention.forward",),
        },
        later={"block_manager.py": {
            "BlockManager.cache_full_blocks": "return  # milestone 6",
            "BlockManager._find_cached": "return []  # milestone 6",
            "BlockManager._key": "raise NotImplementedError  # milestone 6",
            "BlockManager._evict": "raise NotImplementedError  # milestone 6",
        }},
        verbs=(
            "check_blocks", "check_block_schedule", "check_block_admission", "check_block_batch", "check_block_cache",
        ),
    ),
    Milestone(
        6, "sharing", "sharing", "stage05_paged", (60, 90),
        {
            "block_manager.py": (
                "BlockManager.cache_full_blocks", "BlockManager._find_cached", "BlockManager._key",
                "BlockManager._evict",
            ),
        },
        verbs=("check_sharing", "check_found"),
    ),
    Milestone(
        7, "speculation", "speculation", "stage07_speculative", (60, 90),
        {
            "drafters.py": ("PromptLookup._look_up",),
            "batch.py": ("Batch.verified", "Batch.was_right"),
            "engine.py": ("Engine.step", "Engine.verify"),
            "speculator.py": ("Speculator.draft", "Speculator.max_drafts", "Speculator.truncate_at_eos"),
            "block_manager.py": ("BlockManager.extend", "BlockManager.trim"),
        },
        verbs=("check_look_up", "check_verified", "check_ahead", "check_drafts", "check_stepped"),
    ),
    Milestone(
        8, "int8", "int8", "stage08_int8", (45, 75),
        {
            "quantize.py": (
                "quantize", "Int8Linear.forward", "Int8Embedding.forward", "Int8Embedding.logits", "quantize_on_load",
            ),
        },
        verbs=("check_quantize", "check_int8_layer", "check_int8_table", "check_quantizing"),
    ),
]  # fmt: skip
