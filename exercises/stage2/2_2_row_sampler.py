"""Exercise 2.2, a sampler for rows. Instructions: 2_2_row_sampler.md."""

from torch import Tensor


def sample(logits: Tensor, temperature: Tensor, top_k: Tensor, u: Tensor) -> Tensor:
    """A token for each row, without a loop over the rows.

    Args:
        logits: [rows, vocab] float32; temperature: [rows], 0 is greedy; top_k: [rows] int64, 0 keeps all; u: [rows]
            random numbers, 0 <= u < 1.

    Returns:
        [rows] int64
    """
    raise NotImplementedError
