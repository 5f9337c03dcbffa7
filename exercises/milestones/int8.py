"""Milestone 8, int8: weights and activations as integers of 8 bits, in every linear layer and in the vocabulary."""

import torch
import torch.nn.functional as F
from torch import Tensor

from exercises.grading import expect, require, short
from stagewise import logit_bias

from .blocks import BLOCK
from .lab import Lab, Missing, Result, Settings, greedy, prompts_of, seeded

NUM = 30  # tokens out
NEAR = 0.006  # mean over log-probabilities: an activation halfway between two integers may become either
ROW = "each row of activations has its own scale"


def rounded(x: Tensor) -> Tensor:
    """Each row rounded to integers and scaled back: [..., n] -> same"""
    scale = x.abs().amax(-1, keepdim=True) / 127
    return (x / torch.where(scale > 0, scale, 1.0)).round() * scale


class Rounded:
    """GPT-2 over one sequence in float64, with rounded weights and activations, plain and slow; known mistakes can be
    switched on. Its weights are those of stage 1's model."""

    def __init__(self, model: torch.nn.Module):
        self.model = model

    def linear(self, x: Tensor, layer: torch.nn.Linear, activations: bool) -> Tensor:
        """[n_seq, in] -> [n_seq, out]"""
        x = rounded(x) if activations else x
        return F.linear(x, rounded(layer.weight.double()), layer.bias.double())

    @torch.inference_mode()
    def logprobs(
        self, token_ids: list[int], layers: bool = True, table: bool = True, head: bool = True, activations: bool = True
    ) -> Tensor:
        """The log-probabilities after each token: [n_seq] -> [n_seq, vocab_size]. What is False is not rounded."""
        model, wte = self.model, self.model.wte.weight.double()
        linear = lambda x, layer: self.linear(x, layer, activations) if layers else F.linear(  # noqa: E731
            x, layer.weight.double(), layer.bias.double())  # fmt: skip
        norm = lambda x, ln: F.layer_norm(x, x.shape[-1:], ln.weight.double(), ln.bias.double(), ln.eps)  # noqa: E731
        x = (rounded(wte) if table else wte)[token_ids] + model.wpe.weight[: len(token_ids)].double()
        for block in model.h:
            qkv = linear(norm(x, block.ln_1), block.attn.c_attn)  # [n_seq, 3 * n_embd]
            q, k, v = qkv.unflatten(-1, (3, block.attn.n_head, -1)).permute(
                1, 2, 0, 3
            )  # each [n_head, n_seq, head_dim]
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + linear(out.transpose(0, 1).flatten(-2), block.attn.c_proj)
            x = x + linear(F.gelu(linear(norm(x, block.ln_2), block.mlp.c_fc), approximate="tanh"), block.mlp.c_proj)
        x = norm(x, model.ln_f)
        logits = F.linear(rounded(x) if activations else x, rounded(wte)) if head else F.linear(x, wte)
        return logits.log_softmax(-1)

    def mistakes(self, token_ids: list[int]) -> dict[str, Tensor]:
        """Message -> the log-probabilities that this mistake gives."""
        return {
            "nothing was rounded: these are the numbers of float32": self.logprobs(
                token_ids, layers=False, table=False, head=False
            ),
            "the vocabulary's matrix was not rounded: `model.wte`": self.logprobs(token_ids, table=False, head=False),
            "only the vocabulary's matrix was rounded; linear layers have weights too": self.logprobs(
                token_ids, layers=False
            ),
            "activations were not rounded": self.logprobs(token_ids, activations=False),
        }


def chosen(logprobs: Tensor, prompt: list[int], output: list[int]) -> list[float]:
    """Those of an output's tokens, each after the tokens before it."""
    return logprobs[len(prompt) - 1 : -1].gather(-1, torch.tensor(output)[:, None])[:, 0].tolist()


def in_int8(lab: Lab, **options):
    return lab.shared(weights="int8", block_size=BLOCK, **options)


def compare(lab: Lab, case: str, prompt: list[int], got: Result) -> None:
    """Expect log-probabilities of these tokens close to the plain network's, whatever the tokens are."""
    if got.logprobs is None:
        raise Missing("a result has no `logprobs`")
    network = Rounded(lab.first(lab.model()).engine.runner.model)
    ids = prompt + got.token_ids
    right = chosen(network.logprobs(ids), prompt, got.token_ids)
    off = [abs(a - b) for a, b in zip(got.logprobs, right, strict=True)]
    likely, least = "", sum(off) / 2  # a mistake whose numbers are much closer
    for said, logprobs in network.mistakes(ids).items():
        other = chosen(logprobs, prompt, got.token_ids)
        apart = sum(abs(a - b) for a, b in zip(got.logprobs, other, strict=True))
        likely, least = (said, apart) if apart < least else (likely, least)
    mean, case = sum(off) / len(off), f"{case}: log-probabilities of {got.token_ids[:4]} …"
    wanted = f"{short(right[:4])} …, off by less than {NEAR} on average"
    require(mean < NEAR, case, wanted, f"{short(got.logprobs[:4])} …, off by {mean:.3f} on average", likely)


def check_as_is(lab: Lab) -> None:
    """weights="as-is": nothing is rounded, and every token is stage 1's"""
    prompts = prompts_of(10, 3, 17, seed=8)
    case = "prompts of 10, 3 and 17 tokens, weights='as-is'"
    got = lab.run(case, prompts, greedy(NUM), lab.shared(weights="as-is", block_size=BLOCK))
    for prompt, one, other in zip(prompts, got, lab.expected(prompts, greedy(NUM)), strict=True):
        lab.same_tokens(case, prompt, one.token_ids, other.token_ids)


def check_logprobs(lab: Lab) -> None:
    """weights="int8": the log-probabilities of a network that is rounded by hand, with torch and with the kernels"""
    for how in ({"attention_backend": "torch"}, {}):
        what = "by torch" if how else "with the default backend"
        llm = in_int8(lab, speculate="off", **how)
        for prompt in prompts_of(10, 1, 25, seed=9):
            case = f"a prompt of {len(prompt)} tokens, greedy, weights='int8', {what}"
            compare(lab, case, prompt, lab.run(case, [prompt], greedy(NUM, logprobs=1), llm)[0])


def check_company(lab: Lab) -> None:
    """batches: other requests in the step change nothing"""
    prompts, settings = prompts_of(9, 14, 3, 11, seed=10), greedy(NUM, logprobs=1)
    for how in ({"attention_backend": "torch"}, {}):
        llm = in_int8(lab, speculate="off", max_num_seqs=4, **how)
        case = f"prompts of 9, 14, 3 and 11 tokens together, weights='int8', {'by torch' if how else 'by default'}"
        for prompt, got in zip(prompts, lab.run(case, prompts, settings, llm), strict=True):
            compare(lab, f"{case}: the one of {len(prompt)}", prompt, got)


def check_guesses(lab: Lab) -> None:
    """guesses: the same tokens with and without them, greedy and drawn"""
    prompts = prompts_of(12, 5, seed=11)
    settings: list[Settings] = [
        {**greedy(NUM), "logits_processors": [logit_bias({prompts[0][0]: 3.0})]},
        seeded(NUM, 3, temperature=0.5),
    ]
    case = "prompts of 12 and 5 tokens, weights='int8'"
    with_guesses = lab.run(f"{case}, speculate='ngram'", prompts, settings, in_int8(lab, speculate="ngram"))
    without = lab.run(f"{case}, speculate='off'", prompts, settings, in_int8(lab, speculate="off"))
    for one, other in zip(with_guesses, without, strict=True):
        likely = f"{ROW}: a guess in the same step must not change its token"
        expect(f"{case}: tokens with guesses, and without", one.token_ids, other.token_ids, likely=likely)


def check_default(lab: Lab) -> None:
    """weights are integers by default, on a CPU"""
    prompt = prompts_of(10, seed=9)[0]
    in_int8(lab)  # raises Missing if there is no such option
    case = "a prompt of 10 tokens, greedy, LLM(model, device='cpu')"
    llm = lab.own.LLM(str(lab.model()), device="cpu")
    got = lab.run(case, [prompt], greedy(NUM, logprobs=1), llm)[0]
    compare(lab, case, prompt, got)
