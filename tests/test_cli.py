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

NUMBERS = (1, 2, 5)  # of the stages that this runs on, see conftest.py

# What takes a process of its own is tested on the first engine and on one that has nearly all options; where the stage
# only has to be there, `make test` takes the latter alone.
of_two_stages = pytest.mark.parametrize("stage", [STAGES[0], STAGES[4]], ids=lambda stage: stage.directory)
in_a_process = pytest.mark.parametrize(
    "stage", [pytest.param(STAGES[0], marks=pytest.mark.soak), STAGES[4]], ids=lambda stage: stage.directory
)
GREEDY = ["--temperature", "0", "--max-tokens", "12"]


def expected_text(stage, prompt, max_tokens=12):
    params = stage.SamplingParams(temperature=0, max_tokens=max_tokens)
    return stage.engine().generate([prompt], params)[0].outputs[0].text


@pytest.mark.covers("__main__.py")
@of_two_stages
def test_one_prompt(stage):
    status, stdout, stderr = stage.run("--prompts", "A fox", *GREEDY)
    assert status == 0, stderr
    assert stdout == f"A fox{expected_text(stage, 'A fox')}\n"
    assert "1 request, 12 tokens" in stderr
    assert "tok/s" in stderr


def test_several_prompts_come_in_order(stage):
    prompts = ["A fox", "Once upon a time, there was a bear who", "One day"]
    status, stdout, stderr = stage.main("--prompts", *prompts, *GREEDY)
    assert status == 0, stderr
    blocks = [
        f"--- {i} of 3: stopped at --max-tokens, 12 tokens\n{prompt}{expected_text(stage, prompt)}\n\n"
        for i, prompt in enumerate(prompts, start=1)
    ]
    assert stdout == "".join(blocks)


def test_quiet(stage):
    assert stage.main("--prompts", "A fox", "One day", "--quiet", *GREEDY)[2] == ""


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


def test_an_earlier_trace_is_replaced(stage, tmp_path):
    trace = tmp_path / "trace.jsonl"
    for max_tokens in (9, 3, 5):
        flags = ["--temperature", "0", "--max-tokens", max_tokens, "--quiet"]
        assert stage.main("--prompts", "A fox", "--trace", trace, *flags)[0] == 0
        assert len(trace.read_text().splitlines()) == 1 + max_tokens + 1  # the header, and the engine at rest
    trace.write_text(trace.read_text()[:10])  # torn by a full disk, say
    assert stage.main("--prompts", "A fox", "--trace", trace, *flags)[0] == 0
    assert len(trace.read_text().splitlines()) == 1 + 5 + 1


@pytest.mark.skipif(os.name != "posix", reason="links and devices as POSIX has them")
@pytest.mark.parametrize(
    "where", ["itself", "hard link", "link", "detour", "notes", "json", "directory", "fifo", "/dev/full", "/dev/stdout"]
)
def test_a_trace_replaces_nothing_else(stage, tmp_path, where):
    """Neither the prompts, by whatever path, nor any other file. What can't be written is an error before the work."""
    prompts = tmp_path / "prompts.txt"
    (tmp_path / "sub").mkdir()
    prompts.write_text("A fox\n")
    os.link(prompts, tmp_path / "hard")
    os.symlink("prompts.txt", tmp_path / "link")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "notes").write_text("my notes\n")
    (tmp_path / "json").write_text('{"step": 1}\n')
    trace = {
        "itself": prompts,
        "hard link": tmp_path / "hard",
        "detour": tmp_path / "sub" / ".." / "prompts.txt",
        "directory": tmp_path,
    }.get(where, tmp_path / where)  # fmt: skip; a device's name is absolute, and stays what it is
    status, stdout, stderr = stage.main("--prompts-file", prompts, "--trace", trace, *GREEDY)
    assert (status, stdout) == (2, "")
    assert stderr.count("\n") == 1
    assert "--trace" in stderr
    contents = [(tmp_path / name).read_text() for name in ("prompts.txt", "notes", "json")]
    assert contents == ["A fox\n", "my notes\n", '{"step": 1}\n']


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


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "no prompts"),
        (["--prompts-file", "/no/such/file"], "/no/such/file"),
        (["--prompts", "a", "--top-p", "2"], "top_p must be a number from 0 to 1, got 2.0"),
        (["--prompts", "a", "--model", "nonesuch"], "nonesuch"),
        (["--prompts", "a", "--device", "cuda:42"], "cuda:42"),
        (
            ["--prompts", "fine", "word " * 3000],
            "prompt 2: 3001 tokens leave no room for an output",
        ),
        (["--prompts", "word " * 3000], "; --truncate-prompt-tokens N keeps only the last N tokens\n"),
        (["--prompts", "a", "--trace", "/no/such/directory/trace"], "/no/such/directory/trace"),
        (["--prompts", "a", "--max-tokens", "many"], "--max-tokens"),
        (["--prompts", "a", "--best-of", "3"], "--best-of"),
        (["--prompts", "a", "--temp", "3"], "--temp"),
        (
            ["--prompts", "a", "--max-new-tokens", "3", "--do-sample"],
            "instead of --max-new-tokens use --max-tokens; instead of ",
        ),
        (["--prompts", "a", "--max_tokens", "3"], "--max_tokens is written --max-tokens"),
        (["--prompts", "a", "--temprature", "3"], "is --temperature meant?"),
        (["--prompts", "a", "--max-len", "3"], "--max-len"),
        (["--prompts", "a", "--stop-on-eos"], "--stop-on-eos is not needed: an output ends at the end token"),
        (["--prompt", "a"], "instead of --prompt use --prompts"),
        (["--prompts-file", str(ROOT)], str(ROOT)),
        (["--prompts-file", ""], "directory" if os.name == "posix" else "error"),
        (["--prompts", "a", "--model", "no\nsuch"], "no such"),
    ],
)
def test_bad_input_is_one_clear_line(stage, arguments, says):
    status, stdout, stderr = stage.main(*arguments)
    assert status == 2
    assert stdout == ""
    assert says in stderr
    assert len([line for line in stderr.splitlines() if not line.startswith("tinytales on ")]) == 1


def test_numbers_that_are_none(stage):
    """An error in one line, before the model is loaded, for what is not a number or can't be used by a sampler."""
    actions = cli.build_parser(stage, "x")._actions
    flags = {kind: [a.option_strings[0] for a in actions if a.type is kind] for kind in (int, float)}
    params = [f"--{name.replace('_', '-')}" for name in stage.SamplingParams.__dataclass_fields__]
    cases = [(flag, value) for flag in flags[int] for value in ("inf", "nan", "1.5", "1e3", "", "9" * 5000)]
    cases += [(flag, value) for flag in flags[float] for value in ("many", "", "1,5")]
    cases += [(flag, value) for flag in flags[float] if flag in params for value in ("inf", "-inf", "nan", "1e400")]
    for flag, value in cases:
        status, stdout, stderr = stage.main("--prompts", "a", f"{flag}={value}")
        assert (status, stdout, stderr.count("\n")) == (2, "", 1), (flag, value, stderr)
        assert flag in stderr or flag[2:].replace("-", "_") in stderr


@pytest.mark.parametrize("value", [10**15, 10**40])
def test_more_memory_than_there_is(stage, value):
    for flag in ("kv_cache_bytes", "num_blocks"):
        if stage.has_option(flag):
            status, stdout, stderr = stage.main("--prompts", "a", f"--{flag.replace('_', '-')}", value, "--quiet")
            assert (status, stdout, stderr.count("\n")) == (2, "", 1)
            assert re.search(r"the KV cache would take [\d,]+ bytes of memory, but only [\d,]+ are free", stderr)


def test_prompts_file_that_is_no_text(stage, tmp_path):
    (tmp_path / "prompts.txt").write_bytes(b"fine\n\xff\xfe")
    status, _, stderr = stage.main("--prompts-file", tmp_path / "prompts.txt")
    assert status == 2
    assert "prompts.txt is not UTF-8" in stderr
    assert "byte 5" in stderr


@of_two_stages
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


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
@in_a_process
def test_stdout_on_a_full_disk(stage):
    """One line and status 2; the interpreter prints nothing more when it exits."""
    command = [sys.executable, "-m", stage.command, "--prompts", "A", "B", "--max-tokens", "2", "--quiet"]
    with open("/dev/full", "wb") as full:
        result = subprocess.run(
            command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, timeout=600, check=False
        )
    assert result.returncode == 2
    assert result.stderr == f"python -m {stage.command}: error: stdout: No space left on device\n"


@in_a_process
def test_a_reader_that_leaves(stage):
    """`python -m stage01 … | head -1` ends without a traceback."""
    process = stage.start("--prompts", *["A fox"] * 100, "--max-tokens", "8", "--quiet")
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=600) != 0
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()


@in_a_process
@pytest.mark.skipif(os.name != "posix", reason="pseudo-terminals are POSIX")
def test_one_prompt_on_a_terminal_streams(stage):
    import pty

    leader, follower = pty.openpty()
    options = ["--prompts", "A fox", "--quiet", "--ignore-eos", "--max-tokens", "200"]
    command = [sys.executable, "-m", stage.command, *options]
    process = subprocess.Popen(command, cwd=ROOT, stdout=follower, stderr=subprocess.PIPE)
    os.close(follower)
    chunks = []
    while True:
        try:
            chunk = os.read(leader, 4096)
        except OSError:  # the other end has closed
            break
        if not chunk:
            break
        chunks.append(chunk)
    process.communicate(timeout=600)
    os.close(leader)
    assert process.returncode == 0
    assert len(chunks) > 20  # piece by piece, not all at once
    text = b"".join(chunks).decode().replace("\r\n", "\n")
    assert text.startswith("A fox")
    assert len(text) > 400


def test_help_names_every_flag(stage):
    status, stdout, _ = stage.main("--help")
    assert status == 0
    contract = "prompts prompts-file model dtype device max-tokens temperature top-k top-p min-p seed stop ignore-eos logprobs json trace quiet"  # noqa: E501
    flags = contract.split() + (["input", "output", "resume", "max-num-seqs"] if stage.number > 1 else [])
    flags += ["no-sort"] if stage.has_option("sort_by_length") else []
    flags += ["max-num-batched-tokens", "policy", "interactive"] if stage.number > 3 else []
    for flag in flags:
        assert f"--{flag}" in stdout


def test_the_models_own_defaults(stage, tmp_path, monkeypatch):
    """A flag applies them; other flags take precedence over them."""
    seen = []
    monkeypatch.setattr(cli, "complete", lambda llm, prompts, params, *rest: seen.append(params) or [])
    shutil.copytree(TINYTALES, tmp_path / "model")
    path = tmp_path / "model" / "generation_config.json"
    path.write_text('{"temperature": 0.25, "top_k": 9, "max_new_tokens": 7, "eos_token_id": 50256}')
    command = ["--prompts", "a", "b", "--model", tmp_path / "model"]
    for flags in (["--generation-config"], ["--generation-config", "--top-k", "3"], []):
        assert stage.main(*command, *flags)[0] == 0
    assert [(p.temperature, p.top_k, p.max_tokens) for p in seen] == [(0.25, 9, 7), (0.25, 3, 7), (0.8, 0, 256)]
    path.write_text('{"temperature": 0.5, "do_sample": false, "num_beams": 1, "min_new_tokens": 2}')
    assert stage.main(*command, "--generation-config")[0] == 0
    assert (seen[-1].temperature, seen[-1].min_tokens) == (0, 2)
    path.write_text('{"top_k": ')
    status, _, stderr = stage.main(*command, "--generation-config")
    assert (status, stderr.count("\n")) == (2, 1)
    assert "generation_config.json is not valid JSON" in stderr
    refused = dict(no_repeat_ngram_size=3, suppress_tokens=[7], bad_words_ids=[[7]], num_beams=4, stop_strings="x")
    for key, value in {**refused, "max_length": 50, "a_key_of_tomorrow": 1}.items():
        path.write_text(json.dumps({key: value}))
        status, _, stderr = stage.main(*command, "--generation-config")
        assert (status, f"generation_config.json: {key} is {value!r}, which --generation-config" in stderr) == (2, True)
    path.write_text('{"top_p": 7}')
    assert "generation_config.json: top_p must be" in stage.main(*command, "--generation-config")[2]


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
        status, stdout, stderr = stage.main(*command, *flags)
        assert (status, stdout) == (2, "")
        assert says in stderr


def test_a_directory_as_model(stage, small_checkpoint):
    status, _, stderr = stage.main("--model", small_checkpoint, "--prompts", "Once upon a time")
    assert status == 2
    assert "vocabulary of 211" in stderr
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
