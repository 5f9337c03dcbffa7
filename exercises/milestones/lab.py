"""What the checks share: small random models, the right answers (from stage 1, and from a plain network that can make
the known mistakes), and the engine under test."""

import contextlib
import functools
import json
import math
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from exercises.grading import Wrong, of_machine
from stagewise.layout import write_config
from tools.engines import STAGES, OwnEngine, random_prompts, unknown_argument

FIRST = STAGES[0]  # the reference: without batches, caches and blocks, little can be wrong
NEAR_TIE = 1e-3  # logits closer than this may come in either order
MERGES = ("Ġ t", "Ġ a", "h e", "i n", "r e", "o n", "Ġt he", "e r", "Ġ s", "a t")
END = 256 + len(MERGES)  # the end token; the tokens before it are the 256 bytes and the merges
VOCAB_SIZE = END + 1
SIZES = dict(n_layer=2, n_head=3, n_embd=48, n_inner=100, n_positions=64, vocab_size=VOCAB_SIZE)
BYTES_PER_TOKEN = 2 * 2 * 48 * 4  # a key and a value in each of 2 layers, 48 numbers of 4 bytes
Settings = dict[str, object]  # of SamplingParams, by name


class Positions(TorchDispatchMode):
    """Counts, in a `with` block, the positions that go through a model: those whose embedding torch looks up. Lookups
    without torch go unnoticed."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.embedding.default and len(args[0]) == VOCAB_SIZE:
            self.count += args[1].numel()
        return func(*args, **(kwargs or {}))


class Missing(Exception):
    """The engine lacks something that a check needs."""


@dataclass(frozen=True)
class Result:
    """A completion; `logprobs` are those of the chosen tokens."""

    token_ids: list[int]
    text: str
    finish_reason: str | None
    stop_reason: str | int | None
    logprobs: list[float] | None

    @classmethod
    def of(cls, completion) -> "Result":
        ids, entries = list(completion.token_ids), getattr(completion, "logprobs", None)
        chosen = entries and [float(entry[i].logprob) for entry, i in zip(entries, ids, strict=True)]
        return cls(ids, completion.text, completion.finish_reason, completion.stop_reason, chosen)


def greedy(max_tokens: int, **more) -> Settings:
    """This many tokens, always the best one."""
    return {"temperature": 0, "max_tokens": max_tokens, "ignore_eos": True, **more}


def seeded(max_tokens: int, seed: int, **more) -> Settings:
    return {"temperature": 1.0, "seed": seed, "max_tokens": max_tokens, "ignore_eos": True, **more}


def prompts_of(*lengths: int, seed: int = 0) -> list[list[int]]:
    """Random prompts of these lengths, without the end token."""
    return random_prompts(END, list(lengths), seed)


# --- The models -------------------------------------------------------------------------------------------------------


def write_model(folder: Path, seed: int = 0, readable: bool = True, eos: int = END, **sizes) -> Path:
    """A random checkpoint with its own tokenizer of bytes and a few merges. Weights are large enough for logits to
    differ, and no bias is zero, so that leaving one out is noticed.

    readable: greedy text is ASCII; else it is bytes, many of which are not valid characters.
    """
    from safetensors.torch import save_file

    sizes = {**SIZES, **sizes}
    weights, config = FIRST.part("weights"), FIRST.part("model").ModelConfig(**sizes)
    with torch.device("meta"):
        shapes = {name: tuple(p.shape) for name, p in FIRST.part("model").GPT2(config).state_dict().items()}
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in shapes.items():
        mean, std = (1.0, 0.1) if "ln_" in name and name.endswith("weight") else (0.0, 0.1 if "bias" in name else 0.2)
        tensor = torch.empty(shape).normal_(mean, std, generator=generator)
        if name == "wte.weight" and readable:
            tensor[94:256] = 0  # bytes that are not printable ASCII; a logit of 0 is never the best
        transposed = name.endswith(weights.STORED_TRANSPOSED)
        tensors[f"transformer.{name}"] = (tensor.t() if transposed else tensor).contiguous()
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(MERGES) + "\n", encoding="utf-8")
    tokens = [*FIRST.byte_alphabet(), *(merge.replace(" ", "") for merge in MERGES), "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    write_config(folder, {**sizes, "eos_token_id": eos})
    return folder


class Network:
    """GPT-2 over one sequence, plain and slow; known mistakes can be switched on. Its weights are stage 1's."""

    def __init__(self, model: torch.nn.Module):
        self.model, self.config = model, model.config

    @torch.inference_mode()
    def logits(
        self,
        token_ids: Sequence[int],
        positions: Sequence[int] | None = None,
        visible: Tensor | None = None,
        gelu: str = "tanh",
        scaled: bool = True,
        final_norm: bool = True,
    ) -> Tensor:
        """The logits after the last token: [n_seq] -> [vocab_size]. visible: [n_seq, n_seq], as in stage 1."""
        n_seq, n_head = len(token_ids), self.config.n_head
        positions = torch.arange(n_seq) if positions is None else torch.tensor(positions)
        visible = torch.ones(n_seq, n_seq, dtype=torch.bool).tril() if visible is None else visible
        x = self.model.wte(torch.tensor(token_ids)) + self.model.wpe(positions)  # [n_seq, n_embd]
        for block in self.model.h:
            qkv = block.attn.c_attn(block.ln_1(x)).unflatten(-1, (3, n_head, -1))  # [n_seq, 3, n_head, head_dim]
            q, k, v = qkv.permute(1, 2, 0, 3)  # each [n_head, n_seq, head_dim]
            scores = q @ k.transpose(-2, -1) / (math.sqrt(q.shape[-1]) if scaled else 1)
            weights = scores.masked_fill(~visible, -math.inf).softmax(dim=-1)
            x = x + block.attn.c_proj((weights @ v).transpose(0, 1).flatten(-2))
            x = x + block.mlp.c_proj(F.gelu(block.mlp.c_fc(block.ln_2(x)), approximate=gelu))
        x = self.model.ln_f(x[-1]) if final_norm else x[-1]
        return F.linear(x, self.model.wte.weight)

    def mistakes(self, prompt: list[int]) -> dict[str, Tensor]:
        """Message -> the logits that this mistake gives after a prompt."""
        everything = torch.ones(len(prompt), len(prompt), dtype=torch.bool)
        return {
            "GPT-2's GELU is the tanh form, F.gelu(x, approximate='tanh'); this is the exact one": self.logits(
                prompt, gelu="none"
            ),
            "tokens attend to later tokens: the causal mask is missing": self.logits(prompt, visible=everything),
            "the scores are not divided by sqrt(head_dim)": self.logits(prompt, scaled=False),
            "all tokens have position 0": self.logits(prompt, [0] * len(prompt)),
            "positions begin at 1; the first one is 0": self.logits(prompt, range(1, len(prompt) + 1)),
            "the last layer norm, ln_f, is missing": self.logits(prompt, final_norm=False),
            "the logits after the second-to-last token were read": self.logits(prompt[:-1] or prompt),
        }

    def mistakes_in_company(self, prompt: list[int], longest: int) -> dict[str, Tensor]:
        """The same for a prompt that is padded to the longest one's length."""
        num, found = longest - len(prompt), {}
        own = torch.arange(longest) >= num  # [longest], of a row that is padded on the left
        masked = (torch.ones(longest, longest, dtype=torch.bool).tril() & own) | torch.eye(longest, dtype=torch.bool)
        positions = [max(0, i - num) for i in range(longest)]
        for token in (0, END):  # common padding tokens
            left, side = [token] * num + prompt, f"rows are padded on the left with token {token}, and"
            found[
                f"rows are padded on the right with token {token}, and the last column is read, logits[:, -1]: "
                "in a short row that is padding"
            ] = self.logits(prompt + [token] * num)
            found[f"{side} attend to it: the attention mask is missing"] = self.logits(left, positions)
            found[f"{side} count it as positions: a row's own first token has position 0"] = self.logits(
                left, None, masked
            )
            found[f"{side} both attend to it and count it: no mask, and no separate positions"] = self.logits(left)
        return found


# --- The engine that is checked ---------------------------------------------------------------------------------------


class Lab:
    """An engine, small models to try it on, and stage 1's results for them.

    Args:
        own: the engine.
        folder: where the models go.
        tell: called with each case as it begins, in case it does not end.
    """

    def __init__(self, own: OwnEngine, folder: Path, tell: Callable[[str], None] = lambda case: None):
        self.own, self.folder, self.tell = own, folder, tell

    @functools.cache  # noqa: B019 (a lab lives as long as the checks)
    def model(self, **how) -> Path:
        """A checkpoint; `how` is for write_model."""
        return write_model(self.folder / f"model-{len(list(self.folder.iterdir()))}", **how)

    @functools.cache  # noqa: B019
    def tokenizer(self):
        return FIRST.part("weights").Tokenizer(self.model())

    @functools.cache  # noqa: B019
    def first(self, model: Path):
        return FIRST.LLM(str(model), device="cpu")

    @functools.cache  # noqa: B019
    def network(self, model: Path) -> Network:
        return Network(self.first(model).engine.runner.model)

    def llm(self, model: Path | None = None, **options):
        """The engine with a model, without quantization. Raises Missing if there is no such option."""
        return self._made(self.own.engine, model, options)

    def stepper(self, **options):
        """The same, to be stepped by hand."""
        return self._made(self.own.stepper, None, options)

    def _made(self, make: Callable, model: Path | None, options: dict):
        usual = {"device": "cpu", "weights": "as-is"}
        usual = {name: value for name, value in usual.items() if name not in options}
        try:
            return make(model or self.model(), usual, **options)
        except TypeError as error:
            unknown = unknown_argument(error, options)
            if unknown is None:
                raise
            raise Missing(f"LLM takes no option {unknown!r}") from None

    @functools.cache  # noqa: B019
    def shared(self, model: Path | None = None, **options):
        """The same, shared by all checks."""
        return self.llm(model, **options)

    def params(self, settings: Settings):
        """SamplingParams. Raises Missing if it has no such field."""
        try:
            return self.own.SamplingParams(**settings)
        except TypeError as error:
            unknown = unknown_argument(error, settings)
            if unknown is None:
                raise
            raise Missing(f"SamplingParams has no {unknown!r}") from None

    def has(self, field: str, value: object) -> bool:
        """Whether there is such a field of SamplingParams."""
        try:
            return bool(self.params({field: value}))
        except Missing:
            return False

    def stats(self, llm):
        if getattr(llm, "stats", None) is None:
            raise Missing("LLM has no `stats`, so there is no count of what it computes")
        return llm.stats

    def counted(self, llm, *names: str) -> list[int]:
        """These counters of an engine. Raises Missing if it lacks one of them."""
        stats = self.stats(llm)
        if lost := [name for name in names if not hasattr(stats, name)]:
            raise Missing(f"`stats` has no counter {lost[0]!r}")
        return [getattr(stats, name) for name in names]

    @contextlib.contextmanager
    def case(self, case: str) -> Iterator[None]:
        """An error that the engine raises in this block is shown with the case."""
        self.tell(case)
        try:
            yield
        except (Wrong, Missing, NotImplementedError):
            raise
        except Exception as error:
            if of_machine(error, self.frames(error)):
                raise
            raise Wrong(case, "no error", self.where(error)) from error

    def frames(self, error: BaseException) -> list[traceback.FrameSummary]:
        """The engine's part of the stack."""
        found = traceback.extract_tb(error.__traceback__)
        return [frame for frame in found if self.own.directory in Path(frame.filename).parents]

    def where(self, error: BaseException) -> str:
        """The error's message, and the line of the engine's files that raised it."""
        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        frames = self.frames(error)
        if not frames:
            return said
        return f"{said}\n           {Path(frames[-1].filename).name}, line {frames[-1].lineno}: {frames[-1].line}"

    def run(self, case: str, prompts: Sequence, settings: Settings | Sequence[Settings], llm=None) -> list[Result]:
        """The engine's results for prompts, in order.

        settings: one for all, or one for each.
        """
        llm = llm or self.shared()
        with self.case(case):
            alike = isinstance(settings, dict)
            params = self.params(settings) if alike else [self.params(one) for one in settings]
            outputs = llm.generate(list(prompts), params)
            if not isinstance(outputs, list) or len(outputs) != len(prompts):
                got = f"{len(outputs)} of them" if isinstance(outputs, list) else type(outputs).__name__
                raise Wrong(case, f"a list of {len(prompts)} results", got)
            return [Result.of(output.outputs[0]) for output in outputs]

    def expected(
        self, prompts: Sequence, settings: Settings | Sequence[Settings], model: Path | None = None
    ) -> list[Result]:
        """Stage 1's results for them."""
        alike = isinstance(settings, dict)
        params = [FIRST.SamplingParams(**one) for one in ([settings] * len(prompts) if alike else settings)]
        return [Result.of(o.outputs[0]) for o in self.first(model or self.model()).generate(list(prompts), params)]

    def same_tokens(
        self,
        case: str,
        prompt: list[int],
        got: list[int],
        expected: list[int],
        likely: Callable[[int], str] = lambda at: "",
    ) -> None:
        """Raise Wrong unless greedy tokens are the expected ones, up to a near-tie.

        likely: from the position of the first difference to the likely mistake.
        """
        pairs = zip(got, expected, strict=False)
        at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(got), len(expected)))
        if got == expected:
            return
        if at < min(len(got), len(expected)):
            logits = self.network(self.model()).logits(prompt + expected[:at])
            if logits[expected[at]] - logits[got[at]] < NEAR_TIE:
                return
            case = (
                f"{case}: from output token {at} on (position {len(prompt) + at - 1} is the last one computed for it)"
            )
            raise Wrong(case, expected[at : at + 8], got[at : at + 8], likely(at))
        raise Wrong(case, f"{len(expected)} tokens", f"{len(got)} tokens", likely(at))

    def refused(self, case: str, call: Callable[[], object], names: str, likely: str = "") -> None:
        """Raise Wrong unless a call raises a ValueError whose message contains this word."""
        self.tell(case)
        wanted = f"a ValueError that names {names!r}, before anything is computed"
        try:
            came = call()
        except (Missing, NotImplementedError):
            raise
        except Exception as error:
            if isinstance(error, ValueError) and names in str(error):
                return
            raise Wrong(case, wanted, self.where(error), likely) from error
        raise Wrong(case, wanted, "no error" if came is None else f"no error, but {came!r}", likely)
