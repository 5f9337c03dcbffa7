"""Exercise 2.3, count the waste. Instructions: 2_3_waste.md."""


def positions(
    prompts: list[int], outputs: list[int], max_num_seqs: int, sort_by_length: bool = False
) -> tuple[int, int]:
    """(places with tokens of live rows, wasted places) that stage 2 computes, from the lengths of the requests."""
    raise NotImplementedError
