"""Files as people have them: every format and compression, one error about a file before a model is loaded, and
common datasets in their published shapes, completed and scored by the commands that USING.md shows."""

import gzip
import io
import json
import math
import re
import shlex
import shutil
import sys
from datetime import timedelta
from statistics import mean

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import GPT2LMHeadModel, GPT2Tokenizer

from stagewise import score
from stagewise.dataset import Columns, check_columns, read_dataset
from tests.adapter import ROOT, STAGES
from tests.test_batch_file import QUICK, read_results

LAST = STAGES[4]
ROWS = [
    {"prompt": "A fox, “red”", "answer": "1"},
    {"prompt": "One\tday", "answer": "2"},
    {"prompt": "Once", "answer": ""},
]


def lines(rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def table(rows, delimiter):
    def quoted(text):
        return '"' + text.replace('"', '""') + '"'

    return "".join(delimiter.join(map(quoted, row)) + "\r\n" for row in [rows[0], *(row.values() for row in rows)])


def parquet(rows):
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), file)
    return file.getvalue()


TEXTS = {
    "in.jsonl": lines(ROWS),
    "in.json": json.dumps(ROWS, indent=1),
    "array.jsonl": json.dumps(ROWS),
    "lines.json": lines(ROWS),
    "object.json": json.dumps({"version": 1, "data": ROWS, "tags": ["a"]}, indent=1),
    "in.csv": table(ROWS, ","),
    "in.tsv": table(ROWS, "\t"),
    "unknown": lines(ROWS),
}


@pytest.mark.parametrize("name", [*TEXTS, "in.parquet"])
def test_every_format_in_every_packing_and_encoding(tmp_path, name):
    """The same rows. What a packed file holds is clear from its first bytes, so its name may lie."""
    contents = {"": parquet(ROWS)} if name == "in.parquet" else {}
    for encoding in ("utf-8", "utf-8-sig") if name in TEXTS else ():
        contents[encoding] = TEXTS[name].encode(encoding)
    for plain in contents.values():
        for packed, ending in ((plain, ""), (gzip.compress(plain), ".gz"), (gzip.compress(plain), "")):
            path = tmp_path / f"{name}{ending}"
            path.write_bytes(packed)
            assert [json.loads(row) for _, row in read_dataset(str(path)).rows] == ROWS, (name, ending)


JSONL = lines(ROWS).encode()
SPOILED = {
    "in.jsonl": ("question,answer\n1,2\n", "is not JSON lines (line 1: not JSON: Expecting value at column 1); names "),
    "list.jsonl": ('"a"\n"b"\n', "is not JSON lines (line 1 is a JSON str, not an object)"),
    "notes.md": ("# Notes\n", "or .parquet, perhaps with .gz; --prompts-file completes the lines of a text"),
    "wide.jsonl": (lines(ROWS).encode("utf-16"), "is not JSON lines (line 1: "),
    "messages.jsonl": (lines([{"messages": []}]), "has no column 'prompt': name another with --prompt-column"),
    "numbers.jsonl": (lines([{"prompt": 5}, {"prompt": {}}]), "no line can be run; line 1: prompt must be a string"),
    "gsm8k.jsonl": (lines([{"question": "1 + 1?", "answer": "2"}]), "-prompt-template; it has 'question', 'answer'"),
    "in.json": ('[{"prompt": "a"},', "is not a JSON array: "),
    "twice.json": ('[{"prompt": "a", "prompt": "b"}]', "the key 'prompt' appears twice"),
    "several.json": ('{"train": [{"prompt": "a"}], "test": [{"prompt": "a"}]}', "has several lists (train, test)"),
    "in.csv": ("prompt,n\na,1,2\n", "the row that ends in line 2 has 3 fields, the header 2"),
    "quote.csv": ('prompt\n"a\n', "can't be read as a table: unexpected end of data"),
    "names.csv": ("a,a\n1,2\n", "two columns are named 'a' in its first line, which has the columns' names"),
    "headless.csv": ("A fox,red\nA hen,blue\n", "it has 'A fox', 'red' (its first line; if these are values, put the"),
    "latin.csv": ("prompt\né\n".encode("latin-1"), "is not UTF-8: invalid continuation byte at byte 7; convert it"),
    "in.parquet": (b"PAR1", "can't be read as parquet"),
    "time.parquet": (parquet([{"took": timedelta(1)}]), "JSON can't represent a value of type timedelta; leave that "),
    "in.gz": (gzip.compress(JSONL)[:-9], "can't be decompressed: "),
}


@pytest.mark.parametrize("name", SPOILED)
def test_one_error_about_a_file_before_a_model_is_loaded(tmp_path, name):
    """And no output is left, because of which the next try would be refused."""
    content, says = SPOILED[name]
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    output = tmp_path / "out.jsonl"
    said = LAST.refusal("--input", tmp_path / name, "--output", output, "--model", "nonesuch")
    assert says in said
    assert name in said
    assert not output.exists()


@pytest.mark.parametrize("prompt", [["--prompt-column", "q"], ["--prompt-template", "{q}"]])
def test_an_error_has_the_id_of_its_line(tmp_path, prompt):
    """Whatever else is wrong: no prompt, a null in its place, no choices, two fields that get one name."""
    rows = [{"uid": "a", "q": "A fox", "c": ["x"]}, {"uid": "b", "c": ["x"]}, {"uid": "c", "q": None, "c": ["x"]}]
    rows += [{"uid": "d", "q": "A hen", "c": None}, {"uid": "e", "q": "A", "c": ["x"], "text": 1, "input_text": 2}]
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(lines(rows))
    command = ["--input", source, "--output", output, "--id-column", "uid", "--choices-column", "c", "--quiet"]
    assert LAST.main(*command, *prompt)[0] == 1
    assert {result["id"]: "error" in result for result in read_results(output)} == {
        "a": False, "b": True, "c": True, "d": True, "e": True,
    }  # fmt: skip


def test_columns_that_are_not_there(tmp_path, monkeypatch):
    (tmp_path / "in.jsonl").write_text(lines(ROWS))
    command = ["--input", tmp_path / "in.jsonl", "--output", tmp_path / "out.jsonl", "--model", "nonesuch"]
    said = LAST.refusal(*command, "--prompt-column", "text")
    assert said.endswith("has no column 'text', which --prompt-column names; it has 'prompt', 'answer'")
    assert "has no column 'uid'" in LAST.refusal(*command, "--id-column", "uid")
    (tmp_path / "in.jsonl").write_bytes(parquet(ROWS))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert 'parquet needs pyarrow: pip install "stagewise[parquet]"' in LAST.refusal(*command)


@pytest.mark.parametrize("rows", [[{"n": 1}] * 3 + [{"prompt": "a"}], []], ids=["null at first", "no rows"])
def test_a_column_need_not_be_in_the_first_rows(tmp_path, rows):
    (tmp_path / "in.jsonl").write_text(lines(rows))
    check_columns(read_dataset(str(tmp_path / "in.jsonl")), Columns())


def test_templates_and_columns_that_can_not_be():
    for fields, says in (
        (dict(template="{", prompt="prompt"), "--prompt-template: "),
        (dict(template="{}"), "write a field as {name}"),
        (dict(template="{a:3}"), "write a field as {name}"),
        (dict(template="{a}", prompt="b"), "either --prompt-column or --prompt-template"),
        (dict(choices="a", score="text"), "either --choices-column, or --choices, or --score"),
    ):
        with pytest.raises(ValueError, match=re.escape(says)):
            Columns(**fields)
    columns = Columns(template="{{{a.b.1}}} {c} {d}")
    assert columns.prompt_of({"a": {"b": [1, "x"]}, "c": None, "d": [1]}) == "{x}  [1]"
    with pytest.raises(ValueError, match=r"it has no 'a.b.1', which --prompt-template names"):
        columns.prompt_of({"a": {"b": [1]}})
    assert Columns(prompt="a.b").prompt_of({"a.b": "a name with a dot", "a": {"b": "other"}}) == "a name with a dot"


def test_what_a_line_carries_and_does_not_use_is_told(tmp_path):
    (tmp_path / "in.jsonl").write_text('{"prompt": "a", "max_tokens": 5, "do_sample": true, "text": "x"}\n')
    status, _, stderr = LAST.main("--input", tmp_path / "in.jsonl", "--output", tmp_path / "out.jsonl", *QUICK[:2])
    assert status == 0
    place = 'put a line\'s own parameters into its "sampling"; parameters of all lines are flags'
    assert f"warning: these fields are carried through but not used: do_sample, max_tokens; {place}\n" in stderr
    assert "are renamed: text -> input_text\n" in stderr
    (tmp_path / "in.jsonl").write_text('{"prompt": "a fox", "sampling": {"top_k": 5}}\n')
    status, _, stderr = LAST.main("--input", tmp_path / "in.jsonl", "--output", tmp_path / "s", "--score", "text")
    assert status == 0
    assert "not used: sampling; scoring draws nothing\n" in stderr
    (result,) = read_results(tmp_path / "out.jsonl")
    assert (result["max_tokens"], len(result["token_ids"])) == (5, 8)


def test_an_input_from_stdin(tmp_path, monkeypatch):
    output, content = tmp_path / "out.jsonl", lines([{"prompt": "A fox"}, {"prompt": "A hen"}]).encode()
    for flags in ([], ["--resume"]):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        assert LAST.main("--input", "-", "--output", output, *QUICK, *flags)[0] == 0
        assert len(read_results(output)) == 2
        output.write_bytes(output.read_bytes()[:20])
    monkeypatch.setattr(sys, "stdin", None)
    output.unlink()
    assert LAST.main("--input", "-", "--output", output, *QUICK)[:2] == (0, "")  # `<&-`: no lines


# --- Datasets of the field ------------------------------------------------------------------------------------------

HELLASWAG = [
    dict(ind=4, activity_label="Walking", ctx_a="A fox walks.", ctx_b="he", ctx="A fox walks. he", label="1",
         endings=["flies to the moon.", "goes home.", "is a lantern.", "sings to it."], split="val"),
    dict(ind=5, activity_label="Looking", ctx_a="A hen looks.", ctx_b="she", ctx="A hen looks. she", label="0",
         endings=["sees an egg.", "is blue.", "ate the road.", "was never."], split="val"),
]  # fmt: skip
LAMBADA = [
    dict(text="Otto looked for the lantern. At last he found the lantern", domain=None),
    dict(text="A fox ran home"),
]
ARC = dict(id="Mercury_1", question="Which barks?", choices=dict(text=["hen", "dog"], label=["A", "B"]), answerKey="B")
MMLU = dict(question="Which barks?", subject="animals", choices=["hen", "dog", "fish", "fox"], answer=1)
GSM8K = dict(question="Otto has 2 eggs and finds 3?", answer="He has 2 + 3 = <<2+3=5>>5.\n#### 1,005")
ALPACA = [
    dict(instruction="Name the animal.", input="It barks.", output="A dog."),
    dict(instruction="Say hello.", input="", output="Hello!"),
]
SHAREGPT = dict(id="a_0", conversations=[{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}])
TRIVIAQA = dict(
    question="Who lived in the windmill?",
    question_id="q_1",
    answer={"value": "Otto", "aliases": ["Otto", "The mouse Otto"], "normalized_value": "otto"},
)
CNN = dict(article="A fox was seen. " * 300, highlights="A fox was seen .\nIt ran .", id="0001")
IFEVAL = dict(key=1000, prompt="Write a tale without commas.", kwargs=[{"num_words": None, "relation": None}])
SHAPES = {
    "gsm8k.jsonl": lines([GSM8K]).encode(),
    "alpaca.json": json.dumps(ALPACA, indent=4).encode(),
    "sharegpt.json": json.dumps([SHAREGPT]).encode(),
    "hellaswag.jsonl": lines(HELLASWAG).encode(),
    "lambada.jsonl": lines(LAMBADA).encode(),
    "mmlu.parquet": parquet([MMLU]),
    "triviaqa.parquet": parquet([TRIVIAQA]),
    "cnn.csv": table([CNN], ",").encode(),
    "ifeval.jsonl": lines([IFEVAL]).encode(),
}


def commands_of_the_page():
    """The commands of USING.md: name of the file -> flags of the run, and of the scoring."""
    page = (ROOT / "docs/USING.md").read_text(encoding="utf-8")
    block = page.partition("<!-- datasets -->")[2].partition("```bash\n")[2].partition("```")[0].replace("\\\n", " ")
    commands = [shlex.split(line, comments=True) for line in block.splitlines() if line.strip()]
    runs = {c[c.index("--input") + 1]: c for c in commands if c[1] == "run"}
    scores = {c[2]: c for c in commands if c[1] == "score"}
    return {name: (c, scores[c[c.index("--output") + 1]]) for name, c in runs.items()}


@pytest.mark.parametrize("name", SHAPES)
def test_datasets_of_the_field(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(SHAPES[name])
    shutil.copy(ROOT / "tests/chat_templates/vicuna.jinja", tmp_path)
    run, scoring = commands_of_the_page()[name]
    generates = not {"--max-tokens", "--score", "--choices", "--choices-column"} & {*run}
    status, _, stderr = LAST.main(*run[2:], *(["--max-tokens", "8"] if generates else []), "--quiet")
    assert status == 0, stderr
    assert score.main(scoring[2:]) == 0
    summary, results = json.loads(capsys.readouterr().out), read_results(tmp_path / run[run.index("--output") + 1])
    assert (summary["lines"], summary["errors"]) == (len(results), 0)
    assert "unscored" not in summary
    expected = {
        "hellaswag.jsonl": {"accuracy", "accuracy_norm"},
        "mmlu.parquet": {"accuracy", "accuracy_norm"},
        "lambada.jsonl": {"accuracy", "perplexity", "continuation_perplexity"},
        "gsm8k.jsonl": set(),
        "ifeval.jsonl": set(),
    }.get(name, {"exact_match", "contains", "f1"})
    assert expected <= summary.keys()


@pytest.mark.parametrize("end", ["", " "])
def test_choices_come_after_a_space(tmp_path, end):
    """Whether the prompt ends in one or not; and their column may be nested, as in ARC."""
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(lines([ARC]))
    flags = ["--prompt-template", f"Question: {{question}} Answer:{end}", "--choices-column", "choices.text", "--quiet"]
    assert LAST.main("--input", source, "--output", output, *flags)[0] == 0
    (result,) = read_results(output)
    assert result["choices"] == ["hen", "dog"]
    expected = LAST.engine().score(["Question: Which barks? Answer:"] * 2, [" hen", " dog"])
    logprobs = [one["logprob"] for one in result["scores"]]
    assert logprobs == pytest.approx([one.logprob for one in expected], abs=1e-3)


@pytest.fixture(scope="module")
def likelihood():
    """By transformers: a continuation's log-probability after a prompt, and whether it is the greedy one."""
    path = ROOT / "stagewise/models/tinytales"
    model = GPT2LMHeadModel.from_pretrained(path, dtype=torch.float32).eval()
    tokenizer = GPT2Tokenizer.from_pretrained(path)

    @torch.no_grad()
    def likelihood(prompt, continuation):
        begin, whole = tokenizer(prompt).input_ids, tokenizer(prompt + continuation).input_ids
        rows = model(torch.tensor([whole])).logits[0].log_softmax(-1)[len(begin) - 1 : -1]
        ids = torch.tensor(whole[len(begin) :])
        return rows.gather(1, ids[:, None]).sum().item(), bool((rows.argmax(1) == ids).all())

    return likelihood


@pytest.fixture
def summary(tmp_path, capsys):
    """Run a dataset and score its results."""

    def summary(rows, flags, *scoring):
        source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        source.write_text(lines(rows))
        assert LAST.main("--input", source, "--output", output, *flags, "--quiet")[0] == 0
        assert score.main([str(output), *scoring]) == 0
        return json.loads(capsys.readouterr().out)

    return summary


def test_the_accuracy_of_choices_is_lm_evals(likelihood, summary):
    """The best sum of log-probabilities (acc), and the best one per character of the choice (acc_norm)."""
    ours = summary(HELLASWAG, ["--prompt-column", "ctx", "--choices-column", "endings"], "--reference", "label")
    right, right_by_character = [], []
    for row in HELLASWAG:
        sums = [likelihood(row["ctx"], f" {end}")[0] for end in row["endings"]]
        normed = [value / len(end) for value, end in zip(sums, row["endings"], strict=True)]
        right.append(sums.index(max(sums)) == int(row["label"]))
        right_by_character.append(normed.index(max(normed)) == int(row["label"]))
    assert (ours["accuracy"], ours["accuracy_norm"]) == (mean(right), mean(right_by_character))


def test_the_accuracy_of_last_words_is_lm_evals(likelihood, summary):
    """LAMBADA: whether the last word is the greedy one (acc), and exp of minus the mean log-probability of these words
    (perplexity)."""
    ours = summary(LAMBADA, ["--prompt-column", "text", "--score", "last-word"])
    prompts = [row["text"].rpartition(" ") for row in LAMBADA]
    logprobs, greedy = zip(*(likelihood(prompt, f" {word}") for prompt, _, word in prompts), strict=True)
    assert ours["accuracy"] == mean(greedy)
    assert ours["continuation_perplexity"] == pytest.approx(math.exp(-mean(logprobs)), rel=1e-3)


# --- Chats ----------------------------------------------------------------------------------------------------------

CHAT_TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}bot:{% endif %}"
)
CHATS = {  # the prompt -> as TRL and OpenAI, and as ShareGPT write it
    "user: Hi\nbot:": [("user", "Hi")],
    "user: Go\nbot:": [("user", "Go"), ("assistant", "No")],
    "system: Be brief\nuser: Hi\nbot:": [("system", "Be brief"), ("user", "Hi"), ("assistant", "Hm")],
    "assistant: Well?\nuser: Hi\nbot:": [("assistant", "Well?"), ("user", "Hi")],
    "user: a\nassistant: b\nuser: c\nbot:": [("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")],
}
SHAREGPT_NAMES = {"user": "human", "assistant": "gpt", "system": "system"}


@pytest.mark.parametrize("name", ["prompt", "conversations"])
def test_chats(tmp_path, monkeypatch, name):
    """From the first turn on, with each role, and without the answer at the end."""
    source, output, template = tmp_path / "in.parquet", tmp_path / "out.jsonl", tmp_path / "t.jinja"
    template.write_text(CHAT_TEMPLATE)
    rows = [[{"role": role, "content": text, "name": None} for role, text in chat] for chat in CHATS.values()]
    if name == "conversations":
        rows = [[{"from": SHAREGPT_NAMES[role], "value": text} for role, text in chat] for chat in CHATS.values()]
    source.write_bytes(parquet([{name: row} for row in rows]))
    flags = [] if name == "prompt" else ["--prompt-column", name]
    command = ["--input", source, "--output", output, "--temperature", "0", *QUICK, *flags]
    assert LAST.main(*command, "--chat-template", template)[0] == 0
    results = {result["id"]: result for result in read_results(output)}
    params = LAST.SamplingParams(temperature=0, max_tokens=8)
    for number, (prompt, row) in enumerate(zip(CHATS, rows, strict=True), start=1):
        result = results[f"line-{number}"]
        assert result[name] == row
        assert result["token_ids"] == LAST.engine().generate(prompt, params)[0].outputs[0].token_ids
    output.unlink()
    monkeypatch.setattr(LAST, "LLM", None, raising=False)  # without a template: an error before a model is loaded
    says = f"{source}: no line can be run; line 1: a chat needs a chat template, and the model has none"
    assert says in LAST.refusal(*command)
    assert not output.exists()


GOOD = [{"role": "user", "content": "Hi"}]
BAD_CHATS = {
    "the chat has only answers": [{"role": "assistant", "content": "Hi"}],
    "turn 0 of the chat is from 'bing', not one of system, human, user, gpt": [{"from": "bing", "value": ""}],
    "turn 1 of the chat must have texts as role and content": [*GOOD, {"role": "user", "content": [1]}],
    "turn 0 of the chat must have texts": [{"text": "Hi"}],
    "the chat template can't take these messages: no critics": [{"role": "critic", "content": "Hi"}],
}


@pytest.fixture
def run_chats(tmp_path):
    """Flags for a run of these lines, and its output."""

    def run_chats(*chats):
        source, output, template = (tmp_path / name for name in ("in.jsonl", "out.jsonl", "t.jinja"))
        source.write_text(lines([{"prompt": chat} for chat in chats]))
        refusal = "{% if messages[0].role == 'critic' %}{{ raise_exception('no critics') }}{% endif %}"
        template.write_text(refusal + CHAT_TEMPLATE)
        return ["--input", source, "--output", output, "--chat-template", template, "--quiet"], output

    return run_chats


def test_chats_that_can_not_be_run(run_chats):
    """Each is a line with an error."""
    command, output = run_chats(GOOD, *BAD_CHATS.values())
    assert LAST.main(*command, "--max-tokens", 1)[0] == 1
    results = {result["id"]: result for result in read_results(output)}
    assert "error" not in results["line-1"]
    for number, says in enumerate(BAD_CHATS, start=2):
        assert says in results[f"line-{number}"]["error"]


def test_the_last_word_of_a_chat_is_not_scored_but_choices_are(run_chats):
    command, output = run_chats(GOOD)
    for how in ("text", "last-word"):
        assert "--score is for texts, and the prompt is a chat" in LAST.refusal(*command, "--score", how)
    assert LAST.main(*command, "--choices", "yes", "no")[0] == 0
    (result,) = read_results(output)
    expected = LAST.engine().score(["user: Hi\nbot:"] * 2, [" yes", " no"])
    assert [one["logprob"] for one in result["scores"]] == pytest.approx([e.logprob for e in expected], abs=1e-3)


def test_the_last_word_of_tokens_is_none(tmp_path):
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(lines([{"prompt_token_ids": [1, 2]}]))
    said = LAST.refusal("--input", source, "--output", output, "--score", "last-word")
    assert "--score last-word is for prompts that are texts" in said
