"""4.5 When it loses: the lengths go through stages 3 and 4 themselves."""

import pytest

from exercises.tiny import counted
from tools.engines import STAGES


@pytest.fixture(params=["best", "no_gain", "loses_to_sorted"])
def outputs(work, request):
    return getattr(work, request.param)()


def static(outputs):
    return counted(STAGES[2], (1,) * 12, tuple(outputs), max_num_seqs=4).forwards


def continuous(outputs):
    return counted(STAGES[3], (1,) * 12, tuple(outputs), max_num_seqs=4).forwards


def test_lengths(outputs):
    """Twelve whole numbers from 1 to 32"""
    assert len(outputs) == 12
    assert all(type(n) is int and 1 <= n <= 32 for n in outputs), outputs


def test_best(work):
    """A gain of at least 2"""
    passes = static(work.best()), continuous(work.best())
    hint = "what if each static batch had one long request, and the continuous engine ran all long ones together?"
    assert passes[0] >= 2 * passes[1], f"{passes[0]} static passes, {passes[1]} continuous: {hint}"


def test_no_gain(work):
    """A gain of exactly 1, with lengths that are not all equal"""
    outputs = work.no_gain()
    assert len(set(outputs)) > 1, "the lengths are all equal"
    assert continuous(outputs) == static(outputs), "what if they were equal within each batch, but not between batches?"


def test_loses_to_sorted(work):
    """More passes than static batches of the same requests, sorted, the longest first"""
    outputs = work.loses_to_sorted()
    passes = continuous(outputs), static(sorted(outputs, reverse=True))
    hint = "what if one of the longest comes last?"
    assert passes[0] > passes[1], f"{passes[0]} continuous passes, {passes[1]} in sorted batches: {hint}"
