"""`python -m exercises predict`: predictions are asked for, kept, compared and explained; and every experiment runs."""

import heapq
import inspect
import io
import os
import signal
import subprocess
import sys

import pytest

from exercises import __main__ as cli
from exercises import catalogue, experiments, predict
from exercises.experiments import EXPERIMENTS, Experiment, Outcome, Question
from stage06_fast.kernels.c_kernel import load_kernel
from stagewise.layout import write_config
from tests.adapter import ROOT, STAGES

QUESTIONS = (Question("How many passes?", "passes", "passes"), Question("How many times faster?", "speed", "times"))
SMALL = {"n_layer": 2, "n_head": 2, "n_embd": 32, "vocab_size": 97, "n_positions": 64, "eos_token_id": 0}


def a_run(slots: int = 4, model: str = "gpt2") -> Outcome:
    return Outcome([2.0 * slots, 1.5], [f"Because of {slots} slots of {model}."])


@pytest.fixture(autouse=True)
def own_progress(tmp_path, monkeypatch):
    """Keep the tests away from the progress of the person who runs them."""
    monkeypatch.setattr(catalogue, "PROGRESS", tmp_path / "progress.json")


@pytest.fixture
def one(monkeypatch):
    """An experiment that takes no time, as stage 1's."""
    experiment = Experiment("1", 1, "Slots", "The setting.", QUESTIONS, 1, a_run)
    monkeypatch.setattr(predict, "EXPERIMENTS", (experiment,))
    return experiment


def run(capsys, *arguments):
    try:
        status = cli.main(["predict", *arguments])
    except SystemExit as exit:
        status = exit.code
    out, err = capsys.readouterr()
    return status, out, err


def record():
    return catalogue.read_progress().get("predict 1", {})


def answer(monkeypatch, text):
    """Set what stdin contains; None: it is closed."""
    monkeypatch.setattr(sys, "stdin", None if text is None else io.StringIO(text))


# --- Said, kept, compared ---------------------------------------------------------------------------------------------


def test_a_prediction_is_asked_for_and_compared(capsys, one, monkeypatch):
    answer(monkeypatch, "4\n 3x \n")
    status, out, err = run(capsys, "1")
    assert (status, err) == (0, "")
    for words in (
        "How many passes?",
        "your prediction (times): ",
        "too low by a factor of 2",
        "too high by a factor of 2",
        "Because of 4 slots of gpt2.",
    ):
        assert words in out
    assert record()["predictions"] == [4.0, 3.0]
    assert record()["results"] == [8.0, 1.5]


def test_an_interrupted_experiment_keeps_the_prediction(capsys, one, monkeypatch):
    """The next prediction replaces it."""

    def interrupted(slots: int = 4) -> Outcome:
        raise KeyboardInterrupt

    whole = one.run
    object.__setattr__(one, "run", interrupted)
    status, _, err = run(capsys, "1", "--say", "4", "3")
    assert (status, err) == (130, "interrupted\n")
    assert record() == {"predictions": [4.0, 3.0], "results": []}
    object.__setattr__(one, "run", whole)
    assert run(capsys, "1", "--say", "5", "3")[0] == 0
    assert record() == {"predictions": [5.0, 3.0], "results": [8.0, 1.5]}


def test_lists_show_what_was_said_and_what_came(capsys, one):
    assert "not predicted" in run(capsys)[1]
    run(capsys, "1", "--say", "1234", "0.25")
    assert "✓ predict 1     Slots" in run(capsys)[1]
    assert cli.main([]) == 0
    assert "said 1,234, 0.25; the result was 8, 1.5" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("said", "came", "words"),
    [
        (3.0, 3.0, "exactly right"),
        (30.0, 20.0, "too high by a factor of 1.5"),
        (20.0, 30.0, "too low by a factor of 1.5"),
        (0.0, 30.0, "too low"),
        (30.0, 0.0, "too high"),
        (30.0, float("inf"), "too low"),
    ],
)
def test_the_factor_between_them(said, came, words):
    assert predict.judged(said, came).endswith(words)


# --- Bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["1", "--say", "many", "3"], "a prediction is a number, 0 or more, such as 12 or 1.5; got 'many'"),
        (["1", "--say", "nan", "3"], "got 'nan'"),
        (["1", "--say", "-1", "3"], "got '-1'"),
        (["1", "--say", "inf", "3"], "got 'inf'"),
        (["1", "--say", "4"], "expected 2 numbers (passes; speed), got 1"),
        (["1", "--say", "4", "3", "2"], "got 3"),
        (["9"], "invalid choice"),
        (["--say", "4"], "for which experiment?"),
    ],
)
def test_bad_input_is_one_line(capsys, one, arguments, words):
    status, _, err = run(capsys, *arguments)
    assert status == 2
    assert words in err.splitlines()[-1]
    assert record() == {}


def test_a_bad_answer_is_one_line(capsys, one, monkeypatch):
    for text, words in (("4\nmany\n", "got 'many'"), ("4\n", "stdin ended"), (None, "stdin ended")):
        answer(monkeypatch, text)
        status, _, err = run(capsys, "1")
        assert status == 2
        assert words in err
        assert err.count("\n") == 1
        assert record() == {}


def test_on_a_terminal_a_bad_answer_is_asked_for_again(capsys, one, monkeypatch):
    answer(monkeypatch, "many\n4\n3\n")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    status, out, _ = run(capsys, "1")
    assert status == 0
    assert "got 'many'" in out
    assert record()["predictions"] == [4.0, 3.0]


def test_an_experiment_without_memory_is_one_line(capsys, one):
    def fail(slots: int = 4) -> Outcome:
        raise RuntimeError("can't allocate memory: you tried to allocate 4 bytes\nand a trace")

    object.__setattr__(one, "run", fail)
    status, _, err = run(capsys, "1", "--say", "4", "3")
    assert status == 2
    assert "your prediction is kept: can't allocate memory" in err
    assert err.count("\n") == 1
    assert record()["predictions"] == [4.0, 3.0]


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_an_interrupt_where_it_is_typed(tmp_path):
    """A separate process, which gets Ctrl-C while its experiment runs."""
    code = (
        "import sys, time; from pathlib import Path; from exercises import catalogue, predict, __main__ as cli\n"
        "catalogue.PROGRESS = Path(sys.argv[1])\n"
        "experiment = predict.EXPERIMENTS[0]\n"
        "object.__setattr__(experiment, 'run', lambda: time.sleep(600))\n"
        "sys.exit(cli.main(['predict', '1', '--say', '40', '3']))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "progress.json")]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        while "Running the experiment" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=600)
    finally:
        process.kill()
    assert (process.returncode, err) == (130, "interrupted\n")
    assert record()["predictions"] == [40.0, 3.0]


# --- The experiments --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A model for which nothing takes time."""
    directory = tmp_path_factory.mktemp("small")
    write_config(directory, SMALL)
    return str(directory)


def results_of(number, **arguments):
    outcome = EXPERIMENTS[number - 1].run(**arguments)
    assert len(outcome.results) == len(EXPERIMENTS[number - 1].questions)
    assert all(result >= 0 for result in outcome.results)
    assert all(len(text) > 40 for text in outcome.why)
    return outcome


def test_there_is_one_for_each_stage():
    assert [experiment.name for experiment in EXPERIMENTS] == ["1", "2", "3", "4", "5", "6", "bits", "7", "8", "loss"]
    assert [experiment.stage for experiment in EXPERIMENTS] == [1, 2, 3, 4, 5, 6, 6, 7, 8, 8]
    for experiment in EXPERIMENTS:
        assert 1 <= len(experiment.questions) <= 2
        assert experiment.seconds <= 60


def test_the_last_token(small):
    positions, seconds = results_of(1, model=small, prompt=4, tokens=20, repeat=2).results
    assert positions == 23 / 4
    assert seconds > 0


def test_padding(monkeypatch):
    """Some rows have ended and some prompts are shorter; one row by itself has no padding."""

    def short(params, tokens):
        prompts, _ = tales(params, tokens)
        return prompts, [params(max_tokens=tokens - i, ignore_eos=True) for i in range(len(prompts))]

    tales = experiments.tales
    monkeypatch.setattr(experiments, "tales", short)
    share, ended = results_of(2, tokens=12).results
    fewer, nobody = results_of(2, tokens=12, slots=1).results
    assert 0 < share < 100
    assert 0 < ended < 100
    assert fewer == nobody == 0


@pytest.mark.soak
def test_padding_as_the_experiment_stands():
    share, ended = results_of(2).results
    assert 0 < share < 100
    assert 0 < ended < 100


def test_with_and_without_a_cache(small):
    positions, seconds = results_of(3, model=small, batch=3, prompt=5, tokens=4).results
    assert positions == (5 + 6 + 7 + 8) / (5 + 3)
    assert seconds > 0


def test_passes():
    """One at a time there is no difference; with three slots stage 4 is not behind."""
    alone, three = (results_of(4, slots=slots, tokens=3).results for slots in (1, 3))
    assert alone[0] == alone[1] > 16
    assert 3 < three[0] <= three[1] < alone[0]


@pytest.mark.soak
def test_sixteen_tales_are_enough_to_gain_from_slots():
    """As many and as long as the experiment's, by the outputs alone: stage 4 must not look useless by bad luck."""
    from stage06_fast import LLM, SamplingParams

    defaults = {name: p.default for name, p in inspect.signature(experiments.passes).parameters.items()}
    llm = LLM("tinytales", device="cpu", max_num_seqs=16)
    outputs = llm.generate(*experiments.tales(SamplingParams, defaults["tokens"], defaults["each"]))
    lengths, slots = [len(output.outputs[0].token_ids) for output in outputs], defaults["slots"]
    free = [0] * slots  # when each slot is free again
    for length in lengths:
        heapq.heapreplace(free, free[0] + length)
    static = sum(max(lengths[i : i + slots]) for i in range(0, len(lengths), slots))
    assert max(free) < 0.9 * static


def test_a_pool_that_is_too_small(small):
    size = dict(requests=8, prompt=20, tokens=30, model=small)
    peak, preempted = results_of(5, blocks=16, slots=8, **size).results
    assert 16 // 4 < peak <= 8  # more than fit up to their ends
    assert preempted > 0
    outcome = results_of(5, blocks=32, slots=8, **size)
    assert outcome.results == [8, 0]
    assert "never ran out" in outcome.why[1]
    assert results_of(5, blocks=16, slots=4, **size).results == [4, 0]


def needs_kernels():
    try:
        load_kernel()
    except RuntimeError as error:
        pytest.skip(f"no kernels: {error}")


def test_at_the_limit(small):
    needs_kernels()
    share, pays = results_of(6, model=small, tokens=4, read=1 << 16).results
    assert share > 0
    assert pays > 0  # or infinite


@pytest.mark.parametrize(("number", "experiment"), [(6, experiments.packed), (8, experiments.quartered)])
def test_without_a_compiler_it_says_so(small, monkeypatch, number, experiment):
    runner = STAGES[number - 1].part("runner")
    original = runner.pick_backend
    monkeypatch.setattr(runner, "pick_backend", lambda _, *rest: original("torch", *rest))
    with pytest.raises(ValueError, match="need a C compiler"):
        experiment(model=small)


@pytest.mark.soak
def test_same_bits():
    """Company changes torch's numbers in some sizes of a model, on some CPUs; it changes stage 6's nowhere."""
    needs_kernels()
    torchs, ours = results_of(7, model="tinytales").results
    assert 0 <= torchs <= 6
    assert ours == 0


def test_guesses():
    """The model itself as its drafter is always right; prompt lookup draws nothing, so its numbers don't matter."""
    assert results_of(8, each=1, tokens=11, drafter="tinytales").results[0] == 8 * (1 + 10 // 5)
    same, own = results_of(8, each=1, tokens=8, drafter="ngram").results
    assert 8 * 3 <= same == own <= 8 * 8


@pytest.mark.soak
def test_guesses_as_the_experiment_stands():
    """The same random number helps, and the tales are the same; afterwards guesses are as before."""
    from stage07_speculative.request import Request

    before = Request.guessed
    outcome = results_of(8)
    same, own = outcome.results
    assert 16 * (1 + 63 / 5) < same < 0.96 * own < 1024
    assert "token by token" in outcome.why[1]
    assert Request.guessed is before


def test_a_quarter_of_the_bytes(small):
    needs_kernels()
    assert all(times > 0 for times in results_of(9, model=small, requests=3, tokens=4).results)
    outcome = results_of(9, model=small, dtype="bfloat16", requests=2, tokens=3)
    assert "in bfloat16" in outcome.why[0]
    assert "a half of it" in outcome.why[0]


def test_rounding():
    """Some greedy token may differ before the end, or none; most positions are the same."""
    first, likeliest = results_of(10, tokens=30).results
    assert first >= 0
    assert 0 <= likeliest < 100


def test_the_first_difference():
    assert experiments.first_difference([5, 6, 7], [5, 6, 8]) == 2
    assert experiments.first_difference([5, 6], [5, 6]) == float("inf")
