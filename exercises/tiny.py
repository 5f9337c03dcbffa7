"""The stages' engines with a very small random model, for exercises that compare with them, and a helper that makes
small tensors fast."""

import contextlib
import functools
import json
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_file

from stagewise.layout import write_config
from tools.engines import Stage

SIZES = dict(n_layer=1, n_head=1, n_embd=8, n_inner=32, vocab_size=257)


@contextlib.contextmanager
def one_thread():
    """Torch on one thread: with tiny tensors, threads waiting for each other take most of the time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Counted(NamedTuple):
    forwards: int
    computed: int
    padding: int


def tiny_engine(stage: Stage, n_positions: int = 64, make: str = "LLM", **arguments):
    """The engine of a stage, on a CPU, with random weights. make: the method that makes it. Its tokens are bytes:
    loading GPT-2's vocabulary would take longer than everything else."""
    weights = stage.part("weights")
    with torch.device("meta"):
        model = stage.GPT2(stage.ModelConfig(**SIZES, n_positions=n_positions))
    shapes = {name: parameter.shape for name, parameter in model.state_dict().items()}
    tensors = dict(weights.dummy_tensors(shapes))
    for name in tensors:
        if name.endswith(weights.STORED_TRANSPOSED):
            tensors[name] = tensors[name].t().contiguous()
    tokens = [*stage.byte_alphabet(), "<|endoftext|>"]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "merges.txt").write_text("#version: 0.2\n")
        (Path(folder) / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
        save_file(tensors, Path(folder) / "model.safetensors", {"format": "pt"})
        write_config(Path(folder), {**SIZES, "n_positions": n_positions, "eos_token_id": 256})
        return getattr(stage, make)(folder, device="cpu", **arguments)


@functools.cache
@one_thread()
def counted(stage: Stage, prompts: tuple[int, ...], outputs: tuple[int, ...], **arguments) -> Counted:
    """What a stage counts for requests of these lengths: forward passes, tokens computed, padding."""
    llm = _kept_engine(stage, **arguments)
    before = _counts(llm)
    parameters = [stage.SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in outputs]
    for _ in llm.stream([[1] * n for n in prompts], parameters):  # in this order, unlike `generate` from stage 4 on
        pass
    return Counted(*(new - old for new, old in zip(_counts(llm), before, strict=True)))


_kept_engine = functools.cache(tiny_engine)


def _counts(llm) -> Counted:
    stats = llm.stats
    return Counted(stats.num_forwards, stats.num_tokens_computed, getattr(stats, "num_padding_tokens", 0))
