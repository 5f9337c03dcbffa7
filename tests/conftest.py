"""Fixtures: `stage` runs a test on every stage, `batched_stage` from stage 2 on. What a test `covers` decides in which
of them `make test` runs it. Checkpoints are made once."""

import contextlib
import gc
import os
import platform
import signal
from pathlib import Path

import pytest
from filelock import FileLock

# Compiled kernels are kept from run to run, and not among the user's.
os.environ["XDG_CACHE_HOME"] = str(Path(__file__).resolve().parents[1] / ".pytest_cache")
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test may reach the network; the hub tests set an endpoint on loopback
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
if "PYTEST_XDIST_WORKER" in os.environ:  # several workers: a thread for each, or they wait for each other
    os.environ["OMP_NUM_THREADS"] = "1"

if "STAGEWISE_TEST_CUDA" not in os.environ:  # `make test` is the same on every machine; see test_cuda.py
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch  # not earlier: it reads these when it is imported

os.environ.setdefault("TRITON_INTERPRET", "0" if torch.cuda.is_available() else "1")  # before a kernel is defined

from tests.adapter import BATCHED, STAGES, Stage, kernels_with, stages_that_change, write_checkpoint
from tests.own_engine import OwnEngine

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


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
def one_thread():
    """Next to a busy program an engine takes fewer threads: torch's sums differ then, and threads wait for others."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def pytest_addoption(parser):
    parser.addoption("--engine", type=Path, help="a directory whose engine is tested in the place of a stage")
    parser.addoption("--as-stage", type=int, metavar="N", help="the number of that stage")


def pytest_configure(config):
    if config.getoption("engine"):  # before any test imports a stage
        config.pluginmanager.register(OwnEngine(config.getoption("engine"), config.getoption("as_stage")))


def pytest_generate_tests(metafunc):
    """Choose the stages of a test: the ones it names, or else those in its module's `NUMBERS`, or else all."""
    numbers = getattr(metafunc.module, "NUMBERS", range(100))
    for name, stages in (("stage", STAGES), ("batched_stage", BATCHED)):
        named = (mark.args[0] for mark in metafunc.definition.iter_markers("parametrize"))
        named = [one.strip() for names in named for one in (names.split(",") if isinstance(names, str) else names)]
        own = name in named or hasattr(metafunc.module, name)
        if name in metafunc.fixturenames and not own:
            picked = [stage for stage in stages if stage.number in numbers]
            metafunc.parametrize(name, picked, ids=[stage.directory for stage in picked], indirect=True)


def pytest_collection_modifyitems(config, items):
    """Deselect tests whose files (those that they `cover`) are all the same as in the stage before. `make test` leaves
    these repetitions to `make soak`. An own engine's are none."""
    run_again = set()
    if config.getoption("engine"):
        return
    for item in items:
        params = item.callspec.params.values() if hasattr(item, "callspec") else ()
        stages = {one for one in params if isinstance(one, Stage)}
        covers = item.get_closest_marker("covers")
        if stages and covers and stages.isdisjoint(stages_that_change(*covers.args)):
            run_again.add(item)
    on_no_stage = {item.function for item in run_again} - {item.function for item in set(items) - run_again}
    if on_no_stage and "::" not in "".join(config.args):
        raise pytest.UsageError(f"none of its stages changes what it covers: {on_no_stage}")
    for item in run_again:
        item.add_marker(pytest.mark.soak)


@pytest.fixture(scope="module", autouse=True)
def little_is_collected():
    """The garbage collector looks only at what a module's tests make: the objects of torch and other libraries take it
    half a second each time."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish():
    gc.unfreeze()  # or Triton's compiler complains of what is left at the end


@pytest.fixture(scope="session", autouse=True)
def one_tokenizer():
    """Each stage reads a tokenizer once, not for every engine: nearly all engines here have the bundled one, those of
    random checkpoints too, and reading it takes ten times as long as all else of a small one. A stage that is in
    another directory, or in another process, reads it as usual; `test_tokenizer.py` always reads it again."""
    names = ("merges.txt", "vocab.json", "added_tokens.json")

    def reader(stage):
        own, known = stage.part("weights").Tokenizer, {}

        def read(directory):
            files = tuple((directory / name).read_bytes() for name in names if (directory / name).is_file())
            if files not in known:
                known[files] = own(directory)
            return known[files]

        return read

    with pytest.MonkeyPatch.context() as patch:
        for stage in STAGES:
            if weights := stage._part("weights"):  # an own engine may have none
                patch.setattr(weights, "Tokenizer", reader(stage))
        yield


@pytest.fixture(scope="session", autouse=True)
def as_is():
    """An engine of stage 8 leaves its weights as they are unless it is told "int8", because tests compare the stages
    with each other, with Hugging Face, or with a file. This is done only here and in `Stage.start`, since engines are
    made in many ways: by a test, the command line, a server. `test_int8.py` tests that users get int8."""
    runner = next(stage.part("runner") for stage in STAGES if stage.has_option("weights"))
    with pytest.MonkeyPatch.context() as patch:
        own = runner.pick_int8
        patch.setattr(runner, "pick_int8", lambda name, device: name != "auto" and own(name, device))
        yield own


@pytest.fixture(scope="session", autouse=True)
def little_is_touched():
    """From stage 6 on an engine touches up to 512 MB of its cache before the first step, which saves its steps page
    faults. Here it would take longer than most tests."""
    own = {stage: stage.part("kv_cache").PREFAULT for stage in STAGES[5:]}
    with pytest.MonkeyPatch.context() as patch:
        for stage in own:
            patch.setattr(stage.part("kv_cache"), "PREFAULT", 1 << 16)
        yield own


@pytest.fixture(scope="session", autouse=True)
def compiled_by_one():
    """When one worker compiles kernels, which takes all cores for seconds, the others wait and use the result. So do
    processes that tests start, and copies of stages."""
    lock = FileLock(Path(os.environ["XDG_CACHE_HOME"], "compiling"))

    def locked(compile_kernel):
        def compile_or_wait():
            with lock:
                return compile_kernel()

        return compile_or_wait

    with pytest.MonkeyPatch.context() as patch:
        for stage in STAGES[4:]:
            kernels = stage.part("kernels.c_kernel")
            patch.setattr(kernels, "compile_kernel", locked(kernels.compile_kernel))
            if "PYTEST_XDIST_WORKER" in os.environ:
                with contextlib.suppress(RuntimeError):  # there is no compiler
                    kernels.load_kernel()
        yield


@pytest.fixture(params=["own", "AMX", *(["x86-64-v3"] if platform.machine() == "x86_64" else [])])
def instructions(request, stage, monkeypatch):
    """Whole engines multiply with this CPU's instructions, with AMX's in plain C, and with AVX2's."""
    if request.param != "own":
        kernels = kernels_with(stage, request.param)
        monkeypatch.setattr(stage.part("kernels.c_kernel"), "load_kernel", lambda: kernels)
    return request.param


@pytest.fixture(scope="session", params=SIZES)
def checkpoint(request, tmp_path_factory):
    """Random checkpoints of several sizes."""
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"), **SIZES[request.param])


@pytest.fixture
def any_threads():
    """A test may set the number of torch's threads; afterwards it is restored."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def small_checkpoint(tmp_path_factory):
    """One of them, for tests that need only one."""
    return write_checkpoint(tmp_path_factory.mktemp("small"), **SIZES["3 heads"])


@pytest.fixture(scope="session")
def draft_checkpoint(tmp_path_factory):
    """A checkpoint with the same vocabulary, other weights, and a shorter context."""
    sizes = dict(n_layer=1, n_head=2, n_embd=16, n_positions=40, vocab_size=211)
    return str(write_checkpoint(tmp_path_factory.mktemp("draft"), seed=5, **sizes))


@pytest.fixture(scope="session")
def wide_checkpoint(tmp_path_factory):
    """A random checkpoint of GPT-2's width."""
    sizes = dict(n_layer=2, n_head=12, n_embd=768, n_positions=150, vocab_size=211)
    return write_checkpoint(tmp_path_factory.mktemp("wide"), **sizes)


@pytest.fixture(scope="session")
def babble(tmp_path_factory):
    """A random checkpoint with GPT-2's vocabulary: its text is nonsense in every script, with broken characters."""
    sizes = dict(n_layer=1, n_head=2, n_embd=16, n_positions=256, vocab_size=50257, eos_token_id=50256)
    return write_checkpoint(tmp_path_factory.mktemp("babble"), **sizes)
