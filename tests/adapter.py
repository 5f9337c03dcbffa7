"""One adapter for all stages, so that every test runs on each of them unchanged."""

import contextlib
import functools
import hashlib
import io
import os
import shlex
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from stagewise import cli, stages
from stagewise.layout import layout_config, write_config
from stagewise.strict_json import read_json
from tools import engines
from tools.engines import TINYTALES, random_prompts  # noqa: F401
from tools.sync_stages import ROOT, read_stages


def outcome(main, *arguments) -> tuple[int, str, str]:
    """Run a command in this process: exit status, stdout, stderr."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        try:
            status = main([str(one) for one in arguments])
        except SystemExit as exit:  # argparse
            status = exit.code
    return status, stdout.getvalue(), stderr.getvalue()


def refusal(main, *arguments) -> str:
    """The one line with which a command refuses bad input, with status 2 and nothing on stdout."""
    status, stdout, stderr = outcome(main, *arguments)
    lines = [line for line in stderr.splitlines() if " on cpu (" not in line]  # where the model runs
    assert (status, stdout, len(lines)) == (2, "", 1), (arguments, stderr)
    return lines[0]


class Stage(engines.Stage):
    """A stage as tests see it: with its command line."""

    def main(self, *arguments) -> tuple[int, str, str]:
        """Run the command line in this process: exit status, stdout, stderr."""
        return outcome(self._main, *arguments)

    def refusal(self, *arguments) -> str:
        """The line with which the command line refuses bad input."""
        return refusal(self._main, *arguments)

    def _main(self, argv: list[str]) -> int:
        return cli.main(self, argv, f"python -m {self.command}")

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen:
        """Start the command line as a user would, in a process of its own; with the checkpoint's weights, as in this
        process (`as_is` in conftest.py), unless it says which."""
        exact = [] if "--weights" in arguments else [f"--{name}={value}" for name, value in self.exact.items()]
        return subprocess.Popen(
            [sys.executable, "-m", self.command, *map(str, arguments), *exact],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    def run(self, *arguments: str, **environment: str) -> tuple[int, str, str]:
        """Run the command line in a process of its own: exit status, stdout, stderr."""
        process = self.start(*arguments, **environment)
        stdout, stderr = process.communicate(timeout=1200)
        return process.returncode, stdout, stderr


STAGES = [Stage(number) for number in stages.PACKAGES]
BATCHED = [stage for stage in STAGES if stage.number >= 2]


@functools.cache
def listed_files() -> dict[str, dict[str, str]]:
    return read_stages()


def stages_that_change(*names: str) -> list[Stage]:
    """The stages in which one of these files differs from the stage before. In the others, the same bytes would only be
    tested again."""
    listed = listed_files()
    unknown = set(names).difference(*listed.values())
    assert not unknown, f"no stage has {', '.join(sorted(unknown))}; a test that is about it would run on none"
    return [stage for stage in STAGES if {listed[stage.directory].get(name) for name in names} & {"new", "changed"}]


def wait_until(condition, seconds=300):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


@contextlib.contextmanager
def in_threads(*calls):
    """Run each call in its own thread next to the block, and wait for its end. The results are added to a list."""
    results, errors = [], []

    def run(call):
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    yield results
    for thread in threads:
        thread.join(300)
        assert not thread.is_alive(), "a thread hangs"
    assert errors == []


def unfinished(llm) -> list:
    """The unfinished requests of an engine with a thread, after it has carried out all earlier commands."""
    return llm.loop.call(lambda: list(llm.loop.callbacks))


EOS = 50256


def write_checkpoint(directory: Path, seed: int = 0, **sizes) -> Path:
    """A random checkpoint, written by transformers, with GPT-2's tokenizer, in the layout that a stage reads. Weights
    are large enough for the logits to differ."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(seed)
    model = GPT2LMHeadModel(GPT2Config(initializer_range=0.2, bos_token_id=0, **{"eos_token_id": 0, **sizes}))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):  # transformers starts them at zero, which would hide a bias that is left out
            torch.nn.init.normal_(parameter, std=0.1)
        elif "ln_" in name:
            torch.nn.init.normal_(parameter, mean=1.0, std=0.1)
    model.save_pretrained(directory)
    for name in ("merges.txt", "vocab.json"):
        shutil.copy2(TINYTALES / name, directory)
    write_config(directory, layout_config(directory, read_json(directory / "config.json")))
    return directory


def edit_config(directory: Path, **changes) -> None:
    """Change the configuration of a model that a stage reads; it still reads it."""
    write_config(directory, read_json(directory / "config.json") | changes)


def fetch_from(patch: pytest.MonkeyPatch, endpoint: str, home: Path, offline: bool = False) -> None:
    """Set in this process what HF_ENDPOINT, HF_HOME and HF_HUB_OFFLINE set in another, whose huggingface_hub reads them
    on import."""
    from huggingface_hub import HfFileSystem, constants

    said = dict(ENDPOINT=endpoint, HF_HUB_CACHE=str(home / "hub"), HF_HUB_OFFLINE=offline, HF_HUB_DISABLE_XET=True)
    said["HUGGINGFACE_CO_URL_TEMPLATE"] = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    for name, value in said.items():
        patch.setattr(constants, name, value)
    HfFileSystem.clear_instance_cache()


def without_notes(stderr: str) -> str:
    """A process's output without the note that the tests' checkpoints have no tokenizer of their own."""
    return "".join(line for line in stderr.splitlines(keepends=True) if "has no tokenizer" not in line)


EMULATED = ROOT / "tests/kernels/emulated.h"


@functools.cache
def kernels_with(stage: Stage, instructions: str):
    """This stage's kernels, loaded, for whole engines as on a CPU with these instructions: "AMX", in plain C, or a
    level of x86-64 such as "x86-64-v3". Like all kernels, they are kept from run to run."""
    compiler, c = stage.part("compiler"), stage.part("kernels.c_kernel")
    march = compiler.MARCH if instructions == "AMX" else instructions
    flags = [f"-march={march}" if flag.startswith("-march=") else flag for flag in compiler.FLAGS]
    flags += ["-O1"]  # the last one counts: compiled in a third of the time, the tests take less in all
    flags += [f"-DEMULATED={hashlib.sha256(EMULATED.read_bytes()).hexdigest()[:16]}"]  # part of the library's name
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "FLAGS", tuple(flags))
        if instructions == "AMX":
            patch.setenv("CC", shlex.join([*compiler.find_compiler(), "-include", str(EMULATED)]))
        return c.load_kernel.__wrapped__()


def cpu_flags() -> set[str]:
    """The features that Linux lists for an x86-64 CPU; nothing elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return set(next((line for line in lines if line.startswith("flags")), "").split())
