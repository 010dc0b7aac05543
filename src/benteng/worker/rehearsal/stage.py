"""The observer of a rehearsal: start the observed cell, answer its calls, write down what it wanted, and end it.

It holds no credential of a store. Whatever the cell does, it ends with its deadline, and everything that it started.
Trust: nothing that comes from the cell; what its calls say is for people.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import select
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from benteng import clock
from benteng.errors import PolicyError
from benteng.evidence import Evidence
from benteng.job import Attempt, Grant, Job, Lease, new_job_id, sha256_hex
from benteng.outcome import Outcome, Transient
from benteng.policy import Tier, TypePolicy
from benteng.redact import clean_line, patterns
from benteng.worker import framing, wire
from benteng.worker.flights import Flight
from benteng.worker.framing import Inbox
from benteng.worker.nursery import Nest
from benteng.worker.pool import KINDS
from benteng.worker.program import program
from benteng.worker.rehearsal import sight, watch
from benteng.worker.rehearsal.sight import Kind, Sight
from benteng.worker.rehearsal.watch import Watcher
from benteng.worker.sandbox import bpf, landlock, syscalls, system
from benteng.worker.scratch import Scratch
from benteng.worker.vault import Vault
from benteng.worker.wire import Line

CELL: Final = 1
IMPORT_SECONDS_MAX: Final = 60.0
SIGHTS_MAX: Final = 10_000
HINT_BYTES_MAX: Final = 1 << 20

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Play:
    """What is rehearsed: a job type with its reviewed policy, a payload, and how its pool is set up on this host."""

    policy: TypePolicy
    payload: bytes
    nest: Nest
    environ: Mapping[str, str]
    say: Say


@dataclass(slots=True)
class Seen:
    """What became of a rehearsal, and what it wanted, each once, in order. cut: there was more than is kept.

    scratch: where the cell's own directory was
    """

    scratch: str
    outcome: Outcome = field(default_factory=lambda: Transient("the cell ended without a word"))
    sights: dict[Sight, None] = field(default_factory=dict[Sight, None])
    names: dict[str, str] = field(default_factory=dict[str, str])
    """Port -> the name that was looked up for it last."""
    cut: bool = False

    def note(self, found: Sight) -> None:
        """Keep a sight."""
        if len(self.sights) < SIGHTS_MAX:
            self.sights[found] = None
        else:
            self.cut = True


def rehearse(play: Play) -> Seen:
    """Run the type once under observation. Raises PolicyError where that cannot be, or when the app cannot be used."""
    arch = syscalls.this_arch()
    if arch is None or landlock.abi() == 0:
        raise PolicyError("W-rehearsal", "this host cannot observe a cell: it needs Landlock, and x86_64 or aarch64")
    system.adopt_orphans()
    pool = play.nest.pool
    owner = (pool.uid, pool.gid) if pool.uid is not None and pool.gid is not None and os.getuid() == 0 else None
    scratch = Scratch(None, owner)
    try:
        with contextlib.closing(_Stage(play, scratch, arch)) as stage:
            return stage.run()
    finally:
        scratch.close()


class _Stage:
    """One rehearsal: the cell's process, its line, its listener, its hints."""

    def __init__(self, play: Play, scratch: Scratch, arch: syscalls.Arch) -> None:
        self._play = play
        self._arch = arch
        self._seen = Seen(str(scratch.root))
        self._flight = _flight(play)
        self._own_uid = play.nest.pool.uid is not None and os.getuid() == 0
        self._errnos = _errnos(play.policy.tier, own_uid=self._own_uid)
        self._hints = b""
        self._inbox = Inbox(Line.CELL_BORN)
        self._until = clock.boot_seconds() + IMPORT_SECONDS_MAX
        self._pipe = -1
        self._watcher: Watcher | None = None
        self._ours, theirs = socket.socketpair()
        with theirs:
            self._process = self._start(theirs, scratch)

    def _start(self, theirs: socket.socket, scratch: Scratch) -> subprocess.Popen[bytes]:
        nest, policy = self._play.nest, self._play.policy
        home = scratch.path(CELL)
        home.mkdir(mode=0o700)
        if self._own_uid:
            os.chown(home, nest.pool.uid or -1, nest.pool.gid or -1)
        process = subprocess.Popen(
            [
                *program("benteng.worker.rehearsal.actor:main"),
                str(os.getpid()),
                json.dumps(list(map(str, nest.secrets))),
            ],
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=nest.pool.environment(self._play.environ) | {"HOME": str(home), "TMPDIR": str(home)},
            cwd="/",
            close_fds=True,
        )
        configure = msgspec.structs.replace(nest.configure(apart=self._own_uid), scratch=str(scratch.root))
        spawn = wire.Spawn(CELL, KINDS[policy.tier], 1, policy.limits)
        self._ours.sendall(framing.frame(configure) + framing.frame(spawn))
        return process

    def run(self) -> Seen:
        """Watch until the attempt ended, the cell did, or its time is over."""
        watcher = self._watcher = self._listen()
        poll = select.poll()
        for number in (watcher.fileno(), self._pipe, self._ours.fileno()):
            poll.register(number, select.POLLIN)
        while self._flight.outcome is None:
            left = self._until - clock.boot_seconds()
            ready = {number for number, _ in poll.poll(1000 * left)} if left > 0 else set[int]()
            if not ready:
                self._flight.outcome = Transient("it took longer than it may")
            self._read_hints()
            if watcher.fileno() in ready:
                self._answer(watcher)
            if self._ours.fileno() in ready and not self._hear():
                break
        self._read_hints()
        self._seen.outcome = self._flight.outcome or self._seen.outcome
        return self._seen

    def close(self) -> None:
        """Kill the cell, its group and whatever fell to this process, and give everything back."""
        if self._watcher is not None:
            self._watcher.close()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        for pid in system.children_of(os.getpid()):
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        self._ours.close()
        if self._pipe >= 0:
            os.close(self._pipe)

    # ------------------------------------------------------------------------------------------------------------ calls

    def _listen(self) -> Watcher:
        """Take the listener and the pipe for hints from the cell. Raises PolicyError when it could not begin."""
        self._ours.settimeout(IMPORT_SECONDS_MAX)
        try:
            _, descriptors, _, _ = socket.recv_fds(self._ours, 1, 2, socket.MSG_CMSG_CLOEXEC)
        except OSError:
            descriptors = []
        if len(descriptors) != 2:  # noqa: PLR2004 - the listener and the pipe
            raise PolicyError("W-rehearsal", "the cell could not be observed", fix="benteng isolation report says more")
        listener, self._pipe = descriptors
        os.set_blocking(self._pipe, False)
        self._ours.setblocking(False)
        return Watcher(listener, self._arch)

    def _answer(self, watcher: Watcher) -> None:
        notice = watcher.receive()
        if notice is None:
            return
        try:
            found = sight.sights(notice)
        except Exception:  # noqa: BLE001 - whatever its pointers lead to: the kernel will tell the caller
            found = list[Sight]()
        if watcher.confirm(notice):
            for each in found:
                self._note(each, notice.call)
        if self._play.policy.tier is not Tier.LOW and sight.is_refused(notice):
            watcher.refuse(notice, self._errnos.get(notice.call, errno.EPERM))
        else:
            watcher.let(notice)

    def _note(self, found: Sight, call: str) -> None:
        if call in watch.QUIET:
            return
        if found.kind is Kind.CONNECT and (name := self._seen.names.get(found.what.rpartition(":")[2])):
            found = dataclasses.replace(found, named=name)
        self._seen.note(found)

    # -------------------------------------------------------------------------------------------------------- the cell

    def _hear(self) -> bool:
        """Take what the cell says; False when it is gone or broke a rule."""
        try:
            if not self._inbox.fill(self._ours):
                return False
            for message, tail in self._inbox.messages():
                self._take(message, tail)
        except BlockingIOError:
            return True
        except (OSError, wire.ProtocolError):
            return False
        return True

    def _take(self, message: Any, tail: bytes) -> None:
        match message:
            case wire.Hello():
                self._inbox.line = Line.CELL_READY
                self._give()
            case wire.Started():
                self._flight.started = True
            case wire.Ended():
                for ending, part in framing.ends(message, tail):
                    self._flight.end(ending, part)
            case wire.Log(_, text):
                self._play.say(clean_line(self._flight.told(text)))
            case _:
                pass

    def _give(self) -> None:
        limits = self._play.policy.limits
        self._until = clock.boot_seconds() + limits.run_seconds_max + limits.grace_seconds
        self._ours.setblocking(True)
        for data in framing.grant_frames([self._flight.work()]):
            self._ours.sendall(data)
        self._ours.setblocking(False)

    def _read_hints(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self._pipe, 1 << 16):
                self._hints += piece
                if len(self._hints) > HINT_BYTES_MAX:
                    self._hints = b""
        *lines, self._hints = self._hints.split(b"\n")
        for line in lines:
            with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
                self._hint(msgspec.json.decode(line, type=Hint))

    def _hint(self, hint: Hint) -> None:
        if hint.refused:
            raise PolicyError(clean_line(hint.rule, bytes_max=64), clean_line(patterns(hint.refused)))
        if hint.variable:
            self._seen.note(Sight(Kind.VARIABLE, hint.variable))
        if hint.host and len(self._seen.names) < SIGHTS_MAX:
            self._seen.names[hint.port] = hint.host


class Hint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the cell says of itself: a variable asked for, a name looked up, why the app cannot be used."""

    variable: str = ""
    host: str = ""
    port: str = ""
    rule: str = ""
    refused: str = ""


def _flight(play: Play) -> Flight:
    """Return the attempt as a supervisor would hold it, with its secrets. Raises PolicyError when one is missing."""
    policy = play.policy
    job = Job(
        id=new_job_id(clock.system_clock(), os.urandom(10)),
        type=policy.name,
        tier=policy.tier,
        payload=play.payload,
        payload_sha256=sha256_hex(play.payload),
        operation_key="",
        origin="",
    )
    lease = Lease(job.id, 0, "", policy.limits.lease_seconds)
    flight = Flight(CELL, Grant(job, Attempt(1), lease, Evidence(now=0)), policy, lease_until=float("inf"))
    vault = Vault(play.nest.pool.secrets, play.environ, _quiet)
    vault.check([policy])
    vault.equip(flight, 0.0)
    return flight


def _quiet(event: str, /, **fields: object) -> None:
    """Tell nobody: a secret that is missing was raised before."""


def _errnos(tier: Tier, *, own_uid: bool) -> dict[str, int]:
    """Return what a cell of the tier is told by each call that it is refused."""
    return {rule.call: bpf.errno_of(rule.refusal) for rule in reversed(watch.rules_of(tier, own_uid=own_uid))}
