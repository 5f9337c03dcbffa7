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


# --- Wrong answers: (what is wrong, in the solution, instead, words of the message) --------------------------------

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
KEYS = ("tuple(self.token_ids[end - n :])", "tuple(self.token_ids[-n:])")
MUTANTS = [
    ("a text for each n-gram", KEYS, ("str(self.token_ids[end - n :]).replace(', ', '')", "str(self.token_ids[-n:]).replace(', ', '')"), "not digits"),
    ("a hash for each n-gram", KEYS, ("hash(tuple(self.token_ids[end - n :]))", "hash(tuple(self.token_ids[-n:]))"), "a hash is not enough"),
    ("tokens in any order", KEYS, ("tuple(sorted(self.token_ids[end - n :]))", "tuple(sorted(self.token_ids[-n:]))"), "in the same order"),
    ("with the match", "self.token_ids[place : place + count]", "self.token_ids[place - n : place - n + count]", "what followed the match"),
    ("as many as there are", GIVE, "                return self.token_ids[place:]\n", "what followed the match"),
    ("a single token", ("in (4, 3, 2)", "in range(2,"), ("in (4, 3, 2, 1)", "in range(1,"), "too little"),
    ("the end itself", ADD, AFTER, "what followed the match"),
    ("the end itself, where nothing else is", GUESS, GUESS + "            if n == 2 and place is None and len(self.token_ids) > 1:\n                place = len(self.token_ids) - 2\n",
     "did not occur before"),
    ("the shortest first", "in (4, 3, 2)", "in (2, 3, 4)", "counts before a later one of two"),
    ("three at most", "in (4, 3, 2)", "in (3, 2)", "a match of four counts"),
    ("five at first", ("in (4, 3, 2)", "min(4, end)"), ("in (5, 4, 3, 2)", "min(5, end)"), "not five"),
    ("the first of them", ENTER, "                self.places.setdefault(tuple(self.token_ids[end - n :]), end)\n", "the latest counts"),
    ("nothing beyond the end", GIVE, "                return following\n", "it comes again"),
    ("the sequence again", "itertools.cycle(following)", "itertools.chain(following, itertools.cycle(self.token_ids))", "neither the sequence"),
    ("no overlap", "            if place is not None:", "            if place is not None and place <= len(self.token_ids) - n:", "may overlap the end"),
    ("a guess is a token", GIVE, GIVE.replace("return ", "drafts = ") + "                self.add(drafts)\n                return drafts\n", "adds nothing to the sequence"),
    ("only what was there at first", "        for token_id in token_ids:\n", "        if self.token_ids:\n            self.token_ids += token_ids\n            return\n        for token_id in token_ids:\n",
     "added one by one"),
    ("searches each time", GUESS, SEARCH, "searches the sequence"),
    ("enters all of them again", "            self.token_ids.append(token_id)\n", "            self.token_ids.append(token_id)\n        if len(token_ids) == 1 < len(self.token_ids):\n"
     "            sequence, self.token_ids = self.token_ids, []\n            self.add(sequence)\n", "searches the sequence"),
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
