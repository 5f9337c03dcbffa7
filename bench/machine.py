"""What the machine is and can do: its name, its memory bandwidth, and its rate of matrix products."""

import contextlib
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch

CPU = torch.device("cpu")


def cpu_name() -> str:
    """The processor's name, as far as the system tells, and whether it has no more than AVX2: several processors of a
    family share a name."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    names = [line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{name} with AVX2" if torch.backends.cpu.get_cpu_capability() == "AVX2" else name


def describe(device: torch.device) -> dict:
    """What a result records about the machine that it was measured on."""
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,  # this program's threads included
    }


def best_seconds(run: Callable[[], object], device: torch.device, repeat: int = 7) -> float:
    """The shortest of several runs, in seconds: what the machine can do, even if other programs use it too."""
    run()
    seconds = []
    for _ in range(repeat):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        started = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def read_bandwidth(device: torch.device, size: int = 1 << 28) -> float:
    """Bytes per second read from memory, by summing a tensor that no cache can hold (1 GiB of float32)."""
    data = torch.ones(size, dtype=torch.float32, device=device)
    return data.nbytes / best_seconds(data.sum, device)


def copy_bandwidth(device: torch.device, size: int = 1 << 28) -> float:
    """Bytes per second that a copy of a tensor reads and writes, both counted. No cache can hold it (1 GiB)."""
    source = torch.ones(size, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / best_seconds(lambda: target.copy_(source), device)


def matmul_rate(dtype: torch.dtype, device: torch.device, n: int = 2048, enough: float = 0.1) -> float:
    """Floating point operations per second in a product of two n x n matrices, or of smaller ones if these already take
    `enough` seconds: on some CPUs torch has no fast product for a type, and the full size would take a minute."""
    size = min(n, 256)
    while True:
        a, b = (torch.randn(size, size, dtype=dtype, device=device) for _ in range(2))
        seconds = best_seconds(lambda a=a, b=b: a @ b, device)
        if size == n or seconds >= enough:
            return 2 * size**3 / seconds
        size = min(n, 2 * size)


def kernel_limits(dtype: torch.dtype) -> tuple[float, float]:
    """What stage 6's linear kernel reaches on this CPU: (bytes per second read from memory, by one row times 1 GiB of
    weights; floating point operations per second, in a product of two 2,048 x 2,048 matrices). Zeros if it can't run.
    """
    from stage06_fast.config import OPTIMIZATIONS
    from stage06_fast.fast_model import pick_kind, rows
    from stage06_fast.kernels import c_kernel as c
    from stage06_fast.support.memory import empty

    try:
        library, kind = c.load_kernel(), pick_kind(dtype, frozenset(OPTIMIZATIONS))
    except RuntimeError:
        return 0.0, 0.0
    n, cpu, threads, kept = 2048, torch.device("cpu"), torch.get_num_threads(), []
    (number, format), out = c.KINDS[kind], torch.empty(n, n)
    x = rows(n, n, format, kept)
    kept[0].view(torch.float32 if format == c.DTYPES[torch.float32] else torch.bfloat16).normal_()

    def seconds(num_rows: int, num_outputs: int, panels: torch.Tensor) -> float:
        linear = c.Linear(panels.data_ptr(), None, n, num_outputs, number)
        arguments = (linear, x, num_rows, c.STORE, out.data_ptr(), x, None, threads)
        return best_seconds(lambda: library.linear(*arguments), cpu)

    many = empty((1 << 28,), torch.float32).fill_(1)
    read = many.nbytes / seconds(1, many.nbytes // (n * (2 if dtype == torch.bfloat16 else 4)), many)
    return read, 2 * n**3 / seconds(n, n, c.pack(torch.randn(n, n).to(dtype), kind))


def int8_rate() -> float:
    """Integer operations per second in a product of two 2,048 x 2,048 int8 matrices, by torch or stage 8's linear
    kernel, whichever is faster, without the time to round anything to int8. Torch multiplies only 128 rows, since it
    takes very long if the CPU has no instructions for int8."""
    from stage08_int8.config import OPTIMIZATIONS
    from stage08_int8.fast_model import pick_int8_kind, rows
    from stage08_int8.kernels import c_kernel as c

    n, cpu, threads = 2048, torch.device("cpu"), torch.get_num_threads()
    a, b = (torch.ones(n, n, dtype=torch.int8) for _ in range(2))
    product = torch._int_mm  # pyright: ignore[reportPrivateImportUsage]
    rates = [2 * 128 * n**2 / best_seconds(lambda: product(a[:128], b.t()), cpu, repeat=3)]
    with contextlib.suppress(RuntimeError):  # no compiler
        library, kind = c.load_kernel(), pick_int8_kind(frozenset(OPTIMIZATIONS))
        number, format = c.KINDS[kind]
        kept = [c.pack(b, kind), torch.ones(n), torch.empty(n, n)]
        panels, scales, out = (tensor.data_ptr() for tensor in kept)
        integers = rows(n, n, format, kept)
        arguments = (c.Linear(panels, None, n, n, number, scales), integers, n, c.STORE, out, None, None, threads)
        rates.append(2 * n**3 / best_seconds(lambda: library.linear(*arguments), cpu))
    return max(rates)


def pass_work(
    config, itemsize: int, *, tokens: int, logits: int, attended: int, cached: int, weight_bytes: int | None = None
) -> tuple[int, int]:
    """(floating point operations, bytes from memory) of a forward pass that computes nothing twice.

    All layers count for all tokens, although only some are needed in the last one (stage 6 skips the others there).

    Args:
        config: the model's sizes, a ModelConfig.
        itemsize: bytes per number in the weights and the KV cache.
        tokens: how many tokens go through the layers.
        logits: how many of these need logits.
        attended: how many positions these tokens attend to, in total.
        cached: how many of these positions are read from the KV cache.
        weight_bytes: bytes per weight, if not `itemsize`; scales are too few to count.
    """
    layers, width = config.n_layer, config.n_embd
    body = layers * (4 * width * width + 2 * width * config.n_inner)  # the weights that every token uses
    head = config.vocab_size * width  # weights of the head, which only tokens with logits use
    operations = 2 * body * tokens + 2 * head * logits + 4 * layers * width * attended
    return operations, (body + head) * (weight_bytes or itemsize) + 2 * layers * width * cached * itemsize


def least_seconds(work: tuple[int, int], bandwidth: float, rate: float) -> float:
    """The roofline (Williams et al. 2009): the time to compute at `rate` operations per second, or to read at
    `bandwidth` bytes per second, whichever is longer."""
    operations, moved = work
    return max(operations / rate, moved / bandwidth)
