"""The loop that makes and connects the sockets of a pool's cells, for jobs that are registered and targets on the list.

A cell's `socket` and `connect` stop in the kernel until this process answers. It makes the socket in its own network
and hands it over; at `connect` it takes that very socket and connects it to an address that it chose itself, so that
nothing the cell changes meanwhile has an effect. Whoever is not registered, and whatever is not understood, is refused.
Trust: nothing that a cell does; it never waits for DNS, a peer or a cell.
"""

from __future__ import annotations

import codecs
import ctypes
import errno
import fcntl
import ipaddress
import os
import select
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from benteng import clock
from benteng.worker.egress import notify
from benteng.worker.egress.loop import Loop
from benteng.worker.egress.names import SERVER, SERVER_PORT, Names
from benteng.worker.egress.notify import Asked, GoneError, Listener
from benteng.worker.egress.resolver import Resolver
from benteng.worker.egress.responder import Responder
from benteng.worker.egress.rules import Address, Rule, address_of, kind_of, target
from benteng.worker.sandbox import syscalls, system

CONNECT_SECONDS_MAX: Final = 30.0
PENDING_MAX: Final = 256
"""Connects of one job that are waited for at the same time."""

SHORTEST_BYTES: Final = 16
"""A socket address of IPv4; of AF_UNSPEC too, by which a cell would disconnect."""

IDLE_SECONDS: Final = 60.0
ANCESTORS_MAX: Final = 16
BLOCKED_MAX: Final = 4
"""Different refusals of a job that are kept in words; all are counted."""

_NATIVE: Final = frozenset({errno.EBADF, errno.ENOTSOCK, errno.EFAULT, errno.EMFILE, errno.ENFILE, errno.ENOBUFS})
"""Errors of the caller's own making, which it is told as they are; every other one is "permission denied"."""

for _codec in ("ascii", "idna"):  # loaded now: who it becomes may not read the interpreter's files
    codecs.lookup(_codec)
_libc: Final = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Terms:
    """What a broker works by: the list, and how many connects a job may make."""

    rules: tuple[Rule, ...]
    connects_max: int


@dataclass(frozen=True, slots=True)
class Blocked:
    """One refusal in words: what was refused, and what would allow it."""

    what: str
    fix: str


@dataclass(slots=True, eq=False)
class Job:
    """One registered job: a process, and what it and its descendants did."""

    handle: int
    pid: int
    pidfd: int
    connects: int = 0
    refused: int = 0
    pending: int = 0
    blocked: dict[Blocked, None] = field(default_factory=dict[Blocked, None])

    @property
    def lives(self) -> bool:
        """Whether its process is the one that was registered: a dead one's number may be another's."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return not poll.poll(0)

    def refuse(self, what: str, fix: str) -> None:
        """Note a refusal."""
        self.refused += 1
        if len(self.blocked) < BLOCKED_MAX:
            self.blocked[Blocked(what, fix)] = None


class RefusedError(OSError):
    """The list, the budget or an address says no."""

    def __init__(self) -> None:
        super().__init__(errno.EACCES, os.strerror(errno.EACCES))


@dataclass(frozen=True, slots=True)
class Wish:
    """Where a cell wants to connect: the family of its socket, the host as in a rule, the port."""

    family: int
    host: str
    port: int


@dataclass(slots=True, eq=False)
class Pending:
    """A connect that is waited for: until its name is known (no `address`), then until the peer answers."""

    asked: Asked
    job: Job
    sock: socket.socket
    wish: Wish
    until: float
    blocking: bool
    address: tuple[str, int] | None = None


class Broker:
    """One pool's broker, around one listener."""

    def __init__(self, terms: Terms, resolver: Resolver, loop: Loop) -> None:
        self._terms = terms
        self._loop = loop
        self._resolver = resolver
        self._names = Names(terms.rules)
        self._responder = Responder(self._names, self._refuse_name, loop)
        self._listener: Listener | None = None
        self._jobs: dict[int, Job] = {}
        self._by_handle: dict[int, Job] = {}
        self._pending: dict[int, Pending] = {}
        self._arch = syscalls.this_arch()
        self._own_name = socket.gethostname().lower()
        for name in self._names.listed():
            resolver.addresses(name)
        loop.watch(resolver.fileno(), self._resolved)

    def once(self, seconds_max: float = IDLE_SECONDS) -> None:
        """Wait for something to do, and do it."""
        now = clock.boot_seconds()
        waits = [pending.until - now for pending in self._pending.values()]
        waits += [1.0] if self._responder.talks else []
        self._loop.once(max(0.0, min([seconds_max, *waits])))
        now = clock.boot_seconds()
        for number in [number for number, pending in self._pending.items() if pending.until <= now]:
            self._finish(number, errno.ETIMEDOUT)
        self._responder.sweep(now)

    # ------------------------------------------------------------------------------------------------------------- jobs

    def listen(self, descriptor: int) -> None:
        """Answer on this listener from now on."""
        self._listener = Listener(descriptor)
        self._loop.watch(descriptor, self._asked)

    def register(self, handle: int, pidfd: int) -> None:
        """Let a process connect, and what it starts, for a job. Its pid is what the kernel says, as seen from here."""
        pid = system.pid_behind(pidfd)
        self._by_handle[handle] = self._jobs[pid] = Job(handle, pid, pidfd)

    def drop(self, handle: int) -> Job | None:
        """Let nothing connect for a job any more, also what is on its way; return what it did."""
        job = self._by_handle.pop(handle, None)
        if job is None:
            return None
        if self._jobs.get(job.pid) is job:
            del self._jobs[job.pid]
        for number in [number for number, pending in self._pending.items() if pending.job is job]:
            self._finish(number, errno.EACCES)
        os.close(job.pidfd)
        return job

    def _who(self, thread: int) -> tuple[Job, int]:
        """Return the job and the process of a thread: registered itself, or below one that is. Raises OSError."""
        job = self._jobs.get(thread)
        process = thread if job is not None else notify.process_of(thread)
        at = process
        for _ in range(ANCESTORS_MAX):
            job = self._jobs.get(at)
            if job is not None and job.lives:
                return job, process
            at = system.parent_of(at)
            if at <= 1:
                break
        raise RefusedError

    # ------------------------------------------------------------------------------------------------------------ calls

    def _asked(self, events: int) -> None:
        if self._listener is None:
            return
        if not events & select.EPOLLIN:  # no process is left under the filter
            self._loop.unwatch(self._listener.fileno())
            self._listener.close()
            self._listener = None
            return
        asked = self._listener.receive()
        if asked is not None:
            self._answer(asked, self._listener)

    def _answer(self, asked: Asked, listener: Listener) -> None:
        try:
            job, process = self._who(asked.thread)
            if asked.call == self._number("socket"):
                _make(asked, listener)
            elif asked.call == self._number("connect"):
                self._connect(asked, job, process, listener)
            else:
                raise RefusedError
        except GoneError:
            return
        except OSError as error:
            listener.answer(asked, error.errno if error.errno in _NATIVE else errno.EACCES)
        except Exception:  # noqa: BLE001 - what is not understood is refused, and the next one is served
            listener.answer(asked, errno.EACCES)

    def _number(self, name: str) -> int | None:
        return None if self._arch is None else syscalls.number(name, self._arch)

    def _connect(self, asked: Asked, job: Job, process: int, listener: Listener) -> None:
        """Begin a connect; it is answered here, or by `_finish`. Raises OSError for what is refused."""
        descriptor, pointer, size = (
            asked.arguments[0] & 0xFFFF_FFFF,
            asked.arguments[1],
            asked.arguments[2] & 0xFFFF_FFFF,
        )
        raw = notify.read_address(asked.thread, pointer, size)
        sock = _socket_of(process, descriptor)
        try:
            listener.confirm(asked)
            if (sock.type, sock.proto) != (socket.SOCK_STREAM, socket.IPPROTO_TCP):
                raise RefusedError
            wish = self._wish(raw, sock.family)
            self._admit(job, wish)
            blocking = not fcntl.fcntl(sock, fcntl.F_GETFL) & os.O_NONBLOCK
        except BaseException:
            sock.close()
            raise
        job.pending += 1
        pending = Pending(asked, job, sock, wish, clock.boot_seconds() + CONNECT_SECONDS_MAX, blocking)
        self._pending[sock.fileno()] = pending
        self._go_on(pending)

    def _wish(self, raw: bytes, family: int) -> Wish:
        """Return where a socket address points, by name if it is a virtual one. Raises RefusedError."""
        if len(raw) < SHORTEST_BYTES or int.from_bytes(raw[:2], "little") != family:
            raise RefusedError
        port = int.from_bytes(raw[2:4], "big")
        if family == socket.AF_INET:
            address: Address = ipaddress.IPv4Address(raw[4:8])
        elif family == socket.AF_INET6 and len(raw) >= notify.ADDRESS_BYTES_MAX:
            address = ipaddress.IPv6Address(raw[8:24])
        else:
            raise RefusedError
        return Wish(family, self._names.name(address) or str(address), port)

    def _admit(self, job: Job, wish: Wish) -> None:
        """Raise RefusedError unless the list has it and the job's budget too; then it is counted."""
        if (wish.host, wish.port) == (SERVER, SERVER_PORT):
            return
        name = target(wish.host, wish.port)
        if not any(self._rules(wish)):
            job.refuse(f"connect {name} is not on the allow-list", f'add "{name}" to egress')
            raise RefusedError
        if job.connects >= self._terms.connects_max:
            job.refuse(f"more than {self._terms.connects_max} connects", "raise egress_connects_per_job")
            raise RefusedError
        if job.pending >= PENDING_MAX:
            raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))
        job.connects += 1

    def _rules(self, wish: Wish) -> Iterator[Rule]:
        return (rule for rule in self._terms.rules if rule.port == wish.port and rule.is_for(wish.host))

    # ---------------------------------------------------------------------------------------------------------- connect

    def _go_on(self, pending: Pending) -> None:
        """Take a pending connect one step further: find its address, connect, wait for the peer or answer."""
        number = pending.sock.fileno()
        try:
            address = self._address(pending)
        except OSError as error:
            self._finish(number, error.errno or errno.EACCES)
            return
        if address is None:
            return
        pending.address = address
        pending.sock.setblocking(False)
        code = pending.sock.connect_ex(address)
        if pending.wish.host == SERVER:
            self._responder.expect(pending.sock, pending.job.handle)
        if pending.blocking and code in (errno.EINPROGRESS, errno.EALREADY):
            self._loop.watch(number, lambda _: self._finish(number), select.EPOLLOUT)
        else:
            self._finish(number, code)

    def _address(self, pending: Pending) -> tuple[str, int] | None:
        """Return what to connect to; None while the name is looked up. Looked at anew at each use. Raises OSError."""
        wish = pending.wish
        if wish.host == SERVER:
            return self._responder.address
        literal = address_of(wish.host)
        known = (literal,) if literal is not None else self._resolver.addresses(wish.host)
        if known is None:
            return None
        if not known:
            pending.job.refuse(f"{wish.host} cannot be looked up from here", "mend the name, or the host's DNS")
            raise OSError(errno.EHOSTUNREACH, os.strerror(errno.EHOSTUNREACH))
        return self._allowed(pending.job, wish, known), wish.port

    def _allowed(self, job: Job, wish: Wish, known: tuple[Address, ...]) -> str:
        """Return the first address that a rule opens, as the socket's family writes it. Raises OSError."""
        fitting = [address for address in known if wish.family == socket.AF_INET6 or address.version == 4]  # noqa: PLR2004
        if not fitting:
            raise OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))  # clients go on with its IPv6 address
        for address in fitting:
            if any(rule.takes(address) for rule in self._rules(wish)):
                mapped = address.version == 4 and wish.family == socket.AF_INET6  # noqa: PLR2004
                return f"::ffff:{address}" if mapped else str(address)
        name = target(wish.host, wish.port)
        kind = kind_of(fitting[0])
        job.refuse(f"connect {name} means an address that is {kind}", f'write "{name} {kind}", if that is meant')
        raise RefusedError

    def _finish(self, number: int, code: int | None = None) -> None:
        """Answer a pending connect: with what the socket says, or with this error."""
        pending = self._pending.pop(number)
        pending.job.pending -= 1
        self._loop.unwatch(number)
        with pending.sock as sock:
            if code is None and pending.address is not None:
                code = sock.connect_ex(pending.address)  # not SO_ERROR: this makes the socket a connected one
            elif code in (errno.ETIMEDOUT, errno.EACCES) and pending.blocking and pending.address is not None:
                _libc.connect(sock.fileno(), bytes(16), 16)  # AF_UNSPEC: gives the handshake up
            if pending.blocking:
                sock.setblocking(True)
        if self._listener is not None:
            self._listener.answer(pending.asked, code or 0)

    # -------------------------------------------------------------------------------------------------------------- DNS

    def _resolved(self, events: int) -> None:
        del events
        names = self._resolver.take()
        for pending in tuple(self._pending.values()):
            if pending.address is None and pending.wish.host in names:
                self._go_on(pending)

    def _refuse_name(self, handle: int, name: str) -> None:
        job = self._by_handle.get(handle)
        if job is not None and name != self._own_name:  # clients ask for that one to introduce themselves
            job.refuse(f"the name {name} is not on the allow-list", f'add "{name}:PORT" to egress')


def _make(asked: Asked, listener: Listener) -> None:
    """Make a socket in our own network and put it into the process that asked."""
    family, kind = asked.arguments[0], asked.arguments[1]
    with socket.socket(family, socket.SOCK_STREAM) as made:
        made.setblocking(not kind & os.O_NONBLOCK)
        listener.give(asked, made.fileno(), cloexec=bool(kind & os.O_CLOEXEC))


def _socket_of(process: int, descriptor: int) -> socket.socket:
    pidfd = os.pidfd_open(process)
    try:
        return notify.fetch_socket(pidfd, descriptor)
    finally:
        os.close(pidfd)
