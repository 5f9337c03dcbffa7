"""Fixtures: `stage` runs a test on every stage, `batched_stage` from stage 2 on, or on those that
`pytest_generate_tests` picks; checkpoints are made once."""

import importlib.util
import os
import platform
import signal
from pathlib import Path

import pytest

# Compiled kernels are kept from run to run, and not among the user's.
os.environ["XDG_CACHE_HOME"] = str(Path(__file__).resolve().parents[1] / ".pytest_cache")
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test may reach the network; the hub tests set an endpoint on loopback
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
if "PYTEST_XDIST_WORKER" in os.environ:  # several workers: a thread for each, or they wait for each other
    os.environ["OMP_NUM_THREADS"] = "1"

import torch  # not earlier: it reads that number when it is imported

os.environ.setdefault("TRITON_INTERPRET", "0" if torch.cuda.is_available() else "1")  # before a kernel is defined

from tests.adapter import BATCHED, STAGES, TINYTALES, Stage, kernels_with, stages_that_change, write_checkpoint
from tools.slow_tests import LIST, read

# The browser's tests need what `make test-browser` installs; `make test` does not run them.
collect_ignore = [] if importlib.util.find_spec("selenium") else ["browser"]

# Started in the background, a shell's children ignore Ctrl-C, and theirs do: the tests send it and mean it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Head counts, contexts and head sizes that differ; n_inner that is not 4 * n_embd; an odd vocabulary.
SIZES = {
    "1 head": dict(n_layer=1, n_head=1, n_embd=16, n_positions=32, vocab_size=97),
    "3 heads": dict(n_layer=2, n_head=3, n_embd=48, n_positions=48, vocab_size=211, n_inner=100),
    "4 heads": dict(n_layer=3, n_head=4, n_embd=32, n_positions=64, vocab_size=307, layer_norm_epsilon=1e-3),
    "8 heads": dict(n_layer=2, n_head=8, n_embd=64, n_positions=128, vocab_size=503),
}

KERNELS = ("test_same_bits", "test_other_cpus")  # stage 8's kernels have all kinds of stage 6's
BOTH = ("tests.test_parity", "tests.test_staging", "tests.test_milestones")  # in which stage 6 stays


@pytest.fixture
def stage(request):
    return request.param


@pytest.fixture
def batched_stage(request):
    return request.param


def pytest_generate_tests(metafunc):
    """Which stages a test runs on: those that it names itself; in a module that is about some files, `FILES`, those
    that bring or change one of them; in one about what surrounds the stages those of `NUMBERS`, which differ in what
    they can do; else all."""
    files, numbers = getattr(metafunc.module, "FILES", None), getattr(metafunc.module, "NUMBERS", range(100))
    for name, stages in (("stage", STAGES), ("batched_stage", BATCHED)):
        own = hasattr(metafunc.module, name) or any(
            name in str(mark.args[0]).replace(" ", "").split(",")
            for mark in metafunc.definition.iter_markers("parametrize")
        )
        if name in metafunc.fixturenames and not own:
            picked = [stage for stage in stages if files is None or stage in stages_that_change(*files)]
            picked = [stage for stage in picked if stage.number in numbers]
            ids = [stage.directory for stage in picked]
            # Where a test is about no file, stage 8 as-is answers for stage 6, too: it has its bits. Both
            # run against Hugging Face, and all three in `make soak`.
            general = files is None and len(picked) > 3 and metafunc.module.__name__ not in BOTH
            marks = [[pytest.mark.soak] if general and stage.number == 6 else [] for stage in picked]
            params = [pytest.param(stage, marks=soak) for stage, soak in zip(picked, marks, strict=True)]
            metafunc.parametrize(name, params, ids=ids, indirect=True)


def pytest_collection_modifyitems(config, items):
    mark_one_of_two(items)
    mark_slow(config, items)


def mark_slow(config, items):
    """What takes long is for `make soak`, see tools/slow_tests.py."""
    slow = set(read(LIST))
    for item in items:
        if item.nodeid in slow:
            item.add_marker(pytest.mark.soak)
    if "::" in "".join(config.args):
        return
    # By functions alone: which cases there are may depend on the CPU.
    functions = {item.nodeid.partition("[")[0] for item in items}
    files = {function.partition("::")[0] for function in functions}
    listed = {test.partition("[")[0] for test in slow}
    if gone := sorted(test for test in listed - functions if test.partition("::")[0] in files):
        raise pytest.UsageError(f"{LIST} lists cases of tests that are none; take out their lines: {gone}")


def mark_one_of_two(items):
    """One of stages 7 and 8 is enough for `make test`; `make soak` runs both. The tests run stage 8 as-is, and then it
    has stage 7's bits (`test_int8.py`), and stage 7's files but for those that int8 changes. So it answers for both
    where a test runs on all stages; stage 7 does where guesses are tested, which are its idea."""
    about_one = ("test_staging", "test_milestones")  # its files, its chapter, its milestone
    for item in items:
        params = item.callspec.params.values() if hasattr(item, "callspec") else ()
        stages = [one.number for one in params if isinstance(one, Stage)]
        left_out = [8] if item.path.stem == "test_speculative" else [6, 7] if item.path.stem in KERNELS else [7]
        if (files := getattr(item.module, "FILES", None)) and all(one.number < 8 for one in stages_that_change(*files)):
            left_out = []  # stage 8 changes none of them, and this test does not run on it
        if len(stages) == 1 and stages[0] in left_out and item.path.stem not in about_one:
            item.add_marker(pytest.mark.soak)


@pytest.fixture(scope="session", autouse=True)
def one_tokenizer():
    """Each stage reads the bundled tokenizer once, not for every engine: nearly all engines here have it, those of
    random checkpoints too, and reading it takes ten times as long as all else of a small one. A stage that is in
    another directory, or in another process, reads it as ever; `test_tokenizer.py` reads it anew."""
    merges = TINYTALES / "merges.txt"

    def is_bundled(directory):
        copy, others = directory / "merges.txt", ("vocab.json", "tokenizer.json", "tokenizer_config.json")
        is_copy = copy.exists() and copy.stat().st_mtime == merges.stat().st_mtime
        return directory == TINYTALES or (is_copy and not any((directory / name).exists() for name in others))

    def reader(stage):
        own = stage.part("weights").Tokenizer
        return lambda directory: stage.tokenizer() if is_bundled(directory) else own(directory)

    with pytest.MonkeyPatch.context() as patch:
        for stage in STAGES:
            patch.setattr(stage.part("weights"), "Tokenizer", reader(stage))
        yield


@pytest.fixture(scope="session", autouse=True)
def as_is():
    """An engine of stage 8 leaves its weights as they are unless it is told "int8": tests hold the stages against each
    other, against Hugging Face, against a file. All of it is here and in `Stage.start`, since engines are made in many
    ways: by a test, the command line, a server. That users get int8, and what it does, is in `test_int8.py`."""
    runner = next(stage.part("runner") for stage in STAGES if stage.has_option("weights"))
    with pytest.MonkeyPatch.context() as patch:
        own = runner.pick_int8
        patch.setattr(runner, "pick_int8", lambda name, device: name != "auto" and own(name, device))
        yield own


@pytest.fixture(scope="session")
def libraries(tmp_path_factory):
    """Where kernels for other CPUs are kept: one directory for all processes of a run."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "libraries"


@pytest.fixture(params=["own", "AMX", *(["x86-64-v3"] if platform.machine() == "x86_64" else [])])
def instructions(request, stage, libraries, monkeypatch):
    """Whole engines multiply with this CPU's instructions, with AMX's in plain C, and with AVX2's."""
    if request.param != "own":
        kernels = kernels_with(stage, request.param, libraries)
        monkeypatch.setattr(stage.part("kernels.c_kernel"), "load_kernel", lambda: kernels)
    return request.param


@pytest.fixture(scope="session", params=SIZES)
def checkpoint(request, tmp_path_factory):
    """Random checkpoints of several sizes."""
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"), **SIZES[request.param])


@pytest.fixture(scope="session")
def small_checkpoint(tmp_path_factory):
    """One of them, for tests that need only one."""
    return write_checkpoint(tmp_path_factory.mktemp("small"), **SIZES["3 heads"])


@pytest.fixture(scope="session")
def babble(tmp_path_factory):
    """A random checkpoint with GPT-2's vocabulary: its text is nonsense in every script, with broken characters."""
    sizes = dict(n_layer=1, n_head=2, n_embd=16, n_positions=256, vocab_size=50257, eos_token_id=50256)
    return write_checkpoint(tmp_path_factory.mktemp("babble"), **sizes)
