"""What a sampler chooses from: the bundled model's own probabilities, at some moments and along a tale.

    python -m bench.sampling --json bench/results/sampling.json

Three things are counted. At two moments, the likeliest tokens, the *entropy* and the *nucleus* (the fewest tokens whose
probabilities reach TOP_P). Along a tale that is drawn at temperature 1, how these vary. And by temperature, how much a
text repeats itself: the share of its windows of WINDOW tokens that it had before. These texts have LENGTH tokens, and
go on when a tale ends.
"""

import argparse
import statistics
import sys
from pathlib import Path

import torch
from torch import Tensor

import stage04_continuous
from bench.machine import describe
from bench.report import write_result
from stage01_single import LLM, SamplingParams

OPENING = "Once upon a time"
MOMENTS = ("Once upon a", "Once upon a time, a quiet girl named")
TOP_P = 0.9
TEMPERATURES = (0, 0.4, 0.8, 1.0, 1.5)
LENGTH, WINDOW, SEEDS = 700, 16, 8
SHOWN = 5
CPU = torch.device("cpu")


def entropy(probabilities: Tensor) -> float:
    """In bits: [vocab_size] -> how many questions, each answered yes or no, it takes to find the token on average."""
    some = probabilities[probabilities > 0]
    return float(-(some * some.log2()).sum())


def nucleus(probabilities: Tensor, p: float) -> int:
    """The fewest tokens whose probabilities add up to p."""
    return 1 + int((probabilities.sort(descending=True).values.cumsum(0) < p).sum())


def distribution(llm: LLM, token_ids: list[int], temperature: float = 1) -> Tensor:
    """The probabilities of the token that follows, in float64. -> [vocab_size]"""
    with torch.inference_mode():
        logits = llm.engine.runner.model(torch.tensor(token_ids, dtype=torch.int64))
    return (logits.double() / temperature).softmax(0)


def moment(llm: LLM, text: str) -> dict:
    tokenizer = llm.get_tokenizer()
    probabilities = distribution(llm, tokenizer.encode(text))
    best = probabilities.topk(SHOWN)
    tokens = [tokenizer.decode([int(i)]) for i in best.indices]
    return {
        "text": text,
        "best": [[token, float(p)] for token, p in zip(tokens, best.values, strict=True)],
        "entropy": entropy(probabilities),
        "nucleus": nucleus(probabilities, TOP_P),
        "by temperature": {str(t): entropy(distribution(llm, tokenizer.encode(text), t)) for t in TEMPERATURES if t},
    }


def tale(llm: LLM) -> dict:
    """Along one tale, as it is drawn at temperature 1 with nothing dropped."""
    result = llm.generate(OPENING, SamplingParams(temperature=1, seed=0, max_tokens=LENGTH))[0]
    prompt, output = result.prompt_token_ids, result.outputs[0].token_ids
    entropies, sizes, outside = [], [], 0
    for i, token_id in enumerate(output):
        probabilities = distribution(llm, prompt + output[:i])
        size = nucleus(probabilities, TOP_P)
        entropies.append(entropy(probabilities))
        sizes.append(size)
        outside += token_id not in probabilities.topk(size).indices
    return {"entropies": entropies, "nuclei": sizes, "drawn outside": outside}


def repeated(token_ids: list[int]) -> float:
    """The share of windows of WINDOW tokens that came before in the same text."""
    seen, again = set(), 0
    for i in range(len(token_ids) - WINDOW + 1):
        window = tuple(token_ids[i : i + WINDOW])
        again += window in seen
        seen.add(window)
    return again / (len(token_ids) - WINDOW + 1)


def repetition(llm: stage04_continuous.LLM) -> dict[str, float]:
    """The mean share of repeated windows, by temperature; greedy there is only one text."""
    shares = {}
    for temperature in TEMPERATURES:
        seeds = range(SEEDS if temperature else 1)
        params = [
            stage04_continuous.SamplingParams(temperature=temperature, seed=seed, max_tokens=LENGTH, ignore_eos=True)
            for seed in seeds
        ]
        outputs = llm.generate([OPENING] * len(params), params)
        shares[str(temperature)] = statistics.mean(repeated(output.outputs[0].token_ids) for output in outputs)
    return shares


def table(result: dict) -> str:
    """The two moments, the tale, and the repetitions."""
    lines = ["| after | the likeliest tokens | entropy, bits | nucleus of 90% |", "| --- | --- | ---: | ---: |"]
    for own in result["moments"]:
        tokens = ", ".join(f"`{token.strip()}` {p:.1%}" for token, p in own["best"])
        lines.append(f"| *{own['text']}* | {tokens} | {own['entropy']:.2f} | {own['nucleus']} |")
    temperatures = [t for t in result["repetition"] if t != "0"]
    lines += ["", "| temperature | " + " | ".join(["0 (greedy)", *temperatures]) + " |"]
    lines.append("| --- |" + " ---: |" * len(result["repetition"]))
    last = result["moments"][-1]
    own = ["0.00", *(f"{last['by temperature'][t]:.2f}" for t in temperatures)]
    lines.append(f"| entropy after *{last['text']}*, bits | " + " | ".join(own) + " |")
    shares = " | ".join(f"{share:.1%}" for share in result["repetition"].values())
    lines.append(f"| share of {WINDOW}-token windows that came before | {shares} |")
    tale, count = result["tale"], len(result["tale"]["entropies"])
    certain = sum(bits < 0.1 for bits in tale["entropies"]) / count
    return "\n".join(lines) + (
        f"\n\nAlong a tale of {count} tokens, drawn at temperature 1: {statistics.mean(tale['entropies']):.2f} bits a "
        f"token on average, less than 0.1 bits at {certain:.0%} of them, {max(tale['entropies']):.1f} bits at most; "
        f"nuclei of {min(tale['nuclei'])} to {max(tale['nuclei'])} tokens, and {tale['drawn outside']} tokens from "
        f"outside of them. Windows: texts of {LENGTH} tokens, {SEEDS} for each temperature above 0. "
        "tinytales, float32. `python -m bench.sampling`"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was counted to this file")
    args = parser.parse_args()
    llm = LLM("tinytales", dtype="float32", device="cpu")
    result = {
        "command": f"python -m bench.sampling {' '.join(sys.argv[1:])}".strip(),
        "machine": describe(CPU),
        "moments": [moment(llm, text) for text in MOMENTS],
        "tale": tale(llm),
        "repetition": repetition(stage04_continuous.LLM("tinytales", dtype="float32", device="cpu")),
    }
    print(table(result))
    if args.json:
        write_result(args.json, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
