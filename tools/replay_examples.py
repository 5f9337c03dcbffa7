"""The traces in docs/examples/traces: runs that each show one thing, with a story about it in stories.toml.

    python -m tools.replay_examples                       # makes all of them again
    python -m tools.replay_examples preemption beams      # only these

They run the bundled model, greedily or with a seed, so the steps are the same on every machine; the times are those of
the machine that made the traces.
"""

import argparse
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stagewise import tracing
from stagewise.replay.page import make_page
from stagewise.replay.story import story_of
from stagewise.stages import IDEAS, stage_of
from stagewise.trace_file import Trace, lines_of, read_traces

FOLDER = Path(__file__).parent.parent / "docs/examples/traces"
REPEATS = 7  # runs of each engine; the fastest is kept
TALES = (
    "Once upon a time",
    "There was once a shy bear",
    "In a quiet village near the river, an old crow",
    "One day",
    "In the days when the winters were long, a brave mouse named Otto lived near a windy harbor.",
    "A small fox",
    "There was once a hedgehog who was afraid of the dark. One evening",
    "Long ago",
)
LONG = (
    "In the days when the winters were long, a brave mouse named Otto lived near a windy harbor. Every morning he "
    "walked to the water and looked at the boats. One day a storm came up, and the boats could not find their way "
    "home. Otto took a lantern and climbed the hill. All night he held it high, and in the morning"
)


@dataclass
class Run:
    """An engine and its work: prompts, and how many tokens to generate for each."""

    stage: str
    prompts: tuple[str, ...]
    lengths: tuple[int, ...]
    options: dict[str, Any]
    params: dict[str, Any] = field(default_factory=lambda: {"temperature": 0})
    beam_width: int | None = None

    def trace(self) -> Trace:
        stage = stage_of(self.stage)
        llm = stage.LLM(model="tinytales", device="cpu", **self.options)
        trace = tracing.Trace(llm)
        if self.beam_width:
            llm.beam_search(list(self.prompts), self.beam_width, self.lengths[0])
        else:
            params = [stage.SamplingParams(max_tokens=n, ignore_eos=True, **self.params) for n in self.lengths]
            for _ in llm.stream(list(self.prompts), params):
                pass
        lines = json.loads(json.dumps(list(lines_of(trace))))
        return Trace(self.stage, lines[0], lines[1:])


def least_disturbed(run: Run) -> Trace:
    """The fastest of several runs, since a process's first steps are slow, and other programs may interfere."""
    traces = [run.trace() for _ in range(REPEATS)]
    return min(traces, key=lambda trace: trace.steps[-1]["start"] - trace.steps[0]["start"])


TAIL = (4, 7, 36, 5, 9, 28, 6, 12)  # most are short, some are long
SHORT_TAIL = (4, 7, 16, 5, 9, 12)
THREE = {"max_num_seqs": 3}
SMALL = {"max_num_seqs": 8, "max_model_len": 128, "kv_cache_bytes": 2 * 128 * 5760}  # 2 slots, or 16 blocks
LATE = ((TALES[0], TALES[1], TALES[3], LONG, TALES[5]), (8, 20, 20, 8, 8))  # the long one comes while others decode
CHUNKS = {"max_num_seqs": 3, "max_model_len": 160, "max_num_batched_tokens": 16}
WHOLE = {"max_num_seqs": 3, "max_model_len": 160, "max_num_batched_tokens": 160}
SHARED = tuple(f"{LONG} {end}" for end in ("the sun", "a boat", "a bear", "his friends"))
TOO_LONG, TOO_FEW = f"{LONG} {TALES[4]}", {"num_blocks": 6, "watermark": 0.0}  # it waits; others would fit
DRAWN = {"n": 4, "temperature": 0.8, "seed": 3}
SAMPLED = {"temperature": 0.8, "seed": 1}
FEW = {"num_blocks": 8}

EXAMPLES: dict[str, tuple[Run, ...]] = {
    "recomputation": (Run("stage01_single", TALES[:1], (12,), {}), Run("stage03_kvcache", TALES[:1], (12,), {})),
    "padding": (
        Run("stage02_static_batch", TALES[:6], SHORT_TAIL, THREE),
        Run("stage02_static_batch", TALES[:6], SHORT_TAIL, {**THREE, "sort_by_length": False}),
    ),
    "static_and_continuous": (
        Run("stage03_kvcache", TALES, TAIL, {**THREE, "sort_by_length": False}),  # A first in both
        Run("stage04_continuous", TALES, TAIL, THREE),
    ),
    "chunked_prefill": (Run("stage04_continuous", *LATE, WHOLE), Run("stage04_continuous", *LATE, CHUNKS)),
    "slots_and_blocks": (Run("stage04_continuous", TALES, TAIL, SMALL), Run("stage05_paged", TALES, TAIL, SMALL)),
    "shared_prefix": (Run("stage05_paged", SHARED, (12, 8, 8, 8), {"max_num_seqs": 2, "num_blocks": 24}),),
    "completions": (Run("stage05_paged", (LONG,), (24,), {"max_num_seqs": 4, "num_blocks": 16}, DRAWN),),
    "preemption": (Run("stage05_paged", TALES[:5], (40,) * 5, {"num_blocks": 9, "watermark": 0.0}),),
    "head_of_line": (
        Run("stage05_paged", (TALES[4], TOO_LONG, TALES[3], TALES[5], TALES[7]), (24, 4, 12, 8, 8), TOO_FEW),
    ),
    "speculation": (
        Run("stage06_fast", TALES[:1], (32,), FEW, SAMPLED),
        Run("stage07_speculative", TALES[:1], (32,), {**FEW, "speculate": "tinytales-draft", "num_drafts": 4}, SAMPLED),
    ),
    "beams": (Run("stage05_paged", TALES[1:2], (24,), {"num_blocks": 16}, beam_width=3),),
}


def make(name: str) -> str:
    """The page of an example on the site, with its story."""
    path = FOLDER / f"{name}.jsonl"
    traces = read_traces(path)
    story = story_of(path, traces)
    return make_page(traces, story and {**story, "links": links(name, story["chapter"])})


def links(name: str, chapter: str) -> list[tuple[str, str]]:
    """The links at the end of an example's page."""
    names = list(EXAMPLES)
    following = names[(names.index(name) + 1) % len(names)]
    package = chapter.partition("/")[0]
    return [
        (
            f"../../../{chapter.replace('.md', '.html')}",
            f"Read the chapter: stage {list(IDEAS).index(package) + 1}, {IDEAS[package]}",
        ),
        (f"{following}.html", f"Next story: {following.replace('_', ' ')}"),
        ("../../../stagewise/replay/README.html", "All stories"),
        ("../../../README.html", "The project: eight engines, built one idea at a time"),
    ]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(EXAMPLES)} (default: all)")
    names = parser.parse_args(argv).names or list(EXAMPLES)
    if unknown := set(names) - EXAMPLES.keys():
        parser.error(f"there is no example {min(unknown)!r}; there are {', '.join(EXAMPLES)}")
    for name in names:
        path, traces = FOLDER / f"{name}.jsonl", map(least_disturbed, EXAMPLES[name])
        lines = [line for trace in traces for line in (trace.header, *trace.steps)]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        print(f"{path}: {path.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
