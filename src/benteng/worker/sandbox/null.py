"""No sandbox at all: for tests of the machinery around it."""

from __future__ import annotations

from benteng.worker.sandbox import Spec


def probe() -> tuple[str, ...]:
    """Return the layers that are in force after `enter`: none."""
    return ()


def enter(spec: Spec) -> tuple[str, ...]:
    """Do nothing, and return that nothing is in force."""
    del spec
    return ()
