"""A queue whose commands arrive at given steps, and an engine that counts; at the end, real threads."""

import queue
import threading

from exercises.examples import Example, at_random
from exercises.grading import Wrong, expect, require


class Stop(BaseException):
    """Ends a loop that went wrong; `except Exception` does not catch it. (expected, got, likely)"""


class Commands:
    """The engine's queue. A command that comes in step n is there when that step is done; 0 means from the beginning. A
    sleeping `get` is woken by the next command, however late."""

    def __init__(self, script):
        self.coming, self.items, self.log = sorted(script, key=lambda when: when[0]), [], []
        self.steps = self.looked = 0
        self.running = {}  # request -> tokens so far
        self.come(0)

    def come(self, step):
        while self.coming and self.coming[0][0] <= step:
            self.items.append(self.coming.pop(0)[1])

    def empty(self):
        self.looked += 1
        if self.looked > 1000:
            raise Stop(
                "the loop sleeps", "it polls the queue again and again", "without requests, sleep in commands.get()"
            )
        return not self.items

    def qsize(self):
        self.empty()
        return len(self.items)

    def get(self, block=True, timeout=None):
        if not block:
            return self.get_nowait()
        if timeout is not None and timeout < 1:
            raise Stop(
                "the loop sleeps",
                f"get(timeout={timeout}) wakes it again and again",
                "without requests, sleep in commands.get()",
            )
        if not self.items:
            if self.running:
                raise Stop(
                    "the next step",
                    "it waits in get()",
                    "while the engine has requests it must not wait for a command: serve them, or abort those in the engine "
                    "that were aborted or whose step failed",
                )
            if not self.coming:
                raise Stop(
                    "run returns", "it waits in get()", "it was closed and nothing is left: no command will come"
                )
            self.log.append("sleep")
            self.come(self.coming[0][0])
        self.looked = 0
        return self.items.pop(0)

    def get_nowait(self):
        if self.empty():
            raise queue.Empty
        self.looked = 0
        return self.items.pop(0)


class Engine:
    """Gives each of its requests a token a step, as many as `lengths` says."""

    def __init__(self, lengths, commands, fails=()):
        self.lengths, self.commands, self.fails = lengths, commands, fails

    def add(self, request):
        if not self.lengths[request]:
            raise (TypeError if len(self.commands.running) else ValueError)(f"{request!r} has no token to give")
        self.commands.log.append(f"add {request}")
        self.commands.running[request] = 0

    def abort(self, request):
        del self.commands.running[request]
        self.commands.log.append(f"abort {request}")

    def step(self):
        commands = self.commands
        if not commands.running:
            raise Stop("the loop sleeps", "a step without requests", "without requests it must not step but sleep")
        commands.steps, commands.looked = commands.steps + 1, 0
        if commands.steps > 1200:
            raise Stop("fewer steps", "1,200 steps without an end", "")
        commands.log.append("step " + " ".join(commands.running))
        commands.come(commands.steps)
        if commands.steps in self.fails:
            raise (MemoryError if commands.steps % 2 else OSError)("this step failed")
        news = []
        for request in list(commands.running):
            token = token_of(request, commands.running[request])
            commands.running[request] += 1
            is_last = commands.running[request] == self.lengths[request]
            news.append((request, token, is_last))
            if is_last:
                del commands.running[request]
        return news


def token_of(request, number):
    if number > 99:
        return 100 * number
    return 0 if number % 3 == 2 else 10 * (1 + ord(request[0]) - ord("a")) + number


class Answers:
    """A caller's queue, as a list."""

    def __init__(self):
        self.items = []

    def put(self, item):
        self.items.append(type(item).__name__ if isinstance(item, BaseException) else item)


def command(text, answers):
    """ "add a" as a command."""
    what, *names = text.split()
    if what == "add":
        return what, names[0], answers.setdefault(names[0], Answers())
    return (what, *names)


def played(work, lengths, script, fails=()):
    """(the engine's calls, what each caller got). `script` has pairs (step at which it comes, "add a", "abort a" or "close")."""
    answers = {}
    commands = Commands([(when, command(text, answers)) for when, text in script])
    try:
        work.run(Engine(lengths, commands, fails), commands)
    except Stop as stop:
        expected, got, likely = stop.args
        case = f"run, with {script}; lengths {lengths}; so far: {commands.log}"
        raise Wrong(case, expected, got, likely) from None
    return commands.log, {name: of.items for name, of in answers.items()}


def slowly(lengths, script, fails=(), mistake=""):
    """The same, as the text asks for; or with a mistake."""
    answers = {}
    commands = Commands([(when, command(text, answers)) for when, text in script])
    engine, waiting, closed = Engine(lengths, commands, fails), {}, False
    while True:
        taken = 0
        while (commands.items and not (mistake == "one" and taken)) or not (waiting or closed):
            if mistake == "static" and waiting:
                break
            taken += 1
            what, *of = commands.get()
            closed = closed or what == "close"
            if what == "abort" and of[0] in waiting:
                engine.abort(of[0])
                if mistake == "silent abort":
                    del waiting[of[0]]
                else:
                    waiting.pop(of[0]).put(None)
            elif what == "add" and closed and mistake != "open":
                if mistake != "silent close":
                    of[1].put(RuntimeError())
            elif what == "add":
                try:
                    engine.add(of[0])
                    waiting[of[0]] = of[1]
                except (TypeError, ValueError) as error:
                    of[1].put(error)
            if mistake in ("closes at once", "aborts at close") and what == "close":
                for request in waiting:
                    engine.abort(request)
                    if mistake == "aborts at close":
                        waiting[request].put(None)
                waiting = {}
        if not waiting and not commands.items:
            return commands.log, {name: of.items for name, of in answers.items()}
        try:
            news = engine.step() if waiting else []
        except (MemoryError, OSError) as error:
            for number, request in enumerate(list(waiting)):
                engine.abort(request)
                waiting.pop(request).put(error if mistake != "one error" or not number else None)
            continue
        for request, token, is_last in news:
            if token or mistake != "zero":
                waiting[request].put(token)
            if is_last:
                of = waiting.pop(request)
                if mistake != "no end":
                    of.put(None)


SAID = {
    "one": "before each step, carry out all commands that have come, not only the first",
    "static": "commands that come are carried out before the next step, not when all requests have ended",
    "no end": "put None after the last token: without it the caller waits forever",
    "silent abort": "a caller whose request is aborted is waiting too: put None",
    "silent close": "requests that come after it was closed get a RuntimeError; otherwise their callers wait forever",
    "open": "requests that come after it was closed get a RuntimeError: otherwise the thread would never end",
    "closes at once": "requests that run when it is closed go on to their end",
    "aborts at close": "requests that run when it is closed go on to their end; they are not aborted",
    "one error": "when a step fails, all its requests have failed: each caller gets the error",
    "zero": "0 is a token too",
}


def check(work, lengths, script, fails=(), more=None):
    case = f"run, with {script}; lengths {lengths}" + (f"; step {fails[0]} fails" if fails else "")
    log, told = played(work, lengths, script, fails)
    right = slowly(lengths, script, fails)
    wrong = {SAID[mistake]: slowly(lengths, script, fails, mistake) for mistake in SAID}
    said = {what: answers for what, (_, answers) in wrong.items() if answers != right[1]}
    expect(f"{case}: what the callers get", told, right[1], {**said, **(more or {})})
    if not fails:  # the order in which failed requests are aborted is up to the learner
        early = {"without requests it sleeps; it returns once it was closed": log if log != right[0] else None}
        early = early if log == right[0][: len(log)] else {}
        said = {what: of for what, (of, _) in wrong.items() if of != right[0]} | early
        expect(f"{case}: the engine's calls", log, right[0], said)


# --- The engine's thread ----------------------------------------------------------------------------------------------


def test_one_request(work):
    check(work, {"a": 2}, [(0, "add a"), (5, "close")])
    check(work, {"a": 4}, [(0, "add a"), (5, "close")])


def test_two_callers(work):
    """B comes while A runs; both come at once; no command comes for a while."""
    check(work, {"a": 4, "b": 2}, [(0, "add a"), (2, "add b"), (9, "close")])
    check(work, {"a": 2, "b": 1, "c": 2}, [(0, "add a"), (0, "add b"), (0, "add c"), (9, "close")])
    check(work, {"a": 2, "b": 2}, [(0, "add a"), (7, "add b"), (9, "close")])


def test_abort(work):
    """In the middle, before the first step, after the end, and of a request that was never there."""
    check(work, {"a": 5, "b": 5}, [(0, "add a"), (0, "add b"), (2, "abort a"), (9, "close")])
    check(work, {"a": 5, "b": 2}, [(0, "add a"), (0, "abort a"), (0, "add b"), (9, "close")])
    check(work, {"a": 2, "b": 5}, [(0, "add a"), (0, "add b"), (3, "abort a"), (3, "abort x"), (9, "close")])
    check(work, {"a": 5}, [(0, "add a"), (2, "abort a"), (9, "close")])


def test_a_bad_request(work):
    """Only its caller gets the error, even if nobody else is there."""
    check(work, {"a": 4, "b": 0, "c": 1}, [(0, "add a"), (1, "add b"), (1, "add c"), (9, "close")])
    check(work, {"b": 0, "a": 2}, [(0, "add b"), (3, "add a"), (9, "close")])


def test_close(work):
    """Running requests go on; later ones are refused, even those already in the queue after the command."""
    check(work, {"a": 4}, [(0, "add a"), (2, "close")])
    check(work, {"a": 3, "b": 3}, [(0, "add a"), (2, "close"), (2, "add b")])
    check(work, {"b": 3}, [(0, "close"), (0, "add b"), (0, "abort b")])
    check(work, {"a": 2, "b": 3}, [(0, "add a"), (2, "close"), (2, "add b")])
    check(work, {"a": 5}, [(0, "add a"), (1, "close"), (2, "abort a")])
    check(work, {"a": 3, "b": 2}, [(0, "add a"), (1, "close"), (1, "close"), (1, "add b")])


def test_a_step_that_fails(work):
    """All its callers get the error, and later requests are served."""
    passed = "the step gave no token, and all its requests have failed: give each caller the error, and go on"
    lengths, script = {"a": 4, "b": 3, "c": 2}, [(0, "add a"), (0, "add b"), (4, "add c"), (9, "close")]
    more = {passed: slowly(lengths, script)[1]}
    later = [(when + (when == 4), text) for when, text in script]
    more = {passed: slowly({**lengths, "a": 4}, later)[1], **more}
    check(
        work, lengths, script, (2,), {said: of for said, of in more.items() if of != slowly(lengths, script, (2,))[1]}
    )
    check(work, {"a": 4, "b": 3}, [(0, "add a"), (1, "add b"), (9, "close")], (1,))
    log, _ = played(work, lengths, script, (2,))
    left = [line for line in log if line.startswith("step")][2:]
    expect("step 2 of A and B fails, C comes later: the steps after it", left, ["step c", "step c"],
           likely="the engine must forget the requests that failed: abort them")  # fmt: skip


def test_many_callers(work):
    """A thousand requests at once; one with a thousand tokens, some of them beyond 65,535."""
    lengths = {f"b{i}-{'n' * (i % 7 * 170)}": 1 + i % 3 for i in range(1000)}
    script = [(i % 3, f"add {name}") for i, name in enumerate(lengths)] + [(9, "close")]
    log, told = played(work, lengths, script)
    right = slowly(lengths, script)
    same = [told == right[1], len(log) == len(right[0]), log == right[0]]
    expect("1,000 requests: the right answers, the number of calls of the engine, the right calls", same, [True] * 3)
    log, told = played(work, {"a": 1100}, [(0, "add a"), (2000, "close")])
    case = "a request of 1,100 tokens: tokens, and the end; calls of the engine"
    expect(case, (told["a"] == [*(token_of("a", i) for i in range(1100)), None], len(log)), (True, 1102))


def test_two_engines(work):
    """While one engine runs, another one serves a request with the same name."""
    answers, inner = {}, []
    commands = Commands([(0, command("add a", answers)), (9, ("close",))])
    engine = Engine({"a": 4}, commands)
    step = engine.step

    def stepped():
        if not inner:
            inner.append(played(work, {"a": 2}, [(0, "add a"), (9, "close")])[1]["a"])
        return step()

    engine.step = stepped
    case, likely = (
        "two engines at once, each with a request 'a'",
        "an engine's requests belong in variables of its `run`",
    )
    try:
        work.run(engine, commands)
    except (Stop, KeyError) as error:
        raise Wrong(case, "each serves its own", repr(error), likely) from None
    expect(f"{case}: what the callers get", [answers["a"].items, *inner],
           [[*(token_of("a", i) for i in range(n)), None] for n in (4, 2)], likely=likely)  # fmt: skip


def test_any_callers(work):
    """Four requests that come, leave and are refused at any time; some steps fail."""

    def any_script(choose):
        lengths = {name: choose.upto(4) for name in "abcd"}
        script = [(choose.upto(5), f"add {name}") for name in lengths]
        script += [(choose.upto(6), f"abort {choose.one_of('abcd')}") for _ in range(choose.upto(2))]
        script.append((choose.one_of([9, 9, 3]), "close"))
        fails = tuple({choose.between(1, 6) for _ in range(choose.upto(1))})
        right = slowly(lengths, script, fails)
        example = Example(work, __file__, "from exercises.stage4.test_4_7_one_engine import played")
        example.look(f"played(work, {lengths}, {script}, {fails})[1]", right[1])
        if not fails:
            example.look(f"played(work, {lengths}, {script})[0]", right[0])

    at_random(any_script, 100)


# --- A caller ---------------------------------------------------------------------------------------------------------


class Given:
    """A caller's queue, with what will come."""

    def __init__(self, *items):
        self.items, self.taken, self.asked = list(items), 0, []

    def put(self, item):
        self.asked.append(item)

    def get(self, *_):
        if not self.items:
            raise Stop("the stream ends", "it waits for more", "None is the end: nothing comes after it")
        self.taken += 1
        if isinstance(item := self.items.pop(0), KeyboardInterrupt):
            raise item
        return item


def asked(commands):
    return [(what, *names[:1]) for what, *names in commands.asked]


def reading(work, *items, name="a"):
    """(its commands, its answers, the stream)"""
    commands, answers = Given(), Given(*items)
    return commands, answers, work.stream(name, commands, answers)


def test_a_stream(work):
    for items in ((11, 12, 13), (11, 0, 12), (0,), ()):
        commands, answers, stream = reading(work, *items, None)
        case = f"stream, with the answers {[*items, None]}"
        try:
            got = list(stream)
        except Stop as stop:
            raise Wrong(case, *stop.args) from None
        said = {"0 is a token too: only None is the end": list(items[: items.index(0)] if 0 in items else [None])}
        expect(f"{case}: the tokens", got, list(items), said)
        expect(f"{case}: its commands", asked(commands), [("add", "a")],
               {"the request has ended, and its name may belong to another one": [("add", "a"), ("abort", "a")]})  # fmt: skip
        require(commands.asked[0][2] is answers, f"{case}: the queue in its command", "its own", commands.asked[0][2])


def test_a_long_stream(work):
    items = [token_of("a", i) for i in range(1100)]
    commands, _, stream = reading(work, *items, None, name="a" * 1000)
    expect("a stream of 1,100 tokens: how many, and whether they are right", [(got := list(stream)) == items, len(got)],
           [True, 1100])  # fmt: skip
    expect("a stream of 1,100 tokens: its commands", asked(commands), [("add", "a" * 1000)])


def test_a_stream_is_read_as_it_comes(work):
    _, answers, stream = reading(work, 11, 12, 13, None)
    tokens = iter(stream)
    expect("the first token of a stream", next(tokens), 11)
    expect("how many answers were taken for it", answers.taken, 1, likely="yield each token as it comes")


def test_a_stream_that_fails(work):
    for error in (MemoryError("no room"), ValueError("a bad request")):
        commands, _, stream = reading(work, 11, error)
        tokens, case = iter(stream), f"stream, with the answers 11 and a {type(error).__name__}"
        expect(f"{case}: first", next(tokens), 11)
        likely = "raise an error that comes: it is neither a token nor the end"
        try:
            got = next(tokens, "the end")
        except Exception as raised:
            require(raised is error, f"{case}: then", f"raises {error!r}", repr(raised), likely)
        else:
            raise Wrong(f"{case}: then", f"raises {error!r}", f"{got!r}", likely)
        expect(f"{case}: its commands", asked(commands), [("add", "a")],
               {"the request has failed, and its name may belong to another one": [("add", "a"), ("abort", "a")]})  # fmt: skip


def test_a_caller_who_leaves(work):
    for read in (1, 2):
        commands, _, stream = reading(work, 11, 12, 13, None)
        tokens = iter(stream)
        for _ in range(read):
            next(tokens)
        stream.close()
        case = f"stream of three tokens, closed after {read}: its commands"
        said = {"abort a request whose caller has left: nobody reads its tokens": [("add", "a")]}
        expect(case, asked(commands), [("add", "a"), ("abort", "a")], said)
    commands, _, stream = reading(work, 11, None)
    stream.close()
    got = asked(commands)
    right = [("add", "a"), ("abort", "a")] if got else []
    said = {"a caller may leave before its first token: what was handed in must be aborted": [("add", "a")]}
    expect("stream, closed before its first token: its commands", got, right, said)


def test_a_caller_who_is_interrupted(work):
    """By Ctrl-C, while it waits for its first token or for a later one."""
    for before in ((), (11,)):
        commands, _, stream = reading(work, *before, KeyboardInterrupt())
        case = f"stream, interrupted by Ctrl-C after {len(before)} tokens, while it waits: its commands"
        try:
            got = list(stream)
        except KeyboardInterrupt:
            got = None
        require(got is None, case.replace(": its commands", ""), "KeyboardInterrupt", got, "let it through")
        said = {"abort a request whose caller was interrupted: nobody reads its tokens": [("add", "a")]}
        expect(case, asked(commands), [("add", "a"), ("abort", "a")], said)


# --- Threads ----------------------------------------------------------------------------------------------------------


def test_real_threads(work):
    """Three callers, one engine. By now the loop is known to end."""
    commands, lengths = queue.SimpleQueue(), {f"{name}{i}": 3 + i for name in "abc" for i in range(3)}
    told, seen = Commands([]), set()
    engine, got = Engine(lengths, told), {}
    step = engine.step
    engine.step = lambda: (seen.add(threading.get_ident()), step())[1]

    def caller(name):
        for i in range(3):
            got[f"{name}{i}"] = list(work.stream(f"{name}{i}", commands, queue.SimpleQueue()))

    loop = threading.Thread(target=work.run, args=(engine, commands), daemon=True)
    callers = [threading.Thread(target=caller, args=(name,), daemon=True) for name in "abc"]
    for thread in (loop, *callers):
        thread.start()
    for thread in callers:
        thread.join(20)
    commands.put(("close",))
    loop.join(20)
    late = [thread for thread in (loop, *callers) if thread.is_alive()]
    require(not late, "three callers in threads, three requests each", "all of them end", f"{len(late)} threads wait")
    expected = {name: [token_of(name, i) for i in range(length)] for name, length in lengths.items()}
    expect("three callers in threads: their tokens", dict(sorted(got.items())), dict(sorted(expected.items())))
    expect("threads that called engine.step", len(seen), 1)
