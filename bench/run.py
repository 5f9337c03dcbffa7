"""What all measurements share: options, alternating rounds, a record of the machine and the command, the JSON file and
the table.

A script defines what it measures and how that is shown:

    def measure(args) -> dict                   # or a generator that yields the result so far, repeatedly
    def table(result) -> str                    # Markdown, with `source(result)` at its end

    main = script(measure, table, rounds=3)

Timed figures are in a result under "rounds", at any depth: a list for each figure, with a number for each round. Tables
show medians. If rounds differ by more than a tenth, other programs used the machine, and the runner says so.
"""

import argparse
import json
import re
import shlex
import subprocess
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from stagewise.exits import reason

CLOSE = 0.1  # how far apart rounds may be
FAR = 0.25  # how far apart those of a figure in a page may be


class Failure(Exception):
    """Something could not be measured; the message says why, in one line."""


def in_turn(cases: dict[Any, Callable[[], Any]], rounds: int, warm_up: bool = True) -> dict[Any, list[Any]]:
    """What each case returns in each round. Every other round runs the cases in reverse; a first round to warm up does
    not count."""
    found: dict[Any, list[float]] = {name: [] for name in cases}
    for number in range(-warm_up, rounds):
        for name in list(cases)[:: -1 if number % 2 else 1]:
            figure = cases[name]()
            if number >= 0:
                found[name].append(figure)
    return found


def figures(found: Any, inside: bool = False) -> Iterator[list[float]]:
    """The rounds of each figure of a result: the lists under "rounds", at any depth."""
    for key, value in found.items() if isinstance(found, dict) else enumerate(found):
        if isinstance(value, list) and (inside or key == "rounds"):
            yield value
        elif isinstance(value, dict | list):
            yield from figures(value, inside or key == "rounds")


def apart(figures: Iterable[list[float]]) -> float | None:
    """How far apart the rounds of a figure are, at most: 0.1 if the largest is a tenth more than the smallest. None if
    no figure has several rounds."""
    return max((max(own) / min(own) - 1 for own in figures if len(own) > 1 and min(own) > 0), default=None)


def steady(found: Any, inside: bool = False) -> Any:
    """A result for a page: rounds that are more than FAR apart are left out, so their figure is an empty list."""
    if isinstance(found, dict):
        return {key: steady(value, inside or key == "rounds") for key, value in found.items()}
    if isinstance(found, list) and inside:
        return found if (apart([found]) or 0) <= FAR else []
    return [steady(value) for value in found] if isinstance(found, list) else found


def in_rounds(figures: Iterable[list[float]], spread: bool = True) -> str:
    """For a caption: how many rounds there were and, if the table does not show it, how far apart they were."""
    figures = list(figures)
    number = max(map(len, figures), default=1)
    within = f", within {apart(figures) or 0:.0%}" if spread else ""
    return "one run each" if number == 1 else f"medians of {number} runs in turn{within}"


def tell_spread(name: str, how_far: float | None) -> None:
    if how_far is not None and how_far > CLOSE:
        print(f"{name}: the rounds are up to {how_far:.0%} apart, so other programs used the machine: this is no "
              "result for a page, unless the page says so", file=sys.stderr)  # fmt: skip


def grid(titles: Sequence[str], rows: Iterable[Sequence[str]], left: Collection[int] = (0,)) -> str:
    """A table in Markdown. left: which columns are aligned to the left."""
    sides = ["---" if i in left else "---:" for i in range(len(titles))]
    return "\n".join(f"| {' | '.join(line)} |" for line in [titles, sides, *rows])


def source(result: dict, spread: bool = True) -> str:
    """The end of a caption: the machine, the rounds if there were several, and the command. spread: False if the table
    itself shows how far apart the rounds were."""
    machine, measured = result["machine"], list(figures(result))
    threads = f"{machine['threads']} thread{'s' if machine['threads'] > 1 else ''}"
    rounds = f"; {in_rounds(measured, spread)}" if measured else ""
    busy = ", with other programs running" if is_busy(machine) else ""
    return f"{machine['device']}, {threads}, torch {machine['torch']}{rounds}{busy}. `{command(result)}`"


def is_busy(machine: dict) -> bool:
    """Whether other programs used the machine: the load was more than its cores and this program's threads explain."""
    return (machine.get("load") or 0) > machine["cores"] + machine["threads"]


def command(result: dict) -> str:
    """The command that measures it again, without the file that it wrote."""
    return re.sub(r" --json \S+", "", result["command"])


def script(
    measure: Callable[[argparse.Namespace], dict | Iterator[dict]],
    table: Callable[[dict], str],
    *,
    rounds: int | None = None,
    options: dict[str, dict[str, Any]] | None = None,
    figures: Callable[[dict], Iterable[list[float]]] = figures,
) -> Callable[..., int]:
    """The `main` of a script.

    Args:
        rounds: the default number of rounds; None if there are none.
        options: flag -> its arguments for argparse.
        figures: the rounds of each figure of a result.
    """

    def main(argv: list[str] | None = None) -> int:
        module = sys.modules[measure.__module__]
        name = module.__spec__.name if module.__spec__ else module.__name__
        parser = argparse.ArgumentParser(
            prog=f"python -m {name}", description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        for flag, told in (options or {}).items():
            parser.add_argument(flag, **told)
        if rounds:
            parser.add_argument("--repeat", type=int, default=rounds, metavar="N", help="rounds; default: %(default)s")
        parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured to this file")
        args = parser.parse_args(argv)
        if rounds and args.repeat < 1:
            parser.error(f"--repeat must be at least 1, got {args.repeat}")
        words = shlex.join(sys.argv[1:] if argv is None else argv)
        begin = {"command": f"python -m {name} {words}".strip()}
        is_new = args.json and not args.json.exists()
        try:  # before the work: no measurement is lost to a bad file name
            if args.json:
                args.json.open("a").close()
        except OSError as error:
            print(f"{name}: --json {reason(error)}", file=sys.stderr)
            return 2
        result, status = {}, 0
        try:
            found = measure(args)
            for fields in [found] if isinstance(found, dict) else found:
                result = begin | {"machine": here()} | fields
                if args.json:  # what was measured is not lost, whatever happens next
                    write_result(args.json, result)
        except (ValueError, OSError, Failure, subprocess.SubprocessError) as error:
            print(f"{name}: {reason(error)}", file=sys.stderr)
            status = 2 if isinstance(error, ValueError | OSError) and not result else 1
        except KeyboardInterrupt:
            print(f"{name}: interrupted", file=sys.stderr)
            status = 130
        except Exception:  # a bug in the script: show where
            traceback.print_exc()
            status = 1
        if hasattr(sys.stdout, "reconfigure"):  # a terminal may have no ×
            sys.stdout.reconfigure(errors="backslashreplace")  # pyright: ignore[reportAttributeAccessIssue]
        if result:
            result = json.loads(json.dumps(result))  # with keys as in a file: strings
            print(table(result))
            tell_spread(name, apart(figures(result)))
        elif is_new:
            args.json.unlink()
        return status or (1 if result.get("missing") else 0)

    return main


def here() -> dict:
    import torch

    from bench.machine import describe

    return describe(torch.device("cpu"))


def write_result(path: Path, result: dict) -> None:
    """Write a result as JSON, with a line for each entry; nested entries get a line for each item."""
    lines = []
    for name, value in rounded(result).items():
        items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
        text = json.dumps(value, ensure_ascii=False)
        if any(isinstance(item, list | dict) for item in items):
            begins = [f"{json.dumps(str(key))}: " for key in value] if isinstance(value, dict) else [""] * len(value)
            inner = (f"  {key}{json.dumps(item, ensure_ascii=False)}" for key, item in zip(begins, items, strict=True))
            text = text[0] + "\n" + ",\n".join(inner) + "\n " + text[-1]
        lines.append(f" {json.dumps(name)}: {text}")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def rounded(value: Any) -> Any:
    """A result with every float rounded to six significant digits."""
    if isinstance(value, dict):
        return {name: rounded(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(inner) for inner in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
