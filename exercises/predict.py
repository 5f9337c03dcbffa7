"""A prediction before the experiment: made, kept, compared and explained.

python -m exercises predict                      # the experiments, your predictions and the results
python -m exercises predict 4                    # asks for your prediction, runs the experiment and compares
python -m exercises predict 4 --say 900 1400     # the same without asking
python -m exercises predict 4 --with slots=8     # the experiment again, changed; once the unchanged one is compared
python -m exercises predict bits                 # named experiments: bits belongs to stage 6, loss to stage 8
"""

import argparse
import inspect
import math
import sys
import textwrap
import time

from .catalogue import Grade, progress, read_progress
from .experiments import EXPERIMENTS, Experiment, Outcome, Question

WIDTH = 100  # of the output, in columns


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m exercises predict", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = {experiment.name: experiment for experiment in EXPERIMENTS}
    parser.add_argument("name", choices=list(known), nargs="?", help="a stage's number, or a name; left out: the list")
    parser.add_argument("--say", nargs="+", metavar="NUMBER", help="your prediction, a number for each question")
    parser.add_argument("--with", nargs="+", dest="changes", metavar="NAME=VALUE", help="change the experiment")
    args = parser.parse_args(argv)
    if args.name is None:
        if args.say or args.changes:
            parser.error("for which experiment? For example: predict 4 --say 900 1400")
        return show_all()
    if args.say and args.changes:
        parser.error("--say is for the unchanged experiment and --with changes it: use one at a time")
    experiment = known[args.name]
    return change(experiment, args.changes) if args.changes else predict(experiment, args.say)


def predict(experiment: Experiment, said: list[str] | None) -> int:
    """Ask for a prediction unless there is one, record it, run the experiment, compare, explain."""
    if said is not None:
        lock(experiment, [number(text) for text in said])
    show(f"Stage {experiment.stage}: {experiment.title}\n")
    show(experiment.setting, "  ")
    if "predictions" not in record_of(experiment):
        lock(experiment, [ask(question) for question in experiment.questions])
    record = record_of(experiment)
    kept = f"Kept at {record['predicted_at']}: {in_words(experiment, record['predictions'])}."
    show(f"\n{kept} Running the experiment, about {experiment.seconds} seconds ...\n", flush=True)
    results, why = run(experiment)
    record = compare(experiment, results)
    show_table(experiment, "you said", record["predictions"], "the result", results)
    explain(experiment, why)
    return 0


def run(experiment: Experiment, **arguments: int | str) -> Outcome:
    """Run the experiment. Raises ValueError with a one-line message if memory runs out or a kernel is not available."""
    try:
        return experiment.run(**arguments)
    except (RuntimeError, MemoryError) as error:  # torch raises RuntimeError
        what = str(error).strip().splitlines() or [type(error).__name__]
        raise ValueError(f"the experiment failed; your prediction is kept: {what[0]}") from None


def change(experiment: Experiment, changes: list[str]) -> int:
    """Run the experiment with other arguments. The recorded prediction and result stay."""
    arguments = parse_changes(experiment, changes)
    record = record_of(experiment)
    if "compared_at" not in record:
        raise ValueError(
            f"no prediction has been compared yet; first run `python -m exercises predict {experiment.name}`"
        )
    results, why = run(experiment, **arguments)
    show(f"Stage {experiment.stage}: {experiment.title}, with {', '.join(changes)}\n")
    show_table(experiment, "before", record["results"], "now", results, judge=False)
    explain(experiment, why)
    return 0


def show_all() -> int:
    """A line for each experiment."""
    records = read_progress()
    for experiment in EXPERIMENTS:
        print(f"  {line(experiment, records)}")
    print("\n`python -m exercises predict 1` asks for your prediction, runs the experiment and compares.")
    return 0


def grade() -> Grade:
    """How many predictions were compared, and all of them in words, for a teacher's table."""
    records = read_progress()
    compared = sum("compared_at" in whole(of, records.get(key(of), {})) for of in EXPERIMENTS)
    state = "passed" if compared == len(EXPERIMENTS) else "unfinished"
    return Grade(state, "\n".join(line(of, records) for of in EXPERIMENTS), "", compared, len(EXPERIMENTS))


def line(experiment: Experiment, records: dict[str, dict]) -> str:
    """An experiment and its state, as shown in a list."""
    record = whole(experiment, records.get(key(experiment), {}))
    state = "not predicted"
    if "predictions" in record:
        state = f"said {values(record['predictions'])}"
    if "results" in record:
        state += f"; the result was {values(record['results'])}"
    mark = "✓" if "results" in record else " "
    return f"{mark} predict {experiment.name:4}  {experiment.title:40}  {state}"


# --- What is said -----------------------------------------------------------------------------------------------------


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


def parse_changes(experiment: Experiment, changes: list[str]) -> dict[str, int | str]:
    """The arguments of a run. Raises ValueError if the experiment has no such argument or the value's type is wrong."""
    known = {name: p.default for name, p in inspect.signature(experiment.run).parameters.items()}
    arguments: dict[str, int | str] = {}
    for text in changes:
        name, _, value = text.partition("=")
        if name not in known or not value:
            raise ValueError(f"--with takes NAME=VALUE, where NAME is one of {', '.join(known)}; got {text!r:.80}")
        if isinstance(known[name], int) and not (value.isdecimal() and 1 <= int(value) <= 1 << 30):
            raise ValueError(f"--with {name}= takes a whole number of 1 or more, got {value!r:.80}")
        arguments[name] = int(value) if isinstance(known[name], int) else value
    return arguments


# --- What is kept -----------------------------------------------------------------------------------------------------


def key(experiment: Experiment) -> str:
    return f"predict {experiment.name}"


def whole(experiment: Experiment, record: dict) -> dict:
    """A record, if it has as many answers as there are questions; else it is from an older experiment."""
    lists = [record[name] for name in ("predictions", "results") if name in record]
    return record if all(len(values) == len(experiment.questions) for values in lists) else {}


def record_of(experiment: Experiment) -> dict:
    return whole(experiment, read_progress().get(key(experiment), {}))


def lock(experiment: Experiment, predictions: list[float]) -> None:
    """Keep a prediction, with the time. Raises ValueError if one was compared already, or the number of answers is
    wrong."""
    if len(predictions) != len(experiment.questions):
        names = "; ".join(question.name for question in experiment.questions)
        raise ValueError(f"expected {len(experiment.questions)} numbers ({names}), got {len(predictions)}")
    with progress(key(experiment)) as record:
        if "compared_at" in whole(experiment, record):
            raise ValueError(
                f"your prediction of {record['predicted_at']} was compared already, so it stays: "
                f"{in_words(experiment, record['predictions'])}; without --say the experiment runs again"
            )
        record.clear()
        record.update(predictions=predictions, predicted_at=now())


def compare(experiment: Experiment, results: list[float]) -> dict:
    """Keep the experiment's results; from then on the prediction can't be changed. Returns the record, which keeps the
    first run's results."""
    with progress(key(experiment)) as record:
        record.setdefault("results", [float(result) for result in results])
        record.setdefault("compared_at", now())
        return dict(record)


def now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")


# --- Messages ---------------------------------------------------------------------------------------------------------


def show_table(
    experiment: Experiment, left: str, before: list[float], right: str, after: list[float], judge: bool = True
) -> None:
    """A line for each question: the two numbers, and the factor between them."""
    print(f"  {'':20}{left:>12}{right:>12}")
    for question, a, b in zip(experiment.questions, before, after, strict=True):
        verdict = f"   {judged(a, b)}" if judge else ""
        unit = "" if math.isinf(b) else f" {question.unit}"
        print(f"  {question.name:20}{in_digits(a):>12}{in_digits(b):>12}{unit}{verdict}")


def judged(said: float, came: float) -> str:
    """The factor by which a prediction is off, and in which direction."""
    if said == came:
        return "exactly right"
    if min(said, came) == 0 or math.isinf(came):
        return "too high" if said > came else "too low"
    factor, direction = (said / came, "high") if said > came else (came / said, "low")
    return f"too {direction} by a factor of {factor:.3g}"


def explain(experiment: Experiment, why: list[str]) -> None:
    show("\nWhy")
    for paragraph in why:
        show(paragraph, "  ")
    show("\nTo see it turn out differently")
    for setting, what in experiment.change:
        show(f"python -m exercises predict {experiment.name} --with {setting}", "  ")
        show(what, "      ")


def show(text: str, indent: str = "", flush: bool = False) -> None:
    """Print a paragraph, wrapped; white space before and after it stays."""
    body = text.strip("\n")
    before, after = text[: len(text) - len(text.lstrip("\n"))], text[len(text.rstrip("\n")) :]
    print(before + textwrap.fill(body, WIDTH, initial_indent=indent, subsequent_indent=indent) + after, flush=flush)


def in_digits(value: float) -> str:
    if math.isinf(value):
        return "never"
    return f"{value:,.0f}" if value == round(value) or abs(value) >= 1000 else f"{value:.3g}"


def values(numbers: list[float]) -> str:
    return ", ".join(map(in_digits, numbers))


def in_words(experiment: Experiment, numbers: list[float]) -> str:
    pairs = zip(numbers, experiment.questions, strict=True)
    return ", ".join(f"{in_digits(value)} {question.unit}" for value, question in pairs)
