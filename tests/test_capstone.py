"""The capstone: the solution passes, the skeleton is not started, and each mistake fails at the part that contains it."""

import pytest

from exercises import report
from exercises.__main__ import CAPSTONE

SOLUTION = CAPSTONE.with_name("solution.py").read_text(encoding="utf-8")
MISTAKES = [
    ("RMSNorm", "the mean of squares is not taken", "pow(2).mean(-1, keepdim=True)", "pow(2).sum(-1, keepdim=True)"),
    ("rotate", "neighbors are paired", "x[..., :half], x[..., half:]", "x[..., ::2], x[..., 1::2]"),
    ("rotate", "positions are counted from 0", "positions[:, None].float()", "(positions - positions[0])[:, None].float()"),
    ("rotate", "the other way round", "first * cos - second * sin", "first * cos + second * sin"),
    ("MLP", "the wrong product is the gate", "F.silu(self.gate_proj(x)) * self.up_proj(x)", "F.silu(self.up_proj(x)) * self.gate_proj(x)"),
    ("a key for each", "later keys are seen", "masked_fill(~visible, -math.inf)", "masked_fill(visible & ~visible, -math.inf)"),
    ("a key for each", "values are rotated too", "(weights @ v[:, None])", "(weights @ rotate(v, positions, c.rope_base)[:, None])"),
    ("three query heads", "heads of a group are not neighbors", "q.unflatten(0, (c.n_kv_head, -1))", "q.unflatten(0, (-1, c.n_kv_head)).transpose(0, 1)"),
    ("a Llama, logits", "one norm for both halves of a layer", "self.mlp(self.post_attention_layernorm(x))", "self.mlp(self.input_layernorm(x))"),
    ("a Llama, logits", "no norm at the end", "self.lm_head(self.model.norm(x))", "self.lm_head(x)"),
    ("a Qwen 3", "queries are normed after they are rotated", "            q, k = self.q_norm(q), self.k_norm(k)\n        q, k = rotate(q, positions, c.rope_base), rotate(k, positions, c.rope_base)\n", "            pass\n        q, k = rotate(q, positions, c.rope_base), rotate(k, positions, c.rope_base)\n        if c.query_key_norm:\n            q, k = self.q_norm(q), self.k_norm(k)\n"),
    ("RMSNorm", "no tensor", "return self.weight * wide.to(x.dtype)", "return None"),
]  # fmt: skip


def check(path):
    return report.run([CAPSTONE.with_name("test_llama.py"), f"--answer={path}"], path, first=True, show=False)


def test_the_solution_passes():
    result = check(CAPSTONE.with_name("solution.py"))
    assert (result.state, result.message, result.num_passed) == ("passed", "", 9)


def test_the_skeleton_is_not_started():
    assert check(CAPSTONE).state == "not started"


@pytest.mark.parametrize(("part", "what", "text", "wrong"), MISTAKES, ids=[what for _, what, _, _ in MISTAKES])
def test_a_mistake_fails_at_its_part(tmp_path, part, what, text, wrong):
    assert SOLUTION.count(text) == 1
    path = tmp_path / "wrong.py"
    path.write_text(SOLUTION.replace(text, wrong), encoding="utf-8")
    result = check(path)
    assert result.state == "failing", what
    assert part in result.message.splitlines()[0]
