"""A solution of exercise 8.3."""


def outlier() -> list[float]:
    """Eight activations; seven of them have a magnitude of 0.5 to 1, and all seven become 0."""
    return [0.5, -1.0, 0.75, 300.0, 1.0, -0.5, 0.625, 0.875]


def flips() -> tuple[list[list[float]], list[float]]:
    """(weight of two outputs and four inputs, four activations): in floats output 0 is greater, in int8 output 1."""
    return [[10.0, 0.03, 0.03, 0.03], [0.02, 0.02, 0.02, 0.02]], [0.0, 1.0, 1.0, 1.0]


def gain(rows: int, weights: float, bandwidth: float, products: tuple[float, float], rest: float) -> float:
    """How many times as fast a step of this many rows is with int8 as with float32."""

    def seconds(size: int, per_second: float) -> float:
        return max(size * weights / bandwidth, rows * weights / per_second) + rows * rest

    return seconds(4, products[0]) / seconds(1, products[1])


def loses_from(weights: float, bandwidth: float, products: tuple[float, float], rest: float, most: int) -> int | None:
    """The smallest number of rows, up to `most`, with which int8 is slower; None if it never is."""
    for rows in range(1, most + 1):
        if gain(rows, weights, bandwidth, products, rest) < 1:
            return rows
    return None


# --- Wrong answers: (what is wrong, in the solution, instead, words of the message) --------------------------------

OUTLIER = "[0.5, -1.0, 0.75, 300.0, 1.0, -0.5, 0.625, 0.875]"
LAYER = "[[10.0, 0.03, 0.03, 0.03], [0.02, 0.02, 0.02, 0.02]], [0.0, 1.0, 1.0, 1.0]"
SECONDS = "max(size * weights / bandwidth, rows * weights / per_second) + rows * rest"
GAIN = "seconds(4, products[0]) / seconds(1, products[1])"
SECONDS_OF = f"""    def seconds(size: int, per_second: float) -> float:
        return {SECONDS}

"""
LOOP = """    for rows in range(1, most + 1):
        if gain(rows, weights, bandwidth, products, rest) < 1:
            return rows
    return None"""
MUTANTS = [
    ("an outlier that is not quite enough", "300.0", "-253.0", "half the scale of the largest"),
    ("small ones", OUTLIER, "[0.1] * 7 + [30.0]", "seven are from 0.5 to 1"),
    ("nearly a tie", LAYER, "[[1.0, 0.5, 0.25, 0.1], [1.0, 0.5, 0.25, 0.0999]], [1.0, 1.0, 1.0, 1.0]", "in floats the outputs are"),
    ("an outlier in output 1", LAYER, "[[0.03, 0.03, 0.03, 0.03], [10.0, 0.02, 0.02, 0.02]], [0.0, 1.0, 1.0, 1.0]", "multiplied by an activation of 0"),
    ("one after the other", SECONDS, "size * weights / bandwidth + rows * weights / per_second + rows * rest", "the longer of the two"),
    ("one row is multiplied", "rows * weights / per_second", "weights / per_second", "every row is multiplied"),
    ("weights are read for each row", "size * weights / bandwidth", "rows * size * weights / bandwidth", "which are read once"),
    ("the rest once", " + rows * rest", " + rest", "the same seconds per row"),
    ("the rest is within the longer", SECONDS, "max(size * weights / bandwidth, rows * weights / per_second, rows * rest)", "the rest comes on top"),
    ("upside down", GAIN, "seconds(1, products[1]) / seconds(4, products[0])", "a quarter of the bytes"),
    ("products of float32", GAIN, "seconds(4, products[0]) / seconds(1, products[0])", "take different times"),
    ("always four times", GAIN, "4.0", "take different times"),
    ("one row less", "return rows\n", "return rows - 1\n", "the smallest number of rows"),
    ("equally fast is a loss", "rest) < 1:", "rest) <= 1:", "equally fast is not slower"),
    ("without the last", "range(1, most + 1)", "range(1, most)", "`most` rows count too"),
    ("the most instead of None", "    return None\n", "    return most\n", "expected  None"),
]  # fmt: skip

ALSO_RIGHT = [
    ("other finds", (OUTLIER, LAYER), ("[1.0] * 7 + [-1e6]", "[[0.35, 0.35, 0.35, 100.0], [0.3, 0.3, 0.3, 0]], [1.0, 2.0, 3.0, 0]")),
    ("without a function", "    return " + GAIN, "    times = [max(size * weights / bandwidth, rows * weights / products[size == 1]) + rest * rows for size in (4, 1)]\n    return times[0] / times[1]"),
    ("the first of a generator", LOOP, "    return next((rows for rows in range(1, most + 1) if gain(rows, weights, bandwidth, products, rest) < 1), None)"),
    ("two times by name, and a loop that counts", (SECONDS_OF + "    return " + GAIN, LOOP),
     ("    reading, multiplying = weights / bandwidth, rows * weights\n"
      "    before = 4 * reading if 4 * reading > multiplying / products[0] else multiplying / products[0]\n"
      "    after = reading if reading > multiplying / products[1] else multiplying / products[1]\n"
      "    return (before + rows * rest) / (after + rows * rest)",
      "    rows = 1\n    while rows <= most and not gain(rows, weights, bandwidth, products, rest) < 1:\n        rows += 1\n    return rows if rows <= most else None")),
    ("on tensors", SECONDS_OF + "    return " + GAIN, "    import torch\n\n    reading = torch.tensor([4.0, 1.0], dtype=torch.float64) * weights / bandwidth\n"
     "    multiplying = rows * weights / torch.tensor(products, dtype=torch.float64)\n    before, after = (torch.maximum(reading, multiplying) + rows * rest).tolist()\n    return before / after"),
]  # fmt: skip
