"""Examples: small programs that use the learner's answer. They are generated at random and run line by line; the first
one that fails is shrunk as far as possible, and shown as it was run, so that it can be pasted into Python."""

import functools
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from .grading import Mistakes, Wrong, expect, lines_in, of_machine, raised_at, shown, spots_of
from .judge import Answer

Item = TypeVar("Item")
compiled = functools.lru_cache(maxsize=4096)(compile)  # the same lines are run many times


def raised(call: Callable[[], object], kind: type[Exception]) -> object:
    """The name of `kind` if the call raises an error of it, the name of another error, or what the call returns."""
    try:
        return call()
    except NotImplementedError:
        raise
    except Exception as error:
        return (kind if isinstance(error, kind) else type(error)).__name__


class Example:
    """A program, line by line. `work` in it is the learner's answer. Each line runs as soon as it is added."""

    now = ""  # the running program, in case it does not end

    def __init__(self, work: Answer, test: str, *imports: str):
        """`test` is the `__file__` of the test that makes it; `imports` are the import lines that it needs."""
        number = ".".join(Path(test).stem.split("_")[1:3])
        self.path = Path(work.__file__ or "")
        self.names: dict[str, object] = {"work": work}
        self.lines: list[str] = []
        for line in imports:
            self.do(line)
        self.lines += ["from exercises.catalogue import work_of", f'work = work_of("{number}")']

    def do(self, line: str) -> None:
        """Run a one-line statement."""
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
        """`expect` for an expression without side effects, which is shown only if it is wrong."""
        return self.expect(expression, expected, mistakes, keep=False, **how)

    def run(self, call: Callable[[], object], case: str, expected: object, example: str) -> object:
        """What the call returns. An error that it raises is shown with the program."""
        Example.now = example
        try:
            return call()
        except NotImplementedError:
            raise
        except Wrong as wrong:  # from the test's call, or from a model that the learner calls
            raise Wrong(*wrong.parts, example) from wrong
        except Exception as error:
            if of_machine(error, lines_in(self.path, spots_of(error))):
                raise
            raise Wrong(case, expected, raised_at(error, self.path), "", example) from error


class Choices:
    """Integers drawn at random and recorded: replayed with fewer or smaller ones, they give a simpler case."""

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
        """One of the options; the first is the simplest."""
        return options[self.upto(len(options) - 1)]

    def each(self, item: Callable[[], Item], most: int, least: int = 0) -> Iterator[Item]:
        """`least` to `most` items, one at a time. Whether there is another one is drawn separately, after everything
        that the item before it draws: so an item can be dropped together with its draws."""
        count = 0
        while count < least or (count < most and self.upto(most) > 0):
            yield item()
            count += 1

    def some(self, item: Callable[[], Item], most: int, least: int = 0) -> list[Item]:
        """The same as a list."""
        return list(self.each(item, most, least))


SHARE = 1.0  # of random cases; tests of right answers, which never fail, run fewer


def at_random(check: Callable[[Choices], None], number: int = 200) -> None:
    """Check this many random cases. If one fails, raise the error of the smallest case that fails in the same way."""
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
    """Drop choices, long runs first, and lower them, as long as the case fails in the same way: greedily, until nothing
    gets simpler or the tries run out."""

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
