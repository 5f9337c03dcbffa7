"""The stages side by side: the same requests through each engine, in one run.

    python -m bench.throughput                                                  # all stages, workload tail
    python -m bench.throughput --stages 4 5 --workload mixed --kv-cache-bytes 603979776 --json FILE
    python -m bench.throughput --stages 5 --workload decode --peers hf,vllm,openvino
    python -m bench.throughput --stages 6 --workload decode --sampling top-p --peers vllm,openvino
    python -m bench.throughput --stages 7 8 --peers llama-cpp-q8,openvino-int8 --workload single
    python -m bench.throughput --stages mine 1 2 3        # an engine of your own (exercises/engine.md)

Every engine runs in a fresh process, `--repeat` times in alternating order, after a warm-up; the tables show medians.
Two things are checked before a speed is printed: every engine made exactly as many tokens as were requested, and the
stages made the same tokens. One request in twenty may differ, because two logits can be nearly equal. In 16 bits that
is more common, and stage 8 and other engines have int8 weights; for these the tables show the share of equal requests
instead. With `--sampling` every engine uses its own sampler, with a seed per request if it takes one; a peer then
draws different tokens, which are not compared.

The limit is the best that the machine could do (see `needed_work` in bench/workloads.py), given the memory bandwidth
and the rate of matrix products that torch or stage 6's kernels reach, whichever is higher; both are measured before and
after. For int8 weights it assumes a byte for each weight, and integer products.

Workloads (bench/workloads.py; random tokens, the same ones every time):
"""

import argparse
import contextlib
import functools
import itertools
import json
import operator
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from tqdm import tqdm

from bench import workloads
from bench.machine import describe, int8_rate, kernel_limits, least_seconds, matmul_rate, read_bandwidth
from bench.peers import PEERS
from bench.report import seconds_of, summarize, tables
from bench.run import Failure, in_turn, script
from stagewise.layout import write_config
from stagewise.parser import num_bytes
from stagewise.resolve import readable_model
from tools.engines import STAGES
from tools.sync_stages import ROOT

LAST = STAGES[-1]
__doc__ = str(__doc__) + "\n" + str(workloads.__doc__).split("\n\n")[1]  # what each workload is


def write_model(directory: Path, config) -> None:
    """Write a Hugging Face checkpoint with the model's sizes and the random weights that every stage makes for it."""
    from safetensors.torch import save_file

    weights = LAST.part("weights")
    with torch.device("meta"):
        shapes = {name: tuple(p.shape) for name, p in LAST.part("model").GPT2(config).state_dict().items()}
    tensors = {
        f"transformer.{name}": (tensor.t() if name.endswith(weights.STORED_TRANSPOSED) else tensor).contiguous()
        for name, tensor in weights.dummy_tensors(shapes)
    }
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    sizes = {
        key: getattr(config, key) for key in ("n_layer", "n_head", "n_embd", "n_inner", "n_positions", "vocab_size")
    }
    template = json.loads((weights.BUNDLED / "config.json").read_text())
    (directory / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    for name in ("merges.txt", "vocab.json", "generation_config.json"):
        shutil.copy(weights.BUNDLED / name, directory)
    write_config(directory, {**template, **sizes, "dtype": "float32"})


def run_in_fresh_process(job: dict, folder: Path) -> dict:
    """What an engine did. Raises Failure with its last line of output if it failed."""
    peer = PEERS.get(job["engine"])
    job_file, result_file = folder / "job.json", folder / "result.json"
    here = {"folder": str(folder), "threads": torch.get_num_threads()}
    job_file.write_text(json.dumps({**job, **here}))
    result_file.unlink(missing_ok=True)
    command = [str(peer.python) if peer else sys.executable, "-m", "bench.engines", str(job_file), str(result_file)]
    process = subprocess.run(
        command, cwd=ROOT, env=os.environ | (peer.preload if peer else {}),
        capture_output=True, text=True, errors="replace", check=False,
    )  # fmt: skip
    if process.returncode or not result_file.exists():
        words = [line for line in (process.stderr or process.stdout).splitlines() if line.strip()]
        raise Failure(words[-1][:300] if words else f"it ended with status {process.returncode}")
    return json.loads(result_file.read_text())


def same_tokens(runs: list[dict]) -> None:
    """Compare every run's tokens with those of the first run without int8 weights. Two fields are added to each: the
    share of requests that are equal, and the share of tokens that come before a request's first difference."""
    first = next((run for run in runs if not run.get("int8")), runs[0] if runs else {})
    for run in runs:
        pairs = list(zip(first["token_ids"], run["token_ids"], strict=True))
        run["same_ids_share"] = statistics.mean(a == b for a, b in pairs)
        equal = [len([*itertools.takewhile(bool, map(operator.eq, *pair))]) for pair in pairs]
        run["same_tokens_share"] = sum(equal) / sum(len(a) for a, _ in pairs)


def stage_or_path(text: str) -> int | str:
    """A stage's number, or the directory of a user's own engine, behind "./" if it is like another engine's name."""
    if text.isdecimal():
        return int(text)
    if not (Path(text) / "__init__.py").is_file():
        raise argparse.ArgumentTypeError(f"{text!r} is neither a stage's number nor the directory of an engine")
    return f"./{text}" if text.startswith("stage") or text in PEERS else text


def names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


NUMBERS = [stage.number for stage in STAGES]
OPTIONS: dict[str, dict] = {
    "--stages": dict(type=stage_or_path, nargs="*", default=NUMBERS, metavar="N|DIRECTORY", help="which; default: all"),
    "--peers": dict(type=names, default=[], metavar="A,B", help=f"other engines: {', '.join(PEERS)}"),
    "--workload": dict(choices=workloads.SIZES, default="tail", help="default: tail"),
    "--requests": dict(type=int, metavar="N", help="how many; default: the workload's"),
    "--max-num-seqs": dict(type=int, metavar="N", help="how many at once; default: the workload's"),
    "--kv-cache-bytes": dict(type=num_bytes, metavar="SIZE", help="the same memory for every stage's KV cache"),
    "--sampling": dict(choices=workloads.SAMPLING, default="greedy", help="how tokens are chosen; default: greedy"),
    "--model": dict(default="gpt2", help="as for the stages; default: gpt2's sizes"),
    "--load-format": dict(
        choices=("dummy", "auto"), default="dummy", help="dummy: random weights, no download; auto: the checkpoint's"
    ),
    "--dtype": dict(choices=("auto", "float32", "bfloat16", "float16"), default="auto"),
    "--weights": dict(choices=("int8", "as-is"), help="of stage 8; default: its own, int8 on a CPU, as-is on CUDA"),
    "--speculate": dict(metavar="NAME", help="of stages 7 and later; off: a token for each forward pass"),
    "--device": dict(default="auto", help="cpu, cuda, cuda:1; default: CUDA if there is one"),
}


def check(args: argparse.Namespace) -> None:
    """Sort out which engines are wanted. Raises ValueError for arguments that make no sense."""
    args.own = list(dict.fromkeys(name for name in args.stages if isinstance(name, str)))
    args.stages = [number for number in args.stages if isinstance(number, int)]
    for name, given, known in (("stage", args.stages, NUMBERS), ("peer", args.peers, list(PEERS))):
        if unknown := [x for x in given if x not in known]:
            raise ValueError(f"there is no {name} {unknown[0]}; there are {', '.join(map(str, known))}")
    for name in ("requests", "max_num_seqs", "kv_cache_bytes"):
        if getattr(args, name) is not None and not getattr(args, name) > 0:
            raise ValueError(f"--{name.replace('_', '-')} must be more than 0, got {getattr(args, name)}")
    for wrong, words in (
        (not (args.stages or args.own or args.peers), "give at least one stage or peer"),
        (
            args.kv_cache_bytes and max(args.stages, default=0) < 3 and not args.own,
            "--kv-cache-bytes needs a stage that has a KV cache: stage 3 or a later one",
        ),
        (args.peers and args.kv_cache_bytes, "--kv-cache-bytes is for the stages only; leave it out with --peers"),
    ):
        if wrong:
            raise ValueError(words)


def probe(device: torch.device, dtype: torch.dtype) -> tuple[float, float]:
    """(bytes read per second, floating point operations per second), by torch or stage 6's kernels, whichever is faster
    at each."""
    by_torch = read_bandwidth(device), matmul_rate(dtype, device)
    by_kernel = kernel_limits(dtype) if device.type == "cpu" else (0.0, 0.0)
    return max(by_torch[0], by_kernel[0]), max(by_torch[1], by_kernel[1])


def run_all(job: dict, engines: list[str], repeat: int, failures: dict[str, str], folder: Path) -> list[dict]:
    """The runs of every engine, `repeat` times, in alternating order. An engine that fails joins `failures`, and the
    others go on. Ctrl-C ends the runs early."""
    runs: dict[str, list[dict]] = {engine: [] for engine in engines}

    def run(engine: str) -> None:
        bar.set_description(engine)
        if engine not in failures:
            try:
                runs[engine].append(run_in_fresh_process({**job, "engine": engine}, folder))
            except Failure as error:
                failures[engine] = str(error)
        bar.update()

    with tqdm(total=repeat * len(engines), unit="run") as bar:
        try:
            in_turn({engine: functools.partial(run, engine) for engine in engines}, repeat, warm_up=False)
        except KeyboardInterrupt:
            failures |= {engine: "interrupted" for engine in engines if not runs[engine]}
    return [run for engine in engines for run in runs[engine] if engine not in failures]


def prepare(args: argparse.Namespace) -> tuple[object, Path, dict]:
    """(the model's sizes, its directory, the options of every engine). Raises ValueError or OSError for bad
    arguments."""
    weights, pick = LAST.part("weights"), LAST.part("device")
    device = pick.pick_device(args.device)
    dtype = pick.pick_dtype(args.dtype, device)
    args.model = readable_model(args.model)
    directory = weights.find_model(args.model, args.load_format)
    config = LAST.part("model").ModelConfig(**weights.read_config(args.model, directory, args.load_format))
    requests = workloads.make_workload(args.workload, args.requests, config.vocab_size)
    if (longest := max(len(prompt) + n for prompt, n in requests)) > config.n_positions:
        raise ValueError(
            f"workload {args.workload} has a request of {longest} tokens with its output, and {args.model} has "
            f"{config.n_positions} positions"
        )
    options = {"max_num_seqs": args.max_num_seqs or workloads.SIZES[args.workload][1]}
    if args.kv_cache_bytes is not None:
        options["kv_cache_bytes"] = args.kv_cache_bytes
    options |= {name: getattr(args, name) for name in ("weights", "speculate") if getattr(args, name) is not None}
    job = {
        "model": args.model,
        "load_format": args.load_format,
        "dtype": str(dtype).removeprefix("torch."),
        "device": str(device),
        "options": options,
        "requests": requests,
        "sampling": workloads.SAMPLING[args.sampling],
        # not the requests' own tokens, or a prefix cache would find them later
        "warm_up": [prompt[::-1] for prompt, _ in requests[:2]],
        "own": {name: str(Path(name).resolve()) for name in args.own},
    }
    return config, directory, job


def run_beside_probes(
    args: argparse.Namespace, config, directory: Path, job: dict, failures: dict[str, str]
) -> tuple[list[dict], tuple[float, float, float | None]]:
    """Run all engines, and probe the machine before and after.

    Returns:
        The runs, and the machine's limits: what `probe` says, and the rate of integer products if any engine had int8
        weights.
    """
    there = [name for name in args.peers if PEERS[name].python.exists()]
    for name in args.peers:
        if name not in there:
            failures[name] = f"not installed; python -m bench.peers {PEERS[name].environment} installs it"
    engines = [*(str(stage) for stage in STAGES if stage.number in args.stages), *args.own, *there]
    machine = torch.device(job["device"]), getattr(torch, job["dtype"])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.peers or args.own:  # all read one checkpoint, the stages too
            job["model"] = str(directory)
            if args.load_format == "dummy":
                (folder / "model").mkdir()
                write_model(folder / "model", config)
                job |= {"model": str(folder / "model"), "load_format": "auto"}
        probes = [probe(*machine)]
        runs = run_all(job, engines, args.repeat, failures, folder)
        of_integers = None
        with contextlib.suppress(KeyboardInterrupt, RuntimeError):  # the runs must not be lost
            probes.append(probe(*machine))
            of_integers = int8_rate() if any(run.get("int8") for run in runs) else None
    bandwidth, rate = (max(values) for values in zip(*probes, strict=True))
    return runs, (bandwidth, rate, of_integers)


def circumstances(
    args: argparse.Namespace, config, job: dict, limits: tuple[float, float, float | None]
) -> dict[str, object]:
    """The context of a result: the workload, the model, the machine and its limits."""
    bandwidth, rate, of_integers = limits
    itemsize = getattr(torch, job["dtype"]).itemsize

    def least(weight_bytes: int, rate: float) -> float:
        work = workloads.needed_work(job["requests"], config, itemsize, weight_bytes)
        return sum(least_seconds(one, bandwidth, rate) for one in work)

    return {
        "workload": args.workload,
        "workload_sha256": workloads.fingerprint(job["requests"]),
        "requests": len(job["requests"]),
        "sampling": args.sampling,
        "max_num_seqs": job["options"]["max_num_seqs"],
        "kv_cache_bytes": args.kv_cache_bytes,
        "model": args.model,
        "load_format": args.load_format,
        "dtype": job["dtype"],
        "repeat": args.repeat,
        "machine": describe(torch.device(job["device"])),
        "bandwidth": bandwidth,
        "matmul_rate": rate,
        "least_seconds": least(itemsize, rate),
        # Attention is computed in dtype; counting it as integer products makes the limit a little too high.
        **({"int8_rate": of_integers, "int8_least_seconds": least(1, max(rate, of_integers))} if of_integers else {}),
    }


def other_tokens(runs: list[dict]) -> str | None:
    """An error message if a stage, or a user's own engine, made different tokens than the first one for many requests.
    Engines with int8 weights may."""
    exact = [run for run in runs if not run.get("int8")]
    for run in exact:
        if run["engine"] not in PEERS and run["same_ids_share"] < 0.95:
            share = 1 - run["same_ids_share"]
            return f"{run['engine']} made other tokens than {exact[0]['engine']} for {share:.0%} of the requests"
    return None


def measure(args: argparse.Namespace) -> dict:
    check(args)
    config, directory, job = prepare(args)
    failures: dict[str, str] = {}
    runs, limits = run_beside_probes(args, config, directory, job, failures)
    for engine, reason in failures.items():
        print(f"{engine} is missing: {reason}", file=sys.stderr)
    if not runs:
        raise Failure("nothing was measured")
    same_tokens([run for run in runs if args.sampling == "greedy" or run["engine"] not in PEERS])
    wrong = other_tokens(runs)
    if wrong and job["dtype"] == "float32":
        raise Failure(f"{wrong}: no speed is printed")
    result = {**circumstances(args, config, job, limits), "missing": failures}
    return result | summarize(runs, result["least_seconds"], result.get("int8_least_seconds"))


main = script(measure, tables, rounds=3, options=OPTIONS, figures=seconds_of)

if __name__ == "__main__":
    sys.exit(main())
