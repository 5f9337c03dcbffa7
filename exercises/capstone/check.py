"""Checks the capstone against transformers, part by part, on small random models.

    python -m exercises.capstone.check                # llama.py next to this file
    python -m exercises.capstone.check solution.py    # or another file

The first part that is wrong is the one to look at: later parts build on earlier ones.
"""

import argparse
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from exercises import child
from exercises.catalogue import Grade

FOLDER = Path(__file__).parent
SIZES = dict(vocab_size=97, n_layer=3, n_embd=48, n_inner=80, n_head=6, n_kv_head=2, head_dim=8, epsilon=1e-5)
TOLERANCE = 1e-4  # of the largest number
BLANK = "not written yet"
NO_REFERENCE = "it compares with transformers; pip install -r tests/requirements.txt brings it"
Part = tuple[str, Callable[[], Tensor], Callable[[], Tensor]]  # what it is, the learner's result, the right one
TOKENS = [5, 17, 5, 96, 0, 33, 33, 8, 61, 2, 44]


def load(path: Path) -> ModuleType:
    """A learner's file as a module. Raises whatever its own code raises."""
    spec = importlib.util.spec_from_file_location("capstone", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules["capstone"] = module  # a dataclass looks itself up there
    spec.loader.exec_module(module)
    return module


def reference(kind: str, **changes) -> torch.nn.Module:
    """A random Llama, Qwen 2 or Qwen 3 of transformers, in these sizes, with norms that are not all ones."""
    import transformers

    sizes = {**SIZES, **changes}
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=sizes["vocab_size"],
        num_hidden_layers=sizes["n_layer"],
        hidden_size=sizes["n_embd"],
        intermediate_size=sizes["n_inner"],
        num_attention_heads=sizes["n_head"],
        num_key_value_heads=sizes["n_kv_head"],
        head_dim=sizes["head_dim"],
        rms_norm_eps=sizes["epsilon"],
        tie_word_embeddings=sizes.get("tied", False),
        attn_implementation="eager",
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval().float()
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            torch.nn.init.normal_(parameter, mean=float("norm" in name), std=0.2)
        elif parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.15)
    return model


def ours(work: ModuleType, theirs: torch.nn.Module, **changes) -> torch.nn.Module:
    """The learner's model with the same weights. Raises RuntimeError if names or shapes differ."""
    model = work.Llama(work.Config(**{**SIZES, **changes}))
    model.load_state_dict(theirs.state_dict())
    return model.eval()


def parts(work: ModuleType) -> Iterator[Part]:
    """What is checked, in the order in which the parts build on each other."""
    plain = reference("Llama", n_kv_head=SIZES["n_head"])
    grouped = reference("Llama")
    x = torch.randn(len(TOKENS), SIZES["n_embd"], generator=torch.Generator().manual_seed(1))
    positions = torch.arange(len(TOKENS), dtype=torch.int64)
    visible = positions <= positions[:, None]
    hidden = torch.zeros(len(TOKENS), len(TOKENS)).masked_fill(~visible, float("-inf"))

    def norm() -> Tensor:
        own = work.RMSNorm(SIZES["n_embd"], SIZES["epsilon"])
        own.load_state_dict(plain.model.norm.state_dict())
        return own(x)

    heads = torch.randn(2, len(TOKENS), SIZES["head_dim"], generator=torch.Generator().manual_seed(2))

    def rotated() -> Tensor:
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

        cos, sin = plain.model.rotary_emb(heads[None], positions[None] + 3)
        return apply_rotary_pos_emb(heads[None], heads[None], cos, sin)[0][0]

    def mlp() -> Tensor:
        own = work.MLP(work.Config(**SIZES))
        own.load_state_dict(plain.model.layers[0].mlp.state_dict())
        return own(x)

    def attention(theirs: torch.nn.Module, **changes) -> Tensor:
        own = work.Attention(work.Config(**{**SIZES, **changes}))
        own.load_state_dict(theirs.model.layers[0].self_attn.state_dict())
        return own(x, positions, visible)

    def right_attention(theirs: torch.nn.Module) -> Tensor:
        embeddings = theirs.model.rotary_emb(x[None], positions[None])
        layer = theirs.model.layers[0].self_attn
        return layer(x[None], position_embeddings=embeddings, attention_mask=hidden[None, None])[0][0]

    tokens = torch.tensor(TOKENS, dtype=torch.int64)
    yield "RMSNorm", norm, lambda: plain.model.norm(x)
    yield "rotate, from position 3 on", lambda: work.rotate(heads, positions + 3, 10_000.0), rotated
    yield "MLP", mlp, lambda: plain.model.layers[0].mlp(x)
    alone = {"n_kv_head": SIZES["n_head"]}
    yield "Attention, a key for each query head", lambda: attention(plain, **alone), lambda: right_attention(plain)
    yield "Attention, three query heads to a key", lambda: attention(grouped), lambda: right_attention(grouped)
    kinds = [
        ("a Llama", "Llama", {}),
        ("a Llama with tied embeddings", "Llama", {"tied": True}),
        ("a Qwen 2: biases", "Qwen2", {"attention_bias": True}),
        ("a Qwen 3: normed queries and keys, wider heads", "Qwen3", {"query_key_norm": True, "head_dim": 16}),
    ]
    for title, kind, changes in kinds:
        theirs = reference(kind, **changes)
        yield (
            f"{title}, logits",
            lambda theirs=theirs, changes=changes: ours(work, theirs, **changes)(tokens),
            lambda theirs=theirs: theirs(tokens[None]).logits[0],
        )


def compare(got: object, right: Tensor) -> str:
    """What is wrong with a result, in a few words; "" if nothing is."""
    if not isinstance(got, Tensor):
        return f"expected a tensor, got {type(got).__name__}"
    if got.shape != right.shape:
        return f"expected the shape {list(right.shape)}, got {list(got.shape)}"
    error = float((got - right).abs().max() / right.abs().max())
    return "" if error <= TOLERANCE else f"off by {error:.1e} of the largest number, where {TOLERANCE:.0e} is allowed"


def check(to_check: Iterable[Part]) -> Iterator[tuple[str, str]]:
    """(what is checked, what is wrong or "") for each part, up to the first that is wrong."""
    with torch.inference_mode():
        for title, got, right in to_check:
            try:
                problem = compare(got(), right())
            except NotImplementedError:
                problem = BLANK
            except Exception as error:  # whatever the learner's code raises is reported, not hidden
                problem = f"{type(error).__name__}: {error}"
            yield title, problem
            if problem:
                return


def grade_file(path: Path, patience: float = child.PATIENCE) -> Grade:
    """The grade of a file, which runs in a separate process, for a teacher's table."""
    if importlib.util.find_spec("transformers") is None:
        return Grade("not checked", NO_REFERENCE)
    num_parts, passed, title = 0, 0, "the file can be read"
    try:
        for title, problem, num_parts in child.run(_tell_parts, path, patience=patience, quiet=True, needs="torch"):
            if problem:
                state = "not started" if problem == BLANK and not passed else "failing"
                counts = (passed, num_parts) if state == "failing" else (0, 0)
                return Grade(state, f"{title}\n{problem}", title, *counts)
            passed += 1
    except child.CheckFailed as error:
        return Grade("not checked", f"the check itself failed: {error}")
    except child.Stopped as error:
        return Grade("failing", f"after {passed} correct parts: {error}", "", passed, num_parts)
    return Grade("passed", "", "", passed, num_parts)


def _tell_parts(tell: child.Tell, path: Path) -> None:
    reference("Llama")  # the first one imports transformers, which takes the longest
    tell.begin()
    try:
        work = load(path)
    except Exception as error:
        return tell(("the file can be read", f"{type(error).__name__}: {error}", 0))
    to_check = list(parts(work))
    for title, problem in check(to_check):
        tell((title, problem, len(to_check)))
    return None


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?", default=Path("llama.py"), help="what to check")
    args = parser.parse_args(argv)
    path = args.file if args.file.exists() else FOLDER / args.file
    if not path.exists():
        print(f"check: there is no {args.file}", file=sys.stderr)
        return 2
    if importlib.util.find_spec("transformers") is None:
        print(f"check: {NO_REFERENCE}", file=sys.stderr)
        return 2
    for title, problem in check(parts(load(path))):
        print(f"  {'✗' if problem else '✓'} {title}" + (f"\n      {problem}" if problem else ""), flush=True)
        if problem:
            return 1
    print("All right: you can load a Llama.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
