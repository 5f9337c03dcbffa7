"""Guessing in other engines, beside stages 6 and 7: each without guesses, with a draft model, and with prompt lookup.

    python -m bench.peers hf openvino llama-cpp
    python -m bench.assisted --peers hf openvino llama-cpp --json bench/results/assisted.json

One request at a time, greedy, on the wide checkpoint (bench/wide.py) with the bundled draft model: openings of tales.
Each engine has a process of its own and completes all prompts, first without guesses, then with; a gain is against the
same engine's own speed. Numbers of guesses are each engine's defaults, and four; the better one is shown.

llama.cpp's Python binding has no draft models, so the loop around it is here, with one batch to verify all guesses.
"""

# pyright: reportMissingImports=false
# (Each peer is in an environment of its own.)

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
TOKENS, GUESSES = 96, 4
KINDS = ("alone", "draft model", "prompt lookup")


def timed(complete: Callable[[list[int]], list[int]], prompts: list[list[int]]) -> dict:
    """What an engine makes of the prompts, one after the other, and its speed."""
    complete(prompts[0])
    start = time.perf_counter()
    tokens = [complete(prompt) for prompt in prompts]
    return {"token_ids": tokens, "speed": sum(map(len, tokens)) / (time.perf_counter() - start)}


def run_stages(job: dict) -> dict:
    from tools.engines import STAGES

    six, seven = (next(stage for stage in STAGES if stage.number == number) for number in (6, 7))
    results = {}
    for name, stage, options in (
        ("alone", six, {}),
        ("draft model", seven, {"speculate": job["draft"]}),
        ("prompt lookup", seven, {"speculate": "ngram"}),
    ):
        llm = stage.LLM(job["model"], dtype=job["dtype"], device="cpu", max_num_seqs=1, **options)
        params = stage.SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)

        def complete(prompt: list[int], llm: Any = llm, params: Any = params) -> list[int]:
            return llm.generate([prompt], params)[0].outputs[0].token_ids

        results[name] = [timed(complete, job["prompts"])]
    return results


def run_hf(job: dict) -> dict:
    import torch
    from transformers import AutoModelForCausalLM

    dtype = getattr(torch, job["dtype"])
    large, small = (AutoModelForCausalLM.from_pretrained(job[name], dtype=dtype) for name in ("model", "draft"))

    def with_options(**options: Any) -> dict:
        def complete(prompt: list[int]) -> list[int]:
            ids = torch.tensor([prompt])
            how = dict(max_new_tokens=TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0)
            mask = torch.ones_like(ids)
            out = large.generate(ids, attention_mask=mask, **how, **options)  # pyright: ignore[reportAttributeAccessIssue]
            return out[0, len(prompt) :].tolist()

        return timed(complete, job["prompts"])

    results = {"alone": [with_options()], "draft model": [with_options(assistant_model=small)]}
    small.generation_config.num_assistant_tokens = GUESSES
    small.generation_config.num_assistant_tokens_schedule = "constant"
    results["draft model"].append(with_options(assistant_model=small))
    results["prompt lookup"] = [with_options(prompt_lookup_num_tokens=n) for n in (GUESSES, 10)]
    return results


def run_openvino(job: dict) -> dict:
    import numpy as np
    import openvino
    import openvino_genai

    exported = {}
    for name in ("model", "draft"):
        exported[name] = Path(job["folder"]) / f"openvino-{name}"
        export = [sys.executable, "-m", "optimum.commands.optimum_cli", "export", "openvino", "--weight-format", "fp32"]
        export += ["--task", "text-generation-with-past", "--model", job[name], str(exported[name])]
        done = subprocess.run(export, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"its export failed: {done.stderr.strip().splitlines()[-1]}")
    precision = {"float32": "f32", "bfloat16": "bf16"}[job["dtype"]]
    exact = {"INFERENCE_PRECISION_HINT": precision, "KV_CACHE_PRECISION": precision}
    exact["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = "0"

    def with_options(more: dict, **settings: Any) -> dict:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = 2
        scheduler.max_num_seqs = 1
        pipeline = openvino_genai.LLMPipeline(
            str(exported["model"]), "CPU", scheduler_config=scheduler, **exact, **more
        )

        def complete(prompt: list[int]) -> list[int]:
            config = openvino_genai.GenerationConfig(max_new_tokens=TOKENS, ignore_eos=True, do_sample=False)
            for name, value in settings.items():
                setattr(config, name, value)
            return list(pipeline.generate(openvino.Tensor(np.array([prompt], dtype=np.int64)), config).tokens[0])

        return timed(complete, job["prompts"])

    results = {"alone": [with_options({})]}
    results["draft model"] = [
        with_options({"draft_model": openvino_genai.draft_model(str(exported["draft"]), "CPU", **exact)}, **settings)
        for settings in ({"num_assistant_tokens": GUESSES}, {"assistant_confidence_threshold": 0.4})
    ]
    results["prompt lookup"] = [
        with_options({"prompt_lookup": True}, num_assistant_tokens=GUESSES, max_ngram_size=size) for size in (2, 4)
    ]
    return results


def run_llama_cpp(job: dict) -> dict:
    import numpy as np
    from llama_cpp import llama_cpp as llama

    from bench.peers import write_gguf

    log = llama.llama_log_callback(lambda level, text, data: None)
    llama.llama_log_set(log, None)

    class Context:
        """A model with one sequence."""

        def __init__(self, name: str):
            folder = Path(job["folder"]) / name
            folder.mkdir(exist_ok=True)
            file = write_gguf(Path(job[name]), job["dtype"], folder)
            self.model = llama.llama_model_load_from_file(str(file).encode(), llama.llama_model_default_params())
            self.size = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self.model))
            settings = llama.llama_context_default_params()
            settings.n_ctx = 512
            settings.n_threads = settings.n_threads_batch = job["threads"]
            if job["dtype"] == "float32":
                settings.type_k = settings.type_v = llama.GGML_TYPE_F32
                settings.flash_attn_type = llama.LLAMA_FLASH_ATTN_TYPE_DISABLED
            self.context = llama.llama_init_from_model(self.model, settings)
            self.memory, self.batch = llama.llama_get_memory(self.context), llama.llama_batch_init(512, 0, 1)
            self.known: list[int] = []

        def next(self, tokens: list[int], count: int) -> list[int]:
            """The best token behind each of the last `count` of a sequence."""
            keep = 0
            most = min(len(self.known), len(tokens) - count)
            while keep < most and self.known[keep] == tokens[keep]:
                keep += 1
            llama.llama_memory_seq_rm(self.memory, 0, keep, -1)
            self.batch.n_tokens = len(tokens) - keep
            for n, token in enumerate(tokens[keep:]):
                self.batch.token[n], self.batch.pos[n] = token, keep + n
                self.batch.logits[n] = keep + n >= len(tokens) - count
                self.batch.n_seq_id[n], self.batch.seq_id[n][0] = 1, 0
            if code := llama.llama_decode(self.context, self.batch):
                sys.exit(f"llama_decode says {code}")
            self.known = list(tokens)
            first = len(tokens) - count - keep
            rows = (llama.llama_get_logits_ith(self.context, first + i) for i in range(count))
            return [int(np.ctypeslib.as_array(row, (self.size,)).argmax()) for row in rows]

    large, small = Context("model"), Context("draft")

    def by_model(tokens: list[int], count: int) -> list[int]:
        draft: list[int] = []
        for _ in range(count):
            draft += small.next(tokens + draft, 1)
        return draft

    def by_lookup(tokens: list[int], count: int) -> list[int]:
        for n in (4, 3, 2):
            for place in range(len(tokens) - n - 1, -1, -1):
                if tokens[place : place + n] == tokens[-n:]:
                    return tokens[place + n : place + n + count]
        return []

    def with_drafter(drafter: Callable[[list[int], int], list[int]], count: int) -> dict:
        def complete(prompt: list[int]) -> list[int]:
            tokens = list(prompt)
            while len(tokens) < len(prompt) + TOKENS:
                draft = drafter(tokens, min(count, len(prompt) + TOKENS - len(tokens) - 1))
                said = large.next(tokens + draft, len(draft) + 1)
                right = next((i for i, token in enumerate(draft) if said[i] != token), len(draft))
                tokens += said[: right + 1]
            return tokens[len(prompt) :]

        return timed(complete, job["prompts"])

    results = {"alone": [with_drafter(lambda *_: [], 0)]}
    for name, drafter in (("draft model", by_model), ("prompt lookup", by_lookup)):
        results[name] = [with_drafter(drafter, count) for count in (GUESSES, 8)]
    return results


RUNNERS = {"stages": run_stages, "hf": run_hf, "openvino": run_openvino, "llama-cpp": run_llama_cpp}
NAMES = {"stages": "stages 6 and 7", "hf": "Hugging Face", "openvino": "OpenVINO GenAI", "llama-cpp": "llama.cpp"}


def table(result: dict) -> str:
    """A row per engine."""
    from bench.machine import is_busy

    lines = ["engine | alone | draft model | prompt lookup | same tokens", "--- | ---: | ---: | ---: | ---:"]
    for name, runs in result["engines"].items():
        alone, cells = runs["alone"]["speed"], [f"{runs['alone']['speed']:.0f} tok/s"]
        for kind in KINDS[1:]:
            cells.append(f"{runs[kind]['speed']:.0f} tok/s, {runs[kind]['speed'] / alone:.2f} ×")
        lines.append(" | ".join([NAMES[name], *cells, f"{min(runs[kind]['same'] for kind in KINDS):.0%}"]))
    machine = result["machine"]
    busy = ", beside other programs" if is_busy(machine) else ""
    return "\n".join(f"| {line} |" for line in lines) + (
        f"\n\nOne request at a time, greedy, {result['prompts']} openings of tales, {TOKENS} tokens each; the gain is "
        f"against the engine's own speed without guesses, best of {result['repeat']} turns. The last column: the share "
        f"of tokens, up to the first difference, that stage 6 has as well. {result['dtype']}, {machine['device']}, "
        f"{machine['threads']} threads{busy}. `{result['command']}`"
    )


def shared(tokens: list[list[int]], others: list[list[int]]) -> float:
    """The share of tokens before the first difference."""
    pairs = list(zip(tokens, others, strict=True))
    equal = sum(next((i for i, (a, b) in enumerate(zip(x, y, strict=False)) if a != b), len(y)) for x, y in pairs)
    return equal / sum(len(y) for _, y in pairs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", nargs="*", choices=[name for name in RUNNERS if name != "stages"], default=[])
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--repeat", type=int, default=2, metavar="N", help="turns; default: 2")
    parser.add_argument("--directory", type=Path, metavar="DIR", help="keep the wide checkpoint here, 445 MB")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured to this file")
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        name, job = args.run[0], json.loads(Path(args.run[1]).read_text())
        Path(job["result"]).write_text(json.dumps(RUNNERS[name](job)))
        return 0
    import torch

    from bench import wide
    from bench.machine import describe
    from bench.peers import PEERS
    from bench.report import write_result
    from bench.speculative import DRAFT, OPENINGS
    from tools.engines import TINYTALES, Stage

    engines: dict[str, dict] = {}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        draft = place / "draft"  # some want a tokenizer beside the weights
        draft.mkdir()
        for file in [*(TINYTALES.parent / DRAFT).glob("*.*"), TINYTALES / "merges.txt", TINYTALES / "vocab.json"]:
            (draft / file.name).symlink_to(file)
        tokenizer = Stage(6).LLM("tinytales", device="cpu").get_tokenizer()
        job: dict[str, Any] = {"model": str(wide.make(args.directory or place / "wide").resolve()), "draft": str(draft)}
        job |= {"prompts": [tokenizer.encode(text) for text in OPENINGS[:4]], "dtype": args.dtype}
        job |= {"threads": torch.get_num_threads(), "folder": folder, "result": str(place / "result.json")}
        (place / "job.json").write_text(json.dumps(job))
        reference = None
        for turn in range(args.repeat):
            for name in ["stages", *args.peers]:
                print(f"{name}: turn {turn + 1} of {args.repeat}", file=sys.stderr)
                python = sys.executable if name == "stages" else str(PEERS[name].python)
                command = [python, "-m", "bench.assisted", "--run", name, str(place / "job.json")]
                environment = os.environ | {"OMP_NUM_THREADS": str(job["threads"])}
                if subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode:
                    print(f"assisted: {name} failed", file=sys.stderr)
                    continue
                runs = json.loads(Path(job["result"]).read_text())
                reference = reference or runs["alone"][0]["token_ids"]
                for kind, tries in runs.items():
                    best = max(tries, key=lambda one: one["speed"])
                    best["same"] = shared(best.pop("token_ids"), reference)
                    known = engines.setdefault(name, {}).get(kind)
                    if known is None or best["speed"] > known["speed"]:
                        engines[name][kind] = best
    words = [f"--peers {' '.join(args.peers)}"] if args.peers else []
    words += [f"--json {args.json}"] if args.json else []
    result = {
        "command": " ".join(["python -m bench.assisted", *words]),
        "machine": describe(torch.device("cpu")),
        "dtype": args.dtype,
        "repeat": args.repeat,
        "prompts": 4,
        "engines": engines,
    }
    if args.json:
        write_result(args.json, result)
    print(table(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
