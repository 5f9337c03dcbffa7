"""A solution of exercise 2.5."""

from collections.abc import Callable


def generate(
    step: Callable[[list[list[int]]], list[int]], prompts: list[list[int]], max_tokens: list[int], eos: int
) -> list[list[int]]:
    """The new tokens of every prompt; no row goes through `step` after it is done."""
    sequences = [list(prompt) for prompt in prompts]
    outputs: list[list[int]] = [[] for _ in prompts]
    live = list(range(len(prompts)))
    while live:
        for i, token in zip(live, step([sequences[i] for i in live]), strict=True):
            sequences[i].append(token)
            outputs[i].append(token)
        live = [i for i in live if len(outputs[i]) < max_tokens[i] and outputs[i][-1] != eos]
    return outputs


# --- Wrong answers: (what is wrong, in the solution, instead, words of the message) --------------------------------

LIVE = "        live = [i for i in live if len(outputs[i]) < max_tokens[i] and outputs[i][-1] != eos]\n"
MUTANTS = [
    ("with the prompt", "return outputs", "return sequences", "without the prompt"),
    ("changes the prompts", "list(prompt) for prompt in prompts", "prompt for prompt in prompts", "were changed"),
    ("counts the caller's limits down", LIVE, "        for i in live:\n            max_tokens[i] -= 1\n"
     "        live = [i for i in live if max_tokens[i] and outputs[i][-1] != eos]\n", "were changed"),
    ("steps without rows", "    while live:\n", "    for _ in range(max(max_tokens) + 1):\n", "until it is done, and no longer"),
    ("carries done rows", LIVE, LIVE.replace("[i for i in live if", "live if any(").replace("( len", "(len").replace("!= eos]", "!= eos for i in live) else []")
     + "    outputs = [o[:n] for o, n in zip(outputs, max_tokens)]\n", "until it is done, and no longer"),
    ("in the order of their ends", ("    live = list(range(len(prompts)))\n", LIVE, "return outputs"),
     ("    live, done = list(range(len(prompts))), []\n", LIVE.replace("        live =", "        left =") + "        done += [outputs[i] for i in live if i not in left]\n"
      "        live = left\n", "return done"), "not of their ends"),
    ("row r is request r", "for i, token in zip(live, step([sequences[i] for i in live]), strict=True):",
     "for i, token in enumerate(step([sequences[i] for i in live])):", "row r is no longer request r"),
    ("removes under the loop", LIVE, "        for i in live:\n            if len(outputs[i]) >= max_tokens[i] or outputs[i][-1] == eos:\n"
     "                live.remove(i)\n", "neighbors may leave at once"),
    ("drops the end token", "    return outputs", "    return [o[:-1] if o[-1] == eos else o for o in outputs]", "and is kept"),
    ("goes on after the end token", " and outputs[i][-1] != eos", "", "the end token ends a row"),
    ("searches the prompt", "outputs[i][-1] != eos]", "eos not in sequences[i]]", "in a prompt means nothing"),
    ("results by prompt", "return outputs", "return [{tuple(p): o for p, o in zip(prompts, outputs)}[tuple(p)] for p in prompts]",
     "may have the same prompt"),
]  # fmt: skip

ALSO_RIGHT = [
    ("pairs of prompt and output", "step([sequences[i] for i in live])", "step([list(prompts[i]) + outputs[i] for i in live])"),
    ("a set of those who are done", LIVE, "        done = {i for i in live if len(outputs[i]) == max_tokens[i] or outputs[i][-1] == eos}\n"
     "        live = sorted(set(live) - done)\n"),
]  # fmt: skip
