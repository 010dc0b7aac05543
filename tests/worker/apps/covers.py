"""A LOW job that looks for what opens the store, in every way that its user has."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable
from pathlib import Path

from benteng.app import Benteng

app = Benteng()
libc = ctypes.CDLL(None, use_errno=True)
NEW_FILES, NEW_USERS, DETACH = 0x2_0000, 0x1000_0000, 2


def _tried(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except OSError as error:
        return type(error).__name__
    return "out"


def _uncover(directory: Path) -> None:
    if libc.umount2(os.fsencode(directory), DETACH) != 0:
        raise OSError(ctypes.get_errno(), "refused")


def _in_own_space(path: Path) -> None:
    """Have every right in a namespace of one's own, take the cover away there, and read."""
    pid = os.fork()
    if pid == 0:
        libc.unshare(NEW_USERS | NEW_FILES)
        libc.umount2(os.fsencode(path.parent), DETACH)
        try:
            path.read_bytes()
        finally:
            os._exit(0 if path.exists() else 1)
    if os.waitpid(pid, 0)[1] != 0:
        raise PermissionError


def _others(path: Path) -> str:
    """Look through the root of every process that there is."""
    found = {
        _tried(lambda pid=pid: (Path("/proc") / pid / "root" / str(path)[1:]).read_bytes())
        for pid in (each.name for each in Path("/proc").iterdir())
        if pid.isdigit()
    }
    return "out" if "out" in found else "PermissionError"


@app.job("look@1")
def look(ledger: str, signer: str) -> None:
    """Say outside how each way ended; `out` is what must not be."""
    store = Path(ledger)
    found = {
        "directly": _tried(store.read_bytes),
        "key": _tried(Path(signer).read_bytes),
        "root": _tried((Path("/proc/self/root") / ledger[1:]).read_bytes),
        "parent": _others(store),
        "uncover": _tried(lambda: _uncover(store.parent)),
        "own-space": _tried(lambda: _in_own_space(store)),
        "listing": "out" if any(store.parent.iterdir()) else "empty",
    }
    with Path(os.environ["EFFECTS"]).open("w", encoding="utf-8") as effects:
        effects.write(f"looked {json.dumps(found)}\n")
