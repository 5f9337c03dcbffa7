"""The command line: that of a stage, with --ray.

    python -m stage06 --input IN.jsonl --output OUT.jsonl --ray auto --actors 2 --cpus-per-actor 1

Exit status: 0 done, 1 some lines are errors, 2 bad input, 130 interrupted.
"""

import argparse
import functools
import importlib
import importlib.util
import sys
import time

from .driver import Cluster, run

PACKAGES = {"stage04": "stage04_continuous", "stage05": "stage05_paged", "stage06": "stage06_fast"}


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, got {value}")
    return value


def add_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("cluster").add_argument
    add("--ray", required=True, metavar="ADDRESS", help="of a cluster; auto: this machine's, or a new one on it alone")
    add("--actors", type=positive, default=1, metavar="N", help="engines (default: %(default)s)")
    add("--cpus-per-actor", type=positive, default=1, metavar="N", help="(default: %(default)s)")
    add("--gpus-per-actor", type=float, default=0, metavar="N", help="(default: %(default)s)")


def main(stage: str, argv: list[str] | None = None) -> int:
    """Run the command line of a stage on a cluster; returns the exit status."""
    if stage not in PACKAGES:
        print(f"{stage} can't run on a cluster: {', '.join(PACKAGES)} can", file=sys.stderr)
        return 2
    package = PACKAGES[stage]
    cli, console, config, params = (
        importlib.import_module(f"{package}.{name}") for name in ("cli", "console", "config", "sampling_params")
    )
    console.prepare_streams()
    parser = cli.build_parser()
    add_flags(parser)
    args = parser.parse_args(argv)
    outcome, started, total, errors = console.Outcome(parser.prog), time.perf_counter(), 0, 0
    with console.one_interrupt(), outcome:
        if not args.input or not args.output or args.prompts or args.prompts_file or args.interactive or args.trace:
            raise ValueError("--ray needs --input and --output, and takes no --prompts, --interactive or --trace")
        if importlib.util.find_spec("ray") is None:
            raise ValueError("--ray needs Ray: pip install 'ray[data]'")
        defaults = params.SamplingParams(**{name: getattr(args, name) for name in cli.SAMPLING_ARGUMENTS})
        cluster = Cluster(args.ray, args.actors, args.cpus_per_actor, args.gpus_per_actor)
        options = config.engine_options(args)
        for source, output in cli.pairs_of(args):
            counts = run(package, source, output, options, defaults, cluster, resume=args.resume, quiet=args.quiet)
            if counts[1]:
                console.tell(f"{parser.prog}: {counts[1]} of {counts[0]} lines are errors, see {output}")
                outcome.status = 1
            total, errors = total + counts[0], errors + counts[1]
    if not args.quiet and outcome.status < 2:
        seconds = time.perf_counter() - started
        console.tell(f"{total:,} lines, {errors:,} of them errors, in {seconds:.1f} s with {args.actors} actors")
    console.flush_streams()
    return outcome.status


stage04, stage05, stage06 = (functools.partial(main, stage) for stage in PACKAGES)
