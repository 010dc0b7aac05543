"""The demo's outside world: hosts that are patched, people's groups, and a witness of what really happened.

Handlers act here and the demo looks here; nothing in this module knows the ledger, so that what the ledger claims is
checked against something that the ledger cannot change. A host is a system that checks the fence.
Trust: the demo's own handlers; the directory is private to the user who runs the demo.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

VARIABLE = "DEMO_WORLD"
"""Environment variable that tells a handler where the world is. It is on the pool's `env` list."""


class StaleFence(Exception):  # noqa: N818 - named by what happened, like benteng's own
    """A host was written to with a fence lower than the last one it saw."""


class Effect(msgspec.Struct, frozen=True):
    """One line of the witness.

    job     the type's name;  key: which of its jobs;  what: begin, end, or the word for the effect
    at      CLOCK_MONOTONIC in nanoseconds, one clock for all processes of the machine
    pid, parent   of the process that acted;  detail: what the handler found
    """

    job: str
    key: str
    what: str
    fence: int
    attempt: int
    at: int
    pid: int
    parent: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class World:
    """A directory with hosts, groups, gates and the witness file."""

    root: Path

    @classmethod
    def of_environment(cls) -> World:
        """Return the world that this process was told of."""
        return cls(Path(os.environ[VARIABLE]))

    def make(self) -> None:
        """Create the directories."""
        for name in ("hosts", "groups", "gates"):
            (self.root / name).mkdir(parents=True, mode=0o700)

    # --- the witness --------------------------------------------------------------------------------------------------

    def note(self, job: str, key: str, what: str, *, fence: int, attempt: int, detail: str = "") -> None:
        """Append one effect, durably: it is there even when the process dies at the next instruction."""
        effect = Effect(job, key, what, fence, attempt, time.monotonic_ns(), os.getpid(), os.getppid(), detail)
        append_durably(self.root / "effects.jsonl", msgspec.json.encode(effect) + b"\n")

    def effects(self, job: str = "", key: str = "", what: str = "") -> list[Effect]:
        """Return the effects in the order of the file; empty arguments do not filter."""
        try:
            lines = (self.root / "effects.jsonl").read_bytes().splitlines()
        except FileNotFoundError:
            return []
        seen = [msgspec.json.decode(line, type=Effect) for line in lines]
        return [e for e in seen if job in ("", e.job) and key in ("", e.key) and what in ("", e.what)]

    # --- hosts and groups ---------------------------------------------------------------------------------------------

    def host(self, name: str) -> Path:
        """Return the file that stands for what runs on a host."""
        return self.root / "hosts" / name

    def write_host(self, name: str, content: bytes, fence: int) -> None:
        """Replace what runs on a host, if no higher fence was there before. Raises StaleFence."""
        with (self.root / "hosts" / f"{name}.fence").open("a+") as guard:
            fcntl.flock(guard, fcntl.LOCK_EX)
            guard.seek(0)
            last = int(guard.read() or 0)
            if fence < last:
                msg = f"host {name} has seen fence {last}, this is {fence}"
                raise StaleFence(msg)
            guard.truncate(0)
            guard.write(str(fence))
            guard.flush()
            self.host(name).write_bytes(content)

    def group(self, name: str) -> Path:
        """Return the file that lists a group's members; the group exists when the file does."""
        return self.root / "groups" / name

    # --- gates --------------------------------------------------------------------------------------------------------

    def close_gate(self, name: str) -> None:
        """Make a gate at which handlers of that name wait until `let_through`."""
        os.mkfifo(self._gate(name), 0o600)

    def pass_gate(self, name: str) -> None:
        """Wait at the gate, if there is one. Called by handlers."""
        try:
            waiting = os.open(self._gate(name), os.O_RDONLY | os.O_CLOEXEC)  # blocks until the other end is opened
        except FileNotFoundError:
            return
        os.close(waiting)

    def let_through(self, name: str) -> bool:
        """Let whoever waits at the gate go on; False when nobody waits there yet."""
        try:
            os.close(os.open(self._gate(name), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        except OSError as error:
            if error.errno == errno.ENXIO:
                return False
            raise
        return True

    def remove_gate(self, name: str) -> None:
        """Let everybody pass from now on."""
        self._gate(name).unlink(missing_ok=True)

    def _gate(self, name: str) -> Path:
        return self.root / "gates" / name


def append_durably(path: Path, line: bytes) -> None:
    """Append one line and wait until it is on the disk. Lines of several processes do not mix (O_APPEND)."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(handle, line)
        os.fsync(handle)
    finally:
        os.close(handle)
