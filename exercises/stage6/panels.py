"""What the tests of the answers in C share: matrices, their panels, and a comparison."""

import os

import numpy as np

PANEL = 32
PAGE = os.sysconf("SC_PAGE_SIZE") // 4  # numbers of a page


def packed(weight: np.ndarray, width: int = PANEL, inner: int = 1) -> np.ndarray:
    """[out, in] -> [panels, steps, width, inner]: puts each number where exercise 6.2 says."""
    out, in_ = weight.shape
    panels = np.zeros((-(-out // width), -(-in_ // inner), width, inner), np.float32)
    columns, inputs = np.arange(out)[:, None], np.arange(in_)
    panels[columns // width, inputs // inner, columns % width, inputs % inner] = weight
    return panels


def whole(*shape: int, seed: int = 0) -> np.ndarray:
    """Small integers, whose sums of products are exact in any order."""
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(np.float32)


def spread(*shape: int, seed: int = 0) -> np.ndarray:
    """Numbers with few bits and very different magnitudes: each product is exact, so only the order of a sum shows."""
    sizes = np.random.default_rng(seed + 1).integers(-10, 11, shape)
    return whole(*shape, seed=seed) * np.exp2(sizes, dtype=np.float32)


def in_order(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """[n, in], [out, in] -> [n, out]: sums in float32 that begin with 0 and add the inputs in order."""
    sums = np.zeros((len(x), len(weight)), np.float32)
    for i in range(weight.shape[1]):
        sums += x[:, i, None] * weight[:, i]
    return sums


def nothing(*shape: int) -> np.ndarray:
    """Memory that nobody has written: NaNs."""
    return np.full(shape, np.nan, np.float32)


def assert_same(got: np.ndarray, expected: np.ndarray, said: str) -> None:
    """Equal numbers; else the first that differs is told."""
    for place in np.argwhere(got != expected)[:1].tolist():
        at = "".join(f"[{i}]" for i in place)
        raise AssertionError(f"{said}\nexpected  {expected[tuple(place)]} at {at}\ngot       {got[tuple(place)]}")
