"""4.5 When continuous batching loses: the passes of both, counted."""

SLOTS = 4


def static(outputs):
    return sum(max(outputs[i : i + SLOTS]) for i in range(0, len(outputs), SLOTS))


def continuous(outputs):
    free = [0] * SLOTS  # the pass from which each slot is free
    for output in outputs:
        free[free.index(min(free))] += output
    return max(free)


def test_lengths(work):
    """Each function returns twelve output lengths from 1 to 32."""
    for function in (work.best, work.no_gain, work.loses_to_sorted):
        outputs = function()
        assert len(outputs) == 12, f"{function.__name__}: {outputs}"
        assert set(outputs) <= set(range(1, 33)), f"{function.__name__}: {outputs}"


def test_best(work):
    """best() has a gain of at least 2."""
    outputs = work.best()
    few, many = continuous(outputs), static(outputs)
    assert many >= 2 * few, f"{outputs} takes {many} passes in static batches, and {few} in the continuous engine"


def test_no_gain(work):
    """no_gain() has lengths that are not all equal, and a gain of exactly 1."""
    outputs = work.no_gain()
    assert len(set(outputs)) > 1, "they are all equal"
    same = f"as many passes as static batches, for {outputs}"
    assert continuous(outputs) == static(outputs), same


def test_loses_to_sorted(work):
    """loses_to_sorted() takes more passes than static batches that are sorted."""
    outputs = work.loses_to_sorted()
    many, few = continuous(outputs), static(sorted(outputs, reverse=True))
    assert many > few, f"{outputs} takes {many} passes in the continuous engine, and {few} in sorted batches"
