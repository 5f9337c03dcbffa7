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


# --- Wrong answers: (what is wrong, in the solution, instead, the message) -----------------------------------------

MUTANTS = [
    ("a block for everybody", "missing = -(-sequence.num_tokens // block_size) - sequence.num_blocks",
     "missing = sequence.num_tokens // block_size + 1 - sequence.num_blocks", "needs no block"),
    ("never a block", "missing = -(-sequence.num_tokens // block_size) - sequence.num_blocks", "missing = 0", "needs another one"),
    ("the oldest goes", "youngest = running.pop()", "youngest = running.pop(0)", "last in, first out"),
    ("the asking one goes", "youngest = running.pop()", "youngest = running.pop(i)", "only if it is the youngest"),
    ("it keeps what was computed", "youngest.num_blocks = youngest.num_computed_tokens = 0", "youngest.num_blocks = 0",
     "compute everything again"),
    ("it loses its tokens", "youngest.num_computed_tokens = 0", "youngest.num_computed_tokens = youngest.num_tokens = 0",
     "it keeps its output"),
    ("the youngest is first in the queue", "preempted.insert(0, youngest)", "preempted.append(youngest)", "back to the front of the queue"),
    ("forever", "            raise MemoryError(f\"{sequence.name} alone needs {missing} blocks more than the {num_free} that are free\")",
     "            return [], running, num_free + sequence.num_blocks", "forever"),
    ("blocks get lost", "num_free += youngest.num_blocks", "num_free += max(0, youngest.num_blocks - (youngest.num_blocks > 3))",
     "blocks were lost"),
    ("needs a block at the end of the last", "-(-sequence.num_tokens // block_size) -", "-(-(sequence.num_tokens + 1) // block_size) -", "expected:"),
    ("changes the list that was given", "running, preempted, i = list(running), [], 0", "preempted, i = [], 0", "work on a copy"),
    ("goes from the youngest", "sequence = running[i]\n", "sequence = running[len(running) - 1 - i]\n", "expected:"),
    ("preempts the one with the most blocks", "youngest = running.pop()\n", "youngest = max(running[i:], key=lambda s: s.num_blocks)\n        running.remove(youngest)\n",
     "expected:"),
    ("one for each that is missing", "        youngest = running.pop()\n", "        youngest = running.pop()\n        num_free += missing > 2\n", "A needs three blocks"),
    ("fails if the first does not fit", "if len(running) == 1:", "if i == 0:", "MemoryError at line"),
    ("keeps a last block", "youngest.num_blocks = youngest.num_computed_tokens = 0", "youngest.num_blocks, youngest.num_computed_tokens = int(youngest.num_blocks > 1), 0",
     "expected:"),
    ("does not count what it gave", "            num_free -= missing\n", "", "expected:"),
    ("copies of the sequences", "return running, preempted, num_free", "return [__import__('copy').copy(s) for s in running], preempted, num_free", "copies of them"),
]  # fmt: skip

ALSO_RIGHT = [
    ("one index for each end", ("running, preempted, i = list(running), [], 0", "while i < len(running):", "if len(running) == 1:", "youngest = running.pop()",
     "preempted.insert(0, youngest)", "return running, preempted, num_free"),
     ("i, end = 0, len(running)", "while i < end:", "if end == 1:", "end -= 1\n        youngest = running[end]", "pass", "return running[:end], running[end:], num_free")),
    ("takes back before it counts", "        youngest = running.pop()\n        num_free += youngest.num_blocks\n",
     "        *running, youngest = running\n        num_free = num_free + youngest.num_blocks\n"),
]  # fmt: skip
