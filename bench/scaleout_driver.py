"""When a cluster's driver becomes the limit: a run whose engines only wait as long as real ones would compute.

    python -m bench.scaleout_driver answers.jsonl --actors 1000 --rows 100000 --seconds 0.9
    python -m bench.scaleout_driver answers.jsonl --ray --rows 20000

The lines and their results come from the result file of a real run. The first command simulates the actors in the
driver's process: each has `--at-once` rows under way, each row takes `--seconds` on average (exponentially
distributed), and its result comes when it is due. If the driver can't keep up, results come late, and the run takes
longer than the actors would. Everything else is the driver's own work: it reads the input, checks and names each line,
and writes the results. The second command runs real Ray, with actors that answer immediately, to measure what Ray costs
per row.
"""

import argparse
import heapq
import itertools
import json
import random
import resource
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

from bench.run import grid, script, source
from stagewise.batch_file import How
from stagewise.sampling import Sampling
from stagewise.scaleout import driver
from stagewise.stages import STAGES

STAGE = STAGES[6]
RESULT = ("text", "token_ids", "finish_reason", "stop_reason")


def read_results(path: Path) -> list[dict]:
    """The results of a run. Raises ValueError or OSError."""
    try:
        lines = [json.loads(line) for line in path.read_bytes().split(b"\n") if line.strip()]
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    results = [line for line in lines if isinstance(line, dict) and line.keys() >= {*RESULT}]
    if not results:
        raise ValueError(f"{path} has no results of a batch run")
    return results


def recorded(results: list[dict]) -> type:
    """Actors that answer immediately, with recorded results."""

    class Recorded:
        def __init__(self, *_):
            pass

        def __call__(self, batch: dict) -> dict:
            made = [line_of(raw, name, results) for raw, name in zip(batch["raw"], batch["id"], strict=True)]
            return {"place": batch["place"], "result": made, "is_error": [False] * len(made)}

    return Recorded


def line_of(raw: bytes, name: str, results: list[dict]) -> bytes:
    """The result line for an input line."""
    fields = json.loads(bytes(raw)) | {"id": json.loads(name)}
    recorded = results[zlib.crc32(name.encode()) % len(results)]
    return json.dumps(fields | {key: recorded[key] for key in RESULT}, ensure_ascii=False).encode()


def due(rows: list[dict], places: int, seconds: float, lags: list[float], results: list[dict]) -> Iterator:
    """Like `driver.completed`: yields each result when engines that complete `places` rows at once would have it.

    lags: gets, for each result, how many seconds after it was due it was taken.
    """
    rng, start = random.Random(0), time.perf_counter()
    waiting = iter(rows)
    under_way = [(rng.expovariate(1 / seconds), row["place"], row) for row in itertools.islice(waiting, places)]
    heapq.heapify(under_way)
    while under_way:
        at, _, row = heapq.heappop(under_way)
        result = line_of(row["raw"], row["id"], results)
        now = time.perf_counter() - start
        if now < at:
            time.sleep(at - now)
        lags.append(max(0.0, now - at))
        yield row["place"], result, False
        if (row := next(waiting, None)) is not None:
            heapq.heappush(under_way, (at + rng.expovariate(1 / seconds), row["place"], row))


def measure(args: argparse.Namespace) -> dict:
    for name in ("rows", "actors", "at_once", "seconds"):
        if not getattr(args, name) > 0:
            raise ValueError(f"--{name.replace('_', '-')} must be more than 0, got {getattr(args, name)}")
    results = read_results(args.results)
    lags: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        inputs = Path(name) / "in.jsonl"
        prompts = [{k: v for k, v in result.items() if k not in (*RESULT, "id")} for result in results]
        inputs.write_text("".join(json.dumps(prompts[i % len(prompts)]) + "\n" for i in range(args.rows)))
        places = args.actors * args.at_once
        if args.ray:
            driver.Completer = recorded(results)
        else:
            driver.completed = lambda _, rows, *__: due(rows, places, args.seconds, lags, results)
        options = {"model": "tinytales", "load_format": "auto", "max_num_seqs": args.at_once, "dtype": "float32"}
        how, cluster, output = How(Sampling(STAGE)), driver.Cluster("auto", 2, 1, 0), Path(name) / "out.jsonl"
        start, cpu = time.perf_counter(), time.process_time()
        driver.complete_file(STAGE, str(inputs), output, options, how, cluster, resume=False, quiet=False)
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    figures = {
        "rows": args.rows,
        "seconds": seconds,
        "rows_per_second": args.rows / seconds,
        "driver_cpu_seconds": cpu,
        "driver_cpu_microseconds_a_row": 1e6 * cpu / args.rows,
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    if not args.ray:
        demand = places / args.seconds
        figures |= {"actors": args.actors, "rows_per_second_of_actors": demand}
        figures |= {"lag_p50": sorted(lags)[len(lags) // 2], "lag_p99": sorted(lags)[int(0.99 * len(lags))]}
    return figures


def table(result: dict) -> str:
    cells = {
        "rows": f"{result['rows']:,}",
        "rows per second": f"{result['rows_per_second']:,.0f}",
        "the driver's CPU time for a row": f"{result['driver_cpu_microseconds_a_row'] / 1000:.2f} ms",
        "its memory": f"{result['memory_mb']:,.0f} MB",
    }
    if "actors" in result:
        cells["rows per second of the actors"] = f"{result['rows_per_second_of_actors']:,.0f}"
        cells |= {f"{p} of a result's delay": f"{1000 * result[f'lag_{p}']:.1f} ms" for p in ("p50", "p99")}
    return f"{grid([*cells], [[*cells.values()]], left=())}\n\n{source(result)}"


OPTIONS = {
    "results": dict(type=Path, metavar="RESULTS", help="of a real run"),
    "--rows": dict(type=int, default=100_000, metavar="N", help="default: %(default)s"),
    "--actors": dict(type=int, default=1000, metavar="N", help="default: %(default)s"),
    "--at-once": dict(type=int, default=8, metavar="N", help="rows under way in an actor; default: %(default)s"),
    "--seconds": dict(type=float, default=1, help="that a row takes; default: %(default)s"),
    "--ray": dict(action="store_true", help="real Ray, two actors that answer at once"),
}
main = script(measure, table, options=OPTIONS)


if __name__ == "__main__":
    sys.exit(main())
