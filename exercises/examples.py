"""Examples: small programs that use the learner's answer. They are made at random and run line by line; the first that
goes wrong is made as small as it can be, and shown as it was run, so that it can be pasted into Python."""

import functools
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from .grading import Mistakes, Wrong, expect, raised_at, shown
from .judge import Answer

Item = TypeVar("Item")
compiled = functools.lru_cache(maxsize=4096)(compile)  # the same lines are run again and again


def raised(call: Callable[[], object], kind: type[Exception]) -> object:
    """The name of `kind` if the call raises an error of it, the name of another error, or what the call returns."""
    try:
        return call()
    except NotImplementedError:
        raise
    except Exception as error:
        return (kind if isinstance(error, kind) else type(error)).__name__


class Example:
    """A program, line by line. `work` in it is the learner's answer. Each line is run when it is given."""

    now = ""  # the program that is running, for when it does not end

    def __init__(self, work: Answer, test: str, *imports: str):
        """`test` is the `__file__` of the test that makes it; `imports` are the lines that it needs of them."""
        number = ".".join(Path(test).stem.split("_")[1:3])
        self.path = Path(work.__file__ or "")
        self.names: dict[str, object] = {"work": work}
        self.lines: list[str] = []
        for line in imports:
            self.do(line)
        self.lines += ["from exercises.catalogue import work_of", f'work = work_of("{number}")']

    def do(self, line: str) -> None:
        """Run a statement of one line."""
        self.lines.append(line)
        self.run(lambda: exec(compiled(line, "<example>", "exec"), self.names), line, "no error", "\n".join(self.lines))

    def expect(
        self, expression: str, expected: object, mistakes: Mistakes | None = None, *, keep: bool = True, **how
    ) -> object:
        """Compute an expression, compare it as `grading.expect` does, and return it. Unless it only looks
        (`keep=False`), it stays a line of the program."""
        print_it = f"print({expression})  # expected {shown(expected)}"
        example = "\n".join([*self.lines, print_it])
        code = compiled(expression, "<example>", "eval")
        got = self.run(lambda: eval(code, self.names), expression, expected, example)
        expect(expression, got, expected, mistakes, example=example, **how)
        if keep:
            self.lines.append(expression)
        return got

    def look(self, expression: str, expected: object, mistakes: Mistakes | None = None, **how) -> object:
        """`expect` of what changes nothing, and need not be shown if it is right."""
        return self.expect(expression, expected, mistakes, keep=False, **how)

    def run(self, call: Callable[[], object], case: str, expected: object, example: str) -> object:
        """What the call returns. Whatever it raises is told with the program."""
        Example.now = example
        try:
            return call()
        except NotImplementedError:
            raise
        except Wrong as wrong:  # of what the test calls, or of a model that the learner calls
            raise Wrong(*wrong.parts, example) from wrong
        except Exception as error:
            raise Wrong(case, expected, raised_at(error, self.path), "", example) from error


class Choices:
    """Whole numbers drawn at random, and kept: made again from fewer or smaller ones, a case is a simpler case."""

    def __init__(self, seed: int = 0, again: Sequence[int] | None = None):
        self.random, self.again = random.Random(seed), again
        self.made: list[int] = []

    def upto(self, most: int) -> int:
        """0 to `most`; 0 is the simplest."""
        if self.again is None:
            number = self.random.randint(0, most)
        else:
            place = len(self.made)
            number = min(self.again[place], most) if place < len(self.again) else 0
        self.made.append(number)
        return number

    def between(self, least: int, most: int) -> int:
        return least + self.upto(most - least)

    def one_of(self, options: Sequence[Item]) -> Item:
        """One of them; the first is the simplest."""
        return options[self.upto(len(options) - 1)]

    def each(self, item: Callable[[], Item], most: int, least: int = 0) -> Iterator[Item]:
        """`least` to `most` items, one by one. Whether there is one more is a choice of its own, made after all that is
        drawn for the one before: so an item can be dropped with what belongs to it."""
        count = 0
        while count < least or (count < most and self.upto(most) > 0):
            yield item()
            count += 1

    def some(self, item: Callable[[], Item], most: int, least: int = 0) -> list[Item]:
        """All of them at once."""
        return list(self.each(item, most, least))


SHARE = 1.0  # of random cases; tests of right answers, which never fail, take fewer


def at_random(check: Callable[[Choices], None], number: int = 200) -> None:
    """Check so many random cases. Of the first that fails, raise what is said of the smallest that fails like it."""
    for seed in range(round(SHARE * number)):
        choices = Choices(seed)
        wrong = fails(check, choices)
        if wrong:
            raise smallest(check, choices.made, wrong) from None


def fails(check: Callable[[Choices], None], choices: Choices) -> Wrong | None:
    try:
        check(choices)
    except Wrong as wrong:
        return wrong
    return None


SIMPLER = 600  # tries to make a case simpler


def smallest(check: Callable[[Choices], None], made: list[int], wrong: Wrong) -> Wrong:
    """Leave choices out, many in a row at first, and lessen them, as long as the case fails in the same way: greedily,
    until nothing is simpler or all tries are used."""

    tries = SIMPLER

    def try_it(attempt: list[int]) -> None:
        nonlocal made, wrong, tries
        if tries == 0:
            return
        tries -= 1
        choices = Choices(again=attempt)
        found = fails(check, choices)
        simpler = (len(choices.made), choices.made) < (len(made), made)
        if found and simpler and (found.likely == wrong.likely or not wrong.likely):
            made, wrong = choices.made, found

    before = None
    while before != made:
        before = made
        for size in (32, 16, 8, 4, 3, 2, 1):
            for end in range(len(made), size - 1, -max(1, size // 4)):
                try_it(made[: max(0, end - size)] + made[end:])
        for i in range(len(made)):
            for less in (0, made[i] // 2, made[i] - 1) if i < len(made) else ():
                if i < len(made) and 0 <= less < made[i]:
                    try_it([*made[:i], less, *made[i + 1 :]])
    return wrong
