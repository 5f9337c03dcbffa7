"""`stagewise convert`, with transformers as the judge: what it writes has the tokens and logits that transformers gives
for the source; what can't be run is refused with one line that says what to do."""

import copy
import itertools
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
from tests.adapter import STAGES, TINYTALES, outcome, random_prompts, refusal, write_checkpoint

LINEAR = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
END, NUM_MERGES = "<|endoftext|>", 1000
about_checkpoints = pytest.mark.covers("support/tokenizer.py", "support/weights.py")
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
def converted(tmp_path):
    """Run the command: (status, what stderr says, the directory)."""

    def converted(source, *arguments):
        directory = tmp_path / "converted"
        shutil.rmtree(directory, ignore_errors=True)
        status, _, said = outcome(main, source, directory, *arguments)
        assert directory.exists() == (status == 0)
        assert said.count("\n") == 1 or status == 0
        assert "\x1b" not in said
        return status, said, directory

    return converted


@pytest.fixture
def refused(converted):
    """What the line says that refuses it."""

    def refused(source, *arguments):
        status, said, _ = converted(source, *arguments)
        assert status == 2, said
        return said

    return refused


def greedy(stage, directory):
    llm = stage.LLM(str(directory), device="cpu")
    params = stage.SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
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
    with_biases.save_pretrained(directory / "saved")
    convert.convert(directory / "saved", directory / "made", tokenizer=TINYTALES)
    return {
        True: (tensors, with_biases.config, greedy(STAGES[0], model)),
        False: (without, with_biases.config, greedy(STAGES[0], directory / "made")),
    }


@pytest.mark.parametrize(
    ("program", "old"),
    [
        *((name, False) for name in ("nanoGPT", "compiled", "DDP", "Lightning", "transformers", "no biases", "masks")),
        ("nanoGPT", True),
    ],
)
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
            "twice": {name: tensors[other].clone()},
            "one more": {"h.1.attn.c_more.bias": torch.ones(3)},
            "lost": {},
            "another dtype": {name: tensors[name].double()},
        }[wrong]
        write(made, {n: t for n, t in {**tensors, **changed}.items() if (n, wrong) != (name, "lost")})

    monkeypatch.setattr(convert, "write_weights", write_wrong)
    torch.save({"model": load_file(model / "model.safetensors"), "config": {"n_head": 3}}, tmp_path / "ckpt.pt")
    directory = stored_as("DDP's names", model, tmp_path / "source")
    status, said, _ = converted(*([tmp_path / "ckpt.pt", "--gelu", "tanh"] if is_file else [directory]))
    says = f"{name}' would not be written as it is"
    says = "c_more.bias would be written, but is not in the source" if wrong == "one more" else says
    assert (status, says in said) == (2, True), said


def test_a_tokenizer_that_is_not_there(model, refused, tmp_path):
    """It is not GPT-2's that is used instead."""
    (tmp_path / "empty").mkdir()
    for place in (tmp_path / "nonesuch", tmp_path / "empty"):
        assert f"--tokenizer: there is no tokenizer in {place}" in refused(model, "--tokenizer", place)


def test_a_file_of_safetensors_alone(model, converted, tmp_path):
    shutil.copy(model / "model.safetensors", tmp_path / "weights.safetensors")
    status, _, directory = converted(
        tmp_path / "weights.safetensors", "--gelu", "tanh", "--n-head", 3, "--tokenizer", TINYTALES
    )
    assert status == 0
    assert greedy(STAGES[0], directory) == greedy(STAGES[0], model)


def test_training_checkpoints_that_are_refused(model, refused, tmp_path):
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
        ({"model": {**tensors, "h.0.gate": torch.ones(1)}, **heads}, tanh, "unexpected h.0.gate, of another model"),
    ]:
        torch.save(content, path)
        said = refused(path, *arguments)
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
        assert says in refused(path, *tanh)


# --- Directories that only the command reads, or knows --------------------------------------------------------------


def test_heads(small_model, converted, tmp_path):
    """The head of a classifier, of two heads, and of TRL's value models is left out, as transformers leaves it out."""
    tensors, config = (
        load_file(small_model / "model.safetensors"),
        json.loads((small_model / "config.json").read_text()),
    )
    for head in ("score.weight", "multiple_choice_head.summary.weight", "v_head.summary.bias"):
        shutil.rmtree(tmp_path / "model", ignore_errors=True)
        source = shutil.copytree(small_model, tmp_path / "model")
        save_file({**tensors, head: torch.ones(3, 48)}, source / "model.safetensors", {"format": "pt"})
        rewrite(source / "config.json", architectures=["GPT2ForSequenceClassification"], num_labels=3)
        status, said, directory = converted(source)
        assert (status, f"left out, as transformers does: {head}" in said) == (0, True), said
        assert load_file(directory / "model.safetensors").keys() == tensors.keys()
        assert json.loads((directory / "config.json").read_text())["n_head"] == config["n_head"]
    assert greedy(STAGES[0], directory) == greedy(STAGES[0], small_model)


def stored_as(how, model, place):
    """The same weights in other files, or under other names."""
    place.mkdir()
    tensors = load_file(model / "model.safetensors")
    for name in ("config.json", "merges.txt", "vocab.json"):
        shutil.copy(model / name, place)
    if how in ("sharded .bin", "an index with other names"):
        files, ending = ("a", "b"), ".bin" if how == "sharded .bin" else ".safetensors"
        save = torch.save if ending == ".bin" else save_file
        weight_map = {name: files[number % 2] + ending for number, name in enumerate(sorted(tensors))}
        for file in weight_map.values():
            save({name: tensors[name] for name in tensors if weight_map[name] == file}, place / file)
        whole = "pytorch_model.bin" if ending == ".bin" else "model.safetensors"
        rewrite(place / f"{whole}.index.json", weight_map=weight_map, metadata={})
    elif how in (".bin", "old .bin"):
        torch.save(tensors, place / "pytorch_model.bin", _use_new_zipfile_serialization=how == ".bin")
    elif how == "a nested .bin":
        torch.save({"state_dict": tensors, "epoch": 3}, place / "pytorch_model.bin")
    elif how == "shards":
        GPT2LMHeadModel.from_pretrained(model).save_pretrained(place, max_shard_size="400KB")
        assert len(list(place.glob("model-*.safetensors"))) > 1
    elif how == "in no order in memory":
        spread = {name: torch.stack([t, -t], dim=-1)[..., 0] for name, t in tensors.items()}
        spread["transformer.wte.weight"] = tensors["transformer.wte.weight"].t().contiguous().t()
        spread["transformer.wpe.weight"] = torch.nn.Parameter(tensors["transformer.wpe.weight"])
        torch.save(spread, place / "pytorch_model.bin")
    else:
        named = {
            "DDP's names": {f"module.{name}": t for name, t in tensors.items()},
            "GPT-2's names on the Hub": {name.removeprefix("transformer."): t for name, t in tensors.items()},
            "lm_head alone": {name.replace("transformer.wte", "lm_head"): t for name, t in tensors.items()},
            "both, and masks": {
                **tensors,
                "lm_head.weight": tensors["transformer.wte.weight"].clone(),
                "transformer.h.0.attn.bias": torch.ones(1, 1, 48, 48),
                "transformer.h.0.attn.masked_bias": torch.tensor(-1e4),
            },
        }[how]
        save_file(named, place / "model.safetensors", {"format": "pt"})
    return place


GOOD = ("an index with other names", "shards", "GPT-2's names on the Hub")
WAYS = ("sharded .bin", ".bin", "old .bin", "a nested .bin", "DDP's names", "in no order in memory", "lm_head alone")


@pytest.mark.parametrize(
    ("how", "link"), [*itertools.product(GOOD, (False, True)), *((how, True) for how in (*WAYS, "both, and masks"))]
)
def test_ways_to_store_weights(small_model, tmp_path, how, link):
    """The same tensors; transformers reads them, too. Good files are linked if that is asked for, otherwise copied."""
    source = stored_as(how, small_model, tmp_path / "source")
    convert.convert(source, tmp_path / "made", link=link)
    reference, read = (GPT2LMHeadModel.from_pretrained(place) for place in (small_model, tmp_path / "made"))
    for name, tensor in reference.state_dict().items():
        assert torch.equal(tensor, read.state_dict()[name]), name
    assert greedy(STAGES[0], tmp_path / "made") == greedy(STAGES[0], small_model)
    assert {path.is_symlink() for path in (tmp_path / "made").glob("*.safetensors")} == {link and how in GOOD}


def test_weights_that_are_not_all_there(small_model, tmp_path):
    """The file is named, not its tensors."""
    source, made, bias = stored_as("shards", small_model, tmp_path / "source"), tmp_path / "made", torch.zeros(48)
    second = sorted(source.glob("model-*.safetensors"))[1]
    second.unlink()
    assert f"{second.name} is not there, but model.safetensors.index.json lists it: fetch" in error_of(source, made)
    (source / "model.safetensors.index.json").unlink()
    assert re.search(r"source has \d of \d files model-\*-of-\*.safetensors: fetch", error_of(source, made))
    for path in source.glob("*.safetensors"):
        path.unlink()
    assert "neither model.safetensors nor pytorch_model.bin: fetch or save" in error_of(source, made)
    for number in (1, 2):
        save_file({"transformer.ln_f.bias": bias}, source / f"model-{number}-of-2.safetensors")
    assert re.search("model-2-of-2.safetensors: .* 'transformer.ln_f.bias' is in another", error_of(source, made))
    save_file({"ln_f.bias": bias, "transformer.ln_f.bias": bias + 1}, source / "model.safetensors")
    assert "source has two tensors ln_f.bias" in error_of(source, made)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t.to(torch.int8), "torch.int8, torch.strided, cpu"),
        (lambda t: t.bool(), "torch.bool"),
        (lambda t: t.to(torch.complex64), "torch.complex64"),
        (lambda t: t.to(torch.float8_e4m3fn), "torch.float8_e4m3fn"),
        (lambda t: t.to_sparse(), "torch.sparse_coo"),
        (lambda t: t.to("meta"), "torch.float32, torch.strided, meta"),
        pytest.param(
            lambda t: torch.quantize_per_tensor(t, 0.1, 0, torch.qint8),
            "torch.qint8",
            marks=pytest.mark.filterwarnings("ignore::UserWarning"),
        ),
        (lambda t: t[0], r"has shape \[\], but the sizes imply \[48\]"),
        (lambda t: t * torch.nan, "is not finite"),
    ],
)
def test_kinds_of_tensors(small_model, tmp_path, change, says):
    source = stored_as(".bin", small_model, tmp_path / "source")
    tensors = load_file(small_model / "model.safetensors")
    tensors["transformer.ln_f.bias"] = change(tensors["transformer.ln_f.bias"])
    torch.save(tensors, source / "pytorch_model.bin")
    with pytest.raises(ValueError, match=says) as error:
        convert.convert(source, tmp_path / "made")
    assert str(source) in str(error.value)
    assert "ln_f.bias" in str(error.value)


def test_directories_of_programs(small_model, refused, tmp_path, monkeypatch):
    """A trainer's, the hub's cache, what Git LFS or a browser left, an output layer of its own, lost tensors."""
    for name in ("checkpoint-500", "snapshots/0123"):
        shutil.copytree(small_model, tmp_path / name.split("/")[0] / name)
        assert f"has no config.json: give {tmp_path / name.split('/')[0] / name}" in refused(
            tmp_path / name.split("/")[0]
        )
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "ckpt.pt").touch()
    assert f"give {tmp_path / 'checkpoints' / 'ckpt.pt'}" in refused(tmp_path / "checkpoints")
    broken = shutil.copytree(small_model, tmp_path / "broken")
    for content, says in (
        (b"version https://git-lfs.github", "fetch the file with `git lfs pull`"),
        (b"<html>", "web page"),
        (b"", "is empty"),
    ):
        (broken / "model.safetensors").write_bytes(content)
        said = refused(broken)
        assert says in said
        assert "model.safetensors" in said
    tensors = load_file(small_model / "model.safetensors")
    for change, says in (
        ({"lm_head.weight": torch.ones(1280, 48)}, "lm_head.weight differs from wte.weight"),
        (
            {"transformer.ln_f.bias": None},
            "missing ln_f.bias, of a GPT-2 of these sizes; fetch or save the model again",
        ),
        ({"transformer.ln_f.bias": torch.ones(7)}, "tensor 'ln_f.bias' has shape [7], but the sizes imply [48]"),
    ):
        kept = {name: tensor for name, tensor in {**tensors, **change}.items() if tensor is not None}
        save_file(kept, broken / "model.safetensors", {"format": "pt"})
        assert says in refused(broken)
    (broken / "model.safetensors").unlink()
    torch.save({"transformer.wte.weight": Trainer()}, broken / "pytorch_model.bin")
    said = refused(broken)
    assert ("weights_only" in said, "Trainer" in said) == (False, False)
    assert "pytorch_model.bin is truncated or damaged, or contains more than tensors and plain values" in said
    assert "exists: give a new or empty directory" in refusal(main, small_model, small_model)
    assert "there is no file or directory" in refused(tmp_path / "nothing")
    rewrite(broken / "config.json", license="mit")
    shutil.copy(small_model / "model.safetensors", broken)
    monkeypatch.setitem(sys.modules, "transformers", None)
    said = refused(broken)
    assert "config.json: key 'license' may change numbers; transformers may know more: pip install transformers" in said


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
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
# Read without transformers.
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
    "a mask": lambda d: saved(d, lambda t: t.add_special_tokens({"mask_token": AddedToken("<m>", lstrip=True)})),
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
    "sequences of none and of one": lambda d: edit_tokenizer(
        d,
        "",
        normalizer={"type": "Sequence", "normalizers": []},
        pre_tokenizer={"type": "Sequence", "pretokenizers": [BYTE_LEVEL]},
    ),
}
# Read by transformers.
BY_TRANSFORMERS = {
    "added_tokens": lambda d: of_files(d, added_tokens={"[PAD]": 1257}),
    "added_tokens that are known": lambda d: of_files(d, added_tokens={END: 1256}),
    "special_tokens_map": lambda d: of_files(d, special_tokens_map={"eos_token": token(END), "pad_token": END}),
    # transformers no longer reads the older one
    "older files next to newer": lambda d: of_files(
        d, added_tokens={"<|user|>": 1257}, tokenizer_config={"added_tokens_decoder": DECODER}
    ),
    "a named token": lambda d: of_files(d, tokenizer_config={"pad_token": "[PAD]"}),
    "a named word": lambda d: of_files(d, tokenizer_config={"bos_token": "ing"}),
    "a chat, as it was": lambda d: of_files(
        d, added_tokens={"<|user|>": 1257, "<|end|>": 1258}, special_tokens_map=CHAT
    ),
    "a token for pictures": lambda d: of_files(d, tokenizer_config={"image_token": "<image>"}),
    "added_tokens_decoder": lambda d: of_files(
        d, tokenizer_config={"added_tokens_decoder": DECODER, "pad_token": "[PAD]"}
    ),
    "a gap": lambda d: edit_tokenizer(d, "", added_tokens=[{"id": 1270, **token("x y", special=False)}]),
    "a setting that nobody knows": lambda d: of_files(d, tokenizer_config={"lowercase": True}),
    "a switch that nobody knows": lambda d: of_files(d, tokenizer_config={"strip_token": True}),
    "a normalizer": lambda d: edit_tokenizer(d, "", normalizer={"type": "NFC"}),
    "no pre_tokenizer": lambda d: edit_tokenizer(d, "", pre_tokenizer=None),
    "heads twice": lambda d: rewrite(bundled(d) / "config.json", num_attention_heads=4),
    "a note": lambda d: rewrite(bundled(d) / "config.json", dataset="tales", license="mit"),
}
GPT2_ONLY = "only models that compute what GPT-2 does can be run; if the key changes nothing, remove it"
BPE_ONLY = "only byte-level BPE tokenizers like GPT-2's can be run; mend the file, or give another --tokenizer"
# What can't be run: the file and key in the line that says it, and what to do.
REFUSED = {
    "rstrip": (
        lambda d: saved(d, lambda t: t.add_special_tokens({"mask_token": AddedToken("<m>", rstrip=True)})),
        "added token '<m>': rstrip is True, supported: False",
        BPE_ONLY,
    ),
    "lstrip next to spaces": (
        lambda d: saved(
            d, lambda t: (t.add_special_tokens({"mask_token": AddedToken("<m>", lstrip=True)}), t.add_tokens(["x "]))
        ),
        "added token 'x ' ends with a space, which lstrip of another one removes",
        BPE_ONLY,
    ),
    "a prefix space": (lambda d: saved(d, add_prefix_space=True), "add_prefix_space", BPE_ONLY),
    "a first token": (lambda d: of_files(d, tokenizer_config={"add_bos_token": True}), "post_processor", BPE_ONLY),
    "split_special_tokens": (
        lambda d: of_files(d, tokenizer_config={"split_special_tokens": True}),
        "tokenizer_config.json: split_special_tokens is True",
        BPE_ONLY,
    ),
    "words of another kind": (lambda d: edit_tokenizer(d, "model", type="WordLevel"), "model.type is 'WordLevel'", ""),
    "sentencepiece": (lambda d: (d / "spiece.model").touch(), "spiece.model is another kind of tokenizer", BPE_ONLY),
    "BERT's": (
        lambda d: rewrite(d / "config.json", tokenizer_class="BertTokenizer"),
        "config.json: tokenizer_class is 'BertTokenizer'",
        GPT2_ONLY,
    ),
    "untrained merges": (untrained_merges, "merge 3: expected two tokens that earlier merges leave, got 'ab", BPE_ONLY),
    "exact GELU": (
        lambda d: rewrite(bundled(d) / "config.json", activation_function="gelu"),
        "config.json: activation_function is 'gelu', supported: 'gelu_new'",
        GPT2_ONLY,
    ),
    "quantized": (
        lambda d: rewrite(bundled(d) / "config.json", quantization_config={"bits": 4}),
        "config.json: quantization_config is {'bits': 4}, supported: None",
        GPT2_ONLY,
    ),
    "an adapter": (
        lambda d: rewrite(bundled(d) / "adapter_config.json", base_model_name_or_path="gpt2"),
        "has an adapter for 'gpt2'",
        "merge it with peft",
    ),
    "no tokenizer": (
        lambda d: [(d / name).unlink() for name in ("merges.txt", "vocab.json")],
        "has no tokenizer, and the model's 1,280 tokens are not GPT-2's",
        "name its tokenizer with --tokenizer DIRECTORY",
    ),
}
TEXTS = [
    "Once upon a time <|user|>Hi<|end|>, a rabbit<|endoftext|>[PAD] x y <m> <image> fox\n",
    "rabbithole rabbits the café 日本 Ġx user<|us<|user|> singing in the thin air and on, abc abcab  \n\t",
    "",
    "<m> a \t\u3000\n<m>x<m> \x1c<m>\x85<m> <m>",
    "e\u0301\u00a0\x00 don't 'S 3.14 👍🏽 <|endoftext|> <|endoftext",
]


def check_equal(directory, source):
    """Tokens of texts and of the model: those that transformers makes of the source, in all these stages; and in
    transformers, which reads what was written."""
    theirs, reference = AutoTokenizer.from_pretrained(source), GPT2LMHeadModel.from_pretrained(source).eval()
    again = AutoTokenizer.from_pretrained(directory)
    ids = [theirs(text).input_ids for text in TEXTS]
    assert [again(text).input_ids for text in TEXTS] == ids
    decoded = [*ids, *(some[::-1] for some in ids), [1257, 1258, 0, 1260, 5, 1256, 70000]]
    texts = {skip: [theirs.decode(some, skip_special_tokens=skip) for some in decoded] for skip in (True, False)}
    for skip, expected_texts in texts.items():
        assert [again.decode(some, skip_special_tokens=skip) for some in decoded] == expected_texts
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
        shutil.copy(small_model / name, bundled(tmp_path))
    sizes = json.loads((tmp_path / "config.json").read_text())
    del sizes["eos_token_id"]
    (tmp_path / "config.json").write_text(json.dumps(sizes | config))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    theirs = GPT2LMHeadModel.from_pretrained(tmp_path).generation_config.eos_token_id
    convert.convert(tmp_path, tmp_path / "made")
    ours = STAGES[0].part("weights").read_config(str(tmp_path / "made"), tmp_path / "made", "auto")["eos_token_ids"]
    assert list(ours) == (theirs if isinstance(theirs, list) else [] if theirs is None else [theirs])
    assert GPT2LMHeadModel.from_pretrained(tmp_path / "made").generation_config.eos_token_id == theirs


@about_checkpoints
@pytest.mark.parametrize("kind", EQUAL)
def test_directories_that_are_read(small_model, tmp_path, monkeypatch, kind):
    source, directory = shutil.copytree(small_model, tmp_path / "model"), tmp_path / "made"
    EQUAL[kind](source)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "transformers", None)
        convert.convert(source, directory)
    check_equal(directory, source)


@about_checkpoints
@pytest.mark.parametrize("kind", BY_TRANSFORMERS)
def test_directories_that_transformers_reads(small_model, tmp_path, monkeypatch, kind):
    source, directory = shutil.copytree(small_model, tmp_path / "model"), tmp_path / "made"
    BY_TRANSFORMERS[kind](source)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "transformers", None)
        with pytest.raises(ValueError, match="pip install transformers, and convert it again") as error:
            convert.convert(source, directory)
    assert str(source) in str(error.value)
    convert.convert(source, directory)
    check_equal(directory, source)


@pytest.mark.parametrize("kind", REFUSED)
def test_directories_that_are_refused(small_model, refused, tmp_path, kind):
    make, what, remedy = REFUSED[kind]
    make(shutil.copytree(small_model, tmp_path / "model"))
    said = refused(tmp_path / "model")
    assert (what in said, remedy in said, str(tmp_path / "model") in said) == (True, True, True), said


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (dict(model_type="llama"), "model_type is 'llama'"),
        (dict(activation_function="relu"), "activation_function is 'relu'"),
        (dict(tie_word_embeddings=False), "tie_word_embeddings"),
        (dict(scale_attn_by_inverse_layer_idx=True), "scale_attn_by_inverse_layer_idx"),
        (dict(scale_attn_weights=1), "scale_attn_weights is 1, supported: True"),
        (dict(auto_map={"AutoModel": "x.Y"}), "auto_map is"),
        (dict(n_head=5), "n_embd 48 is not a multiple of n_head 5"),
        (dict(n_layer=0), "n_layer"),
        (dict(vocab_size="many"), "vocab_size"),
        (dict(n_positions=None), "n_positions"),
        (dict(n_layer=True), "n_layer must be a whole number from 1 to 1000, got True"),
        (dict(n_layer=10**9), "n_layer must be a whole number from 1 to 1000, got 1000000000"),
        (dict(n_embd=10**9), "n_embd must be a whole number"),
        (dict(vocab_size=10**4000), "vocab_size must be a whole number .*, got 1000+$"),
        (dict(layer_norm_epsilon=None), "layer_norm_epsilon"),
        (dict(eos_token_id="end"), "eos_token_id"),
        (dict(eos_token_id=True), "eos_token_id .* got True"),
        *((content, "") for content in ("{", "[]", "", "[" * 100_000, '{"n_layer":' * 100_000)),
    ],
    ids=lambda value: str(value)[:30],
)
def test_bad_config(small_model, tmp_path, changes, says):
    source = shutil.copytree(small_model, tmp_path / "model")
    (source / "generation_config.json").unlink(missing_ok=True)
    if isinstance(changes, str):
        (source / "config.json").write_text(changes)
    else:
        rewrite(source / "config.json", **changes)
    error = error_of(source, tmp_path / "made")
    assert "config.json" in error
    assert re.search(says, error)


def test_the_largest_sizes(tmp_path):
    """The configuration alone is read."""
    largest = dict(n_layer=1000, n_head=1000, n_embd=10**5, n_inner=10**6, n_positions=10**7, vocab_size=10**7)
    assert layout_config(tmp_path, largest).items() >= largest.items()
    assert layout_config(tmp_path, dict.fromkeys(largest, 1)).items() >= dict.fromkeys(largest, 1).items()
    for name, most in largest.items():
        for wrong in (0, most + 1):
            with pytest.raises(ValueError, match=f"{name} must be a whole number from 1 to {most}, got {wrong}"):
                layout_config(tmp_path, largest | {name: wrong})


def mutate(content, rng):
    """Realistic damage to a file: cut short, bytes changed, lost, doubled, or from elsewhere."""
    content, (a, b) = bytearray(content), sorted(rng.randrange(len(content)) for _ in range(2))
    kind = rng.randrange(6)
    if kind == 0:
        del content[a:]
    elif kind == 1:
        del content[a : min(b, a + 40)]
    elif kind == 2:
        content[a:a] = content[a : min(b, a + 40)]
    elif kind == 3:
        content[a : a + 8] = rng.randbytes(8)
    else:  # near the front, where what describes the rest is
        for _ in range(rng.randrange(1, 4)):
            content[rng.randrange(min(len(content), 2000))] ^= 1 << rng.randrange(8)
    return bytes(content)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A checkpoint of a few kilobytes in several layouts, with a tokenizer of its own."""
    directory = tmp_path_factory.mktemp("tiny")
    write_checkpoint(directory, n_layer=1, n_head=2, n_embd=4, n_positions=8, vocab_size=262)
    (directory / "generation_config.json").unlink(missing_ok=True)
    tensors = load_file(directory / "model.safetensors")
    names = sorted(tensors)
    for number, part in (("1", names[::2]), ("2", names[1::2])):
        save_file({name: tensors[name] for name in part}, directory / f"model-{number}-of-2.safetensors")
    torch.save(tensors, directory / "pytorch_model.bin")
    torch.save(tensors, directory / "legacy.bin", _use_new_zipfile_serialization=False)
    merges = ["Ġ t", "h e", "Ġt he", "i n", "Ġ a"]
    (directory / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8")
    tokens = [*STAGES[0].byte_alphabet(), *(merge.replace(" ", "") for merge in merges), END]
    (directory / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    return directory


@pytest.mark.parametrize(
    ("file", "layout"),
    [
        ("config.json", "model.safetensors"),
        ("merges.txt", "model.safetensors"),
        ("vocab.json", "model.safetensors"),
        ("model.safetensors", "model.safetensors"),
        ("pytorch_model.bin", "pytorch_model.bin"),
        ("legacy.bin", "pytorch_model.bin"),
        ("model-1-of-2.safetensors", "model-2-of-2.safetensors"),
    ],
)
@pytest.mark.parametrize("number", [40, pytest.param(200, marks=pytest.mark.soak)])
def test_damaged_files(tiny, tmp_path, monkeypatch, file, layout, number):
    """Each is converted, or a ValueError names the file or its directory."""
    monkeypatch.setitem(sys.modules, "transformers", None)  # it would take most of the time
    rng, errors, source = random.Random(0), 0, tmp_path / "model"
    source.mkdir()
    for name in ("config.json", "merges.txt", "vocab.json", layout):
        shutil.copy(tiny / name, source / name)
    original, target = (tiny / file).read_bytes(), source / ("pytorch_model.bin" if file == "legacy.bin" else file)
    for content in [original, *(mutate(original, rng) for _ in range(number))]:
        target.write_bytes(content)
        if error := error_of(source, tmp_path / "made"):
            errors += 1
            assert "\n" not in error
            assert str(source) in error, error
            assert content != original
    assert errors > number // 10


def error_of(source, directory) -> str | None:
    """What the ValueError says, if it can't be converted."""
    try:
        convert.convert(source, directory)
    except ValueError as error:
        return str(error)
    shutil.rmtree(directory)
    return None
