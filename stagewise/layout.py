"""A model's config.json, as people have it and as a stage reads it.

Anything that would give other numbers than transformers is refused, with an error that names the file, the key and what
to do.
"""

from pathlib import Path
from typing import Any

from .stages import STAGES
from .strict_json import read_json, write_json
from .vocabulary import SETTINGS, check_values

# Keys of config.json that are sizes, with their limits: a larger one would fill the memory before any weight is read.
LARGEST = dict(n_layer=1000, n_head=1000, n_embd=10**5, n_inner=10**6, n_positions=10**7, vocab_size=10**7)
# Its keys that change numbers, with their supported values, the default first.
SUPPORTED = {
    "model_type": ("gpt2",),
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),  # two names of the tanh form
    "tokenizer_class": SETTINGS["tokenizer_class"],
    **dict.fromkeys(("tie_word_embeddings", "scale_attn_weights"), (True,)),
    **dict.fromkeys(("scale_attn_by_inverse_layer_idx", "add_cross_attention", "is_encoder_decoder"), (False,)),
    **dict.fromkeys(("quantization_config", "auto_map"), (None,)),
}
# Its keys that change nothing here: training, other heads, sampling, notes. Others are compared with transformers.
UNUSED = {
    *("attn_pdrop", "embd_pdrop", "resid_pdrop", "initializer_range", "gradient_checkpointing", "problem_type"),
    *("reorder_and_upcast_attn", "use_cache", "n_ctx", "output_past", "n_special", "predict_special_tokens"),
    *("summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj"),
    *("num_labels", "_num_labels", "id2label", "label2id", "finetuning_task", "task_specific_params", "is_decoder"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "dtype", "torch_dtype", "torchscript", "return_dict"),
    *("output_attentions", "output_hidden_states", "chunk_size_feed_forward", "attn_implementation"),
    *("architectures", "transformers_version", "_name_or_path", "name_or_path", "_commit_hash", "use_bfloat16"),
    *("_attn_implementation", "_attn_implementation_autoset", "do_sample", "max_length", "min_length", "num_beams"),
    *("temperature", "top_k", "top_p", "repetition_penalty", "length_penalty", "early_stopping", "prefix"),
}
GENERATION = "generation_config.json"  # its end tokens are the model's; its defaults for sampling are not applied
# What to do about a file that can't be read, if its error does not say it.
REMEDIES = {
    "config.json": "only models that compute what GPT-2 does can be run; if the key changes nothing, remove it",
    "tokenizer": "only byte-level BPE tokenizers like GPT-2's can be run; mend the file, or give another --tokenizer",
    "weights": "fetch or save the model again",
}


class UnknownKey(ValueError):
    """A key of config.json may change numbers."""


def known_keys() -> set[str]:
    return {*SUPPORTED, *UNUSED, *LARGEST, "layer_norm_epsilon", STAGES[1].MARK}


def layout_config(source: Path, given: dict[str, Any]) -> dict[str, Any]:
    """The sizes and end tokens that a stage reads. Raises ValueError for anything that this GPT-2 does not compute."""
    path = source / "config.json"
    check_values(path, given, SUPPORTED, REMEDIES["config.json"])
    if unknown := {key for key, value in given.items() if value is not None} - known_keys():
        raise UnknownKey(f"{path}: key {min(unknown)!r:.60} may change numbers")
    config: dict[str, Any] = {key: given.get(key) for key in LARGEST}
    config["layer_norm_epsilon"] = given.get("layer_norm_epsilon", 1e-5)
    if config["n_inner"] is None and isinstance(config["n_embd"], int):
        config["n_inner"] = 4 * config["n_embd"]
    check_config(path, config)
    generation = source / GENERATION  # alone, if it exists, also if it names no end token
    where, names = (generation, read_json(generation)) if generation.exists() else (path, given)
    config["eos_token_id"] = end_tokens(where, names.get("eos_token_id"), config["vocab_size"])
    return config | {key: given[key] for key in ("bos_token_id", "pad_token_id") if given.get(key) is not None}


def end_tokens(path: Path, eos: Any, vocab_size: int) -> int | list[int] | None:
    """An eos_token_id, which is None, one or a list, checked. path: the file, for the error."""
    ids = [] if eos is None else eos if isinstance(eos, list) else [eos]
    if not all(type(token_id) is int for token_id in ids):
        raise ValueError(f"{path}: eos_token_id must be a token id or a list of them, got {eos!r:.60}")
    # A small model may keep GPT-2's end token in its configuration although its vocabulary has no such token.
    ids = list(dict.fromkeys(token_id for token_id in ids if 0 <= token_id < vocab_size))
    return ids[0] if len(ids) == 1 else ids or None


def write_config(made: Path, config: dict[str, Any]) -> None:
    """Write config.json, the last file, with the mark that a stage looks for."""
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "activation_function": "gelu_new", **config}
    write_json(made / "config.json", config | {STAGES[1].MARK: STAGES[1].mark_of(made, config)})


def check_config(path: Path, config: dict[str, Any]) -> None:
    """Raise ValueError for sizes that no model has."""
    for key, largest in LARGEST.items():
        if type(config.get(key)) is not int or not 1 <= config[key] <= largest:  # a bool is an int, too
            raise ValueError(f"{path}: {key} must be a whole number from 1 to {largest}, got {config.get(key)!r:.60}")
    if config["n_embd"] % config["n_head"]:
        raise ValueError(f"{path}: n_embd {config['n_embd']} is not a multiple of n_head {config['n_head']}")
    epsilon = config["layer_norm_epsilon"]
    if not isinstance(epsilon, float) or not 0 < epsilon < 1:
        raise ValueError(f"{path}: layer_norm_epsilon must be a number between 0 and 1, got {epsilon!r:.60}")
