"""The conditions under which an engine is measured, in its own process: the company of other processes, the time limit,
and a look at its memory.

It is imported before any part of the engine, and also by the Python of a peer, which has none of this project's
packages.
"""

import faulthandler
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent

# As they were before the engine, which may set variables for its threads or bind itself to some of the cores. None of
# that should reach the company.
ENVIRONMENT = dict(os.environ)
CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def end_with_parent() -> None:
    """End this process when stdin ends, which is a pipe that the parent process holds open as long as it lives."""

    def wait() -> None:
        while os.read(0, 1):  # sys.stdin.read would hold a lock, which the interpreter needs to exit
            continue
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def keep_busy(kind: str, cores: list[int]) -> None:
    """What company does: a busy loop, or a torch program with two threads."""
    end_with_parent()
    if cores:
        os.sched_setaffinity(0, cores)
    if kind == "torch":
        import torch

        torch.set_num_threads(2)
        matrix = torch.randn(512, 512)
        _ = matrix @ matrix  # the first one starts the threads
        print("busy", flush=True)
        while True:
            _ = matrix @ matrix
    print("busy", flush=True)
    while True:
        pass


@contextmanager
def measured(job: dict) -> Iterator[None]:
    """Run the block next to the job's `company` (a number of busy loops, or "torch"), which is busy throughout. If the
    block takes more than the job's `limit` in seconds, the process ends with status 1 and "Timeout" on stderr."""
    company = job.get("company") or "0"
    kinds = ["torch"] if company == "torch" else ["loop"] * int(company)
    processes: list[subprocess.Popen] = []
    try:
        for kind in kinds:
            code = f"from bench.conditions import keep_busy; keep_busy({kind!r}, {CORES})"
            command = [job["company_python"], "-c", code]
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            processes.append(subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, **pipes))
        for process in processes:
            if process.stdout.readline().strip() != b"busy":  # pyright: ignore[reportOptionalMemberAccess]
                sys.exit(f"its company did not start: status {process.wait()}")
        if job.get("limit"):  # a Python thread might never run next to an engine that spins
            faulthandler.dump_traceback_later(job["limit"], exit=True)
        yield
        faulthandler.cancel_dump_traceback_later()
        if any(process.poll() is not None for process in processes):
            sys.exit("its company ended before it did")
    finally:
        faulthandler.cancel_dump_traceback_later()
        for process in processes:
            process.kill()
        for process in processes:
            process.communicate()  # waits for its end, and closes the pipes


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
