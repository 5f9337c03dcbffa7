"""Make the bundled checkpoints: stagewise/models/tinytales, a small GPT-2 that writes short tales, and
stagewise/models/tinytales-draft, a far smaller one of the same vocabulary, trained on the same tales, which guesses
what the first is about to write.

    cd tools/tinytales
    python train_tinytales.py generate 3    # print three tales of the grammar that it learns from
    python train_tinytales.py train         # 43 minutes on 2 CPU cores; Ctrl-C and run again to resume
    python train_tinytales.py evaluate      # the figures of the model cards

`train` and `evaluate` take `--model tinytales-draft`.

The tales come from tale_grammar.py: every tale is a function of its seed, so there is no data set to keep, no tale is
trained on twice, and the held-out tales are simply other seeds. Needs transformers, which trains.

Four tricks make a 50,257-token vocabulary cheap to train when the tales use 1,500 of its tokens, and let the model
cope with the rest in a reader's prompt:

- A compact vocabulary. Only the tokens that tales use have an embedding that is trained; see Embedding.
- Sampled softmax. The loss runs over these tokens plus a fresh sample of the others, whose logits get
  log(others / sampled), so that the sum over the sample estimates the sum over them all (Jean et al. 2015,
  arXiv:1412.2007). So the others learn together to be unlikely.
- Words that nobody knows. Some tales have invented names, kinds and things, and in some the first sentence has random
  words in the place of its own. The model learns to repeat a stranger's name, and that a strange word does not derail
  the story.
- Strangers keep their pieces. GPT-2 cuts "Mateo" into M-ate-o where a text begins and into Mate-o after a space; who
  read the one cannot know the other. So an invented name comes again in the pieces of its first mention. And many are
  made of pieces of the tales' own names, or after an M the model would always write Mara.
"""

import argparse
import json
import math
import os
import random
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tqdm import tqdm
from transformers import GPT2Config, GPT2LMHeadModel, GPT2Model

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
from tale_grammar import (  # noqa: E402
    ANIMALS,
    CHILD,
    FRIENDS,
    KIN,
    NAMES,
    PRONOUN_WORDS,
    THINGS,
    Tale,
    invented_word,
    lexicon,
    write_tale,
)

from stage04_continuous import LLM, SamplingParams  # noqa: E402
from stage04_continuous.support.tokenizer import Tokenizer  # noqa: E402
from stagewise.layout import write_config  # noqa: E402
from stagewise.strict_json import read_json  # noqa: E402
from stagewise.vocabulary import read_vocabulary  # noqa: E402

MODELS = Path(__file__).parents[2] / "stagewise" / "models"
MODEL, DRAFT = MODELS / "tinytales", MODELS / "tinytales-draft"
STATES = Path(__file__).parent / ".tinytales"

CONFIG = dict(n_positions=1024, vocab_size=50257)
SIZES = {MODEL.name: dict(n_embd=120, n_layer=6, n_head=5), DRAFT.name: dict(n_embd=36, n_layer=6, n_head=3)}
NO_DROPOUT: dict[str, Any] = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
TOKENS_PER_STEP = 4096
TOKENS_PER_CHUNK = 1024  # what one thread computes at a time
ROW_LENGTHS = {256: 0.6, 512: 0.33, 1024: 0.07}  # most rows are short (cheap attention), some reach the last position
LEARNING_RATE, MATRIX_LEARNING_RATE = 4e-3, 6e-3  # AdamW's for vectors and embeddings, Muon's for the layers' matrices
MOMENTUM, WEIGHT_DECAY = 0.95, 0.05
WARMUP_STEPS, DECAY = 60, 0.5  # the learning rates rise for 60 steps and fall over the last half of them all
SAMPLED_TOKENS = 512
SPREAD = 0.08  # distinguishes tokens without separate embeddings; if it is learned, it shrinks to nothing
KNOWN_TO_GPT2 = 0.5  # share of invented words that are tokens of GPT-2's vocabulary, not made of syllables
LONGER_NAMES = 0.4  # share of the names among them that are put together of several tokens
NOISY_OPENINGS, OPENING_NOISE = 0.5, (0.3, 0.6, 1.0)  # share of tales whose first sentence has noise; how much
LONGER, LONGER_BY = 0.15, (1, 4)  # how often a noisy word is followed by more of them, and by how many
NOISY_TALES, NOISE = 0.3, 0.02
FUNCTION_WORDS = (
    "a an the and or but so if when while as at in on of to from by with for than that this these who what where why"
    " how is are was were am be been has have had do does did not no can could will would my our your it its there very"
).split()  # noise leaves every second one unchanged: they are what makes a strange sentence understandable
SHARPNESS = 2.0  # see export
TALES_PER_STEP = 1000
FIRST_TRAINING_SEED = 1_000_000  # held-out tales have the seeds below it
HELD_OUT = range(500)
HELD_OUT_OPENINGS = Path(__file__).parent / "held_out_openings.txt"


# --- Data -----------------------------------------------------------------------------------------------------------


def spell(tokenizer: Tokenizer, tale: Tale) -> list[int]:
    """The tokens of a tale, an invented name always in the pieces of its first mention, and the end token."""
    text, names = tale.text, tale.inventions & {str(tale.values["h"]), str(tale.values["f"])}
    if not names:
        return [*tokenizer.encode(text), tokenizer.end_of_text_id]
    tokens, pieces = [], {}
    for part in filter(None, re.split(rf"(\n| ?\b(?:{'|'.join(names)})\b)", text)):
        name = part.removeprefix(" ")
        if name in names:
            first, *rest = pieces.setdefault(name, tokenizer.encode(part))
            tokens += [*tokenizer.encode(part.removesuffix(name) + tokenizer.decode([first]).strip()), *rest]
        else:
            tokens += tokenizer.encode(part)
    return [*tokens, tokenizer.end_of_text_id]


def tale_tokens(tokenizer: Tokenizer, seed: int) -> list[int]:
    return spell(tokenizer, Tale(seed))


def tokens_of_tales(tokenizer: Tokenizer) -> list[int]:
    """The tokens that tales without invented words use, sorted: they get separate embeddings."""
    return sorted({t for tale in range(20_000) for t in tale_tokens(tokenizer, FIRST_TRAINING_SEED - 1 - tale)})


def tokens_of_facts(tokenizer: Tokenizer) -> set[int]:
    """The tokens of names, kinds, things, kin and pronouns: noise would make a tale contradict itself there."""
    things = [word for thing in THINGS for word in thing]
    words = [*ANIMALS, *chain(*CHILD.values()), *things, *PRONOUN_WORDS, *KIN, "named", "name"]
    capitals = [word for names in (NAMES, FRIENDS) for some in names.values() for word in some]
    return {token for word in [*words, *capitals] for token in tokenizer.encode(f" {word}")}


# Which of GPT-2's tokens may be an invented name, kind or thing; how a name of several tokens may begin and go on.
WORDS = {"name": " [A-Z][a-z]+", "kind": " [a-z]{3,}", "start": "[A-Z][a-z]{0,2}", "end": "[a-z]{1,5}"}
FIRST_SENTENCE = re.compile(r'.*?[.!?]"?(?= [A-Z"]|\Z)', re.DOTALL)


def look(text: str) -> int:
    """How a token looks: 0 if it is not a word, 1 to 4 for a word with or without a capital and a space before it."""
    word = text.removeprefix(" ")
    return 1 + 2 * word[0].isupper() + (word != text) if word.isalpha() and word.isascii() else 0


class Rows:
    """The rows of a training step, a function of the step number, so that a resumed run sees the same.

    A row starts where a prompt would: at a tale's first word or at the end token before it.
    """

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self.texts = [tokenizer.decode([token]) for token in range(CONFIG["vocab_size"])]
        self.looks = [look(text) for text in self.texts]
        self.alike = [[token for token, a in enumerate(self.looks) if a == b] for b in range(5)]  # by look
        self.facts = tokens_of_facts(tokenizer)
        self.function_words = {t for word in FUNCTION_WORDS for t in tokenizer.encode(f" {word}")}
        self.words = {what: [t.strip() for t in self.texts if re.fullmatch(p, t)] for what, p in WORDS.items()}
        names = [name for names in (NAMES, FRIENDS) for some in names.values() for name in some]
        pieces = [tokenizer.encode(name) for name in names]  # as where a text begins
        starts = sorted({self.texts[first] for first, *rest in pieces if rest})
        self.starts = [starts, self.words["start"], self.words["name"]]  # each is as likely
        self.ends = [sorted({self.texts[token] for _, *rest in pieces for token in rest}), self.words["end"]]
        self.known = lexicon() | {name.lower() for name in names}

    def at(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets, each [n_rows, row_length]; a target of -100 asks for nothing."""
        rng = random.Random(step)
        length = rng.choices(list(ROW_LENGTHS), list(ROW_LENGTHS.values()))[0]
        first = FIRST_TRAINING_SEED + step * TALES_PER_STEP
        seeds = iter(range(first, first + TALES_PER_STEP))
        rows = []
        while len(rows) < TOKENS_PER_STEP // length:
            row = [(self.tokenizer.end_of_text_id,) * 2] if rng.random() < 0.5 else []
            while len(row) <= length:
                row += self.tale(next(seeds), rng)
            inputs, targets = zip(*row, strict=True)
            rows.append((inputs[:length], targets[1 : length + 1]))
        inputs, targets = zip(*rows, strict=True)
        return torch.tensor(inputs), torch.tensor(targets)

    def invent(self, rng: random.Random, what: str) -> str:
        """A word that the tales do not have: one of GPT-2's vocabulary, or a meaningless one."""
        while (word := self.draw(rng, what)).lower() in self.known:
            pass
        return word

    def draw(self, rng: random.Random, what: str) -> str:
        if rng.random() >= KNOWN_TO_GPT2:
            return invented_word(rng, what)
        named = what in ("name", "friend")
        if not named or rng.random() >= LONGER_NAMES:
            return rng.choice(self.words["name" if named else "kind"])
        # Many of the pieces are those of known names: "M-ate-o" must be told from "M-ara".
        return rng.choice(rng.choice(self.starts)) + "".join(
            rng.choice(rng.choice(self.ends)) for _ in range(rng.randint(1, 2))
        )

    def tale(self, seed: int, rng: random.Random) -> list[tuple[int, int]]:
        """A tale's tokens, some replaced by noise: of each what is read, and the target.

        Nothing is asked (-100) where an invented word comes for the first time: the model learns to repeat words that
        it has never met, and never to invent one. Nor for noise in a first sentence. Facts stay as they are.
        """
        tale = Tale(seed, self.invent)
        text = tale.text
        opening, share, rest = self.noise(rng, text)
        first_time = {i for word in tale.inventions for place in places(word, text)[:1] for i in place}
        cast = [tale.values["h"], tale.values["f"]]
        words = {*(c.name for c in cast), *(c.kind for c in cast), *tale.inventions}
        kept = {i for word in words for place in places(word, text) for i in place}
        row, end = [], 0
        for token in spell(self.tokenizer, tale):
            begin, end = end, end + len(self.texts[token])  # its characters; the tales are ASCII
            characters, in_opening = range(begin + self.texts[token].startswith(" "), end), begin < opening
            keep = not self.looks[token] or token in self.facts or not kept.isdisjoint(characters)
            keep = keep or (token in self.function_words and rng.random() < 0.5)
            noisy = not keep and rng.random() < (share if in_opening else rest)
            target = -100 if (noisy and in_opening) or not first_time.isdisjoint(characters) else token
            row.append((rng.choice(self.alike[self.looks[token]]) if noisy else token, target))
            if noisy and in_opening and rng.random() < LONGER:
                row += [(rng.choice(self.alike[look(" x")]), -100) for _ in range(rng.randint(*LONGER_BY))]
        return row

    def noise(self, rng: random.Random, text: str) -> tuple[int, float, float]:
        """How many of a tale's first characters are an opening with noise, and how likely noise is there and after."""
        opening = FIRST_SENTENCE.match(text).end() if rng.random() < NOISY_OPENINGS else 0  # pyright: ignore[reportOptionalMemberAccess]
        return opening, rng.choice(OPENING_NOISE), NOISE if rng.random() < NOISY_TALES else 0


def places(word: str, text: str) -> list[range]:
    """Where a text has a word, in characters."""
    return [range(*match.span()) for match in re.finditer(rf"\b{word}\b", text)]


# --- Training -------------------------------------------------------------------------------------------------------


class Embedding(torch.nn.Module):
    """The token embedding, [vocab_size, n_embd], for input and output, as GPT-2 ties them.

    The tokens that tales use have a vector each, all others share one with those that look like them. A small random
    direction is added that is not learned: enough to tell one unknown word from another, and to repeat any word. It is
    the same with a space before the word and without, so that a text's first word can come again within it.
    """

    direction: torch.Tensor
    look: torch.Tensor
    used: torch.Tensor
    place: torch.Tensor

    def __init__(self, used: list[int], texts: list[str], n_embd: int):
        super().__init__()
        self.own = torch.nn.Parameter(0.02 * torch.randn(len(used), n_embd))
        self.shared = torch.nn.Parameter(torch.zeros(5, n_embd))  # by look
        words = {text.removeprefix(" "): i for i, text in enumerate(texts)}
        directions = SPREAD * torch.randn(len(texts), n_embd)
        self.register_buffer("direction", directions[[words[text.removeprefix(" ")] for text in texts]])
        self.register_buffer("look", torch.tensor([look(text) for text in texts]))
        self.register_buffer("used", torch.tensor(used))
        place = torch.full((len(texts),), -1)
        place[self.used] = torch.arange(len(used))
        self.register_buffer("place", place)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        place = self.place[tokens].unsqueeze(-1)
        own = F.embedding(place.squeeze(-1).clamp(min=0), self.own)
        return torch.where(place < 0, self.shared[self.look[tokens]], own) + self.direction[tokens]

    def loss(self, hidden: torch.Tensor, targets: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
        """Summed cross entropy over the tales' own tokens and a sample of the others (see the module's docstring).

        Args:
            hidden: [n_tokens, n_embd]; targets: [n_tokens], -100 where nothing is asked.
        """
        hidden, targets = hidden[targets >= 0], targets[targets >= 0]
        vocab_size, n_own = len(self.place), len(self.own)
        place = self.place[targets]
        sample = torch.randint(vocab_size, (SAMPLED_TOKENS,), generator=rng)
        sample = sample[(self.place[sample] < 0) & ~torch.isin(sample, targets)].unique()
        repeated = targets[place < 0].unique()
        others = torch.cat([repeated, sample])
        correction = torch.zeros(n_own + len(others))
        correction[n_own + len(repeated) :] = math.log((vocab_size - n_own - len(repeated)) / len(sample))
        logits = F.linear(hidden, self(torch.cat([self.used, others])), correction)  # [n_tokens, n_candidates]
        targets = torch.where(place < 0, n_own + torch.searchsorted(repeated, targets), place)
        return F.cross_entropy(logits, targets, reduction="sum")


class Muon(torch.optim.Optimizer):
    """Momentum whose matrix is made orthogonal before it is used (Jordan et al. 2024), in float32, and for all matrices
    of one shape at once, which is what makes it cheap here."""

    def __init__(self, matrices: list[torch.nn.Parameter]):
        super().__init__(matrices, {"lr": MATRIX_LEARNING_RATE})

    @torch.no_grad()
    def step(self) -> None:
        rate, matrices = self.param_groups[0]["lr"], self.param_groups[0]["params"]
        for shape in {p.shape for p in matrices}:
            same = [p for p in matrices if p.shape == shape]
            for p in same:
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                momentum.lerp_(p.grad, 1 - MOMENTUM)
            updates = torch.stack([p.grad.lerp(self.state[p]["momentum"], MOMENTUM) for p in same])
            for p, update in zip(same, orthogonal(updates), strict=True):
                p.mul_(1 - rate * WEIGHT_DECAY).add_(update, alpha=-0.2 * rate * max(shape) ** 0.5)


def orthogonal(matrices: torch.Tensor) -> torch.Tensor:
    """Matrices with the same singular vectors and all singular values near 1, by five Newton-Schulz iterations.

    Args:
        matrices: [n, rows, columns]
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    wide = matrices.shape[1] <= matrices.shape[2]
    x = matrices if wide else matrices.mT
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        product = x @ x.mT
        x = a * x + (b * product + c * product @ product) @ x
    return x if wide else x.mT


class Trainer:
    """The model in training, its optimizers, and the file from which an interrupted run continues."""

    def __init__(self, name: str, steps: int, seed: int):
        self.config, self.file = CONFIG | SIZES[name], STATES / f"{name}.pt"
        self.steps, self.seed, self.step, self.seconds, self.cpu_seconds = steps, seed, 0, 0.0, 0.0
        self.tokenizer = Tokenizer(MODEL)
        torch.manual_seed(seed)
        # The tanh form of GELU under its fused name; the checkpoint is saved under GPT-2's name for the same function.
        config = GPT2Config(**self.config, **NO_DROPOUT, activation_function="gelu_pytorch_tanh")
        self.layers = GPT2Model(config)
        self.rows = Rows(self.tokenizer)
        self.embedding = Embedding(tokens_of_tales(self.tokenizer), self.rows.texts, self.config["n_embd"])
        layers = [p for name, p in self.layers.named_parameters() if name != "wte.weight"]
        matrices = [p for p in self.layers.h.parameters() if p.dim() == 2]
        others = [p for p in layers if not any(p is m for m in matrices)] + list(self.embedding.parameters())
        self.parameters = matrices + others
        self.optimizers = [
            Muon(matrices),
            torch.optim.AdamW(others, lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.0, fused=True),
        ]
        # Each thread has its own whole rows: threads that share every small product wait for each other.
        threads = TOKENS_PER_STEP // TOKENS_PER_CHUNK
        self.threads = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
        torch.set_num_threads(1)
        self.reader = ThreadPoolExecutor(1)
        self.next_rows = None

    def gradients(self, chunk: tuple[torch.Tensor, torch.Tensor], seed: int) -> tuple[float, tuple[torch.Tensor, ...]]:
        """The summed loss of some rows and its gradients."""
        inputs, targets = chunk
        hidden = self.layers(inputs_embeds=self.embedding(inputs)).last_hidden_state  # [n_rows, row_length, n_embd]
        rng = torch.Generator().manual_seed(seed)
        loss = self.embedding.loss(hidden.flatten(0, 1), targets.flatten(), rng)
        return loss.item(), torch.autograd.grad(loss, self.parameters)

    def train_step(self) -> float:
        inputs, targets = self.next_rows.result() if self.next_rows else self.rows.at(self.step)
        self.next_rows = self.reader.submit(self.rows.at, self.step + 1)
        at_once = TOKENS_PER_CHUNK // inputs.shape[1]
        chunks = zip(inputs.split(at_once), targets.split(at_once), strict=True)
        seeds = range(self.step * 1000, self.step * 1000 + 1000)
        results = list(self.threads.map(self.gradients, chunks, seeds))
        count = int((targets >= 0).sum())
        for p, *gradients in zip(self.parameters, *(gradients for _, gradients in results), strict=True):
            p.grad = torch.stack(gradients).sum(0) / count
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        scale = min(1, (self.step + 1) / WARMUP_STEPS, (1 - self.step / self.steps) / DECAY)
        for optimizer, rate in zip(self.optimizers, (MATRIX_LEARNING_RATE, LEARNING_RATE), strict=True):
            optimizer.param_groups[0]["lr"] = rate * scale
            optimizer.step()
        self.step += 1
        return sum(loss for loss, _ in results) / count

    def train(self) -> None:
        progress = tqdm(range(self.step, self.steps), initial=self.step, total=self.steps, unit="step", mininterval=5)
        for step in progress:
            started, cpu_started = time.perf_counter(), time.process_time()
            loss = self.train_step()
            self.seconds += time.perf_counter() - started
            self.cpu_seconds += time.process_time() - cpu_started
            progress.set_postfix(loss=f"{loss:.3f}", refresh=False)
            if (step + 1) % 50 == 0 or step + 1 == self.steps:
                self.save()

    def save(self) -> None:
        self.file.parent.mkdir(exist_ok=True)
        counts = {name: getattr(self, name) for name in ("steps", "seed", "step", "seconds", "cpu_seconds")}
        modules = [module.state_dict() for module in (self.layers, self.embedding, *self.optimizers)]
        torch.save(counts | {"modules": modules}, self.file.with_suffix(".new"))
        os.replace(self.file.with_suffix(".new"), self.file)

    def resume(self) -> None:
        """Go on from the state of an interrupted run of the same steps and seed, if there is one."""
        if not self.file.exists():
            return
        state = torch.load(self.file, weights_only=True)
        if state.pop("seed") != self.seed:
            sys.exit(f"{self.file} is of a run with another seed: use that, or remove it")
        before = state.pop("steps")
        if self.steps != before and state["step"] > min(self.steps, before) * (1 - DECAY):
            sys.exit(f"{self.file} is of a run whose rates already fall: use --steps {before}, or remove it")
        for module, values in zip((self.layers, self.embedding, *self.optimizers), state.pop("modules"), strict=True):
            module.load_state_dict(values)
        vars(self).update(state)
        print(f"resuming at step {self.step}", file=sys.stderr)

    def model(self) -> GPT2LMHeadModel:
        """The trained model as GPT-2, its embedding written out for the whole vocabulary."""
        model = GPT2LMHeadModel(GPT2Config(**self.config, **NO_DROPOUT))
        layers = self.layers.state_dict()
        del layers["wte.weight"]
        model.transformer.load_state_dict(layers, strict=False)
        with torch.no_grad():
            model.transformer.wte.weight.copy_(self.embedding(torch.arange(CONFIG["vocab_size"])))
        return model


def train(name: str, steps: int, seed: int) -> None:
    trainer = Trainer(name, steps, seed)
    trainer.resume()
    trainer.train()
    tokens = steps * TOKENS_PER_STEP
    print(f"trained {steps} steps, {tokens / 1e6:.1f} million tokens, in {trainer.seconds / 60:.1f} minutes")
    run = {"steps": steps, "tokens": tokens, "minutes": round(trainer.seconds / 60, 1)}
    run |= {"cpu_minutes": round(trainer.cpu_seconds / 60, 1), "cores": os.cpu_count()}
    run["own_tokens"] = len(trainer.embedding.own)
    export(trainer.model(), run, MODELS / name)
    trainer.file.unlink()


def export(model: GPT2LMHeadModel, run: dict, place: Path) -> None:
    """Write a checkpoint in Hugging Face layout, in float16, and what made it; vocab.json follows from merges.txt. The
    draft model has the other's tokenizer."""
    # The logits are linear in the last layer norm. Scaled by SHARPNESS, temperature 0.8 draws as 0.8 / SHARPNESS did
    # before: fewer mix-ups (a third friend where there are two), a little less variety. Greedy text stays the same.
    model.transformer.ln_f.weight.data *= SHARPNESS
    model.transformer.ln_f.bias.data *= SHARPNESS
    model.config.activation_function = "gelu_new"
    model.half().save_pretrained(place)
    (place / "training.json").write_text(json.dumps(run) + "\n")
    if place == MODEL:
        (place / "vocab.json").unlink(missing_ok=True)
        vocabulary = read_vocabulary(place).ids
        vocabulary.setdefault("<|endoftext|>", len(vocabulary))
        (place / "vocab.json").write_text(
            json.dumps(vocabulary, ensure_ascii=False, separators=(",", ":")), encoding="utf-8"
        )
    write_config(place, read_json(place / "config.json"))


# --- Evaluation -----------------------------------------------------------------------------------------------------


def held_out_loss(model: GPT2LMHeadModel, tokenizer: Tokenizer) -> float:
    """Mean cross entropy in nats per token over the held-out tales, each from its first token, end token included."""
    total, count = 0.0, 0
    with torch.inference_mode():
        for seed in tqdm(HELD_OUT, desc="held-out tales"):
            ids = torch.tensor([[tokenizer.end_of_text_id, *tale_tokens(tokenizer, seed)]])
            logits = model(ids[:, :-1]).logits[0]
            total += F.cross_entropy(logits, ids[0, 1:], reduction="sum").item()
            count += ids.shape[1] - 1
    return total / count


def held_out_openings() -> list[str]:
    return HELD_OUT_OPENINGS.read_text(encoding="utf-8").splitlines()


def evaluate(place: Path) -> None:
    """Print a stored checkpoint's loss, and how many samples end; of the draft model, how often it is right."""
    tokenizer = Tokenizer(MODEL)
    model = GPT2LMHeadModel.from_pretrained(place, dtype=torch.float32).eval()
    loss = held_out_loss(model, tokenizer)
    print(f"held-out loss {loss:.3f} nats per token, perplexity {math.exp(loss):.2f}")
    if place == DRAFT:
        print_agreement(model, tokenizer)
        return
    prompts = ["Once upon a time"] * 100 + [""] * 100
    outputs = LLM(model=str(place), max_num_seqs=32).generate(prompts, SamplingParams(temperature=0.8, max_tokens=1000))
    ended = sum(output.outputs[0].finish_reason == "stop" for output in outputs)
    print(f"{ended} of {len(outputs)} samples end at temperature 0.8")


def print_agreement(small: GPT2LMHeadModel, tokenizer: Tokenizer) -> None:
    """How often the draft model and the large one choose the same token."""
    large = GPT2LMHeadModel.from_pretrained(MODEL, dtype=torch.float32).eval()
    same, coupled, apart, count = 0, 0.0, 0.0, 0
    with torch.inference_mode():
        for seed in tqdm(HELD_OUT[:100], desc="agreement"):
            ids = torch.tensor([[tokenizer.end_of_text_id, *tale_tokens(tokenizer, seed)]])
            p, q = ((model(ids[:, :-1]).logits[0] / 0.8).double().softmax(-1) for model in (large, small))
            same += int((p.argmax(-1) == q.argmax(-1)).sum())
            # With one random number for both, they agree where their intervals of a token overlap.
            high, low = torch.minimum(p.cumsum(-1), q.cumsum(-1)), torch.maximum(p.cumsum(-1) - p, q.cumsum(-1) - q)
            coupled += float((high - low).clamp(min=0).sum())
            apart += float((p * q).sum())
            count += len(p)
    print(f"{same / count:.1%} of {count:,} likeliest tokens are the same; drawn at temperature 0.8 with one random")
    print(f"number for both, {coupled / count:.1%}; with a random number for each, {apart / count:.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("generate", help="print tales of the grammar")
    command.add_argument("count", type=int, nargs="?", default=1)
    command.add_argument("--seed", type=int, default=0, help="of the first tale")
    command = commands.add_parser("train", help="train a checkpoint, or resume it")
    command.add_argument("--model", choices=SIZES, default=MODEL.name)
    command.add_argument("--steps", type=int, default=6600)
    command.add_argument("--seed", type=int, default=0, help="of the weights before training")
    command = commands.add_parser("evaluate", help="print the figures of a checkpoint's card")
    command.add_argument("--model", choices=SIZES, default=MODEL.name)
    args = parser.parse_args()
    if args.command == "generate":
        print("\n\n---\n\n".join(write_tale(args.seed + i) for i in range(args.count)))
    elif args.command == "train":
        train(args.model, args.steps, args.seed)
    else:
        evaluate(MODELS / args.model)


if __name__ == "__main__":
    main()
