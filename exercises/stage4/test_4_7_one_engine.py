"""4.7 One engine, many callers: commands that come at given times, an engine that gives the time, and real threads."""

import queue
import threading

import pytest


class Trouble(Exception):
    pass


class Engine:
    """A step takes from one second to the next, and gives each request a token: the time at which the step began. Request
    "a3" gets three tokens; "a0" is refused. Commands come at given times; "fail" means that this step raises an error."""

    def __init__(self, comes):
        self.time, self.comes, self.commands, self.answers = 0, dict(comes), Commands(self), {}
        self.running, self.gone, self.threads = {}, set(), set()
        self.come()

    def come(self):
        self.commands.looked, self.fails = 0, False
        for command in filter(None, self.comes.pop(self.time, "").split(", ")):
            what, *request = command.split()
            if what == "fail":
                self.fails = True
            elif what == "add":
                self.answers[request[0]] = queue.SimpleQueue()
                self.commands.put(("add", request[0], self.answers[request[0]]))
            else:
                self.commands.put((what, *request))
                self.gone |= {*request}

    def add(self, request):
        if request[1:] == "0":
            raise Trouble(f"{request} has no token to give")
        self.running[request] = int(request[1:])

    def abort(self, request):
        del self.running[request]

    def step(self):
        self.threads.add(threading.get_ident())
        if not self.running:
            pytest.fail("step was called: without requests run does not step, it sleeps in commands.get()")
        self.look_for_gone()
        time, fails, before = self.time, self.fails, self.running
        self.time += 1
        self.come()
        if fails:
            self.gone |= {*before}
            raise Trouble("this step failed")
        self.running = {request: left - 1 for request, left in before.items() if left > 1}
        return [(request, time, request not in self.running) for request in before]

    def look_for_gone(self):
        if gone := self.gone & {*self.running}:
            pytest.fail(f"the engine still has {gone}, which was aborted or whose step failed: engine.abort(request)")


class Commands(queue.SimpleQueue):
    """When `get` sleeps, time passes until the next command comes."""

    def __init__(self, engine):
        self.engine, self.looked = engine, 0

    def empty(self):
        self.looked += 1
        if self.looked > 1000:
            pytest.fail("run looks into the queue again and again: without requests, it sleeps in commands.get()")
        return super().empty()

    def get(self, block=True, timeout=None):
        if timeout is not None:
            pytest.fail("a get with a timeout wakes again and again: without requests, run sleeps in commands.get()")
        if block and super().empty():
            self.engine.look_for_gone()
            if self.engine.running:
                pytest.fail("run waits in get(), and the engine has requests: it must serve them")
            if not self.engine.comes:
                pytest.fail("run waits in get(), closed and with nothing left to do: it returns")
            self.engine.time = min(self.engine.comes)
            self.engine.come()
        return super().get(block)


def items(answers):
    """All that was put into this queue, errors by name."""
    all_items = [answers.get_nowait() for _ in range(answers.qsize())]
    return [type(item).__name__ if isinstance(item, Exception) else item for item in all_items]


def case(rule, comes, **expected):
    return pytest.param(comes, expected, id=rule)


@pytest.mark.parametrize(("comes", "expected"), [
    case("each token is put into answers, and None after the last one", {0: "add a2", 9: "close"}, a2=[0, 1, None]),
    case("a request takes part from the next step on", {0: "add a3", 1: "add b1", 9: "close"}, a3=[0, 1, 2, None], b1=[1, None]),
    case("before each step run carries out all commands that have come", {0: "add a4", 2: "add b1, add c2", 9: "close"},
         a4=[0, 1, 2, 3, None], b1=[2, None], c2=[2, 3, None]),
    case("without requests run sleeps until a command comes", {0: "add a1", 5: "add b1", 9: "close"}, a1=[0, None], b1=[5, None]),
    case("if add raises an error, only this caller is affected", {0: "add a3", 1: "add b0", 9: "close"},
         a3=[0, 1, 2, None], b0=["Trouble"]),
    case("a request that add refuses is not waited for", {0: "add b0", 3: "add a1", 9: "close"}, b0=["Trouble"], a1=[3, None]),
    case("a request that is aborted leaves, and its caller gets None", {0: "add a9, add b3", 2: "abort a9", 9: "close"},
         a9=[0, 1, None], b3=[0, 1, 2, None]),
    case("commands are carried out in order", {0: "add a9, abort a9", 9: "close"}, a9=[None]),
    case("an abort that comes too late does nothing", {0: "add a1, add b4", 2: "abort a1, abort x1", 9: "close"},
         a1=[0, None], b4=[0, 1, 2, 3, None]),
    case("when closed, running requests go on to their end", {0: "add a3", 1: "close"}, a3=[0, 1, 2, None]),
    case("when closed, a request can be aborted", {0: "add a9", 1: "close", 2: "abort a9"}, a9=[0, 1, None]),
    case("requests that come after it was closed get a RuntimeError", {0: "add a3", 1: "close", 2: "add b3"},
         a3=[0, 1, 2, None], b3=["RuntimeError"]),
    case("run answers what has come during the last step before it returns", {0: "add a2", 1: "close", 2: "add b3"},
         a2=[0, 1, None], b3=["RuntimeError"]),
    case("run answers everything in the queue before it returns", {0: "close, add b3"}, b3=["RuntimeError"]),
    case("if step raises an error, each caller gets it, and run goes on", {0: "add a5, add b5", 1: "fail", 2: "add c2", 9: "close"},
         a5=[0, "Trouble"], b5=[0, "Trouble"], c2=[2, 3, None]),
    case("a request that failed is not there to be aborted", {0: "add a5", 1: "fail", 2: "abort a5", 9: "close"}, a5=[0, "Trouble"]),
])  # fmt: skip
def test_what_callers_get(work, comes, expected):
    engine = Engine(comes)
    work.run(engine, engine.commands)
    assert {request: items(answers) for request, answers in engine.answers.items()} == expected


class Answers(queue.SimpleQueue):
    """The answers that a caller will get."""

    def __init__(self, *answers):
        for item in answers:
            self.put(item)

    def get(self, *_):
        if self.empty():
            pytest.fail("stream waits for more after the end: nothing comes after None or an error")
        if isinstance(item := super().get(), KeyboardInterrupt):
            raise item
        return item


def asked(commands):
    return [" ".join(command[:2]) for command in items(commands)]


def test_a_stream(work):
    """A stream yields each token, 0 too, up to None."""
    for tokens in ([11, 12, 13], [11, 0, 12], []):
        commands = queue.SimpleQueue()
        assert list(work.stream("a", commands, Answers(*tokens, None))) == tokens
        assert asked(commands) == ["add a"], "a request that has ended is not aborted"


def test_tokens_as_they_come(work):
    """A stream yields each token as it comes."""
    answers = Answers(11, 12, None)
    assert next(work.stream("a", queue.SimpleQueue(), answers)) == 11
    assert answers.qsize() == 2, "it took more from the queue before it yielded the first token"


def test_an_error(work):
    """A stream raises an error that comes, and does not abort a request that has failed."""
    commands, error = queue.SimpleQueue(), Trouble("no room")
    stream = work.stream("a", commands, Answers(11, error))
    assert next(stream) == 11
    with pytest.raises(Trouble) as raised:
        next(stream, "the end")
    assert raised.value is error
    assert asked(commands) == ["add a"], "a request that has failed is not aborted"


def test_a_caller_that_leaves(work):
    """If its caller leaves before the end, the request is aborted."""
    commands = queue.SimpleQueue()
    stream = work.stream("a", commands, Answers(11, 12, None))
    next(stream)
    stream.close()
    assert asked(commands) == ["add a", "abort a"]


def test_a_caller_that_leaves_at_once(work):
    """If its caller leaves before the first token, a request that was submitted is aborted."""
    commands = queue.SimpleQueue()
    work.stream("a", commands, Answers(11, None)).close()
    assert asked(commands) in ([], ["add a", "abort a"])


def test_an_interrupt(work):
    """If its caller is interrupted (Ctrl-C) while it waits, the request is aborted."""
    for tokens in ([], [11]):
        commands = queue.SimpleQueue()
        with pytest.raises(KeyboardInterrupt):
            list(work.stream("a", commands, Answers(*tokens, KeyboardInterrupt())))
        assert asked(commands) == ["add a", "abort a"], f"interrupted after {len(tokens)} tokens"


def test_threads(work):
    """Three callers in threads get their tokens from one engine, in one thread."""
    engine, commands, got = Engine({}), queue.SimpleQueue(), {}

    def call(name):
        for n in (1, 2, 3):
            got[f"{name}{n}"] = len(list(work.stream(f"{name}{n}", commands, queue.SimpleQueue())))

    loop = threading.Thread(target=work.run, args=(engine, commands), daemon=True)
    callers = [threading.Thread(target=call, args=(name,), daemon=True) for name in "abc"]
    for thread in (loop, *callers):
        thread.start()
    for thread in callers:
        thread.join(20)
    commands.put(("close",))
    loop.join(20)
    assert not any(thread.is_alive() for thread in (loop, *callers)), "a thread waits, and nothing will come"
    assert got == {f"{name}{n}": n for name in "abc" for n in (1, 2, 3)}, "the number of tokens of each request"
    assert len(engine.threads) == 1, "one thread alone touches the engine"
