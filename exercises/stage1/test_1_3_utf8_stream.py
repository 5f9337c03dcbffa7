"""However a text is cut into tokens, the same text must come out, as early as possible."""

import codecs

from exercises.examples import Example, at_random
from exercises.grading import OneOf, expect, require


def sent(work, pieces, stop=()):
    stream = work.TextStream(stop)
    return [stream.add(piece) for piece in pieces] + [stream.flush()], stream.stopped


def test_characters_over_tokens(work):
    data = "é€🦊".encode()
    pieces = [data[i : i + 1] for i in range(len(data))]
    said = {"each token was decoded alone; half a character has to wait for the rest": ["�"] * 9 + [""],
            "half a character must be held back, not dropped": [""] * 10}  # fmt: skip
    got, _ = sent(work, pieces)
    expect("é€🦊, byte by byte", got, ["", "é", "", "", "€", "", "", "", "🦊", ""], said)


def test_broken_bytes(work):
    said = {"the reader should see that something is broken": ["a", "b", ""]}
    expect("a byte that begins nothing", sent(work, [b"a", b"\xffb"])[0], ["a", "�b", ""], said)
    expect("E0 80, which begins no character", sent(work, [b"\xe0\x80"])[0], ["��", ""],
           {"no character begins with these bytes: waiting for a third one holds back too much": ["", "��"],
            "one � for each broken piece, and these are two": ["�", ""]})  # fmt: skip
    said = {"what is left at the end must be returned too": ["a", "", ""]}
    expect("ends in the middle of a character", sent(work, [b"a", b"\xe2\x82"])[0], ["a", "", "�"], said)


def test_holds_back_no_more_than_needed(work):
    got = sent(work, [b"hello ", b"world, S"], ("STOP", "END OF IT"))[0]
    said = {"hold back only what begins a stop string, not as many characters as it is long": ["", "hello ", "world, S"],
            "the beginning of the stop string was sent; it can't be taken back": ["hello ", "world, S", ""],
            "what was held back is lost at the end": ["hello ", "world, ", ""]}  # fmt: skip
    expect("hello |world, S, stops 'STOP', 'END OF IT'", got, ["hello ", "world, ", "S"], said)
    got = sent(work, [b"x aaab"], ("aab",))[0]
    expect("x aaab, stop 'aab'", got, ["x a", ""], {"the stop string begins at the second a": ["x aaab", ""]})


def test_holds_back_a_possible_stop_text(work):
    later = "nothing more is sent after the stop string, not even by flush"
    said = {"the beginning of the stop string was sent; it can't be taken back": ["a S", "T", "", "", ""],
            "search for the stop string in the held-back text and the new text together": ["a ", "", "STOP b", "c", ""],
            later: OneOf([["a ", "", "", "c", ""], ["a ", "", "", " bc", ""], ["a ", "", "", "", "c"]])}  # fmt: skip
    got, stopped = sent(work, [b"a S", b"T", b"OP b", b"c"], ("STOP",))
    expect("a S|T|OP b|c, stop 'STOP'", got, ["a ", "", "", "", ""], said)
    require(stopped, "stopped, after the stop string", True, stopped)


def test_sends_what_was_held_back_for_nothing(work):
    said = {"the held-back text is lost: put it in front of what comes next": ["a ", "ART", ""],
            "don't wait for flush: send the text as soon as it can no longer begin a stop string": ["a ", "", "START"]}  # fmt: skip
    expect("a ST|ART, stop 'STOP'", sent(work, [b"a ST", b"ART"], ("STOP",))[0], ["a ", "START", ""], said)
    said = {"at the end, held-back text is text like any other": ["a ", ""]}
    expect("a ST and the end, stop 'STOP'", sent(work, [b"a ST"], ("STOP",))[0], ["a ", "ST"], said)


def test_holds_back_the_longest_beginning(work):
    said = {"hold back the longest beginning of a stop string: the first a was sent too early": ["x a", "ab", ""]}
    expect("x aa|b, stop 'aab'", sent(work, [b"x aa", b"b"], ("aab",))[0], ["x ", "", ""], said)


def test_several_stop_texts(work):
    said = {"the longest beginning counts over all stop strings: 'AB' of 'ABC', not 'B' of 'BX'": ["A", "BC", ""]}
    expect("AB|C, stops 'ABC', 'BX'", sent(work, [b"AB", b"C"], ("ABC", "BX"))[0], ["", "", ""], said)
    said = {"of several that are complete the one that begins first counts": ["a b ", ""]}
    expect("'a b c' at once, stops 'c', 'b'", sent(work, [b"a b c"], ("c", "b"))[0], ["a ", ""], said)


def test_flush_may_complete_a_stop_text(work):
    got, stopped = sent(work, [b"a", b"\xe2"], ("a�",))
    said = {"the � that flush makes is text like any other: it may complete a stop string": (["", "", "a�"], False)}
    expect("a|half a character, stop 'a�', the end", (got, stopped), (["", "", ""], True), said)


def test_streams_are_apart(work):
    one, two = work.TextStream(), work.TextStream()
    got = [one.add(b"\xc3"), two.add(b"x"), one.add(b"\xa9")]
    said = {"each stream needs its own decoder: a shared one mixes up half characters": ["", "�x", "�"]}
    expect("half of é in one stream, x in another, the other half in the first", got, ["", "x", "é"], said)


def test_a_long_stop_text(work):
    got = sent(work, [b"a <|end_of_turn|", b">"], ("<|end_of_turn|>",))[0]
    expect("a <|end_of_turn||>, stop '<|end_of_turn|>'", got, ["a ", "", ""],
           {"a stop string may be longer than the held-back text": ["a <|end_of_turn|", ">", ""]})  # fmt: skip


def slowly(pieces, stop):
    """(what a call returns, whether the stream has stopped) for each call, flush last, recomputed from scratch each time."""
    sent, returned = "", []
    for n in range(1, len(pieces) + 2):
        data, final = b"".join(pieces[:n]), n > len(pieces)
        text = codecs.getincrementaldecoder("utf-8")(errors="replace").decode(data, final=final)
        ends = [text.find(s) for s in stop if s in text]
        if ends:
            returned.append((text[len(sent) : min(ends)], True))
            return returned + [("", True)] * (len(pieces) + 1 - n)
        held = [len(text)] + [i for i in range(len(text)) if any(s.startswith(text[i:]) for s in stop) and not final]
        returned.append((text[len(sent) : min(held)], False))
        sent = text[: min(held)]
    return returned


def test_any_stream(work):
    """Few letters, so that stop strings overlap; characters of two and four bytes, whole, cut and broken; empty tokens."""

    def check(choose):
        parts = [b"a", b"b", "é".encode(), b"\xc3", b"\xa9", "🦊".encode(), b"\xf0\x9f", b"\xff", b"\xf0\x80", b"\xf4\x90",
                 b"A", b"\r\n", b"\xef\xbb\xbf"]  # fmt: skip
        piece = lambda: b"".join(choose.some(lambda: choose.one_of(parts), 3))  # noqa: E731
        pieces = choose.some(piece, 6, least=1)
        stop = tuple(choose.some(lambda: "".join(choose.some(lambda: choose.one_of("abé�A"), 4, least=1)), 3))
        returned = slowly(pieces, stop)
        example = Example(work, __file__)
        example.do(f"stream = work.TextStream({stop})")
        for call, (text, stopped) in zip([f"add({data})" for data in pieces] + ["flush()"], returned, strict=True):
            example.expect(f"stream.{call}", text)
            example.look("stream.stopped", stopped)
        example.expect("stream.flush()", "")

    at_random(check, 600)


def test_long_texts(work):
    """Thousands of bytes at once, and a stop string of a thousand characters that spans many tokens."""
    text = "a🦊é" * 800
    expect("5,600 bytes in one piece", sent(work, [text.encode()])[0], [text, ""])
    for length in (100, 1500):
        stop = "STOP" * (length // 4)
        pieces = [b"x" * 2000 + b"STOP" * 20, stop[80:-1].encode(), b"P", b"more"]
        expect(f"a stop string of {length} characters over three tokens", sent(work, pieces, (stop,)),
               (["x" * 2000, "", "", "", ""], True))  # fmt: skip
        expect(
            "the same, except for its end",
            sent(work, [*pieces[:2], b"Q"], (stop,))[0],
            ["x" * 2000, "", stop[:-1] + "Q", ""],
        )
        held = sent(work, [b"y" * 1000 + stop[:-1].encode()], (stop,))[0]
        expect("the end, when almost all of it is held back", held, ["y" * 1000, stop[:-1]])
