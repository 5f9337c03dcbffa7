"""Loading checkpoints: layouts, dtypes, shards, damage, and the hub, by a stand-in server on loopback."""

import json
import random
import re
import shutil
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2LMHeadModel

from tests.adapter import ROOT, STAGES, TINYTALES, fetch_from, random_prompts, stages_that_change, write_checkpoint
from tests.hub import hub_with

pytestmark = pytest.mark.covers("support/weights.py", "fast_model.py")


def greedy_tokens(stage, model, **arguments):
    llm = stage.LLM(str(model), device="cpu", **arguments)
    params = stage.SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    return [output.outputs[0].token_ids for output in llm.generate(random_prompts(211, [5, 2]), params)]


@pytest.fixture
def damaged(small_checkpoint, tmp_path):
    """A copy of a checkpoint, to be damaged."""
    return shutil.copytree(small_checkpoint, tmp_path / "model")


@pytest.mark.skipif(sys.platform != "linux", reason="it reads what Linux says of a process")
def test_a_loaded_model_is_independent_of_its_file(stage, damaged):
    """The file is no longer mapped into memory, so it may be overwritten or truncated."""
    llm = stage.LLM(str(damaged), device="cpu")
    params = stage.SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    expected = llm.generate([[1, 2, 3]], params)[0].outputs[0].token_ids
    assert str(damaged) not in Path("/proc/self/maps").read_text()
    (damaged / "model.safetensors").write_bytes(b"")
    assert llm.generate([[1, 2, 3]], params)[0].outputs[0].token_ids == expected


def edit_config(directory, **changes):
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, **changes}))


def edit_tensors(directory, edit):
    tensors = load_file(directory / "model.safetensors")
    edit(tensors)
    save_file(tensors, directory / "model.safetensors")


@pytest.mark.parametrize("layout", ["safetensors", "sharded", "bin", "old bin"])
def test_layouts(stage, small_checkpoint, tmp_path, layout):
    model = GPT2LMHeadModel.from_pretrained(small_checkpoint)
    if layout == "safetensors":
        model.save_pretrained(tmp_path)
    elif layout == "sharded":
        model.save_pretrained(tmp_path, max_shard_size="40KB")
        assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    else:
        state = {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
        model.config.save_pretrained(tmp_path)
        torch.save(state, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=layout == "bin")
    shutil.copy2(small_checkpoint / "merges.txt", tmp_path)
    assert greedy_tokens(stage, tmp_path) == greedy_tokens(stage, small_checkpoint)


def test_stored_in_half_precision_run_in_float32(stage, small_checkpoint, tmp_path):
    GPT2LMHeadModel.from_pretrained(small_checkpoint, dtype=torch.float16).save_pretrained(tmp_path)
    shutil.copy2(small_checkpoint / "merges.txt", tmp_path)
    llm = stage.LLM(tmp_path, device="cpu")
    assert {p.dtype for p in llm.engine.runner.model.parameters()} == {torch.float32}
    with pytest.raises(AssertionError):
        torch.testing.assert_close(
            llm.engine.runner.model.wte.weight,
            stage.engine(small_checkpoint).engine.runner.model.wte.weight,
            rtol=0,
            atol=0,
        )
    torch.testing.assert_close(
        llm.engine.runner.model.wte.weight,
        stage.engine(small_checkpoint).engine.runner.model.wte.weight,
        rtol=1e-3,
        atol=0.1,
    )


@pytest.mark.parametrize("model", ["gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"])
def test_sizes_of_the_named_models(stage, model):
    """The parameter counts of Radford et al. 2019, as Hugging Face counts them."""
    weights, gpt2 = stage.part("weights"), stage.part("model").GPT2
    config = weights.read_config(model, weights.find_model(model, "dummy"), "dummy")
    with torch.device("meta"):
        count = sum(p.numel() for p in gpt2(stage.part("model").ModelConfig(**config)).parameters())
    counts = {"gpt2": 124439808, "gpt2-medium": 354823168, "gpt2-large": 774030080, "gpt2-xl": 1557611200}
    assert count == counts[model]


def test_dummy_weights(stage, small_checkpoint):
    """Random, but the same every time; no weight file is needed."""
    kept = {"disable": ["linear"]} if stage.has_option("disable") else {}  # else the kernels take the weights
    llm = stage.LLM(small_checkpoint, load_format="dummy", device="cpu", **kept)
    assert greedy_tokens(stage, small_checkpoint, load_format="dummy") == greedy_tokens(
        stage, small_checkpoint, load_format="dummy"
    )
    assert llm.engine.runner.model.h[0].attn.c_attn.weight.std() == pytest.approx(0.02, rel=0.1)
    assert greedy_tokens(stage, small_checkpoint) != greedy_tokens(stage, small_checkpoint, load_format="dummy")


def test_dummy_weights_are_the_same_in_every_stage(stage):
    shapes = {"wte.weight": torch.Size([5, 4]), "h.0.attn.c_attn.weight": torch.Size([12, 4])}
    made = [dict(one.part("weights").dummy_tensors(shapes)) for one in (stage, STAGES[0], STAGES[-1])]
    assert all(torch.equal(tensors[name], tensor) for tensors in made for name, tensor in made[0].items())


# --- What can be wrong ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [0.0, 0.001, 0.02, 0.5, 0.999])
@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
def test_truncated_file(stage, damaged, file, keep):
    if file == "pytorch_model.bin":
        torch.save(load_file(damaged / "model.safetensors"), damaged / file)
        (damaged / "model.safetensors").unlink()
    content = (damaged / file).read_bytes()
    (damaged / file).write_bytes(content[: int(len(content) * keep)])
    with pytest.raises(ValueError, match=f"{file} is damaged, or has more in it than tensors") as error:
        stage.LLM(damaged, device="cpu")
    assert "\n" not in str(error.value)


class Attack:
    """In a pickle: opens a file."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("kind", ["LFS", "HTML", "GGUF", "empty", "a list", "no tensors", "training", "attack"])
def test_something_else_instead_of_weights(stage, damaged, file, kind):
    """The message shows how the file begins and says what to do, but never torch's advice, to let the file run code."""
    kinds = {
        "LFS": b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 548105171\n",
        "HTML": b"<!DOCTYPE html>\n<html>Sign in</html>",
        "GGUF": b"GGUF\x03\0\0\0",
        "empty": b"",
        "a list": b"\x80\x02]q\x00.",
    }
    (damaged / "model.safetensors").unlink()
    if kind in kinds:
        (damaged / file).write_bytes(kinds[kind])
    elif file == "pytorch_model.bin":
        content = {
            "no tensors": "text",
            "training": {"wte.weight": torch.zeros(2)},
            "attack": Attack(damaged / "pwned"),
        }
        torch.save({"model": content[kind]}, damaged / file)
    else:
        return
    with pytest.raises(ValueError, match=f"{file} is damaged, or has more in it than tensors") as error:
        stage.LLM(damaged, device="cpu")
    begin = kinds.get(kind, b"PK")[:10]
    assert f"(it begins with {begin!r}"[:-1] in str(error.value)
    assert f"`stagewise convert {damaged} DIRECTORY`" in str(error.value)
    assert "weights_only" not in str(error.value)
    assert not (damaged / "pwned").exists()


def test_thousands_of_unknown_tensors(stage, damaged):
    """Opening the file for each would take long, since its header lists all names."""
    edit_tensors(damaged, lambda tensors: tensors.update({f"extra.{i}": torch.zeros(1) for i in range(20_000)}))
    started = time.process_time()
    with pytest.raises(ValueError, match=r"unexpected extra.0, .* and 19995 more"):
        stage.LLM(damaged, device="cpu")
    assert time.process_time() - started < 30  # it took minutes


def test_a_file_is_not_opened_for_each_of_its_tensors(stage, damaged, monkeypatch):
    """Opening it reads the names of all tensors."""
    part, opened = stage.part("weights"), []
    original = part.safe_open
    monkeypatch.setattr(part, "safe_open", lambda *arguments, **more: opened.append(1) or original(*arguments, **more))
    stage.LLM(damaged, device="cpu")
    assert len(load_file(damaged / "model.safetensors")) > 20
    assert len(opened) <= 4


def test_too_large_for_the_memory(stage, damaged):
    edit_config(damaged, n_embd=60_000, n_inner=10**6, n_layer=50)
    for load_format in ("auto", "dummy"):
        with pytest.raises(ValueError, match=r"the weights take [\d,]{15,} bytes of memory, but only [\d,]+ are free"):
            stage.LLM(damaged, device="cpu", load_format=load_format)


def test_the_memory_that_the_weights_take(stage, small_checkpoint, monkeypatch):
    """Each has the size of its dtype, in int8 a byte."""
    weights, model = stage.part("weights"), stage.part("model")
    sizes = weights.read_config(small_checkpoint, Path(small_checkpoint), "auto")
    with torch.device("meta"):
        count = sum(p.numel() for p in model.GPT2(model.ModelConfig(**sizes)).parameters())
    monkeypatch.setattr(weights, "free_memory", lambda _: 5)
    cases = [({"dtype": "float32"}, 4), ({"dtype": "bfloat16"}, 2), ({"weights": "int8"}, 1)]
    for options, size in cases if stage.has_option("weights") else cases[:2]:
        with pytest.raises(ValueError, match=f"the weights take {count * size:,} bytes of memory, but only 5 are free"):
            stage.LLM(small_checkpoint, device="cpu", **options)


def test_missing_and_unexpected_tensors(stage, damaged):
    edit_tensors(damaged, lambda tensors: tensors.pop("transformer.h.1.mlp.c_fc.bias"))
    with pytest.raises(ValueError, match=r"missing h\.1\.mlp\.c_fc\.bias"):
        stage.LLM(damaged, device="cpu")
    edit_tensors(damaged, lambda tensors: tensors.update({"transformer.h.1.mlp.gate": torch.zeros(3)}))
    with pytest.raises(ValueError, match=r"unexpected transformer\.h\.1\.mlp\.gate"):
        stage.LLM(damaged, device="cpu")


def test_large_values_are_finite(stage, damaged):
    """Even if their sum is not; one that is not finite is found among them, wherever it is."""
    for value in (3e38, -3e38):
        edit_tensors(damaged, lambda tensors, value=value: tensors["transformer.wte.weight"].fill_(value))
        for dtype in ("float32", "bfloat16"):
            stage.LLM(damaged, device="cpu", dtype=dtype)
    for value in (float("nan"), float("inf"), -float("inf")):
        for place in (0, 101, -1):
            edit_tensors(damaged, lambda tensors: tensors["transformer.wte.weight"].fill_(3e38))
            edit_tensors(
                damaged, lambda t, v=value, i=place: t["transformer.wte.weight"].view(-1)[i : i + 1 or None].fill_(v)
            )
            for dtype in ("float32", "bfloat16"):
                with pytest.raises(ValueError, match=r"wte.weight' has values that are not finite"):
                    stage.LLM(damaged, device="cpu", dtype=dtype)


def test_overflow_in_float16(stage, damaged):
    edit_tensors(damaged, lambda tensors: tensors["transformer.ln_f.bias"].fill_(1e5))
    stage.LLM(damaged, device="cpu")
    with pytest.raises(ValueError, match=r"not finite in torch.float16"):
        stage.LLM(damaged, device="cpu", dtype="float16")


def test_an_output_layer_of_its_own(stage, damaged):
    edit_tensors(damaged, lambda tensors: tensors.update({"lm_head.weight": torch.zeros(211, 48)}))
    with pytest.raises(ValueError, match=r"lm_head.weight differs"):
        stage.LLM(damaged, device="cpu")


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        (dict(model_type="llama"), "model_type is 'llama'"),
        (dict(activation_function="relu"), "activation_function is 'relu'"),
        (dict(activation_function="gelu"), "activation_function is 'gelu', supported: 'gelu_new'"),
        (dict(tokenizer_class="BertTokenizer"), "tokenizer_class is 'BertTokenizer'"),
        (dict(num_attention_heads=4), "unsupported key 'num_attention_heads' may change numbers; `stagewise convert"),
        (dict(num_attention_heads=3), "unsupported key 'num_attention_heads'"),
        (dict(quantization_config={"bits": 4}), "unsupported key 'quantization_config'"),
        (dict(auto_map={"AutoModel": "x.Y"}), "unsupported key 'auto_map'"),
        (dict(pruned_heads={"0": [1]}), "unsupported key 'pruned_heads'"),
        (dict(rotary_dim=64), "unsupported key 'rotary_dim'"),
        (dict(tie_word_embeddings=False), "tie_word_embeddings"),
        (dict(scale_attn_by_inverse_layer_idx=True), "scale_attn_by_inverse_layer_idx"),
        (dict(n_head=5), "n_embd 48 is not a multiple of n_head 5"),
        (dict(n_layer=0), "n_layer"),
        (dict(vocab_size="many"), "vocab_size"),
        (dict(n_positions=None), "n_positions"),
        (dict(eos_token_id="end"), "eos_token_id"),
        (dict(eos_token_id=True), "eos_token_id .* got True"),
        (dict(n_layer=True), "n_layer must be a whole number from 1 to 1000, got True"),
        (dict(n_layer=10**9), "n_layer must be a whole number from 1 to 1000, got 1000000000"),
        (dict(n_embd=10**9), "n_embd must be a whole number"),
        (dict(vocab_size=10**4000), "vocab_size must be a whole number .*, got 1000+$"),
        (dict(scale_attn_weights=1), "scale_attn_weights is 1, supported: True"),
        (dict(layer_norm_epsilon=None), "layer_norm_epsilon"),
    ],
)
def test_bad_config(stage, damaged, changes, names):
    edit_config(damaged, **changes)
    with pytest.raises(ValueError, match=names) as error:
        stage.LLM(damaged, device="cpu")
    assert "config.json" in str(error.value)


def test_the_largest_sizes(stage, tmp_path):
    """The configuration alone is read."""
    largest = dict(n_layer=1000, n_head=1000, n_embd=10**5, n_inner=10**6, n_positions=10**7, vocab_size=10**7)

    def read(**sizes):
        (tmp_path / "config.json").write_text(json.dumps(sizes))
        return stage.part("weights").read_config(str(tmp_path), tmp_path, "auto")

    assert read(**largest).items() >= largest.items()
    assert read(**dict.fromkeys(largest, 1)).items() >= dict.fromkeys(largest, 1).items()
    for name, most in largest.items():
        for wrong in (0, most + 1):
            with pytest.raises(ValueError, match=f"{name} must be a whole number from 1 to {most}, got {wrong}"):
                read(**largest | {name: wrong})


@pytest.mark.parametrize("content", ["{", "[]", "", "[" * 100_000, '{"n_layer":' * 100_000])
def test_config_that_is_no_json_object(stage, damaged, content):
    (damaged / "config.json").write_text(content)
    with pytest.raises(ValueError, match=r"config.json"):
        stage.LLM(damaged, device="cpu")


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
        (lambda t: t[0], r"has shape \[\], config.json implies \[48\]"),
    ],
)
def test_kinds_of_tensors(stage, damaged, change, says):
    tensors = load_file(damaged / "model.safetensors")
    (damaged / "model.safetensors").unlink()
    tensors["transformer.ln_f.bias"] = change(tensors["transformer.ln_f.bias"])
    torch.save(tensors, damaged / "pytorch_model.bin")
    with pytest.raises(ValueError, match=says) as error:
        stage.LLM(damaged, device="cpu")
    assert "pytorch_model.bin" in str(error.value)
    assert "transformer.ln_f.bias" in str(error.value)


def test_tensors_that_do_not_lie_in_a_row(stage, damaged):
    """Transposed in memory, every other number, one number for all, and with a gradient: the same values."""
    tensors = load_file(damaged / "model.safetensors")
    tensors["transformer.ln_f.bias"] = torch.ones(48)
    save_file(tensors, damaged / "model.safetensors")
    expected = greedy_tokens(stage, damaged)
    (damaged / "model.safetensors").unlink()
    tensors["transformer.ln_f.bias"] = torch.ones(1).expand(48)
    tensors["transformer.wte.weight"] = tensors["transformer.wte.weight"].t().contiguous().t()
    tensors["transformer.wpe.weight"] = torch.nn.Parameter(tensors["transformer.wpe.weight"])
    bias = tensors["transformer.h.0.attn.c_attn.bias"]
    tensors["transformer.h.0.attn.c_attn.bias"] = torch.stack([bias, -bias], dim=1)[:, 0]
    torch.save(tensors, damaged / "pytorch_model.bin")
    assert greedy_tokens(stage, damaged) == expected


def test_a_tensor_that_is_given_twice(stage, damaged):
    edit_tensors(damaged, lambda tensors: tensors.update({"ln_f.bias": torch.zeros(48)}))
    with pytest.raises(ValueError, match=r"model.safetensors: tensor 'transformer.ln_f.bias' appears twice"):
        stage.LLM(damaged, device="cpu")
    edit_tensors(damaged, lambda tensors: tensors.pop("ln_f.bias"))
    (damaged / "model.safetensors").rename(damaged / "model-1-of-2.safetensors")
    save_file({"transformer.ln_f.bias": torch.zeros(48)}, damaged / "model-2-of-2.safetensors")
    with pytest.raises(ValueError, match=r"model-2-of-2.safetensors: tensor 'transformer.ln_f.bias' appears twice"):
        stage.LLM(damaged, device="cpu")
    (damaged / "model-1-of-2.safetensors").unlink()
    with pytest.raises(ValueError, match=r"missing h.0.attn.c_attn.bias, .* and 22 more"):
        stage.LLM(damaged, device="cpu")


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
    """A checkpoint of a few kilobytes in every layout, with a tokenizer of its own."""
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
    alphabet = STAGES[0].part("vocabulary").byte_alphabet()
    tokens = [*alphabet, *(merge.replace(" ", "") for merge in merges), "<|endoftext|>"]
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
@pytest.mark.parametrize("number", [60, pytest.param(200, marks=pytest.mark.soak)])
def test_damaged_files(tiny, tmp_path, file, layout, number):
    """Each loads, or a ValueError names the file or its directory. On one stage: what reads the files is the same."""
    rng, weights, errors = random.Random(0), STAGES[0].part("weights"), []
    for name in ("config.json", "merges.txt", "vocab.json", layout):
        shutil.copy(tiny / name, tmp_path / name)
    original, target = (tiny / file).read_bytes(), tmp_path / ("pytorch_model.bin" if file == "legacy.bin" else file)
    target.write_bytes(original)
    assert load_like_an_engine(weights, tmp_path) is None
    for _ in range(number):
        target.write_bytes(mutate(original, rng))
        if error := load_like_an_engine(weights, tmp_path):
            errors.append(error)
            assert "\n" not in error
            assert str(tmp_path) in error, error
    assert len(errors) > number // 10


def load_like_an_engine(weights, directory) -> str | None:
    """What the ValueError says, if there is one."""
    parts = STAGES[0].part("model")
    try:
        checkpoint = weights.Checkpoint(SimpleNamespace(model=str(directory), load_format="auto", tokenizer=None))
        assert checkpoint.tokenizer
        with torch.device("meta"):
            model = parts.GPT2(parts.ModelConfig(**checkpoint.sizes))
        checkpoint.load(model, torch.float32, torch.device("cpu"))
    except ValueError as error:
        return str(error)
    return None


def test_a_model_without_a_tokenizer(stage, small_checkpoint, tmp_path, caplog):
    """One with as many tokens as GPT-2 gets GPT-2's, and the log says so; another is refused, but for one by name."""
    write_checkpoint(tmp_path, n_layer=1, n_head=2, n_embd=4, n_positions=8, vocab_size=50304)
    (tmp_path / "merges.txt").unlink()
    llm = stage.LLM(str(tmp_path), device="cpu")
    assert "has no tokenizer (tokenizer.json or merges.txt): GPT-2's is used" in caplog.text
    assert llm.get_tokenizer().encode("Once upon") == [7454, 2402]
    caplog.clear()
    bare = shutil.copytree(small_checkpoint, tmp_path / "bare")
    (bare / "merges.txt").unlink()
    with pytest.raises(ValueError, match=r"bare has no tokenizer .*; name one with --tokenizer"):
        stage.LLM(str(bare), device="cpu")
    stage.LLM(str(bare), device="cpu", tokenizer="gpt2")
    own = tmp_path / "own"
    own.mkdir()
    (own / "merges.txt").write_text("#version: 0.2\nO n\nc e\nOn ce\n")
    assert stage.LLM(str(bare), device="cpu", tokenizer=str(own)).get_tokenizer().encode("Once") == [258]
    assert not caplog.text
    for tokenizer, says in [("nonesuch", "no directory nonesuch"), (str(bare), "bare has no tokenizer")]:
        with pytest.raises(ValueError, match=says):
            stage.LLM(str(small_checkpoint), device="cpu", tokenizer=tokenizer)
    for name in ("spiece.model", "tokenizer.model", "vocab.txt", "tekken.json"):  # with merges.txt or without
        for directory in (bare, own):
            (directory / name).write_text("")
            with pytest.raises(ValueError, match=f"{name} is another kind of tokenizer"):
                stage.LLM(str(bare), device="cpu", tokenizer=str(directory))
            (directory / name).unlink()
    (bare / "vocab.json").write_text("{}")
    with pytest.raises(ValueError, match="bare has no tokenizer"):
        stage.LLM(str(bare), device="cpu")


def test_the_lines_of_using_make_a_model(stage, tmp_path, monkeypatch):
    """The three lines of USING.md, as they stand there, but for the name of the model: nothing is fetched here."""
    text = (ROOT / "docs" / "USING.md").read_text(encoding="utf-8")
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "save_pretrained" in block)
    assert len([line for line in code.splitlines() if line]) == 3
    monkeypatch.chdir(tmp_path)
    exec(code.replace('"openai-community/gpt2"', repr(str(TINYTALES))), {})
    prompt, params = ["Once upon a time"], stage.SamplingParams(temperature=0, max_tokens=5)
    outputs = [stage.LLM(model, device="cpu").generate(prompt, params)[0].outputs for model in ("my-gpt2", "tinytales")]
    assert outputs[0] == outputs[1]


def test_lost_files(stage, damaged, tmp_path):
    """If it is not a model's directory, `stagewise convert` can say what it is."""
    (damaged / "model.safetensors").unlink()
    command = re.escape(
        f"; `stagewise convert {damaged} DIRECTORY` makes a directory that can be read, or says why not"
    )
    with pytest.raises(ValueError, match=f"neither model.safetensors nor pytorch_model.bin{command}"):
        stage.LLM(damaged, device="cpu")
    (damaged / "adapter_config.json").write_text("{}")
    with pytest.raises(ValueError, match=f"adapter_config.json is an adapter, which is not applied here{command}"):
        stage.LLM(damaged, device="cpu")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"has no config.json; `stagewise convert .*empty DIRECTORY`"):
        stage.LLM(tmp_path / "empty", device="cpu")
    for name in ("ckpt.pt", "model.gguf", "config.json"):
        (damaged / name).touch()
        with pytest.raises(
            ValueError, match=f"{name}' is a file, not a directory; `stagewise convert .*{name} DIRECTORY`"
        ):
            stage.LLM(damaged / name, device="cpu")


# --- The hub --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hub():
    """A Hub that has the bundled model under gpt2's name."""
    with hub_with("models/openai-community/gpt2") as server:
        server.files |= {path.name: path.read_bytes() for path in TINYTALES.iterdir() if path.is_file()}
        server.files["flax_model.msgpack"] = b"never asked for"
        yield server


# What fetches is in this file alone.
fetching = pytest.mark.parametrize("stage", stages_that_change("support/weights.py"), ids=str)


@fetching
def test_fetch_from_the_hub_and_then_from_the_cache(stage, hub, tmp_path, monkeypatch):
    """The first stage in a separate process, which reads its environment."""
    endpoint = f"http://127.0.0.1:{hub.server_port}"
    environment = {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
    command = ["--model", "gpt2", "--prompts", "Once upon a time", "--temperature", 0, "--max-tokens", 8]
    fetch_from(monkeypatch, endpoint, tmp_path)
    status, stdout, stderr = stage.run(*command, **environment) if stage is STAGES[0] else stage.main(*command)
    assert status == 0, stderr
    params = stage.SamplingParams(temperature=0, max_tokens=8)
    expected = stage.engine().generate(["Once upon a time"], params)[0].outputs[0].text
    assert stdout == f"Once upon a time{expected}\n"
    assert not any("flax" in path for path in hub.requested)
    # Without the server: the cache answers.
    fetch_from(monkeypatch, endpoint, tmp_path, offline=True)
    hub.requested.clear()
    status, stdout, stderr = stage.main(*command)
    assert status == 0, stderr
    assert expected in stdout
    assert hub.requested == []


@fetching
def test_no_network_and_nothing_cached(stage, tmp_path, monkeypatch):
    fetch_from(monkeypatch, "http://127.0.0.1:9", tmp_path)
    status, stdout, stderr = stage.main("--model", "gpt2", "--prompts", "x")
    assert status == 2
    assert stdout == ""
    last = stderr.strip().split("\n")[-1]
    assert "gpt2" in last
    assert "can't be fetched" in last
    assert "tinytales" in last
    assert "Traceback" not in stderr


@pytest.mark.parametrize(("error", "why"), [(OSError(" no route\nto there"), "no route"), (EOFError(), "EOFError")])
def test_why_a_model_can_not_be_fetched(stage, monkeypatch, error, why):
    """The first line of what huggingface_hub says, or its kind."""
    monkeypatch.setattr(huggingface_hub, "snapshot_download", Mock(side_effect=error))
    with pytest.raises(OSError, match=f"^model 'gpt2' can't be fetched: {why}; without a network use"):
        stage.part("weights").download("gpt2")
