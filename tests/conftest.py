"""Fixtures: `stage` runs a test on every stage, `batched_stage` from stage 2 on, or on those that
`pytest_generate_tests` picks; checkpoints are made once."""

import importlib.util
import os
import signal

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test may reach the network; the hub tests set an endpoint on loopback
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
if "PYTEST_XDIST_WORKER" in os.environ:  # several workers: a thread for each, or they wait for each other
    os.environ["OMP_NUM_THREADS"] = "1"

import torch  # not earlier: it reads that number when it is imported

os.environ.setdefault("TRITON_INTERPRET", "0" if torch.cuda.is_available() else "1")  # before a kernel is defined

from tests.adapter import BATCHED, STAGES, TINYTALES, stages_that_change, write_checkpoint

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
            metafunc.parametrize(name, picked, ids=[stage.directory for stage in picked], indirect=True)


@pytest.fixture(scope="session", autouse=True)
def one_tokenizer():
    """Each stage reads the bundled tokenizer once, not for every engine: nearly all engines here have it, those of
    random checkpoints too, and reading it takes ten times as long as all else of a small one. A stage that is in
    another directory, or in another process, reads it as ever; `test_tokenizer.py` reads it anew."""

    def reader(stage):
        own = stage.part("weights").Tokenizer
        return lambda directory: stage.tokenizer() if directory == TINYTALES else own(directory)

    with pytest.MonkeyPatch.context() as patch:
        for stage in STAGES:
            patch.setattr(stage.part("weights"), "Tokenizer", reader(stage))
        yield


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
