"""What does sampling cost? The sampler alone, for typical parameters.

    python -m bench.sampler --json bench/results/avx512/sampler.json

32 rows of logits are sampled, row by row in torch as in stages 1 to 5, and in one call of stage 6's kernel. The logits
are those of `tinytales` along a tale, and of GPT-2 small with random weights, which finds nearly every token as likely
as any other. Everything is measured in turn, round after round; a figure is the median, with the least and the most.
"""

import argparse
import sys
import time
from collections.abc import Callable
from statistics import median

import torch

from bench.run import grid, in_turn, script, source
from stage06_fast.kernels.c_sampler import CSampler
from tools.engines import STAGES

ROWS = 32
MODES = {
    "greedy": dict(temperature=0),
    "temperature 1": dict(temperature=1.0),
    "temperature 0.8, top-k 50": dict(temperature=0.8, top_k=50),
    "temperature 0.8, top-p 0.95": dict(temperature=0.8, top_p=0.95),
    "both, repetition penalty 1.1": dict(temperature=0.8, top_k=50, top_p=0.95, repetition_penalty=1.1),
    "greedy, logprobs 5": dict(temperature=0, logprobs=5),
}
MODELS = {"tinytales": "auto", "gpt2": "dummy"}  # model -> load format
TALE = "Once upon a time there was a brave mouse who lived near a windy harbor."


def logits_of(model: str, load_format: str) -> torch.Tensor:
    """The logits of the next ROWS tokens of a text. -> [ROWS, vocab_size]"""
    stage = STAGES[5]
    llm = stage.LLM(model, load_format=load_format, device="cpu")
    with stage.recorded_logits() as logits:
        llm.generate(TALE, stage.SamplingParams(temperature=0.8, seed=0, max_tokens=ROWS, ignore_eos=True))
    return torch.stack(list(logits.values()))


def alone(logits: torch.Tensor, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Microseconds per row, by mode and sampler."""
    kernel, stage, all_threads, result = CSampler(), STAGES[5], torch.get_num_threads(), {}

    def timed(work: Callable[[], object], threads: int) -> float:
        torch.set_num_threads(threads)
        started = time.perf_counter()
        work()
        seconds = time.perf_counter() - started
        torch.set_num_threads(all_threads)
        return 1e6 * seconds / ROWS

    for mode, settings in MODES.items():
        params = stage.SamplingParams(**settings)
        requests = [stage.make_request(params, range(100), range(50), seed=i) for i in range(ROWS)]
        ways = {
            "row by row": lambda requests=requests: timed(lambda: stage.sample(logits, requests), all_threads),
            "kernel, one thread": lambda requests=requests: timed(lambda: kernel(logits, requests), 1),
            "kernel": lambda requests=requests: timed(lambda: kernel(logits, requests), all_threads),
        }
        result[mode] = in_turn(ways, rounds)
    return result


def measure(args: argparse.Namespace) -> dict:
    return {
        "rounds": {model: alone(logits_of(model, load_format), args.repeat) for model, load_format in MODELS.items()}
    }


def shown(values: list[float]) -> str:
    return f"{median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"


def table(result: dict) -> str:
    """A table for each model's logits."""
    tables = [
        grid(
            [f"{model}: µs a row", *next(iter(modes.values()))],
            [[mode, *map(shown, by.values())] for mode, by in modes.items()],
        )
        for model, modes in result["rounds"].items()
    ]
    return "\n\n".join([*tables, f"In parentheses: the lowest and highest of a round. {source(result, spread=False)}"])


main = script(measure, table, rounds=5, figures=lambda result: [])  # the table has the spread of each


if __name__ == "__main__":
    sys.exit(main())
