"""How much memory the process of an engine takes. The Python of a peer imports it too, which has none of this project's
packages."""

import sys
from pathlib import Path


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
