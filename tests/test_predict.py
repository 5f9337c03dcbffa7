"""`python -m exercises predict`: predictions are asked for, kept, compared and explained; and every experiment runs."""

import heapq
import inspect
import io
import sys

import pytest

from exercises import __main__ as cli
from exercises import catalogue, experiments, predict
from exercises.experiments import EXPERIMENTS, Experiment, Outcome, Question
from stage06_fast.kernels.c_kernel import load_kernel
from stagewise.layout import write_config
from tests.adapter import STAGES, outcome

QUESTIONS = (Question("How many passes?", "passes", "passes"), Question("How many times faster?", "speed", "times"))
SMALL = {"n_layer": 2, "n_head": 2, "n_embd": 32, "vocab_size": 97, "n_positions": 64, "eos_token_id": 0}


@pytest.fixture
def one(tmp_path, monkeypatch):
    """A single experiment that takes no time, with its own record. It raises what is in the returned list."""
    fails = []

    def a_run() -> Outcome:
        if fails:
            raise fails[0]
        return Outcome([8.0, 1.5], ["Because of 4 slots."])

    monkeypatch.setattr(catalogue, "PROGRESS", tmp_path / "progress.json")
    experiment = Experiment("1", 1, "Slots", "The setting.", QUESTIONS, 1, a_run)
    monkeypatch.setattr(predict, "EXPERIMENTS", (experiment,))
    return fails


def run(*arguments):
    return outcome(cli.main, "predict", *arguments)


def record():
    return catalogue.read_progress().get("predict 1", {})


# --- Said, kept, compared ---------------------------------------------------------------------------------------------


def test_a_prediction_is_asked_for_and_compared(one, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("4\n 3x \n"))
    status, out, err = run("1")
    assert (status, err) == (0, "")
    low, high = "too low by a factor of 2", "too high by a factor of 2"
    for words in ("How many passes?", "your prediction (times): ", low, high, "Because of 4 slots."):
        assert words in out
    assert record() == {"predictions": [4.0, 3.0], "results": [8.0, 1.5]}


def test_lists_show_what_was_said_and_what_came(one):
    assert "not predicted" in run()[1]
    run("1", "--say", "1234", "0.25")
    assert "✓ predict 1     Slots" in run()[1]
    assert "said 1,234, 0.25; the result was 8, 1.5" in outcome(cli.main)[1]


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (
            RuntimeError("can't allocate memory: you tried to allocate 4 bytes\nand a trace"),
            2,
            "exercises: the experiment failed; your prediction is kept: can't allocate memory: you tried to allocate 4 "
            "bytes\n",
        ),
    ],
    ids=["Ctrl-C", "no memory"],
)
def test_an_experiment_that_ends_early_keeps_the_prediction(one, error, status, says):
    """The next prediction replaces it."""
    one.append(error)
    assert run("1", "--say", "4", "3")[::2] == (status, says)
    assert record() == {"predictions": [4.0, 3.0], "results": []}
    one.clear()
    assert run("1", "--say", "5", "3")[0] == 0
    assert record() == {"predictions": [5.0, 3.0], "results": [8.0, 1.5]}


@pytest.mark.parametrize(
    ("said", "came", "words"),
    [
        (3.0, 3.0, "exactly right"),
        (20.5, 20.0, "right, to within 3%"),
        (30.0, 20.0, "too high by a factor of 1.5"),
        (20.0, 30.0, "too low by a factor of 1.5"),
        (0.0, 30.0, "too low"),
        (30.0, 0.0, "too high"),
        (30.0, float("inf"), "too low"),
    ],
)
def test_the_factor_between_them(said, came, words):
    assert predict.judged(said, came) == words


@pytest.mark.parametrize(
    ("arguments", "typed", "words"),
    [
        (["1", "--say", "many", "3"], "", "a prediction is a number, 0 or more, such as 12 or 1.5; got 'many'"),
        (["1", "--say", "nan", "3"], "", "got 'nan'"),
        (["1", "--say", "-1", "3"], "", "got '-1'"),
        (["1", "--say", "inf", "3"], "", "got 'inf'"),
        (["1", "--say", "4"], "", "expected 2 numbers (passes; speed), got 1"),
        (["1", "--say", "4", "3", "2"], "", "got 3"),
        (["9"], "", "invalid choice"),
        (["--say", "4"], "", "for which experiment?"),
        (["1"], "4\nmany\n", "got 'many'"),
        (["1"], "4\n", "stdin ended"),
        (["1"], None, "stdin ended"),  # it is closed
    ],
)
def test_a_mistake_is_one_line(one, monkeypatch, arguments, typed, words):
    monkeypatch.setattr(sys, "stdin", None if typed is None else io.StringIO(typed))
    status, _, err = run(*arguments)
    assert status == 2
    assert words in err.splitlines()[-1]
    assert record() == {}


def test_on_a_terminal_a_bad_answer_is_asked_for_again(one, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("many\n4\n3\n"))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    status, out, _ = run("1")
    assert (status, "got 'many'" in out) == (0, True)
    assert record()["predictions"] == [4.0, 3.0]


# --- The experiments --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A model for which nothing takes time."""
    directory = tmp_path_factory.mktemp("small")
    write_config(directory, SMALL)
    return str(directory)


def results_of(name, **arguments):
    """Of the experiment with this name."""
    experiment = next(one for one in EXPERIMENTS if one.name == name)
    outcome = experiment.run(**arguments)
    assert len(outcome.results) == len(experiment.questions)
    assert all(result >= 0 for result in outcome.results)
    assert all(len(text) > 40 for text in outcome.why)
    return outcome


def needs_kernels():
    try:
        load_kernel()
    except RuntimeError as error:
        pytest.skip(f"no kernels: {error}")


def test_there_is_one_for_each_stage():
    assert [experiment.name for experiment in EXPERIMENTS] == ["1", "2", "3", "4", "5", "6", "bits", "7", "8", "loss"]
    assert [experiment.stage for experiment in EXPERIMENTS] == [1, 2, 3, 4, 5, 6, 6, 7, 8, 8]
    assert all(len(experiment.questions) in (1, 2) and experiment.seconds <= 60 for experiment in EXPERIMENTS)


def test_1_the_last_token(small):
    positions, seconds = results_of("1", model=small, prompt=4, tokens=20, repeat=2).results
    assert positions == 23 / 4
    assert seconds > 0


@pytest.fixture
def unequal(monkeypatch):
    """The tales have a few tokens, and do not end together."""

    def short(params, tokens, each=1):
        prompts, _ = tales(params, tokens, each)
        return prompts, [params(max_tokens=tokens - i % 8, ignore_eos=True) for i in range(len(prompts))]

    tales = experiments.tales
    monkeypatch.setattr(experiments, "tales", short)


def test_2_padding(unequal):
    """Some rows have ended and some prompts are shorter; one row by itself has no padding."""
    assert all(0 < share < 100 for share in results_of("2", tokens=12).results)
    assert results_of("2", tokens=12, slots=1).results == [0, 0]


def test_3_with_and_without_a_cache(small):
    positions, seconds = results_of("3", model=small, batch=3, prompt=5, tokens=4).results
    assert positions == (5 + 6 + 7 + 8) / (5 + 3)
    assert seconds > 0


def test_4_passes(unequal):
    """One at a time there is no difference; with three slots stage 4 gains."""
    alone, three = (results_of("4", slots=slots, each=1, tokens=9).results for slots in (1, 3))
    assert alone == [sum(range(2, 10))] * 2
    assert three[0] < three[1] < alone[0]


@pytest.mark.soak
def test_4_sixteen_tales_are_enough_to_gain_from_slots():
    """As many and as long as the experiment's, by the outputs alone: stage 4 must not look useless by bad luck."""
    from stage06_fast import LLM, SamplingParams

    defaults = {name: p.default for name, p in inspect.signature(experiments.passes).parameters.items()}
    llm = LLM("tinytales", device="cpu", max_num_seqs=16)
    outputs = llm.generate(*experiments.tales(SamplingParams, defaults["tokens"], defaults["each"]))
    lengths, slots = [len(output.outputs[0].token_ids) for output in outputs], defaults["slots"]
    free = [0] * slots  # when each slot is free again
    for length in lengths:
        heapq.heapreplace(free, free[0] + length)
    assert max(free) < 0.9 * sum(max(lengths[i : i + slots]) for i in range(0, len(lengths), slots))


def test_5_a_pool_that_is_too_small(small):
    size = dict(requests=8, prompt=20, tokens=30, model=small)
    peak, preempted = results_of("5", blocks=16, slots=8, **size).results
    assert 16 // 4 < peak <= 8  # more than fit up to their ends
    assert preempted > 0
    outcome = results_of("5", blocks=32, slots=8, **size)
    assert outcome.results == [8, 0]
    assert "never ran out" in outcome.why[1]
    assert results_of("5", blocks=16, slots=4, **size).results == [4, 0]


def test_6_at_the_limit(small):
    needs_kernels()
    share, pays = results_of("6", model=small, tokens=4, read=1 << 16).results
    assert share > 0
    assert pays > 0  # or infinite


@pytest.mark.soak
def test_bits():
    """Company changes torch's numbers in some sizes of a model, on some CPUs; it changes stage 6's nowhere."""
    needs_kernels()
    torchs, ours = results_of("bits", model="tinytales").results
    assert 0 <= torchs <= 6
    assert ours == 0


def test_7_guesses():
    """The model itself as its drafter is always right; prompt lookup draws nothing, so its numbers don't matter."""
    assert results_of("7", each=1, tokens=6, drafter="tinytales").results[0] == 8 * (1 + 5 // 5)
    same, own = results_of("7", each=1, tokens=8, drafter="ngram").results
    assert 8 * 3 <= same == own <= 8 * 8


@pytest.mark.soak
def test_7_guesses_as_the_experiment_stands():
    """The same random number helps, and the tales are the same; afterwards guesses are as before."""
    from stage07_speculative.request import Request

    before = Request.guessed
    outcome = results_of("7")
    same, own = outcome.results
    assert 16 * (1 + 63 / 5) < same < 0.96 * own < 1024
    assert "token by token" in outcome.why[1]
    assert Request.guessed is before


def test_8_a_quarter_of_the_bytes(small):
    needs_kernels()
    assert all(times > 0 for times in results_of("8", model=small, requests=3, tokens=4).results)
    outcome = results_of("8", model=small, dtype="bfloat16", requests=2, tokens=3)
    assert "in bfloat16" in outcome.why[0]
    assert "a half of it" in outcome.why[0]


def test_loss_of_rounding():
    """Some greedy token may differ before the end, or none; most positions are the same."""
    first, likeliest = results_of("loss", tokens=30).results
    assert first >= 0
    assert 0 <= likeliest < 100


@pytest.mark.parametrize(("number", "experiment"), [(6, experiments.packed), (8, experiments.quartered)])
def test_without_a_compiler_it_says_so(small, monkeypatch, number, experiment):
    runner = STAGES[number - 1].part("runner")
    original = runner.pick_backend
    monkeypatch.setattr(runner, "pick_backend", lambda _, *rest: original("torch", *rest))
    with pytest.raises(ValueError, match="need a C compiler"):
        experiment(model=small)


def test_the_first_difference():
    assert experiments.first_difference([5, 6, 7], [5, 6, 8]) == 2
    assert experiments.first_difference([5, 6], [5, 6]) == float("inf")
