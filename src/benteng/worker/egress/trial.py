"""Whether this host can have a broker: tried for real, from the name in a cell to the listener outside.

Trust: nothing; the listener outside says who reached it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
from pathlib import Path
from typing import Final, NoReturn

from benteng import clock
from benteng.worker.egress.broker import Broker, Terms
from benteng.worker.egress.desk import NOBODY
from benteng.worker.egress.loop import Loop
from benteng.worker.egress.names import Names
from benteng.worker.egress.program import become
from benteng.worker.egress.resolver import Resolver
from benteng.worker.egress.rules import parse
from benteng.worker.sandbox import landlock, linux, roots, system

SECONDS_MAX: Final = 10
KERNEL: Final = (5, 19)
REACHED: Final = b"reached"


def works(scratch: Path) -> bool:
    """Whether a shut cell reaches what the list has, by name, and is refused what it does not have.

    To be called in a process that is thrown away: it becomes the broker.
    """
    with socket.create_server(("127.0.0.1", 0)) as listed, socket.create_server(("127.0.0.1", 0)) as other:
        ports = [server.getsockname()[1] for server in (listed, other)]
        terms = Terms(parse([f"localhost:{ports[0]} loopback"]), connects_max=8)
        walls = linux.Walls(read=roots.readable(roots.NAMES), scratch=str(scratch), names=Names(terms.rules).files())
        ours, theirs = socket.socketpair()
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            ours.close()
            _be_cell(walls, theirs, ports, parent)
        theirs.close()
        _serve(terms, pid, ours)
        return os.waitpid(pid, 0)[1] == 0 and _heard(listed) == REACHED and _heard(other) == b""


def reason() -> str:
    """Return why it may not be so here, for people."""
    release = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2] if part.isdigit())
    if release < KERNEL:
        return f"it needs Linux 5.19, and this is {os.uname().release}"
    if landlock.abi() < landlock.ABI_NET:
        return "it needs Landlock with TCP (Linux 6.7, switched on)"
    return (
        "this host forbids a part of it: a mount namespace (root, or user namespaces), a filter with a listener, or "
        "reaching into a process (CAP_SYS_PTRACE, or kernel.yama.ptrace_scope=0)"
    )


def _be_cell(walls: linux.Walls, line: socket.socket, ports: list[int], parent: int) -> NoReturn:
    code = 1
    try:
        system.die_with_parent(parent)
        signal.alarm(SECONDS_MAX)  # it also ends a call that nobody answers
        linux.leave_host(walls)
        listener = linux.enter_pool(walls)
        socket.send_fds(line, [b"l"], [listener])
        os.close(listener)
        line.recv(1)
        with socket.create_connection(("localhost", ports[0]), SECONDS_MAX) as sock:
            sock.sendall(REACHED)
        with contextlib.suppress(PermissionError):
            socket.create_connection(("127.0.0.1", ports[1]), SECONDS_MAX).close()
            os._exit(1)
        code = 0
    finally:
        os._exit(code)


def _serve(terms: Terms, pid: int, line: socket.socket) -> None:
    """Be the broker of one cell until it ends, or time is up."""
    line.settimeout(SECONDS_MAX)
    _, descriptors, _, _ = socket.recv_fds(line, 1, 1)
    become(NOBODY, NOBODY)
    loop, ended = Loop(), list[int]()
    broker = Broker(terms, Resolver(), loop)
    pidfd = os.pidfd_open(pid)
    broker.listen(descriptors[0])
    broker.register(1, os.dup(pidfd))
    loop.watch(pidfd, ended.append, select.EPOLLIN)
    line.sendall(b"g")
    until = clock.boot_seconds() + SECONDS_MAX
    while not ended and clock.boot_seconds() < until:
        broker.once(SECONDS_MAX)


def _heard(server: socket.socket) -> bytes:
    """Return what a listener was told; nothing when nobody came."""
    server.setblocking(False)
    try:
        with server.accept()[0] as sock:
            sock.settimeout(1)
            return sock.recv(100)
    except OSError:
        return b""
