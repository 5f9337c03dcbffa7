"""A flag that is given is used, or there is an error that names it: each flag of `run` in each mode; sizes in bytes.
(Other mistakes: test_command_line.py.)"""

import argparse
from dataclasses import fields

import pytest

from bench import throughput
from stagewise.flags import PROMPTS, build_parser, check_flags, given_flags, pairs_of
from stagewise.serving.cli import server_parser
from tests.adapter import STAGES

LIMITS = ["max_tokens", "min_tokens", "stop", "stop_token_ids", "ignore_eos", "n", "truncate_prompt_tokens"]
FILTERS = ["temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"]
PROCESSED = ["logit_bias", "bad_words", "allowed_token_ids", "structured_outputs"]
SAMPLING = [*LIMITS, *FILTERS, *PROCESSED, "skip_special_tokens"]
LOGPROBS, BEAMS = ["logprobs", "prompt_logprobs"], ["beam_width"]
INPUT = ["input", "output", "resume", "prompt_column", "prompt_template", "id_column", "chat_template"]
SCORING = ["choices_column", "choices", "score"]
RAY = ["ray", "actors", "cpus_per_actor", "gpus_per_actor"]
OF_FILES = [*LOGPROBS, *SCORING, "include_stop_str_in_output"]
DRAWING = ["seed", "speculate", "num_drafts"]
ALWAYS = ["stage", "quiet"]
SHOWN = [*ALWAYS, "trace", "stats"]
OF_BEAMS = [*BEAMS, *SHOWN, "json", "max_tokens"]
OF_SCORES = [*INPUT, *SCORING, *SHOWN, "json", "ray"]
IN_OUT = ["--input", "a", "--output", "b"]
CLUSTER = [*IN_OUT, "--ray", "auto"]
# A mode: what asks for it, and which flags it has a use for, besides those of the engine that do not draw.
MODES = {
    "prompts": (["A fox"], [*PROMPTS, *SAMPLING, *DRAWING, *SHOWN, "json", "beam_width"]),
    "prompts as JSON": (["A fox", "--json"], [*PROMPTS, *SAMPLING, *LOGPROBS, *DRAWING, *SHOWN, "json", "beam_width"]),
    "beams": (["A fox", "--beam-width", "2"], [*PROMPTS, *OF_BEAMS]),
    "interactive": (["--interactive"], [*(set(SAMPLING) - {"n"}), *DRAWING, *SHOWN, "interactive"]),
    "a form": (
        ["A fox", "--structured-outputs", '{"choice": ["a"]}'],
        [*PROMPTS, *(set(SAMPLING) - {"stop", "stop_token_ids"}), *DRAWING, *SHOWN, "json"],
    ),
    "files": (IN_OUT, [*INPUT, *SAMPLING, *OF_FILES, *DRAWING, *SHOWN, "json", "ray"]),
    "scores": ([*IN_OUT, "--score", "text"], OF_SCORES),
    "choices": ([*IN_OUT, "--choices", "yes", "no"], OF_SCORES),
    "a column of choices": ([*IN_OUT, "--choices-column", "c"], OF_SCORES),
    "a cluster": (CLUSTER, [*INPUT, *SAMPLING, *OF_FILES, *DRAWING, *RAY, *ALWAYS]),
    "scores by a cluster": ([*CLUSTER, "--score", "text"], [*INPUT, *SCORING, *RAY, *ALWAYS]),
}


def arguments_of(action):
    """How a flag is given, with a value that it takes."""
    if not action.option_strings:
        return ["A hen"]
    if action.nargs == 0:
        return [action.option_strings[-1]]
    values = {"stage": "8", "n": "2", "logit_bias": "3=1", "structured_outputs": '{"choice": ["a"]}'}
    return [action.option_strings[0], values.get(action.dest, str((action.choices or ["1"])[0]))]


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


@pytest.mark.parametrize(
    ("text", "value"),
    [("8GB", 8 * 10**9), ("8G", 8 * 10**9), ("512MiB", 2**29), ("1.5 kb", 1500), ("2ti", 2**41), ("123456", 123456)],
)
def test_sizes_in_bytes(text, value):
    """With a unit or without, wherever there is such a flag."""
    stage = STAGES[4]
    for parser in (build_parser(stage, "run"), server_parser(stage, "serve")):
        assert parser.parse_args(["--kv-cache-bytes", text]).kv_cache_bytes == value
    assert server_parser(stage, "serve").parse_args(["--max-body-bytes", text]).max_body_bytes == value
    assert throughput.OPTIONS["--kv-cache-bytes"]["type"](text) == value


def test_sizes_that_are_none():
    for text in ("8XB", "GB", "1.5", "1..5GB", "8 GB more", "9" * 400 + "GB", ""):
        said = STAGES[4].refusal("--prompts", "a", "--kv-cache-bytes", text)
        assert "argument --kv-cache-bytes: must be a size, such as 8GB or 512MiB, got " in said


def test_a_directory_takes_the_output_of_a_single_input_too(tmp_path):
    args = argparse.Namespace(input=["data/a.jsonl"], output=[tmp_path])
    assert pairs_of(args) == [("data/a.jsonl", tmp_path / "a.jsonl")]
