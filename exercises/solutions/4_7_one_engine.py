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


# --- Wrong answers: (what is wrong, in the solution, instead, the message) -----------------------------------------

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
    ("one dictionary for all engines", "    waiting: dict[str, SimpleQueue] = {}", "    waiting = globals().setdefault('WAITING', {})", "belong in variables"),
    ("who leaves before the first token is served on", STREAM, EAGER, "before its first token"),
    ("once closed, nobody leaves", "if of[0] in waiting:", "if of[0] in waiting and not closing:", "before the next step"),
    ("closed twice is open", "                closing = True\n", "                closing = not closing\n", "no command will come"),
    ("only some errors of a request", "                except Exception as error:\n", "                except (ValueError, KeyError) as error:\n", "TypeError"),
    ("only some errors of a step", "        except Exception as error:\n            for", "        except (MemoryError, RuntimeError) as error:\n            for", "OSError"),
    ("looks again and again", "            what, *of = commands.get()\n", "            try:\n                what, *of = commands.get(timeout=0.001)\n            except __import__('queue').Empty:\n                continue\n", "sleep in commands.get()"),
    ("one command a step", WHEN, "if not commands.empty() or not (waiting or closing):", "all commands that have come"),
    ("joins when all have ended", WHEN, "while not waiting and not (closing and commands.empty()):", "before the next step"),
    ("waits for a command before each step", WHEN, "for _ in range(1):", "must not wait for a command"),
    ("returns when there is nothing to do", WHEN, "while not commands.empty():", "it returns once it was closed"),
    ("steps without requests", (WHEN, "        if not waiting:  # and"), ("while not commands.empty():", "        if closing and not waiting:  # and"), "must not step"),
    ("spins", WHEN, "while commands.empty() and not (waiting or closing):\n            pass\n        while not commands.empty():", "sleep in commands.get()"),
    ("nothing says that it has ended", NEWS, NEWS.replace("waiting.pop(request).put(None)", "del waiting[request]"), "after the last token"),
    ("the last token is lost", NEWS, "                if is_last:\n                    waiting.pop(request).put(None)\n                else:\n                    waiting[request].put(token)\n", "expected:"),
    ("token 0 is nothing", "                waiting[request].put(token)\n", "                if token:\n                    waiting[request].put(token)\n", "0 is a token"),
    ("all hear of all", "                waiting[request].put(token)\n", "                for answers in waiting.values():\n                    answers.put(token)\n", "expected:"),
    ("an abort tells nobody", ABORT, ABORT.replace("waiting.pop(of[0]).put(None)", "del waiting[of[0]]"), "whose request is aborted is waiting too"),
    ("the engine is not told of an abort", ABORT, ABORT.replace("                    engine.abort(of[0])\n", ""), "must not wait for a command"),
    ("an abort that comes late", ABORT, "                engine.abort(of[0])\n                waiting.pop(of[0]).put(None)\n", "KeyError"),
    ("an abort is put off", ABORT, "                late = of[0]\n", "expected:"),
    ("a bad request ends the thread", ADD, "                engine.add(of[0])\n                waiting[of[0]] = of[1]\n", "TypeError"),
    ("a bad request ends all", ADD, ADD + "                    for other in waiting.values():\n                        other.put(error)\n                    waiting.clear()\n", "KeyError"),
    ("a bad request is waited for", ADD, "                waiting[of[0]] = of[1]\n                try:\n                    engine.add(of[0])\n                except Exception as error:\n                    of[1].put(error)\n", "must not step"),
    ("the last request has come before it is closed", CLOSED, "", "come after it was closed"),
    ("callers that come too late get no answer", CLOSED, "            elif closing:\n                pass\n", "come after it was closed"),
    ("closed at once", END, "        if closing:\n            return\n", "go on to their end"),
    ("what is in the queue is not answered", WHEN, "while not (closing and not waiting) and (not commands.empty() or not waiting):", "come after it was closed"),
    ("closed means all are aborted", "                closing = True\n", "                closing = True\n                for request, answers in waiting.items():\n                    engine.abort(request)\n                    answers.put(None)\n"
     "                waiting.clear()\n", "go on to their end"),
    ("a step that fails ends the thread", FAILED, "            raise\n", "OSError"),
    ("a step that fails is passed over", FAILED, "            pass\n", "all its requests have failed"),
    ("one caller hears of the error", FAILED, FAILED.replace("answers.put(error)", "answers.put(error if request == next(iter(waiting)) else None)"), "all its requests have failed"),
    ("the engine keeps what has failed", FAILED, FAILED.replace("                engine.abort(request)\n", ""), "whose step failed"),
    ("who has failed is kept", "            waiting.clear()\n", "", "must not step"),
    ("closed after an error", "            waiting.clear()\n", "            waiting.clear()\n            closing = True\n", "expected:"),
    ("the stream ends at token 0", "if item is None:", "if not item:", "0 is a token"),
    ("the stream tells None", "            if item is None:\n                return\n", "            if item is None:\n                yield item\n                return\n", "expected:"),
    ("an error is a token", "            if ended:\n                raise item\n", "", "raise an error that comes"),
    ("an error is the end", "                raise item\n", "                return\n", "raise an error that comes"),
    ("all at once", ("            yield item\n", "                return\n"), ("            every = [*locals().get('every', []), item]\n", "                yield from locals().get('every', [])\n                return\n"), "as it comes"),
    ("who leaves is served on", "            commands.put((\"abort\", request))\n", "            pass\n", "abort a request whose caller has left"),
    ("who is interrupted is served on", "    ended = False\n", "    ended = True\n", "interrupted"),
    ("aborts whatever has come", "        if not ended:\n            commands", "        if True:\n            commands", "another one"),
    ("aborts after an error", "item is None or isinstance(item, Exception)\n            if item is None:\n                return\n            if ended:", "item is None\n            if item is None:\n                return\n            if isinstance(item, Exception):", "another one"),
    ("asks twice", "    ended = False\n", "    ended = False\n    commands.put((\"add\", request, answers))\n", "expected:"),
]  # fmt: skip

ALSO_RIGHT = [
    ("drains with get_nowait", "        " + WHEN + "\n            what, *of = commands.get()\n",
     "        while True:\n            try:\n                what, *of = commands.get() if not (waiting or closing) else commands.get_nowait()\n            except __import__('queue').Empty:\n                break\n"),
    ("the news is kept in a list", "for request, token, is_last in engine.step():", "news = list(engine.step())\n            for request, token, is_last in news:"),
    ("counts what is open", "    ended = False\n    try:\n", "    ended = False\n    tokens = 0\n    try:\n"),
]  # fmt: skip
