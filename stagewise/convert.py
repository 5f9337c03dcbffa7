"""Make a directory that every stage reads from a model in another format.

    stagewise convert ckpt.pt DIRECTORY --gelu tanh     the file of a training program (nanoGPT, Lightning, DDP ...)
    stagewise convert SOURCE DIRECTORY                  a directory in another layout, such as a fine-tuned GPT-2's

Read next: docs/USING.md, "Your own model".

The result gives transformers' tokens and logits, or nothing is written. What is in no common form is read by
transformers (`pip install transformers`) and compared with it. If a model can't be run, the error says why and what to
do.
"""

import re
import shutil
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from .exits import Outcome, tell
from .layout import (
    GENERATION,
    LARGEST,
    REMEDIES,
    UnknownKey,
    check_config,
    end_tokens,
    known_keys,
    layout_config,
    write_config,
)
from .parser import Parser
from .stages import STAGES
from .strict_json import read_json, write_json
from .vocabulary import SPARE, TOKENIZER_FILES, Vocabulary, is_known_setting, read_vocabulary

WEIGHTS = ("model", "state_dict", "model_state_dict", "module")  # where a training program keeps the weights,
SIZES = ("config", "model_args", "model_config", "hyper_parameters", "args")  # and their sizes
# Of torch.compile, DistributedDataParallel, Lightning and Hugging Face.
PREFIXES = ("_orig_mod.", "module.", "model.", "transformer.")  # of tensors' names
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
MASKS = (".attn.bias", ".attn.masked_bias")  # the causal mask, which some programs store
HEADS = ("n_head", "n_heads", "num_heads", "num_attention_heads")
HEADS_OF = {(12, 768): 12, (24, 1024): 16, (36, 1280): 20, (48, 1600): 25}  # GPT-2's own: (n_layer, n_embd) -> n_head
GPT2_TOKENS = 50257, 50257 + SPARE  # a vocabulary may be rounded up, usually to 50,304
GELUS = {"gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "gelu": "exact"}
# Our words for errors in which transformers advises developers, for example to run a pickle's code.
REASONS = {
    "weights_only": "a .bin is damaged, or contains more than tensors, which could run code",
    "ignore_mismatched_sizes": "its tensors' shapes differ from config.json",
}
TEXTS = (
    "Once upon a time, there's a fox; it didn't say 3.14  \n\n\tnaïve <|endoftext|> 日本語 👍🏽 e\u0301",
    "'s 'S 't’s ''s   <|endoftext|x \x00\x7f\xa0\u2028 1,000,000 __init__(self)",
)


def convert(
    source: Path,
    directory: Path,
    gelu: str | None = None,
    n_head: int | None = None,
    tokenizer: Path | None = None,
    link: bool = False,
) -> list[str]:
    """Write the directory; returns notes for the user. If it raises ValueError or OSError, nothing is written.

    link: link to weights that are good as they are, instead of copying them.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ValueError(f"{directory} exists: give a new or empty directory")
    if not source.exists():
        raise ValueError(f"there is no file or directory {source}")
    if idle := [flag for flag, value in (("--gelu", gelu), ("--n-head", n_head)) if source.is_dir() and value]:
        raise ValueError(f"{idle[0]} is for a training program's file, but {source} is a directory")
    if tokenizer is not None and not has_tokenizer(tokenizer):
        raise ValueError(f"--tokenizer: there is no tokenizer in {tokenizer}; give a directory that has one")
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent) as folder:
        made = Path(folder) / "model"
        made.mkdir()
        try:
            if source.is_dir():
                notes = convert_directory(source, made, tokenizer, link)
            else:
                notes = convert_file(source, made, gelu, n_head, tokenizer)
        except ValueError as error:
            raise ValueError(str(error).replace(str(made), str(source))) from None
        if directory.exists():
            directory.rmdir()
        made.rename(directory)
    return notes


# --- A file of a training program -----------------------------------------------------------------------------------


def convert_file(source: Path, made: Path, gelu: str | None, n_head: int | None, tokenizer: Path | None) -> list[str]:
    """Write the weights, sizes and tokenizer of a training checkpoint."""
    content = load_content(source)
    told: dict[str, Any] = {}
    for key in SIZES:
        told |= content[key] if isinstance(content.get(key), dict) else {}
    stored = state_of(content)
    tensors, masks = weights_of(stored, source)
    layers = {name.split(".")[1] for name in tensors if name.startswith("h.")}
    vocab_size, n_embd = tensors["wte.weight"].shape
    heads = next((told[name] for name in HEADS if name in told), HEADS_OF.get((len(layers), n_embd)))
    if n_head is not None and heads not in (None, n_head):
        raise ValueError(f"--n-head is {n_head}, but {source} says {heads}")
    if (heads := n_head or heads) is None:
        raise ValueError(f"{source} does not say how many heads there are, nor do its tensors: give --n-head")
    given, gelu = gelu, GELUS.get(told.get("activation_function", ""), gelu)
    if gelu is None:
        raise ValueError(
            f"{source} does not say which GELU it was trained with: give --gelu tanh for GPT-2's form; the exact one, "
            "nanoGPT's since 2023, can't be run here"
        )
    if gelu == "exact":
        raise ValueError(f"{source} was trained with the exact GELU: only GPT-2's, the tanh form, can be run here")
    if given not in (None, gelu):
        raise ValueError(f"--gelu is {given}, but {source} says {told['activation_function']}")
    config = {
        **dict(n_layer=len(layers), n_head=heads, n_embd=n_embd, n_inner=tensors["h.0.mlp.c_fc.weight"].shape[1]),
        **dict(n_positions=tensors["wpe.weight"].shape[0], vocab_size=vocab_size),
        **dict(layer_norm_epsilon=told.get("layer_norm_epsilon", 1e-5)),
        **dict(eos_token_id=end_tokens(source, told.get("eos_token_id", 50256), vocab_size)),
    }
    check_config(source, config)
    zeros = zero_biases(tensors)
    check_tensors(source, tensors | zeros, config)
    write_weights(made, tensors | zeros)
    compare_weights(made, stored, masks, {*zeros})
    notes = [f"trained without these biases, which are zeros now: {name_some(zeros)}"] if zeros else []
    notes += [f"left out, since every stage makes it: {name_some(masks)}"] if masks else []
    notes += convert_tokenizer(source.parent, tokenizer, made, vocab_size)
    write_config(made, config)
    open_model(made)
    return notes


def load_content(path: Path) -> dict[str, Any]:
    """The dictionary in a file. No code in it is run."""
    import torch
    from safetensors.torch import load_file

    with path.open("rb") as file:
        begin = file.read(64)
    check_begin(path, begin)
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=begin.startswith(b"PK"))
    except Exception as error:  # a damaged pickle can raise anything; torch's text says how to let it run code
        raise ValueError(
            f"{path} is truncated or damaged, or contains more than tensors and plain values, which could run code; in "
            "the training program, save it as torch.save({'model': model.state_dict(), 'config': {'n_head': N}}, path)"
        ) from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} contains no dictionary of weights: save model.state_dict()")
    return content


def state_of(content: dict[str, Any]) -> dict[str, Any]:
    """A model's tensors, by the names that a training program gave them."""
    import torch

    inner = next((content[key] for key in WEIGHTS if isinstance(content.get(key), dict)), content)
    return {str(name): tensor.detach() for name, tensor in inner.items() if isinstance(tensor, torch.Tensor)}


def check_begin(path: Path, begin: bytes) -> None:
    """Raise ValueError for a file that begins like one of another kind."""
    if not begin:
        raise ValueError(f"{path} is empty: fetch or save it again")
    kinds = {
        b"version https://git-lfs": "is a Git LFS pointer: fetch the file with `git lfs pull`",
        b"GGUF": "is GGUF, whose weights are usually quantized: give the original model",
        b"\x89HDF": "is a TensorFlow model: give the model for PyTorch",
        b"<": "is a web page, not a model: download the file itself",
        b"{": "is JSON, not a model: give its directory",
    }
    for start, kind in kinds.items():
        if begin.lstrip().startswith(start):
            raise ValueError(f"{path} {kind}")


# --- Weights --------------------------------------------------------------------------------------------------------


def plain_name(name: Any) -> str:
    """A tensor's name without what programs put before it."""
    while prefix := next((prefix for prefix in PREFIXES if str(name).startswith(prefix)), None):
        name = name.removeprefix(prefix)
    return str(name)


def weights_of(stored: dict[str, Any], path: Path) -> tuple[dict[str, Any], set[str]]:
    """The stored tensors under Hugging Face's names and in its orientation, in which linear layers are [in, out]; and
    the names of the causal masks, which are no weights."""
    import torch

    tensors = {}
    masks = {name for name in stored if name.endswith(MASKS)}
    for name in (name for name in stored if name not in masks):
        if (plain := plain_name(name)) in tensors:
            raise ValueError(f"{path} has two tensors {plain}: save the model again")
        tensors[plain] = stored[name]
    tensors.setdefault("wte.weight", tensors.get("lm_head.weight"))  # they are one tensor, under either name
    needed = ("wte.weight", "wpe.weight", "h.0.attn.c_attn.weight", "h.0.mlp.c_fc.weight")
    if lost := [name for name in needed if tensors.get(name) is None]:
        raise ValueError(
            f"{path} has no GPT-2 weights: {lost[0]} is not among its {len(stored)} tensors: only GPT-2s run"
        )
    n_embd = tensors["wte.weight"].shape[-1]
    linear = STAGES[1].STORED_TRANSPOSED
    if tensors["h.0.attn.c_attn.weight"].shape[0] != n_embd:  # [3 * n_embd, n_embd], as in torch
        tensors = {name: t.t() if name.endswith(linear) and t.dim() == 2 else t for name, t in tensors.items()}
    head = tensors.pop("lm_head.weight", None)
    if head is not None and not torch.equal(head, tensors["wte.weight"]):
        raise ValueError(
            f"{path}: lm_head.weight differs from wte.weight, as GPT-2's does not: train the model with tied weights"
        )
    return tensors, masks


def zero_biases(tensors: dict[str, Any]) -> dict[str, Any]:
    """Zeros for each kind of bias that no layer has: it was trained without them. If some layers have one, it is
    lost in the others, and must not be made up."""
    kinds = {re.sub(r"\d+", "N", name) for name in tensors}
    biased = STAGES[1].STORED_TRANSPOSED + tuple(f"{name}.weight" for name in ("ln_1", "ln_2", "ln_f"))
    biases = {name.removesuffix("weight") + "bias": t for name, t in tensors.items() if name.endswith(biased)}
    missing = (name for name in biases if re.sub(r"\d+", "N", name) not in kinds)
    return {name: biases[name].new_zeros(biases[name].shape[-1]) for name in missing}


def write_weights(made: Path, tensors: dict[str, Any]) -> None:
    import torch
    from safetensors.torch import save_file

    # Copies, because tensors in a pickle may share memory.
    named = {f"transformer.{name}": t.clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}
    save_file(named, made / "model.safetensors", {"format": "pt"})


def compare_weights(made: Path, stored: dict[str, Any], left_out: set[str], zeros: set[str]) -> None:
    """Raise ValueError unless what was written has each stored tensor once, unchanged but for a transpose, and nothing
    else but these zeros."""
    import torch
    from safetensors.torch import load_file

    files = map(load_file, made.glob("*.safetensors"))
    written = {plain_name(name): tensor for file in files for name, tensor in file.items()}
    written = {name: tensor for name, tensor in written.items() if not name.endswith(MASKS)}
    used: set[str] = set()
    wide = {plain_name(name): tensor.shape for name, tensor in stored.items()}["h.0.attn.c_attn.weight"]
    for name in stored.keys() - left_out:
        plain = "wte.weight" if plain_name(name) == "lm_head.weight" else plain_name(name)
        theirs, ours = stored[name], written.get(plain)
        if wide[0] > wide[1] and plain.endswith(STAGES[1].STORED_TRANSPOSED):  # [3 * n_embd, n_embd], as in torch
            theirs = theirs.t()
        if ours is None or ours.dtype != theirs.dtype or not torch.equal(ours, theirs):
            why = "is not finite" if not theirs.isfinite().all() else "would not be written as it is"
            raise ValueError(f"{made}: tensor {name!r} {why}; {REMEDIES['weights']}")
        used.add(plain)
    if wrong := [name for name in written.keys() - used if name not in zeros or written[name].any()]:
        raise ValueError(f"{made}: {name_some(wrong)} would be written, but is not in the source")


def name_some(names: Collection[str]) -> str:
    """The first few names, and the number of others."""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"{', '.join(sorted(names)[:5])}{more}"


def check_tensors(source: Path, tensors: dict[str, Any], config: dict[str, Any]) -> None:
    """Raise ValueError unless these are the tensors of a model with these sizes."""
    import torch

    for name, tensor in tensors.items():
        is_plain = tensor.layout == torch.strided and not (tensor.is_meta or tensor.is_nested)
        if not is_plain or tensor.dtype not in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
            kind = f"{tensor.dtype}, {tensor.layout}, {tensor.device}"
            raise ValueError(
                f"{source}: tensor {name!r} is quantized, sparse or of another unsupported type ({kind}): give the "
                "original model, in float32 or 16-bit floats"
            )
    shapes = shapes_of(config)
    if missing := shapes.keys() - tensors.keys():
        raise ValueError(f"{source}: missing {name_some(missing)}, of a GPT-2 of these sizes; {REMEDIES['weights']}")
    if unexpected := tensors.keys() - shapes.keys():
        raise ValueError(f"{source}: unexpected {name_some(unexpected)}, of another model: only GPT-2s can be run")
    for name, shape in shapes.items():
        if tuple(tensors[name].shape) != shape:
            raise ValueError(
                f"{source}: tensor {name!r} has shape {list(tensors[name].shape)}, but the sizes imply {list(shape)}"
            )


def shapes_of(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shapes of a GPT-2's tensors as they are stored."""
    import torch

    sizes = {key: config[key] for key in (*LARGEST, "layer_norm_epsilon")}
    with torch.device("meta"):
        state = STAGES[1].GPT2(STAGES[1].ModelConfig(**sizes)).state_dict()
    linear = STAGES[1].STORED_TRANSPOSED
    return {name: tuple(t.shape[::-1] if name.endswith(linear) else t.shape) for name, t in state.items()}


# --- A directory ----------------------------------------------------------------------------------------------------


def convert_directory(source: Path, made: Path, tokenizer: Path | None, link: bool) -> list[str]:
    """Write the weights, sizes and tokenizer of a directory."""
    check_directory(source)
    given, model = read_json(source / "config.json"), None
    try:
        config = layout_config(source, given)
    except UnknownKey as why:
        model = by_transformers(source, why, lambda lib: lib.GPT2LMHeadModel.from_pretrained(source, dtype="float32"))
        theirs = {key: value for key, value in model.config.to_dict().items() if key in known_keys()}
        config = layout_config(source, theirs | {"eos_token_id": given.get("eos_token_id")})
    files = weight_files(source)
    stored: dict[str, Any] = {}
    for file in files:
        state = state_of(load_content(file))
        if twice := stored.keys() & state.keys():
            raise ValueError(f"{file}: tensor {min(twice)!r} is in another file, too; {REMEDIES['weights']}")
        stored |= state
    tensors, left_out = weights_of(stored, source)
    shapes = shapes_of(config)
    left_out |= {name for name in stored if plain_name(name) in tensors.keys() - shapes.keys()}
    tensors = {name: tensor for name, tensor in tensors.items() if name in shapes}
    check_tensors(source, tensors, config)
    notes = [f"left out, as transformers does: {name_some(left_out)}"] if left_out else []
    as_stored = {name.removeprefix("transformer."): tuple(stored[name].shape) for name in stored}
    is_good = shapes == {name: shape for name, shape in as_stored.items() if not name.endswith(".attn.bias")}
    is_good = is_good and all(file.suffix == ".safetensors" for file in files)
    if is_good:
        place_weights(made, files, link)
    else:
        write_weights(made, tensors)
    if not (is_good and link):  # a link is the source
        compare_weights(made, stored, left_out, set())
    notes += convert_tokenizer(source, tokenizer, made, config["vocab_size"])
    for name in (GENERATION, "chat_template.jinja"):
        if (source / name).exists():
            shutil.copy(source / name, made)
    write_config(made, config)
    if model is not None:
        compare_logits(made, model)
    return notes


def weight_files(source: Path) -> list[Path]:
    """The files that hold a directory's weights: those that transformers takes. Raises ValueError if one is not
    there."""
    for name in WEIGHT_FILES:
        if (source / name).exists():
            return [source / name]
        index = source / f"{name}.index.json"
        if index.exists():
            weight_map = read_json(index).get("weight_map")
            if not isinstance(weight_map, dict):
                raise ValueError(f"{index} has no weight_map: fetch the model again")
            files = [source / file for file in sorted({*map(str, weight_map.values())})]
            if lost := [file for file in files if not file.exists()]:
                raise ValueError(f"{lost[0]} is not there, but {index.name} lists it: fetch the model again")
            return files
    shards = sorted(source.glob("model-*-of-*.safetensors"))
    if not shards:
        raise ValueError(f"{source} has neither {WEIGHT_FILES[0]} nor {WEIGHT_FILES[1]}: {REMEDIES['weights']}")
    count = shards[0].stem.rpartition("-")[2].lstrip("0")
    if str(len(shards)) != count:
        raise ValueError(f"{source} has {len(shards)} of {count} files model-*-of-*.safetensors: fetch the model again")
    return shards


def place_weights(made: Path, files: list[Path], link: bool) -> None:
    """Weights that are good as they are, under the names that a stage and transformers look for."""
    from safetensors import safe_open

    weight_map: dict[str, str] = {}
    for number, file in enumerate(files, start=1):
        one = len(files) == 1
        name = "model.safetensors" if one else f"model-{number:05}-of-{len(files):05}.safetensors"
        place = linked if link else shutil.copyfile
        place(file.resolve(), made / name)
        with safe_open(made / name, framework="pt") as opened:
            weight_map |= dict.fromkeys(opened.keys(), name)
    if len(files) > 1:
        write_json(made / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})


def linked(source: Path, link: Path) -> None:
    """A link, or a copy where there are none."""
    try:
        link.symlink_to(source)
    except OSError:  # Windows, without the right to do it
        shutil.copyfile(source, link)


def check_directory(source: Path) -> None:
    """Raise ValueError where other errors would say less."""
    if (source / "adapter_config.json").exists():
        base = read_json(source / "adapter_config.json").get("base_model_name_or_path")
        raise ValueError(
            f"{source} has an adapter for {base!r:.80}: merge it with peft (`merge_and_unload`), save the result, and "
            "give its directory"
        )
    if not (source / "config.json").exists():
        others = [path.parent for depth in ("*", "*/*", "*/*/*") for path in source.glob(f"{depth}/config.json")]
        others = others or [path for path in source.iterdir() if path.suffix in (".pt", ".pth", ".ckpt", ".gguf")]
        latest = max(others, key=lambda path: path.stat().st_mtime, default=None)
        what = f"give {latest}" if latest else "give a model's directory"
        raise ValueError(f"{source} has no config.json: {what}")
    for path in [*source.glob("*.safetensors"), *source.glob("*.bin"), *source.glob("*.json")]:
        with path.open("rb") as file:
            begin = file.read(64)
        if not (path.suffix == ".json" and begin.lstrip().startswith(b"{")):
            check_begin(path, begin)


def by_transformers(source: Path, why: ValueError, read: Callable[[Any], Any]) -> Any:
    """What transformers reads of something that is not read here, for the reason `why`."""
    try:
        import transformers
    except ImportError as error:
        raise ValueError(
            f"{why}; transformers may know more: pip install transformers, and convert it again ({error})"
        ) from None
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        return read(transformers)
    except Exception as error:  # transformers has many kinds
        reason = next((ours for theirs, ours in REASONS.items() if theirs in str(error)), str(error))
        reason = reason.strip().split("\n")[0] or type(error).__name__
        raise ValueError(f"{why}; transformers can't read it: {reason:.300}") from error


# --- Tokenizers -----------------------------------------------------------------------------------------------------


def has_tokenizer(place: Path) -> bool:
    return any((place / name).exists() for name in TOKENIZER_FILES)


def convert_tokenizer(source: Path, given: Path | None, made: Path, vocab_size: int) -> list[str]:
    """Write the tokenizer that is given, or the source's. If there is none, a model with GPT-2's number of tokens gets
    GPT-2's."""
    place, notes = given or source, []
    for pattern in ("*.model", "*.tiktoken", "tekken.json", "vocab.txt"):
        for other in place.glob(pattern):
            raise ValueError(f"{other} is another kind of tokenizer: {REMEDIES['tokenizer']}")
    if not has_tokenizer(place):
        if not GPT2_TOKENS[0] <= vocab_size <= GPT2_TOKENS[1]:
            raise ValueError(
                f"{place} has no tokenizer, and the model's {vocab_size:,} tokens are not GPT-2's; name its tokenizer "
                "with --tokenizer DIRECTORY. Only byte-pair vocabularies can be run, not characters or words"
            )
        place, notes = STAGES[1].BUNDLED, [f"there is no tokenizer in {place}: using GPT-2's"]
    vocabulary, theirs = read_tokenizer(place)
    if vocab_size > vocabulary.num_tokens + SPARE:
        raise ValueError(
            f"{place}: the tokenizer has {vocabulary.num_tokens:,} tokens, the model {vocab_size:,}: merges.txt may be "
            "cut short; fetch it again, or name the model's tokenizer with --tokenizer"
        )
    vocabulary.write(made)
    try:
        STAGES[1].Tokenizer(made)
    except ValueError as error:
        raise ValueError(f"{place}: {error}; {REMEDIES['tokenizer']}") from None
    if theirs is not None:
        compare_tokens(made, theirs)
    return notes


def read_tokenizer(place: Path) -> tuple[Vocabulary, Any]:
    """A directory's tokenizer; and transformers' one, if it had to read it."""
    try:
        return read_vocabulary(place), None
    except ValueError as error:
        why = error
    theirs = by_transformers(place, why, lambda lib: lib.AutoTokenizer.from_pretrained(place))
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        settings = read_json(Path(folder, "tokenizer_config.json"))
        known = {key: value for key, value in settings.items() if is_known_setting(key, value)}
        write_json(Path(folder, "tokenizer_config.json"), known)
        try:
            return read_vocabulary(Path(folder)), theirs
        except ValueError as error:
            what = str(error).replace(folder, str(place))
            raise ValueError(f"{what}: {REMEDIES['tokenizer']}") from None


# --- Checking the result --------------------------------------------------------------------------------------------


def open_model(made: Path) -> Any:
    """Stage 1's model and tokenizer."""
    import torch

    stage = STAGES[1]
    checkpoint = stage.Checkpoint(SimpleNamespace(model=str(made), load_format="auto", tokenizer=None))
    with torch.device("meta"):
        model = stage.GPT2(stage.ModelConfig(**checkpoint.sizes)).eval()
    checkpoint.load(model, torch.float32, torch.device("cpu"))
    return model, checkpoint.tokenizer


def compare_tokens(made: Path, theirs: Any) -> None:
    """Raise ValueError unless the tokenizer that was written gives transformers' ids and texts."""
    ours = STAGES[1].Tokenizer(made)
    added = [str(token) for token in theirs.added_tokens_decoder.values()]
    for text in [*TEXTS, *added, " ".join(added), "".join(added), *(f"a{token}b {token} \n{token}" for token in added)]:
        ids = ours.encode(text)
        if ids != theirs(text).input_ids or ours.decode(ids) != theirs.decode(ids, skip_special_tokens=True):
            raise ValueError(
                f"{made}: a stage would tokenize {text!r:.80} differently from transformers; {REMEDIES['tokenizer']}"
            )


def compare_logits(made: Path, theirs: Any) -> None:
    """Raise ValueError unless a stage computes transformers' logits."""
    import torch

    ours, _ = open_model(made)
    generator = torch.Generator().manual_seed(0)
    for length in (1, 7, min(40, ours.config.n_positions)):
        ids = torch.randint(ours.config.vocab_size, (length,), generator=generator)
        with torch.inference_mode():
            logits, expected = ours(ids), theirs(ids[None]).logits[0, -1]
        difference = float((logits - expected).abs().max() / expected.abs().max())
        if not difference < 1e-4:
            what = f"a stage's logits would differ by {difference:.1e} from transformers'"
            raise ValueError(f"{made}: {what}; {REMEDIES['config.json']}")


def build_parser(prog: str) -> Parser:
    parser = Parser(prog, description=__doc__)
    parser.add_argument("source", type=Path, metavar="SOURCE", help="a file of a training program, or a directory")
    parser.add_argument("directory", type=Path, metavar="DIRECTORY", help="the directory to write; new, or empty")
    parser.add_argument(
        "--gelu", choices=("tanh", "exact"), help="which GELU a training program used, if its file does not say"
    )
    parser.add_argument(
        "--n-head", type=int, metavar="N", help="how many heads, if a training program's file does not say"
    )
    parser.add_argument(
        "--tokenizer", type=Path, metavar="DIRECTORY", help="take the tokenizer from here (default: SOURCE)"
    )
    return parser


def main(argv: list[str] | None = None, prog: str = "stagewise convert") -> int:
    args, outcome = build_parser(prog).parse_args(argv), Outcome(prog)
    with outcome:
        for note in convert(args.source, args.directory, args.gelu, args.n_head, args.tokenizer):
            tell(f"{prog}: {note}")
        print(f"{args.directory}: run it with --model {args.directory}")
    return outcome.status
