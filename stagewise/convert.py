"""Make a directory that every stage reads from a model in another format.

    stagewise convert ckpt.pt DIRECTORY --gelu tanh     the file of a training program (nanoGPT, Lightning, DDP ...)
    stagewise convert SOURCE DIRECTORY                  a directory in Hugging Face layout that a stage refuses

A directory is read by transformers (`pip install transformers`), and the result gives the same tokens and logits, or
nothing is written. If a model can't be run, the error says why and what to do.
"""

import argparse
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from .console import Outcome, tell
from .parser import Parser
from .stages import STAGES, TOKENIZER_FILES

WEIGHTS = ("model", "state_dict", "model_state_dict", "module")  # where a training program keeps the weights,
SIZES = ("config", "model_args", "model_config", "hyper_parameters", "args")  # and their sizes
# Of torch.compile, DistributedDataParallel, Lightning and Hugging Face.
PREFIXES = ("_orig_mod.", "module.", "model.", "transformer.")  # of tensors' names
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
MASKS = (".attn.bias", ".attn.masked_bias")  # the causal mask, which some programs store
HEADS = ("n_head", "n_heads", "num_heads", "num_attention_heads")
HEADS_OF = {(12, 768): 12, (24, 1024): 16, (36, 1280): 20, (48, 1600): 25}  # GPT-2's own: (n_layer, n_embd) -> n_head
GPT2_TOKENS = 50257, 51281  # a vocabulary may be rounded up, usually to 50,304
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


def convert(source: Path, directory: Path, gelu: str | None, n_head: int | None, tokenizer: Path | None) -> list[str]:
    """Write the directory; returns notes for the user. If it raises ValueError or OSError, nothing is written."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ValueError(f"{directory} exists: give a new or empty directory")
    if not source.exists():
        raise ValueError(f"there is no file or directory {source}")
    if idle := [flag for flag, value in (("--gelu", gelu), ("--n-head", n_head)) if source.is_dir() and value]:
        raise ValueError(f"{idle[0]} is for a training program's file, but {source} is a directory")
    if tokenizer is not None and not any((tokenizer / name).exists() for name in TOKENIZER_FILES):
        raise ValueError(f"--tokenizer: there is no tokenizer in {tokenizer}; give a directory that has one")
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent) as folder:
        made = Path(folder) / "model"
        made.mkdir()
        try:
            if source.is_dir():
                notes = convert_directory(source, made, tokenizer)
            else:
                notes = convert_file(source, made, gelu, n_head, tokenizer)
            check_readable(made)
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
        **dict(model_type="gpt2", architectures=["GPT2LMHeadModel"], activation_function="gelu_new"),
        **dict(n_layer=len(layers), n_head=heads, n_embd=n_embd, n_inner=tensors["h.0.mlp.c_fc.weight"].shape[1]),
        **dict(n_positions=tensors["wpe.weight"].shape[0], vocab_size=vocab_size),
        **{key: told[key] for key in ("layer_norm_epsilon", "eos_token_id", "bos_token_id") if key in told},
    }
    (made / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    zeros = zero_biases(tensors)
    write_weights(made, tensors | zeros)
    compare_weights(made, stored, masks, {*zeros})
    notes = [f"trained without these biases, which are zeros now: {name_some(zeros)}"] if zeros else []
    notes += [f"left out, since every stage makes it: {name_some(masks)}"] if masks else []
    return notes + copy_tokenizer(source.parent if tokenizer is None else tokenizer, made, vocab_size)


def state_of(content: dict[str, Any]) -> dict[str, Any]:
    """A model's tensors, by the names that a training program gave them."""
    import torch

    inner = next((content[key] for key in WEIGHTS if isinstance(content.get(key), dict)), content)
    return {str(name): tensor for name, tensor in inner.items() if isinstance(tensor, torch.Tensor)}


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
        raise ValueError(f"{path} contains no dictionary of weights")
    return content


def check_begin(path: Path, begin: bytes) -> None:
    """Raise ValueError for a file that begins like one of another kind."""
    if not begin:
        raise ValueError(f"{path} is empty")
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
            raise ValueError(f"{path} has two tensors {plain}")
        tensors[plain] = stored[name]
    tensors.setdefault("wte.weight", tensors.get("lm_head.weight"))  # they are one tensor, under either name
    needed = ("wte.weight", "wpe.weight", "h.0.attn.c_attn.weight", "h.0.mlp.c_fc.weight")
    if lost := [name for name in needed if tensors.get(name) is None]:
        raise ValueError(f"{path} has no GPT-2 weights: {lost[0]} is not among its {len(stored)} tensors")
    n_embd = tensors["wte.weight"].shape[-1]
    linear = STAGES[1].STORED_TRANSPOSED
    if tensors["h.0.attn.c_attn.weight"].shape[0] != n_embd:  # [3 * n_embd, n_embd], as in torch
        tensors = {name: t.t() if name.endswith(linear) and t.dim() == 2 else t for name, t in tensors.items()}
    head = tensors.pop("lm_head.weight", tensors["wte.weight"])
    if not torch.equal(head, tensors["wte.weight"]):
        raise ValueError(f"{path}: lm_head.weight differs from wte.weight, as GPT-2's does not")
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
    from safetensors.torch import save_file

    named = {f"transformer.{name}": tensor.contiguous() for name, tensor in tensors.items()}
    save_file(named, made / "model.safetensors", {"format": "pt"})


def compare_weights(made: Path, stored: dict[str, Any], left_out: set[str], zeros: set[str]) -> None:
    """Raise ValueError unless the file that was written has each stored tensor once, unchanged but for a transpose,
    and nothing else but these zeros."""
    import torch
    from safetensors.torch import load_file

    written = {plain_name(name): tensor for name, tensor in load_file(made / "model.safetensors").items()}
    used = set()
    for name in stored.keys() - left_out:
        plain = "wte.weight" if plain_name(name) == "lm_head.weight" else plain_name(name)
        theirs, ours = stored[name], written.get(plain)
        ways = (theirs, theirs.t()) if theirs.dim() == 2 else (theirs,)
        if ours is None or not any(ours.dtype == way.dtype and torch.equal(ours, way) for way in ways):
            raise ValueError(f"{made}: tensor {name!r} would not be written as it is")
        used.add(plain)
    if wrong := [name for name in written.keys() - used if name not in zeros or written[name].any()]:
        raise ValueError(f"{made}: {name_some(wrong)} would be written, but is not in the source")


def name_some(names: Collection[str]) -> str:
    """The first few names, and the number of others."""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"{', '.join(sorted(names)[:5])}{more}"


def copy_tokenizer(place: Path, made: Path, vocab_size: int) -> list[str]:
    """Copy the files of a tokenizer. If there are none, a model with GPT-2's number of tokens gets GPT-2's."""
    notes, chosen = [], place
    if not any((place / name).exists() for name in TOKENIZER_FILES):
        if not GPT2_TOKENS[0] <= vocab_size <= GPT2_TOKENS[1]:
            raise ValueError(
                f"{place} has no tokenizer, and the model's {vocab_size:,} tokens are not GPT-2's; name its tokenizer "
                "with --tokenizer DIRECTORY. Only byte-pair vocabularies can be run, not characters or words"
            )
        chosen, notes = STAGES[1].BUNDLED, [f"there is no tokenizer in {place}: using GPT-2's"]
    for name in TOKENIZER_FILES:
        if (chosen / name).exists():
            shutil.copy(chosen / name, made)
    return notes


# --- A directory in Hugging Face layout -----------------------------------------------------------------------------


def convert_directory(source: Path, made: Path, tokenizer: Path | None) -> list[str]:
    """Write what transformers reads from a directory."""
    check_directory(source)
    import torch

    transformers, stage, path = import_transformers(), STAGES[1], source / "config.json"
    stage.check_values(
        path, stage.read_json(path), {**stage.SUPPORTED, "quantization_config": (None,), "auto_map": (None,)}
    )
    model, info = by_transformers(
        source,
        lambda: transformers.AutoModelForCausalLM.from_pretrained(
            source, dtype=torch.float32, output_loading_info=True
        ),
    )
    if missing := sorted({*info["missing_keys"]} - {"lm_head.weight"}):
        raise ValueError(f"{source} lacks {len(missing)} tensors of a GPT2LMHeadModel, such as {missing[0]}")
    if not torch.equal(model.lm_head.weight, model.transformer.wte.weight):
        raise ValueError(f"{source}: lm_head.weight differs from wte.weight, as GPT-2's does not")
    stored = stored_tensors(source)
    tensors, left_out = weights_of(stored, source)
    left_out |= {name for name in stored if plain_name(name) in tensors.keys() - model.transformer.state_dict().keys()}
    notes = [f"left out, as transformers does: {name_some(left_out)}"] if left_out else []
    given = model.config.to_dict()
    stage.check_values(path, given, stage.SUPPORTED)
    kept = (*stage.SUPPORTED, *stage.LARGEST, "layer_norm_epsilon", "architectures")
    kept += ("bos_token_id", "eos_token_id", "pad_token_id")
    config = {key: given[key] for key in kept if given.get(key) is not None}
    (made / "config.json").write_text(json.dumps({**config, "architectures": ["GPT2LMHeadModel"]}, indent=2) + "\n")
    write_weights(made, {name: tensors[name] for name in model.transformer.state_dict()})
    compare_weights(made, stored, left_out, set())
    if (source / "generation_config.json").exists():
        shutil.copy(source / "generation_config.json", made)
    place = source if tokenizer is None else tokenizer
    if not any((place / name).exists() for name in TOKENIZER_FILES):
        notes += copy_tokenizer(place, made, given["vocab_size"])
    else:
        stage.tokenizer_directory(place)  # other kinds are refused
        theirs = by_transformers(place, lambda: transformers.AutoTokenizer.from_pretrained(place))
        theirs.save_pretrained(made)
        settings = stage.read_json(made / "tokenizer_config.json")
        known = {key: value for key, value in settings.items() if stage.is_known_setting(key, value)}
        (made / "tokenizer_config.json").write_text(json.dumps(known, indent=2) + "\n")
        compare_tokens(made, theirs)
    compare_logits(made, model)
    return notes


def stored_tensors(source: Path) -> dict[str, Any]:
    """The tensors in a directory's files, by their names there."""
    index = next(filter(Path.exists, [source / f"{name}.index.json" for name in WEIGHT_FILES]), None)
    files = [source / name for name in WEIGHT_FILES if (source / name).exists()][:1]
    if not files and index is not None:
        files = [source / name for name in sorted({*STAGES[1].read_json(index)["weight_map"].values()})]
    return {name: tensor for file in files for name, tensor in state_of(load_content(file)).items()}


def check_directory(source: Path) -> None:
    """Raise ValueError where transformers' own error would say less."""
    if (source / "adapter_config.json").exists():
        base = STAGES[1].read_json(source / "adapter_config.json").get("base_model_name_or_path")
        raise ValueError(
            f"{source} has an adapter for {base!r:.80}: merge it with peft (`merge_and_unload`), save the result, and "
            "give its directory"
        )
    if not (source / "config.json").exists():
        others = [path.parent for depth in ("*", "*/*", "*/*/*") for path in source.glob(f"{depth}/config.json")]
        others = others or [path for path in source.iterdir() if path.suffix in (".pt", ".pth", ".ckpt", ".gguf")]
        latest = max(others, key=lambda path: path.stat().st_mtime, default=None)
        raise ValueError(f"{source} has no config.json" + (f": give {latest}" if latest else ""))
    for path in [*source.glob("*.safetensors"), *source.glob("*.bin"), *source.glob("*.json")]:
        with path.open("rb") as file:
            begin = file.read(64)
        if not (path.suffix == ".json" and begin.lstrip().startswith(b"{")):
            check_begin(path, begin)


def import_transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise ValueError(f"converting a directory needs transformers: pip install transformers ({error})") from None
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


def by_transformers(source: Path, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except Exception as error:  # transformers has many kinds
        reason = next((ours for theirs, ours in REASONS.items() if theirs in str(error)), str(error))
        reason = reason.strip().split("\n")[0] or type(error).__name__
        raise ValueError(f"{source}: transformers can't read it: {reason:.300}") from error


# --- Checking the result --------------------------------------------------------------------------------------------


def check_readable(made: Path) -> None:
    """Read the result as a stage does. Raises the stage's ValueError if it can't."""
    open_model(made)


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
            raise ValueError(f"{made}: a stage would tokenize {text!r:.80} differently from transformers")


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
            raise ValueError(f"{made}: a stage's logits would differ from transformers' by {difference:.1e}")


def build_parser(prog: str) -> Parser:
    parser = Parser(prog, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
