"""Results as tables: medians of the runs, and the tables and pictures in the READMEs.

    python -m bench.report bench/results/ladder.json      # print a result's tables
    python -m bench.report --write                        # put them into the READMEs and draw their pictures

A README (or another page in the root, in a folder of the root, or in a package of stagewise) names a result and the
tables that it wants in a comment, `<!-- throughput: bench/results/ladder.json speed work -->`. With a number behind
them, such as `speed work 2`, they end with that stage. `sentence` is what the last stage gains, in words. `--write`
fills in everything between that line and `<!-- end -->`. It also redraws the pictures (PICTURES) and the race.
`<!-- comparison: FILE FILE … -->` puts several results into one table. Any other word, as in `<!-- linear: FILE -->`,
names the module of this package that measured the result and whose `table` shows it. A word after the file, such as
`brief`, says which part of it.

A page shows no time whose rounds are more than a quarter apart: other programs used the machine. The row or cell is
missing until it is measured again. Tables that show the range of the rounds keep theirs.
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

from bench import plots, race
from bench.run import FAR, apart, command, grid, in_rounds, is_busy, steady
from bench.workloads import SAMPLING
from stagewise.exits import reason

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench/results"
# Each picture in the READMEs: the module and function of this package that draw it, and the results that it shows.
PICTURES = {
    "mixed": "plots ladder mixed",
    "serving": "serving plot serving",
    "speculative": "speculative plot speculative-bfloat16",
    "quality-histogram": "quality draw_histogram",
}
BLOCK = re.compile(r"(<!-- (\w+):((?: \S+\.json)+)((?: \w+)*) -->\n).*?(<!-- end -->)", re.DOTALL)


def summarize(runs: list[dict], least_seconds: float, int8_least_seconds: float | None = None) -> dict:
    """`runs`, with the latencies computed from the tokens' times, and `summary`, each engine's medians.

    A stage's ratio is to the stage before it; a peer's is to the last stage. `ratio_rounds` is the same by round.
    For int8 weights there is a separate limit.
    """
    runs = [digest(run) for run in runs]
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
        before = [run for run in runs if run["engine"] == row["ratio_to"]]
        row["ratio_rounds"] = round_ratios(own, before)
        least = int8_least_seconds if row.get("int8") else least_seconds
        row["limit_share"] = least / row["seconds"] if least else None
        summary.append(row)
    return {"versions": {run["engine"]: run["versions"] for run in runs if "versions" in run}, "summary": summary,
            "runs": [{name: value for name, value in run.items() if name != "versions"} for run in runs]}  # fmt: skip


def round_ratios(own: list[dict], others: list[dict]) -> list[float]:
    """How many times as fast an engine was as another one, in each round."""
    return [other["seconds"] / run["seconds"] for run, other in zip(own, others, strict=False)]


def digest(run: dict, arrivals: list[float] | None = None) -> dict:
    """A run with figures computed from its tokens and their times, instead of these. `ttft` lists every request's."""
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


def speed_up(row: dict, spread: bool = True) -> str | None:
    """A ratio of medians and, in parentheses, the lowest and highest ratio of a round."""
    if not row["ratio"]:
        return None
    rounds = row.get("ratio_rounds", ()) if spread else ()
    apart = f" ({min(rounds):.2f} to {max(rounds):.2f})" if len(rounds) > 1 else ""
    return f"{row['ratio']:.2f} × {plots.stage_name(row['ratio_to'])}{apart}"


TABLES = {
    "speed": {
        "engine": lambda row: f"`{row['engine']}`",
        "tok/s": lambda row: f"{row['tokens_per_second']:.1f}",
        "speed-up": speed_up,
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
        "share of padding": share("padding_share"),
        "requests at once, mean (max)": lambda row: (
            f"{row['rows_mean']:.1f} ({row['rows_max']:.0f})" if row.get("rows_mean") else None
        ),
        "share of the reserved KV cache in use": share("kv_used_share"),
        "preemptions": lambda row: f"{row['preemptions']:.0f}" if row.get("preemptions") else None,
        "peak memory": lambda row: f"{row['peak_bytes'] / 1e9:.2f} GB",
        "requests with the same ids": share("same_ids_share", ".0%"),
        "tokens before the first difference": share("same_tokens_share", ".0%"),
    },
}


# When a stage is slower or no faster than the one before, and the committed result that shows it.
LOSES = {
    "stage01_single": ("outputs are long: every token computes the whole sequence", None),
    "stage02_static_batch": ("a few long outputs keep their batches full of padding", "tail"),
    "stage03_kvcache": ("outputs are of one token: there is nothing to reuse", None),
    "stage04_continuous": ("all outputs are equally long", "equal"),
    "stage05_paged": ("memory is plentiful, and no two prompts begin alike", "tail"),
    "stage06_fast": ("there is no C compiler, or it runs on a GPU: then it computes as stage 5 does", None),
    "stage07_speculative": ("guesses are rejected: many requests at once, or text that can't be guessed", None),
    "stage08_int8": ("prompts are long, and the CPU has AMX, which is fast in bfloat16, too", None),
}


def where_it_loses(row: dict) -> str | None:
    """When the engine is no faster than the stage before, in words, with its ratio from the result that shows it."""
    words, name = LOSES.get(row["engine"], (None, None))
    if name is None:
        return words
    result = json.loads((ROOT / "bench/results" / f"{name}.json").read_text(encoding="utf-8"))
    there = next(other for other in result["summary"] if other["engine"] == row["engine"])
    return f"{words}: {speed_up(there)}"


TABLES["ladder"] = {
    "stage": lambda row: str(int(row["engine"][5:7])),  # a few characters, so that the last column has room on a phone
    "tok/s": lambda row: f"{row['tokens_per_second']:.0f}",
    "speed-up": lambda row: f"{row['ratio']:.2f} ×" if row["ratio"] else None,
    "gains least, or loses, when": where_it_loses,
}


def table(result: dict, name: str) -> str:
    """One of the tables in Markdown; columns without information are left out."""
    cells = {
        title: [column(row) for row in result["summary"]]
        for title, column in TABLES[name].items()
        if title in ("engine", "stage", "tok/s") or any(column(row) is not None for row in result["summary"])
    }
    for title in ("requests with the same ids", "tokens before the first difference"):
        if all(value == "100%" for value in cells.get(title, ())):
            cells.pop(title, None)
    left = [i for i, title in enumerate(cells) if title in ("engine", "stage", "gains least, or loses, when")]
    rows = zip(*cells.values(), strict=True)
    return grid(list(cells), [[value or "" for value in row] for row in rows], left)


def sentence(result: dict) -> str:
    """What the last stage gains, in words."""
    before, last = [row for row in result["summary"] if row["engine"].startswith("stage")][-2:]
    return (
        f"On an {result['machine']['device']}, {plots.stage_name(before['engine'])} serves {result['requests']} "
        f"{result['workload']} requests with {result['model'].replace('gpt2', 'GPT-2')} in {result['dtype']} at "
        f"{before['tokens_per_second']:.0f} tokens a second, and {plots.stage_name(last['engine'])} at "
        f"{last['tokens_per_second']:.0f}."
    )


def caption(result: dict, limit: bool = True) -> str:
    """What the numbers describe: the requests, the model, the machine, its limit if a column needs it, and the command
    that measures them."""
    machine, what = result["machine"], "1 request" if result["requests"] == 1 else f"{result['requests']} requests"
    sentences = [
        f"Workload {result['workload']}: {what}, at most {result['max_num_seqs']} at once",
        f", {result['kv_cache_bytes'] / 1e6:.0f} MB of KV cache" if result.get("kv_cache_bytes") else "",
        f", {sampled(result)}" if "sampling" in result else "",
        f"; {result['model']}{' with random weights' if result['load_format'] == 'dummy' else ''}, {result['dtype']}; ",
        f"{machine['device']}, {machine['threads']} threads, torch {machine['torch']}; ",
        in_rounds(seconds_of(result)),
        f", {machine['date']}" if "date" in machine else "",
        f", with other programs running (load {machine['load']:.0f})" if is_busy(machine) else "",
        ". ",
    ]
    memory, products = result["bandwidth"] / 1e9, result["matmul_rate"] / 1e9
    integers = ""
    if result.get("int8_rate"):
        rate = result["int8_rate"] / 1e9
        integers = f"; with weights in int8, a byte for each of them and {rate:,.0f} billion integer operations/s"
    if limit:
        sentences.append(
            f"The limit, probed in the same run: {memory:.1f} GB/s read, {products:.0f} GFLOP/s{integers}. "
        )
    versions = {name: version for packages in result["versions"].values() for name, version in packages.items()}
    if versions.pop("torch", None):
        sentences.append(f"Peers: {', '.join(' '.join(pair) for pair in versions.items())}. ")
    sentences += [f"Missing: {engine} ({why}). " for engine, why in result["missing"].items()]
    return "".join(sentences) + f"`{result['command']}`"


def seconds_of(result: dict, engine: str | None = None) -> list[list[float]]:
    """The seconds of the runs, a list for each engine, or for one."""
    seconds: dict[str, list[float]] = {}
    for run in result["runs"]:
        if engine in (None, run["engine"]):
            seconds.setdefault(run["engine"], []).append(run["seconds"])
    return list(seconds.values())


def sampled(result: dict) -> str:
    """How tokens were chosen, in words: "greedy", or "temperature 0.8, top-p 0.95"."""
    name = result.get("sampling", "greedy")
    if name == "greedy":
        return name
    return ", ".join(
        f"{key.replace('top_', 'top-').replace('_', ' ')} {value:g}" for key, value in SAMPLING[name].items()
    )


def tables(result: dict, names: tuple[str, ...] = ("speed", "work")) -> str:
    """The tables, one after another, and a caption."""
    return "\n\n".join([*(table(result, name) for name in names), caption(result)])


def up_to(result: dict, stage: int | None = None) -> dict:
    """A result without the engines after a stage."""
    if stage is None:
        return result
    after = f"stage{stage + 1:02}"
    return result | {name: [row for row in result[name] if row["engine"] < after] for name in ("summary", "runs")}


def steady_engines(result: dict) -> dict:
    """A result without the engines whose rounds are more than FAR apart."""
    steady = [row["engine"] for row in result["summary"] if (apart(seconds_of(result, row["engine"])) or 0) <= FAR]
    return result | {name: [row for row in result[name] if row["engine"] in steady] for name in ("summary", "runs")}


def comparison(results: list[dict]) -> str:
    """Several results in one table, a row each: every engine's tok/s, the last stage against the best other engine (the
    ratio of their medians, and the lowest and highest ratio of a round), and the last stage's share of the limit."""
    engines = list(dict.fromkeys(row["engine"] for result in results for row in result["summary"]))
    engines.sort(key=lambda engine: not engine.startswith("stage"))  # peers after the stages
    last = [engine for engine in engines if engine.startswith("stage")][-1]
    kinds = ["workload", "type"]
    kinds += ["sampling"] * any(result.get("sampling", "greedy") != "greedy" for result in results)
    lines = []
    for result in results:
        rows = {row["engine"]: row for row in result["summary"]}
        speeds = {engine: row["tokens_per_second"] for engine, row in rows.items()}
        best = max((engine for engine in speeds if engine != last), key=lambda engine: speeds[engine])
        rounds = round_ratios(*([run for run in result["runs"] if run["engine"] == name] for name in (last, best)))
        spread = f" ({min(rounds):.2f} to {max(rounds):.2f})" if len(rounds) > 1 else ""
        other = "" if result["model"] == results[0]["model"] else f", `{result['model']}`"
        told = [result["workload"] + other, result["dtype"], sampled(result)][: len(kinds)]
        told += [f"{speeds[engine]:,.1f}" if engine in speeds else "" for engine in engines]
        lines.append([*told, f"{speeds[last] / speeds[best]:.2f} ×{spread}", f"{rows[last]['limit_share']:.0%}"])
    machine = results[0]["machine"]
    packages = {
        name: version for result in results for own in result["versions"].values() for name, version in own.items()
    }
    packages.pop("torch", None)
    others = "; " + ", ".join(" ".join(package) for package in packages.items()) if packages else ""
    random = " with random weights" if results[0].get("load_format", "dummy") == "dummy" else ""
    if any(result["model"] != results[0]["model"] for result in results):
        random += " where no other model is named"
    limits = [(result["bandwidth"] / 1e9, result["matmul_rate"] / 1e9) for result in results]
    rates = [result["int8_rate"] / 1e9 for result in results if result.get("int8_rate")]
    of_integers = f", in int8 {min(rates):,.0f} to {max(rates):,.0f} billion operations/s" if rates else ""
    titles = [*kinds, *(f"`{engine}`" for engine in engines), "vs. the best other", "of the limit"]
    return grid(titles, lines, left=range(len(kinds))) + (
        f"\n\nOutput tokens per second; {results[0]['model']}{random}; {machine['device']}, "
        f"{machine['threads']} threads, torch {machine['torch']}{others}. "
        "In parentheses: the lowest and highest ratio to that engine in any one round. Each line is one run of all its "
        f"engines, such as `{command(results[0])}`. The limits, probed in these runs: "
        f"{min(b for b, _ in limits):.0f} to {max(b for b, _ in limits):.0f} GB/s read, "
        f"{min(r for _, r in limits):,.0f} to {max(r for _, r in limits):,.0f} GFLOP/s{of_integers}."
    )


def read_result_text(path: str) -> str:
    """A committed result that a README names. Raises ValueError if it can't be read."""
    try:
        return (ROOT / path).read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"a README names {path}, which can't be read: {error.strerror}") from None


def with_tables(readme: str) -> str:
    """A README with the tables that it names filled in from the results."""

    def fill(match: re.Match) -> str:
        begin, kind, paths, names, end = match.groups()
        results = [json.loads(read_result_text(path)) for path in paths.split()]
        if kind == "throughput":
            words = names.split()
            result = up_to(results[0], *(int(word) for word in words if word.isdecimal()))
            shown = steady_engines(result)
            if words == ["sentence"]:
                return f"{begin}\n{sentence(shown)}\n\n{end}"
            own = [table(result if word == "work" else shown, word) for word in words if not word.isdecimal()]
            text = "\n\n".join([*own, caption(shown, limit=words != ["ladder"])])
        elif kind == "comparison":
            text = comparison(results)
        else:
            shown = results if kind == "attention" else map(steady, results)  # attention's table shows the ranges
            text = importlib.import_module(f"bench.{kind}").table(*shown, *names.split())
        return f"{begin}\n{text}\n\n{end}"

    return BLOCK.sub(fill, readme)


def readmes() -> list[Path]:
    paths = sorted(ROOT.glob("*.md")) + sorted(ROOT.glob("*/*.md")) + sorted(ROOT.glob("stagewise/*/*.md"))
    return [path for path in paths if BLOCK.search(path.read_text(encoding="utf-8"))]


def picture(name: str) -> plots.Picture:
    """One of PICTURES, drawn from the committed results."""
    module, function, *results = PICTURES[name].split()
    read = (json.loads((RESULTS / f"{result}.json").read_text(encoding="utf-8")) for result in results)
    return getattr(importlib.import_module(f"bench.{module}"), function)(*map(steady, read))


def write_readmes() -> None:
    """Update the tables and pictures of all READMEs."""
    for readme in readmes():
        text = with_tables(readme.read_text(encoding="utf-8"))
        readme.write_text(text, encoding="utf-8")
        for path in (ROOT / match[3].strip() for match in BLOCK.finditer(text) if match[2] == "throughput"):
            result = json.loads(path.read_text())
            if path.stem == "ladder" and "ladder.svg" in text:
                for name, form in (("ladder", race.WIDE), ("ladder-narrow", race.NARROW)):
                    path.with_name(f"{name}.svg").write_text(race.svg(result, form), encoding="utf-8")
    for name in PICTURES:
        picture(name).savefig(RESULTS / f"{name}.svg")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path, nargs="?", help="a file that python -m bench.throughput --json wrote")
    parser.add_argument("--write", action="store_true", help="update the tables and pictures of the READMEs")
    args = parser.parse_args(argv)
    if args.write == (args.result is not None):
        parser.error("give either a result or --write")
    if hasattr(sys.stdout, "reconfigure"):  # a terminal may have no ×
        sys.stdout.reconfigure(errors="backslashreplace")  # pyright: ignore[reportAttributeAccessIssue]
    try:
        if args.write:
            write_readmes()
            return 0
        result = read_result(args.result)
    except (OSError, ValueError) as error:
        print(f"report: {reason(error)}", file=sys.stderr)
        return 2
    print(tables(result))
    return 0


def read_result(path: Path) -> dict:
    """A result that bench.throughput wrote. Raises ValueError for any other file."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if not isinstance(result, dict) or not {"summary", "workload", "machine"} <= result.keys():
        raise ValueError(f"{path} is not a result of python -m bench.throughput --json")
    return result


if __name__ == "__main__":
    sys.exit(main())
