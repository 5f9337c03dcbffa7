"""Two versions of a stage in one process, call by call in turn: sees a gain of a few percent where hosts are shared.

    python -m bench.pair HEAD~3:stage06_fast stage06_fast                 # a git revision's stage, and the tree's
    python -m bench.pair stage05_paged ../other/stage05_paged --workload mixed --sampling chat
    python -m bench.pair HEAD:stage06_fast candidate --dtype bfloat16 --workload prefill --model gpt2

A and B are directories of a stage, or REVISION:DIRECTORY of this repository. Both are loaded as packages, each makes an
engine, and each round sends the same requests through both, A first in even rounds, B first in odd ones. Printed are
the ratios B / A of output tokens per second, each of one round: their median and quartiles; and whether all tokens were
the same. A busy host slows both halves of a round, so their ratio varies less than a speed does.

Two pieces of advice: a round should take under a second (`--requests`), and a ratio counts only if 1.00 is outside the
quartiles in two runs.
"""

import argparse
import io
import json
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from bench import workloads
from bench.machine import describe
from tools.engines import OwnEngine
from tools.sync_stages import ROOT


def directory_of(version: str, folder: Path) -> Path:
    """The directory of a version; a revision's is put into a folder. Raises ValueError if there is none."""
    revision, colon, name = version.rpartition(":")
    if not colon:
        return Path(version)
    command = ["git", "archive", "--format=tar", revision, name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        raise ValueError(f"{version}: {done.stderr.decode(errors='replace').strip()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    (folder / "stagewise").mkdir(exist_ok=True)
    (folder / "stagewise/models").symlink_to(ROOT / "stagewise" / "models")  # named models are beside the stages
    return folder / name


class Half:
    """One of the two engines."""

    def __init__(self, version: str, folder: Path, requests: workloads.Workload, args: argparse.Namespace):
        own = OwnEngine(directory_of(version, folder))
        options = {"dtype": args.dtype, "load_format": args.load_format, "max_num_seqs": args.max_num_seqs}
        self.llm: Any = own.engine(args.model, options, device="cpu")
        self.prompts = [prompt for prompt, _ in requests]
        how = workloads.SAMPLING[args.sampling]
        self.params = [own.SamplingParams(**how, seed=i, max_tokens=n, ignore_eos=True)
                       for i, (_, n) in enumerate(requests)]  # fmt: skip
        self.tokens: list[list[int]] = []

    def run(self) -> float:
        """Seconds for all requests."""
        started = time.perf_counter()
        outputs = self.llm.generate(self.prompts, self.params)
        seconds = time.perf_counter() - started
        self.tokens = [list(output.outputs[0].token_ids) for output in outputs]
        return seconds


def compare(a: Half, b: Half, rounds: int) -> tuple[list[float], bool]:
    """The ratio of speeds, B / A, of each round, and whether the tokens were always the same."""
    ratios, same = [], True
    for turn in range(rounds + 1):
        seconds = {}
        for half in (a, b) if turn % 2 == 0 else (b, a):
            seconds[half] = half.run()
        same = same and a.tokens == b.tokens
        if turn:  # the first round warms up
            ratios.append(seconds[a] / seconds[b])
    return ratios, same


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.pair", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("a", metavar="A", help="a stage's directory, or REVISION:DIRECTORY")
    add("b", metavar="B", help="the other one")
    add("--rounds", type=int, default=40, metavar="N", help="default: %(default)s")
    add("--workload", choices=workloads.SIZES, default="decode", help="default: %(default)s")
    add("--requests", type=int, metavar="N", help="how many; default: the workload's")
    add("--max-num-seqs", type=int, metavar="N", help="how many at once; default: the workload's")
    add("--sampling", choices=workloads.SAMPLING, default="greedy", help="default: %(default)s")
    add("--model", default="tinytales", help="as for the stages; default: %(default)s")
    add("--load-format", choices=("dummy", "auto"), default="auto", help="dummy: random weights, no download")
    add("--dtype", choices=("auto", "float32", "bfloat16", "float16"), default="auto")
    add("--threads", type=int, metavar="N", help="of torch and the kernels; default: all cores")
    add("--json", type=Path, metavar="FILE", help="write the ratios, the machine and the arguments to this file")
    args = parser.parse_args(argv)
    for name, least in (("rounds", 2), ("requests", 1), ("max_num_seqs", 1), ("threads", 1)):
        if (value := getattr(args, name)) is not None and value < least:
            parser.error(f"--{name.replace('_', '-')} must be {least} or more, got {value}")
    if args.threads:
        torch.set_num_threads(args.threads)
    args.max_num_seqs = args.max_num_seqs or workloads.SIZES[args.workload][1]
    requests = workloads.make_workload(args.workload, args.requests)
    try:
        with tempfile.TemporaryDirectory() as folder:
            halves = [
                Half(version, Path(folder) / name, requests, args) for name, version in (("a", args.a), ("b", args.b))
            ]
            ratios, same = compare(halves[0], halves[1], args.rounds)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    low, median, high = statistics.quantiles(ratios, n=4)
    print(f"{args.b} / {args.a}: {median:.3f}, quartiles {low:.3f} to {high:.3f}, {args.rounds} rounds; "
          f"tokens {'the same' if same else 'DIFFER'}")  # fmt: skip
    if args.json:
        kept = {name: str(value) if isinstance(value, Path) else value for name, value in vars(args).items()}
        result = {"machine": describe(torch.device("cpu")), "arguments": kept, "ratios": ratios, "same_tokens": same}
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
