"""Rows per second on this machine: one process, one actor, two actors, each with the same cores.

    python -m bench.scaleout --rows 2000 --json FILE

The runs are the command line's, in turn. Each has two figures: rows per second from the first result to the last, and
the seconds before the first one, in which Ray and the model begin.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from bench.machine import describe
from bench.report import write_result


def timed(command: list[str], output: Path, rows: int) -> dict[str, float]:
    """Run a command that writes so many lines to this file."""
    start, moments = time.perf_counter(), []
    with subprocess.Popen(command) as process:
        while process.poll() is None:
            count = output.read_bytes().count(b"\n") if output.exists() else 0
            if count and (not moments or count > moments[-1][0]):
                moments.append((count, time.perf_counter()))
            time.sleep(0.05)
    if process.returncode or moments[-1][0] != rows:
        raise RuntimeError(f"{' '.join(command)} has ended with {process.returncode} and {moments[-1:]} lines")
    (first, begun), (last, ended) = moments[0], moments[-1]
    return {"rows_per_second": (last - first) / (ended - begun), "seconds_before": begun - start}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", type=int, default=6)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    cores = len(os.sched_getaffinity(0))
    kinds = {
        "one process": [],
        "one actor": ["--ray", "auto", "--actors", "1", "--cpus-per-actor", str(cores)],
        f"{cores} actors": ["--ray", "auto", "--actors", str(cores), "--cpus-per-actor", "1"],
    }
    rounds: dict[str, list[dict]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory() as name:
        source = Path(name) / "in.jsonl"
        lines = [{"prompt": f"Once upon a time, {i} foxes"} for i in range(args.rows)]
        source.write_text("".join(json.dumps(line) + "\n" for line in lines))
        for number in range(args.rounds):
            for kind, flags in kinds.items():
                output = Path(name) / f"{kind} {number}.jsonl"
                command = [sys.executable, "-m", f"stage{args.stage:02}", "--input", str(source)]
                command += ["--output", str(output), "--max-tokens", str(args.max_tokens), "--ignore-eos", "--quiet"]
                command += flags
                rounds[kind].append(timed(command, output, args.rows))
                print(f"{kind}: {json.dumps(rounds[kind][-1])}", flush=True)
    if args.json:
        result = {"machine": describe(torch.device("cpu")), **vars(args), "json": None, "rounds": rounds}
        write_result(args.json, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
