"""Make the bundled checkpoint, models/tinytales: a small GPT-2 that writes short tales.

    python tools/train_tinytales.py generate 3    # print three tales of the grammar that it learns from
    python tools/train_tinytales.py train         # 40 minutes on 2 CPU cores; Ctrl-C and run again to resume
    python tools/train_tinytales.py evaluate      # held-out loss, how tales end, who is in them -> the model card

The tales come from tale_grammar.py: every tale is a function of its seed, so there is no data set to keep, no tale is
trained on twice, and the held-out tales are simply other seeds. Needs `pip install -e ".[test]"` (transformers trains).

Two tricks make a 50,257-token vocabulary cheap to train when the tales use under 2,000 of its tokens:

- Sampled softmax. The loss runs over the tokens that tales use, plus a fresh sample of the others, whose logits get
  log(others / sampled), so that the sum over the sample estimates the sum over them all (Jean et al. 2015,
  arXiv:1412.2007). Tokens that no tale uses learn to be unlikely without 50,000 logits per position.
- Noise. In some rows a few input tokens are replaced by random ones, so that a word it has never met in a reader's
  prompt does not derail the story.
"""

import argparse
import json
import math
import os
import random
import re
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tqdm import tqdm
from transformers import GPT2Config, GPT2LMHeadModel

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]
from tale_grammar import NAMES, write_tale  # noqa: E402

from stage04_continuous import LLM, SamplingParams  # noqa: E402
from stage04_continuous.tokenizer import Tokenizer, byte_alphabet, read_merges  # noqa: E402

MODEL = Path(__file__).parent.parent / "models" / "tinytales"
STATE = Path(__file__).parent.parent / ".tinytales" / "state.pt"

CONFIG = dict(n_embd=96, n_layer=6, n_head=6, n_positions=1024, vocab_size=50257)
TOKENS_PER_STEP = 8192
ROW_LENGTHS = {256: 0.5, 512: 0.3, 1024: 0.2}  # most rows are short (cheap attention), some reach the last position
LEARNING_RATE = 4e-3
WARMUP_STEPS = 150
SAMPLED_TOKENS = 512
NOISY_ROWS, NOISE = 0.3, 0.02
SHARPNESS = 1.2  # see export
TALES_PER_STEP = 1000
FIRST_TRAINING_SEED = 1_000_000  # held-out tales have the seeds below it
HELD_OUT = range(500)


# --- Data -----------------------------------------------------------------------------------------------------------


def tale_tokens(tokenizer: Tokenizer, seed: int) -> list[int]:
    return [*tokenizer.encode(write_tale(seed)), tokenizer.end_of_text_id]


def training_rows(tokenizer: Tokenizer, step: int) -> np.ndarray:
    """The rows of a step, [n_rows, row_length + 1], a function of the step alone (so a resumed run sees the same).

    A row starts where a prompt would: at a tale's first word, at the end token before it, or now and then mid-tale.
    """
    rng = random.Random(step)
    length = rng.choices(list(ROW_LENGTHS), ROW_LENGTHS.values())[0]
    first = FIRST_TRAINING_SEED + step * TALES_PER_STEP
    seeds = iter(range(first, first + TALES_PER_STEP))
    rows = []
    while len(rows) < TOKENS_PER_STEP // length:
        row = [tokenizer.end_of_text_id] if rng.random() < 0.5 else []
        first_tale = tale_tokens(tokenizer, next(seeds))
        row += first_tale[rng.randrange(len(first_tale)) :] if rng.random() < 0.1 else first_tale
        while len(row) <= length:
            row += tale_tokens(tokenizer, next(seeds))
        rows.append(row[: length + 1])
    return np.array(rows)


# --- Training -------------------------------------------------------------------------------------------------------


def sampled_softmax_loss(hidden, targets, embedding, used, rng):
    """Cross entropy over the used tokens and a sample of the others (see the module's docstring).

    Args:
        hidden: [n_tokens, n_embd]; targets: [n_tokens]; embedding: [vocab_size, n_embd]
        used: the tokens that tales use, [n_used], sorted.
    """
    vocab_size = embedding.shape[0]
    sample = torch.randint(vocab_size, (SAMPLED_TOKENS,), generator=rng).to(used.device)
    candidates = torch.unique(torch.cat([used, targets, sample]))  # sorted
    unused = ~torch.isin(candidates, torch.cat([used, targets]))
    correction = math.log((vocab_size - len(used)) / max(1, int(unused.sum())))
    logits = F.linear(hidden, embedding[candidates], unused * correction)  # [n_tokens, n_candidates]
    return F.cross_entropy(logits, torch.searchsorted(candidates, targets))


def train(steps: int, device: str, seed: int) -> None:
    tokenizer = Tokenizer(MODEL)
    used = sorted({token for tale in range(20_000) for token in tale_tokens(tokenizer, FIRST_TRAINING_SEED - 1 - tale)})
    used = torch.tensor(used, device=device)
    torch.manual_seed(seed)
    # The tanh form of GELU under its fused name; the checkpoint is saved under GPT-2's name for the same function.
    config = GPT2Config(
        **CONFIG, activation_function="gelu_pytorch_tanh", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    )
    model = GPT2LMHeadModel(config).to(device).train()
    matrices = [p for p in model.parameters() if p.dim() == 2 and p is not model.transformer.wte.weight]
    others = [p for p in model.parameters() if not any(p is m for m in matrices)]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}],
        lr=LEARNING_RATE,
        betas=(0.9, 0.98),
        fused=True,
    )
    first_step, seconds = 0, 0.0
    if STATE.exists():
        state = torch.load(STATE, map_location=device, weights_only=True)
        if (state["steps"], state["seed"]) != (steps, seed):
            sys.exit(
                f"{STATE} is of a run with --steps {state['steps']} --seed {state['seed']}: use these, or remove it"
            )
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first_step, seconds = state["step"], state["seconds"]
        print(f"resuming at step {first_step}", file=sys.stderr)

    def save_state(step):
        STATE.parent.mkdir(exist_ok=True)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "steps": steps}
        torch.save({**state, "seed": seed, "seconds": seconds}, STATE.with_suffix(".new"))
        os.replace(STATE.with_suffix(".new"), STATE)

    progress = tqdm(range(first_step, steps), initial=first_step, total=steps, unit="step")
    for step in progress:
        started = time.perf_counter()
        rows = torch.from_numpy(training_rows(tokenizer, step)).to(device)
        inputs, targets = rows[:, :-1], rows[:, 1:]
        rng = torch.Generator().manual_seed(step)
        noise = torch.rand(inputs.shape, generator=rng) < NOISE
        noise &= torch.rand(len(inputs), 1, generator=rng) < NOISY_ROWS
        random_tokens = torch.randint(CONFIG["vocab_size"], inputs.shape, generator=rng)
        inputs = torch.where(noise.to(device), random_tokens.to(device), inputs)

        scale = min(1, (step + 1) / WARMUP_STEPS) * (1 - step / steps)
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * scale
        hidden = model.transformer(inputs).last_hidden_state  # [n_rows, row_length, n_embd]
        loss = sampled_softmax_loss(hidden.flatten(0, 1), targets.flatten(), model.transformer.wte.weight, used, rng)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seconds += time.perf_counter() - started
        if step % 10 == 0:
            progress.set_postfix(loss=f"{loss.item():.3f}")
        if (step + 1) % 200 == 0 or step + 1 == steps:
            save_state(step + 1)
    threads = torch.get_num_threads()
    hardware = f"{threads} CPU core{'s' * (threads > 1)}" if device == "cpu" else torch.cuda.get_device_name(device)
    print(f"trained {steps} steps, {steps * TOKENS_PER_STEP / 1e6:.1f} million tokens, in {seconds / 60:.1f} minutes")
    run = {"steps": steps, "tokens": steps * TOKENS_PER_STEP, "minutes": round(seconds / 60, 1), "hardware": hardware}
    export(model.cpu(), run)


def export(model: GPT2LMHeadModel, run: dict) -> None:
    """Write the checkpoint in Hugging Face layout, in float16, and what made it; vocab.json follows from merges.txt."""
    # The logits are linear in the last layer norm. Scaled by SHARPNESS, temperature 0.8 draws as 0.8 / SHARPNESS did
    # before: fewer slips (a third friend where there are two), a little less variety. Greedy text stays the same.
    model.transformer.ln_f.weight.data *= SHARPNESS
    model.transformer.ln_f.bias.data *= SHARPNESS
    model.config.activation_function = "gelu_new"
    model.half().save_pretrained(MODEL)
    character = {byte: c for c, byte in byte_alphabet().items()}
    vocabulary = {
        "".join(character[bytes([b])] for b in token): i for token, i in read_merges(MODEL / "merges.txt").items()
    }
    vocabulary["<|endoftext|>"] = len(vocabulary)
    (MODEL / "vocab.json").write_text(
        json.dumps(vocabulary, ensure_ascii=False, separators=(",", ":")), encoding="utf-8"
    )
    (MODEL / "training.json").write_text(json.dumps(run) + "\n")
    shutil.rmtree(STATE.parent)


# --- Evaluation -----------------------------------------------------------------------------------------------------

INTRODUCED = re.compile(r"\bnamed (\w+)")
PRONOUNS = {"she": {"she", "her", "hers"}, "he": {"he", "him", "his"}}
PRONOUN_OF = {name: pronoun for pronoun, names in NAMES.items() for name in names}


def cast_is_kept(tale: str) -> bool:
    """Whether a tale stays on its characters: every name is introduced before it is used, and no "he" or "she" is
    without a character of that kind (the mothers of the tales count as "she")."""
    introduced = {match[1]: match.start() for match in reversed(list(INTRODUCED.finditer(tale)))}
    for name in PRONOUN_OF:
        first = re.search(rf"\b{name}\b", tale)
        if first and introduced.get(name, len(tale)) > first.start():
            return False
    known = {PRONOUN_OF[name] for name in introduced if name in PRONOUN_OF}
    known |= {"she"} if re.search(r"\b[Mm]other\b", tale) else set()
    words = set(re.findall(r"[a-z]+", tale.lower()))
    return all(pronoun in known or not words & forms for pronoun, forms in PRONOUNS.items())


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


def evaluate() -> None:
    """Measure the stored checkpoint and write the model card."""
    tokenizer = Tokenizer(MODEL)
    model = GPT2LMHeadModel.from_pretrained(MODEL, dtype=torch.float32).eval()
    loss = held_out_loss(model, tokenizer)
    llm = LLM(max_num_seqs=32)
    params = SamplingParams(temperature=0.8, max_tokens=1000)
    prompts = ["Once upon a time"] * 100 + [""] * 100
    outputs = llm.generate(prompts, params, use_tqdm=True)
    tales = [output.prompt + output.outputs[0].text for output in outputs]
    ended = sum(output.outputs[0].finish_reason == "stop" for output in outputs)
    kept = sum(map(cast_is_kept, tales))
    run = json.loads((MODEL / "training.json").read_text())
    steps = tqdm(range(run["steps"]), desc="training tales")
    # A step has 1,000 seeds to itself and uses the first 40 to 70 of them: 8,192 tokens are that many tales.
    firsts = (FIRST_TRAINING_SEED + step * TALES_PER_STEP for step in steps)
    trained_on = {write_tale(seed) for first in firsts for seed in range(first, first + 100)}
    copied = sum(tale in trained_on for tale in tales)
    lengths = [len(output.outputs[0].token_ids) for output in outputs]
    held_out_lengths = [len(tale_tokens(tokenizer, seed)) for seed in HELD_OUT]
    card = CARD.format(
        parameters=sum(p.numel() for p in model.parameters()) / 1e6,
        size=(MODEL / "model.safetensors").stat().st_size / 1e6,
        steps=run["steps"],
        tokens=run["tokens"] / 1e6,
        minutes=run["minutes"],
        hardware=run["hardware"],
        sharpness=SHARPNESS,
        drawn=0.8 / SHARPNESS,
        loss=loss,
        perplexity=math.exp(loss),
        ended=ended,
        kept=kept,
        copied=copied,
        total=len(outputs),
        histogram=histogram(lengths, held_out_lengths),
        samples="\n\n".join(
            quote(i, output, tale) for i, (output, tale) in enumerate(zip(outputs[:10], tales[:10], strict=True))
        ),
        **CONFIG,
    )
    (MODEL / "README.md").write_text(card, encoding="utf-8")
    print(
        f"held-out loss {loss:.3f}; of {len(outputs)} samples {ended} end, {kept} keep their cast, {copied} are copies"
    )


def quote(i: int, output, tale: str) -> str:
    completion = output.outputs[0]
    body = "\n".join(f"> {line}".rstrip() for line in tale.split("\n"))
    return f"**Sample {i + 1}** ({len(completion.token_ids)} tokens, ends by {completion.finish_reason})\n\n{body}"


def histogram(samples: list[int], held_out: list[int], width: int = 50) -> str:
    """Shares of lengths as bars of text, the samples beside the held-out tales."""
    lines = ["tokens     samples  held-out"]
    for low in range(0, max(samples + held_out) + 1, width):
        shares = [sum(low <= n < low + width for n in lengths) / len(lengths) for lengths in (samples, held_out)]
        lines.append(
            f"{low:4}-{low + width - 1:<4}  {shares[0]:6.1%}  {shares[1]:6.1%}  {'█' * round(100 * shares[0])}"
        )
    return "\n".join(line.rstrip() for line in lines)


CARD = """---
license: mit
language: en
---

# tinytales

A GPT-2 of {parameters:.1f} million parameters that writes short tales. It comes with the repository so that every example and
test runs without a network, on real text that ends by itself. This card is written by `python tools/train_tinytales.py
evaluate`.

| | |
|---|---|
| architecture | GPT-2: {n_layer} layers, {n_head} heads, width {n_embd}, context {n_positions}, GPT-2's vocabulary of {vocab_size} tokens |
| file | `model.safetensors`, float16, {size:.1f} MB |
| training | {steps:,} steps of 8,192 tokens ({tokens:.1f} million), {minutes:.0f} minutes on {hardware} |
| data | tales that `tools/tale_grammar.py` writes, each a function of its seed; none is seen twice |
| sharpness | logits are scaled by {sharpness} at export: temperature 0.8 draws as {drawn:.2f} would have before; the figures below are after it |
| held-out loss | {loss:.3f} nats per token (perplexity {perplexity:.2f}) on 500 tales with other seeds, in float32, by the stored weights |
| samples that end | {ended} of {total} reach the end token by themselves (temperature 0.8, at most 1,000 tokens) |
| samples that keep their cast | {kept} of {total} (every name introduced before it is used; no "he" or "she" without a character of that kind) |
| samples that are copies | {copied} of {total} stand word for word among the training tales |

Made from scratch for this project. `merges.txt` is GPT-2's (OpenAI, MIT license); `vocab.json` follows from it.

## Limits

It has read nothing but these tales: fewer than 1,000 different words, two characters, eight plots. It knows no facts, follows no
instructions and speaks only English. A prompt in another style is continued as if it were the beginning of a tale. The
held-out tales come from the same grammar as the training tales, so the loss says how well it has learned the grammar, and
nothing about other text. Micro tales are short enough that a held-out one may have a twin in training.

## Lengths

{total} samples at temperature 0.8 and the 500 held-out tales, in tokens; the bars are the samples.

```text
{histogram}
```

## Ten samples

The first ten of these {total}, with seed 0 at temperature 0.8 for the prompt "Once upon a time", unedited and unselected.

{samples}
"""  # noqa: E501 (a table has no line breaks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("generate", help="print tales of the grammar")
    command.add_argument("count", type=int, nargs="?", default=1)
    command.add_argument("--seed", type=int, default=0, help="of the first tale")
    command = commands.add_parser("train", help="train the checkpoint, or resume it")
    command.add_argument("--steps", type=int, default=2400)
    command.add_argument("--seed", type=int, default=0, help="of the weights before training")
    command.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    commands.add_parser("evaluate", help="measure the checkpoint and write the model card")
    args = parser.parse_args()
    if args.command == "generate":
        print("\n\n---\n\n".join(write_tale(args.seed + i) for i in range(args.count)))
    elif args.command == "train":
        train(args.steps, args.device, args.seed)
    else:
        evaluate()


if __name__ == "__main__":
    main()
