"""Build your own engine: the tests of a milestone exist, an engine with a mistake fails in the part that it is about, and
a skeleton is its stage without the idea."""

import ast
import contextlib
import multiprocessing
import os
import re
import shutil
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest

from exercises import __main__ as cli
from exercises import engine_report, skeletons
from exercises.milestones import CONTRACT, MILESTONES
from tests.adapter import ROOT, STAGES


def checked(arguments: list[str], out: Path, seconds: int) -> None:
    """Run the command `engine` in this process, which must not have imported a stage."""
    descriptor = os.open(out, os.O_CREAT | os.O_WRONLY)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    from exercises import engine

    engine.SECONDS = seconds
    sys.exit(cli.main(["engine", *arguments]))


@pytest.fixture(scope="session")
def check(tmp_path_factory):
    """A function: the exit status and the output of `engine N`. Each runs in a process of its own, which begins with
    the modules that take seconds to import."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["torch", "transformers.models.gpt2.modeling_gpt2", "tests.test_milestones"])

    def run(directory, number=None, seconds=120):
        out = tmp_path_factory.mktemp("check") / "out"
        numbers = [] if number is None else [str(number)]
        process = processes.Process(target=checked, args=(["--directory", str(directory), *numbers], out, seconds))
        process.start()
        process.join(1200)
        return process.exitcode, out.read_text(encoding="utf-8")

    return run


@pytest.mark.parametrize("milestone", [*MILESTONES, CONTRACT], ids=lambda milestone: milestone.title)
def test_the_tests_of_a_milestone_exist(milestone):
    for test in milestone.tests:
        file, _, name = test.partition("::")
        assert f"\ndef {name}(" in (ROOT / file).read_text(encoding="utf-8"), test


@pytest.mark.soak
@pytest.mark.parametrize("milestone", MILESTONES, ids=lambda milestone: milestone.title)
def test_a_stage_passes_its_milestone(milestone, check):
    """And every part has tests that run on it."""
    status, said = check(ROOT / milestone.stage, milestone.number)
    assert (status, "✗" in said) == (0, False)
    assert re.findall("✓ (.*)", said) == list(dict.fromkeys(look for look, *_ in milestone.parts)) or said


# --- Engines with one mistake -----------------------------------------------------------------------------------------

# (milestone, what is wrong, the part that fails, edits of its stage: file, text, what stands there instead)
FAST = [
    (1, "only the prompt", "batch.py: Batch.of", [("batch.py", "torch.tensor(request.token_ids", "torch.tensor(request.prompt_token_ids")]),
]  # fmt: skip
MISTAKES = [
    (1, "heads are mixed up", "model.py: Attention._split_heads", [("model.py", "x.unflatten(-1, (self.n_head, -1)).transpose(-3, -2)", "x.unflatten(-1, (-1, self.n_head)).transpose(-3, -1).transpose(-2, -1)")]),
    (1, "the GELU with erf", "model.py: Attention, MLP, Layer", [("model.py", "F.gelu(x, approximate=\"tanh\")", "F.gelu(x)")]),
    (1, "nothing is added to the input", "model.py: Attention, MLP, Layer", [("model.py", "x = x + self.mlp(self.ln_2(x))", "x = self.mlp(self.ln_2(x))")]),
    (1, "no causal mask", "model.py: GPT2.forward", [("model.py", "visible = positions <= positions[:, None]", "visible = positions >= 0 * positions[:, None]")]),
    (1, "the last token is left out", "runner.py: Runner.forward", [("runner.py", "self.model(batch.token_ids)", "self.model(batch.token_ids[:-1])")]),
    (1, "an error that is lost", "sampler.py: sample, choose", [("sampler.py", "        return error\n", "        return None\n")]),
    (1, "log-probabilities after the penalties", "sampler.py: sample, choose", [("sampler.py", "raw_logprobs(logits, token_id", "raw_logprobs(penalize(logits, request), token_id")]),
    (1, "multiplied by the temperature", "sampler.py: choose, draw", [("sampler.py", "(scores - best) / params.temperature", "(scores - best) * params.temperature")]),
    (1, "ties with the k-th are dropped", "sampler.py: keep_top_k", [("sampler.py", "scores < kth", "scores <= kth")]),
    (1, "more than p", "sampler.py: keep_top_p, keep_min_p", [("sampler.py", "(descending.cumsum(dim=-1) < p * total)", "(descending.cumsum(dim=-1) <= p * total)")]),
    (1, "min-p before top-p", "sampler.py: keep_top_p, keep_min_p", [("sampler.py", "    if params.top_p < 1:\n        weights = keep_top_p(weights, params.top_p)\n    if params.min_p > 0:\n        weights = keep_min_p(weights, params.min_p)\n", "    if params.min_p > 0:\n        weights = keep_min_p(weights, params.min_p)\n    if params.top_p < 1:\n        weights = keep_top_p(weights, params.top_p)\n")]),
    (1, "a token of weight 0 is drawn", "sampler.py: keep_top_p, keep_min_p", [("sampler.py", "right=True", "right=False")]),
]  # fmt: skip
# Right engines of other styles.
RIGHT = [
    (2, "an ended row is only padding", [
        ("batch.py", "sequences = [request.token_ids for", "sequences = [[] if request.finished else request.token_ids for"),
        ("batch.py", "n_seq = max(map(len, sequences))", "n_seq = max(len(request.token_ids) for request in requests)"),
    ]),
    (3, "a prefill is what has no output", [("batch.py", "is_prefill=cache.length == 0", "is_prefill=not any(request.output_token_ids for request in requests)")]),
    (8, "the scale of zeros is 1", [("quantize.py", "    per_unit = torch.where(scale > 0, 1 / scale, 0)", "    scale = torch.where(scale > 0, scale, 1.0)\n    per_unit = 1 / scale")]),
]  # fmt: skip


def make(milestone: int, edits: list[tuple[str, str, str]], directory: Path) -> Path:
    """The milestone's stage with these edits."""
    shutil.copytree(ROOT / MILESTONES[milestone - 1].stage, directory)  # with what Python has compiled
    for name, right, wrong in edits:
        text = (directory / name).read_text(encoding="utf-8")
        assert right in text, f"{name} has no {right!r}"
        (directory / name).write_text(text.replace(right, wrong), encoding="utf-8")
    return directory


@pytest.mark.parametrize(
    ("milestone", "what", "part", "edits"),
    [*FAST, *(pytest.param(*mistake, marks=pytest.mark.soak) for mistake in MISTAKES)],
    ids=[f"{milestone} {what}" for milestone, what, *_ in (*FAST, *MISTAKES)],
)
def test_a_mistake_fails(milestone, what, part, edits, check, tmp_path):
    status, said = check(make(milestone, edits, tmp_path / "engine"), milestone)
    assert (status, "the test itself failed" in said) == (1, False)
    assert f"✗ {part}" in said
    assert "test:  tests/test_" in said


@pytest.mark.soak
@pytest.mark.parametrize(("milestone", "what", "edits"), RIGHT, ids=[what for _, what, _ in RIGHT])
def test_another_right_engine_passes(milestone, what, edits, check, tmp_path):
    status, said = check(make(milestone, edits, tmp_path / "engine"), milestone)
    assert (status, "✗" in said) == (0, False)


@pytest.mark.soak
def test_a_loop_that_does_not_end_is_ended(check, tmp_path):
    loop = ("scheduler.py", "        return rows\n", "        while True:\n            pass\n")
    status, said = check(make(4, [loop], tmp_path / "engine"), 4, seconds=10)
    assert status == 1
    assert "Timeout" in said
    assert re.search(r"yours: scheduler\.py, line \d+: (while True:|pass)", said)


# --- Engines that are built differently, and what is none -------------------------------------------------------------

SMALL = """
    from {stage} import LLM as Whole, SamplingParams

    class LLM:
        def __init__(self, model, device="cpu"):
            self._whole = Whole(model, device=device)

        def generate(self, prompts, sampling_params):
            return self._whole.generate(prompts, sampling_params)
"""


def test_an_engine_that_is_built_differently(check, tmp_path):
    """The public contract is tested. An error of the engine names its line, one of a test is not the engine's."""
    (tmp_path / "small").mkdir()
    path, text = tmp_path / "small" / "__init__.py", textwrap.dedent(SMALL.format(stage=STAGES[0].directory))
    path.write_text(text)
    status, said = check(tmp_path / "small")
    assert status == 0, said
    assert said.startswith("small/ is not built like a stage, so only the public contract is tested.")
    path.write_text(text.replace("return self._whole", "len(5)\n        return self._whole"))
    status, said = check(tmp_path / "small", 3)
    assert status == 1
    assert "TypeError: object of type 'int' has no len()" in said
    assert "yours: __init__.py, line 9: len(5)" in said


def test_what_is_no_engine_is_named(check, tmp_path, capsys):
    (tmp_path / "__init__.py").write_text("import nothing_like_it")
    status, said = check(tmp_path)
    assert status == 1
    assert f"{tmp_path} can't be imported: ModuleNotFoundError: No module named 'nothing_like_it'" in said
    assert cli.main(["engine", "--directory", str(tmp_path / "none")]) == 2
    assert "`python -m exercises start 1` makes one" in capsys.readouterr().err
    for arguments, words in ((["engine", "9"], "there is no milestone 9"), (["start", "0"], "invalid choice: 0")):
        with pytest.raises(SystemExit):
            cli.main(arguments)
        assert words in capsys.readouterr().err


def test_an_error_of_a_test_is_not_the_engines(capsys):
    """As one of the system's is that no line of the engine has raised."""
    report = engine_report.Report(ROOT / STAGES[0].directory, MILESTONES[:1])
    report.part = MILESTONES[0], "engine.py"
    for error, broken in ((FileNotFoundError("x"), True), (TypeError("x"), False)):
        item = SimpleNamespace(path=Path(__file__), function=make, originalname="test_x")
        with contextlib.suppress(Exception):
            raise error
        report.failed = False
        report.pytest_runtest_makereport(item, SimpleNamespace(excinfo=pytest.ExceptionInfo.from_exception(error)))
        assert report.broken == broken
        assert ("The test itself failed." in capsys.readouterr().out) == broken


# --- Skeletons --------------------------------------------------------------------------------------------------------

by_milestone = pytest.mark.parametrize("milestone", MILESTONES, ids=lambda milestone: milestone.title)


@by_milestone
def test_a_skeleton_is_its_stage_without_the_idea(milestone):
    for name, content in skeletons.skeleton(milestone).items():
        original = (ROOT / milestone.stage / name).read_bytes()
        empty = {*milestone.to_write.get(name, ()), *milestone.later.get(name, {})}
        if not empty:
            assert content == original
            continue
        before, after = (skeletons.functions(ast.parse(text)) for text in (original, content))
        assert before.keys() == after.keys()
        for function, node in before.items():
            assert ast.get_docstring(after[function]) == ast.get_docstring(node)
            assert ast.dump(after[function].args) == ast.dump(node.args)
            same = ast.dump(after[function]) == ast.dump(node)
            assert same == (function not in empty), function


@pytest.mark.parametrize("number", [1, 5, *(pytest.param(n, marks=pytest.mark.soak) for n in (2, 3, 4, 6, 7, 8))])
def test_a_skeleton_says_what_is_not_written(number, check, tmp_path):
    skeletons.start(number, tmp_path / "mine")
    status, said = check(tmp_path / "mine", number)
    first = next(iter(MILESTONES[number - 1].parts))[0]
    assert (status, said.count("✗"), said.count("✓")) == (1, 1, 0)
    assert f"✗ {first}" in said
    assert re.search(r"_?\w+ is not written yet: \w+\.py, line \d+", said)


def test_the_loop_has_four_verbs(tmp_path):
    skeletons.start(1, tmp_path / "mine")
    step = (tmp_path / "mine" / "engine.py").read_text().split("def step")[1].split("def commit")[0]
    assert [line.split()[1] for line in step.splitlines() if "# " in line] == [
        "build:",
        "forward:",
        "sample:",
        "commit:",
    ]


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def test_nobodys_work_is_overwritten(tmp_path, capsys):
    mine = tmp_path / "mine"
    command = ["start", "2", "--directory", str(mine)]
    assert cli.main(command) == 0
    assert cli.main(command) == 0  # nobody has written anything
    (mine / "engine.py").write_text("# my work\n")
    before = contents(mine)
    capsys.readouterr()
    assert cli.main(command) == 2
    err = capsys.readouterr().err
    assert err == (
        f"exercises: {mine}/ contains your work (engine.py); `start 2 --aside` moves it to mine-1/ and goes on from there\n"
    )
    assert contents(mine) == before
    assert cli.main([*command, "--aside"]) == 0
    assert contents(tmp_path / "mine-1") == before
    assert (mine / "engine.py").read_text() != "# my work\n"
    (mine / "engine.py").write_text("# again\n")
    assert cli.main([*command, "--aside"]) == 0
    assert (tmp_path / "mine-2" / "engine.py").read_text() == "# again\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "mine-1", "mine-2"]


def test_a_directory_that_start_has_not_made_is_somebodys_work(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"contains your work \(notes.txt\)"):
        skeletons.start(1, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file"):
        skeletons.start(1, tmp_path / "file")


def test_what_needs_no_change_stays_the_learners(tmp_path):
    """From 2 to 3: the sampler is the same in both stages, the model is not, and the learner's own helpers are kept."""
    mine = tmp_path / "mine"
    skeletons.start(2, mine)
    sampler = (ROOT / STAGES[1].directory / "sampler.py").read_text() + "\n# written by me\n"
    (mine / "sampler.py").write_text(sampler)
    (mine / "model.py").write_text("# a model of mine\n")
    (mine / "helpers.py").write_text("# of mine\n")
    said = skeletons.start(3, mine, aside=True)
    assert (mine / "sampler.py").read_text() == sampler
    assert (mine / "helpers.py").read_text() == "# of mine\n"
    assert "raise NotImplementedError" in (mine / "model.py").read_text()
    assert (tmp_path / "mine-1" / "model.py").read_text() == "# a model of mine\n"
    assert "Carried over from your work: helpers.py, sampler.py" in said
    (mine / "kv_cache.py").write_text("# again\n")
    assert "Carried over from your work: helpers.py, sampler.py" in skeletons.start(4, mine, aside=True)


def test_what_is_not_finished_is_taken_from_the_stage(tmp_path):
    mine = tmp_path / "mine"
    skeletons.start(1, mine)
    with (mine / "sampler.py").open("a") as file:
        file.write("# begun\n")
    said = skeletons.start(2, mine, aside=True)
    assert "Not finished, so replaced by the stage's: sampler.py" in said
    assert (mine / "sampler.py").read_bytes() == (ROOT / STAGES[1].directory / "sampler.py").read_bytes()


def test_from_blocks_to_sharing_only_the_new_functions_are_empty(tmp_path):
    mine = tmp_path / "mine"
    skeletons.start(5, mine)
    manager = mine / "block_manager.py"
    own = (ROOT / STAGES[4].directory / "block_manager.py").read_text() + "\n# written by me\n"
    manager.write_text(own)
    skeletons.start(6, mine, aside=True)
    text = manager.read_text()
    assert text.endswith("# written by me\n")
    assert text.count("raise NotImplementedError") == len(MILESTONES[5].to_write["block_manager.py"])
