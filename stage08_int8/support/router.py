"""Between an engine and its callers: each is notified of its requests' progress, threads take turns, and a
change that is cut short is mended.

Whoever waits for requests gives them an inbox, a list: `generate` and `stream` have one each, `LLM.step` has one, and
the thread of `AsyncLLM` has one. After a step each request that has news is put into its inbox, whoever ran the step.
What is new its owner then asks of the request (see outputs.py), so news can't be lost, only come late.

Python may run anybody's code between two lines of a step (turn.py says whose). What it asks for, to add or to abort a
request, is noted, and done between two steps: only the router changes an engine, and never two threads at once.
"""

import collections
from collections.abc import Callable, Generator, Sequence
from typing import Any

from .observer import Observer
from .outputs import finished_groups
from .recovery import start_over
from .turn import Turn


class Router:
    """The only one that changes an engine.

    Attributes:
        unfinished: the requests that wait or run, in the order in which they came (a set that keeps an order).
    """

    def __init__(self, engine: Any, turn: Turn, observer: Observer):
        self.engine, self.turn, self.observer = engine, turn, observer
        self.unfinished: dict[Any, None] = {}
        self._notes: collections.deque[tuple] = collections.deque()  # what is to be done: (action, *arguments)
        self._cut_short = False  # a change was, and it is not mended yet

    # --- At any time, from anywhere; these wait for nothing ----------------------------------------------------------

    def add(self, request: Any, inbox: list[Any]) -> None:
        """Put a request into the queue, with where its news go, those of all its completions."""
        for completion in request.group:
            completion.inbox = inbox
        self.note(self._add, request)

    def abort(self, request: Any, *, tell: bool = True) -> None:
        """End a request as it is; harmless if it has ended already."""
        self.note(self._abort, request, tell)

    def note(self, action: Callable, *arguments) -> None:
        """Have something done to the engine: now if no step is under way, else when it has ended. It may be done twice,
        if it is cut short, so the second time must do no harm."""
        self._notes.append((action, *arguments))
        self.do_notes()

    def do_notes(self) -> None:
        """Do what was noted, unless a change is under way: who makes it does this afterwards, and sees every note that
        came before its end."""
        while self._notes and self.turn.is_free:
            self.turn.run(self._tidy_up)

    @property
    def has_notes(self) -> bool:
        """Whether something is still to be done."""
        return bool(self._notes)

    # --- In turns ---------------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Run a step."""
        self.change(self._advance)

    def change(self, action: Callable[..., Any], *arguments: Any) -> None:
        """Change the engine as a whole: if the action is cut short, by an error or by a Ctrl-C between any two of its
        lines, it is mended, and if that is cut short too, again before the next change.

        Raises RuntimeError from within another change; nothing has happened then.
        """
        self.turn.run(self._in_turn, action, *arguments)
        self.do_notes()

    def take(self, inbox: list[Any], tell: Callable[[list[Any]], list]) -> list:
        """Empty an inbox; returns what `tell` makes of the completions that have news, each of them once."""

        def take() -> list:
            told = tell(list(dict.fromkeys(inbox)))
            inbox.clear()
            return told

        told = self.turn.run(take)
        self.do_notes()
        return told

    def is_idle(self) -> bool:
        """Whether there is nothing to do; listeners see what happened since the last step."""

        def look() -> bool:
            if self.unfinished or self._notes:
                return False
            self.observer.idle()
            return True

        return self.turn.run(look)

    def run(self, requests: Sequence[Any], tell: Callable[[list[Any]], list[Any]]) -> Generator[Any, None, None]:
        """Run steps until these requests are finished; yields, one by one, what `tell` makes of those with news.

        What is unfinished when the caller leaves is aborted.
        """
        inbox: list[Any] = []
        waiting = dict.fromkeys(requests)  # those that are not finished: a result is its receiver's alone
        del requests

        def told(news: list[Any]) -> list:
            events = tell(news)
            for request in finished_groups(news):
                waiting.pop(request, None)
            return events

        try:
            for request in waiting:
                self.add(request, inbox)
            while waiting:
                if not inbox:
                    self.advance()
                yield from self.take(inbox, told)
        finally:
            for request in waiting:
                self.abort(request)

    # --- With the lock ----------------------------------------------------------------------------------------------

    def _in_turn(self, action: Callable, *arguments) -> None:
        self._tidy_up()
        self._change(action, *arguments)

    def _tidy_up(self) -> None:
        if self._cut_short:
            self._mend()
        while self._notes:
            try:
                self._change(*self._notes[0])
            except Exception:  # what can't be done must not be tried again at each call
                self._notes.popleft()
                raise
            self._notes.popleft()  # not before it is done: a Ctrl-C could lose it

    def _change(self, action: Callable, *arguments) -> None:
        self._cut_short = True
        try:
            action(*arguments)
        except BaseException:
            self._mend()
            raise
        self._cut_short = False

    def _mend(self) -> None:
        for completion in start_over(self.engine, list(self.unfinished)):
            self._news_of(completion)
        self.observer.restarted(self.unfinished)
        self._cut_short = False

    def _add(self, request: Any) -> None:
        if request not in self.unfinished:
            self.unfinished[request] = None
            self.engine.add(request)

    def _abort(self, request: Any, tell: bool) -> None:
        if request in self.unfinished:
            unfinished = [completion for completion in request.group if not completion.finished]
            self.engine.abort(request)
            if tell:
                request.inbox.extend(unfinished)
            del self.unfinished[request]

    def _advance(self) -> None:
        if self.unfinished:
            for completion in self.engine.step():
                self._news_of(completion)

    def _news_of(self, completion: Any) -> None:
        """Tell whoever waits for it; the last to know of a request that has ended is `unfinished`, so no news is lost,
        wherever this is cut short."""
        completion.inbox.append(completion)
        request = completion.group[0]
        if request in self.unfinished and request.group_finished:
            del self.unfinished[request]
            self.observer.left(request)
