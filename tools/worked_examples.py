"""The worked examples in the stages' chapters: runs small enough to follow by hand, as tables with a row per step.

    python tools/worked_examples.py --write     # run them all, and put the tables into the pages

A page names a run in a comment, `<!-- worked: python -m stage04 --prompts "A fox" … -->`. This tool fills in everything
between that line and `<!-- end of worked -->`: the command, and a table made from its trace. The runs are greedy or
have a seed, so they come out the same every time. `<!-- budgets: 16 64 512 -->` is a table of what these budgets do to
one run of stage 4.
"""

import argparse
import contextlib
import io
import re
import shlex
import sys
import tempfile
import textwrap
from pathlib import Path

from sync_stages import ROOT, read_stages

sys.path.insert(0, str(ROOT))  # for the stages, and the reader of their traces
from stagewise.cli import main as run_stage
from stagewise.replay.state import Key, State
from stagewise.stages import stage_of
from stagewise.trace_file import Trace, read_traces
from tools.replay_examples import CHUNKS, LATE, Run

BUDGETS = re.compile(r"(<!-- budgets: ([\d ]+) -->\n).*?(<!-- end of budgets -->)", re.DOTALL)
BLOCK = re.compile(r"<!-- worked: (python -m stage\d\d [^\n]+) -->\n.*?<!-- end of worked -->", re.DOTALL)


def run(stage: str, command: str) -> Trace:
    """Run a stage's command, with a trace. Raises ValueError if it fails."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        path = Path(folder, "trace.jsonl")
        arguments = [*shlex.split(command)[3:], "--quiet", "--trace", str(path)]
        if run_stage(stage_of(stage), arguments, "worked_examples") != 0:
            raise ValueError(f"it fails: {command}")
        return read_traces(path)[0]


def table(trace: Trace) -> str:
    """A row per step: for each completion the tokens that go through the model and the token that comes out, and what
    the step costs."""
    state, texts, lines = State.before(trace.header), {}, []
    for step in (step for step in trace.steps if step["rows"]):  # without those of an idle engine
        texts |= step["texts"]
        state.begin(step)
        cells = {key: computed(state, key, texts) for key in state.completions}
        costs = {**work(trace, state), **memory(trace, state, step)}
        state.end(step)
        lines.append(({key: cells.get(key, "") + outcome(step, key, texts) for key in state.completions}, costs))
    keys = sorted(state.completions)
    head = ["step", *(name(state, key) for key in keys), *lines[0][1]]
    rule = ["---:", *["---"] * len(keys), *("---" if title in ("slots", "blocks") else "---:" for title in lines[0][1])]
    rows = [
        [str(number), *(cells.get(key, "").strip() for key in keys), *costs.values()]
        for number, (cells, costs) in enumerate(lines)
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, rule, *rows])


def name(state: State, key: Key) -> str:
    """A, B, C …; or A1, A2 … if the request has several completions, or beams."""
    letter = chr(ord("A") + int(key[0]))
    several = sum(request_id == key[0] for request_id, _ in state.completions) > 1
    return f"{letter}{key[1] + 1}" if several else letter


def computed(state: State, key: Key, texts: dict[str, str]) -> str:
    """What a step computes for a completion: its tokens, and a dot for each position of padding."""
    row, completion = state.rows.get(key), state.completions[key]
    if row is None:
        return "waits" if key in state.waiting else ""
    tokens = completion.tokens[row["start"] : row["start"] + row["num_tokens"]]
    drafts, right = row.get("drafts", []), row.get("num_accepted", 0)
    guesses = [
        f"{written(token, texts)}?" if i < right else f"~~{written(token, texts)}~~" for i, token in enumerate(drafts)
    ]
    return " ".join(["·" * row["num_padding"], *(written(token, texts) for token in tokens), *guesses])


def written(token: int, texts: dict[str, str]) -> str:
    return f"`{texts[str(token)].strip() or '␣'}`"


def outcome(step: dict, key: Key, texts: dict[str, str]) -> str:
    """The token that a completion gets in a step, and a square if it is the last; beams end together."""
    own = [
        event
        for event in step["after"]
        if event.get("request_id") == key[0] and (event.get("index") == key[1] or event.get("reason") == "beams")
    ]
    tokens = [f" → {written(event['token_id'], texts)}" for event in own if event["kind"] == "token"]
    return "".join(tokens + [" ■" for event in own if event["kind"] == "finished"])


def work(trace: Trace, state: State) -> dict[str, str]:
    """How many tokens a step computes, of how many it may, and how many of them are recomputed or padding."""
    options = trace.header["options"]
    num_tokens = sum(row["num_tokens"] + len(row.get("drafts", [])) for row in state.rows.values())
    if most := options.get("max_num_batched_tokens"):
        cells = {"budget used": f"{num_tokens} of {most}"}
    else:
        cells = {"tokens computed": str(num_tokens)}
    if "bytes_per_token" not in trace.header or "num_blocks" in trace.header:
        cells["recomputed"] = str(sum(state.completions[key].recomputed for key in state.rows))
    if "max_num_seqs" in options and not most:
        cells["padding"] = str(sum(row["num_padding"] for row in state.rows.values()))
    return cells


def memory(trace: Trace, state: State, step: dict) -> dict[str, str]:
    """Which completion has which slots or blocks, and how much of the reserved memory is used."""
    cells = {}
    if "num_blocks" in trace.header:
        copies = {event["target"]: event["source"] for event in step["before"] if event["kind"] == "copied"}
        tables = []
        for key, row in sorted(state.rows.items()):
            own = [f"{block} (copy of {copies[block]})" if block in copies else str(block) for block in row["blocks"]]
            tables.append(f"{name(state, key)}: {', '.join(own)}")
        return {"blocks": "; ".join(tables), "free": str(len(state.free))}
    if num_slots := trace.header.get("num_slots"):
        holders = {row["slot"]: name(state, key) for key, row in state.rows.items()}
        cells["slots"] = ", ".join(f"{slot}: {holders.get(slot, '–')}" for slot in range(num_slots))
    if step["kv_tokens_reserved"] is not None:
        cells["KV cache used"] = f"{step['kv_tokens_used']} of {step['kv_tokens_reserved']}"
    return cells


def budgets_table(budgets: list[int]) -> str:
    """A row per budget: the run in chunked_prefill.jsonl, where D, with a long prompt, joins others."""
    lines = ["| budget | steps until D's first token | longest step | all steps |", "| ---: | ---: | ---: | ---: |"]
    for budget in budgets:
        steps = Run("stage04_continuous", *LATE, {**CHUNKS, "max_num_batched_tokens": budget}).trace().steps
        steps = [step for step in steps if step["rows"]]
        computed = [{row["request_id"] for row in step["rows"]} for step in steps]
        sampled = [{event["request_id"] for event in step["after"] if event["kind"] == "token"} for step in steps]
        admitted, first = (next(n for n, ids in enumerate(at) if "3" in ids) for at in (computed, sampled))
        longest = max(sum(row["num_tokens"] for row in step["rows"]) for step in steps)
        lines.append(f"| {budget} | {first - admitted + 1} | {longest} tokens | {len(steps)} |")
    return "\n".join(lines)


WIDTH = 96


def in_quotes(text: str, old: str, new: str) -> str:
    """The text with `old` replaced inside double quotes, and after the first word."""
    first, _, rest = text.partition(" ")
    return f"{first}\0" + re.sub(r'"[^"]*"', lambda quoted: quoted[0].replace(old, new), rest)


def over_lines(command: str) -> str:
    """A command that can be pasted into a shell, in lines that fit a page."""
    # A flag keeps its values, or, if they are too long for a line, the first of them.
    flags = command.split(" --")
    words = [flag.replace(" ", "\0") if len(flag) < WIDTH else in_quotes(flag, " ", "\0") for flag in flags]
    lines = textwrap.wrap(
        " --".join(words), WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )
    return " \\\n".join(lines).replace("\0", " ")


def pages(stage: str) -> list[Path]:
    """The pages of a stage that have worked examples."""
    return [path for path in sorted((ROOT / stage).glob("*.md")) if BLOCK.search(path.read_text(encoding="utf-8"))]


def fresh(page: Path) -> str:
    """A page of a stage with its worked examples as they run now."""
    stage = page.parent.name

    def example(match: re.Match) -> str:
        shown = f"```bash\n{over_lines(match[1])}\n```\n\n{table(run(stage, match[1]))}"
        return f"<!-- worked: {match[1]} -->\n{shown}\n<!-- end of worked -->"

    def budgets(match: re.Match) -> str:
        return f"{match[1]}{budgets_table([int(budget) for budget in match[2].split()])}\n{match[3]}"

    return BUDGETS.sub(budgets, BLOCK.sub(example, page.read_text(encoding="utf-8")))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", required=True, help="write the tables into the READMEs")
    parser.parse_args(argv)
    for stage in read_stages():
        for page in pages(stage):
            page.write_text(fresh(page), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
