"""What int8 costs: how far an engine's predictions are from those of the same engine in float32.

    python -m bench.peers openvino llama-cpp ctranslate2
    python -m bench.quality --peers openvino llama-cpp ctranslate2 --json bench/results/quality.json

Held-out tales go through each engine, and the logits of every position are compared with float32's: the bits per byte
of text, how often the most likely token is the same, and the Kullback-Leibler divergence. Stages also write tales,
which are checked as for the model's card. And all engines continue openings greedily, until they first differ from
float32.

The stages' logits are the ones computed for `prompt_logprobs`. llama.cpp and CTranslate2 score a tale in
one batch. OpenVINO scores it token by token, because it reads its 8-bit cache only in steps after the first. A peer's
reference is the same peer in float32. llama.cpp's Q8_0 needs rows of a multiple of 32 numbers, and tinytales' have 120,
so llama.cpp gets a model with each feature four times, which computes the same function (see `repeated`).

A second table takes int8 apart, in torch, with stage 1's modules: there, numbers are rounded and multiplied as floats.

Results are written to the file after each part, so that a later failure does not lose them.
"""

# pyright: reportMissingImports=false
# (Each peer has its own environment, without this project's packages.)

import argparse
import json
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.run import Failure, command, grid, script

ROOT = Path(__file__).parent.parent
TALES, SIMULATED, GREEDY, SAMPLES = 100, 50, 128, 200
COPIES = 4  # of each feature, for llama.cpp

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
        kept.extend(logits[rows].float().numpy().copy() for _, rows in batch.scored)
        return logits

    runner.forward = spy
    params = stage.SamplingParams(max_tokens=0, prompt_logprobs=0)

    def logits_of(ids: list[int]) -> np.ndarray:
        kept.clear()
        llm.generate([[*ids, 0]], params)  # each token but the first is scored
        return np.concatenate(kept)

    return logits_of


def llama_cpp_logits(job: dict, weights: str | None) -> Logits:
    from llama_cpp import llama_cpp as llama

    from bench.peers import open_llama_cpp

    context, vocab_size = open_llama_cpp(job, weights, 1, 1024, 1024)
    memory, batch = llama.llama_get_memory(context), llama.llama_batch_init(1024, 0, 1)

    def logits_of(ids: list[int]) -> np.ndarray:
        llama.llama_memory_clear(memory, False)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.logits[i], batch.n_seq_id[i], batch.seq_id[i][0] = token, i, 1, 1, 0
        if code := llama.llama_decode(context, batch):
            raise RuntimeError(f"llama_decode says {code}")
        return np.ctypeslib.as_array(llama.llama_get_logits(context), (len(ids), vocab_size))

    return logits_of


def openvino_logits(job: dict, weights: str | None) -> Logits:
    import openvino

    from bench.peers import export_openvino, openvino_properties

    weights = weights or "fp32"
    exported = export_openvino(job, weights)
    properties = openvino_properties(job["dtype"], weights)
    compiled = openvino.Core().compile_model(exported / "openvino_model.xml", "CPU", properties)
    wanted = {name for port in compiled.inputs for name in port.names}
    request = compiled.create_infer_request()

    def logits_of(ids: list[int]) -> np.ndarray:
        request.reset_state()
        rows = []
        for i, token in enumerate(ids):
            inputs = {
                "input_ids": np.array([[token]]),
                "attention_mask": np.ones((1, i + 1), dtype=np.int64),
                "position_ids": np.array([[i]]),
                "beam_idx": np.array([0], dtype=np.int32),
            }
            request.infer({name: value for name, value in inputs.items() if name in wanted})
            rows.append(request.get_tensor("logits").data[0, 0].copy())
        return np.stack(rows)

    return logits_of


def ctranslate2_logits(job: dict, weights: str | None) -> Logits:
    from bench.peers import open_ctranslate2

    generator, texts = open_ctranslate2(job, weights)
    return lambda ids: np.array(generator.forward_batch([[texts[token] for token in ids]]))[0]


# For each peer: the function that gives its logits, the name of its int8 variant in bench/peers.py, its own name for
# int8 weights, and the types that its other numbers can have.
PEER_LOGITS = {
    "llama-cpp": (llama_cpp_logits, "llama-cpp-q8", "q8_0", ("float32",)),
    "openvino": (openvino_logits, "openvino-int8", "int8", ("float32", "bfloat16")),
    "ctranslate2": (ctranslate2_logits, "ctranslate2-int8", "int8", ("float32",)),
}


def run_peer(name: str, job: dict) -> dict:
    """`compare` a peer's int8 with its float32. Runs in the peer's environment."""
    logits, int8, weights, dtypes = PEER_LOGITS[name]
    engines = {f"{name} float32": logits({**job, "dtype": "float32"}, None)}
    engines |= {f"{int8} {dtype}": logits({**job, "dtype": dtype}, weights) for dtype in dtypes}
    return compare(engines, job["tales"])


# --- Models for the peers ---------------------------------------------------------------------------------------------


def repeated(tensors: dict[str, Any], n_head: int, copies: int) -> dict[str, Any]:
    """The weights of a model whose features and heads are repeated. It computes the same function, because means and
    variances, and so the norms, stay the same, and weights that sum over features are divided by `copies`, a power of
    two. It works as in bench/wide.py, but the 24 features of a head stay next to their copies. So each group of 32 has
    the same largest number as these 24, all copies are rounded alike, and rounding costs what it would with groups of
    24."""
    import torch

    size = tensors["transformer.wte.weight"].shape[1] if "transformer.wte.weight" in tensors else None
    size = size or tensors["wte.weight"].shape[1]
    which = torch.arange(size).view(n_head, -1).repeat_interleave(copies, 0).flatten()

    def repeat(name: str, x: Any) -> Any:
        if "mlp.c_fc" in name:  # [in, out], like all matrices
            return x[which] / copies if x.dim() == 2 else x
        if "mlp.c_proj" in name:
            return x[..., which]
        if "attn.c_attn" in name:
            x = torch.cat([part[..., which] for part in x.chunk(3, dim=-1)], dim=-1)
            return x[which] / copies if x.dim() == 2 else x
        if "attn.c_proj.weight" in name:
            return x[which][:, which] / copies
        return x[..., which] / (copies if "ln_f" in name else 1)

    return {name: repeat(name, x.float()).contiguous() for name, x in tensors.items()}


def write_checkpoint(directory: Path, copies: int) -> Path:
    """Write tinytales in float32, with each feature `copies` times."""
    from safetensors.torch import load_file, save_file

    from stagewise.layout import write_config
    from tools.engines import TINYTALES

    directory.mkdir()
    config = json.loads((TINYTALES / "config.json").read_text(encoding="utf-8"))
    n_embd, n_head = config["n_embd"], config["n_head"]
    save_file(
        repeated(load_file(TINYTALES / "model.safetensors"), n_head, copies),
        directory / "model.safetensors",
        {"format": "pt"},
    )
    config |= {"n_embd": copies * n_embd, "n_head": copies * n_head, "n_inner": config.get("n_inner") or 4 * n_embd}
    (directory / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    for name in ("merges.txt", "vocab.json", "generation_config.json"):
        shutil.copy(TINYTALES / name, directory)
    write_config(directory, {**config, "dtype": "float32"})
    return directory


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
    sys.path.insert(0, str(ROOT / "models" / "training"))
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


def kept_casts(options: dict, count: int) -> int:
    """How many of `count` sampled tales contradict neither themselves nor their prompt, as in the model's card."""
    sys.path.insert(0, str(ROOT / "models" / "training"))
    from train_tinytales import slips

    from tools.engines import Stage

    stage = Stage(8)
    prompts = ["Once upon a time"] * (count // 2) + [""] * (count - count // 2)
    llm = stage.LLM(device="cpu", max_num_seqs=32, **options)
    outputs = llm.generate(prompts, stage.SamplingParams(temperature=0.8, max_tokens=1000))
    return sum(not slips(prompt + o.outputs[0].text, prompt) for prompt, o in zip(prompts, outputs, strict=True))


def greedy(engine: str, job: dict, folder: Path, **options: Any) -> list[list[int]]:
    """How an engine of bench/engines.py continues the job's openings."""
    from bench.throughput import run_in_fresh_process
    from bench.workloads import SAMPLING

    nothing = dict.fromkeys(("company", "limit"))
    told = {"engine": engine, "device": "cpu", "load_format": "auto", "warm_up": [[1, 2]], "own": {}, **nothing}
    told |= {"sampling": SAMPLING["greedy"]}
    own = {**job, **told, "requests": [(ids, GREEDY) for ids in job["openings"]]}
    own["options"] = {"max_num_seqs": 16, **options}
    return run_in_fresh_process(own, folder)["token_ids"]


def compared_rows(compared: dict[str, dict], sizes: list[int]) -> list[dict]:
    """A row for each engine, with what `compare` says of it."""
    of, exact = next(iter(compared.items()))
    return [{"engine": name, "of": of, **own, **per_byte(own, exact, sizes)} for name, own in compared.items()]


def stage_part(job: dict, sizes: list[int], folder: Path, samples: int) -> Iterator[dict]:
    """The rows of the stages: all of them as soon as their logits are compared, then each again, complete."""
    from tools.engines import Stage

    compared = compare({name: stage_logits(**options) for name, options in STAGE_ROWS.items()}, job["tales"])
    yield from (rows := compared_rows(compared, sizes))
    first = None
    for row, options in zip(rows, STAGE_ROWS.values(), strict=True):
        tokens = greedy(str(Stage(8)), {**job, "dtype": options["dtype"]}, folder, weights=options["weights"])
        first = first or tokens
        yield {**row, **divergence(tokens, first), "kept": kept_casts(options, samples), "samples": samples}


def peer_part(name: str, job: dict, sizes: list[int], folder: Path) -> Iterator[dict]:
    """The rows of a peer, in the same way. Raises Failure with its last line of output."""
    from bench.peers import PEERS

    python = PEERS[name].python
    if not python.exists():
        raise Failure(f"not installed; python -m bench.peers {name} installs it")
    job = {**job, "folder": str(folder), "result": str(folder / "compared.json")}
    (folder / "quality.json").write_text(json.dumps(job))
    command = [str(python), "-m", "bench.quality", "--run", name, str(folder / "quality.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        words = [line for line in done.stderr.splitlines() if line.strip()]
        raise Failure(words[-1][:300] if words else f"it ended with status {done.returncode}")
    yield from (rows := compared_rows(json.loads(Path(job["result"]).read_text()), sizes))
    first = None
    for row in rows:
        engine, _, dtype = row["engine"].rpartition(" ")
        tokens = greedy(engine, {**job, "dtype": dtype}, folder)
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


def table(result: dict) -> str:
    """What each engine's number formats cost, and what each part of int8 costs, with captions."""
    return "\n\n".join(part for part in (engines_table(result), ablation_table(result)) if part)


def engines_table(result: dict) -> str:
    titles = ["engine", "bits per byte", "increase over its float32", "same best token", "KL, nats"]
    titles += ["greedy tokens before the first difference", "tales that keep their cast"]
    rows = []
    for row in result["rows"]:
        cells = [row["engine"], *(row_cells(row, row["engine"] == row["of"]))]
        many = "all" if row.get("greedy_median", 0) is None else f"{row.get('greedy_median', 0):.0f}"
        cells.append(many if "greedy_median" in row and row["engine"] != row["of"] else "")
        rows.append([*cells, f"{row['kept']} of {row['samples']}" if "kept" in row else ""])
    versions = "".join(f", {name} {version}" for name, version in result.get("versions", {}).items())
    missing = "".join(f" Missing: {name} ({why})." for name, why in result.get("missing", {}).items())
    machine, names = result["machine"], " ".join(row["engine"] for row in result["rows"])
    notes = ""
    if "openvino-int8" in names:
        notes += "OpenVINO keeps keys and values in 8 bits, too. "
    return grid(titles, rows) + (
        f"\n\n{result['tales']} held-out tales, {result['positions']:,} tokens; ± is the standard error over tales. "
        f"Greedy: the median of {result['openings']} openings that the training's grammar can't write, {GREEDY} tokens "
        'each; "all" if more than half never differ. All figures are for tinytales, a small model of simple '
        "language; no other trained model comes with the project. "
        f"{notes}{machine['device']}, torch {machine['torch']}{versions}.{missing} `{command(result)}`"
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
        f"\n\nSimulated in torch with stage 1's modules, {result['simulated']} held-out tales. Rows have 120 numbers, "
        f"those of `mlp.c_proj` 480, so in the other matrices a group of 128 is the whole row. {costs_most} spread "
        f"most in `{worst['matrix']}`: the largest number is {worst['largest']:.3g} in column {worst['column']}, "
        f"{worst['second']:.3g} in the second-largest column, and {worst['median']:.3g} in the median one."
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


def draw_speeds(result: dict, *speeds: dict) -> Any:
    """What each engine costs in bits per byte, with the standard error, against its tokens per second."""
    from bench.plots import BLUE, GREEN, INK, ORANGE, PURPLE, SMALL, Picture, large

    colors = {"stage": BLUE, "llama-cpp": ORANGE, "openvino": GREEN, "ctranslate2": PURPLE}
    markers = {"float32": "o", "bfloat16": "s"}
    costs = {row["engine"]: row for row in result["rows"]}
    points = []  # (engine, dtype, whether it is in int8, tokens per second, its costs)
    for speed in speeds:
        for row in speed["summary"]:
            engine, dtype, int8 = row["engine"], speed["dtype"], bool(row.get("int8"))
            name = f"stage {int(engine[5:7])}" if engine.startswith("stage") else engine
            if name != engine:
                engine = f"stage 8 {'int8' if int8 else 'as-is'}"  # stage 7 has the bits of as-is
            own = costs.get(f"{engine} {dtype}") or costs.get(f"{engine} float32" if int8 else "")
            if own:
                points.append((name, dtype, int8, row["tokens_per_second"], own))

    dtypes = sorted({dtype for _, dtype, *_ in points})

    @large
    def draw() -> Picture:
        picture = Picture(figsize=(9, 5))
        axes = picture.subplots()
        for name, dtype, int8, speed, own in points:
            color, marker = colors[next(start for start in colors if name.startswith(start))], markers[dtype]
            face = color if int8 else "white"
            axes.errorbar(speed, own["more"], own["more_error"], color=color, linewidth=1, capsize=2, zorder=1)
            axes.scatter(speed, own["more"], marker=marker, facecolor=face, edgecolor=color, s=70, zorder=2)
            label = name if len(dtypes) == 1 else f"{name}, {dtype}"
            top = (speed, own["more"] + own["more_error"])
            axes.annotate(label, top, (0, 7), textcoords="offset points", ha="center", fontsize=SMALL)
        axes.axhline(0, color=INK, linewidth=0.8, zorder=0)
        name, dtype, _, speed, own = max(points, key=lambda point: point[3])
        whose = name[:1].upper() + name[1:]
        axes.set_title(f"{whose} is the fastest, at {speed:.0f} tokens/s; it costs {own['more']:.5f} bits per byte")
        what = ", ".join([f"workload {speeds[0]['workload']}", *dtypes]) + "; filled markers: int8 weights"
        axes.set_xlabel(f"output tokens per second ({what})")
        axes.set_ylabel("increase in bits per byte over float32\n(lower is better)")
        axes.margins(y=0.15)
        axes.set_xlim(left=0, right=1.12 * speed)
        return picture

    return draw()


# --- The command ------------------------------------------------------------------------------------------------------


def measure(args: argparse.Namespace) -> Iterator[dict]:
    """The result, part by part."""
    import torch

    from bench.peers import PEERS

    sys.path.insert(0, str(ROOT / "models" / "training"))
    from train_tinytales import MODEL, Tokenizer, held_out_openings

    tales, sizes = held_out(args.tales)
    tokenizer = Tokenizer(MODEL)
    openings = [tokenizer.encode(text) for text in held_out_openings()][: args.openings]
    simulated = min(args.simulated, len(tales))
    done: dict[str, dict] = {}  # the rows of engines
    result: dict[str, Any] = {"tales": len(tales), "positions": sum(len(ids) - 1 for ids in tales)}
    result |= {"openings": len(openings), "simulated": simulated, "rows": [], "ablation": [], "missing": {}}
    result["versions"] = {}

    def simulate(folder: Path) -> Iterator[dict]:
        rows, outliers = ablation_part(tales[:simulated], sizes[:simulated])
        result.update(ablation=[without_tales(row) for row in rows], outliers=outliers)
        yield from ()

    with tempfile.TemporaryDirectory() as name:
        job = {"tales": tales, "openings": openings, "threads": torch.get_num_threads()}
        plain = write_checkpoint(Path(name) / "plain", 1)
        parts = {"stages": lambda folder: stage_part({**job, "model": str(plain)}, sizes, folder, args.samples)}
        parts["ablation"] = simulate
        for peer in args.peers:
            model = write_checkpoint(Path(name) / "repeated", COPIES) if peer == "llama-cpp" else plain
            own = {**job, "model": str(model)}
            parts[peer] = lambda folder, peer=peer, own=own: peer_part(peer, own, sizes, folder)
        for part, run in parts.items():
            print(f"quality: {part}", file=sys.stderr, flush=True)
            folder = Path(name) / part
            folder.mkdir()
            try:
                for row in run(folder):
                    done[row["engine"]] = without_tales(row)
                    result["rows"] = list(done.values())
                    yield result
                if part in PEERS:
                    result["versions"] |= versions_of(PEERS[part].python, PEERS[part].reported)
            except Exception as error:  # keep the other parts
                traceback.print_exc()
                result["missing"][part] = f"{type(error).__name__}: {error}"[:300]
            yield result


def versions_of(python: Path, packages: Sequence[str]) -> dict[str, str]:
    code = f"import importlib.metadata as m, json; print(json.dumps({{n: m.version(n) for n in {list(packages)!r}}}))"
    if not python.exists():
        return {}
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False)
    versions = json.loads(done.stdout) if done.returncode == 0 else {}
    return {name: version for name, version in versions.items() if name != "torch"}


OPTIONS = {
    "--peers": dict(nargs="*", choices=list(PEER_LOGITS), default=[], help="other engines in int8, and their float32"),
    "--tales": dict(type=int, default=TALES, metavar="N", help="held-out tales; default: %(default)s"),
    "--simulated": dict(type=int, default=SIMULATED, metavar="N", help="those of the simulation; default: %(default)s"),
    "--openings": dict(type=int, default=200, metavar="N", help="that are continued greedily; default: all 200"),
    "--samples": dict(type=int, default=SAMPLES, metavar="N", help="sampled tales; default: %(default)s"),
}
measure_all = script(measure, table, options=OPTIONS)


def main(argv: list[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    if words[:1] == ["--run"]:  # in a peer's environment
        name, job = words[1], json.loads(Path(words[2]).read_text())
        Path(job["result"]).write_text(json.dumps(run_peer(name, job)))
        return 0
    return measure_all(words)


if __name__ == "__main__":
    sys.exit(main())
