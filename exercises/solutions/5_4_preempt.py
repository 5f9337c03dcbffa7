"""A solution of exercise 5.4."""

from dataclasses import dataclass


@dataclass(eq=False)
class Sequence:
    name: str
    num_tokens: int  # prompt and output so far
    num_blocks: int = 0
    num_computed_tokens: int = 0


def make_room(running: list[Sequence], num_free: int, block_size: int) -> tuple[list[Sequence], list[Sequence], int]:
    """(sequences that keep running, preempted ones in queue order, number of free blocks)"""
    running, preempted, i = list(running), [], 0
    while i < len(running):
        sequence = running[i]
        missing = -(-sequence.num_tokens // block_size) - sequence.num_blocks
        if missing <= num_free:
            num_free -= missing
            sequence.num_blocks += missing
            i += 1
            continue
        if len(running) == 1:
            raise MemoryError(f"{sequence.name} alone needs {missing} blocks more than the {num_free} that are free")
        youngest = running.pop()
        num_free += youngest.num_blocks
        youngest.num_blocks = youngest.num_computed_tokens = 0
        preempted.insert(0, youngest)
    return running, preempted, num_free


# --- Wrong answers: (what is wrong, in the solution, instead, words of the message) --------------------------------

MISSING = "missing = -(-sequence.num_tokens // block_size) - sequence.num_blocks"
POP = "youngest = running.pop()"
MUTANTS = [
    ("a block for everybody", MISSING, "missing = sequence.num_tokens // block_size + 1 - sequence.num_blocks", "or that just fills it"),
    ("never a block", MISSING, "missing = 0", "gets another"),
    ("one block at most", MISSING, MISSING.replace("= ", "= min(1, ") + ")", "may need several blocks"),
    ("does not count what it gave", "            num_free -= missing\n", "", "gets another"),
    ("the oldest goes", POP, "youngest = running.pop(0)", "not the oldest"),
    ("the asking one goes", POP, "youngest = running.pop(i)", "not the one that needs a block"),
    ("the one that asks stays", POP, "youngest = running.pop(-2 if i == len(running) - 1 else -1)", "even if it is the one that needs a block"),
    ("goes from the youngest", "sequence = running[i]\n", "sequence = running[len(running) - 1 - i]\n", "the youngest goes"),
    ("frees what is needed", "num_free += youngest.num_blocks", "num_free += min(missing - num_free, youngest.num_blocks)",
     "not only as many as are needed"),
    ("it keeps what was computed", "youngest.num_blocks = youngest.num_computed_tokens = 0", "youngest.num_blocks = 0",
     "in the blocks that it lost"),
    ("it loses its tokens", "youngest.num_computed_tokens = 0", "youngest.num_computed_tokens = youngest.num_tokens = 0",
     "it keeps its output"),
    ("the youngest is first in the queue", "preempted.insert(0, youngest)", "preempted.append(youngest)", "in order of admission"),
    ("forever", "            raise MemoryError(f\"{sequence.name} alone needs {missing} blocks more than the {num_free} that are free\")",
     "            return [], running, num_free + sequence.num_blocks", "preempted and admitted forever"),
    ("changes the list that was given", "running, preempted, i = list(running), [], 0", "preempted, i = [], 0", "work on a copy"),
    ("copies of the sequences", "list(running)", "[__import__('copy').copy(s) for s in running]", "copies of the sequences"),
]  # fmt: skip

ALSO_RIGHT = [
    ("one index for each end", ("running, preempted, i = list(running), [], 0", "while i < len(running):", "if len(running) == 1:", POP,
     "preempted.insert(0, youngest)", "return running, preempted, num_free"),
     ("i, end = 0, len(running)", "while i < end:", "if end == 1:", "end -= 1\n        youngest = running[end]", "pass", "return running[:end], running[end:], num_free")),
    ("takes back before it counts", "        youngest = running.pop()\n        num_free += youngest.num_blocks\n",
     "        *running, youngest = running\n        num_free = num_free + youngest.num_blocks\n"),
]  # fmt: skip
