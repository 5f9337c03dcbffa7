"""Which library holds outputs to a form: llguidance or xgrammar? And what does a token then cost?

    pip install "llguidance>=1.9,<2" "xgrammar>=0.2.8,<0.3"
    python -m bench.structured --wheels DIRECTORY --json bench/results/structured.json

For each form both libraries walk through the same text, which has that form, token by token: time to make the matcher
(from the second on, for the first also makes what all share), and per token to accept it and to fill the mask of the
next. The two take turns, REPEAT times each. vLLM calls these same functions of these same libraries, once for each row
and step; so their times are what vLLM pays for its masks, without its scheduling. `here` is what stage 6 pays for a
row: the mask, and all of the processor, which also changes the logits.

Each maker has a process of its own, and SECONDS to make the form. `--wheels`: a directory with what `pip download
--no-deps` gave for each, for their sizes.
"""

import argparse
import concurrent.futures
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from bench.machine import describe, is_busy
from bench.report import write_result
from stage06_fast.support.tokenizer import Tokenizer
from stagewise.structured_outputs import Form, Structured, make_matcher, vocabulary

ROOT = Path(__file__).parent.parent
REPEAT, SECONDS = 3, 60
EOS = 50256
MANY = {f"field{i}": {"type": "integer"} for i in range(200)}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "friends": {"type": "array", "items": {"type": "string", "maxLength": 40}},
        "mood": {"enum": ["calm", "brave", "shy"]},
    },
    "required": ["name", "age", "friends", "mood"],
    "additionalProperties": False,
}
TEXT = json.dumps(
    {
        "name": "Otto the mouse, who lived near a windy harbor and liked to sing while the lantern burned",
        "age": 7,
        "friends": ["Rose, a monkey with a red hat", "Anton the hedgehog"],
        "mood": "brave",
    }
)
# Name -> the form, and a text that has it; None: only whether it is made, and in what time.
FORMS: dict[str, tuple[dict, str | None]] = {
    "a choice of 3": ({"choice": ["yes", "no", "maybe so"]}, "maybe so"),
    "a date, as regex": (
        {"regex": r"(19|20)\d\d-[01]\d-[0-3]\d(, (19|20)\d\d-[01]\d-[0-3]\d)*"},
        "2026-11-25, 1999-12-31",
    ),
    "any JSON object": ({"json_object": True}, TEXT),
    "a schema with 4 fields": ({"json": PERSON}, TEXT),
    "a schema with 200 optional fields": (
        {"json": {"type": "object", "properties": MANY, "additionalProperties": False}},
        json.dumps({f"field{i}": i for i in range(3, 60, 9)}),
    ),
    "`(a{1000}){1000}`": ({"regex": "(a{1000}){1000}"}, None),
    "a schema with `uniqueItems`": ({"json": {"type": "array", "uniqueItems": True}}, None),
}


class LLGuidance:
    """As stage 6 has it, with its limits."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        vocabulary(tokenizer, (EOS,))

    def make(self, form: dict) -> Any:
        return make_matcher(Form.of(form), self.tokenizer, (EOS,))  # in another process first, as each new form

    def make_next(self, form: dict) -> Any:
        return make_matcher(Form.of(form), self.tokenizer, (EOS,))

    def step(self, matcher: Any, token: int | None) -> None:
        if token is not None and not matcher.consume_token(token):
            raise ValueError(f"llguidance does not take token {token}: {matcher.get_error()}")
        matcher.compute_bitmask()


class XGrammar:
    def __init__(self, tokenizer: Tokenizer):
        import xgrammar  # pyright: ignore[reportMissingImports]

        self.xgrammar = xgrammar
        words = [tokenizer.token_bytes(i) for i in range(EOS)] + [b"<|endoftext|>"]
        info = xgrammar.TokenizerInfo(
            words, vocab_type=xgrammar.VocabType.RAW, vocab_size=EOS + 1, stop_token_ids=[EOS]
        )
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self.bits = xgrammar.allocate_token_bitmask(1, EOS + 1)

    def make(self, form: dict) -> Any:
        compiler = self.compiler
        if "json" in form:
            compiled = compiler.compile_json_schema(json.dumps(form["json"]))
        elif "regex" in form:
            compiled = compiler.compile_regex(form["regex"])
        elif "choice" in form:
            compiled = compiler.compile_grammar("root ::= " + " | ".join(map(json.dumps, form["choice"])))
        else:
            compiled = compiler.compile_json_schema('{"type": "object"}')
        return self.xgrammar.GrammarMatcher(compiled)

    make_next = make

    def step(self, matcher: Any, token: int | None) -> None:
        if token is not None and not matcher.accept_token(token):
            raise ValueError(f"xgrammar does not take token {token}")
        matcher.fill_next_token_bitmask(self.bits)


LIBRARIES: dict[str, Callable[[Tokenizer], Any]] = {"llguidance": LLGuidance, "xgrammar": XGrammar}


def tokenizer_here() -> Tokenizer:
    return Tokenizer(ROOT / "models/tinytales")


def measure(name: str, form: dict, text: str | None, results: Any) -> None:
    """In a process of its own: the times of a library on a form, in seconds."""
    tokenizer = tokenizer_here()
    library = LIBRARIES[name](tokenizer)
    try:
        started = time.perf_counter()
        matcher = library.make(form)
        made, steps = [time.perf_counter() - started], []
        for repeat in range(REPEAT if text is not None else 0):
            if repeat:
                started = time.perf_counter()
                matcher = library.make_next(form)
                made.append(time.perf_counter() - started)
            for token in [None, *tokenizer.encode(text or "")]:
                started = time.perf_counter()
                library.step(matcher, token)
                steps.append(time.perf_counter() - started)
        results.put({"first": made[0], "make": statistics.median(made[1:] or made), "steps": steps})
    except Exception as error:
        results.put({"error": " ".join(str(error).split())[:120]})


def in_time(name: str, form: dict, text: str | None) -> dict:
    """What `measure` finds, within SECONDS."""
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    process = context.Process(target=measure, args=(name, form, text, results))
    process.start()
    end = time.monotonic() + SECONDS
    while results.empty() and process.is_alive() and time.monotonic() < end:
        time.sleep(0.05)
    found = {"error": f"not made in {SECONDS} s"} if results.empty() else results.get()
    process.kill()
    process.join()
    return found


def summary(runs: list[dict]) -> dict:
    """Medians over the runs of one library on one form."""
    if wrong := [run for run in runs if "error" in run]:
        return wrong[0]
    steps = sorted(seconds for run in runs for seconds in run["steps"])
    found = {"make": statistics.median(run["make"] for run in runs)}
    if steps:
        found |= {"step": statistics.median(steps), "p99": steps[int(0.99 * len(steps))]}
    return found


def cost_here() -> dict:
    """What stage 6 pays for each row of a step, in seconds: the medians of the mask, and of its way to the logits; and
    what it would pay for nothing in another thread."""
    tokenizer, logits = tokenizer_here(), torch.randn(EOS + 1)
    llm = SimpleNamespace(engine=SimpleNamespace(model_config=SimpleNamespace(eos_token_ids=(EOS,))))
    llm.get_tokenizer = lambda: tokenizer
    processor, masks, changes = Structured(llm, Form(json=PERSON)), [], []
    ids = tokenizer.encode(TEXT)
    for _ in range(REPEAT):
        for length in range(len(ids) + 1):
            started = time.perf_counter()
            processor.allowed(ids[:length])
            masked = time.perf_counter()
            processor([], ids[:length], logits.clone())  # the mask again, of a matcher that is there
            masks.append(masked - started)
            changes.append(time.perf_counter() - masked)
    other = []
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        for _ in range(len(masks)):
            started = time.perf_counter()
            pool.submit(int).result()
            other.append(time.perf_counter() - started)
    seconds = {"mask": masks, "logits": changes, "other thread": other}
    return {**{name: statistics.median(x) for name, x in seconds.items()}, "bytes": -(-(EOS + 1) // 32) * 4}


def wheels(directory: Path | None) -> dict:
    """Of each library: its version, its license, what it needs, and how large its wheel is."""
    found = {}
    for name in LIBRARIES:
        about = metadata.metadata(name)
        needs = sorted({one.split(";")[0].strip() for one in metadata.requires(name) or [] if "extra ==" not in one})
        files = sorted(directory.glob(f"{name}-*.whl")) if directory else []
        found[name] = {
            "version": about["Version"],
            "license": about["License-Expression"] or about["License"],
            "needs": needs,
            "wheels": {file.name: file.stat().st_size for file in files},
        }
    return found


def in_units(seconds: float) -> str:
    return (
        f"{1e6 * seconds:.0f} µs"
        if seconds < 1e-3
        else f"{1e3 * seconds:.1f} ms"
        if seconds < 1
        else f"{seconds:.0f} s"
    )


def table(result: dict) -> str:
    """Both libraries, form by form, and what they come with."""
    lines = ["| form | llguidance: make | mask p50 | p99 | xgrammar: make | mask p50 | p99 |"]
    lines.append("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, own in result["forms"].items():
        cells = []
        for library in LIBRARIES:
            found = own[library]
            if "error" in found:
                said = found["error"] if found["error"].startswith("not made") else "refused"
                cells += [said, "", ""]
            else:
                cells += [in_units(found[key]) if key in found else "" for key in ("make", "step", "p99")]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += ["", "| library | license | needs | wheel |", "| --- | --- | --- | --- |"]
    for name, own in result["libraries"].items():
        sizes = list(own["wheels"].values())
        size = f"{sizes[0] / 1e6:.1f} MB" if sizes else ""
        needs = ", ".join(f"`{one}`" for one in own["needs"]) or "nothing"
        lines.append(f"| {name} {own['version']} | {own['license']} | {needs} | {size} |")
    here = result["here"]
    busy = ", beside other programs" if is_busy(result["machine"]) else ""
    return "\n".join(lines) + (
        f"\n\nFor each row of a step stage 6 pays {in_units(here['mask'])} for its mask, {here['bytes']:,} bytes, and "
        f"{in_units(here['logits'])} for changing the row's logits (medians; the schema with 4 fields). To have "
        f"another thread do something, and wait for it, takes {in_units(here['other thread'])}. vLLM calls the same "
        f"functions of the same libraries. {result['machine']['device']}, "
        f"{result['machine']['threads']} thread{busy}. "
        f"`{result['command']}`"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheels", type=Path, metavar="DIRECTORY", help="what `pip download --no-deps` gave")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    forms = {}
    for name, (form, text) in FORMS.items():
        runs: dict[str, list[dict]] = {library: [] for library in LIBRARIES}
        for _ in range(REPEAT if text is not None else 1):
            for library in LIBRARIES:
                if not any("error" in run for run in runs[library]):
                    runs[library].append(in_time(library, form, text))
        forms[name] = {library: summary(found) for library, found in runs.items()}
        print(name, forms[name], file=sys.stderr)
    result = {
        "command": "python -m bench.structured --wheels DIRECTORY --json bench/results/structured.json",
        "machine": describe(torch.device("cpu")),
        "forms": forms,
        "here": cost_here(),
        "libraries": wheels(args.wheels),
    }
    print(table(result))
    if args.json:
        write_result(args.json, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
