"""Mutation testing of the engines: one change in a file of a stage, run against the tests that cover the file.

    python tools/engine_mutants.py                                  # files that differ from the branch main
    python tools/engine_mutants.py stage05_paged/block_manager.py   # some files
    python tools/engine_mutants.py --all --sample 20 --seed 1       # twenty out of all
    python tools/engine_mutants.py --list stage01_single/request.py # only print their names

The files are those at a stage's top level and in its `support/`, and `kernels/c_sampler.py`. A mutant changes a line
that the stage adds: any line of a new file, and in a changed file the lines that differ from the stage before. The
changes are those made to the exercises' solutions, except those at a function's border, and three that rarely matter
to counts and tuned numbers: `<` or `>` to `!=`, `==` to `>=`, and a constant a thousandth larger.

Each mutant is written into a copy of this directory. There the tests marked as covering the file
(`pytest.mark.covers`) run for this stage, quickest first, until one fails or takes several times as long as it
should; either kills the mutant. A mutant that no test can tell from the original is equivalent, and
`tests/equivalent_mutants.txt` lists it with the reason. Any other survivor is a hole in the tests.
"""

import argparse
import contextlib
import difflib
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.mutants import Mutant, in_python, numbered  # noqa: E402
from tools.sync_stages import read_stages  # noqa: E402

EQUIVALENT = ROOT / "tests" / "equivalent_mutants.txt"
KINDS = ("made", "killed", "timeout", "equivalent", "survived")
OWN = ("tools", "tests", "stagewise", "exercises", "bench")  # packages that are imported from the copy


def files() -> list[str]:
    """All files with mutants: those that a stage adds or changes in ring 1, `support/` and the sampler."""
    return [
        f"{stage}/{name}"
        for stage, listed in read_stages().items()
        for name, status in listed.items()
        if status != "same" and name.endswith(".py") and "__" not in name and not name.endswith("_kernel.py")
    ]


def brought(path: str) -> set[int]:
    """The numbers of the lines that the stage adds or changes."""
    stage, name = path.split("/", 1)
    stages = list(read_stages())
    earlier = [ROOT / other / name for other in stages[: stages.index(stage)] if (ROOT / other / name).exists()]
    lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
    before = earlier[-1].read_text(encoding="utf-8").splitlines() if earlier else []
    blocks = difflib.SequenceMatcher(None, before, lines, autojunk=False).get_matching_blocks()
    return set(range(1, len(lines) + 1)).difference(*(range(b.b + 1, b.b + b.size + 1) for b in blocks))


def mutants(path: str) -> list[Mutant]:
    """All mutants of a file of a stage. Log messages are not changed."""
    source, lines = (ROOT / path).read_text(encoding="utf-8"), brought(path)
    logged = {i for i, line in enumerate(source.splitlines(), 1) if "logg" in line}
    made = [mutant for mutant in in_python(source) if not hardly_shows(mutant)]
    return [mutant for mutant in numbered(made) if mutant.line in lines - logged]


def hardly_shows(mutant: Mutant) -> bool:
    """A comparison that differs only for a count below zero, or a number a thousandth larger."""
    if mutant.kind == "comparison":
        before, after = mutant.before, mutant.after
        return (") != (" in after and " == " not in before) or (") >= (" in after and " > " not in before)
    return mutant.after.endswith(" + 0.001)")


def listed() -> dict[tuple[str, str], str]:
    """(file, mutant) -> why it is equivalent."""
    lines = EQUIVALENT.read_text(encoding="utf-8").splitlines()
    rows = [line.split(" | ") for line in lines if line and not line.startswith("#")]
    return {(path, name): reason for path, name, reason in rows}


class Covering:
    """A pytest plugin that runs the tests covering a file, for one stage, quickest first. If no test names the file, it
    runs those that name no file, which cover all stages. A test that takes much longer than before ends the process.

    seconds: how long each test takes without a mutant; if empty, there is no limit.
    """

    def __init__(self, path: str, seconds: dict[str, float]):
        self.stage, self.name = path.split("/", 1)
        self.before, self.seconds = seconds, defaultdict[str, float](float)
        texts = {str(test): test.read_text(encoding="utf-8") for test in sorted(Path("tests").glob("test_*.py"))}
        self.naming = [test for test, text in texts.items() if re.search(rf'covers\([^)]*"{self.name}"', text)]
        self.test_files = self.naming or [test for test, text in texts.items() if "covers(" not in text]

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted(filter(self.covers, items), key=lambda item: self.before.get(item.nodeid, 0))

    def covers(self, item: pytest.Item) -> bool:
        mark, params = item.get_closest_marker("covers"), getattr(item, "callspec", None)
        values = [*(params.params.values() if params else ()), getattr(getattr(item, "module", None), "stage", None)]
        stages = [value.directory for value in values if isinstance(getattr(value, "directory", None), str)]
        named = self.name in mark.args if self.naming and mark else not (self.naming or mark)
        return named and (not stages or self.stage in stages)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        signal.setitimer(signal.ITIMER_REAL, 10 + 5 * self.before.get(nodeid, 0) if self.before else 0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration


class Copy:
    """A copy of this directory, where tests run in forked processes that have torch and transformers already loaded."""

    def __init__(self, directory: Path):
        self.directory, self.seconds = directory, dict[str, dict[str, float]]()
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        for name in subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0"):
            if name and (ROOT / name).is_file() and not (ROOT / name).is_symlink():
                (directory / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, directory / name)

    def killed(self, path: str, mutant: Mutant) -> str:
        """ "killed", "timeout" or "survived"."""
        if path not in self.seconds:  # without a mutant, the tests pass; this takes their times
            if self._run(path) != 0:
                raise SystemExit(f"no test covers {path}, or they fail:\n{(self.directory / 'log').read_text()}")
            self.seconds[path] = json.loads((self.directory / "seconds").read_text())
        own = (self.directory / path).read_text(encoding="utf-8")
        try:
            self._write(path, mutant.text)
            status = self._run(path)
        finally:
            self._write(path, own)
        return {0: "survived", -signal.SIGALRM: "timeout"}.get(status, "killed")

    def _write(self, path: str, text: str) -> None:
        file = self.directory / path
        file.write_text(text, encoding="utf-8")
        for compiled in file.parent.glob(f"__pycache__/{file.stem}.*"):  # the source may have the same time
            compiled.unlink()

    def _run(self, path: str) -> int:
        """Run the tests that cover a file. Returns pytest's exit status, or minus the signal that ended it."""
        process: Any = multiprocessing.get_context("fork").Process(target=self._test, args=(path,))
        process.start()
        process.join()
        with contextlib.suppress(ProcessLookupError):  # processes that the tests started
            os.killpg(process.pid, signal.SIGKILL)
        return process.exitcode

    def _test(self, path: str) -> None:
        """Run pytest in this forked process, which imports everything from the copy."""
        os.setpgrp()
        os.chdir(self.directory)
        sys.path[0] = str(self.directory)
        os.environ["PYTHONPATH"] = os.pathsep.join([sys.path[0], *filter(None, [os.environ.get("PYTHONPATH")])])
        for module in [name for name in sys.modules if name.split(".")[0] in OWN]:
            del sys.modules[module]
        with open("log", "w", encoding="utf-8") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        covering = Covering(path, self.seconds.get(path, {}))
        options = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not soak and not arm and not cuda"]
        status = pytest.main([*options, *covering.test_files], plugins=[covering])
        Path("seconds").write_text(json.dumps(covering.seconds))
        sys.stdout.flush()
        os._exit(status)


def load_libraries() -> None:
    """Load torch and transformers once for all tests, with the environment that tests/conftest.py sets."""
    os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1")
    import torch

    os.environ["TRITON_INTERPRET"] = "0" if torch.cuda.is_available() else "1"
    import transformers.models.gpt2.modeling_gpt2  # noqa: F401  # pyright: ignore[reportUnusedImport]


def chosen(args: argparse.Namespace) -> Iterator[tuple[str, Mutant]]:
    """The mutants of the requested files, or a sample of them."""
    known, paths = files(), args.files
    if not args.all and not paths:
        command = ["git", "diff", "--name-only", args.since]
        changed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
        paths = [path for path in known if path in changed]
    if unknown := set(paths) - set(known):
        raise SystemExit(f"no stage brings or changes {', '.join(sorted(unknown))}")
    made = [(path, mutant) for path in (known if args.all else paths) for mutant in mutants(path)]
    picked = sorted(random.Random(args.seed).sample(range(len(made)), min(args.sample or len(made), len(made))))
    yield from (made[i] for i in picked)


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("files", nargs="*", metavar="FILE", help="such as stage05_paged/batch.py")
    parser.add_argument("--since", default="main", metavar="REF", help="without files: those that differ from it")
    parser.add_argument("--all", action="store_true", help="all files of all stages")
    parser.add_argument("--sample", type=int, metavar="N", help="only N of them, drawn by --seed")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--list", action="store_true", help="only print their names")
    parser.add_argument("--verbose", action="store_true", help="print the result of each, and its time")
    args = parser.parse_args()
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    with tempfile.TemporaryDirectory() as directory:
        copy = None
        for path, mutant in chosen(args):
            if args.list:
                print(path, "|", mutant.name)
                continue
            if copy is None:
                load_libraries()
                copy = Copy(Path(directory).resolve())
            began, known = time.perf_counter(), (path, mutant.name) in listed()
            result = copy.killed(path, mutant)
            counts[path].update(["made", "equivalent" if known and result == "survived" else result])
            if (result == "survived") != known:
                heading = "LISTED BUT KILLED" if known else "SURVIVES"
                print(f"{heading} {path} | {mutant.name} (line {mutant.line})", flush=True)
            if args.verbose:
                print(f"{time.perf_counter() - began:5.1f} s {result}: {path} | {mutant.name}", flush=True)
    for path, count in [*counts.items(), ("all", sum(counts.values(), Counter[str]()))]:
        print(f"{path:45}" + "".join(f"{count[kind]:6} {kind}" for kind in KINDS))
    return 1 if any(count["survived"] for count in counts.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
