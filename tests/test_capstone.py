"""The capstone: the solutions pass, a skeleton is not started, and each mistake fails at the part that contains it.
NEXT.md, which it implements, shows the lines of stage 1 that change."""

import re
import shutil

import pytest

from exercises import report
from exercises.catalogue import CAPSTONES
from tests.adapter import ROOT

ONE, TWO = CAPSTONES.values()
SOLUTION, SOLUTION_TWO = ONE.with_name("solution.py"), TWO.with_name("llama_engine_solution.py")
MISTAKES = [
    ("RMSNorm", "the mean of squares is not taken", "pow(2).mean(-1, keepdim=True)", "pow(2).sum(-1, keepdim=True)"),
    ("rotate", "neighbors are paired", "x[..., :half], x[..., half:]", "x[..., ::2], x[..., 1::2]"),
    ("rotate", "positions are counted from 0", "positions[..., None].float()", "(positions - positions[0])[..., None].float()"),
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
ROTATED = "    q, k = (rotate(t, positions[:, None], c.rope_base) for t in (q, k))  # the same angles for all heads\n"
CACHED = "    k, v = cache.update(index, k, v)  # each -> [batch, n_kv_head, n_seq, head_dim], earlier steps first\n"
POSITIONS = "positions = (new - num_padding[:, None]).clamp(min=0)"
NORMED = "    if c.query_key_norm:\n        q, k = attention.q_norm(q), attention.k_norm(k)\n"
MISTAKES_TWO = [
    ("prefill", "padding is read", "(columns <= new[:, None]) & own[:, None, :] |", "(columns <= new[:, None]) & (own | True)[:, None, :] |"),
    ("prefill", "padding reads nothing", " | (columns == new[:, None])", ""),
    ("prefill", "the first column has the logits", "x[:, -1]", "x[:, 0]"),
    ("prefill", "values are rotated too", "for t in (q, k))  # the same", "for t in (q, k)); v = rotate(v, positions[:, None], c.rope_base)  # the same"),
    ("prefill", "heads of a group are not neighbors", "q.unflatten(1, (c.n_kv_head, -1))", "q.unflatten(1, (-1, c.n_kv_head)).transpose(1, 2)"),
    ("prefill", "keys are repeated before they are cached", CACHED, "    k, v = (t.repeat_interleave(c.n_head // c.n_kv_head, 1) for t in (k, v))\n" + CACHED),
    ("Qwen 3", "keys are normed after they are rotated", NORMED + ROTATED, ROTATED + NORMED),
    ("cached after rotation", "keys are rotated in each step", ROTATED + CACHED, CACHED + "    every = (positions[:, -1:] - k.shape[2] + 1 + torch.arange(k.shape[2]))[:, None]\n    q, k = rotate(q, positions[:, None], c.rope_base), rotate(k, every, c.rope_base)\n"),
    ("own position in its row", "positions are columns", POSITIONS, "positions = new.expand(len(num_padding), -1)"),
    ("one column longer", "the cache does not grow", "        cache.length = n_seq\n", "        cache.length = token_ids.shape[1]\n"),
    ("decode", "each step begins at position 0", POSITIONS, POSITIONS.replace("new -", "new - cache.length * (len(new) == 1) -")),
    ("decode", "earlier steps are not read", "(columns <= new[:, None]) &", "(columns <= new[:, None]) & (columns >= cache.length) &"),
    ("n_kv_head heads, not n_head", "a cache for all query heads", "n_rows, config.n_kv_head,", "n_rows, config.n_head,"),
    ("need not be n_embd / n_head", "heads share n_embd", "max_len, config.head_dim,", "max_len, config.n_embd // config.n_head,"),
    ("plans with", "the bytes of GPT-2", "config.n_kv_head * config.head_dim, self", "config.n_embd, self"),
    ("In the engine", "only batches of three", "        n_seq =", "        num_padding = num_padding.expand(3)\n        n_seq ="),
]  # fmt: skip


def check(path, part=ONE):
    return report.run([part.with_name(f"test_{part.name}"), f"--answer={path}"], path, first=True, show=False)


def test_the_solutions_pass():
    for part, solution, num_tests in ((ONE, SOLUTION, 9), (TWO, SOLUTION_TWO, 12)):
        result = check(solution, part)
        assert (result.state, result.message, result.num_passed) == ("passed", "", num_tests)


def test_the_skeleton_is_not_started():
    assert check(ONE).state == "not started"


def test_part_one_comes_first(tmp_path):
    """Part two uses the llama.py next to it."""
    assert "part one comes first: `python -m exercises check capstone`" in check(TWO, TWO).message
    shutil.copy(TWO, tmp_path)
    shutil.copy(SOLUTION, tmp_path / ONE.name)
    assert check(tmp_path / TWO.name, TWO).state == "not started"
    assert "part one comes first" in check(TWO, TWO).message


@pytest.mark.parametrize(
    ("part", "what", "text", "wrong", "solution", "file"),
    [*((*one, SOLUTION, ONE) for one in MISTAKES), *((*one, SOLUTION_TWO, TWO) for one in MISTAKES_TWO)],
    ids=[what for _, what, _, _ in (*MISTAKES, *MISTAKES_TWO)],
)
def test_a_mistake_fails_at_its_part(tmp_path, part, what, text, wrong, solution, file):
    right = solution.read_text(encoding="utf-8")
    assert right.count(text) == 1
    path = tmp_path / "wrong.py"
    path.write_text(right.replace(text, wrong), encoding="utf-8")
    result = check(path, file)
    assert result.state == "failing", what
    assert part in result.message.splitlines()[0]


def test_the_lines_that_a_llama_changes_are_in_the_model():
    page, model = ((ROOT / name).read_text(encoding="utf-8") for name in ("docs/NEXT.md", "stage01_single/model.py"))
    blocks = re.findall(r"^```diff\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    gone = [line for block in blocks for line in block.splitlines() if line.startswith("-")]
    kept = [line for block in blocks for line in block.splitlines() if line.startswith("  ")]
    assert len(blocks) == 4
    assert len(gone) >= 8
    for line in [*gone, *kept]:
        assert line[1:] in model.splitlines(), line
