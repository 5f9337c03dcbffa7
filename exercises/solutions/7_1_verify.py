"""A solution of exercise 7.1."""

from collections.abc import Callable

Sample = Callable[[list[float], list[int]], int]


def verify(
    token_ids: list[int], drafts: list[int], rows: list[list[float]], sample: Sample, num_left: int, end: int
) -> tuple[list[int], int]:
    """(the tokens that the request gets, how many tokens of the sequence then have valid keys and values)"""
    first, tokens = len(rows) - 1 - len(drafts), []
    for i, row in enumerate(rows[first:]):
        token = sample(row, token_ids + tokens)
        tokens.append(token)
        if token == end or len(tokens) == num_left or [token] != drafts[i : i + 1]:
            break
    return tokens, len(token_ids) + len(tokens) - 1


# --- Wrong answers: (what is wrong, in the solution, instead, the message) -----------------------------------------

LOOP = """        token = sample(row, token_ids + tokens)
        tokens.append(token)
        if token == end or len(tokens) == num_left or [token] != drafts[i : i + 1]:
            break
"""
RETURN = "    return tokens, len(token_ids) + len(tokens) - 1\n"
WORTHLESS = "they are worthless, even if they agree again"
MUTANTS = [
    ("the end is the same object", "token == end or", "token is end or", "compare numbers with =="),
    ("goes on after a rejected guess", " or [token] != drafts[i : i + 1]:", ":", WORTHLESS),
    ("goes on where guesses agree again", LOOP, "        token = sample(row, token_ids + tokens)\n        if i == 0 or i == len(drafts) or [token] == drafts[i : i + 1]:\n"
     "            tokens.append(token)\n", "no unverified guess"),
    ("the first guess is taken as it is", "    for i, row", "    if drafts:\n        return [*drafts[:1], *tokens], len(token_ids) + 1\n    for i, row", "expected:"),
    ("the first guess was not verified", " or [token] != drafts[i : i + 1]:", " or (i > 0 and [token] != drafts[i : i + 1]):", WORTHLESS),
    ("the first guess is committed before", "    for i, row", "    if drafts:\n        first, tokens = first + 1, drafts[:1]\n    for i, row", "no unverified guess"),
    ("a rejected guess gives no token", LOOP, LOOP.replace("        tokens.append(token)\n", "").replace("            break\n",
     "            break\n        tokens.append(token)\n").replace("len(tokens)", "len(tokens) + 1"), "every step yields at least one"),
    ("the rejected guess instead of the token", RETURN, "    return [*tokens[:-1], *drafts[len(tokens) - 1 : len(tokens)]] or tokens, len(token_ids) + len(tokens) - 1\n", "the sampled one is"),
    ("not the token after the last guess", "enumerate(rows[first:])", "enumerate(rows[first:][: len(drafts) or 1])", "one more token"),
    ("from the row of the first guess", "first, tokens = len(rows) - 1 - len(drafts), []", "first, tokens = min(len(rows) - 1, len(rows) - len(drafts)), []", "expected:"),
    ("from the first row", "first, tokens = len(rows) - 1 - len(drafts), []", "first, tokens = 0, []", "need not be the newest token's"),
    ("the last row for a prompt", "    for i, row", "    first = first if len(rows) == len(drafts) + 1 else first - 1\n    for i, row", "need not be the newest token's"),
    ("any of the drafts", "[token] != drafts[i : i + 1]", "token not in drafts", "not with all drafts"),
    ("the sampler does not see the new tokens", "sample(row, token_ids + tokens)", "sample(row, token_ids)", "all tokens so far"),
    ("the sampler sees the new tokens only", "sample(row, token_ids + tokens)", "sample(row, tokens or token_ids)", "all tokens so far"),
    ("the sampler sees the guess that it verifies", "sample(row, token_ids + tokens)", "sample(row, token_ids + drafts[: i + 1])", "all tokens so far"),
    ("the sampler sees all guesses", "sample(row, token_ids + tokens)", "sample(row, token_ids + drafts)", "all tokens so far"),
    ("samples from all rows first", LOOP, "        tokens.append(sample(row, token_ids + drafts[:i]))\n    right = 0\n"
     "    while [tokens[right]] == drafts[right : right + 1] and tokens[right] != end and right + 1 < num_left:\n        right += 1\n    del tokens[right + 1 :]\n", "no unverified guess"),
    ("asks once more", "            break\n", "            if i + 1 < len(rows) - first:\n                sample(rows[first + i + 1], token_ids + tokens)\n            break\n", "ask it once for each token"),
    ("asks twice", "        tokens.append(token)\n", "        tokens.append(token)\n        sample(row, token_ids + tokens[:-1])\n", "ask it once for each token"),
    ("asks backwards", "    for i, row", "    for i in range(len(drafts), 0, -1):\n        sample(rows[first + i], token_ids + drafts[:i])\n    for i, row", "no unverified guess"),
    ("the likeliest instead of the sampler's", "token = sample(row, token_ids + tokens)", "sample(row, token_ids + tokens)\n        token = row.index(max(row))", "not the logits alone"),
    ("no end", "token == end or ", "", "nothing follows"),
    ("the end only where no guess was right", "token == end or", "token == end and i != 1 or", "nothing follows"),
    ("without the end token", RETURN, "    return [token for token in tokens if token != end], len(token_ids) + len(tokens) - 1\n", "the model chose it"),
    ("the end token of the prompt", "token == end", "end in token_ids + tokens", "the prompt may contain"),
    ("the end token among the guesses", "    for i, row", "    end = end if end not in drafts[1:2] else tokens\n    for i, row", "expected:"),
    ("as many as were guessed", "len(tokens) == num_left or ", "", "even among correct drafts"),
    ("one more than are left", "len(tokens) == num_left", "len(tokens) > num_left", "even among correct drafts"),
    ("what is left counts the sequence", "len(tokens) == num_left", "len(token_ids) - 3 + len(tokens) + 1 >= num_left", "not those of the sequence"),
    ("the keys of all guesses", RETURN, "    return tokens, len(token_ids) + len(drafts)\n", "don't belong to the sequence"),
    ("the key of the last token", RETURN, "    return tokens, len(token_ids) + len(tokens)\n", "only the next step feeds it"),
    ("the keys of no guess", RETURN, "    return tokens, len(token_ids)\n", "correct drafts count too"),
    ("takes the guesses out of the list", "[token] != drafts[i : i + 1]:", "not drafts or token != drafts.pop(0):", "as it was"),
    ("appends to the sequence", RETURN, "    token_ids += tokens\n    return tokens, len(token_ids) - 1\n", "as it was"),
    ("no guess, no token", "    for i, row", "    if not drafts:\n        return [], len(token_ids)\n    for i, row", "as in stage 6"),
]  # fmt: skip

ALSO_RIGHT = [
    ("right guesses are the tokens", "token_ids + tokens", "token_ids + drafts[:i]"),
    ("rows from the end", "rows[first:]", "rows[-1 - len(drafts) :]"),
    ("counts the right ones first", LOOP, "        tokens = [*tokens, sample(row, [*token_ids, *tokens])]\n        if i == len(drafts) or tokens[i] != drafts[i]:\n"
     "            break\n        if tokens[-1] == end or i + 1 == num_left:\n            break\n"),
]  # fmt: skip
