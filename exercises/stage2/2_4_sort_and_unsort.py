"""Exercise 2.4, sort and unsort. Instructions: 2_4_sort_and_unsort.md."""


def make_batches(lengths: list[int], size: int) -> list[list[int]]:
    """The indices of the requests in batches of at most `size`, the longest first."""
    raise NotImplementedError


def restore(batches: list[list[int]], results: list) -> list:
    """The results, which come in the order of the batches, in the order of the requests."""
    raise NotImplementedError
