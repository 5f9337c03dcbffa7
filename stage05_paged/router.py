"""Between an engine and those who use it: everybody is told what is new of their requests, threads take turns, and a
change that is cut short is mended.

Whoever waits for requests gives them an inbox, a list: `generate` and `stream` have one each, `LLM.step` has one, and
the thread of `AsyncLLM` has one. After a step each request that has news is put into its inbox, whoever ran the step.
What is new its owner then asks of the request (`take_event`, `output`), so news can't be lost, only come late.
"""

import threading
from collections.abc import Callable, Iterator, Sequence

from .engine import Engine
from .request import Request, finished_groups


class Router:
    """The only one that changes an engine.

    Attributes:
        lock: held while the engine changes; hold it to read what is new as a whole.
    """

    def __init__(self, engine: Engine):
        self.engine = engine
        self.lock = threading.RLock()
        self._changing = False  # true after a change that was cut short, too: see `change`

    def add(self, request: Request, inbox: list[Request]) -> None:
        """Put a request into the queue, with where its news go, those of all its completions."""
        for completion in request.group:
            completion.inbox = inbox
        self.change(self.engine.add, request)

    def abort(self, request: Request, *, tell: bool = True) -> None:
        """End a request as it is; harmless if it has ended already."""
        with self.lock:
            if request in self.engine.unfinished:
                self.change(self._abort, request, tell)

    def advance(self) -> None:
        """Run a step."""
        self.change(self._advance)

    def rest(self) -> None:
        """There is nothing to do."""
        with self.lock:
            self.engine.rest()

    def run(self, requests: Sequence[Request], tell: Callable[[list[Request]], object]) -> Iterator:
        """Run steps until these requests are finished; yields, after each, what `tell` makes of those with news.

        What is unfinished when the caller leaves is aborted.
        """
        inbox: list[Request] = []
        waiting = dict.fromkeys(requests)  # those that are not finished: a result is its receiver's alone
        del requests
        try:
            for request in waiting:
                self.add(request, inbox)
            while waiting:
                with self.lock:
                    if not inbox:
                        self.advance()
                    news = self.take(inbox)
                    told = tell(news)
                    for request in finished_groups(news):
                        waiting.pop(request, None)
                yield told
        finally:
            for request in waiting:
                self.abort(request)

    @staticmethod
    def take(inbox: list[Request]) -> list[Request]:
        """Empty an inbox: each completion that has news, once."""
        news = list(dict.fromkeys(inbox))
        inbox.clear()
        return news

    def _abort(self, request: Request, tell: bool) -> None:
        unfinished = [completion for completion in request.group if not completion.finished]
        self.engine.aborted = unfinished
        self.engine.abort(request)
        if tell:
            request.inbox.extend(unfinished)
        self.engine.aborted = []

    def _advance(self) -> None:
        for request in self.engine.step():
            request.inbox.append(request)
        self.engine.committed, self.engine.aborted = [], []

    def change(self, action: Callable, *arguments) -> None:
        """Change the engine as a whole: if the action is cut short, by an error or by a Ctrl-C between any two of its
        lines, it is mended, and if that is cut short too, again before the next change."""
        with self.lock:
            if self._changing:
                self._mend()
            self._changing = True
            try:
                action(*arguments)
            except BaseException:
                self._mend()
                raise
            self._changing = False

    def _mend(self) -> None:
        for request in self.engine.start_over():
            request.inbox.append(request)
        self.engine.committed, self.engine.aborted = [], []
        self._changing = False
