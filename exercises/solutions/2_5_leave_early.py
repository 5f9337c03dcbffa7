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


# --- Wrong answers: (what is wrong, in the solution, instead, the message) -----------------------------------------

LIVE = "        live = [i for i in live if len(outputs[i]) < max_tokens[i] and outputs[i][-1] != eos]\n"
MUTANTS = [
    ("by the identity of a prompt", ("    outputs: list[list[int]] = [[] for _ in prompts]\n", "outputs[i].append(token)", "len(outputs[i]) < max_tokens[i] and outputs[i][-1] != eos", "return outputs"),
     ("    outputs = {id(prompt): [] for prompt in prompts}\n", "outputs[id(prompts[i])].append(token)",
      "len(outputs[id(prompts[i])]) < max_tokens[i] and outputs[id(prompts[i])][-1] != eos", "return [outputs[id(prompt)] for prompt in prompts]"), "two requests may have the same prompt"),
    ("row r is request r", "for i, token in zip(live, step([sequences[i] for i in live]), strict=True):",
     "for i, token in enumerate(step([sequences[i] for i in live])):", "row r is no longer request r"),
    ("by recursion", ("    while live:\n", LIVE, "    return outputs\n"),
     ("    def go(live):\n        if not live:\n            return\n", LIVE + "        go(live)\n\n", "    go(live)\n    return outputs\n"), "recursion"),
    ("with the prompt", "return outputs", "return sequences", "not part of the result"),
    ("changes the prompts", "list(prompt) for prompt in prompts", "prompt for prompt in prompts", "copy them"),
    ("carries done rows", LIVE, LIVE.replace("live = [i for i in live if", "live = live if any(").replace("!= eos]", "!= eos for i in live) else []")
     .replace("live if any( len", "live if any(len") + "    outputs = [o[:n] for o, n in zip(outputs, max_tokens)]\n",
     "until the batch ended"),
    ("removes under the loop", LIVE, "        for i in live:\n            if len(outputs[i]) >= max_tokens[i] or outputs[i][-1] == eos:\n"
     "                live.remove(i)\n", "skips every second"),
    ("drops the end token", "    return outputs", "    return [o[:-1] if o[-1] == eos else o for o in outputs]", "the end token is kept"),
    ("goes on after the end token", " and outputs[i][-1] != eos", "", "the end token ends a row"),
    ("searches the prompt", "outputs[i][-1] != eos]", "eos not in sequences[i]]", "in the new tokens only"),
    ("results by prompt", ("    outputs: list[list[int]] = [[] for _ in prompts]\n", "return outputs"),
     ("    outputs: list[list[int]] = [[] for _ in prompts]\n", "return [{tuple(p): o for p, o in zip(prompts, outputs)}[tuple(p)] for p in prompts]"),
     "keyed by prompt"),
    ("one list for all", "[[] for _ in prompts]", "[[]] * len(prompts)", "are the same list"),
    ("in the order of their ends", ("    live = list(range(len(prompts)))\n", LIVE, "return outputs"),
     ("    live, done = list(range(len(prompts))), []\n", LIVE.replace("        live =", "        left =") + "        done += [outputs[i] for i in live if i not in left]\n"
      "        live = left\n", "return done"), "in which rows finished"),
    ("counts the prompt", "len(outputs[i]) < max_tokens[i]", "len(sequences[i]) < max_tokens[i]", "expected:"),
    ("a limit for all", "len(outputs[i]) < max_tokens[i]", "len(outputs[i]) < max(max_tokens)", "expected:"),
    ("returns nothing", "    return outputs\n", "", "it returned None"),
    ("counts the caller's limits down", LIVE, "        for i in live:\n            max_tokens[i] -= 1\n"
     "        live = [i for i in live if max_tokens[i] and outputs[i][-1] != eos]\n", "the caller's lists were changed"),
    ("steps without anybody", "    while live:\n", "    for _ in range(max(max_tokens) + 1):\n", "one step too many"),
]  # fmt: skip

ALSO_RIGHT = [
    ("pairs of prompt and output", "step([sequences[i] for i in live])", "step([list(prompts[i]) + outputs[i] for i in live])"),
    ("a set of those who are done", LIVE, "        done = {i for i in live if len(outputs[i]) == max_tokens[i] or outputs[i][-1] == eos}\n"
     "        live = sorted(set(live) - done)\n"),
]  # fmt: skip
