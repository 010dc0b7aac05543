"""What the broker costs a connect: from the same code in a MEDIUM cell and without walls, in one run.

    python bench/egress.py --connects 2000

Prints microseconds: socket() and connect() together to a listener on loopback by address, and a connect that is
refused: without walls by the kernel since nobody listens, in a cell by the list. The broker is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from benteng.policy import Tier
from benteng.worker import framing, wire
from benteng.worker.egress import program
from benteng.worker.egress.names import Names
from benteng.worker.egress.rules import parse
from benteng.worker.framing import Inbox
from benteng.worker.sandbox import linux, roots
from benteng.worker.wire import Line

MICRO = 1e6


def main() -> None:
    """Measure, and print one line of JSON for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connects", type=int, default=1000, help="how many, in each of four turns")
    count = parser.parse_args().connects
    server = socket.create_server(("127.0.0.1", 0), backlog=4096)
    threading.Thread(target=_accept, args=(server,), daemon=True).start()
    port = server.getsockname()[1]
    for where in ("direct", "broker", "broker", "direct"):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                _behind(port, count, writer) if where == "broker" else _measure(port, count, writer)
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as stream:
            print(json.dumps({"where": where} | json.loads(stream.read())))
        os.waitpid(pid, 0)


def _accept(server: socket.socket) -> None:
    while True:
        server.accept()[0].close()


def _measure(port: int, count: int, writer: int) -> None:
    """Time connects, one after the other."""
    allowed, refused = list[float](), list[float]()
    for _ in range(count):
        begun = time.perf_counter()
        with socket.socket() as sock:
            sock.connect(("127.0.0.1", port))
            allowed.append(time.perf_counter() - begun)
    for _ in range(count):
        with socket.socket() as sock:
            begun = time.perf_counter()
            sock.connect_ex(("127.0.0.1", 1))
            refused.append(time.perf_counter() - begun)
    told = {"connect": _quantiles(allowed), "refused": _quantiles(refused)}
    os.write(writer, json.dumps(told).encode())


def _quantiles(seconds: list[float]) -> dict[str, int]:
    ordered = sorted(seconds)
    return {f"p{part}": round(ordered[len(ordered) * part // 100] * MICRO) for part in (50, 99)}


def _behind(port: int, count: int, writer: int) -> None:
    """Be the supervisor of a broker and of one cell, which measures."""
    rules = (f"127.0.0.1:{port} loopback",)
    line, theirs = socket.socketpair()
    broker = os.fork()
    if broker == 0:
        line.close()
        os.dup2(theirs.fileno(), 0)
        program.main()
    theirs.close()
    line.sendall(framing.frame(wire.Open(os.getpid(), rules, 10 * count, 65_534, 65_534)))
    ours, other = socket.socketpair()
    cell = os.fork()
    if cell == 0:
        _be_cell(other, rules, lambda: _measure(port, count, writer))
    _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
    _tell(line, wire.Listen(), descriptors[0])
    _tell(line, wire.Register(1), os.pidfd_open(cell))
    ours.sendall(b"g")
    os.waitpid(cell, 0)
    os.kill(broker, signal.SIGKILL)
    os.waitpid(broker, 0)


def _be_cell(line: socket.socket, rules: tuple[str, ...], measure: Callable[[], None]) -> None:
    scratch = tempfile.mkdtemp(prefix="benteng-bench-")
    names = Names(parse(rules)).files()
    walls = linux.Walls(read=roots.readable(roots.NAMES), scratch=scratch, shut=True, names=names)
    linux.leave_host(walls)
    listener = linux.enter_pool(walls)
    socket.send_fds(line, [b"l"], [listener])
    os.close(listener)
    line.recv(1)
    linux.enter_job(walls, Tier.MEDIUM, scratch)
    measure()
    Path(scratch).rmdir()
    os._exit(0)


def _tell(line: socket.socket, message: wire.Listen | wire.Register, number: int) -> None:
    socket.send_fds(line, [framing.frame(message)], [number])
    os.close(number)
    inbox = Inbox(Line.BROKER_READY)
    while not list(inbox.messages()):
        assert inbox.fill(line)


if __name__ == "__main__":
    main()
