"""Real worker and keeper processes, and what the world does to them: stop, continue, kill.

Every process is started from the command line that a user would type, and signalled by its own id.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

EXIT_SECONDS_MAX = 10.0
COMMAND = (sys.executable, "-c", "import sys; from benteng.ops.cli import main; sys.exit(main())")


@dataclass(frozen=True, slots=True)
class Member:
    """One started process, the leader of its own family."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        """Its process id. For a worker: the supervisor's, who holds the credential."""
        return self.process.pid

    def family(self) -> set[int]:
        """Return its id and those of all its descendants, now."""
        parents = dict(_parents())
        family = {self.pid}
        while more := {pid for pid, parent in parents.items() if parent in family and pid not in family}:
            family |= more
        return family

    def stop(self) -> None:
        """Freeze this one process, not its children: SIGSTOP cannot be caught."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it run again."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the whole family at once, as a power cut does."""
        for pid in self.family():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def ask_to_end(self) -> None:
        """Ask it to drain and go. Once: a second SIGTERM means at once."""
        self.go_on()
        self.process.terminate()

    def end(self) -> int:
        """Wait for its end and return its exit code; kill the family when it takes too long."""
        try:
            return self.process.wait(EXIT_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            return self.process.returncode


@dataclass(slots=True)
class Crew:
    """The started processes. `home`: their working directory; `environ`: their environment."""

    home: Path
    logs: Path
    environ: Mapping[str, str]
    members: list[Member] = field(default_factory=list[Member])

    def start(self, name: str, arguments: Sequence[str]) -> Member:
        """Start `benteng ARGUMENTS...` under a name; what it says goes to `logs/NAME.log`."""
        log = self.logs / f"{name}.log"
        with log.open("ab") as stream:
            process = subprocess.Popen(
                [*COMMAND, *arguments],
                cwd=self.home,
                env=dict(self.environ),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
            )
        member = Member(name, process, log)
        self.members.append(member)
        return member

    def of(self, pid: int) -> Member | None:
        """Return the living member to whose family a process belongs."""
        return next((member for member in self.alive() if pid in member.family()), None)

    def alive(self) -> list[Member]:
        """Return the members that have not ended."""
        return [member for member in self.members if member.process.poll() is None]

    def end(self) -> dict[str, int]:
        """End all that are alive; return their exit codes by name."""
        ending = self.alive()
        for member in ending:
            member.ask_to_end()
        return {member.name: member.end() for member in ending}


def _parents() -> Iterator[tuple[int, int]]:
    """Yield (pid, parent) of every process that can be seen."""
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                stat = Path(entry.path, "stat").read_text()
                yield int(entry.name), int(stat.rpartition(")")[2].split()[1])
