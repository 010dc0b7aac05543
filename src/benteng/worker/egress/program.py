"""The broker's process: exec'd with one descriptor, its line to the supervisor; no store, no user code, no files of it.

As root it becomes a user of its own that keeps one capability: to reach into the sockets of the pool's user. It sits
in no Landlock domain, since the kernel lets nobody out of one reach into a process beside it.
Trust: the supervisor.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import sys
from typing import Final, NoReturn

from benteng.worker import framing, wire
from benteng.worker.egress.broker import Broker, Terms
from benteng.worker.egress.loop import Loop
from benteng.worker.egress.resolver import Resolver
from benteng.worker.egress.rules import parse
from benteng.worker.intake import Intake
from benteng.worker.sandbox import capabilities, system
from benteng.worker.sandbox.capabilities import Capability
from benteng.worker.wire import Line

DESCRIPTORS_MAX: Final = 64


def main() -> NoReturn:
    """Be a broker until line or parent end. Descriptor 0 is the line; argv: what `program` gives, then the parent."""
    line = socket.socket(fileno=os.dup(0))
    _settle_in()
    program = Program(line, int(sys.argv[2]))
    program.prepare()
    while True:
        program.broker.once()


class Program:
    """The broker and its line."""

    broker: Broker

    def __init__(self, line: socket.socket, parent: int) -> None:
        self._line = line
        self._parent = parent
        self._intake = Intake(line, Line.TO_NEW_BROKER, DESCRIPTORS_MAX)

    def prepare(self) -> None:
        """Hear the terms, become who a broker is, and stand ready. Ends the process when that cannot be."""
        terms = self._intake.next()
        if terms is None:
            os._exit(0)
        become(terms.uid, terms.gid)
        system.die_with_parent(self._parent)
        loop = Loop()
        self.broker = Broker(Terms(parse(terms.rules), terms.connects_max), Resolver(), loop)
        self._intake.permit(Line.TO_BROKER)
        loop.watch(self._line.fileno(), self._hear)
        self._obey_all()  # what came together with the terms brings no other event

    def _hear(self, events: int) -> None:
        """Do what the supervisor says; when it is gone or says what it may not, there is nothing left to do."""
        if not events & select.EPOLLIN:
            os._exit(0)
        try:
            if not self._intake.receive():
                os._exit(0)
        except OSError:
            os._exit(1)
        self._obey_all()

    def _obey_all(self) -> None:
        try:
            for message in self._intake.messages():
                self._obey(message)
        except (OSError, wire.ProtocolError, IndexError):
            os._exit(1)

    def _obey(self, message: object) -> None:
        match message:
            case wire.Listen():
                self.broker.listen(self._intake.descriptors.pop(0))
                self._say(wire.Listening())
            case wire.Register(handle):
                self.broker.register(handle, self._intake.descriptors.pop(0))
                self._say(wire.Registered(handle))
            case wire.Forget(handle):
                self._say(self._used(handle))
            case wire.Ping():
                self._say(wire.Pong())
            case _:
                raise wire.ProtocolError("not for a broker")

    def _used(self, handle: int) -> wire.Used:
        job = self.broker.drop(handle)
        if job is None:
            return wire.Used(handle)
        return wire.Used(handle, job.connects, job.refused, tuple((each.what, each.fix) for each in job.blocked))

    def _say(self, message: wire.Listening | wire.Registered | wire.Used | wire.Pong) -> None:
        self._line.sendall(framing.frame(message))


def become(uid: int | None, gid: int | None) -> None:
    """Be who a broker is: as root another user with one capability, as anybody else oneself without any."""
    if os.getuid() == 0 and uid is not None and gid is not None:
        capabilities.limit({Capability.SYS_PTRACE})
        capabilities.become_keeping(uid, gid, Capability.SYS_PTRACE)
    elif os.getuid() != 0:  # started by `benteng supervise` it has that one; an ordinary user's has none
        capabilities.hold({Capability.SYS_PTRACE} if capabilities.held() >> Capability.SYS_PTRACE & 1 else ())
    system.hide()
    if not system.no_new_privileges():
        os._exit(1)


def _settle_in() -> None:
    devnull = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(devnull, number)
    os.close(devnull)
    os.setsid()
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
