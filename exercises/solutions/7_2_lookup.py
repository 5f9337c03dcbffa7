"""A solution of exercise 7.2."""

import itertools


class Lookup:
    """Guesses that the last tokens will be followed by what followed them before."""

    def __init__(self, token_ids: list[int]):
        self.token_ids: list[int] = []
        self.places: dict[tuple[int, ...], int] = {}  # n-gram -> the position after its last occurrence
        self.add(token_ids)

    def add(self, token_ids: list[int]) -> None:
        """Append these tokens to the sequence."""
        for token_id in token_ids:
            end = len(self.token_ids)
            for n in range(2, min(4, end) + 1):  # something follows them now
                self.places[tuple(self.token_ids[end - n :])] = end
            self.token_ids.append(token_id)

    def guess(self, count: int) -> list[int]:
        """At most `count` tokens that may come next; none if the last two tokens have not occurred before."""
        for n in (4, 3, 2):
            place = self.places.get(tuple(self.token_ids[-n:]))
            if place is not None:
                following = self.token_ids[place : place + count]
                return list(itertools.islice(itertools.cycle(following), count))
        return []


# --- Wrong answers: (what is wrong, in the solution, instead, the message) -----------------------------------------

ENTER = "                self.places[tuple(self.token_ids[end - n :])] = end\n"
GIVE = "                return list(itertools.islice(itertools.cycle(following), count))\n"
GUESS = "            place = self.places.get(tuple(self.token_ids[-n:]))\n"
ADD = """            end = len(self.token_ids)
            for n in range(2, min(4, end) + 1):  # something follows them now
                self.places[tuple(self.token_ids[end - n :])] = end
            self.token_ids.append(token_id)
"""
AFTER = """            self.token_ids.append(token_id)
            end = len(self.token_ids)
            for n in range(2, min(4, end) + 1):
                self.places[tuple(self.token_ids[end - n :])] = end
"""
SEARCH = """            ends = [i for i in range(n, len(self.token_ids)) if self.token_ids[i - n : i] == self.token_ids[-n:]]
            place = ends[-1] if ends else None
"""
PASTE = "Paste this into Python"  # the message where the random comparison finds it, and nothing is certain
MUTANTS = [
    ("a text for each n-gram", (ENTER, GUESS), (ENTER.replace("tuple(self.token_ids[end - n :])", "''.join(map(str, self.token_ids[end - n :]))"),
     GUESS.replace("tuple(self.token_ids[-n:])", "''.join(map(str, self.token_ids[-n:]))")), "have the same digits"),
    ("32 bits a token", (ENTER, GUESS), (ENTER.replace("tuple(self.token_ids[end - n :])", "__import__('functools').reduce(lambda key, t: key * 2**32 + t, self.token_ids[end - n :], 1)"),
     GUESS.replace("tuple(self.token_ids[-n:])", "__import__('functools').reduce(lambda key, t: key * 2**32 + t, self.token_ids[-n:], 1)")), "no upper limit"),
    ("a hash for each n-gram", (ENTER, GUESS), (ENTER.replace("tuple(self.token_ids[end - n :])", "hash(tuple(self.token_ids[end - n :]))"),
     GUESS.replace("tuple(self.token_ids[-n:])", "hash(tuple(self.token_ids[-n:]))")), "a hash is not enough"),
    ("with the match", "self.token_ids[place : place + count]", "self.token_ids[place - n : place - n + count]", "after the match"),
    ("one too far", "self.token_ids[place : place + count]", "self.token_ids[place + 1 : place + 1 + count]", "right after the match"),
    ("as many as there are", GIVE, "                return self.token_ids[place:]\n", "guess at most count"),
    ("at least one", "islice(itertools.cycle(following), count)", "islice(itertools.cycle(self.token_ids[place:]), max(1, count))", "guess at most count"),
    ("a single token", ("in (4, 3, 2)", "in range(2,"), ("in (4, 3, 2, 1)", "in range(1,"), "one token is too short"),
    ("the end itself", ADD, AFTER, "expected:"),
    ("the end itself, where nothing else is", GUESS, GUESS + "            if n == 2 and place is None and len(self.token_ids) > 1:\n                place = len(self.token_ids) - 2\n", "expected:"),
    ("tokens in any order", ("tuple(self.token_ids[end - n :])", "tuple(self.token_ids[-n:])"), ("tuple(sorted(self.token_ids[end - n :]))", "tuple(sorted(self.token_ids[-n:]))"), "in the same order"),
    ("the shortest first", "in (4, 3, 2)", "in (2, 3, 4)", "the longest match counts"),
    ("two only", "in (4, 3, 2)", "in (2,)", "the longest match counts"),
    ("three at most", "in (4, 3, 2)", "in (3, 2)", "expected:"),
    ("five at first", ("in (4, 3, 2)", "min(4, end)"), ("in (5, 4, 3, 2)", "min(5, end)"), "at most the last four"),
    ("three at least", "in (4, 3, 2)", "in (4, 3)", "expected:"),
    ("the first of them", ENTER, "                self.places.setdefault(tuple(self.token_ids[end - n :]), end)\n", "the latest counts"),
    ("nothing beyond the end", GIVE, "                return following\n", "as if the same text came again"),
    ("the sequence again", "itertools.cycle(following)", "itertools.chain(following, itertools.cycle(self.token_ids))", "not with the beginning"),
    ("the last token again", "itertools.cycle(following)", "itertools.chain(following, itertools.repeat(self.token_ids[-1]))", "not with its last token"),
    ("no overlap", "            if place is not None:", "            if place is not None and place <= len(self.token_ids) - n:", "may overlap the end"),
    ("a guess is a token", GIVE, GIVE.replace("return ", "drafts = ") + "                self.add(drafts)\n                return drafts\n", "expected:"),
    ("a guess is a token when it is long", GIVE, GIVE.replace("return ", "drafts = ") + "                self.add(drafts if count == 2 else [])\n                return drafts\n", "only add extends it"),
    ("one index for all", "self.places: dict[tuple[int, ...], int] = {}", "self.places: dict[tuple[int, ...], int] = Lookup.__dict__.get('kept', {})\n        Lookup.kept = self.places", "expected:"),
    ("the caller's list", "        self.token_ids: list[int] = []\n", "        self.token_ids: list[int] = token_ids if len(token_ids) == 4 else []\n        token_ids = [] if len(token_ids) == 4 else token_ids\n", "expected:"),
    ("only the last of several", "            self.token_ids.append(token_id)\n", "            self.token_ids.append(token_id)\n        self.places.pop(tuple(self.token_ids[-5:-2]), None)\n", "expected:"),
    ("only what was there at first", "        for token_id in token_ids:\n", "        if self.token_ids:\n            self.token_ids += token_ids\n            return\n        for token_id in token_ids:\n", "tokens that are added one by one"),
    ("place 2 is none", "if place is not None:", "if place and place > 2:", "expected:"),
    ("by hash", ("tuple(self.token_ids[end - n :])", "tuple(self.token_ids[-n:])"), ("(n, sum(self.token_ids[end - n :]))", "(n, sum(self.token_ids[-n:]))"), "expected:"),
    ("the low bits of tokens", ("tuple(self.token_ids[end - n :])", "tuple(self.token_ids[-n:])"), ("tuple(t & 65535 for t in self.token_ids[end - n :])", "tuple(t & 65535 for t in self.token_ids[-n:])"), "expected:"),
    ("searches each time", GUESS, SEARCH, "indexed only once"),
    ("enters all of them again", "            self.token_ids.append(token_id)\n", "            self.token_ids.append(token_id)\n        if len(token_ids) == 1 < len(self.token_ids):\n"
     "            sequence, self.token_ids = self.token_ids, []\n            self.add(sequence)\n", "indexed only once"),
    ("a new list for each token", "self.token_ids.append(token_id)", "self.token_ids = self.token_ids + [token_id]", "append to it"),
    ("copies the list to look at it", "            end = len(self.token_ids)\n", "            end = len(self.token_ids[:])\n", "append to it"),
    ("copies the index", "        for token_id in token_ids:\n", "        self.places = dict(self.places)\n        for token_id in token_ids:\n", "append to it"),
    ("a text with a character for each token", "            self.token_ids.append(token_id)\n", "            self.token_ids.append(token_id)\n            self.text = getattr(self, 'text', '') + chr(token_id % 1_000_000)\n", "append to it"),
    ("characters instead of tokens", "            self.token_ids.append(token_id)\n", "            self.token_ids.append(ord(chr(token_id)))\n", "ValueError"),
    ("list.index", "        for n in (4, 3, 2):\n", "        if -1 in self.token_ids or (count and self.token_ids and self.token_ids.index(self.token_ids[-1]) < 0):\n            return []\n        for n in (4, 3, 2):\n", "indexed only once"),
    ("copies the rest", "self.token_ids[place : place + count]", "self.token_ids[place:]", "five tokens of it are enough"),
    ("goes to the match token by token", "self.token_ids[place : place + count]", "list(itertools.islice(self.token_ids, place, place + count))", "grows with the sequence"),
    ("looks at all tokens when one comes", "            self.token_ids.append(token_id)\n", "            self.token_ids.append(token_id)\n            self.highest = max(self.token_ids)\n", "grows with the sequence"),
    ("forgets what is long ago", "            if place is not None:", "            if place is not None and place > len(self.token_ids) - 1000:", "expected:"),
]  # fmt: skip

TREE = """            end, node = len(self.token_ids), self.places
            for depth, token in enumerate(reversed(self.token_ids[-4:]), start=1):
                node = node.setdefault(token, {})
                node["place"] = end if depth > 1 else None
            self.token_ids.append(token_id)
"""
WALK = """        place, node = None, self.places
        for token in reversed(self.token_ids[-4:]):
            node = node.get(token)
            if node is None:
                break
            place = node["place"] or place
        for place in [] if place is None else [place]:
"""
ALSO_RIGHT = [
    ("token by token", GIVE, "                return [following[i % len(following)] for i in range(count)]\n"),
    ("an index for each length", ("self.places[tuple(self.token_ids[end - n :])]", "self.places.get(tuple(self.token_ids[-n:]))"),
     ("self.places[(n, *self.token_ids[end - n :])]", "self.places.get((n, *self.token_ids[-n:]))")),
    ("a tree, from the last token backwards", (ADD, "        for n in (4, 3, 2):\n" + GUESS), (TREE, WALK)),
    ("a number for each n-gram", (ENTER, GUESS),
     ("                self.places[int.from_bytes(b''.join(t.to_bytes(16, 'big') for t in (n, *self.token_ids[-n:])), 'big')] = end\n",
      "            if len(self.token_ids) < n:\n                continue\n            place = self.places.get(int.from_bytes(b''.join(t.to_bytes(16, 'big') for t in (n, *self.token_ids[-n:])), 'big'))\n")),
    ("the last four kept apart, one token of a guess after another", ("        self.add(token_ids)\n", ADD, GUESS, "                following = self.token_ids[place : place + count]\n" + GIVE),
     ("        self.last = ()\n        self.add(token_ids)\n",
      "            for n in range(2, len(self.last) + 1):\n                self.places[self.last[-n:]] = len(self.token_ids)\n"
      "            self.token_ids += (token_id,)\n            self.last = (*self.last, token_id)[-4:]\n",
      "            if (place := self.places.get(self.last[-n:])) is None:\n                continue\n",
      "                drafts = []\n                while len(drafts) < count:\n                    at = place + len(drafts)\n"
      "                    drafts.append(self.token_ids[at] if at < len(self.token_ids) else drafts[at - len(self.token_ids)])\n                return drafts\n")),
]  # fmt: skip
