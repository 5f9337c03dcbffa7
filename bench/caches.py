"""How fast one core reads, by the amount that it reads: the levels of the memory hierarchy, seen from outside.

    python -m bench.caches --json bench/results/caches.json

Data that fits into a level of the CPU's cache is read from there every time but the first. There are two numbers for
each size: GB/s when it is read from front to back, and the time of a load whose address can't be known earlier (a chain
of addresses in random order, 64 bytes apart). A third is GB/s from memory in pieces of a few KB: each is read from
front to back, but the pieces come in random order, as attention reads the blocks of a request. Each round takes the
best of many short runs, in the thread's CPU time, to measure what the core can do even if other programs use it too.
"""

import argparse
import ctypes
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

from bench.run import grid, in_turn, script, source

SIZES = tuple(1 << power for power in range(14, 29))  # bytes: 16 KB to 256 MB
LINE = 64  # bytes that the CPU moves between memory and cache at once
PIECES = (4 << 10, 48 << 10)  # bytes: a head's keys in a block of GPT-2 small's float32, and those of all its 12 heads
READ = 1 << 24  # bytes that a run reads at least; small sizes are read several times
STEPS = 1 << 15  # loads in a run along a chain
SYSTEM = Path("/sys/devices/system/cpu/cpu0/cache")


def load_probes() -> ctypes.CDLL:
    """caches.c, compiled for this CPU. Raises OSError if there is no compiler, CalledProcessError if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "caches.so"
        source = Path(__file__).with_suffix(".c")
        subprocess.run(["cc", "-O3", "-march=native", "-shared", "-fPIC", source, "-o", library], check=True)
        probes = ctypes.CDLL(str(library))
    probes.stream.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
    probes.pieces.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64]
    probes.chase.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
    probes.chase.restype = ctypes.c_int64
    return probes


def best(run: Callable[[], object], repeat: int) -> float:
    """The shortest of several runs, in seconds of this thread's CPU time."""
    seconds = []
    for _ in range(repeat):
        started = time.thread_time()
        run()
        seconds.append(time.thread_time() - started)
    return min(seconds)


def chain(size: int) -> torch.Tensor:
    """Memory as a ring of cache lines in random order; each holds the index of the next. -> [size / 8]"""
    numbers, order = LINE // 8, torch.randperm(size // LINE)
    places = torch.zeros(size // 8, dtype=torch.int64)
    places[order * numbers] = order.roll(-1) * numbers
    return places


def load_nanoseconds(probes: ctypes.CDLL, size: int, repeat: int = 200) -> float:
    places, at = chain(size), 0

    def follow() -> None:  # go on where the last run ended: lines it has read may be in the cache
        nonlocal at
        at = probes.chase(places.data_ptr(), at, STEPS)

    return best(follow, repeat) / STEPS * 1e9


def read_speed(probes: ctypes.CDLL, size: int, repeat: int = 200) -> float:
    """GB/s from front to back."""
    data, times = torch.ones(size, dtype=torch.uint8), max(1, READ // size)
    return size * times / best(lambda: probes.stream(data.data_ptr(), size, times), repeat) / 1e9


def piece_speed(probes: ctypes.CDLL, piece: int, size: int = SIZES[-1], repeat: int = 50) -> float:
    """GB/s from memory in pieces of `piece` bytes."""
    data, order = torch.ones(size, dtype=torch.uint8), torch.randperm(size // piece)
    seconds = best(lambda: probes.pieces(data.data_ptr(), piece, order.data_ptr(), len(order)), repeat)
    return len(order) * piece / seconds / 1e9


def levels() -> list[dict]:
    """The first core's data caches, with level and bytes, as Linux reports them; [] on other systems."""
    found = []
    for folder in sorted(SYSTEM.glob("index*")):
        level, kind, size = ((folder / name).read_text().strip() for name in ("level", "type", "size"))
        if kind != "Instruction":
            found.append({"level": int(level), "bytes": int(size.removesuffix("K")) * 1024})
    return found


def measure(args: argparse.Namespace) -> dict:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    try:
        probes = load_probes()
    except (OSError, subprocess.CalledProcessError) as error:
        raise ValueError(f"no probes without a C compiler: {error}") from None
    rounds = {}
    for name, probe, sizes in (
        ("GB/s", read_speed, SIZES),
        ("ns", load_nanoseconds, SIZES),
        ("pieces", piece_speed, PIECES),
    ):
        rounds[name] = in_turn(
            {size: lambda s=size, p=probe: p(probes, s) for size in sizes}, args.repeat, warm_up=False
        )
    return {"levels": levels(), "rounds": rounds}


def name_size(size: int) -> str:
    return f"{size >> 20} MB" if size >= 1 << 20 else f"{size >> 10} KB"


def table(result: dict) -> str:
    """A row for every other size: the level of the cache that it fits into, GB/s and nanoseconds."""
    speeds, loads, pieces = ({int(size): median(own) for size, own in result["rounds"][name].items()}
                             for name in ("GB/s", "ns", "pieces"))  # fmt: skip
    rows = []
    for size, speed in speeds.items():
        if size.bit_length() % 2:
            continue
        fits = [f"level {level['level']}" for level in result["levels"] if size <= level["bytes"]]
        rows.append([name_size(size), [*fits, "memory"][0], f"{speed:.0f}", f"{loads[size]:.1f}"])
    caches = ", ".join(f"level {level['level']} {name_size(level['bytes'])}" for level in result["levels"])
    in_pieces = " and ".join(f"{speed:.1f} GB/s in pieces of {name_size(piece)}" for piece, speed in pieces.items())
    titles = ["what is read", "fits into", "GB/s, front to back", "ns for a load, in random order"]
    return grid(titles, rows, left=(1,)) + (
        f"\n\nFrom memory, in random order: {in_pieces}. Caches: {caches or 'unknown'}. {source(result)}"
    )


main = script(measure, table, rounds=3)

if __name__ == "__main__":
    sys.exit(main())
