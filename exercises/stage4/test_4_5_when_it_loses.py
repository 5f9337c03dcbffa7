"""The lengths go through stages 3 and 4 themselves."""

from exercises.grading import require
from exercises.tiny import counted
from tools.engines import STAGES


def passes(outputs):
    """(static, continuous)"""
    ones = (1,) * len(outputs)
    return [counted(stage, ones, tuple(outputs), max_num_seqs=4).forwards for stage in (STAGES[2], STAGES[3])]


def check_lengths(name, outputs):
    require(isinstance(outputs, list) and len(outputs) == 12, f"{name}()", "a list of twelve lengths", outputs)
    wrong = [n for n in outputs if type(n) is not int or not 1 <= n <= 32]
    require(not wrong, f"{name}()", "whole numbers from 1 to 32", wrong)


def test_best(work):
    check_lengths("best", outputs := work.best())
    static, continuous = passes(outputs)
    require(static >= 2 * continuous, f"best(): {outputs}", "a gain of at least 2", f"{static} / {continuous} passes",
            "what if each static batch had one long request, and the continuous engine ran all long ones together?")  # fmt: skip


def test_no_gain(work):
    check_lengths("no_gain", outputs := work.no_gain())
    require(len(set(outputs)) > 1, f"no_gain(): {outputs}", "lengths that are not all equal", "all equal")
    static, continuous = passes(outputs)
    require(static == continuous, f"no_gain(): {outputs}", "a gain of exactly 1", f"{static} / {continuous} passes",
            "what if they were equal within each batch of four, but not between them?")  # fmt: skip


def test_loses_to_sorted(work):
    check_lengths("loses_to_sorted", outputs := work.loses_to_sorted())
    static, _ = passes(sorted(outputs, reverse=True))
    _, continuous = passes(outputs)
    require(continuous > static, f"loses_to_sorted(): {outputs}", "more passes than sorted static batches",
            f"{continuous} continuous, {static} static", "what if one of the longest comes last?")  # fmt: skip
