"""A solution of exercise 6.1."""

from collections.abc import Sequence


def pack(weight: list[list[float]], width: int) -> list[float]:
    """The panels of a matrix, one after another. [out][in] -> [out / width, rounded up][in][width], as one list"""
    in_ = len(weight[0])
    padded = weight + [[0.0] * in_] * (-len(weight) % width)
    packed = []
    for first in range(0, len(padded), width):
        for i in range(in_):
            packed += [column[i] for column in padded[first : first + width]]
    return packed


def multiply(packed: Sequence[float], x: list[list[float]], width: int, out: int) -> list[list[float]]:
    """The product with packed weights, each of which is read once, from front to back. [rows][in] -> [rows][out]"""
    in_, at = len(x[0]), 0
    results = [[] for _ in x]
    for first in range(0, out, width):
        sums = [[0.0] * width for _ in x]
        for i in range(in_):
            weights = packed[at : at + width]
            at += width
            for row, own in zip(x, sums, strict=True):
                for lane, weight in enumerate(weights):
                    own[lane] += row[i] * weight
        for result, own in zip(results, sums, strict=True):
            result += own[: out - first]
    return results


# --- Wrong answers: (what is wrong, in the solution, instead, words of the message) --------------------------------

GROUP = """        for i in range(in_):
            packed += [column[i] for column in padded[first : first + width]]
"""
BEGIN = "    in_, at = len(x[0]), 0\n"
MUTANTS = [
    ("columns stay runs", GROUP, "        packed += [w for column in padded[first : first + width] for w in column]\n", "the weights of one input stand side by side"),
    ("one large panel", "    for first in range(0, len(padded), width):\n" + GROUP,
     "    for i in range(in_):\n        packed += [column[i] for column in padded]\n", "panel after panel"),
    ("no zeros", "    padded = weight + [[0.0] * in_] * (-len(weight) % width)\n", "    padded = weight\n", "columns that don't exist are zeros"),
    ("the rest is dropped", "range(0, len(padded), width)", "range(0, len(weight) // width * width, width)", "columns that don't exist are zeros"),
    ("reads for every row", BEGIN, "    if len(x) > 1:\n        return [multiply(packed, [row], width, out)[0] for row in x]\n" + BEGIN, "read exactly once, from front to back, however many rows"),
    ("a copy for every row", BEGIN, "    if len(x) > 1:\n        packed = list(packed)\n        return [multiply(packed, [row], width, out)[0] for row in x]\n" + BEGIN,
     "use each group for all rows"),
    ("input by input", "weights = packed[at : at + width]", "weights = packed[at : at + width]\n            weights = [packed[at + lane] for lane in range(width)]", "read exactly once"),
    ("backwards within a group", "weights = packed[at : at + width]", "weights = [packed[at + lane] for lane in range(width - 1, -1, -1)][::-1]", "from front to back"),
    ("leaves the zeros out", "weights = packed[at : at + width]", "weights = packed[at : at + min(width, out - first)]", "read exactly once"),
    ("keeps the added columns", "result += own[: out - first]", "result += own", "columns that don't exist are not in the result"),
    ("columns as rows", "    return results\n", "    return [list(column) for column in zip(*results)]\n", "a row for each row of x"),
]  # fmt: skip
