"""The command line with --ray:

    python -m stage07 --input IN.jsonl --output OUT.jsonl --ray auto --actors 2 --cpus-per-actor 1

Exit status: 0 done, 1 some lines are errors, 2 bad input, 130 interrupted.
"""

import argparse
import importlib.util
import time

from ..exits import Outcome, flush_streams, one_interrupt, tell
from ..flags import how_of, options_of, pairs_of
from ..stages import Stage
from .driver import Cluster, complete_file


def run(stage: Stage, args: argparse.Namespace, prog: str) -> int:
    """Complete each --input on a cluster; returns the exit status."""
    outcome, started, total, errors = Outcome(prog), time.perf_counter(), 0, 0
    with one_interrupt(), outcome:
        if importlib.util.find_spec("ray") is None:
            raise ValueError('--ray needs Ray: pip install "stagewise[scaleout]"')
        how, options = how_of(stage, args), options_of(stage, args)
        cluster = Cluster(args.ray, args.actors or 1, args.cpus_per_actor or 1, args.gpus_per_actor or 0)
        for source, output in pairs_of(args):
            counts = complete_file(stage, source, output, options, how, cluster, resume=args.resume, quiet=args.quiet)
            if counts[1]:
                tell(f"{prog}: {counts[1]} of {counts[0]} lines are errors, see {output}")
                outcome.status = 1
            total, errors = total + counts[0], errors + counts[1]
    if not args.quiet and outcome.status < 2:
        seconds = time.perf_counter() - started
        tell(f"{total:,} lines, {errors:,} of them errors, in {seconds:.1f} s with {cluster.actors} actors")
    flush_streams()
    return outcome.status
