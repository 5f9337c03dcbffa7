"""What a check says: which case it ran, what it expected, what it got, and the likely mistake."""

import ast
import linecache
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from types import FrameType

Mistakes = Mapping[str, object]  # message -> the wrong answer that this mistake gives, or OneOf several


class OneOf(tuple):
    """Answers that the same mistake may give."""


class Wrong(AssertionError):
    """A wrong answer, with a message to learn from. `example` is a program that reproduces it."""

    def __init__(self, case: str, expected: object, got: object, likely: str = "", example: str = ""):
        lines = [f"case:      {case}", f"expected:  {short(expected)}", f"got:       {short(got)}"]
        if likely:
            lines.append(f"likely:    {likely}")
        if example:
            lines.append(f"Paste this into Python, started in the project's folder, to reproduce it:\n\n{example}\n")
        super().__init__("\n".join(lines))
        self.likely, self.parts = likely, (case, expected, got, likely)


def short(value: object, width: int = 300) -> str:
    """A value for display: text as it is, numbers without excess digits, and nothing too long."""
    if isinstance(value, str):
        text = value
    elif isinstance(value, float):
        text = f"{value:.6g}"
    elif hasattr(value, "tolist"):
        text = short(value.tolist())
    elif isinstance(value, list | tuple):
        text = "[" + ", ".join(repr(item) if isinstance(item, str) else short(item) for item in value) + "]"
    else:
        text = repr(value)
    return text if len(text) <= width else f"{text[:width]} …"


def same(got: object, expected: object, tolerance: float) -> bool:
    """Equal and of the same type. Floats may differ by the tolerance, and an integer will do for a float."""
    if type(expected) is float:
        number = type(got) in (float, int)
        return number and (got == expected or abs(got - expected) <= tolerance * max(1.0, abs(expected)))
    if type(got) is not type(expected):
        return False
    if isinstance(expected, list | tuple):
        return len(got) == len(expected) and all(same(x, y, tolerance) for x, y in zip(got, expected, strict=True))
    if hasattr(expected, "dtype") and hasattr(expected, "tolist"):
        alike = got.dtype == expected.dtype and got.shape == expected.shape
        return alike and same(got.tolist(), expected.tolist(), tolerance)
    return got == expected


def alike(a: object, b: object, tolerance: float) -> bool:
    """Equal, whatever the types: a known mistake's answer is recognized in a tuple too."""
    if hasattr(a, "tolist"):
        a = a.tolist()
    if hasattr(b, "tolist"):
        b = b.tolist()
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(alike(x, y, tolerance) for x, y in zip(a, b, strict=True))
    numbers = [isinstance(x, Real) and not isinstance(x, bool) for x in (a, b)]
    return a == b or (all(numbers) and abs(a - b) <= tolerance * max(1.0, abs(b)))


def expect(
    case: str,
    got: object,
    expected: object,
    mistakes: Mistakes | None = None,
    *,
    tolerance: float = 1e-5,
    likely: str = "",
    example: str = "",
) -> None:
    """Raise Wrong unless `got` is as expected. The error names the known mistake that gives this answer; or else
    `likely`, for cases with only one possible reason; or else what the answer itself shows."""
    if same(got, expected, tolerance):
        return
    if alike(got, expected, tolerance) and (of_type := type_seen(got, expected)):
        raise Wrong(case, repr(expected), repr(got), of_type, example)
    for said, value in (mistakes or {}).items():
        if any(alike(got, answer, tolerance) for answer in (value if isinstance(value, OneOf) else [value])):
            raise Wrong(case, expected, got, said, example)
    if got is None:
        likely = ""
    raise Wrong(case, expected, got, likely or seen(got, expected), example)


def require(holds: bool, case: str, expected: object, got: object, likely: str = "") -> None:
    """Raise Wrong unless a condition holds: for checks that are not equalities."""
    if not holds:
        raise Wrong(case, expected, got, likely or seen(got, expected))


def seen(got: object, expected: object) -> str:
    """What is certain about a wrong answer, whatever the reason: it is None or empty, or its rows are shared."""
    if got is None and expected is not None:
        return "it returned None: is a `return` missing?"
    if not isinstance(got, list | tuple) or not isinstance(expected, list | tuple):
        return NAN if has_nan(got) and not has_nan(expected) else ""
    if not got and expected:
        return "it is empty: nothing was added, or it was emptied before it was returned"
    if has_nan(got) and not has_nan(expected):
        return NAN
    pairs = list(zip(got, expected, strict=False))
    if any(x is None and y is not None for x, y in pairs):
        return "it contains a None: an element that was never filled, or a missing `return`"
    for i, (x, wanted) in enumerate(pairs):
        for j, (y, other) in enumerate(pairs[:i]):
            if x is y and isinstance(x, list) and not same(wanted, other, 0):
                return f"rows {j} and {i} are the same list, as in [[]] * 2: what is added to one is in both"
    return ""


def type_seen(got: object, expected: object) -> str:
    """Which types differ, where the values are the same."""
    if isinstance(got, list | tuple) and type(got) is type(expected):
        return next(filter(None, (type_seen(x, y) for x, y in zip(got, expected, strict=True))), "")
    if type(got) is type(expected) and hasattr(got, "dtype") and got.dtype != expected.dtype:
        return f"its dtype is {got.dtype}; it should be {expected.dtype}"
    if type(got) is type(expected) or (type(got) is int and type(expected) is float):
        return ""
    more = "; `.tolist()` or `.item()` converts it to Python's types" if hasattr(got, "tolist") else ""
    return f"the value is right, but its type is {type(got).__name__}; it should be {type(expected).__name__}{more}"


NAN = "it contains a NaN: 0 / 0, inf - inf, or a softmax over nothing but -inf"


def has_nan(value: object) -> bool:
    if hasattr(value, "tolist"):
        value = value.tolist()
    return any(map(has_nan, value)) if isinstance(value, list | tuple) else isinstance(value, float) and value != value


# --- Errors -----------------------------------------------------------------------------------------------------------

Spot = tuple[FrameType, int, int]  # a frame, the line that it has reached, and which of its instructions


def told(error: BaseException, work: Path, test: Path) -> str:
    """An error as a message: the case that was run, what was raised, and the line of the learner's file."""
    case = called(spots_of(error), test, work)
    none = "'NoneType'" in str(error) and not lines_in(work, spots_of(error))  # the test fails on what was returned
    lines = [
        *([f"case:      {case}"] if case else []),
        f"got:       {raised_at(error, work)}",
        *(["likely:    it returned None where a value was expected: is a `return` missing?"] if none else []),
    ]
    return "\n".join(lines)


def of_machine(error: BaseException, lines: Sequence) -> bool:
    """Whether an error is the check's, whatever the answer returned. lines: those of the answer that were running."""
    return isinstance(error, OSError | ImportError) and not lines


def raised_at(error: BaseException, work: Path) -> str:
    """The error's message, and the line of the learner's file that raised it."""
    line = (lines_in(work, spots_of(error)) or [getattr(error, "lineno", None)])[-1]
    said = f": {error}" if str(error) else ""
    if not line:
        return f"{type(error).__name__}{said}"
    text = linecache.getline(str(work), line).strip()
    return f"{type(error).__name__} at line {line} of {work.name}{said}" + (f"\n           {text}" if text else "")


def where(spots: list[Spot], work: Path, test: Path) -> list[str]:
    """The line that an answer had reached when it was stopped, and the case that was run."""
    lines, case = lines_in(work, spots), called(spots, test, work)
    at = at_line(work, [(str(work), line) for line in reversed(lines)])
    return [*filter(None, [at]), *([f"case:      {case}"] if case else [])]


def at_line(path: Path, spots: Sequence[tuple[str, int]]) -> str:
    """The innermost line of this file that was reached, if any."""
    linecache.checkcache(str(path))
    lines = [line for name, line in spots if name == str(path)][:1]
    return "".join(
        f"it was at: line {line} of {path.name}: {linecache.getline(str(path), line).strip()}" for line in lines
    )


def spots_of(error: BaseException) -> list[Spot]:
    spots, traceback_ = [], error.__traceback__
    while traceback_:
        spots.append((traceback_.tb_frame, traceback_.tb_lineno, traceback_.tb_lasti))
        traceback_ = traceback_.tb_next
    return spots


def lines_in(path: Path, spots: list[Spot]) -> list[int]:
    """The lines of a file that were reached, innermost last."""
    return [line for frame, line, _ in spots if frame.f_code.co_filename == str(path)]


def called(spots: list[Spot], test: Path, work: Path) -> str:
    """The expression of a test that was being computed, with the values of its variables."""
    files = [frame.f_code.co_filename for frame, _, _ in spots]
    before = spots[: files.index(str(work))] if str(work) in files else spots  # the answer may call a test's model
    tests = [spot for spot in before if spot[0].f_code.co_filename == str(test)]
    if not tests:
        return ""
    frame, line, instruction = tests[-1]
    expression = _source(frame, line, instruction)
    try:
        names = {node.id for node in ast.walk(ast.parse(expression)) if isinstance(node, ast.Name)}
    except SyntaxError:  # a part of a longer statement
        names = set()
    variables = {name: frame.f_locals[name] for name in sorted(names & set(frame.f_locals) - {"work"})}
    values = [f"{name} = {shown(value)}" for name, value in variables.items() if " object at 0x" not in repr(value)]
    return expression + (", with " + ", ".join(values) if values else "")


def shown(value: object) -> str:
    """A value as source code if it is not too long; of a large tensor, its shape."""
    if hasattr(value, "numel") and value.numel() > 16:
        return f"a tensor of {list(value.shape)}"
    text = repr(value.tolist() if hasattr(value, "tolist") else value)
    return text if len(text) <= 200 else f"{text[:200]} …"


def _source(frame: FrameType, line: int, instruction: int) -> str:
    """The source of the expression that this instruction computes; before Python 3.11, its whole line."""
    if not hasattr(frame.f_code, "co_positions"):
        return linecache.getline(frame.f_code.co_filename, line).strip()
    first, last, begin, end = list(frame.f_code.co_positions())[instruction // 2]
    lines = [linecache.getline(frame.f_code.co_filename, i).encode() for i in range(first, last + 1)]
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][begin:]
    return " ".join(line.decode().strip() for line in lines)
