"""Everything around the engines, shared by all of them.

__main__.py       the command `stagewise`: run (cli.py), serve, replay, convert, score, push
cli.py            a run of prompts; flags.py: its flags; parser.py: how they are read;
                  exits.py: errors, Ctrl-C, exit statuses; console.py: progress and the closing line;
                  interactive.py: prompts typed on a terminal
resolve.py        models in any layout; convert.py: into the layout that a stage reads, with layout.py (config.json),
                  vocabulary.py (tokenizers)
batch_file.py     --input and --output; dataset.py: reading files; manifest.py: what --resume compares;
                  openai/: OpenAI's fields and answers, for the server too
processors.py     logits processors; structured_outputs.py: structured output, compiled by form_compiler.py in a process
                  that can be killed; sampling.py: sampling parameters under vLLM's and OpenAI's names
tracing.py        records what an engine does; trace_file.py: trace files; replay/: shows them
serving/          the server; scaleout/: runs on Ray
stages.py         the registry of the stages; garbage.py: nothing is collected until a model is loaded
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .processors import allowed_token_ids, bad_words, logit_bias, structured
    from .sampling import sampling_params
    from .tracing import trace

__version__ = "0.1.0"
__all__ = ["allowed_token_ids", "bad_words", "logit_bias", "sampling_params", "structured", "trace"]
HOMES = {"sampling_params": "sampling", "trace": "tracing"}  # the others are in processors.py


def __getattr__(name: str) -> Any:
    """Imported at first use: a command that only prints its help should not wait for torch."""
    from importlib import import_module

    if name in __all__:
        return getattr(import_module(f"{__name__}.{HOMES.get(name, 'processors')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
