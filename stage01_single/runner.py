"""The model on its device: from a batch to the logits of the tokens that follow."""

from pathlib import Path

import torch
from torch import Tensor

from .batch import Batch
from .config import EngineConfig, in_words, pick_device, pick_dtype
from .model import GPT2, ModelConfig
from .threads import ThreadLimit
from .weights import load_weights


class Runner:
    """Owns the model.

    Args:
        config: the options of the engine.
        model_config: the sizes of the model.
        directory: where its weights are; None makes random ones.
    """

    def __init__(self, config: EngineConfig, model_config: ModelConfig, directory: Path | None):
        self.device = pick_device(config.device)
        self.dtype = pick_dtype(config.dtype, self.device)
        self.thread_limit = ThreadLimit()
        with torch.device("meta"):  # no memory yet: load_weights brings the tensors
            self.model = GPT2(model_config).eval()
        load_weights(self.model, directory, config.load_format, self.dtype, self.device)

    def describe(self) -> str:
        """What the options came to, for people."""
        return in_words(self.device, self.dtype)

    def forward(self, batch: Batch) -> Tensor:
        """The logits of the token that follows the batch's sequence: [vocab_size] float32."""
        return self.model(batch.token_ids)
