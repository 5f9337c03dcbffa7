"""How far the logits of stage 6 are from the exact ones, compared with torch's.

    python -m bench.accuracy --json bench/results/accuracy.json

The model is GPT-2 with random weights. For prompts of several lengths, the logits after the last token are computed by
stage 1 in float64, which counts as exact, and by stage 6 in float32 and bfloat16, with torch and with the kernels.
Errors are relative to a prompt's largest logit; the table shows the largest error and the root mean square.
"""

import argparse
import sys

import torch

from bench.run import grid, script, source
from tools.engines import STAGES, random_prompts

LENGTHS = [1, 5, 16, 33, 64, 100, 200, 300, 500, 800]
WAYS = {
    ("float32", "torch"): {"attention_backend": "torch"},
    ("float32", "kernels, without tiles"): {"attention_backend": "c", "disable": ["tiles"]},
    ("float32", "kernels"): {"attention_backend": "c"},
    ("bfloat16", "torch"): {"attention_backend": "torch"},
    ("bfloat16", "kernels, without tiles"): {"attention_backend": "c", "disable": ["tiles"]},
    ("bfloat16", "kernels"): {"attention_backend": "c"},
}


def exact_logits(model: str, prompts: list[list[int]]) -> torch.Tensor:
    """[n_prompts, vocab_size] float64"""
    stage = STAGES[0]
    network = stage.LLM(model, load_format="dummy", device="cpu").engine.runner.model.double()
    with torch.inference_mode():
        hidden = lambda ids: network(torch.tensor(ids))  # noqa: E731
        return torch.stack([hidden(prompt).flatten()[-network.config.vocab_size :].double() for prompt in prompts])


def logits_of(model: str, prompts: list[list[int]], dtype: str, **arguments) -> torch.Tensor:
    stage = next(stage for stage in STAGES if stage.number == 6)
    llm = stage.LLM(model, load_format="dummy", device="cpu", dtype=dtype, max_num_batched_tokens=256, **arguments)
    with stage.recorded_logits() as recorded:
        llm.generate(prompts, stage.SamplingParams(temperature=0, max_tokens=1))
    return torch.stack([recorded[str(i), 0] for i in range(len(prompts))]).double()


def measure(args: argparse.Namespace) -> dict:
    weights = STAGES[0].part("weights")
    sizes = weights.read_config(args.model, weights.find_model(args.model, "dummy"), "dummy")
    config = STAGES[0].part("model").ModelConfig(**sizes)
    prompts = random_prompts(config.vocab_size, [n for n in LENGTHS if n < config.n_positions])
    exact = exact_logits(args.model, prompts)
    largest, rows = exact.abs().amax(-1), []
    for (dtype, way), arguments in WAYS.items():
        errors = (logits_of(args.model, prompts, dtype, **arguments) - exact) / largest[:, None]
        found = {"max": float(errors.abs().max()), "rms": float(errors.square().mean() ** 0.5)}
        rows.append({"dtype": dtype, "way": way, **found})
    return {"model": args.model, "rows": rows}


def table(result: dict) -> str:
    rows = [[row["dtype"], row["way"], f"{row['max']:.1e}", f"{row['rms']:.1e}"] for row in result["rows"]]
    return grid(["type", "arithmetic", "largest error", "root mean square"], rows, left=(0, 1)) + (
        f"\n\n{result['model']} with random weights; {source(result)}"
    )


MODEL = {"--model": dict(default="gpt2", help="sizes of the model; its weights are random")}
main = script(measure, table, options=MODEL)


if __name__ == "__main__":
    sys.exit(main())
