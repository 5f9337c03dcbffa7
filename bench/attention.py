"""The attention kernels of stage 5 against gather-plus-SDPA, and against the bandwidth of the machine.

    python -m bench.attention --json bench/results/attention.json --plot bench/results/attention.png

Gather-plus-SDPA is what one does without a kernel for blocks: copy each request's keys and values together, then call
torch's fused attention on the copies. Each way runs the attention of a decode step (a query per request) over the
12 layers of GPT-2 small, so that, as in the engine, a layer's keys and values have left the CPU's cache before they are
needed again. The time is the shortest of several runs. Bandwidth counts what has to be read, every key and value once,
whatever a method really moves; beside it stands what a plain copy of 1 GiB reads and writes on this machine.
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.machine import best_seconds, copy_bandwidth, describe, read_bandwidth
from bench.report import write_result
from stage05_paged.attention import pick_backend

N_LAYER, N_HEAD, HEAD_DIM = 12, 12, 64  # GPT-2 small


def gather_and_sdpa(query: Tensor, keys: Tensor, values: Tensor, block_tables: Tensor) -> Tensor:
    """All requests are equally long here. keys, values: [num_blocks, n_head, block_size, head_dim], for SDPA."""
    k, v = (t[block_tables].transpose(1, 2).flatten(2, 3) for t in (keys, values))  # [batch, n_head, n_seq, head_dim]
    return F.scaled_dot_product_attention(query[:, :, None], k, v)[:, :, 0]


def measure(
    batch: int, context: int, block_size: int, dtype: torch.dtype, device: torch.device, backends: list[str]
) -> dict:
    """Seconds per layer of each way, for one batch size and context."""
    per_request = -(-context // block_size)
    shape = (N_LAYER, batch * per_request, N_HEAD)
    keys = torch.randn(*shape, HEAD_DIM, block_size, device=device).to(dtype)
    values = torch.randn(*shape, block_size, HEAD_DIM, device=device).to(dtype)
    straight = keys.transpose(-1, -2).contiguous()
    query = torch.randn(batch, N_HEAD, HEAD_DIM, device=device).to(dtype)
    tables = torch.randperm(batch * per_request, device=device).view(batch, per_request)
    starts = torch.arange(batch + 1, device=device)
    lengths = torch.full((batch,), context, device=device)

    def layers(attend) -> None:
        for layer in range(N_LAYER):
            attend(layer)

    expected = gather_and_sdpa(query, straight[0], values[0], tables).float()
    seconds = {"gather + SDPA": lambda i: gather_and_sdpa(query, straight[i], values[i], tables)}
    for name in backends:
        attention = pick_backend(name, device, HEAD_DIM)[1]
        seconds[name] = lambda i, attention=attention: attention(query, keys[i], values[i], tables, starts, lengths)
        error = (seconds[name](0).float() - expected).abs().max()
        assert error < (1e-5 if dtype == torch.float32 else 2e-2), f"{name} is wrong by {error}"
    seconds = {name: best_seconds(lambda f=f: layers(f), device, repeat=5) / N_LAYER for name, f in seconds.items()}
    return {"batch": batch, "context": context, "bytes": 2 * keys[0].nbytes, "seconds": seconds}


LABEL = dict(facecolor="white", edgecolor="none", pad=1)


def table(result: dict) -> str:
    """The measurements in Markdown: times per layer, and the best kernel's bandwidth."""
    names = list(result["rows"][0]["seconds"])
    head = ["batch", "context", *(f"{name}, µs" for name in names), "speed-up over gather + SDPA", "GB/s"]
    lines = [" | ".join(head), " | ".join(["---:"] * len(head))]
    for row in result["rows"]:
        times = row["seconds"]
        fastest = min(times[name] for name in names[1:])
        cells = [row["batch"], row["context"], *(f"{1e6 * times[name]:,.0f}" for name in names)]
        cells += [f"{times[names[0]] / fastest:.1f} ×", f"{row['bytes'] / fastest / 1e9:.1f}"]
        lines.append(" | ".join(map(str, cells)))
    return "\n".join(f"| {line} |" for line in lines)


def plot(result: dict, path: Path) -> None:
    """Achieved bandwidth against the size of the batch, a panel per context."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    contexts = sorted({row["context"] for row in result["rows"]})
    figure, panels = plt.subplots(
        1, len(contexts), figsize=(3.1 * len(contexts), 3.7), sharey=True, squeeze=False, layout="constrained"
    )
    panels = panels[0]
    most = max(result["copy_bandwidth"], result["read_bandwidth"]) / 1e9
    styles = dict(zip(result["rows"][0]["seconds"], ["o:", "s--", "D-", "^-."], strict=False))
    for axes, context in zip(panels, contexts, strict=True):
        rows = [row for row in result["rows"] if row["context"] == context]
        for (name, style), color in zip(styles.items(), ["#D55E00", "#009E73", "#0072B2", "#CC79A7"], strict=False):
            rates = [row["bytes"] / row["seconds"][name] / 1e9 for row in rows]
            axes.plot([row["batch"] for row in rows], rates, style, color=color, label=name)
            above = [i for i, rate in enumerate(rates) if rate > most]
            if above:  # faster than memory can be read: the data come from somewhere nearer
                i = max(above, key=lambda i: rates[i])
                size = f"{N_LAYER * rows[i]['bytes'] / 1e6:.0f} MB in {N_LAYER} layers:\npartly from the CPU's caches"
                side = dict(ha="left", xytext=(8, -4)) if i < len(rows) // 2 else dict(ha="right", xytext=(-8, -4))
                place = (rows[i]["batch"], rates[i])
                axes.annotate(size, place, textcoords="offset points", va="top", fontsize=7, bbox=LABEL, **side)
        for kind, dashes in (("copy", (4, 2)), ("read", (1, 1))):
            axes.axhline(result[f"{kind}_bandwidth"] / 1e9, color="black", lw=1, dashes=dashes, label=f"a plain {kind}")
        axes.set_xscale("log", base=2)
        axes.set_xticks([row["batch"] for row in rows], [row["batch"] for row in rows])
        axes.set_title(f"{context} tokens of context", fontsize=9)
        axes.set_xlabel("requests in the batch")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("keys and values read, GB/s")
    panels[0].set_ylim(0)
    handles, labels = panels[-1].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, frameon=False, loc="outside lower center", ncols=len(labels))
    machine = result["machine"]
    figure.suptitle(
        f"Decode attention over blocks comes near the machine's bandwidth only if nothing is gathered first\n"
        f"GPT-2 small, {result['dtype']}, {machine['device']}, {machine['threads']} threads", fontsize=10,
    )  # fmt: skip
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16, 32, 64], metavar="N")
    parser.add_argument("--contexts", type=int, nargs="+", default=[128, 256, 512, 1024], metavar="N")
    parser.add_argument("--block-size", type=int, default=16, metavar="N", help="default: %(default)s")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--backends", nargs="+", help="default: torch and c on a CPU, torch and triton on CUDA")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured to this file")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw it")
    args = parser.parse_args()
    device, dtype = torch.device(args.device), getattr(torch, args.dtype)
    backends = args.backends or ["torch", "c" if device.type == "cpu" else "triton"]
    result = {
        "machine": describe(device),
        "dtype": args.dtype,
        "block_size": args.block_size,
        "copy_bandwidth": copy_bandwidth(device),
        "read_bandwidth": read_bandwidth(device),
        "rows": [measure(b, c, args.block_size, dtype, device, backends) for c in args.contexts for b in args.batches],
    }
    machine = result["machine"]
    print(f"machine: {machine['device']}, {machine['threads']} threads; torch {machine['torch']}; {args.dtype}")
    print(f"a copy reads and writes {result['copy_bandwidth'] / 1e9:.1f} GB/s", end=", ")
    print(f"a sum reads {result['read_bandwidth'] / 1e9:.1f} GB/s\n\n{table(result)}")
    if args.json:
        write_result(args.json, result)
    if args.plot:
        plot(result, args.plot)


if __name__ == "__main__":
    main()
