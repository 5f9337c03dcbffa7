"""1.3 A stream of text from tokens of bytes: what every call returns."""

import codecs
import random

import pytest


def sent(work, pieces, stop):
    """What each `add` and then `flush` return, and `stopped` at the end."""
    stream = work.TextStream(stop)
    returned = [stream.add(piece) for piece in pieces] + [stream.flush()]
    assert stream.flush() == "", "what flush returned once is returned again"
    return returned, stream.stopped


def bytes_of(text):
    return [bytes([byte]) for byte in text.encode()]


def case(rule, pieces, stop, *expected):
    return pytest.param(pieces, stop, expected, id=rule)


@pytest.mark.parametrize(("pieces", "stop", "expected"), [
    case("half a character waits for the rest", bytes_of("aé€🦊"), (), ["a", "", "é", "", "", "€", "", "", "", "🦊", ""], False),
    case("an empty token changes nothing", [b"\xc3", b"", b"\xa9"], (), ["", "", "é", ""], False),
    case("a broken byte becomes U+FFFD at once", [b"a", b"\xffb"], (), ["a", "�b", ""], False),
    case("one U+FFFD for each broken piece: no character begins with E0 80", [b"\xe0\x80", b"a"], (), ["��", "a", ""], False),
    case("flush turns half a character into one U+FFFD", [b"a", b"\xe2\x82"], (), ["a", "", "�"], False),
    case("only what may begin a stop string is held back, not as many characters as it has", [b"hello ", b"world"],
         ("STOP", "END OF IT"), ["hello ", "world", ""], False),
    case("what may begin a stop string is held back, and sent when it can't become one", [b"a ST", b"ART"], ("STOP",),
         ["a ", "START", ""], False),
    case("flush returns what was held back", [b"a ST"], ("STOP",), ["a ", "ST"], False),
    case("a stop string may span any number of tokens", bytes_of("a STOP"), ("STOP",), ["a", " ", "", "", "", "", ""], True),
    case("the longest beginning of a stop string is held back", [b"x aa", b"b"], ("aab",), ["x ", "", ""], True),
    case("the longest beginning of any stop string is held back", [b"AB", b"C"], ("ABC", "BX"), ["", "", ""], True),
    case("the beginning of any stop string is held back, not only of the first", [b"x E", b"ND"], ("STOP", "END"), ["x ", "", ""],
         True),
    case("only the end of the text may begin a stop string", [b"x aaab"], ("aab",), ["x a", ""], True),
    case("a stop string may be long", [b"a " + b"-" * 39, b"-"], ("-" * 40,), ["a ", "", ""], True),
    case("nothing is sent after the stop string, not even by flush", [b"a STOP b\xe2", b"c\xe2"], ("STOP",), ["a ", "", ""], True),
    case("the stop string that begins first counts, not the first in the list", [b"a b c"], ("c", "b"), ["a ", ""], True),
    case("the first occurrence of a stop string counts", [b"ab.b"], ("b",), ["a", ""], True),
    case("the U+FFFD that flush makes may complete a stop string", [b"a", b"\xe2"], ("a�",), ["", "", ""], True),
])  # fmt: skip
def test_returned(work, pieces, stop, expected):
    assert sent(work, pieces, stop) == expected


def test_two_streams(work):
    """Each stream has a separate decoder."""
    one, two = work.TextStream(), work.TextStream()
    assert [one.add(b"\xc3"), two.add(b"x"), one.add(b"\xa9")] == ["", "x", "é"]


def slowly(pieces, stop):
    """The same from the whole text, decoded and searched again after each call."""
    sent, returned = 0, []
    for n in range(1, len(pieces) + 2):
        final = n > len(pieces)
        text = codecs.getincrementaldecoder("utf-8")(errors="replace").decode(b"".join(pieces[:n]), final)
        ends = [text.find(s) for s in stop if s in text]
        if ends:
            return returned + [text[sent : min(ends)]] + [""] * (len(pieces) + 1 - n), True
        held = [i for i in range(len(text)) if any(s.startswith(text[i:]) for s in stop) and not final]
        returned.append(text[sent : min(held, default=len(text))])
        sent += len(returned[-1])
    return returned, False


def test_any_stream(work):
    """Characters that are whole, cut or broken, and stop strings that overlap."""
    parts = [b"a", b"b", b"A", "é".encode(), b"\xc3", b"\xa9", "🦊".encode(), b"\xf0\x9f", b"\xff", b"\xef\xbb\xbf"]
    for seed in range(500):
        choose, most = random.Random(seed), 1 + seed // 100
        pieces = [b"".join(choose.choices(parts, k=choose.randint(0, 2))) for _ in range(choose.randint(1, most))]
        stop = tuple("".join(choose.choices("abé�A", k=choose.randint(1, 3))) for _ in range(choose.randint(0, 2)))
        assert sent(work, pieces, stop) == slowly(pieces, stop), f"{pieces}, stop strings {stop}"
