"""What a sampler chooses from: the bundled model's own probabilities, at two moments and along a tale.

    python -m bench.sampling --json bench/results/sampling.json

Three things are measured: the likeliest tokens at two moments, with the *entropy* and the *nucleus* (the fewest tokens
whose probabilities add up to TOP_P); how these vary along a tale drawn at temperature 1; and, by temperature, how much
a text repeats itself, which is the share of its windows of WINDOW tokens that it had before. These texts have LENGTH
tokens, and go on when a tale ends.
"""

import argparse
import statistics
import sys

import torch
from torch import Tensor

import stage04_continuous
from bench.run import command, grid, script
from stage01_single import LLM, SamplingParams

OPENING = "Once upon a time"
MOMENTS = ("Once upon a", "Once upon a time, a quiet girl named")
TOP_P = 0.9
TEMPERATURES = (0, 0.4, 0.8, 1.0, 1.5)
LENGTH, WINDOW, SEEDS = 700, 16, 8
SHOWN = 5
CERTAIN = 0.1  # bits; with less entropy, a token is practically certain


def entropy(probabilities: Tensor) -> float:
    """In bits: how many questions, each answered yes or no, it takes on average to find the token. [vocab_size] -> a
    number"""
    some = probabilities[probabilities > 0]
    return float(-(some * some.log2()).sum())


def nucleus(probabilities: Tensor, p: float) -> int:
    """The fewest tokens whose probabilities add up to p."""
    return 1 + int((probabilities.sort(descending=True).values.cumsum(0) < p).sum())


def distribution(llm: LLM, token_ids: list[int], temperature: float = 1) -> Tensor:
    """The probabilities of the next token, in float64. -> [vocab_size]"""
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
    """Entropies and nuclei along one tale, drawn at temperature 1 from all tokens."""
    result = llm.generate(OPENING, SamplingParams(temperature=1, seed=0, max_tokens=LENGTH))[0]
    prompt, output = result.prompt_token_ids, result.outputs[0].token_ids
    entropies, sizes, outside = [], [], 0
    for i, token_id in enumerate(output):
        probabilities = distribution(llm, prompt + output[:i])
        size = nucleus(probabilities, TOP_P)
        entropies.append(entropy(probabilities))
        sizes.append(size)
        outside += token_id not in probabilities.topk(size).indices
    certain = sum(bits < CERTAIN for bits in entropies) / len(entropies)
    entropies = {"mean": statistics.mean(entropies), "most": max(entropies), "certain": certain}
    return {"tokens": len(output), "entropy": entropies, "nuclei": [min(sizes), max(sizes)], "drawn outside": outside}


def repeated(token_ids: list[int]) -> float:
    """The share of windows of WINDOW tokens that came before in the same text."""
    seen, again = set(), 0
    for i in range(len(token_ids) - WINDOW + 1):
        window = tuple(token_ids[i : i + WINDOW])
        again += window in seen
        seen.add(window)
    return again / (len(token_ids) - WINDOW + 1)


def repetition(llm: stage04_continuous.LLM) -> dict[str, float]:
    """The mean share of repeated windows, by temperature. Greedy decoding has only one text."""
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


def measure(args: argparse.Namespace) -> dict:
    llm = LLM("tinytales", dtype="float32", device="cpu")
    moments = [moment(llm, text) for text in MOMENTS]
    several = stage04_continuous.LLM("tinytales", dtype="float32", device="cpu")
    return {"moments": moments, "tale": tale(llm), "repetition": repetition(several)}


def table(result: dict) -> str:
    """The two moments, the tale, and the repetitions."""
    rows = []
    for own in result["moments"]:
        tokens = ", ".join(f"`{token.strip()}` {p:.1%}" for token, p in own["best"] if p >= 0.0005)
        rows.append([f"*{own['text']}*", tokens, f"{own['entropy']:.2f}", str(own["nucleus"])])
    moments = grid(["after", "the likeliest tokens", "entropy, bits", "nucleus of 90%"], rows, left=(0, 1))
    temperatures = [t for t in result["repetition"] if t != "0"]
    last = result["moments"][-1]
    entropies = ["0.00", *(f"{last['by temperature'][t]:.2f}" for t in temperatures)]
    shares = [f"{share:.1%}" for share in result["repetition"].values()]
    rows = [
        [f"entropy after *{last['text']}*, bits", *entropies],
        [f"share of {WINDOW}-token windows that came before", *shares],
    ]
    tale, entropy = result["tale"], result["tale"]["entropy"]
    return f"{moments}\n\n{grid(['temperature', '0 (greedy)', *temperatures], rows)}" + (
        f"\n\nAlong a tale of {tale['tokens']} tokens, drawn at temperature 1: {entropy['mean']:.2f} bits a token on "
        f"average, less than {CERTAIN} bits at {entropy['certain']:.0%} of them, {entropy['most']:.1f} bits at most; "
        f"nuclei of {tale['nuclei'][0]} to {tale['nuclei'][1]} tokens, and {tale['drawn outside']} tokens from outside "
        f"of them. Windows: texts of {LENGTH} tokens, {SEEDS} for each temperature above 0. tinytales, float32. "
        f"`{command(result)}`"
    )


main = script(measure, table)


if __name__ == "__main__":
    sys.exit(main())
