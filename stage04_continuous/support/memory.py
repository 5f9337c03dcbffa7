"""How much memory is free, in a container too."""

import contextlib
from pathlib import Path

import psutil
import torch

GROUP = Path("/proc/self/cgroup")  # names the process's control group (Linux's cgroups, version 2)
GROUPS = Path("/sys/fs/cgroup")  # a directory for each, with its limits; a container is one


def free_memory(device: torch.device) -> int:
    """Bytes that this process can still get: what the system has free, or less under a container's limit."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = psutil.virtual_memory().available
    with contextlib.suppress(OSError):  # not Linux
        group = GROUPS / GROUP.read_text(encoding="utf-8").rpartition("::")[2].strip().lstrip("/")
        for folder in (group, *group.parents):  # the groups around it have limits, too
            with contextlib.suppress(OSError, ValueError):  # no file, or no limit: "max"
                limit, used = (int((folder / name).read_text()) for name in ("memory.max", "memory.current"))
                kinds = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                free = min(free, max(0, limit - used + int(kinds["inactive_file"])))  # cached files can be dropped
    return free
