"""Rows per second on this machine, with the same cores in one process, in one actor, and in an actor for each core.

    python -m bench.scaleout --rows 2000 --json FILE

The runs use the command line, in turn. Each has two figures: rows per second from the first result to the last, and the
seconds before the first result, in which Ray and the model start.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from bench.run import Failure, grid, in_turn, script, source


def timed(command: list[str], output: Path, rows: int) -> dict[str, float]:
    """Run a command that writes `rows` lines to this file."""
    start, moments = time.perf_counter(), [(0, 0.0)]
    with subprocess.Popen(command) as process:
        has_ended = False
        while not has_ended:
            has_ended = process.poll() is not None  # checked before the file is read for the last time
            count = output.read_bytes().count(b"\n") if output.exists() else 0
            if count > moments[-1][0]:
                moments.append((count, time.perf_counter()))
            time.sleep(0.05)
    if process.returncode or moments[-1][0] != rows:
        raise Failure(f"{' '.join(command)} has ended with {process.returncode} and {moments[-1][0]} lines")
    if len(moments) < 3:
        raise Failure(f"all {rows} lines came at once: take more --rows")
    (first, begun), (last, ended) = moments[1], moments[-1]
    return {"rows_per_second": (last - first) / (ended - begun), "seconds_before": begun - start}


def measure(args: argparse.Namespace) -> dict:
    cores = len(os.sched_getaffinity(0))
    kinds = {
        "one process": [],
        "one actor": ["--ray", "auto", "--actors", "1", "--cpus-per-actor", str(cores)],
        f"{cores} actors": ["--ray", "auto", "--actors", str(cores), "--cpus-per-actor", "1"],
    }
    before: dict[str, list[float]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory() as name:
        inputs = Path(name) / "in.jsonl"
        lines = [{"prompt": f"Once upon a time, {i} foxes"} for i in range(args.rows)]
        inputs.write_text("".join(json.dumps(line) + "\n" for line in lines))

        def rows_per_second(kind: str) -> float:
            output = Path(name) / f"{kind} {len(before[kind])}.jsonl"
            command = [sys.executable, "-m", f"stage{args.stage:02}", "--input", str(inputs), "--output", str(output)]
            command += ["--max-tokens", str(args.max_tokens), "--ignore-eos", "--quiet", *kinds[kind]]
            found = timed(command, output, args.rows)
            print(f"{kind}: {json.dumps(found)}", file=sys.stderr)
            before[kind].append(found["seconds_before"])
            return found["rows_per_second"]

        rounds = in_turn({kind: lambda kind=kind: rows_per_second(kind) for kind in kinds}, args.repeat, warm_up=False)
    return {"stage": args.stage, "rows": args.rows, "max_tokens": args.max_tokens, "rounds": rounds, "before": before}


def table(result: dict) -> str:
    rows = [
        [kind, f"{median(own):.1f} ({min(own):.1f} to {max(own):.1f})", f"{median(result['before'][kind]):.0f}"]
        for kind, own in result["rounds"].items()
    ]
    return f"{grid(['', 'rows per second', 'seconds before the first result'], rows)}\n\n{source(result)}"


OPTIONS = {
    "--stage": dict(type=int, default=6),
    "--rows": dict(type=int, default=2000),
    "--max-tokens": dict(type=int, default=64),
}
main = script(measure, table, rounds=3, options=OPTIONS)


if __name__ == "__main__":
    sys.exit(main())
