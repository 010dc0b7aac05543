"""What `benteng cell` does: wait on a unix socket for the supervisor of a pool, and be its warden while it is there.

Supervisor and cells can then be in two containers that share nothing but this socket. One supervisor at a time; who
connects is told by the kernel, and when the connection ends everything ends that was made for it.
Trust: a peer by its uid (SO_PEERCRED); then as the warden does.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import stat
import struct
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benteng.errors import PolicyError
from benteng.worker.sandbox import probe
from benteng.worker.warden import Bell, Warden, shut_in

PEER: Final = struct.Struct("3i")
"""struct ucred: pid, uid, gid (unix(7))."""

BACKLOG: Final = 4


@dataclass(frozen=True, slots=True)
class Door:
    """Where to listen and whom to let in.

    address         unix:/full/path, or fd:N for a socket that was inherited and listens
    supervisors     the uids that may connect
    group           whose members may reach the socket beside its owner; empty: nobody
    scratch_parent  where the cells' scratch is; None: the host's directory for temporary files
    """

    address: str
    supervisors: frozenset[int]
    group: str = ""
    scratch_parent: Path | None = None


def serve(door: Door, say: Callable[..., None], ready: Callable[[], object]) -> None:
    """Serve one supervisor after the other until SIGTERM or SIGINT. Raises PolicyError for what cannot be."""
    with _opened(door) as listener, Bell(signal.SIGTERM, signal.SIGINT) as bell:
        held = probe.probe()  # before it is closed to others: the trials look into each other
        shut_in()
        listener.setblocking(False)
        ready()
        say("listening", address=door.address, layers=len(held))
        while not bell.ended:
            line = _next(listener, bell, door, say)
            if line is not None:
                say("connected", uid=_uid(line))
                turn_away = {listener.fileno(): lambda: _turn_away(listener, say)}
                Warden(line, held, door.scratch_parent).run(bell, turn_away)
                say("disconnected")


def _next(listener: socket.socket, bell: Bell, door: Door, say: Callable[..., None]) -> socket.socket | None:
    """Wait for a supervisor; None when nobody came that may, or the bell rang."""
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    poll.register(bell.descriptor, select.POLLIN)
    poll.poll()
    bell.silence()
    try:
        line = listener.accept()[0]
    except (BlockingIOError, ConnectionError):
        return None
    if _uid(line) in door.supervisors:
        return line
    say("refused", rule="W-peer", uid=_uid(line), why="this user may not be the supervisor of these cells")
    line.close()
    return None


def _turn_away(listener: socket.socket, say: Callable[..., None]) -> None:
    """Refuse a second supervisor: while one is there the cells are its own."""
    with contextlib.suppress(BlockingIOError, ConnectionError):
        line = listener.accept()[0]
        say("refused", rule="W-busy", uid=_uid(line), why="another supervisor is connected")
        line.close()


def _uid(line: socket.socket) -> int:
    return PEER.unpack(line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))[1]


@contextmanager
def _opened(door: Door) -> Generator[socket.socket]:
    kind, _, place = door.address.partition(":")
    if kind == "fd" and place.isdecimal():
        with _inherited(int(place)) as listener:
            yield listener
    elif kind == "unix" and place.startswith("/"):
        path = Path(place)
        with _bound(path, door.group) as listener:
            try:
                yield listener
            finally:
                path.unlink(missing_ok=True)
    else:
        fix = 'write it as "unix:/full/path", or "fd:3" for one that is inherited'
        raise PolicyError("W-cell", "this is no address to listen on", field="listen", fix=fix)


def _inherited(number: int) -> socket.socket:
    try:
        listener = socket.socket(fileno=number)
        if listener.family == socket.AF_UNIX and listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return listener
    except OSError:
        pass
    raise PolicyError("W-cell", "what is inherited is not a unix socket that listens", field="listen")


def _bound(path: Path, group: str) -> socket.socket:
    """Listen on a path that nobody else can reach or replace: 0600, or 0660 for a group."""
    _check_directory(path.parent)
    _take_over(path)
    listener = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
        if group:
            shutil.chown(path, group=int(group) if group.isdecimal() else group)
            path.chmod(0o660)
        listener.listen(BACKLOG)
    except (OSError, LookupError) as error:
        listener.close()
        fix = "name a directory of this user's, and a group that it is in"
        raise PolicyError("W-cell", f"cannot listen there: {error}", field="listen", fix=fix) from None
    finally:
        os.umask(before)
    return listener


def _check_directory(directory: Path) -> None:
    try:
        mode = directory.stat().st_mode
    except OSError:
        raise PolicyError("W-cell", "the socket's directory does not exist", field="listen", fix="make it") from None
    if mode & (stat.S_IWGRP | stat.S_IWOTH) and not mode & stat.S_ISVTX:
        fix = f"chmod go-w {directory}"
        raise PolicyError("W-cell", "others may replace the socket in its directory", field="listen", fix=fix)


def _take_over(path: Path) -> None:
    """Remove a socket on which nobody listens any more. Raises PolicyError when somebody does."""
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX) as trial:
        try:
            trial.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except OSError:
            pass
    raise PolicyError("W-cell", "somebody listens there already", field="listen", fix="end it, or name another path")
