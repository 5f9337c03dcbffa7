"""What was measured, as tables: medians of the runs, and the tables and pictures in the READMEs.

    python -m tests.report results/ladder.json      # print a result's tables
    python -m tests.report --write                  # put them into the READMEs and draw their pictures

A README names its results in a comment, `<!-- throughput: results/ladder.json speed work -->`, with the tables that it
wants; what stands between that line and `<!-- end -->` is written here. A picture of the same name beside the result
is drawn anew. `<!-- comparison: FILE FILE … -->` is several results in one table, and `<!-- ablation: FILE … -->`,
`profile`, `accuracy` and `linear` are what the commands of these names print.
"""

import argparse
import importlib
import json
import re
import statistics
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np

from tests import plots

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"(<!-- (\w+):((?: \S+\.json)+)((?: \w+)*) -->\n).*?(<!-- end -->)", re.DOTALL)
# Who makes a table of several results; each imports what imports this module.
MAKERS = {
    "ablation": "tests.ablation",
    "profile": "tests.profile",
    "accuracy": "tests.accuracy",
    "linear": "tools.linear",
}


def summarize(runs: list[dict], arrivals: list[float] | None, least_seconds: float | None) -> dict:
    """`runs`, with the latencies that follow from the times of the tokens, and `summary`, each engine's medians.

    A ratio is to the stage before in the same run; a peer's is to the last stage.
    """
    runs = [digest(run, arrivals) for run in runs]
    summary = []
    for engine in dict.fromkeys(run["engine"] for run in runs):
        own = [run for run in runs if run["engine"] == engine]
        row = {"engine": engine}
        for name, value in own[0].items():
            if value is None or isinstance(value, int | float):
                row[name] = None if value is None else statistics.median(run[name] for run in own)
        stages = [other for other in summary if other["engine"].startswith("stage")]
        row["ratio"] = row["tokens_per_second"] / stages[-1]["tokens_per_second"] if stages else None
        row["ratio_to"] = stages[-1]["engine"] if stages else None
        row["limit_share"] = least_seconds / row["seconds"] if least_seconds else None
        summary.append(row)
    return {"versions": {run["engine"]: run["versions"] for run in runs if "versions" in run}, "summary": summary,
            "runs": [{name: value for name, value in run.items() if name != "versions"} for run in runs]}  # fmt: skip


def digest(run: dict, arrivals: list[float] | None) -> dict:
    """A run without its tokens and their times: what follows from them instead; `ttft` is of each request."""
    kept = {name: value for name, value in run.items() if name not in ("token_ids", "times", "machine")}
    kept["output_tokens"] = sum(map(len, run["token_ids"]))
    kept["tokens_per_second"] = kept["output_tokens"] / run["seconds"]
    times = run["times"]
    ttft = times and [own[0] - sent for own, sent in zip(times, arrivals or [0.0] * len(times), strict=True)]
    itl = times and [after - before for own in times for before, after in pairwise(own)]
    for name, values in (("ttft", ttft), ("itl", itl)):
        for p in (50, 95):
            kept[f"{name}_p{p}"] = float(np.percentile(values, p)) if values else None
    return {**kept, "ttft": ttft and [round(seconds, 4) for seconds in ttft]}


def short(engine: str) -> str:
    """`stage 3` of stage03_kvcache; a peer's name as it is."""
    return f"stage {int(engine[5:7])}" if engine.startswith("stage") else engine


def seconds(name: str) -> Callable[[dict], str | None]:
    def form(row: dict) -> str | None:
        value = row.get(name)
        return None if value is None else f"{value:.2f} s" if value >= 0.1 else f"{1000 * value:.0f} ms"

    return form


def milliseconds(name: str) -> Callable[[dict], str | None]:
    return lambda row: None if row.get(name) is None else f"{1000 * row[name]:.1f} ms"


def share(name: str, form: str = ".1%") -> Callable[[dict], str | None]:
    return lambda row: None if row.get(name) is None else f"{row[name]:{form}}"


def count(name: str) -> Callable[[dict], str | None]:
    return lambda row: None if row.get(name) is None else f"{row[name]:,.0f}"


TABLES = {
    "speed": {
        "engine": lambda row: f"`{row['engine']}`",
        "tok/s": lambda row: f"{row['tokens_per_second']:.1f}",
        "against": lambda row: f"{row['ratio']:.2f} × {short(row['ratio_to'])}" if row["ratio"] else None,
        "of the limit": share("limit_share"),
        "TTFT p50": seconds("ttft_p50"),
        "TTFT p95": seconds("ttft_p95"),
        "ITL p50": milliseconds("itl_p50"),
        "ITL p95": milliseconds("itl_p95"),
    },
    "work": {
        "engine": lambda row: f"`{row['engine']}`",
        "forward passes": count("forwards"),
        "tokens computed": count("tokens_computed"),
        "of all positions, padding": share("padding_share"),
        "requests at once, mean (most)": lambda row: (
            f"{row['rows_mean']:.1f} ({row['rows_max']:.0f})" if row.get("rows_mean") else None
        ),
        "of the reserved KV cache, used": share("kv_used_share"),
        "preemptions": lambda row: f"{row['preemptions']:.0f}" if row.get("preemptions") else None,
        "peak memory": lambda row: f"{row['peak_bytes'] / 1e9:.2f} GB",
        "requests with the same ids": share("same_ids_share", ".0%"),
    },
}


def table(result: dict, name: str) -> str:
    """One of the tables in Markdown; columns that say nothing are left out."""
    cells = {
        title: [column(row) for row in result["summary"]]
        for title, column in TABLES[name].items()
        if any(column(row) is not None for row in result["summary"])
    }
    if all(value == "100%" for value in cells.get("requests with the same ids", ())):
        cells.pop("requests with the same ids", None)
    lines = [" | ".join(cells), " | ".join(["---"] + ["---:"] * (len(cells) - 1))]
    lines += [" | ".join(value or "" for value in values) for values in zip(*cells.values(), strict=True)]
    return "\n".join(f"| {line} |" for line in lines)


def caption(result: dict) -> str:
    """What the numbers are of: requests, model, machine, and the command that makes them."""
    machine, what = result["machine"], "1 request" if result["requests"] == 1 else f"{result['requests']} requests"
    sentences = [
        f"Workload {result['workload']}: {what}, at most {result['max_num_seqs']} at once",
        f", {result['rate']:g} arriving a second" if result["rate"] else "",
        f"; {result['model']}{' with random weights' if result['load_format'] == 'dummy' else ''}, {result['dtype']}; ",
        f"{machine['device']}, {machine['threads']} threads, torch {machine['torch']}; ",
        "one run each. " if result["repeat"] == 1 else f"medians of {result['repeat']} runs. ",
    ]
    if result["least_seconds"]:
        memory, products = result["bandwidth"] / 1e9, result["matmul_rate"] / 1e9
        sentences.append(f"The limit, probed in the same run: {memory:.1f} GB/s read, {products:.0f} GFLOP/s. ")
    versions = {name: version for packages in result["versions"].values() for name, version in packages.items()}
    if versions.pop("torch", None):
        sentences.append(f"Peers: {', '.join(' '.join(pair) for pair in versions.items())}. ")
    sentences += [f"Missing: {engine} ({why}). " for engine, why in result["missing"].items()]
    return "".join(sentences) + f"`{result['command']}`"


def tables(result: dict, names: tuple[str, ...] = tuple(TABLES)) -> str:
    """The tables, one behind the other, and what they are of."""
    return "\n\n".join([*(table(result, name) for name in names), caption(result)])


def command(result: dict) -> str:
    """How to make it again; where it was written to is nobody's concern."""
    return re.sub(r" --json \S+", "", result["command"])


def comparison(results: list[dict]) -> str:
    """Several results in one table, a row each: every engine's tok/s, the last stage against the best of the peers, and
    its share of the limit."""
    engines = list(dict.fromkeys(row["engine"] for result in results for row in result["summary"]))
    last = [engine for engine in engines if engine.startswith("stage")][-1]
    titles = ["workload", "type", *(f"`{engine}`" for engine in engines), "against the best other", "of the limit"]
    lines = [" | ".join(titles), " | ".join(["---"] * 2 + ["---:"] * (len(titles) - 2))]
    for result in results:
        rows = {row["engine"]: row for row in result["summary"]}
        speeds = {engine: row["tokens_per_second"] for engine, row in rows.items()}
        best = max(speed for engine, speed in speeds.items() if not engine.startswith("stage"))
        cells = [f"{speeds[engine]:,.1f}" if engine in speeds else "" for engine in engines]
        cells += [f"{speeds[last] / best:.2f} ×", f"{rows[last]['limit_share']:.0%}"]
        lines.append(" | ".join([result["workload"], result["dtype"], *cells]))
    machine = results[0]["machine"]
    packages = {name: version for own in results[0]["versions"].values() for name, version in own.items()}
    packages.pop("torch", None)
    limits = [(result["bandwidth"] / 1e9, result["matmul_rate"] / 1e9) for result in results]
    return "\n".join(f"| {line} |" for line in lines) + (
        f"\n\nOutput tokens per second; {results[0]['model']} with random weights; {machine['device']}, "
        f"{machine['threads']} threads, torch {machine['torch']}; {', '.join(' '.join(p) for p in packages.items())}. "
        f"A row is one run of all its engines, such as `{command(results[0])}`. The limits, probed in these runs: "
        f"{min(b for b, _ in limits):.0f} to {max(b for b, _ in limits):.0f} GB/s read, "
        f"{min(r for _, r in limits):,.0f} to {max(r for _, r in limits):,.0f} GFLOP/s."
    )


def with_tables(readme: str) -> str:
    """A README with the tables that it asks for, as the results have them."""

    def fill(match: re.Match) -> str:
        begin, kind, paths, names, end = match.groups()
        results = [json.loads((ROOT / path).read_text()) for path in paths.split()]
        if kind == "throughput":
            text = tables(results[0], tuple(names.split()))
        elif kind == "comparison":
            text = comparison(results)
        else:
            text = importlib.import_module(MAKERS[kind]).table(*results)
        return f"{begin}\n{text}\n\n{end}"

    return BLOCK.sub(fill, readme)


def readmes() -> list[Path]:
    paths = sorted(ROOT.glob("*.md")) + sorted(ROOT.glob("*/README.md"))
    return [path for path in paths if BLOCK.search(path.read_text(encoding="utf-8"))]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path, nargs="?", help="a file that python -m tests.throughput --json wrote")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the comparison")
    parser.add_argument("--write", action="store_true", help="renew the tables and pictures of the READMEs")
    args = parser.parse_args(argv)
    if args.write == (args.result is not None):
        parser.error("give either a result or --write")
    if args.write:
        for readme in readmes():
            text = with_tables(readme.read_text(encoding="utf-8"))
            readme.write_text(text, encoding="utf-8")
            for path in (ROOT / match[3].strip() for match in BLOCK.finditer(text) if match[2] == "throughput"):
                if f"{path.stem}.png" in text:
                    plots.ladder(json.loads(path.read_text())).savefig(path.with_suffix(".png"))
        return 0
    try:
        result = json.loads(args.result.read_text())
    except (OSError, ValueError) as error:
        print(f"report: {args.result}: {error}", file=sys.stderr)
        return 2
    print(tables(result))
    if args.plot:
        plots.ladder(result).savefig(args.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
