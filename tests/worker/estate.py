"""A place where several users work: a ledger, an application and an interpreter that others may run. Needs root."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path

from benteng.worker.sandbox import system
from tests.support.others import environment, passable
from tests.worker.bed import APPS, HERE, PATIENCE, Lines, gone

SUPERVISOR, LOW, HIGH, BROKER = 61_301, 61_302, 61_303, 61_304
USERS = {"low": LOW, "high": HIGH}


class Estate:
    """Directories, a steward (producer and operator) with the supervisors' uid, and the commands that were started."""

    def __init__(self, settings: str = "") -> None:
        if os.getuid() != 0:
            raise AssertionError("run this as root: it makes processes of several users")
        self.root = passable("estate")
        self.python = environment(self.root / "python")
        for name, owner in (("store", SUPERVISOR), ("project", SUPERVISOR), ("keys", SUPERVISOR), ("run", HIGH)):
            (self.root / name).mkdir(mode=0o755 if name in {"project", "run"} else 0o700)
            os.chown(self.root / name, owner, owner)
        for name in ("effects", "go"):
            os.mkfifo(self.root / name)
            (self.root / name).chmod(0o666)
        self._pipe = os.open(self.root / "effects", os.O_RDWR)
        self._lines = Lines(self._pipe)
        self._go: list[int] = []
        self.effects: list[str] = []
        self.commands: list[Command] = []
        self.dsn = f"sqlite:///{self.root}/store/benteng.db"
        shutil.copy(APPS / "estate.py", self.root / "project")
        self.configure(settings)
        self._steward = self._start_steward()

    def configure(self, settings: str) -> None:
        """Write benteng.toml: both pools, and what else is given."""
        paths = f'write = ["{self.root}/effects", "{self.root}/go"]'
        own = f"supervisor_uid = {SUPERVISOR}\nsupervisor_gid = {SUPERVISOR}\n"
        pools = "".join(
            f'[pool.{name}]\nuid = {uid}\ngid = {uid}\n{own}env = ["EFFECTS"]\n{paths}\nconcurrency = 2\n'
            f"drain_seconds = 1.0\n{settings if name == 'high' else ''}\n"
            for name, uid in USERS.items()
        )
        head = f'environment = "dev"\ndsn = "{self.dsn}"\napp = "estate:app"\n'
        head += f'keys = "{self.root}/keys"\npoll_seconds = 0.05\n'
        (self.root / "project" / "benteng.toml").write_text(head + pools)

    @property
    def environ(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "EFFECTS": str(self.root / "effects")}

    def command(self, *words: str, uid: int = 0, prefix: tuple[str, ...] = (), **environ: str) -> Command:
        """Start a command of benteng as a user, in the project's directory."""
        made = Command(
            [*prefix, self.python, "-m", "benteng.ops", *words], self.root / "project", uid, self.environ | environ
        )
        self.commands.append(made)
        return made

    def enqueue(self, job_type: str, name: str, **more: str) -> str:
        payload = {"name": name} | ({} if job_type.startswith("low") else {"host": f"host-{name}"}) | more
        return self._ask({"type": job_type, "payload": payload})

    def status(self, job: str) -> dict[str, str]:
        return self._ask({"job": job})

    def ended(self, job: str) -> dict[str, str]:
        """Wait until a job is completed or in quarantine."""
        until = time.monotonic() + PATIENCE
        while (status := self.status(job))["state"] not in {"completed", "quarantined"}:
            assert time.monotonic() < until, (status, [each.said for each in self.commands])
            self._wait_a_little()
        return status

    def effect(self, prefix: str, count: int = 1) -> int:
        """Wait until that many effects begin so, and return the pid of the last."""
        until = time.monotonic() + PATIENCE
        while len(found := [line for line in self.effects if line.startswith(prefix)]) < count:
            assert time.monotonic() < until, (prefix, self.effects, [each.said for each in self.commands])
            self.effects.extend(self._lines.wait(0.1))
            self._wait_a_little()
        return int(found[count - 1].rpartition("pid=")[2])

    def go(self) -> None:
        """Let every handler go on that waits or will wait for it."""
        self._go.append(os.open(self.root / "go", os.O_RDWR))

    def halt(self) -> None:
        """Let handlers wait again."""
        while self._go:
            os.close(self._go.pop())

    def close(self) -> None:
        for each in self.commands:
            each.close()
        self._steward.stdin.close()
        self._steward.wait(10)
        self._steward.stdout.close()
        self.halt()
        os.close(self._pipe)
        shutil.rmtree(self.root)

    def _wait_a_little(self) -> None:
        self.effects.extend(self._lines.wait(0))
        streams = [each.stream for each in self.commands if each.process.poll() is None]
        select.select(streams, [], [], 0.05)
        for each in self.commands:
            each.listen(0)

    def _start_steward(self) -> subprocess.Popen[str]:
        words = [
            self.python,
            "-I",
            str(HERE / "steward.py"),
            self.dsn,
            str(self.root / "project"),
            str(self.root / "keys"),
        ]
        steward = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            user=SUPERVISOR,
            group=SUPERVISOR,
            extra_groups=[],
            cwd="/",
            env=self.environ | {"HOME": str(self.root)},
        )
        if '"up"\n' != steward.stdout.readline():
            steward.kill()
            steward.communicate()
            raise AssertionError("the steward did not come up")
        return steward

    def _ask(self, request: dict[str, object]):
        self._steward.stdin.write(json.dumps(request) + "\n")
        self._steward.stdin.flush()
        return json.loads(self._steward.stdout.readline())


class Command:
    """A running command and the lines that it said."""

    def __init__(self, words: list[str], cwd: Path, uid: int, environ: dict[str, str]) -> None:
        who = {"user": uid, "group": uid, "extra_groups": []} if uid else {}
        self.process = subprocess.Popen(
            words,
            cwd=cwd,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            **who,
        )
        assert self.process.stderr is not None
        self.stream = self.process.stderr
        self._lines = Lines(self.stream.fileno())
        self.said: list[str] = []
        self.boxed = words[0] == "unshare"

    @property
    def pid(self) -> int:
        return self.process.pid

    def listen(self, seconds: float) -> None:
        self.said.extend(self._lines.wait(seconds))

    def wait(self, *words: str, count: int = 1) -> dict[str, str]:
        """Wait until it has said that many lines with all these words, and return the last one's fields."""
        until = time.monotonic() + PATIENCE
        while len(found := [line for line in self.said if set(words) <= set(line.split())]) < count:
            assert time.monotonic() < until, (words, self.said[-40:])
            ended = self.process.poll() is not None
            self.listen(0.1)
            assert not ended or select.select([self.stream], [], [], 0)[0], (
                words,
                self.process.poll(),
                self.said[-40:],
            )
        return dict(word.split("=", 1) for word in found[count - 1].split() if "=" in word)

    def stop(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.exit_code()

    def exit_code(self) -> int:
        until = time.monotonic() + PATIENCE
        while self.process.poll() is None and time.monotonic() < until:
            self.listen(0.05)
        self.listen(0)
        return self.process.wait(0.1)

    def close(self) -> None:
        """End it; a container by its process 1, which changed its user and so lost the signal of its parent's death."""
        if self.process.poll() is None:
            for pid in system.children_of(self.pid) if self.boxed else ():
                os.kill(pid, signal.SIGKILL)
            self.process.kill()
        self.process.wait(10)
        self.stream.close()


def container(
    uid: int, *, group: int, hidden: Path, network: bool = False, hosts: Path | None = None
) -> tuple[str, ...]:
    """Return what stands before a command that is to run in namespaces of its own (files, processes, network, IPC).

    As an engine runs a container: process 1, without capabilities and new privileges. `hidden`: a directory of the host
    that is not there inside; `network`: it has the host's; `hosts`: its /etc/hosts. /proc is as narrow as
    `ProtectProc=invisible` makes it.
    """
    become = f"setpriv --reuid {uid} --regid {uid} --groups {group} --no-new-privs --bounding-set -all --inh-caps -all"
    proc = "mount -t proc -o hidepid=invisible none /proc"
    names = "" if hosts is None else f"mount --bind {hosts} /etc/hosts && "
    script = f'{names}mount -t tmpfs -o mode=0755 none {hidden} && {proc} && exec {become} "$@"'
    own = ("--mount", "--pid", "--ipc", "--fork", "--kill-child", "--mount-proc")
    return ("unshare", *own, *(() if network else ("--net",)), "sh", "-c", script, "sh")


def inside(command: Command) -> int:
    """Return process 1 of a container, by the pid that it has outside."""
    return system.children_of(command.pid)[0]


def outside(command: Command, pid: int) -> int:
    """Return the pid outside of a process of a container."""
    return next(each for each in descendants(command.pid) if str(pid) == status_of(each)["NSpid"].split()[-1])


def status_of(pid: int) -> dict[str, str]:
    """Return /proc/PID/status."""
    lines = Path(f"/proc/{pid}/status").read_text("utf-8", "replace").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def descendants(pid: int) -> set[int]:
    """Return all living descendants of a process."""
    found: set[int] = set()
    todo = [pid]
    while todo:
        for task in Path(f"/proc/{todo.pop()}/task").glob("*/children"):
            try:
                children = [int(word) for word in task.read_text("ascii").split()]
            except OSError:
                continue
            todo += children
            found |= {each for each in children if not gone(each)}
    return found
