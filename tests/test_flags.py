"""A flag that is given is used, or there is an error that names it: each flag of the command line in each mode."""

from dataclasses import fields

import pytest

from bench import report, throughput
from exercises import __main__ as exercises
from stagewise import convert, push, score
from stagewise.__main__ import run as run_command
from stagewise.flags import PROMPTS, build_parser, check_flags, given_flags
from stagewise.serving.__main__ import server_parser
from tests.adapter import STAGES, outcome, refusal

LIMITS = ["max_tokens", "min_tokens", "stop", "stop_token_ids", "ignore_eos", "n", "truncate_prompt_tokens"]
FILTERS = ["temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"]
PROCESSED = ["logit_bias", "bad_words", "allowed_token_ids", "structured_outputs"]
SAMPLING = [*LIMITS, *FILTERS, *PROCESSED, "skip_special_tokens", "generation_config"]
LOGPROBS, BEAMS = ["logprobs", "prompt_logprobs"], ["beam_width", "length_penalty", "early_stopping"]
INPUT = ["input", "output", "resume", "prompt_column", "prompt_template", "id_column", "strict", "chat_template"]
SCORING = ["choices_column", "choices", "score"]
RAY = ["ray", "actors", "cpus_per_actor", "gpus_per_actor"]
OF_FILES = [*LOGPROBS, *SCORING, "beam_width", "include_stop_str_in_output"]
DRAWING = ["seed", "speculate", "num_drafts"]
ALWAYS = ["stage", "config", "quiet"]
# A mode: what asks for it, and which flags it has a use for, besides those of the engine that do not draw.
MODES = {
    "prompts": (["A fox"], [*PROMPTS, *SAMPLING, *DRAWING, *ALWAYS, "json", "trace", "stats", "beam_width"]),
    "prompts as JSON": (
        ["--json", "--prompts", "A fox"],
        [*PROMPTS, *SAMPLING, *LOGPROBS, *DRAWING, *ALWAYS, "json", "trace", "stats", "beam_width"],
    ),
    "beams": (
        ["A fox", "--beam-width", "2"],
        [*PROMPTS, *BEAMS, *ALWAYS, "max_tokens", "temperature", "generation_config", "json", "trace", "stats"],
    ),
    "interactive": (["--interactive"], [*(set(SAMPLING) - {"n"}), *DRAWING, *ALWAYS, "interactive", "trace", "stats"]),
    "a form": (
        ["A fox", "--structured-outputs", '{"choice": ["a"]}'],
        [*PROMPTS, *(set(SAMPLING) - {"stop", "stop_token_ids"}), *DRAWING, *ALWAYS, "json", "trace", "stats"],
    ),
    "files": (
        ["--input", "a", "--output", "b"],
        [*INPUT, *SAMPLING, *OF_FILES, *DRAWING, *ALWAYS, "json", "trace", "stats", "ray"],
    ),
    "beams of files": (
        ["--input", "a", "--output", "b", "--beam-width", "2"],
        [*INPUT, *BEAMS, *ALWAYS, "max_tokens", "temperature", "generation_config", "json", "trace", "stats", "ray"],
    ),
    "scores": (
        ["--input", "a", "--output", "b", "--score", "text"],
        [*INPUT, *ALWAYS, *SCORING, "json", "trace", "stats", "ray"],
    ),
    "choices": (
        ["--input", "a", "--output", "b", "--choices", "yes", "no"],
        [*INPUT, *ALWAYS, *SCORING, "json", "trace", "stats", "ray"],
    ),
    "a column of choices": (
        ["--input", "a", "--output", "b", "--choices-column", "c"],
        [*INPUT, *ALWAYS, *SCORING, "json", "trace", "stats", "ray"],
    ),
    "a cluster": (
        ["--input", "a", "--output", "b", "--ray", "auto"],
        [*(set(INPUT) - {"strict"}), *SAMPLING, *OF_FILES, *DRAWING, *RAY, *ALWAYS],
    ),
    "scores by a cluster": (
        ["--input", "a", "--output", "b", "--ray", "auto", "--score", "text"],
        [*(set(INPUT) - {"strict"}), *SCORING, *RAY, *ALWAYS],
    ),
}


def run(argv):
    return run_command(argv[0], argv[1:], f"stagewise {argv[0]}")


def arguments_of(action):
    """How a flag is given, with a value that it takes."""
    if not action.option_strings:
        return ["A hen"]
    if action.nargs == 0:
        return [action.option_strings[-1]]
    values = {"config": None, "stage": "8", "n": "2", "logit_bias": "3=1", "structured_outputs": '{"choice": ["a"]}'}
    value = values.get(action.dest, str((action.choices or ["1"])[0]))
    return [] if value is None else [action.option_strings[0], value]


@pytest.mark.parametrize("mode", MODES)
def test_a_flag_is_used_or_refused(mode):
    base, used = MODES[mode]
    stage = STAGES[-1]
    parser = build_parser(stage, "run", picks_stage=True)
    options = {option.name for option in fields(stage.EngineConfig)} - {*DRAWING}
    accepted, errors = set(), {}
    for action in parser._actions:
        if action.dest == "help":
            continue
        more = arguments_of(action)
        argv = [*base, *more] if action.option_strings else [*more, *base]
        args = parser.parse_args(argv)
        try:
            check_flags(stage, args, given_flags(parser, argv))
        except ValueError as error:
            errors[action.option_strings[0] if action.option_strings else "TEXT"] = str(error)
        else:
            accepted.add(action.dest)
    assert accepted == {*used, *options}
    assert all(flag in error for flag, error in errors.items())


@pytest.mark.parametrize("mode", [["--interactive"], ["--input", "a", "--output", "b", "--score", "text"]])
def test_one_completion_is_what_everybody_gets(mode):
    """`--n 1` is the default, so it is allowed everywhere."""
    stage, argv = STAGES[-1], [*mode, "--n", "1"]
    parser = build_parser(stage, "run")
    check_flags(stage, parser.parse_args(argv), given_flags(parser, argv))


def test_flags_of_a_file_count_too(tmp_path):
    path, stage = tmp_path / "flags.toml", STAGES[-1]
    path.write_text('score = "text"\ninput = ["a"]\noutput = ["b"]\nquiet = false\nstop = []\n')
    parser = build_parser(stage, "run")
    argv = ["--config", str(path), "--", "--top-k"]
    assert given_flags(parser, argv) == {"config", "score", "input", "output"}
    argv = ["--top-k=0", *argv[:2]]
    with pytest.raises(ValueError, match="--top-k can't be combined with --score, which generates nothing"):
        check_flags(stage, parser.parse_args(argv), given_flags(parser, argv))


def test_they_are_checked_before_the_model_is_loaded(tmp_path):
    files = ["--input", tmp_path / "none", "--output", tmp_path / "out", "--model", "nonesuch"]
    for number, arguments, says in (
        (5, [*files, "--score", "text", "--temperature", "0"], "--temperature can't be combined with --score"),
        (5, [*files, "--ray", "auto", "--choices", "a", "--n", 2], "--n can't be combined with --choices"),
        (5, [*files, "--ray", "auto", "--stats"], "--stats can't be combined with --ray"),
        (8, ["a", "--speculate", "off", "--num-drafts", 3], "--num-drafts can't be combined with --speculate"),
        (2, [*files, "--json"], "--json can't be combined with --input, whose results are JSON anyway"),
        (1, ["a", "--include-stop-str-in-output"], "--include-stop-str-in-output needs --stop"),
        (1, ["a", "--logprobs", 1], "--logprobs needs --json"),
    ):
        assert f"error: {says}" in STAGES[number - 1].refusal(*arguments)


def test_flags_of_the_other_commands(tmp_path):
    lines = {
        "texts": '{"id": 1, "text": "a", "finish_reason": "stop", "answer": "a"}',
        "choices": '{"id": 1, "choices": ["a", "b"], "scores": [{"logprob": -1, "num_tokens": 1}, '
        '{"logprob": -2, "num_tokens": 1}], "answer": 0}',
        "scores": '{"id": 1, "scores": [{"logprob": -1, "num_tokens": 1}], "answer": 0}',
    }
    for name, line in lines.items():
        (tmp_path / name).write_text(line + "\n")
        reference = [] if name == "scores" else ["--reference", "answer"]
        assert outcome(score.main, tmp_path / name, *reference)[0] == 0
    (folder := tmp_path / "model").mkdir()
    for main, argv, says in (
        (score.main, [tmp_path / "scores", "--reference", "answer"], "--reference is for lines with a text or with ch"),
        (convert.main, [folder, tmp_path / "new", "--gelu", "tanh"], "--gelu is for a training program's file"),
        (
            convert.main,
            [folder, tmp_path / "new", "--n-head", "2"],
            f"--n-head is for a training program's file, but {folder} is a dir",
        ),
        (push.main, [tmp_path / "texts", "--folder", tmp_path / "f", "--public"], "--public needs --repo"),
    ):
        assert f"error: {says}" in refusal(main, *argv)


def test_a_path_that_is_wrong_is_a_sentence(tmp_path):
    """In every command: the file and the reason, without the system's number of it; told before the work."""
    (tmp_path / "file").write_text('{"text": "a"}\n')
    none, below, folder = tmp_path / "none", tmp_path / "file" / "x.jsonl", tmp_path / "folder"
    folder.mkdir()
    reads = [
        (run, ["run", "--prompts-file"], []),
        (run, ["run", "--config"], []),
        (run, ["serve", "--chat-template"], []),
        (run, ["replay"], ["-o", tmp_path / "page.html"]),
        (run, ["score"], []),
        (run, ["push"], ["--folder", none]),
        (report.main, [], []),
    ]
    writes = [
        (run, ["run", "a", "--trace"]),
        (run, ["score", tmp_path / "file", "--per-line"]),
        (run, ["run", "--input", tmp_path / "file", "--prompt-template", "a", "--output"]),
    ]
    kinds = {none: "No such file", below: "Not a directory", folder: "Is a directory"}
    cases = [
        (main, [*before, path, *after], path, says) for path, says in kinds.items() for main, before, after in reads
    ]
    cases += [(main, [*before, path], path, "") for path in (below, folder) for main, before in writes]
    cases.append((exercises.main, ["start", "1", "--directory", below], below.parent, "exists"))
    for main, arguments, path, says in cases:
        status, _, stderr = outcome(main, *arguments)
        said = stderr.splitlines()[-1]
        assert (status, path.name in said, says in said, "Errno" in said) == (2, True, True, False), (arguments, said)


@pytest.mark.parametrize(
    ("text", "value"),
    [("8GB", 8 * 10**9), ("8G", 8 * 10**9), ("512MiB", 2**29), ("1.5 kb", 1500), ("2ti", 2**41), ("123456", 123456)],
)
def test_sizes_in_bytes(tmp_path, text, value):
    """With a unit or without, on the command line and in a file of flags, wherever there is such a flag."""
    stage = STAGES[4]
    (tmp_path / "flags.toml").write_text(f'kv-cache-bytes = "{text}"\n')
    for parser in (build_parser(stage, "run"), server_parser(stage, "serve")):
        for argv in (["--kv-cache-bytes", text], ["--config", str(tmp_path / "flags.toml")]):
            assert parser.parse_args(argv).kv_cache_bytes == value
    assert server_parser(stage, "serve").parse_args(["--max-body-bytes", text]).max_body_bytes == value
    assert throughput.OPTIONS["--kv-cache-bytes"]["type"](text) == value


def test_sizes_that_are_none():
    for text in ("8XB", "GB", "1.5", "1..5GB", "8 GB more", "9" * 400 + "GB", ""):
        said = STAGES[4].refusal("--prompts", "a", "--kv-cache-bytes", text)
        assert "argument --kv-cache-bytes: must be a size, such as 8GB or 512MiB, got " in said
