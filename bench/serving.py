"""The stages' servers and vLLM's under load, from vLLM's load generator, `vllm bench serve`.

    python -m bench.peers vllm                                     # once: vLLM's server and its load generator
    python -m bench.serving --rates 0.5,1,2,4 --json FILE
    python -m bench.serving --engines 4,6 --rates inf --requests 50

All servers have the same checkpoint with GPT-2's sizes and random weights, in float32, and the same number of requests
at once. They get the same requests at the same times: random tokens, as many in as out, with Poisson arrivals. Engines
take turns at each rate. A request counts toward goodput if its first token came within --ttft ms, and each further one,
on average, within --tpot ms. The client shares the cores with the server, as on a user's machine.
"""

import argparse
import asyncio
import contextlib
import importlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from bench import plots
from bench.peers import PEERS, ROOT
from bench.run import Failure, command, grid, script
from bench.throughput import write_model
from tools.engines import STAGES
from tools.server import server as stage_server

ENGINES = ("4", "5", "6", "vllm")
NAME = "served"
JSON = {"Content-Type": "application/json"}
PATIENCE = 600  # seconds for a server to start
VLLM = "from bench.peers import name_vllm; name_vllm(); from vllm.entrypoints.cli.main import main; main()"


@contextlib.contextmanager
def vllm_server(model: Path, max_num_seqs: int) -> Iterator[str]:
    """Start vLLM's own server, as its command does, and yield its URL."""
    command = [PEERS["vllm"].python, "-c", VLLM, "serve", model, "--served-model-name", NAME, "--port", "8765"]
    command += ["--dtype", "float32", "--max-num-seqs", str(max_num_seqs), "--disable-log-stats"]
    threads = os.cpu_count() or 1
    environment = {"VLLM_CPU_KVCACHE_SPACE": "4", "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}"}
    environment |= PEERS["vllm"].preload
    with tempfile.TemporaryFile("w+") as log:
        everything = {"cwd": ROOT, "env": os.environ | environment, "start_new_session": True}
        process = subprocess.Popen(command, stdout=log, stderr=log, **everything)
        try:
            url = "http://127.0.0.1:8765"
            for _ in range(PATIENCE):
                with contextlib.suppress(urllib.error.URLError, ConnectionError):
                    urllib.request.urlopen(f"{url}/health", timeout=5).close()
                    break
                if process.poll() is not None:
                    log.seek(0)
                    raise Failure(f"vLLM's server ended: {log.read()[-2000:]}")
                time.sleep(1)
            else:
                raise Failure(f"vLLM's server is not there after {PATIENCE} tries")
            yield url
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextlib.contextmanager
def started(engine: str, model: Path, max_num_seqs: int) -> Iterator[str]:
    """Start a server of this engine, and yield its URL."""
    if engine == "vllm":
        with vllm_server(model, max_num_seqs) as url:
            yield url
    else:
        options = ["--model", model, "--served-model-name", NAME, "--max-num-seqs", max_num_seqs, "--quiet"]
        with stage_server("--stage", engine, "--dtype", "float32", *options) as (url, _):
            yield url


def load(url: str, model: Path, rate: str, args: argparse.Namespace, folder: Path) -> dict:
    """One run of `vllm bench serve`: the figures that it wrote to its result file."""
    result = folder / "result.json"
    result.unlink(missing_ok=True)
    command = [PEERS["vllm"].python, "-c", VLLM, "bench", "serve", "--backend", "openai", "--base-url", url]
    command += ["--endpoint", "/v1/completions", "--model", NAME, "--tokenizer", model, "--dataset-name", "random"]
    command += ["--random-input-len", args.tokens, "--random-output-len", args.tokens, "--ignore-eos", "--seed", 0]
    command += ["--num-prompts", args.requests, "--request-rate", rate, "--percentile-metrics", "ttft,itl,tpot"]
    command += ["--metric-percentiles", "50,99", "--goodput", f"ttft:{args.ttft}", f"tpot:{args.tpot}"]
    command += ["--save-result", "--result-dir", folder, "--result-filename", result.name, "--disable-tqdm"]
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode or not result.exists():
        raise Failure(f"vllm bench serve failed: {(done.stderr or done.stdout)[-1000:]}")
    kept = ("completed", "failed", "duration", "request_throughput", "request_goodput", "output_throughput")
    latencies = [f"{p}_{name}_ms" for name in ("ttft", "itl") for p in ("p50", "p99")]
    numbers = json.loads(result.read_text())
    return {name: numbers[name] for name in (*kept, *latencies) if name in numbers}


def measure(args: argparse.Namespace) -> Iterator[dict]:
    """Measure every engine at every rate. The servers of all engines run throughout, but only one is busy at a time."""
    if wrong := set(args.engines) - set(ENGINES):
        raise ValueError(f"--engines are some of {','.join(ENGINES)}, got {wrong.pop()}")
    if not PEERS["vllm"].python.exists():
        raise ValueError("vLLM is not there: python -m bench.peers vllm")
    told = {name: getattr(args, name) for name in ("requests", "tokens", "max_num_seqs", "ttft", "tpot")}
    runs, urls = [], {}
    with tempfile.TemporaryDirectory() as name:
        folder, model = Path(name), Path(name) / "model"
        model.mkdir()
        write_model(model, STAGES[-1].part("model").ModelConfig())
        with contextlib.ExitStack() as stack:
            for engine in args.engines:
                urls[engine] = stack.enter_context(started(engine, model, args.max_num_seqs))
                few = argparse.Namespace(**{**vars(args), "requests": 4})
                load(urls[engine], model, "inf", few, folder)  # to warm up
            for rate in args.rates:
                for engine in args.engines:
                    run = load(urls[engine], model, rate, args, folder) | {"engine": engine, "rate": rate}
                    print(" | ".join(cells(run)), file=sys.stderr)
                    runs.append(run)
                    yield {"runs": runs, **told}
        models = {"GPT-2's sizes": model, "the bundled model": ROOT / "stagewise" / "models" / "tinytales"}
        yield {"runs": runs, **told, "overhead": {name: overhead(model) for name, model in models.items()}}


def overhead(model: Path) -> dict[str, float]:
    """Milliseconds per token of a single stream on an idle engine, from `AsyncLLM` itself and from its server: medians
    of five runs of each, in turn."""
    package, rounds = importlib.import_module("stage06_fast"), {"AsyncLLM": [], "HTTP": []}
    prompt, length = list(range(100, 164)), 128
    params = package.SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
    body = {"model": NAME, "prompt": prompt, "max_tokens": length, "temperature": 0, "ignore_eos": True, "stream": True}

    async def direct(engine) -> None:
        async for _ in engine.generate(prompt, params):
            pass

    def over_http(url: str) -> None:
        request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), JSON)
        with urllib.request.urlopen(request) as response:
            assert sum(line.startswith(b"data: {") for line in response) == length

    with package.AsyncLLM(model=str(model), dtype="float32") as engine, started("6", model, 16) as url:
        for _ in range(6):
            for way, run in {"AsyncLLM": lambda: asyncio.run(direct(engine)), "HTTP": lambda: over_http(url)}.items():
                begin = time.perf_counter()
                run()
                rounds[way].append(1e3 * (time.perf_counter() - begin) / length)
    return {way: statistics.median(times[1:]) for way, times in rounds.items()}


def name_of(engine: str) -> str:
    return "vLLM's server" if engine == "vllm" else f"stage {engine}"


def cells(run: dict) -> list[str]:
    """A row of the table."""
    row = [
        run["rate"],
        name_of(run["engine"]),
        f"{run['request_throughput']:.2f}",
        f"{run['request_goodput'] or 0:.2f}",
    ]
    row += [f"{run[f'{p}_{name}_ms']:,.0f} ms" for name in ("ttft", "itl") for p in ("p50", "p99")]
    return [*row, str(run.get("failed", 0))]


def table(result: dict) -> str:
    """The table of a result, with a caption."""
    head = ["load, requests/s", "server", "completed, requests/s", "goodput"]
    head += ["TTFT p50", "p99", "ITL p50", "p99", "failed"]
    at = result["machine"]
    caption = (
        f"{result['requests']} requests of {result['tokens']} tokens in and out at each load, at most "
        f"{result['max_num_seqs']} at once; GPT-2's sizes with random weights, float32; {at['device']}, "
        f"{at['cores']} cores, which the client shares. "
        f"Goodput: first token within {result['ttft']} ms, {result['tpot']} ms a token. `{command(result)}`"
    )
    told = [overhead_in_words(result["overhead"])] if "overhead" in result else []
    return "\n\n".join([grid(head, map(cells, result["runs"]), left=(1,)), caption, *told])


def overhead_in_words(ways: dict[str, dict[str, float]]) -> str:
    times = [f"{one['AsyncLLM']:.2f} and {one['HTTP']:.2f} ms with {name}" for name, one in ways.items()]
    return f"A single stream, with nothing else to do, takes per token, without and with HTTP: {', '.join(times)}."


def plot(result: dict) -> plots.Picture:
    return plots.latency_against_throughput(result["runs"])


def numbers(text: str) -> list[str]:
    return [number for number in text.split(",") if number]


OPTIONS = {
    "--engines": dict(type=numbers, default=list(ENGINES)),
    "--rates": dict(type=numbers, default=["0.5", "1", "2", "inf"], help="of vllm bench serve"),
    "--requests": dict(type=int, default=40, help="at each rate (default: %(default)s)"),
    "--tokens": dict(type=int, default=64, help="in and out, each (default: %(default)s)"),
    "--max-num-seqs": dict(type=int, default=16, help="requests at once (default: %(default)s)"),
    "--ttft": dict(type=int, default=1000, metavar="MS"),
    "--tpot": dict(type=int, default=200, metavar="MS"),
}
main = script(measure, table, options=OPTIONS)

if __name__ == "__main__":
    sys.exit(main())
