"""Random numbers without state: a fixed function of a seed and a counter, so a draw is the same whenever it is made."""

import numpy as np
from numpy.typing import ArrayLike


def philox(seed: ArrayLike, counter: ArrayLike, stream: ArrayLike = 0) -> tuple[np.ndarray, ...]:
    """Philox4x32-10: turn a 64-bit seed and a counter into random bits, without any state. Takes integers or arrays.

    Source: Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3", section 3.3. Philox multiplies and mixes
    four 32-bit words of counter with two of key, ten rounds; each round the key grows by Weyl constants.

    Returns:
        four uint64 arrays, each holding 32 random bits.
    """

    def u64(x: ArrayLike) -> np.ndarray:
        return np.asarray(x, dtype=np.uint64)

    low, half = u64(0xFFFFFFFF), u64(32)
    k0, k1 = u64(seed) & low, u64(seed) >> half
    c0, c1, c2, c3 = u64(counter) & low, u64(counter) >> half, u64(stream) & low, u64(stream) >> half
    for _ in range(10):
        p0, p1 = c0 * u64(0xD2511F53), c2 * u64(0xCD9E8D57)  # 32 x 32 -> 64 bits
        c0, c1, c2, c3 = (p1 >> half) ^ c1 ^ k0, p1 & low, (p0 >> half) ^ c3 ^ k1, p0 & low
        k0, k1 = (k0 + u64(0x9E3779B9)) & low, (k1 + u64(0xBB67AE85)) & low
    return c0, c1, c2, c3


def uniform(seed: ArrayLike, position: ArrayLike, index: ArrayLike = 0) -> np.ndarray:
    """Uniform number of (seed, position) of a completion: in (0, 1), never 0 or 1, a multiple of 2**-53. Integers
    or arrays. Completions have the even streams; the odd one is `derive_seed`'s."""
    a, b, _, _ = philox(seed, position, 2 * np.asarray(index))
    return ((a << np.uint64(20) | b >> np.uint64(12)).astype(np.float64) + 0.5) / 2**52


def derive_seed(engine_seed: int, number: int) -> int:
    """The seed of the engine's request `number`, for requests that bring none."""
    a, b, _, _ = philox(engine_seed, number, stream=1)
    return int(a << np.uint64(32) | b)
