"""Where an engine computes, and in which type of numbers."""

import os

import torch


def pick_device(device: str) -> torch.device:
    """The torch device with this name. Raises ValueError if it is unknown or not available."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        picked = torch.device(device)
    except (RuntimeError, TypeError):
        picked = None
    if picked is None or picked.type not in ("cpu", "cuda"):
        raise ValueError(f"device must be 'auto', 'cpu', 'cuda' or 'cuda:N', got {device!r}")
    if picked.type == "cuda" and (picked.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device {device!r} is not available: torch sees {torch.cuda.device_count()} CUDA devices")
    return picked


def pick_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """The torch dtype with this name; "auto" is float32 on a CPU, bfloat16 on CUDA."""
    if dtype == "auto":
        dtype = "bfloat16" if device.type == "cuda" else "float32"
    return getattr(torch, dtype)


def describe_device(device: torch.device, dtype: torch.dtype) -> str:
    """For display: "cpu (2 threads), float32"."""
    name = f"{torch.get_num_threads()} threads" if device.type == "cpu" else torch.cuda.get_device_name(device)
    return f"{device} ({name}), {str(dtype).removeprefix('torch.')}"


_first_process: int | None = None  # the one that made the first engine


def check_fork() -> None:
    """Raise RuntimeError in a fork of the process that made the first engine: it lacks torch's threads, and would
    hang."""
    global _first_process
    _first_process = _first_process or os.getpid()
    if os.getpid() != _first_process:
        raise RuntimeError(
            f"process {os.getpid()} is a fork of {_first_process}, which has made an engine: no engine can run here; "
            "start processes with multiprocessing's 'spawn' or 'forkserver'"
        )
