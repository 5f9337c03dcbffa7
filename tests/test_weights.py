"""What a stage loads: named models and directories in its layout, dtypes, shards, damage, and the hub, by a stand-in
server on loopback. What `stagewise convert` reads is tested in test_convert.py."""

import json
import re
import shutil
import sys
from pathlib import Path
from unittest.mock import Mock

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.adapter import STAGES, TINYTALES, edit_config, fetch_from, random_prompts, stages_that_change
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


def edit_tensors(directory, edit):
    tensors = load_file(directory / "model.safetensors")
    edit(tensors)
    save_file(tensors, directory / "model.safetensors")


def test_shards(stage, small_checkpoint, damaged):
    """And names without "transformer.", and causal masks, as in the files on the Hub."""
    tensors = load_file(damaged / "model.safetensors")
    (damaged / "model.safetensors").unlink()
    tensors = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    tensors["h.1.attn.bias"] = torch.ones(1, 1, 48, 48)
    for number in (0, 1):
        part = {name: tensors[name] for name in sorted(tensors)[number::2]}
        save_file(part, damaged / f"model-0000{number + 1}-of-00002.safetensors")
    assert greedy_tokens(stage, damaged) == greedy_tokens(stage, small_checkpoint)


def test_stored_in_half_precision_run_in_float32(stage, damaged):
    tensors = {name: tensor.half() for name, tensor in load_file(damaged / "model.safetensors").items()}
    save_file(tensors, damaged / "model.safetensors")
    model = stage.LLM(damaged, device="cpu").engine.runner.model
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert torch.equal(model.wte.weight, tensors["transformer.wte.weight"].float())


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


@pytest.mark.parametrize(
    ("change", "is_read"),
    [
        (lambda d: (d / "README.md").write_text("A card"), True),
        (lambda d: (d / "pytorch_model.bin").write_bytes(b"PK"), True),
        (lambda d: (d / "config.json").unlink(), False),
        (lambda d: (d / "config.json").write_text("[" * 100_000), False),
        (lambda d: (d / "config.json").write_text("[]"), False),
        (lambda d: rewrite(d / "config.json", stagewise=None), False),
        (lambda d: rewrite(d / "config.json", eos_token_id=5), False),
        (lambda d: rewrite(d / "config.json", transformers_version="5.24.0"), False),  # it was saved again
        (lambda d: (d / "merges.txt").write_text("#version: 0.2\nh e\n"), False),
        (lambda d: (d / "vocab.json").unlink(), False),
        (lambda d: (d / "tokenizer.json").write_text("{}"), False),  # which transformers would read instead
        (lambda d: (d / "added_tokens.json").write_text("{}"), False),
        (lambda d: (d / "generation_config.json").write_text('{"eos_token_id": 7}'), False),
    ],
)
def test_only_the_layout_is_read(stage, damaged, change, is_read):
    """A directory with the mark of `stagewise convert`, as it was written; the error has the command."""
    change(damaged)
    if is_read:
        stage.LLM(damaged, device="cpu")
        return
    says = (
        f"{damaged} is not in the layout that a stage reads; `stagewise convert {damaged} DIRECTORY` makes a directory"
    )
    with pytest.raises(ValueError, match=re.escape(says)) as error:
        stage.LLM(damaged, device="cpu")
    assert "\n" not in str(error.value)


def rewrite(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_files_instead_of_directories(stage, tmp_path):
    path = tmp_path / "my ckpt.pt"
    path.touch()
    with pytest.raises(ValueError, match=rf"ckpt.pt is not in the layout .* `stagewise convert '{path}' DIRECTORY`"):
        stage.LLM(path, device="cpu")


@pytest.mark.parametrize("keep", [0.0, 0.001, 0.02, 0.5, 0.999])
def test_truncated_weights(stage, damaged, keep):
    content = (damaged / "model.safetensors").read_bytes()
    (damaged / "model.safetensors").write_bytes(content[: int(len(content) * keep)])
    with pytest.raises(ValueError, match=r"model.safetensors can't be read: .*; `stagewise convert") as error:
        stage.LLM(damaged, device="cpu")
    assert "\n" not in str(error.value)


def test_weights_of_other_sizes(stage, damaged):
    edit_config(damaged, n_positions=49)
    with pytest.raises(ValueError, match=r"the shape of transformer.wpe.weight does not fit config.json; `stagewise"):
        stage.LLM(damaged, device="cpu")


def test_the_memory_that_the_weights_take(stage, small_checkpoint, monkeypatch):
    """Each has the size of its dtype, in int8 a byte. If they do not fit, none is read or made."""
    weights, model = stage.part("weights"), stage.part("model")
    sizes = weights.read_config(small_checkpoint, Path(small_checkpoint), "auto")
    with torch.device("meta"):
        count = sum(p.numel() for p in model.GPT2(model.ModelConfig(**sizes)).parameters())
    monkeypatch.setattr(weights, "free_memory", lambda _: 5)
    for name in ("read_tensors", "dummy_tensors"):
        monkeypatch.setattr(weights, name, None)
    cases = [({"dtype": "float32"}, 4), ({"dtype": "bfloat16", "load_format": "dummy"}, 2), ({"weights": "int8"}, 1)]
    for options, size in cases if stage.has_option("weights") else cases[:2]:
        says = f"the weights take {count * size:,} bytes of memory, but only 5 are free; see --dtype"
        with pytest.raises(ValueError, match=says):
            stage.LLM(small_checkpoint, device="cpu", **options)


def test_missing_and_unexpected_tensors(stage, damaged):
    edit_tensors(damaged, lambda tensors: tensors.pop("transformer.h.1.mlp.c_fc.bias"))
    with pytest.raises(ValueError, match=r"missing h\.1\.mlp\.c_fc\.bias"):
        stage.LLM(damaged, device="cpu")
    more = {"transformer.h.1.mlp.c_fc.bias": torch.zeros(100), "transformer.h.1.mlp.gate": torch.zeros(3)}
    edit_tensors(damaged, lambda tensors: tensors.update(more))
    with pytest.raises(ValueError, match=r"unexpected h\.1\.mlp\.gate; `stagewise convert"):
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
    fetched = {path.rsplit("/", 1)[-1] for path in hub.requested if "/resolve/" in path}
    assert fetched == {"config.json", "vocab.json", "merges.txt", "model.safetensors"}
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
