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
        for token in sorted(range(len(scores)), key=lambda i: -probabilities[i]):
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


# --- Wrong answers: (what is wrong, in the solution, instead, words of the message) --------------------------------

MUTANTS = [
    ("multiplies by the temperature", "logit / temperature", "logit * temperature", "divides the logits"),
    ("the last of equals is greedy", "best = logits.index(max(logits))",
     "best = len(logits) - 1 - logits[::-1].index(max(logits))", "the first of equal ones"),
    ("tiny temperatures are greedy", "if temperature == 0:", "if temperature < 1e-5:", "only temperature 0 itself"),
    ("overflows", "largest = max(scores)", "largest = 0", "exp(1000) overflows"),
    ("ties at the k-th are dropped", "score if score >= kth", "score if score > kth", "the k-th best is kept"),
    ("top-k breaks ties by place", "scores = [score if score >= kth else -math.inf for score in scores]",
     "kept = sorted(range(len(scores)), key=lambda i: -scores[i])[:top_k]\n"
     "        scores = [s if i in kept else -math.inf for i, s in enumerate(scores)]", "position must not decide"),
    ("the crossing token is dropped", "if before < top_p:", "if before + probabilities[token] <= top_p or not kept:",
     "crosses the line of top_p is kept"),
    ("more than top_p", "if before < top_p:", "if before <= top_p:", "at least top_p, not more"),
    ("among equals the higher id first", "key=lambda i: -probabilities[i])",
     "key=lambda i: (probabilities[i], i), reverse=True)", "the lower id is kept first"),
    ("min-p as a probability", "p >= min_p * max(probabilities)", "p >= min_p", "relative to the most likely token"),
    ("the temperature comes last", ("[logit / temperature for logit in logits]", "    return softmax(scores)\n\n"),
     ("list(logits)", "    return softmax([s / temperature for s in scores])\n\n"), "the temperature comes before top-p"),
    ("top-p on what top-k has dropped", "probabilities, before, kept = softmax(scores), 0.0, set()",
     "probabilities, before, kept = softmax([x / temperature for x in logits]), 0.0, set()", "what top-k has kept, rescaled"),
    ("min-p before top-p", "    if top_p < 1:\n", "    if min_p > 0:\n        p = softmax(scores)\n"
     "        scores = [s if q >= min_p * max(p) else -math.inf for s, q in zip(scores, p)]\n        min_p = 0\n    if top_p < 1:\n",
     "top-p comes before min-p"),
    ("draws what has no probability", "if total > u:", "if total >= u:", "probability 0 is never drawn"),
    ("a tolerance around u", "if total > u:", "if total > u + 1e-6:", "without a tolerance"),
    ("falls off the end", "return last  #", "return len(probabilities) - 1  #", "sums to less than 1"),
]  # fmt: skip

TORCH = """def with_torch(logits, temperature, top_k, top_p, min_p):
    import torch

    scores = torch.tensor(logits, dtype=torch.float32) / temperature
    if top_k:
        scores[scores < scores.topk(min(top_k, len(scores))).values[-1]] = -torch.inf
    if top_p < 1:
        order = scores.argsort(descending=True, stable=True)
        p = scores[order].softmax(0)
        scores[order[p.cumsum(0) - p >= top_p - 1e-7]] = -torch.inf
    p = scores.softmax(0)
    return scores.masked_fill(p < min_p * p.max(), -torch.inf).softmax(0).tolist()


def distribution("""
ALSO_RIGHT = [
    ("with torch, in float32", ("def distribution(", "    scores = [logit / temperature for logit in logits]\n"),
     (TORCH, "    return with_torch(logits, temperature, top_k, top_p, min_p)\n")),
    ("divides in place", "    scores = [logit / temperature for logit in logits]\n",
     "    logits[:] = [logit / temperature for logit in logits]\n    scores = logits\n"),
    ("scales u by the sum", "    total, last = 0.0, 0\n", "    total, last = 0.0, 0\n    u *= sum(probabilities)\n"),
]  # fmt: skip
