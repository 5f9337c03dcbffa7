"""How fast one core reads, by the size of what it reads: the levels of the memory hierarchy, from outside.

    python -m bench.caches --json bench/results/caches.json

What fits into a level of the CPU's cache is read from there every time but the first. Two numbers for each size: GB/s
of a read from front to back, and how long a load takes if nobody could know its address before (a chain of places in
random order, 64 bytes apart). And GB/s from memory in pieces of a few KB, each read from front to back, the pieces in
random order: so attention meets the blocks of a request. Each figure is the best of many short runs, in the thread's
own time: what the core can do, not what other programs leave of it.
"""

import argparse
import ctypes
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from bench.machine import describe
from bench.report import write_result

SIZES = tuple(1 << power for power in range(14, 29))  # bytes: 16 KB to 256 MB
LINE = 64  # bytes that the CPU moves at once
PIECES = (4 << 10, 48 << 10)  # bytes: a head's keys in a block of GPT-2 small's float32, and those of all its 12 heads
READ = 1 << 24  # bytes that a run reads, or all if there are more
STEPS = 1 << 15  # loads of a chain in a run
SYSTEM = Path("/sys/devices/system/cpu/cpu0/cache")


def load_probes() -> ctypes.CDLL:
    """caches.c, compiled for this CPU. Raises OSError or CalledProcessError if there is no compiler, or it fails."""
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
    """The shortest of several runs, in seconds of this thread."""
    seconds = []
    for _ in range(repeat):
        started = time.thread_time()
        run()
        seconds.append(time.thread_time() - started)
    return min(seconds)


def chain(size: int) -> torch.Tensor:
    """Places of a line each, as one ring in random order; each holds the index of the next. [size / 8]"""
    numbers, order = LINE // 8, torch.randperm(size // LINE)
    places = torch.zeros(size // 8, dtype=torch.int64)
    places[order * numbers] = order.roll(-1) * numbers
    return places


def measure(probes: ctypes.CDLL, size: int, repeat: int = 200) -> dict:
    """GB/s and nanoseconds a load, for so many bytes."""
    places, times, at = chain(size), max(1, READ // size), 0

    def follow() -> None:  # from where the last run ended: the same places would be in the cache
        nonlocal at
        at = probes.chase(places.data_ptr(), at, STEPS)

    loads = best(follow, repeat) / STEPS
    reads = best(lambda: probes.stream(places.data_ptr(), size, times), repeat) / times
    return {"bytes": size, "nanoseconds": loads * 1e9, "bytes_per_second": size / reads}


def measure_pieces(probes: ctypes.CDLL, piece: int, size: int = SIZES[-1], repeat: int = 50) -> dict:
    """GB/s from memory in pieces of so many bytes."""
    data, order = torch.ones(size, dtype=torch.uint8), torch.randperm(size // piece)
    seconds = best(lambda: probes.pieces(data.data_ptr(), piece, order.data_ptr(), len(order)), repeat)
    return {"bytes": piece, "bytes_per_second": len(order) * piece / seconds}


def levels() -> list[dict]:
    """The caches of the first core as Linux tells them: level and bytes, the data caches only; [] elsewhere."""
    found = []
    for folder in sorted(SYSTEM.glob("index*")):
        level, kind, size = ((folder / name).read_text().strip() for name in ("level", "type", "size"))
        if kind != "Instruction":
            found.append({"level": int(level), "bytes": int(size.removesuffix("K")) * 1024})
    return found


def name_size(size: int) -> str:
    return f"{size >> 20} MB" if size >= 1 << 20 else f"{size >> 10} KB"


def table(result: dict) -> str:
    """Each size, the level of the cache that it fits into, GB/s and nanoseconds."""
    lines = ["| what is read | fits into | GB/s, front to back | ns for a load, in random order |"]
    lines.append("| ---: | --- | ---: | ---: |")
    for row in result["rows"]:
        fits = [f"level {level['level']}" for level in result["levels"] if row["bytes"] <= level["bytes"]]
        speed = row["bytes_per_second"] / 1e9
        lines.append(f"| {name_size(row['bytes'])} | {[*fits, 'memory'][0]} | {speed:.0f} | {row['nanoseconds']:.1f} |")
    caches = ", ".join(f"level {level['level']} {name_size(level['bytes'])}" for level in result["levels"])
    pieces = " and ".join(
        f"{row['bytes_per_second'] / 1e9:.1f} GB/s in pieces of {name_size(row['bytes'])}" for row in result["pieces"]
    )
    return "\n".join(lines) + (
        f"\n\nFrom memory, in random order: {pieces}. One thread; {result['machine']['device']}, "
        f"caches: {caches or 'unknown'}. `python -m bench.caches`"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured to this file")
    args = parser.parse_args()
    torch.manual_seed(0)
    try:
        probes = load_probes()
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"caches: no probes without a C compiler: {error}", file=sys.stderr)
        return 2
    result = {
        "command": f"python -m bench.caches {' '.join(sys.argv[1:])}".strip(),
        "machine": describe(torch.device("cpu")),
        "levels": levels(),
        "rows": [measure(probes, size) for size in SIZES],
        "pieces": [measure_pieces(probes, piece) for piece in PIECES],
    }
    print(table(result))
    if args.json:
        write_result(args.json, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
