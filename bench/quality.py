"""What int8 costs: how far an engine's predictions are from those of the same engine in float32.

    python -m bench.quality --json bench/results/quality.json

Held-out tales go through stage 8, and the logits of every position are compared with float32's: the bits per byte of
text, how often the most likely token is the same, and the Kullback-Leibler divergence. The logits are the ones computed
for `prompt_logprobs`. The stage also writes tales, which are checked as for the model's card, and continues openings
greedily, until it first differs from float32.

A second table takes int8 apart, in torch, with stage 1's modules: there, numbers are rounded and multiplied as floats.

Results are written to the file after each part, so that a later failure does not lose them.
"""

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.run import command, grid, script

ROOT = Path(__file__).parent.parent
TALES, SIMULATED, GREEDY = 100, 50, 128

Logits = Callable[[list[int]], np.ndarray]  # token ids [n] -> logits of the token after each, [n, vocab_size] float32


# --- Comparing predictions --------------------------------------------------------------------------------------------


def compare(engines: dict[str, Logits], tales: list[list[int]]) -> dict[str, dict]:
    """Compare all engines with the first one, over all tokens of the tales except the first token of each.

    Returns:
        For each engine: `nats`, the negative log-likelihood of each tale; `agreement`, the share of positions at which
        its most likely token is the first engine's; and `kl`, the mean divergence of its distribution from the first
        engine's, in nats.
    """
    nats, same, divergence = ({name: [] for name in engines} for _ in range(3))
    for ids in tales:
        exact: Any = None
        for name, logits_of in engines.items():
            x = np.array(logits_of(ids[:-1]), dtype=np.float32)  # [n] -> [n, vocab_size]
            x -= x.max(axis=-1, keepdims=True)  # now the most likely token has 0
            powers = np.exp(x)
            total = powers.sum(axis=-1, keepdims=True)  # [n, vocab_size] -> [n, 1]
            if exact is None:
                exact = x, np.log(total), powers / total
            nats[name].append(float((np.log(total[:, 0]) - x[np.arange(len(x)), ids[1:]]).sum(dtype=np.float64)))
            same[name] += (x.argmax(-1) == exact[0].argmax(-1)).tolist()
            # The sum over tokens of p log(p / q), where log p = x - log(total)
            mean = np.einsum("nv,nv->n", exact[2], exact[0] - x)
            divergence[name] += (mean + (np.log(total) - exact[1])[:, 0]).tolist()
    return {
        name: {
            "nats": nats[name],
            "agreement": statistics.mean(same[name]),
            "kl": statistics.mean(divergence[name]),
            "positions": len(same[name]),
        }
        for name in engines
    }


def per_byte(own: dict, exact: dict, sizes: list[int]) -> dict:
    """Bits per byte of text, how many more that is than in float32, and the standard error of the latter over tales.

    sizes: the bytes of each tale.
    """
    bits = np.array(own["nats"]) / math.log(2)
    more, total = bits - np.array(exact["nats"]) / math.log(2), sum(sizes)
    rest = more - more.sum() / total * np.array(sizes)  # a ratio's error: what the mean ratio does not explain
    error = math.sqrt((rest**2).sum() * len(sizes) / max(1, len(sizes) - 1)) / total
    return {"bits_per_byte": float(bits.sum() / total), "more": float(more.sum() / total), "more_error": error}


def divergence(tokens: list[list[int]], exact: list[list[int]]) -> dict:
    """Greedy outputs against float32's: the median number of tokens before the first difference (None if most outputs
    have no difference), and the share of outputs without a difference."""
    pairs = [list(zip(a, b, strict=True)) for a, b in zip(tokens, exact, strict=True)]
    before = [next((i for i, (a, b) in enumerate(pair) if a != b), math.inf) for pair in pairs]
    median = statistics.median_low(before)
    return {
        "greedy_median": None if median == math.inf else median,
        "greedy_same": before.count(math.inf) / len(before),
    }


# --- Engines ----------------------------------------------------------------------------------------------------------


def stage_logits(**options: Any) -> Logits:
    """Logits from stage 8's engine, as it computes them for `prompt_logprobs`."""
    from tools.engines import Stage

    stage = Stage(8)
    llm = stage.LLM(device="cpu", max_num_batched_tokens=1024, enable_prefix_caching=False, max_num_seqs=1, **options)
    runner, kept = llm.engine.runner, []
    forward = runner.forward

    def spy(batch: Any) -> Any:
        logits = forward(batch)
        kept.extend(logits[rows].float().numpy().copy() for _, rows in batch.score_slices)
        return logits

    runner.forward = spy
    params = stage.SamplingParams(max_tokens=0, prompt_logprobs=0)

    def logits_of(ids: list[int]) -> np.ndarray:
        kept.clear()
        llm.generate([[*ids, 0]], params)  # each token but the first is scored
        return np.concatenate(kept)

    return logits_of


# --- Int8 taken apart -------------------------------------------------------------------------------------------------

KINDS = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj", "wte")
EVERY = frozenset(KINDS)
# What is rounded: (title, weights, activations, which matrices).
ABLATION = (
    ("weights: a scale per tensor", "tensor", None, EVERY),
    ("weights: per output channel", "channel", None, EVERY),
    ("weights: per group of 128", 128, None, EVERY),
    ("weights: per group of 32", 32, None, EVERY),
    ("activations: per token", None, "channel", EVERY),
    ("activations: per group of 32", None, 32, EVERY),
    ("weights per channel, activations per token: stage 8", "channel", "channel", EVERY),
    ("the same, the vocabulary's matrix as it is", "channel", "channel", EVERY - {"wte"}),
    ("both per group of 32", 32, 32, EVERY),
    *((f"stage 8's, only `{kind}`", "channel", "channel", frozenset({kind})) for kind in KINDS),
)


def rounded(x: Any, scales: str | int | None) -> Any:
    """A tensor rounded to what int8 can represent, still in floats. [..., n] -> [..., n]

    scales: one for the whole tensor ("tensor"), one for each row ("channel"), or one for each group of that many
        numbers in a row.
    """
    import torch.nn.functional as F

    if scales is None:
        return x
    n = x.shape[-1]
    groups = x
    if isinstance(scales, int):
        groups = F.pad(x, (0, -n % scales)).unflatten(-1, (-1, scales))  # [..., n] -> [..., n_groups, scales]
    largest = groups.abs().amax() if scales == "tensor" else groups.abs().amax(dim=-1, keepdim=True)
    scale = (largest / 127).clamp(min=1e-30)
    result = (groups / scale).round() * scale
    return result.flatten(-2)[..., :n] if isinstance(scales, int) else result


class Simulation:
    """Stage 1's GPT-2, with numbers rounded before each product. `set` says which ones."""

    def __init__(self):
        from stage01_single import LLM

        self.model = LLM(device="cpu", dtype="float32").engine.runner.model
        self.linears = {}  # name -> module
        for name, module in self.model.named_modules():
            if type(module).__name__ == "Linear":
                self.linears[name] = module
                module.register_forward_pre_hook(lambda _, inputs, name=name: self.before(name, inputs))
        self.original = {name: module.weight.data for name, module in self.linears.items()}
        self.original["wte"] = self.model.wte.weight.data
        self.largest: dict[str, Any] = {}  # matrix -> the largest number in each column of its input, while watching
        self.watching = False
        self.set(None, None, frozenset())

    def set(self, weights: str | int | None, activations: str | int | None, kinds: frozenset[str]) -> None:
        self.activations, self.kinds = activations, kinds
        for name, weight in self.original.items():
            module = self.model.wte if name == "wte" else self.linears[name]
            module.weight.data = rounded(weight, weights if self.counts(name) else None)

    def counts(self, name: str) -> bool:
        return any(name.endswith(kind) for kind in self.kinds)

    def before(self, name: str, inputs: tuple) -> tuple:
        (x,) = inputs
        if self.watching:
            columns = x.abs().amax(dim=0)  # [n, in] -> [in]
            self.largest[name] = columns.maximum(self.largest.get(name, columns))
        return (rounded(x, self.activations if self.counts(name) else None),)

    def logits(self, ids: list[int]) -> np.ndarray:
        import torch
        import torch.nn.functional as F

        with torch.inference_mode():
            positions = torch.arange(len(ids))
            visible = positions <= positions[:, None]
            x = self.model.wte(torch.tensor(ids)) + self.model.wpe(positions)  # [n] -> [n, n_embd]
            for layer in self.model.h:
                x = layer(x, visible)
            (x,) = self.before("wte", (self.model.ln_f(x),))
            return F.linear(x, self.model.wte.weight).numpy()

    def outliers(self, tales: list[list[int]]) -> list[dict]:
        """For each matrix, how large the numbers in the columns of its input are."""
        self.set(None, None, frozenset())
        self.watching = True
        for ids in tales:
            self.logits(ids)
        self.watching = False
        return [
            {
                "matrix": name,
                "largest": float(columns.max()),
                "column": int(columns.argmax()),
                "second": float(columns.topk(2).values[1]),
                "median": float(columns.median()),
            }
            for name, columns in self.largest.items()
        ]


# --- The parts of a run -----------------------------------------------------------------------------------------------


def held_out(count: int) -> tuple[list[list[int]], list[int]]:
    """(the tokens of `count` held-out tales, each from the end token before it to its own; the bytes of their texts)"""
    sys.path.insert(0, str(ROOT / "tools" / "tinytales"))
    from train_tinytales import HELD_OUT, MODEL, Tale, Tokenizer, tale_tokens

    tokenizer = Tokenizer(MODEL)
    tales = [[tokenizer.end_of_text_id, *tale_tokens(tokenizer, seed)] for seed in HELD_OUT[:count]]
    return tales, [len(Tale(seed).text.encode()) for seed in HELD_OUT[:count]]


# With weights as they are, these have the same bits as stage 7.
STAGE_ROWS = {
    f"stage 8 {weights} {dtype}": {"dtype": dtype, "weights": weights}
    for weights in ("as-is", "int8")
    for dtype in ("float32", "bfloat16")
}


def greedy(options: dict, openings: list[list[int]]) -> list[list[int]]:
    """How stage 8 continues the openings."""
    from tools.engines import Stage

    stage = Stage(8)
    llm = stage.LLM(device="cpu", max_num_seqs=16, **options)
    outputs = llm.generate(openings, stage.SamplingParams(temperature=0, max_tokens=GREEDY, ignore_eos=True))
    return [output.outputs[0].token_ids for output in outputs]


def compared_rows(compared: dict[str, dict], sizes: list[int]) -> list[dict]:
    """A row for each engine, with what `compare` says of it."""
    of, exact = next(iter(compared.items()))
    return [{"engine": name, "of": of, **own, **per_byte(own, exact, sizes)} for name, own in compared.items()]


def stage_part(tales: list[list[int]], openings: list[list[int]], sizes: list[int]) -> Iterator[dict]:
    """The rows of the stages: all of them as soon as their logits are compared, then each again, complete."""
    compared = compare({name: stage_logits(**options) for name, options in STAGE_ROWS.items()}, tales)
    yield from (rows := compared_rows(compared, sizes))
    first = None
    for row, options in zip(rows, STAGE_ROWS.values(), strict=True):
        tokens = greedy(options, openings)
        first = first or tokens
        yield {**row, **divergence(tokens, first)}


def ablation_part(tales: list[list[int]], sizes: list[int]) -> tuple[list[dict], list[dict]]:
    """(a row for each of ABLATION, the outliers of each matrix)"""
    simulation = Simulation()

    def with_setting(setting: tuple) -> Logits:
        def logits_of(ids: list[int]) -> np.ndarray:
            simulation.set(*setting)
            return simulation.logits(ids)

        return logits_of

    settings = {"float32": (None, None, frozenset()), **{title: tuple(rest) for title, *rest in ABLATION}}
    compared = compare({title: with_setting(setting) for title, setting in settings.items()}, tales)
    rows = [{"what": title, **own, **per_byte(own, compared["float32"], sizes)} for title, own in compared.items()]
    return rows, simulation.outliers(tales)


def without_tales(row: dict) -> dict:
    return {name: value for name, value in row.items() if name != "nats"}


# --- Tables and pictures ----------------------------------------------------------------------------------------------


def table(result: dict, part: str = "all") -> str:
    """What each engine's number formats cost ("engines"), and what each part of int8 costs ("parts"), with captions."""
    tables = [engines_table(result)] * (part in ("all", "engines"))
    tables += [ablation_table(result)] * (part != "engines")
    return "\n\n".join(made for made in tables if made)


def engines_table(result: dict) -> str:
    titles = ["engine", "bits per byte", "increase over its float32", "same best token", "KL, nats"]
    titles.append("greedy tokens before the first difference")
    rows = []
    for row in result["rows"]:
        cells = [row["engine"], *(row_cells(row, row["engine"] == row["of"]))]
        many = "all" if row.get("greedy_median", 0) is None else f"{row.get('greedy_median', 0):.0f}"
        cells.append(many if "greedy_median" in row and row["engine"] != row["of"] else "")
        rows.append(cells)
    machine = result["machine"]
    return grid(titles, rows) + (
        f"\n\n{result['tales']} held-out tales, {result['positions']:,} tokens; ± is the standard error over tales. "
        f"Greedy: the median of {result['openings']} openings that the training's grammar can't write, {GREEDY} tokens "
        'each; "all" if more than half never differ. All figures are for tinytales, a small model of simple '
        "language; no other trained model comes with the project. "
        f"{machine['device']}, torch {machine['torch']}. `{command(result)}`"
    )


def row_cells(row: dict, exact: bool) -> list[str]:
    """The cells that both tables have. exact: this row is the one that the others are compared with."""
    more = f"{row['more']:+.5f} ± {row['more_error']:.5f}"
    return [
        f"{row['bits_per_byte']:.5f}",
        *([""] * 3 if exact else [more, f"{row['agreement']:.2%}", f"{row['kl']:.5f}"]),
    ]


def ablation_table(result: dict) -> str:
    if not result.get("ablation"):
        return ""
    titles = ["rounded to int8", "bits per byte", "increase over float32", "same best token", "KL, nats"]
    rows = [[row["what"], *row_cells(row, row["what"] == "float32")] for row in result["ablation"]]
    alone = {row["what"].split("`")[1]: row["kl"] for row in result["ablation"] if "only `" in row["what"]}
    kind = max(alone, key=lambda name: alone[name], default="")
    own = [one for one in result["outliers"] if one["matrix"].endswith(kind)]
    worst = max(own, key=lambda one: one["largest"] / one["median"])
    costs_most = f"`{kind}` costs the most by itself. Its activations" if kind else "Activations"
    return grid(titles, rows) + (
        f"\n\nSimulated in torch with stage 1's modules, {result['simulated']} held-out tales. Only in "
        f"`mlp.c_proj` is a row longer than a group of 128. {costs_most} "
        f"spread most in `{worst['matrix']}`: the largest number is {worst['largest']:.3g} in column "
        f"{worst['column']}, {worst['second']:.3g} in the second-largest column, and {worst['median']:.3g} in the "
        "median one."
    )


def worst_channel(weights: dict[str, Any]) -> tuple[str, int]:
    """The matrix and the channel whose numbers are the smallest, relative to the largest of the whole matrix."""

    def spread(name: str) -> tuple[float, int]:
        largest = weights[name].abs().amax(dim=1)  # [out, in] -> [out]
        channel = int(largest.argmin())
        return float(largest.max() / largest[channel].clamp(min=1e-30)), channel

    name = max(weights, key=lambda name: spread(name)[0])
    return name, spread(name)[1]


def draw_histogram() -> Any:
    """A histogram of one output channel's weights, above the values that int8 can represent: with one scale for the
    whole matrix, and with a scale for this channel."""
    from bench.plots import BLUE, GRAY, INK, ORANGE, Picture, large

    original = Simulation().original
    name, channel = worst_channel({name: weight for name, weight in original.items() if name.endswith("mlp.c_proj")})
    matrix = original[name]
    numbers = matrix[channel].numpy()

    @large
    def draw() -> Picture:
        picture = Picture(figsize=(10.5, 4.3))
        edges = np.linspace(-abs(numbers).max(), abs(numbers).max(), 61)
        for axes, largest, whose, color in zip(
            picture.subplots(1, 2, sharey=True),
            (float(matrix.abs().max()), float(abs(numbers).max())),
            ("for the whole matrix", "for this channel"),
            (ORANGE, BLUE),
            strict=True,
        ):
            unit = largest / 127
            levels = np.arange(-127, 128) * unit
            levels = levels[abs(levels) <= edges[-1] * 1.0001]
            error = float(np.sqrt(np.mean((np.round(numbers / unit) * unit - numbers) ** 2)))
            axes.hist(numbers, edges, color=GRAY, histtype="stepfilled", edgecolor=INK, linewidth=0.5)
            low = -0.25 * axes.get_ylim()[1]
            ticks = [[level, level, np.nan] for level in levels], [[low, 0, np.nan]] * len(levels)  # one line with gaps
            axes.plot(*map(np.ravel, ticks), color=color, linewidth=1 if len(levels) < 100 else 0.6)
            axes.axhline(0, color=INK, linewidth=0.8)
            said = f"rounding error {error / numbers.std():.1%} of the standard deviation"
            axes.set_title(f"One scale {whose}: {len(levels)} integers,\n{said}")
            axes.set_xlabel(f"weights of channel {channel} of {name}")
            axes.set_yticks([tick for tick in axes.get_yticks() if tick >= 0])
            axes.set_ylim(bottom=low)
        picture.axes[0].set_ylabel("number of weights")
        return picture

    return draw()


# --- The command ------------------------------------------------------------------------------------------------------


def measure(args: argparse.Namespace) -> Iterator[dict]:
    """The result, part by part."""
    sys.path.insert(0, str(ROOT / "tools" / "tinytales"))
    from train_tinytales import MODEL, Tokenizer, held_out_openings

    tales, sizes = held_out(args.tales)
    tokenizer = Tokenizer(MODEL)
    openings = [tokenizer.encode(text) for text in held_out_openings()][: args.openings]
    simulated = min(args.simulated, len(tales))
    done: dict[str, dict] = {}  # the rows of engines
    result: dict[str, Any] = {"tales": len(tales), "positions": sum(len(ids) - 1 for ids in tales)}
    result |= {"openings": len(openings), "simulated": simulated, "rows": [], "ablation": []}
    for row in stage_part(tales, openings, sizes):
        done[row["engine"]] = without_tales(row)
        result["rows"] = list(done.values())
        yield result
    rows, outliers = ablation_part(tales[:simulated], sizes[:simulated])
    yield result | {"ablation": [without_tales(row) for row in rows], "outliers": outliers}


OPTIONS = {
    "--tales": dict(type=int, default=TALES, metavar="N", help="held-out tales; default: %(default)s"),
    "--simulated": dict(type=int, default=SIMULATED, metavar="N", help="those of the simulation; default: %(default)s"),
    "--openings": dict(type=int, default=200, metavar="N", help="that are continued greedily; default: all 200"),
}
main = script(measure, table, options=OPTIONS)


if __name__ == "__main__":
    sys.exit(main())
