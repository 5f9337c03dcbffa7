"""6.1 Pack panels: the layout by hand, products, and the order in which packed numbers are read and used."""

import random

import pytest


def matrix(out, in_):
    """Column c and input i have the number "ci": 12 is column 1, input 2."""
    return [[10.0 * column + i for i in range(in_)] for column in range(1, out + 1)]


def packed_slowly(weight, width):
    """Puts every number where the formula says."""
    out, in_ = len(weight), len(weight[0])
    packed = [0.0] * (-(-out // width) * in_ * width)
    for c in range(out):
        for i in range(in_):
            packed[(c // width * in_ + i) * width + c % width] = weight[c][i]
    return packed


def case(rule, out, in_, width, *expected):
    return pytest.param(matrix(out, in_), width, [*expected], id=rule)


@pytest.mark.parametrize(("weight", "width", "expected"), [
    case("within a panel, the weights of one input stand side by side", 2, 3, 2, 10, 20, 11, 21, 12, 22),
    case("panel after panel: each is one run of memory", 4, 2, 2, 10, 20, 11, 21, 30, 40, 31, 41),
    case("columns that don't exist are zeros", 3, 2, 2, 10, 20, 11, 21, 30, 0, 31, 0),
    case("panels of 1 are the matrix itself", 2, 3, 1, 10, 11, 12, 20, 21, 22),
    case("a panel may be wider than the matrix", 1, 2, 3, 10, 0, 0, 11, 0, 0),
])  # fmt: skip
def test_pack(work, weight, width, expected):
    assert work.pack(weight, width) == expected


class Number(float):
    """A packed number that notes when it is multiplied."""

    def __new__(cls, value, place, used):
        self = super().__new__(cls, value)
        self.place, self.used = place, used
        return self

    def __mul__(self, other):
        self.used.append(self.place)
        return float(self) * other

    __rmul__ = __mul__


class Packed:
    """Packed numbers that note in which order they are read and used."""

    def __init__(self, numbers):
        self.read, self.used = [], []
        self.numbers = [Number(number, place, self.used) for place, number in enumerate(numbers)]

    def __len__(self):
        return len(self.numbers)

    def __iter__(self):
        return (self[i] for i in range(len(self.numbers)))

    def __getitem__(self, key):
        places = range(len(self.numbers))[key]
        self.read += [places] if isinstance(places, int) else places
        return self.numbers[key]


def multiplied_slowly(weight, x):
    return [[sum(a * w for a, w in zip(row, column, strict=True)) for column in weight] for row in x]


@pytest.mark.parametrize(("out", "x", "width"), [
    pytest.param(2, [[1, 2], [3, 4], [5, 6]], 2, id="the result is [rows][out]: a row for each row of x"),
    pytest.param(5, [[1, 0, 0], [0, 1, 0]], 2, id="columns that don't exist are not in the result"),
    pytest.param(3, [[1, 2]], 3, id="one row, one panel"),
])  # fmt: skip
def test_multiply(work, out, x, width):
    weight = matrix(out, len(x[0]))
    assert work.multiply(packed_slowly(weight, width), x, width, out) == multiplied_slowly(weight, x)


@pytest.mark.parametrize("num_rows", [1, 3])
def test_order(work, num_rows):
    """Each packed number is read exactly once, from front to back, however many rows there are."""
    packed = Packed(packed_slowly(matrix(5, 3), 2))
    work.multiply(packed, [[1.0, 2.0, 3.0]] * num_rows, 2, 5)
    assert packed.read == list(range(len(packed))), "the places that are read"
    groups = [place // 2 for place in packed.used]
    assert groups == sorted(groups), "use each group for all rows before you read the next: the groups that are used"


def test_any_matrix(work):
    """Random matrices: the same as a formula, number by number."""
    for seed in range(100):
        choose = random.Random(seed)
        out, in_, width, num_rows = (choose.randint(1, 2 + seed // 8) for _ in range(4))
        weight = [[choose.randint(-8, 8) / 4 for _ in range(in_)] for _ in range(out)]
        x = [[choose.randint(-8, 8) / 4 for _ in range(in_)] for _ in range(num_rows)]
        packed = packed_slowly(weight, width)
        assert work.pack(weight, width) == packed, f"pack({weight}, {width})"
        expected = multiplied_slowly(weight, x)
        assert work.multiply(packed, x, width, out) == expected, f"multiply({packed}, {x}, {width}, {out})"
