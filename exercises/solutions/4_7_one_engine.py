"""A solution of exercise 4.7."""

from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any


def run(engine: Any, commands: SimpleQueue) -> None:
    """The engine's thread: carries out commands, and steps while there are requests, until it is closed."""
    waiting: dict[str, SimpleQueue] = {}  # request -> the queue of its caller
    closing = False
    while True:
        while not commands.empty() or not (waiting or closing):
            what, *of = commands.get()
            if what == "close":
                closing = True
            elif what == "abort":
                if of[0] in waiting:
                    engine.abort(of[0])
                    waiting.pop(of[0]).put(None)
            elif closing:
                of[1].put(RuntimeError("the engine is closed"))
            else:
                try:
                    engine.add(of[0])
                    waiting[of[0]] = of[1]
                except Exception as error:
                    of[1].put(error)
        if not waiting:  # and closing, and there is no command left
            return
        try:
            for request, token, is_last in engine.step():
                waiting[request].put(token)
                if is_last:
                    waiting.pop(request).put(None)
        except Exception as error:
            for request, answers in waiting.items():
                engine.abort(request)
                answers.put(error)
            waiting.clear()


def stream(request: str, commands: SimpleQueue, answers: SimpleQueue) -> Iterator[int]:
    """A caller: hands a request in, and yields its tokens as they come."""
    commands.put(("add", request, answers))
    ended = False
    try:
        while True:
            item = answers.get()
            ended = item is None or isinstance(item, Exception)
            if item is None:
                return
            if ended:
                raise item
            yield item
    finally:
        if not ended:
            commands.put(("abort", request))


# --- Wrong answers: (what is wrong, in the solution, instead, words of the message) --------------------------------

WHEN = "while not commands.empty() or not (waiting or closing):"
ABORT = """                if of[0] in waiting:
                    engine.abort(of[0])
                    waiting.pop(of[0]).put(None)
"""
ADD = """                try:
                    engine.add(of[0])
                    waiting[of[0]] = of[1]
                except Exception as error:
                    of[1].put(error)
"""
CLOSED = """            elif closing:
                of[1].put(RuntimeError("the engine is closed"))
"""
NEWS = """                waiting[request].put(token)
                if is_last:
                    waiting.pop(request).put(None)
"""
FAILED = """            for request, answers in waiting.items():
                engine.abort(request)
                answers.put(error)
            waiting.clear()
"""
END = "        if not waiting:  # and closing, and there is no command left\n            return\n"
STREAM = """def stream(request: str, commands: SimpleQueue, answers: SimpleQueue) -> Iterator[int]:
    \"\"\"A caller: hands a request in, and yields its tokens as they come.\"\"\"
    commands.put(("add", request, answers))
"""
EAGER = """def stream(request, commands, answers):
    commands.put(("add", request, answers))
    return rest(request, commands, answers)


def rest(request, commands, answers):
"""
MUTANTS = [
    ("nothing says that it has ended", NEWS, NEWS.replace("waiting.pop(request).put(None)", "del waiting[request]"), "None after the last one"),
    ("one command a step", WHEN, "if not commands.empty() or not (waiting or closing):", "all commands that have come"),
    ("returns when there is nothing to do", WHEN, "while not commands.empty():", "sleeps until a command comes"),
    ("spins", WHEN, "while commands.empty() and not (waiting or closing):\n            pass\n        while not commands.empty():", "it sleeps in commands.get()"),
    ("an abort tells nobody", ABORT, ABORT.replace("waiting.pop(of[0]).put(None)", "del waiting[of[0]]"), "its caller gets None"),
    ("the engine is not told of an abort", ABORT, ABORT.replace("                    engine.abort(of[0])\n", ""), "engine.abort(request)"),
    ("an abort that comes late", ABORT, "                engine.abort(of[0])\n                waiting.pop(of[0]).put(None)\n", "an abort that comes too late does nothing"),
    ("a bad request ends the thread", ADD, "                engine.add(of[0])\n                waiting[of[0]] = of[1]\n", "only this caller is affected"),
    ("the last request has come before it is closed", CLOSED, "", "come after it was closed get a RuntimeError"),
    ("closed at once", END, "        if closing:\n            return\n", "running requests go on to their end"),
    ("what comes during the last step is not answered", "                    waiting.pop(request).put(None)\n        except", "                    waiting.pop(request).put(None)\n            if closing and not waiting:\n                return\n        except", "has come during the last step"),
    ("tokens are kept to the end, and lost by an abort", ("    closing = False\n", NEWS),
     ("    closing = False\n    kept = {}\n", NEWS.replace("waiting[request].put(token)", "kept.setdefault(request, []).append(token)")
      .replace("is_last:", "is_last:\n                    [*map(waiting[request].put, kept.pop(request))]")), "a request that is aborted leaves"),
    ("one caller hears of the error", FAILED, FAILED.replace("answers.put(error)", "answers.put(error if request == next(iter(waiting)) else None)"), "each caller gets it"),
    ("the engine keeps what has failed", FAILED, FAILED.replace("                engine.abort(request)\n", ""), "whose step failed: engine.abort(request)"),
    ("the stream ends at token 0", "if item is None:", "if not item:", "0 too, up to None"),
    ("an error is the end", "                raise item\n", "                return\n", "raises an error that comes"),
    ("all at once", ("            yield item\n", "                return\n"), ("            every = [*locals().get('every', []), item]\n", "                yield from locals().get('every', [])\n                return\n"), "yields each token as it comes"),
    ("who leaves before the first token is served on", STREAM, EAGER, "leaves before the first token"),
    ("who leaves is served on", "            commands.put((\"abort\", request))\n", "            pass\n", "leaves before the end, the request is aborted"),
    ("who is interrupted is served on", "    ended = False\n", "    ended = True\n", "interrupted"),
    ("aborts whatever has come", "        if not ended:\n            commands", "        if True:\n            commands", "a request that has ended is not aborted"),
]  # fmt: skip

ALSO_RIGHT = [
    ("drains with get_nowait", "        " + WHEN + "\n            what, *of = commands.get()\n",
     "        while True:\n            try:\n                what, *of = commands.get() if not (waiting or closing) else commands.get_nowait()\n            except __import__('queue').Empty:\n                break\n"),
    ("the news is kept in a list", "for request, token, is_last in engine.step():", "news = list(engine.step())\n            for request, token, is_last in news:"),
    ("counts what is open", "    ended = False\n    try:\n", "    ended = False\n    tokens = 0\n    try:\n"),
]  # fmt: skip
