"""The capstone: the solution passes, the skeleton does not, and each mistake fails at the part that contains it."""

import pytest

from exercises.capstone import check

SOLUTION = (check.FOLDER / "solution.py").read_text(encoding="utf-8")
ALL = 9
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
]  # fmt: skip


def outcome(path):
    return list(check.check(check.parts(check.load(path))))


def test_the_solution_passes(capsys):
    assert check.main(["solution.py"]) == 0
    assert capsys.readouterr().out.count("✓") == ALL


def test_the_skeleton_is_not_written(capsys):
    assert check.main([]) == 1
    assert "✗ RMSNorm\n      not written yet" in capsys.readouterr().out


@pytest.mark.parametrize(("part", "what", "text", "wrong"), MISTAKES, ids=[what for _, what, _, _ in MISTAKES])
def test_a_mistake_fails_at_its_part(tmp_path, part, what, text, wrong):
    assert SOLUTION.count(text) == 1
    path = tmp_path / "wrong.py"
    path.write_text(SOLUTION.replace(text, wrong), encoding="utf-8")
    title, problem = outcome(path)[-1]
    assert part in title
    assert problem, what


def test_what_is_no_tensor_or_no_file_is_said(tmp_path, capsys):
    path = tmp_path / "wrong.py"
    path.write_text(SOLUTION.replace("return self.weight * wide.to(x.dtype)", "return None"), encoding="utf-8")
    assert outcome(path) == [("RMSNorm", "expected a tensor, got NoneType")]
    assert check.main([str(tmp_path / "none.py")]) == 2
    assert "there is no" in capsys.readouterr().err
