"""The flags of the command line that put a batch run on a cluster."""

import argparse


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, got {value}")
    return value


def add_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("cluster").add_argument
    add("--ray", metavar="ADDRESS", help="run --input on a cluster; auto: this machine's, or a new one on it alone")
    add("--actors", type=positive, metavar="N", help="with --ray: engines (default: 1)")
    add("--cpus-per-actor", type=positive, metavar="N", help="with --ray (default: 1)")
    add("--gpus-per-actor", type=float, metavar="N", help="with --ray (default: 0)")
