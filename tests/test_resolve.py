"""Directories in any layout, on the command line and around the engines: converted once, into the user's cache."""

import contextlib
import errno
import json
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from transformers import GPT2Tokenizer

from stagewise import convert, resolve
from stagewise.layout import write_config
from stagewise.resolve import readable, readable_model
from stagewise.strict_json import read_json
from tests.adapter import ROOT, STAGES, TINYTALES

FOUR, SEVEN = STAGES[3], STAGES[6]


@pytest.fixture(scope="module", autouse=True)
def compiled():
    """Load the kernels first: in a test's empty cache they would be compiled again."""
    with contextlib.suppress(RuntimeError):  # there is no compiler
        SEVEN.part("kernels.c_kernel").load_kernel()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "stagewise" / "models"


@pytest.fixture
def source(small_checkpoint, tmp_path):
    """A model as people have it: not in the layout, since another program wrote its configuration."""
    source = Path(shutil.copytree(small_checkpoint, tmp_path / "my [v2] model"))
    config = {key: value for key, value in read_json(source / "config.json").items() if key != "stagewise"}
    (source / "config.json").write_text(repr(config).replace("'", '"'))
    return source


def greedy(stage, model):
    params = stage.SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    return stage.LLM(model, device="cpu").generate([[5, 7]], params)[0].outputs[0].token_ids


def test_a_directory_is_converted_once(cache, source, small_checkpoint):
    said = []
    directory = readable_model(str(source), say=said.append)
    assert said == [f"{source} is converted into {directory}"]
    assert Path(directory).parent == cache
    assert greedy(STAGES[0], directory) == greedy(STAGES[0], str(small_checkpoint))
    assert (Path(directory) / "model.safetensors").resolve() == (source / "model.safetensors").resolve()  # a link
    assert readable_model(str(source), say=said.append) == directory
    assert len(said) == 1
    assert readable_model(directory, say=said.append) == directory
    assert [readable_model(name) for name in ("tinytales", "gpt2", str(TINYTALES))] == [
        "tinytales",
        "gpt2",
        str(TINYTALES),
    ]
    assert readable_model("nonesuch") == "nonesuch"  # a stage says that there is none


def test_lines_name_a_model_as_the_command_line_does(cache, tmp_path):
    """In OpenAI's lines; and a chat's template is the one that its files have, not the converted one's."""
    source = Path(shutil.copytree(TINYTALES, tmp_path / "tales"))
    template = {"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"}
    (source / "tokenizer_config.json").write_text(json.dumps(template))
    chat = {"model": str(source), "messages": [{"role": "user", "content": "One day"}], "max_tokens": 3}
    lines = [
        {"custom_id": "chat", "method": "POST", "url": "/v1/chat/completions", "body": chat},
        {"custom_id": "name", "method": "POST", "url": "/v1/completions", "body": {"prompt": "One", "max_tokens": 3}},
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    status, _, stderr = FOUR.main(
        *("--model", source, "--input", tmp_path / "in.jsonl", "--output", tmp_path / "out.jsonl", "--quiet")
    )
    assert status == 0, stderr
    answers = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert {answer["response"]["body"]["model"] for answer in answers} == {str(source)}


def test_a_resumed_run_has_the_same_chat_template(cache, tmp_path):
    """Also if it is a tokenizer's that was given: what is converted need not have it."""
    tokenizer, source, output = Path(shutil.copytree(TINYTALES, tmp_path / "t")), tmp_path / "in", tmp_path / "out"
    (tokenizer / "chat_template.jinja").write_text("{{ messages[0].content }}")
    source.write_text(json.dumps({"prompt": [{"role": "user", "content": "One day"}]}) + "\n")
    command = ("--tokenizer", tokenizer, "--input", source, "--output", output, "--max-tokens", 3, "--quiet")
    assert FOUR.main(*command)[0] == 0
    assert FOUR.main(*command, "--resume")[0] == 0
    (tokenizer / "chat_template.jinja").write_text("Well, {{ messages[0].content }}")
    assert "--resume: chat_template differs from" in FOUR.refusal(*command, "--resume")


def test_a_changed_source_is_converted_again(cache, source):
    """Whichever file has changed. What was made of it before is removed."""
    made = [readable_model(str(source))]
    tensors = load_file(source / "model.safetensors")
    tensors["transformer.ln_f.bias"] += 1
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    made.append(readable_model(str(source)))
    (source / "generation_config.json").write_text('{"eos_token_id": 9}')
    made.append(readable_model(str(source)))
    tokens = STAGES[0].part("weights").read_config(made[-1], Path(made[-1]), "auto")["eos_token_ids"]
    os.utime(source / "merges.txt", (5, 5))
    made.append(readable_model(str(source)))
    assert len(set(made)) == 4
    assert tokens == (9,)
    assert [str(path) for path in cache.iterdir()] == [made[-1]]


def test_a_changed_program_converts_again(cache, source, tmp_path, monkeypatch):
    made = readable_model(str(source))
    for path in Path(resolve.__file__).parent.glob("*.py"):
        shutil.copy(path, tmp_path)
    (tmp_path / "vocabulary.py").write_text("")
    monkeypatch.setattr(resolve, "__file__", str(tmp_path / "resolve.py"))
    assert readable_model(str(source)) != made


def test_two_at_once(cache, source):
    with ThreadPoolExecutor(4) as pool:
        made = set(pool.map(readable_model, [str(source)] * 8))
    assert [str(path) for path in cache.iterdir()] == [*made]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_an_unfinished_conversion_leaves_nothing(cache, source, monkeypatch, error):
    def fail(*_):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(convert, "write_config", fail)  # the last file
        with pytest.raises(type(error)):
            readable_model(str(source))
    assert list(cache.iterdir()) == []
    assert greedy(STAGES[0], readable_model(str(source)))


def test_a_cache_that_can_not_be_written(source, monkeypatch):
    """A directory that lives as long as the process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(source / "config.json"))  # a file
    directory = Path(readable_model(str(source)))
    assert source not in directory.parents
    assert greedy(STAGES[0], str(directory))
    assert readable_model(str(source)) == str(directory)


def test_tokenizers_and_drafts(cache, source, draft_checkpoint, tmp_path):
    """Another tokenizer becomes part of the model; a draft model needs none."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "merges.txt").write_text("#version: 0.2\nO n\nc e\nOn ce\n")
    options = readable({"model": str(source), "tokenizer": str(own)})
    assert options["tokenizer"] is None
    assert STAGES[0].LLM(**options, device="cpu").get_tokenizer().encode("Once") == [258]
    with pytest.raises(OSError, match="nonesuch"):
        readable({"model": str(source), "tokenizer": "nonesuch"})
    draft = Path(shutil.copytree(draft_checkpoint, tmp_path / "draft"))
    for name in ("merges.txt", "vocab.json"):
        (draft / name).unlink()
    with pytest.raises(ValueError, match=r"speculate: .*draft is not in the layout that a stage reads; `stagewise"):
        SEVEN.LLM("tinytales", speculate=str(draft), device="cpu")
    options = readable({"model": str(source), "speculate": str(draft), "load_format": "auto"})
    llm = SEVEN.LLM(**options, device="cpu")
    params = SEVEN.SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    assert llm.generate([[5, 7]], params)[0].outputs[0].token_ids == greedy(STAGES[0], options["model"])


def test_the_command_line_takes_any_directory(cache, source, small_checkpoint):
    """One line says that it is converted, the first time; --quiet says nothing. A stage alone refuses it."""
    command = ["--prompts", "x", "--temperature", "0", "--max-tokens", "5", "--model"]
    expected = STAGES[2].main(*command, small_checkpoint)[1]
    status, stdout, stderr = STAGES[2].main(*command, source)
    first, *others = stderr.splitlines()
    assert (status, stdout) == (0, expected)
    assert re.fullmatch(rf"{re.escape(str(source))} is converted into {cache}/my \[v2\] model-\w+-\w+", first)
    assert len(others) == 2
    assert STAGES[2].main(*command, source)[2].count("\n") == 2
    os.utime(source / "config.json", (5, 5))
    assert STAGES[2].main(*command, source, "--quiet") == (0, expected, "")
    with pytest.raises(ValueError, match="is not in the layout that a stage reads; `stagewise convert"):
        STAGES[2].LLM(str(source))
    (source / "model.safetensors").unlink()
    says = f"{source} has neither model.safetensors nor pytorch_model.bin: fetch or save the model again"
    assert says in STAGES[2].refusal(*command, source)


def test_a_model_without_a_tokenizer(cache, source):
    """One with as many tokens as GPT-2 gets GPT-2's, and the line says so; another is refused."""
    for name in ("merges.txt", "vocab.json"):
        (source / name).unlink()
    with pytest.raises(ValueError, match=r"v2\] model has no tokenizer, and the model's 211 tokens are not GPT-2's"):
        readable_model(str(source))
    bundled = Path(shutil.copytree(TINYTALES, source / "bundled"))
    for name in ("merges.txt", "vocab.json"):
        (bundled / name).unlink()
    said = []
    directory = readable_model(str(bundled), say=said.append)
    assert said == [f"{bundled} is converted into {directory}; there is no tokenizer in {bundled}: using GPT-2's"]
    assert STAGES[0].tokenizer(Path(directory)).encode("Once upon") == [7454, 2402]
    assert GPT2Tokenizer.from_pretrained(directory)("Once upon").input_ids == [7454, 2402]


def test_the_lines_of_using_make_a_model(cache, tmp_path, monkeypatch):
    """The three lines of USING.md, as they stand there, but for the name of the model: nothing is fetched here."""
    text = (ROOT / "docs" / "USING.md").read_text(encoding="utf-8")
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "save_pretrained" in block)
    assert len([line for line in code.splitlines() if line]) == 3
    monkeypatch.chdir(tmp_path)
    exec(code.replace('"openai-community/gpt2"', repr(str(TINYTALES))), {})
    command = ["--prompts", "Once upon a time", "--temperature", "0", "--max-tokens", "5", "--quiet", "--model"]
    assert STAGES[0].main(*command, "my-gpt2") == STAGES[0].main(*command, "tinytales")


def test_a_mark_is_made_again(source):
    write_config(source, read_json(source / "config.json"))
    assert STAGES[0].is_converted(source)
