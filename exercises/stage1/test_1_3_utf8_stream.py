"""Every way to cut a text into tokens has to give the same text, as early as can be."""

import itertools
import random

from exercises.grading import expect, require


def sent(work, pieces, stop=()):
    stream = work.TextStream(stop)
    return [stream.add(piece) for piece in pieces] + [stream.flush()], stream.stopped


def test_characters_over_tokens(work):
    data = "é€🦊".encode()
    pieces = [data[i : i + 1] for i in range(len(data))]
    said = {"each token was decoded alone; half a character has to wait for the rest": ["�"] * 9 + [""],
            "half a character has to wait, not to be dropped": [""] * 10}  # fmt: skip
    got, _ = sent(work, pieces)
    expect("é€🦊, byte by byte", got, ["", "é", "", "", "€", "", "", "", "🦊", ""], said)


def test_broken_bytes(work):
    said = {"the reader should see that something is broken": ["a", "b", ""]}
    expect("a byte that begins nothing", sent(work, [b"a", b"\xffb"])[0], ["a", "�b", ""], said)
    expect("E0 80, with which no character begins", sent(work, [b"\xe0\x80"])[0], ["��", ""],
           {"no character begins like this: waiting for its third byte holds back too much": ["", "��"]})  # fmt: skip
    said = {"what is left at the end is told too": ["a", "", ""]}
    expect("an end in the middle of a character", sent(work, [b"a", b"\xe2\x82"])[0], ["a", "", "�"], said)


def test_holds_back_no_more_than_needed(work):
    got = sent(work, [b"hello ", b"world, S"], ("STOP", "END OF IT"))[0]
    said = {"hold back only what begins a stop text, not as many characters as it is long": ["", "hello ", "world, S"],
            "the beginning of the stop text was sent; it can't be taken back": ["hello ", "world, S", ""],
            "what was held back is lost at the end": ["hello ", "world, ", ""]}  # fmt: skip
    expect("hello |world, S, stops 'STOP', 'END OF IT'", got, ["hello ", "world, ", "S"], said)
    got = sent(work, [b"x aaab"], ("aab",))[0]
    expect("x aaab, stop 'aab'", got, ["x a", ""], {"the stop text begins at the second a": ["x aaab", ""]})


def test_holds_back_a_possible_stop_text(work):
    said = {"the beginning of the stop text was sent; it can't be taken back": ["a S", "T", "", ""]}
    got, stopped = sent(work, [b"a S", b"T", b"OP b", b"c"], ("STOP",))
    expect("a S|T|OP b|c, stop 'STOP'", got, ["a ", "", "", "", ""], said,
           likely="after the stop text nothing more is sent, by flush neither")  # fmt: skip
    require(stopped, "stopped, after the stop text", True, stopped)


def test_sends_what_was_held_back_for_nothing(work):
    said = {"what was held back is lost: it goes in front of what comes next": ["a ", "ART", ""],
            "flush would be too late: send it as soon as it can be no stop text": ["a ", "", "START"]}  # fmt: skip
    expect("a ST|ART, stop 'STOP'", sent(work, [b"a ST", b"ART"], ("STOP",))[0], ["a ", "START", ""], said)
    said = {"at the end what was held back is text like any other": ["a ", ""]}
    expect("a ST and the end, stop 'STOP'", sent(work, [b"a ST"], ("STOP",))[0], ["a ", "ST"], said)


def test_holds_back_the_longest_beginning(work):
    said = {"the longest beginning has to be held back: the first a was sent too early": ["x a", "", ""]}
    expect("x aa|b, stop 'aab'", sent(work, [b"x aa", b"b"], ("aab",))[0], ["x ", "", ""], said,
           likely="the longest beginning has to be held back: the first a was sent too early")  # fmt: skip


def test_several_stop_texts(work):
    said = {"the longest beginning counts over all stop texts: 'AB' of 'ABC', not 'B' of 'BX'": ["A", "BC", ""]}
    expect("AB|C, stops 'ABC', 'BX'", sent(work, [b"AB", b"C"], ("ABC", "BX"))[0], ["", "", ""], said)
    said = {"of several that are complete the one that begins first counts": ["a b ", ""]}
    expect("'a b c' at once, stops 'c', 'b'", sent(work, [b"a b c"], ("c", "b"))[0], ["a ", ""], said)


def test_flush_may_complete_a_stop_text(work):
    got, stopped = sent(work, [b"a", b"\xe2"], ("a�",))
    expect("a|half a character, stop 'a�', the end", (got, stopped), (["", "", ""], True),
           likely="the � that flush makes is text like any other: it may complete a stop text")  # fmt: skip


def test_any_cut_gives_the_same_text(work):
    rng, alphabet = random.Random(0), ["S", "T", "O", "P", "a", "é", "🦊", "\n"]
    for _ in range(300):
        text = "".join(rng.choices(alphabet, k=12))
        data, stop = text.encode(), ("STO", "aé")
        cuts = sorted(rng.sample(range(len(data)), 4))
        pieces = [data[a:b] for a, b in itertools.pairwise([0, *cuts, len(data)])]
        ends = [text.find(s) for s in stop if s in text]
        expected = text[: min(ends)] if ends else text
        got = sent(work, pieces, stop)[0]
        expect(f"{pieces}, stops {stop}, joined", "".join(got), expected)
