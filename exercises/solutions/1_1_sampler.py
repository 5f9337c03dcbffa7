"""A solution of exercise 1.1."""

import math


def softmax(scores: list[float]) -> list[float]:
    largest = max(scores)
    weights = [math.exp(score - largest) for score in scores]
    return [weight / sum(weights) for weight in weights]


def distribution(
    logits: list[float], temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> list[float]:
    """The probability of every token after temperature, top-k, top-p and min-p, in this order. They sum to 1."""
    if temperature == 0:
        best = logits.index(max(logits))
        return [float(i == best) for i in range(len(logits))]
    scores = [logit / temperature for logit in logits]
    if 0 < top_k < len(scores):
        kth = sorted(scores, reverse=True)[top_k - 1]
        scores = [score if score >= kth else -math.inf for score in scores]
    if top_p < 1:
        probabilities, before, kept = softmax(scores), 0.0, set()
        for token in sorted(range(len(scores)), key=lambda i: (probabilities[i], i), reverse=True):
            if before < top_p:
                kept.add(token)
            before += probabilities[token]
        scores = [score if i in kept else -math.inf for i, score in enumerate(scores)]
    if min_p > 0:
        probabilities = softmax(scores)
        scores = [
            s if p >= min_p * max(probabilities) else -math.inf for s, p in zip(scores, probabilities, strict=True)
        ]
    return softmax(scores)


def draw(probabilities: list[float], u: float) -> int:
    """The first token at which the cumulative sum of the probabilities is greater than u, with 0 <= u < 1."""
    total, last = 0.0, 0
    for token, probability in enumerate(probabilities):
        total += probability
        if total > u:
            return token
        if probability > 0:
            last = token
    return last  # rounding left the sum a little below u


# --- Wrong answers: (what is wrong, in the solution, instead, what the learner is told) --------------------------------

MUTANTS = [
    ("multiplies by the temperature", "logit / temperature", "logit * temperature", "multiplied by the temperature"),
    ("overflows", "largest = max(scores)", "largest = 0", "OverflowError"),
    ("the last of equals is greedy", "best = logits.index(max(logits))",
     "best = len(logits) - 1 - logits[::-1].index(max(logits))", "the first one is taken"),
    ("top-k breaks ties by place", "scores = [score if score >= kth else -math.inf for score in scores]",
     "kept = sorted(range(len(scores)), key=lambda i: -scores[i])[:top_k]\n"
     "        scores = [s if i in kept else -math.inf for i, s in enumerate(scores)]", "must not depend on its place"),
    ("the crossing token is dropped", "if before < top_p:", "if before + probabilities[token] <= top_p or not kept:",
     "the token that crosses the line is kept"),
    ("min-p as a probability", "p >= min_p * max(probabilities)", "p >= min_p", "not a probability"),
    ("top-p before the temperature", "probabilities, before, kept = softmax(scores), 0.0, set()",
     "probabilities, before, kept = softmax([s * temperature for s in scores]), 0.0, set()",
     "top-p was applied before the temperature"),
    ("top-p on what top-k has dropped", "probabilities, before, kept = softmax(scores), 0.0, set()",
     "probabilities, before, kept = softmax([x / temperature for x in logits]), 0.0, set()",
     "summed to 1 again"),
    ("draws what has no probability", "if total > u:", "if total >= u:", "never drawn"),
    ("falls off the end", "return last  #", "return len(probabilities)  #", "rounding may leave the sum below u"),
]  # fmt: skip
