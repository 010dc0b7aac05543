"""Ctrl-C at one place of the code, and not a moment earlier or later."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager

import pytest


@contextmanager
def interrupted_after(function: str) -> Generator[None]:
    """Raise KeyboardInterrupt when this thread returns from the function of that qualified name; it arrives here."""

    def interrupt(frame, event, argument):
        if frame.f_code.co_qualname == function and event == "return":
            raise KeyboardInterrupt
        return interrupt

    before = sys.gettrace()
    sys.settrace(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        sys.settrace(before)
