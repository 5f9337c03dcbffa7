"""Fixtures: `stage` runs a test on every stage, `batched_stage` from stage 2 on; checkpoints are made once."""

import os
import signal

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test may reach the network; the hub tests set an endpoint on loopback
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
if "PYTEST_XDIST_WORKER" in os.environ:  # several workers: a thread for each, or they wait for each other
    os.environ["OMP_NUM_THREADS"] = "1"

import torch  # not earlier: it reads that number when it is imported

os.environ.setdefault("TRITON_INTERPRET", "0" if torch.cuda.is_available() else "1")  # before a kernel is defined

from tests.adapter import BATCHED, STAGES, write_checkpoint

# Started in the background, a shell's children ignore Ctrl-C, and theirs do: the tests send it and mean it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Head counts, contexts and head sizes that differ; n_inner that is not 4 * n_embd; an odd vocabulary.
SIZES = {
    "1 head": dict(n_layer=1, n_head=1, n_embd=16, n_positions=32, vocab_size=97),
    "3 heads": dict(n_layer=2, n_head=3, n_embd=48, n_positions=48, vocab_size=211, n_inner=100),
    "4 heads": dict(n_layer=3, n_head=4, n_embd=32, n_positions=64, vocab_size=307, layer_norm_epsilon=1e-3),
    "8 heads": dict(n_layer=2, n_head=8, n_embd=64, n_positions=128, vocab_size=503),
}


@pytest.fixture(params=STAGES, ids=lambda stage: stage.directory)
def stage(request):
    return request.param


@pytest.fixture(params=BATCHED, ids=lambda stage: stage.directory)
def batched_stage(request):
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
