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


# --- Wrong answers: (what is wrong, in the solution, instead, words of the message) --------------------------------

LOOP = """        token = sample(row, token_ids + tokens)
        tokens.append(token)
        if token == end or len(tokens) == num_left or [token] != drafts[i : i + 1]:
            break
"""
RETURN = "    return tokens, len(token_ids) + len(tokens) - 1\n"
FIRST = "first, tokens = len(rows) - 1 - len(drafts), []"
ASK = "sample(row, token_ids + tokens)"
MUTANTS = [
    ("no guess, no token", "    for i, row", "    if not drafts:\n        return [], len(token_ids)\n    for i, row", "without guesses"),
    ("from the row of the first guess", FIRST, "first, tokens = min(len(rows) - 1, len(rows) - len(drafts)), []", "verifies the first guess"),
    ("from the first row", FIRST, "first, tokens = 0, []", "several of the sequence's tokens may have been fed"),
    ("not the token after the last guess", "enumerate(rows[first:])", "enumerate(rows[first:][: len(drafts) or 1])", "the newest token's row"),
    ("goes on where guesses agree again", LOOP, LOOP.replace("            break\n", "            if not drafts[i + 1 : i + 2] or max(row) != rows[first + i + 1][drafts[i + 1]]:\n"
     "                break\n"), "even if they agree again"),
    ("the first guess was not verified", " or [token] != drafts[i : i + 1]:", " or (i > 0 and [token] != drafts[i : i + 1]):", "the first guess may be wrong"),
    ("a rejected guess gives no token", "            break\n    return", "            del tokens[i + (i == len(drafts) or token == drafts[i]) :]\n            break\n    return",
     "the sampled token stands"),
    ("any of the drafts", "[token] != drafts[i : i + 1]", "token not in drafts", "not with all"),
    ("the sampler does not see the new tokens", ASK, "sample(row, token_ids)", "the tokens it has just got"),
    ("samples from all rows first", LOOP, "        tokens.append(sample(row, token_ids + drafts[:i]))\n    right = 0\n"
     "    while [tokens[right]] == drafts[right : right + 1] and tokens[right] != end and right + 1 < num_left:\n        right += 1\n    del tokens[right + 1 :]\n",
     "ask the sampler once for each token"),
    ("the likeliest instead of the sampler's", "token = " + ASK, ASK + "\n        token = row.index(max(row))", "not the logits alone"),
    ("no end", "token == end or ", "", "nothing follows"),
    ("without the end token", RETURN, "    return [token for token in tokens if token != end], len(token_ids) + len(tokens) - 1\n", "the end token is a token"),
    ("the end token of the prompt", "token == end", "end in token_ids + tokens", "the prompt may contain"),
    ("one more than are left", "len(tokens) == num_left", "len(tokens) > num_left", "no more than num_left tokens"),
    ("what is left counts the sequence", "len(tokens) == num_left", "len(token_ids) + len(tokens) >= num_left + 2", "num_left"),
    ("the keys of all guesses", RETURN, "    return tokens, len(token_ids) + len(drafts)\n", "all but the last"),
    ("the key of the last token", RETURN, "    return tokens, len(token_ids) + len(tokens)\n", "all but the last"),
]  # fmt: skip

ALSO_RIGHT = [
    ("right guesses are the tokens", "token_ids + tokens", "token_ids + drafts[:i]"),
    ("rows from the end", "rows[first:]", "rows[-1 - len(drafts) :]"),
    ("counts the right ones first", LOOP, "        tokens = [*tokens, sample(row, [*token_ids, *tokens])]\n        if i == len(drafts) or tokens[i] != drafts[i]:\n"
     "            break\n        if tokens[-1] == end or i + 1 == num_left:\n            break\n"),
]  # fmt: skip
