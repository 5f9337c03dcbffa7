"""Exercise 1.1, the sampler. Instructions: 1_1_sampler.md."""


def distribution(
    logits: list[float], temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> list[float]:
    """The probability of every token after temperature, top-k, top-p and min-p, in this order. They sum to 1."""
    raise NotImplementedError


def draw(probabilities: list[float], u: float) -> int:
    """The first token at which the cumulative sum of the probabilities is greater than u, with 0 <= u < 1."""
    raise NotImplementedError
