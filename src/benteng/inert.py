"""Whether this process may reach the store at all. A zygote and its cells may not.

The zygote marks itself before it imports the user's module; from then on `Benteng` defines types but opens no store,
reads no configuration and enqueues nothing. It is a guard against mistakes, not the wall: the wall is that a cell has
no credential and cannot read the store's file (DESIGN promise 8).
"""

from __future__ import annotations

_state = {"inert": False}


def mark() -> None:
    """Make this process inert, for ever."""
    _state["inert"] = True


def is_inert() -> bool:
    """Tell whether this process is a zygote or a cell."""
    return _state["inert"]
