"""Engines of the stages with a very small random model, for exercises that compare with them."""

import json
import tempfile
from pathlib import Path

from tests.adapter import Stage

SIZES = dict(n_layer=1, n_head=1, n_embd=8, vocab_size=97, eos_token_id=0)


def tiny_engine(stage: Stage, n_positions: int = 64, **arguments):
    """The engine of a stage, on a CPU, with random weights that need no file."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps({**SIZES, "n_positions": n_positions}))
        return stage.LLM(folder, load_format="dummy", device="cpu", **arguments)
