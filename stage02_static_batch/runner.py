"""The model on its device: from a batch to the logits of the tokens that follow."""

import torch
from torch import Tensor

from .batch import Batch
from .config import EngineConfig
from .model import GPT2, ModelConfig
from .support.device import check_fork, describe_device, pick_device, pick_dtype
from .support.weights import Checkpoint


class Runner:
    """Owns the model.

    Args:
        config: the options of the engine.
        model_config: the sizes of the model.
        checkpoint: where its weights come from.
    """

    def __init__(self, config: EngineConfig, model_config: ModelConfig, checkpoint: Checkpoint):
        check_fork()
        self.device = pick_device(config.device)
        self.dtype = pick_dtype(config.dtype, self.device)
        with torch.device("meta"):  # no memory yet: the checkpoint brings the tensors
            self.model = GPT2(model_config).eval()
        checkpoint.load(self.model, self.dtype, self.device)

    def describe(self) -> str:
        """The chosen device and dtype, in words."""
        return describe_device(self.device, self.dtype)

    def forward(self, batch: Batch) -> Tensor:
        """The logits of the token that follows each live row: [n_live, vocab_size] float32."""
        check_fork()
        with torch.autocast(self.device.type, enabled=False):  # ignore the caller's autocast
            return self.model(batch.token_ids, batch.num_padding)[batch.live_rows]
