"""`stagewise convert`, and transformers as the judge: the tokens and logits of any directory that a stage reads are
transformers'; what it can't read is refused with one line."""

import contextlib
import copy
import io
import json
import shutil
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AddedToken, AutoTokenizer, GPT2ForSequenceClassification, GPT2LMHeadModel

from stagewise import convert
from stagewise.convert import main
from tests.adapter import STAGES, TINYTALES, random_prompts, write_checkpoint

LINEAR = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
END, NUM_MERGES = "<|endoftext|>", 1000
about_checkpoints = pytest.mark.covers("support/tokenizer.py", "support/vocabulary.py", "support/weights.py")
JUDGED = [STAGES[number - 1] for number in (1, 5, 8)]


class Trainer:
    """Stands for objects that some programs save with their weights."""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A random GPT-2 with a few tokens more than GPT-2 has."""
    directory = tmp_path_factory.mktemp("model")
    write_checkpoint(directory, n_layer=2, n_head=3, n_embd=48, n_positions=48, vocab_size=50304, eos_token_id=50256)
    return directory


@pytest.fixture(scope="module")
def small_model(tmp_path_factory):
    """The same for a small vocabulary."""
    directory = tmp_path_factory.mktemp("small")
    write_checkpoint(directory, n_layer=2, n_head=3, n_embd=48, n_positions=48, vocab_size=1280, eos_token_id=1256)
    return directory


@pytest.fixture
def converted(capsys, tmp_path):
    """Run the command: (status, what stderr says, the directory)."""

    def converted(source, *arguments):
        directory = tmp_path / "converted"
        capsys.readouterr()
        shutil.rmtree(directory, ignore_errors=True)
        status = main([str(source), str(directory), *map(str, arguments)])
        said = capsys.readouterr().err
        assert directory.exists() == (status == 0)
        assert said.count("\n") == 1 or status == 0
        assert "\x1b" not in said
        return status, said, directory

    return converted


def greedy(stage, directory):
    llm = stage.LLM(str(directory), device="cpu")
    params = stage.SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    return [output.outputs[0].token_ids for output in llm.generate(random_prompts(211, [5, 2]), params)]


# --- Files of training programs -------------------------------------------------------------------------------------


def of_program(name, tensors, config):
    """What a program saves for these tensors of Hugging Face's model."""
    stored = {name: t.t().contiguous() if name.endswith(LINEAR) else t for name, t in tensors.items()}
    heads = {"n_head": config.n_head}
    return {
        "nanoGPT": {"model": stored, "optimizer": {}, "model_args": heads | {"block_size": 48, "bias": True}},
        "compiled": {"model": {f"_orig_mod.{n}": t for n, t in stored.items()}, "config": heads},
        "DDP": {"model": {f"module.{n}": t for n, t in stored.items()}, "config": heads},
        "Lightning": {"state_dict": {f"model.{n}": t for n, t in stored.items()}, "hyper_parameters": heads},
        "transformers": {**tensors, "config": heads},
        "no biases": {
            "model_state_dict": {n: t for n, t in stored.items() if not n.endswith("bias")},
            "args": {"num_heads": config.n_head},
        },
        "masks": {"model": {**stored, "transformer.h.0.attn.bias": torch.ones(1, 1, 48, 48)}, "config": heads},
    }[name]


@pytest.fixture(scope="module")
def reference(model, tmp_path_factory):
    """Whether it has biases -> (the tensors of a model, its configuration, its tokens)."""
    with_biases = GPT2LMHeadModel.from_pretrained(model)
    tensors, directory = with_biases.state_dict(), tmp_path_factory.mktemp("reference")
    without = {name: torch.zeros_like(t) if name.endswith("bias") else t for name, t in tensors.items()}
    tensors = copy.deepcopy(dict(tensors))  # the model's own are overwritten
    with_biases.load_state_dict(without)
    with_biases.save_pretrained(directory)
    return {
        True: (tensors, with_biases.config, greedy(STAGES[0], model)),
        False: (without, with_biases.config, greedy(STAGES[0], directory)),
    }


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("program", ["nanoGPT", "compiled", "DDP", "Lightning", "transformers", "no biases", "masks"])
def test_training_checkpoints(reference, converted, tmp_path, program, old):
    """The weights of one model as several programs save them: the same tokens as from its directory."""
    tensors, config, tokens = reference[program != "no biases"]
    path = tmp_path / "ckpt.pt"
    torch.save(of_program(program, tensors, config), path, _use_new_zipfile_serialization=not old)
    status, said, directory = converted(path, "--gelu", "tanh")
    assert (status, "using GPT-2's" in said) == (0, True), said
    assert greedy(STAGES[0], directory) == tokens


@pytest.mark.parametrize("lost", ["ln_", ".c_", "c_attn.bias", "ln_f.bias"])
def test_only_missing_biases_are_added(model, converted, tmp_path, lost):
    """Zeros for a kind of bias that no layer has. All others are what the file says."""
    tensors = GPT2LMHeadModel.from_pretrained(model).state_dict()
    kept = {name: t for name, t in tensors.items() if not (lost in name and name.endswith("bias"))}
    torch.save({"model": kept, "config": {"n_head": 3}}, tmp_path / "ckpt.pt")
    status, said, directory = converted(tmp_path / "ckpt.pt", "--gelu", "tanh")
    assert (status, "trained without these biases, which are zeros now: " in said) == (0, True), said
    written = load_file(directory / "model.safetensors")
    assert written.keys() == tensors.keys() - {"lm_head.weight"}
    for name, tensor in written.items():
        assert torch.equal(tensor, kept.get(name, torch.zeros_like(tensor))), name
    del kept["transformer.h.1.mlp.c_fc.weight"]
    kept.pop("transformer.h.0.ln_1.bias", None)
    torch.save({"model": kept, "config": {"n_head": 3}}, tmp_path / "ckpt.pt")
    status, said, _ = converted(tmp_path / "ckpt.pt", "--gelu", "tanh")
    assert (status, "missing h.0.ln_1.bias" in said or lost == "ln_") == (2, True), said


@pytest.mark.parametrize("is_file", [True, False])
@pytest.mark.parametrize("wrong", ["another value", "twice", "one more", "lost", "another dtype"])
def test_what_is_written_is_compared_with_the_source(model, converted, tmp_path, monkeypatch, is_file, wrong):
    write, name, other = convert.write_weights, "h.1.attn.c_attn.bias", "h.0.attn.c_attn.bias"

    def write_wrong(made, tensors):
        changed = {
            "another value": {name: tensors[name] * (1 + 1e-6)},
            "twice": {name: tensors[other]},
            "one more": {"h.1.attn.c_more.bias": torch.ones(3)},
            "lost": {},
            "another dtype": {name: tensors[name].double()},
        }[wrong]
        write(made, {n: t for n, t in {**tensors, **changed}.items() if (n, wrong) != (name, "lost")})

    monkeypatch.setattr(convert, "write_weights", write_wrong)
    torch.save({"model": load_file(model / "model.safetensors"), "config": {"n_head": 3}}, tmp_path / "ckpt.pt")
    status, said, _ = converted(*([tmp_path / "ckpt.pt", "--gelu", "tanh"] if is_file else [model]))
    says = f"{name}' would not be written as it is"
    says = "c_more.bias would be written, but is not in the source" if wrong == "one more" else says
    assert (status, says in said) == (2, True), said


def test_a_tokenizer_that_is_not_there(model, converted, tmp_path):
    """It is not GPT-2's that is used instead."""
    (tmp_path / "empty").mkdir()
    for place in (tmp_path / "nonesuch", tmp_path / "empty"):
        status, said, _ = converted(model, "--tokenizer", place)
        assert (status, f"--tokenizer: there is no tokenizer in {place}" in said) == (2, True), said


def test_a_file_of_safetensors_alone(model, converted, tmp_path):
    shutil.copy(model / "model.safetensors", tmp_path / "weights.safetensors")
    status, _, directory = converted(
        tmp_path / "weights.safetensors", "--gelu", "tanh", "--n-head", 3, "--tokenizer", TINYTALES
    )
    assert status == 0
    assert greedy(STAGES[0], directory) == greedy(STAGES[0], model)


def test_training_checkpoints_that_are_refused(model, converted, tmp_path):
    tensors, path, tanh = GPT2LMHeadModel.from_pretrained(model).state_dict(), tmp_path / "ckpt.pt", ("--gelu", "tanh")
    heads = {"config": {"n_head": 3}}
    small = {n: t[:65] if "wte" in n else t for n, t in tensors.items() if "lm_" not in n}
    for content, arguments, says in [
        ({"model": tensors, **heads}, (), "does not say which GELU it was trained with: give --gelu tanh"),
        ({"model": tensors, **heads}, ("--gelu", "exact"), "only GPT-2's, the tanh form, can be run here"),
        ({"model": tensors, "config": {"n_head": 3, "activation_function": "gelu"}}, tanh, "with the exact GELU"),
        (
            {"model": tensors, "config": {"n_head": 3, "activation_function": "gelu_new"}},
            ("--gelu", "exact"),
            "--gelu is exact, but ",
        ),
        ({"model": tensors}, tanh, "does not say how many heads there are, nor do its tensors: give --n-head"),
        ({"model": tensors, **heads}, (*tanh, "--n-head", 4), "--n-head is 4, but"),
        ({"model": tensors, "config": {"n_head": "many"}}, tanh, "n_head must be a whole number"),
        ({"model": tensors, "config": Trainer()}, tanh, "which could run code; in the training program, save it as"),
        ({"model": {"a": torch.zeros(2)}}, tanh, "has no GPT-2 weights: wte.weight is not among its 1 tensors"),
        (torch.zeros(2), tanh, "contains no dictionary of weights"),
        ({"model": small, **heads}, tanh, "the model's 65 tokens are not GPT-2's"),
        ({"model": {n: t for n, t in tensors.items() if "wpe" not in n}, **heads}, tanh, "wpe.weight is not among"),
        ({"model": {n: t for n, t in tensors.items() if "h.1.mlp" not in n}, **heads}, tanh, "missing h.1.mlp"),
        ({"model": {**tensors, "lm_head.weight": torch.ones(50304, 48)}, **heads}, tanh, "lm_head.weight differs"),
        ({"model": {**tensors, "h.0.gate": torch.ones(1)}, **heads}, tanh, "unexpected transformer.h.0.gate"),
    ]:
        torch.save(content, path)
        status, said, _ = converted(path, *arguments)
        named = str(path) in said or "--n-head" in said or "no tokenizer" in said
        assert (status, says in said, named) == (2, True, True), said
    for content, says in [
        (path.read_bytes()[:5000], "is truncated or damaged, or contains more than tensors"),
        (b"version https://git-lfs.github.com/spec/v1\n", "fetch the file with `git lfs pull`"),
        (b"\n<!DOCTYPE html>", "is a web page, not a model: download the file itself"),
        (b"GGUF\3\0\0\0", "is GGUF, whose weights are usually quantized: give the original model"),
        (b"{}", "is JSON, not a model: give its directory"),
        (b"", "is empty"),
    ]:
        path.write_bytes(content)
        status, said, _ = converted(path, *tanh)
        assert (status, says in said) == (2, True), said


# --- Directories that only the command reads, or knows --------------------------------------------------------------


def test_heads_and_shards_of_pickles(model, converted, tmp_path):
    """A classifier's head is left out, as transformers leaves it out; shards of .bin become one file."""
    classifier = GPT2ForSequenceClassification.from_pretrained(model, num_labels=3)
    classifier.save_pretrained(tmp_path / "classifier")
    with pytest.raises(
        ValueError, match=r"unexpected score.weight, of another model or head, or quantized; `stagewise"
    ):
        STAGES[0].LLM(str(tmp_path / "classifier"), device="cpu")
    status, said, directory = converted(tmp_path / "classifier")
    assert (status, "left out, as transformers does: score.weight" in said) == (0, True), said
    assert greedy(STAGES[0], directory) == greedy(STAGES[0], model)
    shards, tensors = tmp_path / "shards", GPT2LMHeadModel.from_pretrained(model).state_dict()
    shards.mkdir()
    shutil.copy(model / "config.json", shards)
    names = sorted(name for name in tensors if name != "lm_head.weight")
    for file, part in (("a.bin", names[::2]), ("b.bin", names[1::2])):
        torch.save({name: tensors[name] for name in part}, shards / file)
    weight_map = {name: "ab"[number % 2] + ".bin" for number, name in enumerate(names)}
    rewrite(shards / "pytorch_model.bin.index.json", weight_map=weight_map, metadata={})
    with pytest.raises(ValueError, match=r"neither model.safetensors nor pytorch_model.bin; `stagewise"):
        STAGES[0].LLM(str(shards), device="cpu")
    status, said, directory = converted(shards)
    assert status == 0, said
    assert greedy(STAGES[0], directory) == greedy(STAGES[0], model)


def test_directories_of_programs(model, converted, tmp_path, monkeypatch):
    """A trainer's, the hub's cache, what Git LFS or a browser left, an output layer of its own, lost tensors."""
    for name in ("checkpoint-500", "snapshots/0123"):
        shutil.copytree(model, tmp_path / name.split("/")[0] / name)
        status, said, _ = converted(tmp_path / name.split("/")[0])
        assert (status, f"has no config.json: give {tmp_path / name.split('/')[0] / name}" in said) == (2, True), said
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "ckpt.pt").touch()
    assert f"give {tmp_path / 'checkpoints' / 'ckpt.pt'}" in converted(tmp_path / "checkpoints")[1]
    broken = shutil.copytree(model, tmp_path / "broken")
    for content, says in (
        (b"version https://git-lfs.github", "fetch the file with `git lfs pull`"),
        (b"<html>", "web page"),
        (b"", "is empty"),
    ):
        (broken / "model.safetensors").write_bytes(content)
        status, said, _ = converted(broken)
        assert (status, says in said, "model.safetensors" in said) == (2, True, True), said
    tensors = load_file(model / "model.safetensors")
    for change, says in (
        ({"lm_head.weight": torch.ones(50304, 48)}, "lm_head.weight differs from wte.weight"),
        ({"transformer.ln_f.bias": None}, "lacks 1 tensors of a GPT2LMHeadModel, such as transformer.ln_f.bias"),
        ({"transformer.ln_f.bias": torch.ones(7)}, "its tensors' shapes differ from config.json"),
    ):
        kept = {name: tensor for name, tensor in {**tensors, **change}.items() if tensor is not None}
        save_file(kept, broken / "model.safetensors", {"format": "pt"})
        status, said, _ = converted(broken)
        assert (status, says in said) == (2, True), said
    (broken / "model.safetensors").unlink()
    torch.save({"transformer.wte.weight": Trainer()}, broken / "pytorch_model.bin")
    status, said, _ = converted(broken)
    assert (status, "weights_only" in said) == (2, False)
    assert "a .bin is damaged, or contains more than tensors" in said
    assert "exists: give a new or empty directory" in failure(main, [str(model), str(model)])
    assert "there is no file or directory" in converted(tmp_path / "nothing")[1]
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert "converting a directory needs transformers: pip install transformers" in converted(model)[1]


def failure(main, arguments):
    with contextlib.redirect_stderr(io.StringIO()) as stderr:
        assert main(arguments) == 2
    return stderr.getvalue()


# --- Directories: transformers' tokens and logits, or a line that refuses -------------------------------------------


def rewrite(path, **changes):
    path.write_text(json.dumps({**(json.loads(path.read_text()) if path.exists() else {}), **changes}))


def bundled(directory):
    """The beginning of GPT-2's tokenizer, as merges.txt and vocab.json: all of it takes a second for each reader."""
    merges = (TINYTALES / "merges.txt").read_text(encoding="utf-8").splitlines()[: 1 + NUM_MERGES]
    tokens = [*STAGES[0].byte_alphabet(), *(merge.replace(" ", "") for merge in merges[1:]), END]
    (directory / "merges.txt").write_text("\n".join(merges) + "\n", encoding="utf-8")
    (directory / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
    return directory


def saved(directory, change=lambda tokenizer: None, **more):
    """The same tokenizer, changed, as transformers saves it: tokenizer.json and tokenizer_config.json."""
    tokenizer = AutoTokenizer.from_pretrained(bundled(directory), **more)
    change(tokenizer)
    tokenizer.save_pretrained(directory)
    (directory / "merges.txt").unlink(missing_ok=True)
    (directory / "vocab.json").unlink(missing_ok=True)


def of_files(directory, **files):
    """As version 4 of transformers saved a slow tokenizer: merges.txt, vocab.json and JSON."""
    for name, content in files.items():
        (bundled(directory) / f"{name}.json").write_text(json.dumps(content))


def edit_tokenizer(directory, part, **changes):
    saved(directory)
    content = json.loads((directory / "tokenizer.json").read_text())
    (content[part] if part else content).update(changes)
    (directory / "tokenizer.json").write_text(json.dumps(content))


def own_vocabulary(directory, order):
    """A model with a small trained tokenizer, whose ids are in another order than its merges."""
    merges = ["Ġ t", "h e", "Ġt he", "i n", "Ġ a", "o n", "Ġa n", "Ġan d"]
    alphabet = list(STAGES[0].byte_alphabet())
    tokens = ["<s>", *sorted(alphabet), *(merge.replace(" ", "") for merge in merges), "<|endoftext|>"]
    ids = {token: number for number, token in enumerate(tokens if order == "sorted" else reversed(tokens))}
    write_checkpoint(directory, n_layer=1, n_head=2, n_embd=32, n_positions=48, vocab_size=len(ids), eos_token_id=0)
    (directory / "merges.txt").write_text("#version: 0.2 - trained\n" + "\n".join(merges), encoding="utf-8")
    (directory / "vocab.json").write_text(json.dumps(ids))


def untrained_merges(directory):
    """Merges that no training can produce: `ab c` after `b c`. Programs differ in what they make of `abc`."""
    alphabet = list(STAGES[0].byte_alphabet())
    merges = ["b c", "a b", "ab c"]
    tokens = [*alphabet, *(merge.replace(" ", "") for merge in merges), "<|endoftext|>"]
    (directory / "merges.txt").write_text("\n".join(merges))
    (directory / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(tokens)}))


def token(text, **more):
    return {"content": text, "lstrip": False, "rstrip": False, "single_word": False, "normalized": False, **more}


GENERIC = "PreTrainedTokenizerFast"
CHAT = {"additional_special_tokens": ["<|user|>", "<|end|>"]}
DECODER = {
    "1256": token(END, special=True),
    "1257": token("[PAD]", special=True),
    "1258": token("rabbit", special=False),
}
REAL = {  # distilgpt2's, and what version 4 of transformers adds
    **dict(_num_labels=1, id2label={"0": "LABEL_0"}, label2id={"LABEL_0": 0}, n_ctx=48, gradient_checkpointing=False),
    **dict(task_specific_params={"text-generation": {"do_sample": True, "max_length": 50}}, output_past=True),
    **dict(
        _name_or_path="gpt2",
        torch_dtype="float32",
        n_special=0,
        predict_special_tokens=True,
        reorder_and_upcast_attn=False,
    ),
}
EQUAL = {
    "merges.txt and vocab.json": bundled,
    "distilgpt2's config": lambda d: rewrite(bundled(d) / "config.json", **REAL),
    "the tanh form by another name": lambda d: rewrite(
        bundled(d) / "config.json", activation_function="gelu_pytorch_tanh"
    ),
    "tokenizer.json alone": saved,
    "the generic class": lambda d: (saved(d), rewrite(d / "tokenizer_config.json", tokenizer_class=GENERIC)),
    "[PAD]": lambda d: saved(d, lambda t: t.add_special_tokens({"pad_token": "[PAD]"})),
    "a chat's tokens": lambda d: saved(d, lambda t: t.add_special_tokens(CHAT)),
    "words": lambda d: saved(d, lambda t: t.add_tokens(["rabbit", " the", "rabbithole", "café", "日本", "Ġx"])),
    "words, and a chat's tokens": lambda d: saved(
        d, lambda t: (t.add_special_tokens(CHAT), t.add_tokens(["<|us", "user"]))
    ),
    "switches of version 4": lambda d: of_files(
        d, tokenizer_config={"add_bos_token": False, "add_eos_token": False, "pad_token": None, "eos_token": END}
    ),
    "a word of the vocabulary": lambda d: saved(d, lambda t: t.add_tokens(["ing", "Ġthe"])),
    "another end": lambda d: saved(d, eos_token="<|end|>", pad_token="<|end|>"),
    "ids in another order": lambda d: own_vocabulary(d, "sorted"),
    "ids backwards": lambda d: own_vocabulary(d, "reversed"),
    "merges as texts": lambda d: edit_tokenizer(
        d, "model", merges=(TINYTALES / "merges.txt").read_text("utf-8").split("\n")[1 : 1 + NUM_MERGES]
    ),
    "truncation": lambda d: edit_tokenizer(
        d, "", truncation=dict(direction="Right", max_length=4, strategy="LongestFirst", stride=0)
    ),
}
# What a stage says, and whether what `stagewise convert` makes of it is equal; if not, its line.
REFUSED = {
    "added_tokens": (lambda d: of_files(d, added_tokens={"[PAD]": 1257}), "added_tokens.json has an older", True),
    "added_tokens that are known": (lambda d: of_files(d, added_tokens={END: 1256}), "json has an older", True),
    "special_tokens_map": (
        lambda d: of_files(d, special_tokens_map={"eos_token": token(END), "pad_token": END}),
        "special_tokens_map.json has an older format; `stagewise convert",
        True,
    ),
    "older files next to newer": (  # transformers no longer reads them, and neither does a stage
        lambda d: of_files(d, added_tokens={"<|user|>": 1257}, tokenizer_config={"added_tokens_decoder": DECODER}),
        "the added token '[PAD]' is not the same",
        True,
    ),
    "a named token": (lambda d: of_files(d, tokenizer_config={"pad_token": "[PAD]"}), "token '[PAD]' is not the", True),
    "a named word": (lambda d: of_files(d, tokenizer_config={"bos_token": "ing"}), "token 'ing' is not the same", True),
    "a chat, as it was": (
        lambda d: of_files(d, added_tokens={"<|user|>": 1257, "<|end|>": 1258}, special_tokens_map=CHAT),
        "added_tokens.json has an older format; `stagewise convert",
        True,
    ),
    "a token for pictures": (
        lambda d: of_files(d, tokenizer_config={"image_token": "<image>"}),
        "'<image>' is not",
        True,
    ),
    "added_tokens_decoder": (
        lambda d: of_files(d, tokenizer_config={"added_tokens_decoder": DECODER, "pad_token": "[PAD]"}),
        "is not the same in all files of the tokenizer; `stagewise convert",
        True,
    ),
    "a gap": (
        lambda d: edit_tokenizer(d, "", added_tokens=[{"id": 1270, **token("x y", special=False)}]),
        "added token 'x y': id is 1270, supported: 1257",
        True,
    ),
    "lstrip": (
        lambda d: saved(d, lambda t: t.add_special_tokens({"mask_token": AddedToken("<m>", lstrip=True)})),
        "added token '<m>': lstrip is True, supported: False",
        "added token '<m>': lstrip is True",
    ),
    "a prefix space": (
        lambda d: saved(d, add_prefix_space=True),
        "add_prefix_space is True, supported: False",
        "add_prefix_space",
    ),
    "a first token": (
        lambda d: of_files(d, tokenizer_config={"add_bos_token": True}),
        "add_bos_token is True",
        "post_processor",
    ),
    "a setting that nobody knows": (
        lambda d: of_files(d, tokenizer_config={"lowercase": True}),
        "tokenizer_config.json: unsupported key 'lowercase' may change tokens; `stagewise convert",
        True,
    ),
    "a switch that nobody knows": (
        lambda d: of_files(d, tokenizer_config={"strip_token": True}),
        "tokenizer_config.json: unsupported key 'strip_token' may change tokens; `stagewise convert",
        True,
    ),
    "split_special_tokens": (
        lambda d: of_files(d, tokenizer_config={"split_special_tokens": True}),
        "split_special_tokens is",
        "is",
    ),
    "a normalizer": (
        lambda d: edit_tokenizer(d, "", normalizer={"type": "NFC"}),
        "normalizer is {'type': 'NFC'}",
        True,
    ),
    "no pre_tokenizer": (lambda d: edit_tokenizer(d, "", pre_tokenizer=None), "pre_tokenizer.type is None", True),
    "words of another kind": (
        lambda d: edit_tokenizer(d, "model", type="WordLevel"),
        "model.type is 'WordLevel'",
        "transformers",
    ),
    "sentencepiece": (
        lambda d: (d / "spiece.model").touch(),
        "spiece.model is another kind of tokenizer",
        "another kind",
    ),
    "BERT's": (
        lambda d: rewrite(d / "config.json", tokenizer_class="BertTokenizer"),
        "tokenizer_class is 'Bert",
        "tokenizer_class is",
    ),
    "untrained merges": (
        untrained_merges,
        "merge 3: expected two tokens that earlier merges leave, got 'ab c'",
        "merge 3",
    ),
    "exact GELU": (
        lambda d: rewrite(bundled(d) / "config.json", activation_function="gelu"),
        "activation_function is 'gelu'",
        "gelu",
    ),
    "heads twice": (
        lambda d: rewrite(bundled(d) / "config.json", num_attention_heads=4),
        "unsupported key 'num_attention_heads'",
        True,
    ),
    "a note": (
        lambda d: rewrite(bundled(d) / "config.json", dataset="tales"),
        "unsupported key 'dataset' may change numbers",
        True,
    ),
    "quantized": (
        lambda d: rewrite(bundled(d) / "config.json", quantization_config={"bits": 4}),
        "unsupported key 'quantization_config'",
        "quantization_config is {'bits': 4}, supported: None",
    ),
    "an adapter": (
        lambda d: rewrite(bundled(d) / "adapter_config.json", base_model_name_or_path="gpt2"),
        "adapter_config.json is an adapter, which is not applied here",
        "has an adapter for 'gpt2': merge it with peft",
    ),
}
TEXTS = [
    "Once upon a time <|user|>Hi<|end|>, a rabbit<|endoftext|>[PAD] x y <m> <image> fox\n",
    "rabbithole rabbits the café 日本 Ġx user<|us<|user|> singing in the thin air and on, abc abcab  \n\t",
    "",
    "e\u0301\u00a0\x00 don't 'S 3.14 👍🏽 <|endoftext|> <|endoftext",
]


def check_equal(directory):
    """Tokens of texts and of the model: those of transformers, in all these stages."""
    theirs, reference = AutoTokenizer.from_pretrained(directory), GPT2LMHeadModel.from_pretrained(directory).eval()
    ids = [theirs(text).input_ids for text in TEXTS]
    decoded = [*ids, *(some[::-1] for some in ids), [1257, 1258, 0, 1260, 5, 1256, 70000]]
    texts = {skip: [theirs.decode(some, skip_special_tokens=skip) for some in decoded] for skip in (True, False)}
    prompts = random_prompts(211, [5, 2])
    more = dict(do_sample=False, min_new_tokens=6, max_new_tokens=6, pad_token_id=0)
    expected = [reference.generate(torch.tensor([prompt]), **more)[0].tolist() for prompt in prompts]
    for stage in JUDGED:
        llm = stage.LLM(str(directory), device="cpu")
        ours, params = llm.get_tokenizer(), stage.SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
        assert [ours.encode(text) for text in TEXTS] == [some or [ours.end_of_text_id] for some in ids]
        for skip, expected_texts in texts.items():
            for some, text in zip(decoded, expected_texts, strict=True):
                detokenizer = stage.Detokenizer(ours, skip)
                assert "".join(map(detokenizer.add, some)) + detokenizer.flush() == text
        outputs = llm.generate(prompts, params)
        assert [[*prompt, *one.outputs[0].token_ids] for prompt, one in zip(prompts, outputs, strict=True)] == expected


@pytest.mark.parametrize(
    "generation", [None, {}, {"eos_token_id": None}, {"eos_token_id": 7}, {"eos_token_id": [9, 7]}]
)
@pytest.mark.parametrize("config", [{}, {"eos_token_id": 5}, {"eos_token_id": [5, 9]}, {"eos_token_id": None}])
def test_end_tokens(small_model, tmp_path, config, generation):
    """Where generation_config.json exists, it alone names them; config.json's are not joined to them."""
    for name in ("config.json", "model.safetensors"):
        shutil.copy(small_model / name, tmp_path)
    sizes = json.loads((tmp_path / "config.json").read_text())
    del sizes["eos_token_id"]
    (tmp_path / "config.json").write_text(json.dumps(sizes | config))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    theirs = GPT2LMHeadModel.from_pretrained(tmp_path).generation_config.eos_token_id
    ours = STAGES[0].part("weights").read_config(str(tmp_path), tmp_path, "auto")["eos_token_ids"]
    assert list(ours) == (theirs if isinstance(theirs, list) else [] if theirs is None else [theirs])


@about_checkpoints
@pytest.mark.parametrize("kind", EQUAL)
def test_directories_that_are_read(small_model, tmp_path, kind):
    EQUAL[kind](shutil.copytree(small_model, tmp_path / "model"))
    check_equal(tmp_path / "model")


@about_checkpoints
@pytest.mark.parametrize("kind", REFUSED)
def test_directories_that_are_refused(small_model, converted, tmp_path, kind):
    make, says, outcome = REFUSED[kind]
    make(shutil.copytree(small_model, tmp_path / "model"))
    for stage in JUDGED:
        with pytest.raises(ValueError) as error:  # noqa: PT011 (its text is checked)
            stage.LLM(str(tmp_path / "model"), device="cpu")
        assert says in str(error.value)
        assert str(tmp_path / "model") in str(error.value)
        assert "\n" not in str(error.value)
    status, said, directory = converted(tmp_path / "model")
    if outcome is True:
        assert status == 0, said
        check_equal(directory)
    else:
        assert (status, outcome in said) == (2, True), said
