"""`stagewise convert`, with transformers as the judge: what it writes has the tokens and logits that transformers gives
for the source; what can't be run is refused with one line that says what to do."""

import json
import random
import re
import shutil
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AddedToken, AutoTokenizer, GPT2LMHeadModel

from stagewise import convert
from stagewise.convert import main
from stagewise.layout import layout_config
from tests.adapter import STAGES, TINYTALES, edit_config, outcome, random_prompts, refusal, write_checkpoint

GENERIC = "PreTrainedTokenizerFast"
LINEAR = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
END, NUM_MERGES = "<|endoftext|>", 1000
ONE = STAGES[0]  # all stages read what is written with the same tokenizer, and test_weights.py loads it in each
TANH = {"gelu": "tanh"}
MASKS = {
    "transformer.h.0.attn.bias": torch.ones(1, 1, 48, 48),
    "transformer.h.0.attn.masked_bias": torch.tensor(-1e4),
}
HEADS = {"config": {"n_head": 3}}


class Trainer:
    """Stands for objects that some programs save with their weights."""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A random GPT-2 with the beginning of GPT-2's vocabulary, and a few tokens more."""
    directory = tmp_path_factory.mktemp("model")
    write_checkpoint(directory, n_layer=2, n_head=3, n_embd=48, n_positions=48, vocab_size=1280, eos_token_id=1256)
    edit_config(bundled(directory))
    return directory


@pytest.fixture(scope="module")
def tensors(model):
    """Its tensors, under Hugging Face's names, with the output layer."""
    tensors = load_file(model / "model.safetensors")
    return {**tensors, "lm_head.weight": tensors["transformer.wte.weight"].clone()}


@pytest.fixture
def source(model, tmp_path):
    """A copy of its directory, to be changed."""
    return shutil.copytree(model, tmp_path / "model")


@pytest.fixture
def made(tmp_path):
    return tmp_path / "made"


@pytest.fixture
def refused(made):
    """What the line says that refuses it."""

    def refused(source, **options):
        with pytest.raises(ValueError, match=r"^[^\n]+$") as error:
            convert.convert(source, made, **options)
        assert not made.exists()
        return str(error.value)

    return refused


def greedy(directory):
    params = ONE.SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    outputs = ONE.LLM(str(directory), device="cpu").generate(random_prompts(211, [5, 2]), params)
    return [output.outputs[0].token_ids for output in outputs]


def test_the_command(source, made):
    """Notes, and the flag that runs the result; or one line, and nothing is written."""
    assert "--gelu is for a training program's file" in refusal(main, source, made, "--gelu", "tanh")
    assert not made.exists()
    tensors = load_file(source / "model.safetensors")
    save_file({**tensors, "score.weight": torch.ones(3, 48)}, source / "model.safetensors", {"format": "pt"})
    note = "stagewise convert: left out, as transformers does: score.weight\n"
    assert outcome(main, source, made) == (0, f"{made}: run it with --model {made}\n", note)
    assert "exists: give a new or empty directory" in refusal(main, source, made)


# --- Files of training programs -------------------------------------------------------------------------------------


def named(prefix, tensors):
    return {prefix + name: tensor for name, tensor in tensors.items()}


PROGRAMS = {  # what each saves for tensors in torch's orientation; Hugging Face's linear layers are transposed
    "nanoGPT": lambda ts: {"model": ts, "optimizer": {}, "model_args": {"n_head": 3, "block_size": 48, "bias": True}},
    "nanoGPT, by an old torch": lambda ts: {"model": ts, "model_args": {"n_head": 3}},
    "compiled": lambda ts: {"model": named("_orig_mod.", ts), **HEADS},
    "DDP": lambda ts: {"model": named("module.", ts), **HEADS},
    "Lightning": lambda ts: {"state_dict": named("model.", ts), "hyper_parameters": {"n_head": 3}},
    "other names": lambda ts: {"model_state_dict": ts, "args": {"num_heads": 3}},
    "masks": lambda ts: {"model": {**ts, **MASKS}, **HEADS},
    "transformers": lambda ts: {**ts, **HEADS},
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_training_checkpoints(model, tensors, made, tmp_path, program):
    """The weights of one model as several programs save them, next to its tokenizer: the same tokens as from its
    directory."""
    for name in ("merges.txt", "vocab.json"):
        shutil.copy(model / name, tmp_path)
    if program != "transformers":
        tensors = {name: t.t().contiguous() if name.endswith(LINEAR) else t for name, t in tensors.items()}
    path, is_new = tmp_path / "ckpt.pt", "old" not in program
    torch.save(PROGRAMS[program](tensors), path, _use_new_zipfile_serialization=is_new)
    convert.convert(path, made, **TANH)
    assert greedy(made) == greedy(model)


def test_a_file_of_safetensors_alone(model, made, tmp_path):
    shutil.copy(model / "model.safetensors", tmp_path / "weights.safetensors")
    convert.convert(tmp_path / "weights.safetensors", made, **TANH, n_head=3, tokenizer=model)
    assert greedy(made) == greedy(model)


@pytest.mark.parametrize("lost", ["bias", "ln_", "c_attn.bias"])
def test_only_missing_biases_are_added(model, tensors, made, refused, tmp_path, lost):
    """Zeros for a kind of bias that no layer has. All others are what the file says."""
    path, options = tmp_path / "ckpt.pt", {**TANH, "tokenizer": model}
    kept = {name: t for name, t in tensors.items() if not (lost in name and name.endswith("bias"))}
    if lost == "c_attn.bias":  # of one layer alone it is missing
        torch.save({"model": {**kept, "transformer.h.1.attn.c_attn.bias": torch.ones(144)}, **HEADS}, path)
        assert "missing h.0.attn.c_attn.bias" in refused(path, **options)
    torch.save({"model": kept, **HEADS}, path)
    (note,) = convert.convert(path, made, **options)
    assert note.startswith("trained without these biases, which are zeros now: ")
    written = load_file(made / "model.safetensors")
    assert written.keys() == tensors.keys() - {"lm_head.weight"}
    for name, tensor in written.items():
        assert torch.equal(tensor, kept.get(name, torch.zeros_like(tensor))), name


WRITTEN_WRONG = {
    "another value": lambda t: t * (1 + 1e-6),
    "another dtype": lambda t: t.double(),
    "lost": lambda t: None,
}


@pytest.mark.parametrize("is_file", [True, False])
@pytest.mark.parametrize("wrong", [*WRITTEN_WRONG, "one more"])
def test_what_is_written_is_compared_with_the_source(model, tensors, refused, tmp_path, monkeypatch, is_file, wrong):
    write, name = convert.write_weights, "h.1.attn.c_attn.bias"

    def write_wrong(made, tensors):
        more = {name: WRITTEN_WRONG[wrong](tensors[name])} if wrong in WRITTEN_WRONG else {"h.1.more": torch.ones(3)}
        write(made, {n: t for n, t in {**tensors, **more}.items() if t is not None})

    monkeypatch.setattr(convert, "write_weights", write_wrong)
    torch.save({"model": tensors, **HEADS}, tmp_path / "ckpt.pt")
    source = tmp_path / "ckpt.pt" if is_file else stored_as("DDP's names", model, tmp_path / "source")
    said = refused(source, **({**TANH, "tokenizer": model} if is_file else {}))
    says = "h.1.more would be written, but is not in the source"
    assert (f"{name}' would not be written as it is" if wrong in WRITTEN_WRONG else says) in said


def test_a_tokenizer_that_is_not_there(model, refused, tmp_path):
    """It is not GPT-2's that is used instead."""
    (tmp_path / "empty").mkdir()
    for place in (tmp_path / "nonesuch", tmp_path / "empty"):
        assert f"--tokenizer: there is no tokenizer in {place}" in refused(model, tokenizer=place)


def test_training_checkpoints_that_are_refused(tensors, refused, tmp_path):
    path, small = tmp_path / "ckpt.pt", {n: t for n, t in tensors.items() if "lm_" not in n}
    activated = {"model": tensors, "config": {"n_head": 3, "activation_function": "gelu"}}
    for content, options, says in [
        ({"model": tensors, **HEADS}, {}, "does not say which GELU it was trained with: give --gelu tanh"),
        ({"model": tensors, **HEADS}, {"gelu": "exact"}, "only GPT-2's, the tanh form, can be run here"),
        (activated, TANH, "with the exact GELU"),
        ({"model": tensors, "config": {"n_head": 3, "activation_function": "gelu_new"}}, {"gelu": "exact"},
         "--gelu is exact, but "),
        ({"model": tensors}, TANH, "does not say how many heads there are, nor do its tensors: give --n-head"),
        ({"model": tensors, **HEADS}, {**TANH, "n_head": 4}, "--n-head is 4, but"),
        ({"model": tensors, "config": {"n_head": "many"}}, TANH, "n_head must be a whole number"),
        ({"model": tensors, "config": Trainer()}, TANH, "which could run code; in the training program, save it as"),
        ({"model": {"a": torch.zeros(2)}}, TANH, "has no GPT-2 weights: wte.weight is not among its 1 tensors"),
        (torch.zeros(2), TANH, "contains no dictionary of weights"),
        ({"model": small, **HEADS}, TANH, "the model's 1,280 tokens are not GPT-2's"),
        ({"model": {n: t for n, t in small.items() if "wpe" not in n}, **HEADS}, TANH, "wpe.weight is not among"),
        ({"model": {n: t for n, t in small.items() if "h.1.mlp" not in n}, **HEADS}, TANH, "missing h.1.mlp"),
        ({"model": {**small, "lm_head.weight": torch.ones(1280, 48)}, **HEADS}, TANH, "lm_head.weight differs"),
        ({"model": {**small, "h.0.gate": torch.ones(1)}, **HEADS}, TANH, "unexpected h.0.gate, of another model"),
    ]:  # fmt: skip
        torch.save(content, path)
        said = refused(path, **options)
        assert says in said
        assert str(path) in said or "--n-head" in said or "no tokenizer" in said
    for content, says in [
        (path.read_bytes()[:5000], "is truncated or damaged, or contains more than tensors"),
        (b"version https://git-lfs.github.com/spec/v1\n", "fetch the file with `git lfs pull`"),
        (b"\n<!DOCTYPE html>", "is a web page, not a model: download the file itself"),
        (b"GGUF\3\0\0\0", "is GGUF, whose weights are usually quantized: give the original model"),
        (b"{}", "is JSON, not a model: give its directory"),
        (b"", "is empty"),
    ]:
        path.write_bytes(content)
        assert says in refused(path, **TANH)


# --- Directories that only the command reads, or knows --------------------------------------------------------------


@pytest.mark.parametrize("head", ["score.weight", "multiple_choice_head.summary.weight", "v_head.summary.bias"])
def test_heads(model, tensors, source, made, head):
    """The head of a classifier, of two heads, and of TRL's value models is left out, as transformers leaves it out."""
    save_file({**tensors, head: torch.ones(3, 48)}, source / "model.safetensors", {"format": "pt"})
    rewrite(source / "config.json", architectures=["GPT2ForSequenceClassification"], num_labels=3)
    assert convert.convert(source, made) == [f"left out, as transformers does: {head}"]
    assert greedy(made) == greedy(model)


def stored_as(how, model, place):
    """The same weights in other files, or under other names."""
    place.mkdir()
    tensors = load_file(model / "model.safetensors")
    for name in ("config.json", "merges.txt", "vocab.json"):
        shutil.copy(model / name, place)
    if how in ("shards of .bin", "an index with other names"):
        save, ending = (torch.save, ".bin") if how == "shards of .bin" else (save_file, ".safetensors")
        weight_map = {name: "ab"[number % 2] + ending for number, name in enumerate(sorted(tensors))}
        for file in weight_map.values():
            save({name: tensors[name] for name in tensors if weight_map[name] == file}, place / file)
        whole = "pytorch_model.bin" if ending == ".bin" else "model.safetensors"
        rewrite(place / f"{whole}.index.json", weight_map=weight_map, metadata={})
    elif how == "shards":
        GPT2LMHeadModel.from_pretrained(model).save_pretrained(place, max_shard_size="400KB")
        assert len(list(place.glob("model-*.safetensors"))) > 1
    elif how in NAMED:
        save_file(NAMED[how](tensors), place / "model.safetensors", {"format": "pt"})
    else:
        content = BINARY[how](tensors)
        torch.save(content, place / "pytorch_model.bin", _use_new_zipfile_serialization=how != "old .bin")
    return place


def in_no_order(tensors):
    """As tensors lie in memory that a program has transposed, or taken from a larger one."""
    spread = {name: torch.stack([t, -t], dim=-1)[..., 0] for name, t in tensors.items()}
    spread["transformer.wte.weight"] = tensors["transformer.wte.weight"].t().contiguous().t()
    spread["transformer.wpe.weight"] = torch.nn.Parameter(tensors["transformer.wpe.weight"])
    return spread


NAMED = {
    "GPT-2's names on the Hub": lambda ts: {name.removeprefix("transformer."): t for name, t in ts.items()},
    "DDP's names": lambda ts: named("module.", ts),
    "lm_head alone": lambda ts: {name.replace("transformer.wte", "lm_head"): t for name, t in ts.items()},
    "lm_head too, and masks": lambda ts: {**ts, **MASKS, "lm_head.weight": ts["transformer.wte.weight"].clone()},
}
BINARY = {
    ".bin": lambda ts: ts,
    "old .bin": lambda ts: ts,
    "a nested .bin": lambda ts: {"state_dict": ts, "epoch": 3},
    "in no order in memory": in_no_order,
}
GOOD = ("an index with other names", "shards", "GPT-2's names on the Hub")


@pytest.mark.parametrize("how", [*GOOD, "shards of .bin", *BINARY, *list(NAMED)[1:]])
def test_ways_to_store_weights(model, tmp_path, how):
    """The same tensors; transformers reads them, too. Good files are linked if that is asked for, otherwise copied."""
    source = stored_as(how, model, tmp_path / "source")
    reference = GPT2LMHeadModel.from_pretrained(model).state_dict()
    for link in (True, False) if how in GOOD else (True,):
        made = tmp_path / f"made {link}"
        convert.convert(source, made, link=link)
        read = GPT2LMHeadModel.from_pretrained(made).state_dict()
        assert all(torch.equal(tensor, read[name]) for name, tensor in reference.items())
        assert greedy(made) == greedy(model)
        assert {path.is_symlink() for path in made.glob("*.safetensors")} == {link and how in GOOD}


def test_weights_that_are_not_all_there(model, refused, tmp_path):
    """The file is named, not its tensors."""
    source, bias = stored_as("shards", model, tmp_path / "source"), torch.zeros(48)
    second = sorted(source.glob("model-*.safetensors"))[1]
    second.unlink()
    assert f"{second.name} is not there, but model.safetensors.index.json lists it: fetch" in refused(source)
    (source / "model.safetensors.index.json").unlink()
    assert re.search(r"source has \d of \d files model-\*-of-\*.safetensors: fetch", refused(source))
    for path in source.glob("*.safetensors"):
        path.unlink()
    assert "neither model.safetensors nor pytorch_model.bin: fetch or save" in refused(source)
    for number in (1, 2):
        save_file({"transformer.ln_f.bias": bias}, source / f"model-{number}-of-2.safetensors")
    assert re.search("model-2-of-2.safetensors: .* 'transformer.ln_f.bias' is in another", refused(source))
    save_file({"ln_f.bias": bias, "transformer.ln_f.bias": bias + 1}, source / "model.safetensors")
    assert "source has two tensors ln_f.bias" in refused(source)


BIAS = "transformer.ln_f.bias"
WRONG_TENSORS = {
    "torch.int8, torch.strided, cpu": lambda ts: {BIAS: ts[BIAS].to(torch.int8)},
    "torch.float8_e4m3fn": lambda ts: {BIAS: ts[BIAS].to(torch.float8_e4m3fn)},
    "torch.sparse_coo": lambda ts: {BIAS: ts[BIAS].to_sparse()},
    "torch.float32, torch.strided, meta": lambda ts: {BIAS: ts[BIAS].to("meta")},
    "'ln_f.bias' has shape [7], but the sizes imply [48]": lambda ts: {BIAS: torch.ones(7)},
    "ln_f.bias' is not finite": lambda ts: {BIAS: ts[BIAS] * torch.nan},
    "missing ln_f.bias, of a GPT-2 of these sizes; fetch or save the model again": lambda ts: {BIAS: None},
    "lm_head.weight differs from wte.weight": lambda ts: {"lm_head.weight": torch.ones(1280, 48)},
}


@pytest.mark.parametrize("says", WRONG_TENSORS)
def test_tensors_of_another_model(model, tensors, refused, tmp_path, says):
    source = stored_as(".bin", model, tmp_path / "source")
    changed = {**tensors, **WRONG_TENSORS[says](tensors)}
    torch.save({name: t for name, t in changed.items() if t is not None}, source / "pytorch_model.bin")
    said = refused(source)
    assert says in said
    assert str(source) in said


def test_places_without_a_model_name_the_one_that_is_meant(model, refused, tmp_path):
    """A trainer's checkpoints, the hub's cache, a folder of training files, and what is not there."""
    for name in ("run/checkpoint-500", "cache/snapshots/0123", "files/ckpt.pt"):
        place = tmp_path / name
        if place.suffix:
            place.parent.mkdir()
            place.touch()
        else:
            shutil.copytree(model, place)
        assert f"has no config.json: give {place}" in refused(tmp_path / name.split("/")[0])
    assert "there is no file or directory" in refused(tmp_path / "nothing")


def test_files_that_hold_no_weights(source, refused):
    """What Git LFS or a browser left, and a pickle with objects of a program."""
    for content, says in (
        (b"version https://git-lfs.github", "fetch the file with `git lfs pull`"),
        (b"<html>", "web page"),
        (b"", "is empty"),
    ):
        (source / "model.safetensors").write_bytes(content)
        said = refused(source)
        assert says in said
        assert "model.safetensors" in said
    (source / "model.safetensors").unlink()
    torch.save({"transformer.wte.weight": Trainer()}, source / "pytorch_model.bin")
    said = refused(source)
    assert ("weights_only" in said, "Trainer" in said) == (False, False)
    assert "pytorch_model.bin is truncated or damaged, or contains more than tensors and plain values" in said


# --- Directories: transformers' tokens and logits, or a line that refuses -------------------------------------------


def rewrite(path, **changes):
    path.write_text(json.dumps({**(json.loads(path.read_text()) if path.exists() else {}), **changes}))


def bundled(directory):
    """The beginning of GPT-2's tokenizer, as merges.txt and vocab.json: all of it takes a second for each reader."""
    merges = (TINYTALES / "merges.txt").read_text(encoding="utf-8").splitlines()[: 1 + NUM_MERGES]
    tokens = [*ONE.byte_alphabet(), *(merge.replace(" ", "") for merge in merges[1:]), END]
    (directory / "merges.txt").write_text("\n".join(merges) + "\n", encoding="utf-8")
    (directory / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
    return directory


def saved(special=None, words=(), **more):
    """The same tokenizer with more tokens, as transformers saves it: tokenizer.json and tokenizer_config.json."""

    def change(directory):
        tokenizer = AutoTokenizer.from_pretrained(bundled(directory), **more)
        tokenizer.add_special_tokens(special or {})
        tokenizer.add_tokens([*words])
        tokenizer.save_pretrained(directory)
        for name in ("merges.txt", "vocab.json"):
            (directory / name).unlink(missing_ok=True)

    return change


def of_files(**files):
    """As version 4 of transformers saved a slow tokenizer: merges.txt, vocab.json and JSON."""

    def change(directory):
        for name, content in files.items():
            (bundled(directory) / f"{name}.json").write_text(json.dumps(content))

    return change


def settings(**settings):
    return of_files(tokenizer_config=settings)


def config(**changes):
    return lambda directory: rewrite(bundled(directory) / "config.json", **changes)


def tokenizer_json(part=None, **changes):
    def change(directory):
        saved()(directory)
        content = json.loads((directory / "tokenizer.json").read_text())
        (content[part] if part else content).update(changes)
        (directory / "tokenizer.json").write_text(json.dumps(content))

    return change


def own_vocabulary(directory):
    """A model with a small trained tokenizer, whose ids are in another order than its merges."""
    merges = ["Ġ t", "h e", "Ġt he", "i n", "Ġ a", "o n", "Ġa n", "Ġan d"]
    tokens = ["<s>", *sorted(ONE.byte_alphabet()), *(merge.replace(" ", "") for merge in merges), END]
    ids = {token: number for number, token in enumerate(reversed(tokens))}
    write_checkpoint(directory, n_layer=1, n_head=2, n_embd=32, n_positions=48, vocab_size=len(ids), eos_token_id=0)
    (directory / "merges.txt").write_text("#version: 0.2 - trained\n" + "\n".join(merges), encoding="utf-8")
    (directory / "vocab.json").write_text(json.dumps(ids))


def token(text, **more):
    return {"content": text, "lstrip": False, "rstrip": False, "single_word": False, "normalized": False, **more}


CHAT = {"additional_special_tokens": ["<|user|>", "<|end|>"]}
DECODER = {
    "1256": token(END, special=True),
    "1257": token("[PAD]", special=True),
    "1258": token("rabbit", special=False),
}
REAL = dict(  # distilgpt2's, and what version 4 of transformers adds
    _num_labels=1,
    id2label={"0": "LABEL_0"},
    n_ctx=48,
    gradient_checkpointing=False,
    task_specific_params={"text-generation": {"do_sample": True, "max_length": 50}},
    output_past=True,
    torch_dtype="float32",
    predict_special_tokens=True,
    reorder_and_upcast_attn=False,
)
LEFT, RIGHT = AddedToken("<m>", lstrip=True), AddedToken("<m>", rstrip=True)
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
SEQUENCES = dict(
    normalizer={"type": "Sequence", "normalizers": []},
    pre_tokenizer={"type": "Sequence", "pretokenizers": [BYTE_LEVEL]},
)
# Read without transformers.
EQUAL = {
    "merges.txt and vocab.json": bundled,
    "distilgpt2's config": config(**REAL),
    "the tanh form by another name": config(activation_function="gelu_pytorch_tanh"),
    "tokenizer.json alone": saved(),
    "the generic class": lambda d: (saved()(d), rewrite(d / "tokenizer_config.json", tokenizer_class=GENERIC)),
    "[PAD]": saved({"pad_token": "[PAD]"}),
    "a mask": saved({"mask_token": LEFT}),
    "words": saved(words=["rabbit", " the", "rabbithole", "café", "日本", "Ġx"]),
    "words, and a chat's tokens": saved(CHAT, ["<|us", "user"]),
    "a word of the vocabulary": saved(words=["ing", "Ġthe"]),
    "another end": saved(eos_token="<|end|>", pad_token="<|end|>"),
    "switches of version 4": settings(add_bos_token=False, add_eos_token=False, pad_token=None, eos_token=END),
    "ids in another order": own_vocabulary,
    "truncation": tokenizer_json(truncation=dict(direction="Right", max_length=4, strategy="LongestFirst", stride=0)),
    "sequences of none and of one": tokenizer_json(**SEQUENCES),
}
# Read by transformers.
BY_TRANSFORMERS = {
    "added_tokens": of_files(added_tokens={"[PAD]": 1257}),
    "added_tokens that are known": of_files(added_tokens={END: 1256}),
    "special_tokens_map": of_files(special_tokens_map={"eos_token": token(END), "pad_token": END}),
    # transformers no longer reads the older one
    "older files next to newer": of_files(
        added_tokens={"<|user|>": 1257}, tokenizer_config={"added_tokens_decoder": DECODER}
    ),
    "added_tokens_decoder": settings(added_tokens_decoder=DECODER, pad_token="[PAD]"),
    "a named token": settings(pad_token="[PAD]"),
    "a named word": settings(bos_token="ing"),
    "a chat, as it was": of_files(added_tokens={"<|user|>": 1257, "<|end|>": 1258}, special_tokens_map=CHAT),
    "a token for pictures": settings(image_token="<image>"),
    "a gap": tokenizer_json(added_tokens=[{"id": 1270, **token("x y", special=False)}]),
    "a setting that nobody knows": settings(lowercase=True),
    "a switch that nobody knows": settings(strip_token=True),
    "a normalizer": tokenizer_json(normalizer={"type": "NFC"}),
    "no pre_tokenizer": tokenizer_json(pre_tokenizer=None),
    "heads twice": config(num_attention_heads=4),
    "a note": config(dataset="tales", license="mit"),
}
# What can't be run: the file and key in the line that says it, and what to do.
GPT2_ONLY = "only models that compute what GPT-2 does can be run; if the key changes nothing, remove it"
BPE_ONLY = "only byte-level BPE tokenizers like GPT-2's can be run; mend the file, or give another --tokenizer"
REFUSED = {
    GPT2_ONLY: {
        "config.json: activation_function is 'gelu', supported: 'gelu_new'": config(activation_function="gelu"),
        "config.json: quantization_config is {'bits': 4}": config(quantization_config={"bits": 4}),
        "config.json: tokenizer_class is 'BertTokenizer'": config(tokenizer_class="BertTokenizer"),
    },
    BPE_ONLY: {
        "added token '<m>': rstrip is True, supported: False": saved({"mask_token": RIGHT}),
        "added token 'x ' ends with a space, which lstrip of another": saved({"mask_token": LEFT}, ["x "]),
        "add_prefix_space": saved(add_prefix_space=True),
        "post_processor": settings(add_bos_token=True),
        "tokenizer_config.json: split_special_tokens is True": settings(split_special_tokens=True),
        "spiece.model is another kind of tokenizer": lambda d: (d / "spiece.model").touch(),
    },
    "": {"model.type is 'WordLevel'": tokenizer_json("model", type="WordLevel")},
    "merge it with peft": {
        "has an adapter for 'gpt2'": lambda d: rewrite(d / "adapter_config.json", base_model_name_or_path="gpt2"),
    },
    "name its tokenizer with --tokenizer DIRECTORY": {
        "has no tokenizer, and the model's 1,280 tokens are not GPT-2's": lambda d: [
            (d / name).unlink() for name in ("merges.txt", "vocab.json")
        ],
    },
}
TEXTS = [
    "Once upon a time <|user|>Hi<|end|>, a rabbit<|endoftext|>[PAD] x y <m> <image> fox\n",
    "rabbithole rabbits the café 日本 Ġx user<|us<|user|> singing in the thin air and on, abc abcab  \n\t",
    "",
    "<m> a \t\u3000\n<m>x<m> \x1c<m>\x85<m> <m>",
    "e\u0301\u00a0\x00 don't 'S 3.14 👍🏽 <|endoftext|> <|endoftext",
]


def check_equal(directory, source):
    """A stage gives the tokens that transformers gives for the source, of texts and of the model. So does transformers
    for the converted directory."""
    theirs, again = AutoTokenizer.from_pretrained(source), AutoTokenizer.from_pretrained(directory)
    llm = ONE.LLM(str(directory), device="cpu")
    ours = llm.get_tokenizer()
    ids = [theirs(text).input_ids for text in TEXTS]
    assert [again(text).input_ids for text in TEXTS] == ids
    assert [ours.encode(text) for text in TEXTS] == [some or [ours.end_of_text_id] for some in ids]
    for skip in (True, False):
        for some in [*ids, *(some[::-1] for some in ids), [1257, 1258, 0, 1260, 5, 1256, 70000]]:
            text, detokenizer = theirs.decode(some, skip_special_tokens=skip), ONE.Detokenizer(ours, skip)
            assert again.decode(some, skip_special_tokens=skip) == text
            assert "".join(map(detokenizer.add, some)) + detokenizer.flush() == text
    reference = GPT2LMHeadModel.from_pretrained(source).eval()
    more = dict(do_sample=False, min_new_tokens=4, max_new_tokens=4, pad_token_id=0)
    prompts = random_prompts(211, [5, 2])
    expected = [reference.generate(torch.tensor([prompt]), **more)[0].tolist() for prompt in prompts]
    assert [[*prompt, *tokens] for prompt, tokens in zip(prompts, greedy(directory), strict=True)] == expected


@pytest.mark.parametrize(
    ("config", "generation"),
    [
        ({}, None),
        ({"eos_token_id": 5}, None),
        ({"eos_token_id": [5, 9]}, None),
        ({"eos_token_id": None}, None),
        ({"eos_token_id": 5}, {}),
        ({"eos_token_id": 5}, {"eos_token_id": None}),
        ({"eos_token_id": 5}, {"eos_token_id": 7}),
        ({"eos_token_id": [5, 9]}, {"eos_token_id": [9, 7]}),
        ({"eos_token_id": None}, {"eos_token_id": 7}),
    ],
    ids=str,
)
def test_end_tokens(source, made, config, generation):
    """Where generation_config.json exists, it alone names them; config.json's are not joined to them."""
    sizes = json.loads((source / "config.json").read_text())
    del sizes["eos_token_id"], sizes["stagewise"]
    (source / "config.json").write_text(json.dumps(sizes | config))
    (source / "generation_config.json").unlink()
    if generation is not None:
        (source / "generation_config.json").write_text(json.dumps(generation))
    theirs = GPT2LMHeadModel.from_pretrained(source).generation_config.eos_token_id
    convert.convert(source, made)
    ours = ONE.part("weights").read_config(str(made), made, "auto")["eos_token_ids"]
    assert list(ours) == (theirs if isinstance(theirs, list) else [] if theirs is None else [theirs])
    assert GPT2LMHeadModel.from_pretrained(made).generation_config.eos_token_id == theirs
    assert (made / "generation_config.json").exists() == (generation is not None)  # it has more than these tokens


@pytest.mark.parametrize("kind", [*EQUAL, *BY_TRANSFORMERS])
def test_directories_that_are_read(source, made, refused, monkeypatch, kind):
    """By transformers, where a file may mean more than is known here."""
    ({**EQUAL, **BY_TRANSFORMERS}[kind])(source)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "transformers", None)
        if kind in EQUAL:
            convert.convert(source, made)
        else:
            said = refused(source)
            assert "pip install transformers, and convert it again" in said
            assert str(source) in said
    if kind not in EQUAL:
        convert.convert(source, made)
    check_equal(made, source)


@pytest.mark.parametrize(("remedy", "says"), [(remedy, says) for remedy, some in REFUSED.items() for says in some])
def test_directories_that_are_refused(source, refused, remedy, says):
    REFUSED[remedy][says](source)
    said = refused(source)
    assert (says in said, remedy in said, str(source) in said) == (True, True, True), said


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (dict(model_type="llama"), "model_type is 'llama'"),
        (dict(tie_word_embeddings=False), "tie_word_embeddings"),
        (dict(scale_attn_by_inverse_layer_idx=True), "scale_attn_by_inverse_layer_idx"),
        (dict(scale_attn_weights=1), "scale_attn_weights is 1, supported: True"),
        (dict(auto_map={"AutoModel": "x.Y"}), "auto_map is"),
        (dict(n_head=5), "n_embd 48 is not a multiple of n_head 5"),
        (dict(vocab_size="many"), "vocab_size"),
        (dict(n_positions=None), "n_positions"),
        (dict(n_layer=True), "n_layer must be a whole number from 1 to 1000, got True"),
        (dict(vocab_size=10**4000), "vocab_size must be a whole number .*, got 1000+$"),
        (dict(layer_norm_epsilon=None), "layer_norm_epsilon"),
        (dict(eos_token_id="end"), "eos_token_id"),
        (dict(eos_token_id=True), "eos_token_id .* got True"),
        *((content, "") for content in ("{", "[]", "", "[" * 100_000, '{"n_layer":' * 100_000)),
    ],
    ids=lambda value: str(value)[:30],
)
def test_bad_config(source, refused, changes, says):
    (source / "generation_config.json").unlink()
    if isinstance(changes, str):
        (source / "config.json").write_text(changes)
    else:
        rewrite(source / "config.json", **changes)
    said = refused(source)
    assert "config.json" in said
    assert re.search(says, said)


def test_the_largest_sizes(tmp_path):
    """The configuration alone is read."""
    largest = dict(n_layer=1000, n_head=1000, n_embd=10**5, n_inner=10**6, n_positions=10**7, vocab_size=10**7)
    assert layout_config(tmp_path, largest).items() >= largest.items()
    assert layout_config(tmp_path, dict.fromkeys(largest, 1)).items() >= dict.fromkeys(largest, 1).items()
    for name, most in largest.items():
        for wrong in (0, most + 1):
            with pytest.raises(ValueError, match=f"{name} must be a whole number from 1 to {most}, got {wrong}"):
                layout_config(tmp_path, largest | {name: wrong})


def damage(content, rng):
    """A file that is cut short, or in which bytes are lost or changed, mostly where what describes the rest is."""
    content = bytearray(content)
    start = rng.randrange(min(len(content), rng.choice((500, 2000, 10**9))))
    kind = rng.randrange(3)
    if kind == 0:
        del content[start:]
    elif kind == 1:
        del content[start : start + rng.randrange(1, 40)]
    else:
        content[start : start + 8] = rng.randbytes(8)
    return bytes(content)


@pytest.mark.parametrize(
    ("how", "file"),
    [
        (".bin", "config.json"),
        (".bin", "merges.txt"),
        (".bin", "vocab.json"),
        (".bin", "pytorch_model.bin"),
        ("old .bin", "pytorch_model.bin"),
        ("DDP's names", "model.safetensors"),
        ("an index with other names", "a.safetensors"),
    ],
)
def test_damaged_files(model, made, refused, tmp_path, monkeypatch, how, file):
    """Each is converted, or an error names the file or its directory."""
    monkeypatch.setitem(sys.modules, "transformers", None)  # it would take most of the time
    source, rng, num_refused = stored_as(how, model, tmp_path / "source"), random.Random(0), 0
    original = (source / file).read_bytes()
    for content in [original, *(damage(original, rng) for _ in range(30))]:
        (source / file).write_bytes(content)
        try:
            convert.convert(source, made)
            shutil.rmtree(made)
        except ValueError:
            num_refused += 1
            assert content != original
            assert str(source) in refused(source)
    assert num_refused > 5
