"""What a test of an exercise says: which case, what was expected, what came, and the mistake that it looks like."""

from collections.abc import Mapping

Mistakes = Mapping[str, object]  # what is said of a wrong answer -> the answer that this mistake gives


class Wrong(AssertionError):
    """A wrong answer, told so that one can learn from it."""

    def __init__(self, case: str, expected: object, got: object, likely: str = ""):
        lines = [f"case:      {case}", f"expected:  {short(expected)}", f"got:       {short(got)}"]
        super().__init__("\n".join([*lines, *([f"likely:    {likely}"] if likely else [])]))


def short(value: object, width: int = 300) -> str:
    """A value as it is shown: a text as it is, numbers without digits that nobody reads, nothing longer than this."""
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


def same(a: object, b: object, tolerance: float) -> bool:
    """Equal, or for numbers, lists of them and tensors: nowhere further apart than the tolerance."""
    if hasattr(a, "tolist"):
        a = a.tolist()
    if hasattr(b, "tolist"):
        b = b.tolist()
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(same(x, y, tolerance) for x, y in zip(a, b, strict=True))
    numbers = [isinstance(x, int | float) and not isinstance(x, bool) for x in (a, b)]
    return a == b or (all(numbers) and abs(a - b) <= tolerance * max(1.0, abs(b)))


def expect(
    case: str,
    got: object,
    expected: object,
    mistakes: Mistakes | None = None,
    *,
    tolerance: float = 1e-5,
    likely: str = "",
) -> None:
    """Raise Wrong unless `got` is as expected. If it is what a known mistake gives, that is said, else `likely`."""
    if same(got, expected, tolerance):
        return
    for said, value in (mistakes or {}).items():
        if same(got, value, tolerance):
            raise Wrong(case, expected, got, said)
    raise Wrong(case, expected, got, likely)


def require(holds: bool, case: str, expected: object, got: object, likely: str = "") -> None:
    """Raise Wrong unless something holds that is no plain equality."""
    if not holds:
        raise Wrong(case, expected, got, likely)
