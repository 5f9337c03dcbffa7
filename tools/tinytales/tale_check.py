"""Does a tale contradict itself? The automatic check behind the figures of the model card.

The grammar that wrote the training tales also reads: every sentence that it can write becomes a pattern, and a sentence
of a tale that fits one states facts, such as who the hero is, which thing is sought and whose birthday it is. `slips`
collects these facts from the first sentence to the last and names each one that contradicts what was said before:
a friend who changes names, an aunt who becomes an uncle, a picture book that turns round, the answer of another plot.
Sentences that the grammar could not have written state no facts, but their names, pronouns and words are looked at.
"""

import re
from functools import cache
from itertools import chain

from tale_grammar import (
    ANIMALS,
    CHILD,
    FRIENDS,
    NAMES,
    PLACES,
    QUESTS,
    RIDDLES,
    RULE,
    RULES,
    SLOT,
    THINGS,
    TRAITS,
    VALUES,
)
from tale_openings import OPENINGS, PLOT_DID

PRONOUN_OF = {name: pronoun for names in (NAMES, FRIENDS) for pronoun in names for name in names[pronoun]}
PRONOUN_OF_KIND = {kind: pronoun for pronoun, kinds in CHILD.items() for kind in kinds}
PRONOUNS = {"she": {"she", "her", "hers"}, "he": {"he", "him", "his"}}
KINDS = {*ANIMALS, *CHILD["she"], *CHILD["he"]}
# Words with a capital that the grammar does not know and that name nobody.
NO_NAMES = {
    "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "January", "February", "April", "June", "July",
    "August", "September", "October", "November", "December", "Quick", "Somewhere", "Tomorrow", "Tonight",
}  # fmt: skip
ROLE_FREE = {"cheer", "go_on", "ending", "moral"}  # rules whose sentences are as true of the friend as of the hero
WORD = re.compile(r"[A-Za-z]+")
INTRODUCED = re.compile(r"\b(?:named|called|name is|name was|am) ([A-Z][a-z]+)")
# Where a sentence ends: at its mark, and its quote if it has one, before a capital (or, in a rule, what becomes one).
SENTENCE_END = r'(?:(?<=[.!?])|(?<=[.!?]"))\s+(?=["A-Z])'
RULE_SENTENCE_END = (
    r'(?:(?<=[.!?])|(?<=[.!?]"))\s+(?=["A-Z<[]|\{[hf](?:\}|\.H|\.A)|\{[pt]\.A|\{success|\{sight|\{mother\}|$)'
)
OWN_SENTENCES = r'\{success\}|\{sight\}|"<riddle>'  # values that are whole sentences
SLOT_PATTERNS = {
    "": "([A-Z][a-z]+)", "he": "(he|she)", "He": "(He|She)", "his": "(his|her)", "His": "(His|Her)", "him": "(him|her)",
    "kind": "([a-z]+)", "trait": "[a-z]+", "a": "an? [a-z]+ ([a-z]+)", "A": "An? [a-z]+ ([a-z]+)",
}  # fmt: skip
THING_PATTERNS = {"": "the ([a-z]+)", "noun": "([a-z]+)", "a": "an? ([a-z]+ [a-z]+)", "A": "An? ([a-z]+ [a-z]+)"}

Facts = dict[str, frozenset[str]]


class Sentence:
    """A sentence that the grammar can write, as a pattern with the facts that its groups state.

    Args:
        text: the sentence in the grammar's notation.
        plot: the name of the plot that alone can say it, or "".
        row: of which value of its plot it speaks, such as ("skill", 3).
        introduces: whether it may be the first to name somebody.
        role_free: whether the hero and the friend may change places in it.
    """

    def __init__(self, text: str, plot: str = "", row: tuple = (), introduces: bool = False, role_free: bool = False):
        self.introduces, self.role_free, self.slots = introduces, role_free, []
        self.always: Facts = {"plot": frozenset([plot])} if plot else {}
        if row:
            self.always[row[0]] = frozenset([str(row[1])])
        self.pattern = re.compile(self.translate(text) + r"\Z")
        # A word or two from the text, without which the pattern cannot match: most sentences fail on it at once.
        literal = max(re.split(r"[\[\]<>{}|]", re.sub(r"\[[^\[\]]*\]|<\w+>|\{[^}]*\}", "|", text)), key=len)
        self.literal = "" if re.search(r"\b[Aa] ?$|\b[Aa] ", literal) else literal.strip()

    def translate(self, text: str) -> str:
        """The notation as a regular expression; self.slots gets the name of each of its groups."""
        parts, i = [], 0
        while i < len(text):
            if text[i] == "[":
                end = closing(text, i)
                parts.append(f"(?:{'|'.join(map(self.translate, alternatives(text[i + 1 : end])))})")
            elif match := RULE.match(text, i):
                parts.append(self.rule(match[1]))
                end = match.end() - 1
            elif match := SLOT.match(text, i):
                parts.append(self.slot(match[1], match[2] or ""))
                end = match.end() - 1
            elif match := re.compile(r"\b[Aa](?= [\[<{])").match(text, i):
                parts.append(f"{match[0]}n?")
                end = i
            else:
                parts.append(re.escape(text[i]))
                end = i
            i = end + 1
        return "".join(parts)

    def rule(self, name: str) -> str:
        lines = [*chain(*PLOT_DID.values())] if name == "plot_did" else RULES[name.lower()]
        lines = [line[0].upper() + line[1:] if name[0].isupper() and line[0] != "[" else line for line in lines]
        translated = "|".join(map(self.translate, lines))
        # An alternative or a rule that begins a sentence is written small: let the case of its first letter go.
        return f"(?:(?i:{translated}))" if name[0].isupper() else f"(?:{translated})"

    def slot(self, name: str, attribute: str) -> str:
        if name in "hf":
            if attribute != "trait":
                self.slots.append(f"{name}.{attribute}")
            return SLOT_PATTERNS[attribute]
        if name == "t":
            self.slots.append(f"t.{attribute}")
            return THING_PATTERNS[attribute]
        if name in ("p", "place"):
            places = [at if name == "p" else short for at, short in PLACES]
            return self.values("home", [p[0].upper() + p[1:] if attribute == "At" else p for p in places])
        if name in ("question", "answer"):
            return self.values("question", [row[name == "answer"] for row in RIDDLES])
        column_name = name.removesuffix("_low")
        key, column = next((key, names.index(column_name)) for key, names in VALUES.items() if column_name in names)
        rows = next(quest[key] for quest in QUESTS if key in quest)
        values = [row[column] for row in rows]
        return self.values(key, [v.replace("The", "the") for v in values] if name == "mother_low" else values)

    def values(self, fact: str, values: list[str]) -> str:
        """One of the values, which states its place in the list (of several equal ones, any of their places)."""
        groups = []
        for value in dict.fromkeys(values):
            self.slots.append(f"#{fact}={','.join(str(i) for i, v in enumerate(values) if v == value)}")
            groups.append(f"({self.translate(value)})")
        return f"(?:{'|'.join(groups)})"

    def facts(self, sentence: str) -> Facts | None:
        """What this sentence states, or None if it is another one. A fact without a value contradicts itself."""
        match = self.pattern.match(sentence) if self.literal in sentence else None
        if not match:
            return None
        if not all(
            is_name(text) for slot, text in zip(self.slots, match.groups(), strict=True) if slot in ("h.", "f.")
        ):
            return None
        facts = dict(self.always)
        for slot, text in zip(self.slots, match.groups(), strict=True):
            for fact, values in stated(slot, text) if text else ():
                facts[fact] = facts.get(fact, values) & values
        return facts


def closing(text: str, start: int) -> int:
    depth = 0
    for i in range(start, len(text)):
        depth += {"[": 1, "]": -1}.get(text[i], 0)
        if not depth:
            return i
    raise ValueError(f"no closing bracket: {text}")


def alternatives(text: str) -> list[str]:
    """The alternatives of a bracket's inside; those of brackets within it stay together."""
    parts, depth = [""], 0
    for c in text:
        depth += {"[": 1, "]": -1}.get(c, 0)
        if c == "|" and not depth:
            parts.append("")
        else:
            parts[-1] += c
    return parts


def stated(slot: str, text: str) -> list[tuple[str, frozenset[str]]]:
    """The facts that a group of a pattern states with its text."""
    if slot[0] == "#":
        fact, rows = slot[1:].split("=")
        return [(fact, frozenset(rows.split(",")))]
    who, attribute = slot.split(".")
    if who == "t":
        noun = ("t", frozenset([text.split()[-1]]))
        return [noun, ("t.a", frozenset([text]))] if attribute in ("a", "A") else [noun]
    if attribute in ("kind", "a", "A", ""):
        if text == "voice":  # "called the sleepy voice", whose kind the next sentence tells
            return []
        pronoun = [(f"{who}.pronoun", frozenset([PRONOUN_OF_KIND[text]]))] if text in PRONOUN_OF_KIND else []
        return [(f"{who}.{attribute and 'kind'}", frozenset([text])), *pronoun]
    return [(f"{who}.pronoun", frozenset(p for p, forms in PRONOUNS.items() if text.lower() in forms))]


def swapped(facts: Facts) -> Facts:
    """The same facts with the hero and the friend in each other's place."""
    return {{"h.": "f.", "f.": "h."}.get(fact[:2], fact[:2]) + fact[2:]: values for fact, values in facts.items()}


@cache
def grammar_sentences() -> list[Sentence]:
    """Every sentence that the grammar can write."""
    parts = {"did", "says", "exclamation", "question"}  # of sentences, though they look like whole ones
    whole = {
        name for name, lines in RULES.items() if name not in parts and all(re.search(r'[.!?>]"?$|^$', x) for x in lines)
    }
    calls = re.compile(f"<(?:{'|'.join([*whole, 'opening'])})>", re.IGNORECASE)
    found = {}

    def add(lines: list[str], plot: str = "", row: tuple = (), **kind: bool) -> None:
        for line in lines:
            for piece in calls.split(re.sub(OWN_SENTENCES, "", line)):
                for text in filter(None, map(str.strip, re.split(RULE_SENTENCE_END, piece.strip()))):
                    found.setdefault((text, plot, row), Sentence(text, plot, row, **kind))

    for name in whole:
        add(RULES[name], introduces=name in OPENINGS or name == "friend", role_free=name in ROLE_FREE)
    add(['"<says>"', "<Happening>."], introduces=True)
    add(['"{question}"'])
    for quest in QUESTS:
        add(quest["episodes"])
        add([*quest["want"], *quest["turn"], *quest["answer"]], quest["name"])
        for key in ("goal", "skill"):  # their second value is a sentence or two
            for number, (_, text) in enumerate(quest.get(key, [])):
                add([text], quest["name"], (key, number))
    return list(found.values())


@cache
def lexicon() -> frozenset[str]:
    """Every word that the grammar writes, names apart, in small letters."""
    lists = [
        *RULES.values(),
        *PLOT_DID.values(),
        *(quest[k] for quest in QUESTS for k in ("want", "episodes", "turn", "answer")),
    ]
    texts = [line for lines in lists for line in lines]
    texts += [text for quest in QUESTS for key in VALUES if key in quest for row in quest[key] for text in row]
    texts += [text for row in RIDDLES + PLACES for text in row]
    texts += [*TRAITS, *KINDS, *(f"{a} {noun}" for a, noun in THINGS), "he she him his her an"]
    return frozenset(word.lower() for text in texts for word in WORD.findall(text))


def sentences(text: str) -> list[str]:
    return [s for paragraph in text.split("\n") for s in re.split(SENTENCE_END, paragraph.strip()) if s]


def slips(tale: str, prompt: str = "") -> list[str]:
    """Where a tale contradicts itself or its prompt, in words; an empty list for a good one.

    Args:
        tale: the whole text, which begins with the prompt.
        prompt: what a reader wrote. It may name anybody; whoever it names has to come again.
    """
    return Reader(tale, prompt).slips


class Reader:
    """Reads one tale and keeps what it has learned: the facts, who has been introduced, and each slip."""

    def __init__(self, tale: str, prompt: str):
        self.facts: Facts = {}
        self.slips: list[str] = []
        self.recognised = 0
        self.prompt_words = set(WORD.findall(prompt))
        self.introduced = {word for word in self.prompt_words if is_name(word)}
        self.prompt_names = frozenset(self.introduced)
        self.pronoun_of = dict(PRONOUN_OF)
        pronouns = [p for p, forms in PRONOUNS.items() if forms & set(prompt.lower().split())]
        if len(self.prompt_names) == len(pronouns) == 1:
            self.pronoun_of |= dict.fromkeys(self.prompt_names, pronouns[0])
        position = 0
        for sentence in sentences(tale):
            position = tale.index(sentence, position) + len(sentence)
            if position > len(prompt.rstrip()):
                self.read(sentence)
        self.compare_with_prompt(tale[len(prompt) :])

    def read(self, sentence: str) -> None:
        for name in INTRODUCED.findall(sentence):
            self.introduced.add(name)
        candidates = [(s, facts) for s in grammar_sentences() if (facts := s.facts(sentence)) is not None]
        candidates += [(s, swapped(facts)) for s, facts in candidates if s.role_free]
        if not candidates:
            self.read_unknown(sentence)
            return
        self.recognised += 1
        fitting = [(s, facts) for s, facts in candidates if not self.contradiction(s, facts)]
        if not fitting:
            self.slips.append(f"{self.contradiction(*candidates[0])}: {sentence}")
            return
        for name in fitting[0][1].keys() & {"h.", "f."}:
            self.introduced |= fitting[0][1][name]
        if all(facts == fitting[0][1] for _, facts in fitting):
            for fact, values in fitting[0][1].items():
                self.facts[fact] = self.facts.get(fact, values) & values

    def contradiction(self, sentence: Sentence, facts: Facts) -> str:
        """The first contradiction between what is known and what a sentence states, or ""."""
        for fact, values in facts.items():
            if not self.facts.get(fact, values) & values:
                return f"{fact} was {'/'.join(sorted(self.facts.get(fact, ())))}, now {'/'.join(sorted(values))}"
        known = self.facts | facts
        if known.get("h.") and known.get("h.") == known.get("f."):
            return f"{'/'.join(known['h.'])} is two characters"
        for who in "hf":
            for name in known.get(f"{who}.", ()):
                if name not in self.introduced and not sentence.introduces:
                    return f"{name} was never introduced"
                pronouns = known.get(f"{who}.pronoun", ())
                if pronouns and self.pronoun_of.get(name, "") not in ("", *pronouns):
                    return f"{name} is {'/'.join(pronouns)}"
        return ""

    def read_unknown(self, sentence: str) -> None:
        """A sentence that is not the grammar's: only its words tell something."""
        words = WORD.findall(sentence)
        known = {self.pronoun_of.get(name) for name in self.introduced}
        known |= self.facts.get("h.pronoun", frozenset()) | self.facts.get("f.pronoun", frozenset())
        for pronoun, forms in PRONOUNS.items():
            if forms & {word.lower() for word in words} and known and not known & {pronoun, None}:
                self.slips.append(f"nobody is {pronoun}: {sentence}")
        for word in words:
            if is_name(word) and word not in self.introduced:
                self.slips.append(f"{word} was never introduced: {sentence}")
            elif not is_name(word) and word.lower() not in lexicon() and word not in self.prompt_words:
                self.slips.append(f"{word} is no word of the tales: {sentence}")

    def compare_with_prompt(self, continuation: str) -> None:
        words = set(WORD.findall(continuation))
        if self.prompt_names and not self.prompt_names & words:
            self.slips.append(f"nobody of the prompt comes again: {', '.join(sorted(self.prompt_names))}")
        kinds = KINDS & self.prompt_words
        if kinds and not self.prompt_names and not kinds & words and " name was " not in continuation:
            self.slips.append(f"the prompt's {'/'.join(sorted(kinds))} does not come again")


@cache
def is_name(word: str) -> bool:
    """Whether a word with a capital is a name: a known one, or none of the grammar's words."""
    return word[0].isupper() and (word in PRONOUN_OF or (word.lower() not in lexicon() and word not in NO_NAMES))
