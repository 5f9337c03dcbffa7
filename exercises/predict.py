"""A prediction before the experiment: made, compared and explained.

python -m exercises predict                      # the experiments, your predictions and the results
python -m exercises predict 4                    # asks for your prediction, runs the experiment and compares
python -m exercises predict 4 --say 900 1400     # the same without asking
python -m exercises predict bits                 # named experiments: bits belongs to stage 6, loss to stage 8
"""

import argparse
import math
import sys
import textwrap

from .catalogue import read_progress, record
from .experiments import EXPERIMENTS, Experiment, Question

WIDTH = 100  # of the output, in columns


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m exercises predict", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = {experiment.name: experiment for experiment in EXPERIMENTS}
    parser.add_argument("name", choices=list(known), nargs="?", help="a stage's number, or a name; left out: the list")
    parser.add_argument("--say", nargs="+", metavar="NUMBER", help="your prediction, a number for each question")
    args = parser.parse_args(argv)
    if args.name is None:
        if args.say:
            parser.error("for which experiment? For example: predict 4 --say 900 1400")
        return show_all()
    return predict(known[args.name], args.say)


def predict(experiment: Experiment, said: list[str] | None) -> int:
    """Ask for a prediction, keep it, run the experiment, compare, explain."""
    if said is not None and len(said) != len(experiment.questions):
        names = "; ".join(question.name for question in experiment.questions)
        raise ValueError(f"expected {len(experiment.questions)} numbers ({names}), got {len(said)}")
    predictions = [number(text) for text in said] if said is not None else None
    show(f"Stage {experiment.stage}: {experiment.title}\n")
    show(experiment.setting, "  ")
    predictions = predictions or [ask(question) for question in experiment.questions]
    record(key(experiment), predictions=predictions, results=[])
    show(f"\nRunning the experiment, about {experiment.seconds} seconds ...\n", flush=True)
    try:
        results, why = experiment.run()
    except (RuntimeError, MemoryError) as error:  # torch raises RuntimeError
        what = str(error).strip().splitlines() or [type(error).__name__]
        raise ValueError(f"the experiment failed; your prediction is kept: {what[0]}") from None
    record(key(experiment), results=[float(result) for result in results])
    print(f"  {'':20}{'you said':>12}{'the result':>12}")
    for question, a, b in zip(experiment.questions, predictions, results, strict=True):
        unit = "" if math.isinf(b) else f" {question.unit}"
        print(f"  {question.name:20}{in_digits(a):>12}{in_digits(b):>12}{unit}   {judged(a, b)}")
    show("\nWhy")
    for paragraph in why:
        show(paragraph, "  ")
    return 0


def show_all() -> int:
    """A line for each experiment."""
    records = read_progress()
    for experiment in EXPERIMENTS:
        print(f"  {line(experiment, records)}")
    print("\n`python -m exercises predict 1` asks for your prediction, runs the experiment and compares.")
    return 0


def line(experiment: Experiment, records: dict[str, dict]) -> str:
    """An experiment and its state, as shown in a list."""
    kept = records.get(key(experiment), {})
    said, came = (", ".join(map(in_digits, kept.get(name, []))) for name in ("predictions", "results"))
    state = f"said {said}; the result was {came}" if came else f"said {said}" if said else "not predicted"
    return f"{'✓' if came else ' '} predict {experiment.name:4}  {experiment.title:40}  {state}"


def key(experiment: Experiment) -> str:
    return f"predict {experiment.name}"


def ask(question: Question) -> float:
    """A learner's answer; on a terminal, ask again until it is a number."""
    while True:
        show(f"\n{question.text}")
        print(f"  your prediction ({question.unit}): ", end="", flush=True)
        answer = sys.stdin.readline() if sys.stdin is not None else ""
        if not answer:
            print()
            raise ValueError("stdin ended before you gave a number; `--say` takes your prediction without asking")
        try:
            return number(answer)
        except ValueError as error:
            if not sys.stdin.isatty():
                raise
            print(f"  {error}")


def number(text: str) -> float:
    """A prediction: not negative, and finite. A `%` or `x` after it is allowed. Raises ValueError."""
    try:
        value = float(text.strip().rstrip("%x× "))
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ValueError(f"a prediction is a number, 0 or more, such as 12 or 1.5; got {text.strip()!r:.80}")
    return value


def judged(said: float, came: float) -> str:
    """The factor by which a prediction is off, and in which direction."""
    if said == came:
        return "exactly right"
    if min(said, came) == 0 or math.isinf(came):
        return "too high" if said > came else "too low"
    factor, direction = (said / came, "high") if said > came else (came / said, "low")
    if factor < 1.05:
        return f"right, to within {math.ceil(100 * (factor - 1))}%"
    return f"too {direction} by a factor of {factor:.3g}"


def show(text: str, indent: str = "", flush: bool = False) -> None:
    """Print a paragraph, wrapped; white space before and after it stays."""
    body = text.strip("\n")
    before, after = text[: len(text) - len(text.lstrip("\n"))], text[len(text.rstrip("\n")) :]
    print(before + textwrap.fill(body, WIDTH, initial_indent=indent, subsequent_indent=indent) + after, flush=flush)


def in_digits(value: float) -> str:
    if math.isinf(value):
        return "never"
    return f"{value:,.0f}" if value == round(value) or abs(value) >= 1000 else f"{value:.3g}"
