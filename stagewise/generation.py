"""generation_config.json: the defaults that a model brings for sampling. `--generation-config` applies them."""

from pathlib import Path
from typing import Any

GENERATION = "generation_config.json"
# Key -> field of SamplingParams.
FIELDS: dict[str, str] = {name: name for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")}
FIELDS |= {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"}
# Keys that change no tokens here: end tokens, which apply anyway, caches, what is returned, beams' details, notes.
UNUSED = {
    *("do_sample", "bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "length_penalty"),
    *("use_cache", "cache_implementation", "cache_config", "max_cache_len", "low_memory", "prefill_chunk_size"),
    *("output_attentions", "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate"),
    *("compile_config", "disable_compile", "_from_model_config", "transformers_version", "_commit_hash"),
    *("early_stopping", "is_assistant", "return_dict"),
}
# With these values the other keys change nothing.
NEUTRAL: dict[str, int] = dict.fromkeys(("num_beams", "num_beam_groups", "num_return_sequences", "guidance_scale"), 1)
NEUTRAL |= dict.fromkeys(("encoder_repetition_penalty", "typical_p"), 1)  # for all others: nothing, or 0


def sampling_defaults(path: Path, given: dict[str, Any]) -> dict[str, Any]:
    """The fields of SamplingParams that a generation_config.json sets. Raises ValueError for a key that would change
    tokens and that has no such field."""
    for key, value in given.items():
        is_known = key in FIELDS or key in UNUSED or value in (None, 0, [], {}, NEUTRAL.get(key))
        if not is_known:
            raise ValueError(
                f"{path}: {key} is {value!r:.60}, which --generation-config can't apply: remove the key, or leave out "
                "the flag"
            )
    defaults = {field: given[key] for key, field in FIELDS.items() if given.get(key) is not None}
    return defaults | ({"temperature": 0} if given.get("do_sample") is False else {})
