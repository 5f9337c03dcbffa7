"""The command line: what goes to stdout, what to stderr, exit statuses, Ctrl-C."""

import contextlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from stagewise import cli
from stagewise.results import as_dict
from tests.adapter import BATCHED, ROOT, STAGES, TINYTALES, random_prompts

NUMBERS = (1, 5)  # of the stages that this runs on, see conftest.py

# What takes a process is tested in `make test` on an engine that has nearly all options.
in_a_process = pytest.mark.parametrize(
    "stage", [pytest.param(STAGES[0], marks=pytest.mark.soak), STAGES[4]], ids=lambda stage: stage.directory
)
ONE = STAGES[4]  # where the stage only has to be there
GREEDY = ["--temperature", "0", "--max-tokens", "12"]


def expected_text(stage, prompt, max_tokens=12):
    params = stage.SamplingParams(temperature=0, max_tokens=max_tokens)
    return stage.engine().generate([prompt], params)[0].outputs[0].text


def test_one_prompt(stage):
    status, stdout, stderr = stage.main("--prompts", "A fox", *GREEDY)
    assert status == 0, stderr
    assert stdout == f"A fox{expected_text(stage, 'A fox')}\n"
    assert "1 request, 12 tokens" in stderr
    assert "tok/s" in stderr
    assert stage.main("--prompts", "A fox", "One day", "--quiet", *GREEDY)[2] == ""


@pytest.mark.parametrize("stage", [STAGES[0], STAGES[1], STAGES[4]], ids=str)
def test_several_prompts_come_in_order(stage):
    prompts = ["A fox", "Once upon a time, there was a bear who", "One day"]
    status, stdout, stderr = stage.main("--prompts", *prompts, *GREEDY)
    assert status == 0, stderr
    blocks = [
        f"--- {i} of 3: stopped at --max-tokens, 12 tokens\n{prompt}{expected_text(stage, prompt)}\n\n"
        for i, prompt in enumerate(prompts, start=1)
    ]
    assert stdout == "".join(blocks)


def test_json(stage):
    status, stdout, _ = stage.main("--prompts", "A fox", "Ünïcödé 👍", "--json", "--logprobs", "2", *GREEDY)
    assert status == 0
    results = [json.loads(line) for line in stdout.split("\n")[:-1]]
    assert [result["prompt"] for result in results] == ["A fox", "Ünïcödé 👍"]
    assert "👍" in stdout
    completion = results[0]["outputs"][0]
    assert completion["text"] == expected_text(stage, "A fox")
    assert completion["finish_reason"] == "length"
    assert len(completion["logprobs"]) == len(completion["token_ids"]) == 12
    chosen = [
        step[str(token)]["logprob"] for step, token in zip(completion["logprobs"], completion["token_ids"], strict=True)
    ]
    assert completion["cumulative_logprob"] == pytest.approx(sum(chosen))
    assert results[0]["metrics"]["ttft"] > 0


def test_prompts_file(stage, tmp_path):
    """Blank lines are left out, U+2028 does not end a line, and a byte order mark is not part of a prompt."""
    (tmp_path / "prompts.txt").write_text("\ufeffA fox\n\n  \nOne day\u2028still one day\n", encoding="utf-8")
    status, stdout, _ = stage.main("--prompts-file", tmp_path / "prompts.txt", "--json", *GREEDY)
    assert status == 0
    assert [json.loads(line)["prompt"] for line in stdout.split("\n")[:-1]] == ["A fox", "One day\u2028still one day"]


def test_trace_file(stage, tmp_path):
    status, _, stderr = stage.main("--prompts", "A fox", "One day", "--trace", tmp_path / "trace.jsonl", *GREEDY)
    assert status == 0, stderr
    header, *steps = [json.loads(line) for line in (tmp_path / "trace.jsonl").read_text().splitlines()]
    assert (header["trace"], header["stage"], header["model"]) == (4, stage.directory, "tinytales")
    assert [step["step"] for step in steps] == list(range(len(steps)))
    assert {row["request_id"] for step in steps for row in step["rows"]} == {"0", "1"}
    for max_tokens in (9, 3, 5, 5):  # an earlier one is replaced, also if a full disk, say, has torn it
        flags = ["--temperature", "0", "--max-tokens", max_tokens, "--quiet"]
        assert stage.main("--prompts", "A fox", "--trace", tmp_path / "trace.jsonl", *flags)[0] == 0
        text = (tmp_path / "trace.jsonl").read_text()
        assert len(text.splitlines()) == 1 + max_tokens + 1  # the header, and the engine at rest
        (tmp_path / "trace.jsonl").write_text(text[:10] if max_tokens == 5 else text)


@pytest.mark.skipif(os.name != "posix", reason="links and devices as POSIX has them")
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


def test_a_trace_that_fails_costs_no_results(stage, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device", "trace")

    monkeypatch.setattr(cli, "write_trace", full)
    status, stdout, stderr = stage.main("--prompts", "A fox", "--trace", tmp_path / "trace", *GREEDY)
    assert (status, stdout) == (2, f"A fox{expected_text(stage, 'A fox')}\n")
    assert stderr.endswith("error: trace: No space left on device\n")
    assert stderr.count("\n") == 2  # and the line that says where the model runs


def test_every_sampling_flag_reaches_the_sampler(stage, monkeypatch):
    """A value for each field of SamplingParams, and for those that become processors, and all of them arrive."""
    seen = []
    monkeypatch.setattr(cli, "complete", lambda llm, prompts, params, *rest: seen.append((llm, prompts, params)) or [])
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


def test_bad_input_is_one_clear_line(stage, tmp_path):
    (tmp_path / "binary").write_bytes(b"fine\n\xff\xfe")
    for arguments, says in (
        ([], "no prompts"),
        (["--prompts-file", "/no/such/file"], "/no/such/file"),
        (["--prompts-file", str(ROOT)], str(ROOT)),
        (["--prompts-file", ""], "directory" if os.name == "posix" else "error"),
        (["--prompts-file", tmp_path / "binary"], "binary is not UTF-8: invalid start byte at byte 5"),
        (["--prompt", "a"], "instead of --prompt use --prompts"),
        *(
            (["--prompts", "a", *more], says)
            for more, says in (
                (["--top-p", "2"], "top_p must be a number from 0 to 1, got 2.0"),
                (["--model", "nonesuch"], "nonesuch"),
                (["--model", "no\nsuch"], "no such"),
                (["--device", "cuda:42"], "cuda:42"),
                (["word " * 3000], "prompt 2: 3001 tokens leave no room for an output"),
                (["word " * 3000], "; --truncate-prompt-tokens N keeps only the last N tokens"),
                (["--max-tokens", "many"], "--max-tokens"),
                (["--best-of", "3"], "--best-of"),
                (["--temp", "3"], "--temp"),
                (["--max-new-tokens", "3", "--do-sample"], "instead of --max-new-tokens use --max-tokens; instead of "),
                (["--max_tokens", "3"], "--max_tokens is written --max-tokens"),
                (["--temprature", "3"], "is --temperature meant?"),
                (["--max-len", "3"], "--max-len"),
                (["--stop-on-eos"], "--stop-on-eos is not needed: an output ends at the end token"),
            )
        ),
    ):
        assert says in stage.refusal(*arguments)


def test_numbers_that_are_none(stage):
    """An error in one line, before the model is loaded, for what is not a number or can't be used by a sampler."""
    actions = cli.build_parser(stage, "x")._actions
    flags = {kind: [a.option_strings[0] for a in actions if a.type is kind] for kind in (int, float)}
    params = [f"--{name.replace('_', '-')}" for name in stage.SamplingParams.__dataclass_fields__]
    cases = [(flag, value) for flag in flags[int] for value in ("inf", "nan", "1.5", "1e3", "", "9" * 5000)]
    cases += [(flag, value) for flag in flags[float] for value in ("many", "", "1,5")]
    cases += [(flag, value) for flag in flags[float] if flag in params for value in ("inf", "-inf", "nan", "1e400")]
    for flag, value in cases:
        said = stage.refusal("--prompts", "a", f"{flag}={value}")
        assert flag in said or flag[2:].replace("-", "_") in said


def test_more_memory_than_there_is(stage):
    for flag in ("kv_cache_bytes", "num_blocks"):
        for value in (10**15, 10**40) if stage.has_option(flag) else ():
            said = stage.refusal("--prompts", "a", f"--{flag.replace('_', '-')}", value, "--quiet")
            assert re.search(r"the KV cache would take [\d,]+ bytes of memory, but only [\d,]+ are free", said)


@in_a_process
def test_control_c_keeps_what_is_finished(stage, tmp_path):
    """The first prompt leaves room for a few tokens, the second for hundreds: the first result is there."""
    prompts, at_once = ["word " * 390, "endless"], "2" if stage.number >= 4 else "1"  # or the longer output goes first
    process = stage.start(
        "--prompts", *prompts, "--json", "--ignore-eos", "--max-tokens", "400", "--max-model-len", "400",
        "--trace", tmp_path / "trace", *(["--max-num-seqs", at_once] if stage.has_option("max_num_seqs") else []),
    )  # fmt: skip
    first = process.stdout.readline()  # the engine is at the second prompt now
    process.send_signal(signal.SIGINT)
    rest, stderr = process.communicate(timeout=600)
    assert process.returncode == 130, stderr
    assert json.loads(first)["prompt"] == prompts[0]
    assert rest == ""
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


def test_a_second_control_c_loses_nothing(stage, monkeypatch, tmp_path, interruptible):
    """It comes while the finished results are printed."""
    shown = []

    def complete(*_):
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            signal.raise_signal(signal.SIGINT)
            shown.append("everything")

    monkeypatch.setattr(cli, "complete", complete)
    status, _, stderr = stage.main("--prompts", "A fox", "B", "--trace", tmp_path / "trace")
    assert (status, shown) == (130, ["everything"])
    assert "\ninterrupted\n0 requests, 0 tokens" in stderr


def test_control_c_while_the_trace_is_written(stage, monkeypatch, tmp_path, interruptible):
    monkeypatch.setattr(cli, "write_trace", lambda *_: signal.raise_signal(signal.SIGINT))
    status, stdout, stderr = stage.main("--prompts", "A fox", "--trace", tmp_path / "trace", "--quiet", *GREEDY)
    assert (status, stdout, stderr) == (130, f"A fox{expected_text(stage, 'A fox')}\n", "interrupted\n")


def test_main_gives_control_c_back(stage):
    before = signal.getsignal(signal.SIGINT)
    stage.main("--prompts", "A", "--max-tokens", "1")
    assert signal.getsignal(signal.SIGINT) is before


def test_closed_stdout_and_stderr(stage):
    """`>&-` and `2>&-`: without stdout for the results, no work is done; without stderr, the work is the same."""
    stderr, stdout = io.StringIO(), io.StringIO()
    arguments = ["--prompts", "A fox", *GREEDY]
    with contextlib.redirect_stdout(None), contextlib.redirect_stderr(stderr):
        assert cli.main(stage, arguments, "x") == 2
    assert stderr.getvalue().endswith("error: stdout is closed, so the results have nowhere to go\n")
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(None):
        assert cli.main(stage, arguments, "x") == 0
        assert cli.main(stage, ["--prompts", "A fox", "--top-p", "2"], "x") == 2
    assert stdout.getvalue() == f"A fox{expected_text(stage, 'A fox')}\n"


@pytest.mark.skipif(os.name != "posix", reason="pipes and devices as POSIX has them")
def test_a_stdout_that_takes_no_more(stage):
    """A full disk is one line and status 2, a reader that leaves (`| head -1`) is no error of ours; and nothing is left
    that the interpreter would try to write again when it exits."""
    reader, pipe = os.pipe()
    os.close(reader)
    cases = [(pipe, 1, "")]
    if os.path.exists("/dev/full"):
        cases += [("/dev/full", 2, f"python -m {stage.command}: error: stdout: No space left on device\n")]
    for place, status, says in cases:
        stderr = io.StringIO()
        with open(place, "w") as stdout, contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
            arguments = ["--prompts", "A", "B", "--max-tokens", "2", "--quiet"]
            assert cli.main(stage, arguments, f"python -m {stage.command}") == status
        assert stderr.getvalue() == says


def test_one_prompt_on_a_terminal_streams(stage):
    """Piece by piece, not all at once."""
    pieces = []

    class Screen(io.StringIO):
        def isatty(self):
            return True

        def write(self, text):
            pieces.append(text)
            return super().write(text)

    with contextlib.redirect_stdout(Screen()) as screen:
        assert cli.main(stage, ["--prompts", "A fox", "--quiet", "--ignore-eos", "--max-tokens", "40"], "x") == 0
    assert len(pieces) > 20
    assert screen.getvalue().startswith("A fox")
    assert len(screen.getvalue()) > 80


def test_help_names_every_flag(stage):
    status, stdout, _ = stage.main("--help")
    assert status == 0
    contract = "prompts prompts-file model dtype device max-tokens temperature top-k top-p min-p seed stop ignore-eos logprobs json trace quiet"  # noqa: E501
    flags = contract.split() + (["input", "output", "resume", "max-num-seqs"] if stage.number > 1 else [])
    flags += ["no-sort"] if stage.has_option("sort_by_length") else []
    flags += ["max-num-batched-tokens", "policy", "interactive"] if stage.number > 3 else []
    for flag in flags:
        assert f"--{flag}" in stdout


def test_the_models_own_defaults(tmp_path, monkeypatch):
    """A flag applies them; other flags take precedence over them."""
    seen = []
    monkeypatch.setattr(cli, "complete", lambda llm, prompts, params, *rest: seen.append(params) or [])
    shutil.copytree(TINYTALES, tmp_path / "model")
    path = tmp_path / "model" / "generation_config.json"
    path.write_text('{"temperature": 0.25, "top_k": 9, "max_new_tokens": 7, "eos_token_id": 50256}')
    command = ["--prompts", "a", "b", "--model", tmp_path / "model"]
    for flags in (["--generation-config"], ["--generation-config", "--top-k", "3"], []):
        assert ONE.main(*command, *flags)[0] == 0
    assert [(p.temperature, p.top_k, p.max_tokens) for p in seen] == [(0.25, 9, 7), (0.25, 3, 7), (0.8, 0, 256)]
    path.write_text('{"temperature": 0.5, "do_sample": false, "num_beams": 1, "min_new_tokens": 2}')
    assert ONE.main(*command, "--generation-config")[0] == 0
    assert (seen[-1].temperature, seen[-1].min_tokens) == (0, 2)
    refused = dict(no_repeat_ngram_size=3, suppress_tokens=[7], bad_words_ids=[[7]], num_beams=4, stop_strings="x")
    refused |= dict(max_length=50, a_key_of_tomorrow=1)
    for content, says in (
        ('{"top_k": ', " is not valid JSON"),
        ('{"top_p": 7}', ": top_p must be"),
        *((json.dumps({k: v}), f": {k} is {v!r}, which --generation-config") for k, v in refused.items()),
    ):
        path.write_text(content)
        assert f"generation_config.json{says}" in ONE.refusal(*command, "--generation-config")


@pytest.mark.covers("beam_search.py")
@pytest.mark.parametrize("stage", STAGES[4:], ids=str)
def test_beams(stage):
    """The command line gives the results of `beam_search`, and refuses flags that a search has no use for."""
    outputs, params = (
        stage.engine().beam_search(["A fox", "Once"], 3, 6, 0.5, "never"),
        stage.SamplingParams(max_tokens=6),
    )
    command = ["--prompts", "A fox", "Once", "--max-tokens", "6", "--quiet", "--beam-width", "3"]
    status, stdout, stderr = stage.main(*command, "--length-penalty", "0.5", "--early-stopping", "never", "--json")
    assert status == 0, stderr
    results = [json.loads(line) for line in stdout.splitlines()]
    assert [r["outputs"] for r in results] == [json.loads(json.dumps(as_dict(o, params)))["outputs"] for o in outputs]
    assert stage.main(*command)[1].count("completion 3: ") == 2
    for flags, says in (
        (["--top-k", "3"], "--top-k can't be combined with --beam-width"),
        (["--logit-bias", "3=1"], "--logit-bias can't be combined with --beam-width"),
        (["--n", "2"], "--n can't be combined with --beam-width"),
        (["--temperature", "0.5"], "--temperature can't be combined with --beam-width"),
        (["--beam-width", "0"], "--beam-width must be a whole number"),
        (["--beam-width", "4000"], "beam_width must be a whole number"),
    ):
        assert says in stage.refusal(*command, *flags)


def test_a_directory_as_model(stage, small_checkpoint):
    assert "vocabulary of 211" in stage.refusal("--model", small_checkpoint, "--prompts", "Once upon a time")
    status, stdout, _ = stage.main("--model", TINYTALES, "--prompts", "A fox", *GREEDY)
    assert (status, stdout) == (0, f"A fox{expected_text(stage, 'A fox')}\n")


@pytest.mark.parametrize("batched_stage", [s for s in BATCHED if s.has_option("sort_by_length")], ids=str)
def test_no_sort_shows_why(batched_stage, small_checkpoint):
    """Batched in order, mixed lengths cost padding; sorted, much less; the tokens are the same."""
    prompts = random_prompts(211, [30, 2, 29, 3, 31, 1, 28, 2])
    padding, tokens = [], []
    for sort in (True, False):
        llm = batched_stage.LLM(small_checkpoint, device="cpu", max_num_seqs=4, sort_by_length=sort)
        outputs = llm.generate(prompts, batched_stage.SamplingParams(temperature=0, max_tokens=4, ignore_eos=True))
        tokens.append([output.outputs[0].token_ids for output in outputs])
        padding.append(llm.stats.num_padding_tokens)
    assert tokens[0] == tokens[1]
    assert padding[0] * 5 < padding[1]
