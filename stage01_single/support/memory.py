"""How much memory is free, in a container too."""

import contextlib
from pathlib import Path

import psutil
import torch

GROUP = Path("/proc/self/cgroup")  # names the process's control groups (Linux's cgroups)
GROUPS = Path("/sys/fs/cgroup")  # a directory for each, with its limits; a container is one
FILES = {  # by controller: the limit, what is used, and which part of that is cached files
    "": ("memory.max", "memory.current", "inactive_file"),  # cgroups, version 2
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),  # version 1
}


def free_memory(device: torch.device) -> int:
    """Bytes that this process can still get: what the system has free, or less under its own or a container's limit."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free, process = psutil.virtual_memory().available, psutil.Process()
    if hasattr(process, "rlimit"):  # Linux: `ulimit -v` limits what a process may map
        limit = process.rlimit(psutil.RLIMIT_AS)[0]
        free = free if limit == psutil.RLIM_INFINITY else min(free, max(0, limit - process.memory_info().vms))
    groups = []
    with contextlib.suppress(OSError):  # not Linux, or hidden
        groups = GROUP.read_text(encoding="utf-8").splitlines()
    for line in groups:
        _, controller, path = line.split(":", 2)
        if controller in FILES:
            limit_file, used_file, cached = FILES[controller]
            group = GROUPS / controller / path.lstrip("/")
            for folder in (group, *group.parents):  # the groups around it have limits, too
                with contextlib.suppress(OSError, ValueError):  # no file, or no limit: "max"
                    limit, used = (int((folder / name).read_text()) for name in (limit_file, used_file))
                    kinds = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                    free = min(free, max(0, limit - used + int(kinds[cached])))  # cached files can be dropped
    return free
