"""Descriptors and what is called when something happens to them: epoll itself, which tells a hang-up from data."""

from __future__ import annotations

import select
from collections.abc import Callable

Handler = Callable[[int], None]


class Loop:
    """One epoll. Handlers get the events."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Handler] = {}

    def watch(self, number: int, handler: Handler, events: int = select.EPOLLIN) -> None:
        """Have a handler called with the events of a descriptor."""
        self._epoll.register(number, events)
        self._handlers[number] = handler

    def unwatch(self, number: int) -> None:
        """Forget a descriptor, if it is watched; to be called before it is closed."""
        if self._handlers.pop(number, None) is not None:
            self._epoll.unregister(number)

    def once(self, pause_seconds: float) -> None:
        """Wait so long for something to do, for ever if negative, and do it."""
        for number, events in self._epoll.poll(pause_seconds):
            handler = self._handlers.get(number)  # one of this round may have taken it away
            if handler is not None:
                handler(events)
