"""What the process of an engine does besides running it: it ends with the benchmark, and looks at its memory.

The Python of a peer imports it too, which has none of this project's packages.
"""

import os
import sys
import threading
from pathlib import Path


def end_with_parent() -> None:
    """End this process when stdin ends, which is a pipe that the parent process holds open as long as it lives."""

    def wait() -> None:
        while os.read(0, 1):  # sys.stdin.read would hold a lock, which the interpreter needs to exit
            continue
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def peak_memory(cuda: bool = False) -> int:
    """The most memory that this process has held so far, in bytes: on the GPU, or else resident in RAM."""
    if cuda:
        import torch

        return torch.cuda.max_memory_allocated()
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would include what the parent process held when it started this one
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    try:
        import resource
    except ImportError:  # Windows
        import psutil

        return psutil.Process().memory_info().peak_wset  # pyright: ignore[reportAttributeAccessIssue]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
