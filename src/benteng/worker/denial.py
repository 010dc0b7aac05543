"""Which act the kernel denied, as far as an exception of a handler tells: for the supervisor's sentence about it.

Only a hint: the class of the error does not depend on it. The innermost denial of a chain of exceptions counts, since
libraries wrap what they meet.
Trust: nothing of the exception; its attributes may be anything, and may raise.
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from benteng.worker.wire import TEXT_CHARS_MAX, Act, Denied

CHAIN_MAX = 16
FRAMES_MAX = 64
ERRORS = (errno.EACCES, errno.EPERM, errno.ENOSYS)
PLACES = {
    "subprocess.py": Act.PROGRAM,
    "socket.py": Act.NETWORK,
}
"""Modules of the standard library in whose code a denial has one meaning."""


def denial(error: BaseException, scratch: Path) -> Denied | None:
    """Return what was denied, or None when nothing in the chain says so. Never raises.

    A file in the cell's own scratch is never denied by its walls, though its modes may be.
    """
    try:
        found = [each for each in _chain(error) if isinstance(each, OSError) and each.errno in ERRORS]
        denied = _denied(found[-1]) if found else None
        own = denied is not None and denied.act is Act.FILE and Path(denied.path).is_relative_to(scratch)
        return None if own else denied
    except Exception:  # noqa: BLE001 - the failure path cannot fail
        return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and what it was raised from, or while; outermost first."""
    for _ in range(CHAIN_MAX):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def _denied(error: OSError) -> Denied:
    path = _path(error)
    return Denied(_act(error, path), path)


def _path(error: OSError) -> str:
    named: object = error.filename
    if not isinstance(named, str | bytes | Path):
        return ""
    path = posixpath.normpath(Path.cwd() / os.fsdecode(named))
    return path.encode(errors="replace").decode()[:TEXT_CHARS_MAX]


def _act(error: OSError, path: str) -> Act:
    known = next((PLACES[name] for name in _places(error.__traceback__) if name in PLACES), None)
    if known is not None:
        return known
    if error.errno == errno.EACCES:
        return Act.FILE if path else Act.NETWORK
    return Act.MODE if path and error.errno == errno.EPERM else Act.CALL


def _places(at: TracebackType | None) -> Iterator[str]:
    """Yield the file names of the frames that it went through."""
    for _ in range(FRAMES_MAX):
        if at is None:
            return
        yield posixpath.basename(at.tb_frame.f_code.co_filename)
        at = at.tb_next
