"""The command line: what goes to stdout, what to stderr, exit statuses, Ctrl-C, help. A mistake is one line with status
2 that names the thing."""

import contextlib
import gc
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import stagewise
from bench import report
from exercises import __main__ as exercises
from stagewise import __main__ as command
from stagewise import cli, exits
from stagewise.garbage import put_off
from stagewise.results import as_dict
from stagewise.stages import EXACT
from stagewise.stages import STAGES as DESCRIBED
from tests.adapter import ROOT, STAGES, TINYTALES, outcome, refusal

NUMBERS = (1, 5)  # of the stages that this runs on, see conftest.py
ONE = STAGES[4]  # where the stage only has to be there
GREEDY = ["--temperature", "0", "--max-tokens", "12"]
FOX = ["--prompts", "A fox", *GREEDY]
posix = pytest.mark.skipif(os.name != "posix", reason="links, pipes and devices as POSIX has them")


def text_of(stage, prompt):
    params = stage.SamplingParams(temperature=0, max_tokens=12)
    return prompt + stage.engine().generate([prompt], params)[0].outputs[0].text


def run_command(argv):
    """A command, such as `stagewise run`."""
    return command.run(argv[0], argv[1:], f"stagewise {argv[0]}")


def run(*arguments):
    return outcome(run_command, *arguments)


# --- Results ----------------------------------------------------------------------------------------------------------


def test_one_prompt(stage):
    status, stdout, stderr = stage.main(*FOX)
    assert (status, stdout) == (0, f"{text_of(stage, 'A fox')}\n"), stderr
    assert re.search(r"\n1 request, 12 tokens in .* tok/s", stderr)
    assert stage.main("--prompts", "A fox", "One day", "--quiet", *GREEDY)[2] == ""


def test_several_prompts_come_in_order(stage):
    prompts = ["A fox", "Once upon a time, there was a bear who", "One day"]
    status, stdout, stderr = stage.main("--prompts", *prompts, *GREEDY)
    assert status == 0, stderr
    assert stdout == "".join(
        f"--- {i} of 3: length, 12 tokens\n{text_of(stage, prompt)}\n\n" for i, prompt in enumerate(prompts, start=1)
    )


@pytest.mark.parametrize(("error", "shown"), [(None, ["1", "2"]), (KeyboardInterrupt, ["2"])], ids=["done", "Ctrl-C"])
def test_a_result_that_is_done_first_waits_for_its_turn(error, shown, capsys):
    """Unless the run ends early."""
    params = ONE.SamplingParams(max_tokens=2, ignore_eos=True)
    (output,) = ONE.engine().generate(["B"], params)

    def as_completed(*_):
        yield 1, output
        if error:
            raise error
        yield 0, output

    with pytest.raises(error) if error else contextlib.nullcontext():
        cli.complete(SimpleNamespace(as_completed=as_completed), ["B", "B"], params, False, True, None, ["B", "B"])
    assert re.findall(r"--- (\d) of 2: ", capsys.readouterr().out) == shown


def test_json(stage):
    status, stdout, _ = stage.main("--prompts", "A fox", "Ünïcödé 👍", "--json", "--logprobs", "2", *GREEDY)
    assert status == 0
    results = [json.loads(line) for line in stdout.split("\n")[:-1]]
    assert [result["prompt"] for result in results] == ["A fox", "Ünïcödé 👍"]
    assert "👍" in stdout
    completion = results[0]["outputs"][0]
    assert "A fox" + completion["text"] == text_of(stage, "A fox")
    assert completion["finish_reason"] == "length"
    chosen = [
        step[str(token)]["logprob"] for step, token in zip(completion["logprobs"], completion["token_ids"], strict=True)
    ]
    assert len(chosen) == 12
    assert completion["cumulative_logprob"] == pytest.approx(sum(chosen))
    assert results[0]["metrics"]["ttft"] > 0


def test_prompts_from_a_file_or_stdin(stage, tmp_path, monkeypatch):
    """Blank lines are left out, U+2028 does not end a line, and a byte order mark is not part of a prompt."""
    content = "\ufeffA fox\n\n  \nOne day\u2028still one day\n".encode()
    (tmp_path / "prompts.txt").write_bytes(content)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    for source in (tmp_path / "prompts.txt", "-"):
        status, stdout, _ = stage.main("--prompts-file", source, "--json", *GREEDY)
        assert status == 0
        prompts = [json.loads(line)["prompt"] for line in stdout.split("\n")[:-1]]
        assert prompts == ["A fox", "One day\u2028still one day"]


def test_texts_and_the_stage_need_no_flag():
    more = ("--max-tokens", 3, "--temperature", 0, "--quiet")
    expected = STAGES[1].main("--prompts", "A fox", "One day", *more)
    assert expected[0] == 0
    assert run("run", "A fox", "One day", *more) == run("run", "A fox", *more, "--prompts", "One day") == expected
    assert run("run", "--stage", 2, "A fox", "One day", *more) == expected


def test_a_directory_as_model(stage, small_checkpoint):
    assert "vocabulary of 211" in stage.refusal("--model", small_checkpoint, "--prompts", "Once upon a time")
    assert stage.main("--model", TINYTALES, *FOX)[:2] == (0, f"{text_of(stage, 'A fox')}\n")


def test_stats_say_what_a_run_waited_for():
    assert "time to first token" in STAGES[0].main(*FOX, "--stats")[2]


# --- Traces -----------------------------------------------------------------------------------------------------------


def test_trace_file(stage, tmp_path):
    path = tmp_path / "trace.jsonl"
    status, _, stderr = stage.main("--prompts", "A fox", "One day", "--trace", path, *GREEDY)
    assert status == 0, stderr
    header, *steps = [json.loads(line) for line in path.read_text().splitlines()]
    assert (header["trace"], header["stage"], header["model"]) == (4, stage.directory, "tinytales")
    assert [step["step"] for step in steps] == list(range(len(steps)))
    assert {row["request_id"] for step in steps for row in step["rows"]} == {"0", "1"}
    for torn in (False, True):  # an earlier one is replaced, also if a full disk, say, has torn it
        if torn:
            path.write_text(path.read_text()[:10])
        assert stage.main(*FOX, "--trace", path, "--max-tokens", 3)[0] == 0
        assert len(path.read_text().splitlines()) == 1 + 3 + 1  # the header, and the engine at rest


@posix
def test_a_trace_replaces_nothing_else(tmp_path):
    """Neither the prompts, by whatever path, nor any other file. What can't be written is an error before the work."""
    contents = {"prompts.txt": "A fox\n", "notes": "my notes\n", "json": '{"step": 1}\n'}
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "sub").mkdir()
    os.link(tmp_path / "prompts.txt", tmp_path / "hard")
    os.symlink("prompts.txt", tmp_path / "link")
    os.mkfifo(tmp_path / "fifo")
    places = ("prompts.txt", "hard", "link", "sub/../prompts.txt", "notes", "json", ".", "fifo")
    for place in [*(f"{tmp_path}/{place}" for place in places), "/dev/full", "/dev/stdout", "/no/such/directory/trace"]:
        said = ONE.refusal("--prompts-file", tmp_path / "prompts.txt", "--trace", place, *GREEDY)
        assert "--trace" in said or place in said
        assert {name: (tmp_path / name).read_text() for name in contents} == contents


def test_a_trace_that_fails_costs_no_results(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device", "trace")

    monkeypatch.setattr(cli, "write_trace", full)
    status, stdout, stderr = ONE.main(*FOX, "--trace", tmp_path / "trace", "--quiet")
    assert (status, stdout) == (2, f"{text_of(ONE, 'A fox')}\n")
    assert stderr.endswith("error: trace: No space left on device\n")
    assert stderr.count("\n") == 1


# --- Streams that are closed or full ----------------------------------------------------------------------------------


def test_closed_stdout_and_stderr():
    """`>&-` and `2>&-`: the work is the same."""
    stdout = io.StringIO()
    with contextlib.redirect_stdout(None):
        assert cli.main(ONE, FOX, "x") == 0
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(None):
        assert cli.main(ONE, FOX, "x") == 0
        assert cli.main(ONE, ["--prompts", "A fox", "--top-p", "2"], "x") == 2
    assert stdout.getvalue() == f"{text_of(ONE, 'A fox')}\n"


@posix
def test_a_stdout_that_takes_no_more():
    """A full disk is one line and status 2, a reader that leaves (`| head -1`) is no error of ours; and nothing is left
    that the interpreter would try to write again when it exits."""
    reader, pipe = os.pipe()
    os.close(reader)
    cases = [(pipe, 1, "")]
    if os.path.exists("/dev/full"):
        cases += [("/dev/full", 2, "x: error: stdout: No space left on device\n")]
    for place, status, says in cases:
        stderr = io.StringIO()
        with open(place, "w") as stdout, contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
            assert cli.main(ONE, ["--prompts", "A", "B", "--max-tokens", "2", "--quiet"], "x") == status
        assert stderr.getvalue() == says


# --- Ctrl-C -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", [pytest.param(STAGES[0], marks=pytest.mark.soak), ONE], ids=str)
def test_control_c_keeps_what_is_finished(stage, tmp_path):
    """The first prompt leaves room for a few tokens, the second for hundreds: the first result is there."""
    prompts, at_once = ["word " * 390, "endless"], "2" if stage.number >= 4 else "1"
    process = stage.start(
        "--prompts", *prompts, "--json", "--ignore-eos", "--max-tokens", "400", "--max-model-len", "400",
        "--trace", tmp_path / "trace", *(["--max-num-seqs", at_once] if stage.has_option("max_num_seqs") else []),
    )  # fmt: skip
    first = process.stdout.readline()  # the engine is at the second prompt now
    process.send_signal(signal.SIGINT)
    rest, stderr = process.communicate(timeout=600)
    assert process.returncode == 130, stderr
    assert (json.loads(first)["prompt"], rest) == (prompts[0], "")
    assert "interrupted" in stderr
    assert "Traceback" not in stderr
    assert len((tmp_path / "trace").read_text().splitlines()) >= 10


@pytest.mark.covers("__main__.py", "__init__.py")
@pytest.mark.parametrize("stage", STAGES, ids=str)
def test_control_c_while_torch_is_loaded(stage):
    """Loading takes a second or two. A stand-in for torch interrupts when it is imported."""
    code = (
        "import runpy, sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'torch':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "sys.argv[1:] = ['--prompts', 'A fox']\n"
        f"runpy.run_module({stage.command!r}, run_name='__main__')\n"
    )
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert (process.returncode, process.stdout, process.stderr) == (130, "", "interrupted\n")


@pytest.fixture
def interruptible():
    """After a Ctrl-C, later ones are ignored; undo that for the tests that follow."""
    yield
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_a_second_control_c_loses_nothing(monkeypatch, tmp_path, interruptible):
    """It comes while the finished results are printed."""
    shown = []

    def complete(*_):
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            signal.raise_signal(signal.SIGINT)
            shown.append("everything")

    monkeypatch.setattr(cli, "complete", complete)
    status, _, stderr = ONE.main("--prompts", "A fox", "B", "--trace", tmp_path / "trace")
    assert (status, shown) == (130, ["everything"])
    assert "\ninterrupted\n0 requests, 0 tokens" in stderr


def test_control_c_while_the_trace_is_written(monkeypatch, tmp_path, interruptible):
    monkeypatch.setattr(cli, "write_trace", lambda *_: signal.raise_signal(signal.SIGINT))
    said = ONE.main(*FOX, "--trace", tmp_path / "trace", "--quiet")
    assert said == (130, f"{text_of(ONE, 'A fox')}\n", "interrupted\n")


def test_main_gives_control_c_back():
    before = signal.getsignal(signal.SIGINT)
    ONE.main("--prompts", "A", "--max-tokens", "1")
    assert signal.getsignal(signal.SIGINT) is before


# --- Flags reach what they are for ------------------------------------------------------------------------------------


@pytest.fixture
def seen(monkeypatch):
    """What is to be completed, which nothing completes: (engine, prompts, params) of each run."""
    runs = []
    monkeypatch.setattr(cli, "complete", lambda llm, prompts, params, *rest: runs.append((llm, prompts, params)) or [])
    return runs


def test_every_sampling_flag_reaches_the_sampler(stage, seen):
    """Every field of SamplingParams, and every field that becomes a logits processor, reaches the engine."""
    flags = dict(
        temperature=0.5, top_k=3, top_p=0.9, min_p=0.1, repetition_penalty=1.1, presence_penalty=0.2,
        frequency_penalty=0.3, max_tokens=9, min_tokens=2, logprobs=4,
    )  # fmt: skip
    arguments = [x for name, value in flags.items() for x in (f"--{name.replace('_', '-')}", str(value))]
    others = (
        "--stop x y --stop-token-ids 5 6 --logit-bias 5=-2.5 7=1 --logit-bias 8=3 --bad-words ugly"
        " --allowed-token-ids 5 9 --ignore-eos --seed 3 --include-stop-str-in-output --no-skip-special-tokens"
        " --truncate-prompt-tokens 3 --json"
    )
    status, _, stderr = stage.main("--prompts", "a", "b c d e f", *arguments, *others.split())
    assert status == 0, stderr
    ((llm, prompts, params),) = seen
    flags |= dict(include_stop_str_in_output=True, skip_special_tokens=False, ignore_eos=True)
    bias, allowed, words = params.logits_processors
    plain = stage.SamplingParams(**flags, stop=["x", "y"], stop_token_ids=[5, 6])
    assert replace(params, logits_processors=()) == plain
    assert (bias.ids.token_ids, bias.values) == ([5, 7, 8], [-2.5, 1, 3])
    assert allowed.ids.token_ids == [5, 9]
    assert words.words == [llm.get_tokenizer().encode(text) for text in ("ugly", " ugly")]
    assert prompts == ["a", llm.get_tokenizer().encode(" d e f")]
    assert llm.engine.config.seed == 3


@pytest.mark.covers("beam_search.py")
@pytest.mark.parametrize("stage", STAGES[4:], ids=str)
def test_beams(stage):
    """The command line gives the results of `beam_search`."""
    outputs = stage.engine().beam_search(["A fox", "Once"], 3, 6)
    command = ["--prompts", "A fox", "Once", "--max-tokens", "6", "--quiet", "--beam-width", "3"]
    status, stdout, stderr = stage.main(*command, "--json")
    assert status == 0, stderr
    expected = [json.loads(json.dumps(as_dict(one)))["outputs"] for one in outputs]
    assert [json.loads(line)["outputs"] for line in stdout.splitlines()] == expected
    assert stage.main(*command)[1].count("completion 3: ") == 2


# --- A mistake is one line --------------------------------------------------------------------------------------------

FILES = "run --input none --output out --model nonesuch"  # which are checked after the flags
MISTAKES = [
    # No text, or a bad one
    ("run", "no prompts: add one in quotes, such as 'Once upon a time', or --interactive to type"),
    ("run --stage 3", "no prompts: add one in quotes, such as 'Once upon a time'; --help shows"),
    ("run --prompts-file /no/such/file", "/no/such/file: No such file"),
    ("run --prompts-file ''", "directory" if os.name == "posix" else ""),
    ("run --prompts-file binary", "binary is not UTF-8: invalid start byte at byte 5"),
    ("run --quiet a LONG", "prompt 2: 2001 tokens leave no room for an output"),
    ("run --quiet a LONG", "; --truncate-prompt-tokens N keeps only the last N tokens"),
    # No such flag: what is meant, or which stage has it
    ("run --prompt a", "instead of --prompt use --prompts"),
    ("run a --max-new-tokens 3 --do-sample", "instead of --max-new-tokens use --max-tokens; instead of --do-sample"),
    ("run a --max_tokens 3", "--max_tokens is written --max-tokens"),
    ("run a --temprature 3", "is --temperature meant?"),
    ("run a --temp 3", "unrecognized arguments: --temp"),  # no abbreviations
    ("run a --best-of 3", "unrecognized arguments: --best-of"),
    ("run --stage 1 --input a", "unrecognized arguments: --input; --input exists in "),
    ("run --stage 3 --interactive", "--interactive; --interactive exists in stages 4, 5, 6, 7, 8"),
    ("run --stage 3 --score text", "unrecognized arguments: --score; --score exists in "),
    ("run --stage 6 --num-drafts 2", "unrecognized arguments: --num-drafts; --num-drafts"),
    ("serve tinytales gpt2", "unrecognized arguments: gpt2"),
    # A value that it does not take
    ("run --stage 9 a", "argument --stage: invalid choice: 9"),
    ("run a --max-tokens many", "argument --max-tokens: must be a whole number, got 'many'"),
    ("run a --top-p x", "argument --top-p: must be a number, got 'x'"),
    ("run a --top-p 2", "top_p must be a number from 0 to 1, got 2.0"),
    ("run a --logit-bias x", "argument --logit-bias: must be ID=X, such as 50256=-100, got"),
    ("run a --structured-outputs '[]'", "argument --structured-outputs: must be a JSON object"),
    ("run a --beam-width 0", "--beam-width must be a whole number"),
    ("run a b --quiet --beam-width 4000 --max-tokens 6", "beam_width must be a whole number"),
    ("run a --device cuda:42", "cuda:42"),
    ("run a --model nonesuch", "nonesuch"),
    ("run a --model 'no\nsuch'", "no such"),
    ("serve --port many", "argument --port: must be a whole number, got 'many'"),
    ("serve nonesuch --port 0", "model "),
    ("serve nonesuch --model gpt2", "give one model, not both nonesuch and --model gpt2"),
    ("run a --max-tokens ': invalid x value: '", "argument --max-tokens: must be a whole number, got"),
    # A flag that would have no effect. (All of `run`: test_flags.py)
    ("run --input a", "--input needs --output"),
    ("run --output a", "--output needs --input"),
    ("run a --stats --quiet", "--stats can't be combined with --quiet"),
    ("run --stage 1 a --logprobs 1", "--logprobs needs --json"),
    ("run --stage 5 a --logprobs 1", "--logprobs needs --json or --input"),
    ("run --stage 1 a --include-stop-str-in-output", "--include-stop-str-in-output needs --stop"),
    ("run a --top-k 3 --beam-width 2", "--top-k can't be combined with --beam-width"),
    ("run a --temperature 0.5 --beam-width 2", "--temperature can't be combined with --beam-width"),
    ("run a --stage 8 --speculate off --num-drafts 3", "--num-drafts can't be combined with --speculate"),
    (f"{FILES} --score text --temperature 0", "--temperature can't be combined with --score"),
    (f"{FILES} --ray auto --choices a --n 2", "--n can't be combined with --choices"),
    (f"{FILES} --ray auto --stats", "--stats can't be combined with --ray"),
    (f"{FILES} --stage 2 --json", "--json can't be combined with --input, whose results are JSON anyway"),
    ("serve --log-prompts --quiet", "--log-prompts can't be combined with --quiet"),
    ("serve --speculate off --num-drafts 2", "--num-drafts can't be combined with"),
    ("score scores --reference answer", "--reference is for lines with a text or with choices"),
    ("convert folder new --gelu tanh", "--gelu is for a training program's file"),
    ("convert folder new --n-head 2", "--n-head is for a training program's file, but folder is a directory"),
    ("convert nonesuch new", "there is no file or directory nonesuch"),
    ("push scores --folder f --public", "--public needs --repo"),
]


@pytest.mark.parametrize(("line", "says"), MISTAKES, ids=[f"{line.partition(chr(10))[0]}" for line, _ in MISTAKES])
def test_a_mistake_is_one_line(line, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("binary").write_bytes(b"fine\n\xff\xfe")
    Path("scores").write_text('{"id": 1, "scores": [{"logprob": -1, "num_tokens": 1}], "answer": 0}\n')
    Path("folder").mkdir()
    words = ["b " * 2000 if word == "LONG" else word for word in shlex.split(line)]
    said = refusal(run_command, *words)
    assert said.startswith(f"stagewise {words[0]}: error: ")
    assert says in said


def test_numbers_that_are_none():
    """They are refused before the model is loaded: what is no number, or can't be used by a sampler."""
    parser = cli.build_parser(ONE, "x")
    flags = {kind: [one.option_strings[0] for one in parser._actions if one.type is kind] for kind in (int, float)}
    cases = [(flag, value) for flag in flags[int] for value in ("inf", "nan", "1.5", "1e3", "", "9" * 5000)]
    cases += [(flag, value) for flag in flags[float] for value in ("many", "", "1,5")]
    for flag, value in cases:
        assert flag in refusal(parser.parse_args, "a", f"{flag}={value}")
    for flag in flags[float]:
        name = flag[2:].replace("-", "_")
        for value in ("inf", "-inf", "nan", "1e400") if hasattr(ONE.SamplingParams(), name) else ():
            assert name in ONE.refusal("a", f"{flag}={value}", "--model", "nonesuch")


def test_more_memory_than_there_is(stage):
    for flag in ("kv_cache_bytes", "num_blocks"):
        for value in (10**15, 10**40) if stage.has_option(flag) else ():
            said = stage.refusal("--prompts", "a", f"--{flag.replace('_', '-')}", value, "--quiet")
            assert re.search(r"the KV cache would take [\d,]+ bytes of memory, but only [\d,]+ are free", said)


def test_a_lack_of_memory_is_one_line(capsys):
    """Of torch, too, which raises no kind of error for it on a CPU; other errors of its are bugs."""
    words = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried\nto"
    for error in (MemoryError(), RuntimeError(words), RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")):
        ended = exits.Outcome("x")
        with ended:
            raise error
        said = capsys.readouterr().err
        assert (ended.status, said.count("\n"), "emory" in said) == (2, 1, True)
    with pytest.raises(RuntimeError, match="shape"), exits.Outcome("x"):
        raise RuntimeError("the shape is wrong")


READS = ["run --prompts-file", "serve --chat-template", "replay -o page.html", "score", "report"]
WRITES = ["run a --trace", "score file --per-line", "run --input file --prompt-template a --output"]
PATHS = {"none": "No such file", "file/x.jsonl": "Not a directory", "folder": "Is a directory"}


@pytest.mark.parametrize(
    ("line", "path", "says"),
    [
        *((line, path, says) for path, says in PATHS.items() for line in (*READS, "push --folder none")),
        *((line, path, "") for line in WRITES for path in ("file/x.jsonl", *["folder"] * ("--input" not in line))),
        ("exercises start 1 --directory", "file/x.jsonl", "exists"),
    ],
)
def test_a_path_that_is_wrong_is_a_sentence(line, path, says, tmp_path, monkeypatch):
    """In every command: the file and the reason, without the system's number of it; told before the work."""
    monkeypatch.chdir(tmp_path)
    Path("file").write_text('{"text": "a"}\n')
    Path("folder").mkdir()
    name, *words = line.split()
    main = {"report": report.main, "exercises": exercises.main}.get(name, run_command)
    status, _, stderr = outcome(main, *([name] if main is run_command else []), *words, path)
    said = stderr.splitlines()[-1]
    assert (status, path.split("/")[0] in said, says in said, "Errno" in said) == (2, True, True, False), said


# --- Help -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def from_outside(monkeypatch, capsys):
    """A function: `python -m stagewise` or `python -m stage03` with these arguments, in this process: exit status,
    stdout, stderr."""

    def from_outside(name, *arguments):
        monkeypatch.setattr(sys, "argv", [str(Path(command.__file__)), *arguments])
        with pytest.raises(SystemExit) as ended:
            command.main() if name == "stagewise" else command.run_stage(int(name[5:]))
        return ended.value.code, *capsys.readouterr()

    return from_outside


def test_help_lists_the_commands(from_outside):
    status, stdout, _ = from_outside("stagewise", "--help")
    assert status == 0
    assert from_outside("stagewise") == (0, stdout, "")
    assert all(f"\n  {name} " in stdout for name in command.COMMANDS)
    commands = "run, serve, replay, convert, score, push"
    for word, hint in (("dance", f"there are {commands}"), ("sereve", "is serve meant?")):
        said = f"python -m stagewise: error: there is no command {word!r}; {hint}\n"
        assert from_outside("stagewise", word) == (2, "", said)


@pytest.mark.parametrize("words", [
    ["stage03", "--help"],
    ["stage08", "--no-such-flag"],
    ["stage05", "--prompts", "a", "--input", "b", "--output", "c"],
    ["stagewise", "run", "--stage", "6", "--tempersture", "1"],
    ["stagewise", "serve", "--help"],
    ["stagewise", "score", "--help"],
], ids=" ".join)  # fmt: skip
def test_flags_need_no_torch(words):
    """Importing it takes seconds: help and wrong flags come at once."""
    code = (
        "import runpy, sys\n"
        "del sys.argv[0]\n"
        "try:\n    runpy.run_module(sys.argv[0], run_name='__main__')\n"
        "except SystemExit as end:\n    print(end.code, {'torch', 'numpy'} & sys.modules.keys())"
    )
    process = [sys.executable, "-c", code, *words]
    done = subprocess.run(process, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == f"{0 if '--help' in words else 2} set()", done.stderr


@pytest.mark.parametrize("name", [*command.COMMANDS, *(stage.command for stage in DESCRIBED.values())])
def test_help_is_for_who_types(name, from_outside):
    """It begins with what to type and what to read next; every flag is explained, in words of the command line."""
    is_command = name in command.COMMANDS
    status, help, stderr = from_outside(*(["stagewise", name] if is_command else [name]), "--help")
    assert (status, stderr) == (0, "")
    assert help.startswith(f"usage: python -m {'stagewise ' * is_command}{name} ")
    top = "\n".join(help.splitlines()[:13])
    assert len(re.findall(rf"^    (?:python -m )?{'stagewise ' * is_command}{name} ", top, re.MULTILINE)) >= 2
    pages = re.findall(r"[\w/]+\.md", re.search(r"^Read next: (.*)", top, re.MULTILINE)[1])
    assert pages
    assert all((ROOT / page).is_file() for page in pages)
    assert ".py" not in help
    options = {option.name for option in DESCRIBED[EXACT].options if "_" in option.name}
    assert not options & {*re.findall(r"\w+", help)}
    assert not re.findall(r"^  -\S*(?: \S+)*\n(?! {6})", help, re.MULTILINE)  # a flag without a text


def test_the_version(from_outside):
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)[1]
    assert stagewise.__version__ == version
    assert from_outside("stagewise", "--version") == (0, f"stagewise {version}\n", "")
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {version}\n" in cited
    changes = (ROOT / "docs" / "CHANGELOG.md").read_text(encoding="utf-8")
    (released,) = re.findall(rf"^## \[{version}\] \((.*)\)$", changes, re.MULTILINE)
    dates = re.findall(r"^date-released: (.*)$", cited, re.MULTILINE)
    assert dates == ([] if released == "unreleased" else [released])


def test_garbage_is_collected_once_the_model_is_loaded():
    """Before, only torch's objects are there, which stay: looking through them would slow down the first token."""
    code = """
import gc, sys
from stagewise import cli
from stagewise.__main__ import run_stage
told = []
def complete(*arguments):
    told.append((gc.isenabled(), gc.get_freeze_count() > 100_000))
    return []
cli.complete = complete
sys.argv = ["stage03", "--prompts", "A fox", "--quiet"]
try:
    run_stage(3)
finally:
    print(told, gc.isenabled())
"""
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.stdout == "[(True, True)] True\n", ended.stderr


def test_who_has_no_model_of_its_own_collects_too(tmp_path, monkeypatch):
    """The driver of a cluster, which may run for hours."""
    (tmp_path / "in.jsonl").write_text('{"prompt": "a"}')
    driver = SimpleNamespace(run=lambda *_: 7 if gc.isenabled() else 8)
    monkeypatch.setitem(sys.modules, "stagewise.scaleout.cli", driver)
    argv = ["--input", str(tmp_path / "in.jsonl"), "--output", str(tmp_path / "out.jsonl"), "--ray", "auto"]
    with put_off():
        assert cli.main(DESCRIBED[5], argv, "x") == 7
    gc.unfreeze()
