"""Random numbers without state: a fixed function of a seed and a counter, so a draw is the same whenever it is made."""

LOW = 2**32 - 1


def philox(seed: int, counter: int, stream: int = 0) -> tuple[int, int, int, int]:
    """Philox4x32-10: turn a 64-bit seed and a counter into random bits, without any state.

    Source: Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3", section 3.3. Philox multiplies and mixes
    four 32-bit words of counter with two of key, ten rounds; each round the key grows by Weyl constants.

    Returns:
        four words of 32 random bits.
    """
    k0, k1 = seed & LOW, seed >> 32 & LOW
    c0, c1, c2, c3 = counter & LOW, counter >> 32 & LOW, stream & LOW, stream >> 32 & LOW
    for _ in range(10):
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57  # 32 x 32 -> 64 bits
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & LOW, (p0 >> 32) ^ c3 ^ k1, p0 & LOW
        k0, k1 = (k0 + 0x9E3779B9) & LOW, (k1 + 0xBB67AE85) & LOW
    return c0, c1, c2, c3


def uniform(seed: int, position: int) -> float:
    """The uniform random number of (seed, position): between 0 and 1 but never either, a multiple of 2**-53."""
    a, b, _, _ = philox(seed, position)
    return ((a << 20 | b >> 12) + 0.5) / 2**52


def derive_seed(engine_seed: int, number: int) -> int:
    """The seed of the engine's request `number`, for one that sets none."""
    a, b, _, _ = philox(engine_seed, number, stream=1)
    return a << 32 | b


def completion_seed(seed: int, index: int) -> int:
    """The seed of completion `index` of a request: the first one keeps the request's, so it is what n=1 gives."""
    a, b, _, _ = philox(seed, index, stream=2)
    return a << 32 | b if index else seed
