"""What lies outside the cells: files, listeners, a victim; and the test's look at what became of them."""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path

from benteng.worker.sandbox import system
from tests.support import others
from tests.support.others import interpreter, passable

HERE = Path(__file__).parent
SITE = [str(Path(__file__).parents[4] / "src"), sysconfig.get_path("purelib")]
SECRET = "5e9c-known-only-outside"
PATIENCE = 10.0
OWN_UID, ORDINARY_UID = 61_234, others.ORDINARY_UID


class Attempt:
    """One vector in one cell: how it ended, and the cell, which is still there to be looked at."""

    def __init__(self, zygote, pid, line, scratch):
        self.zygote, self.pid, self.line, self.scratch = zygote, pid, line, scratch
        self.before = status(pid)
        self.sockets_before = self.descriptors().count("socket")
        line.send(b"g")
        self.said = self._hear()

    def _hear(self):
        if not select.select([self.line], [], [], PATIENCE)[0]:
            return "silent"
        try:
            return self.line.recv(4096).decode() or "gone"
        except ConnectionError:
            return "gone"

    def descriptors(self):
        """Return what its open descriptors are, each as the word before the colon or bracket."""
        found = []
        for link in Path(f"/proc/{self.pid}/fd").glob("*"):
            try:
                found.append(str(link.readlink()).replace("anon_inode:", "").strip("[]").partition(":")[0])
            except OSError:
                continue
        return found

    def dies(self):
        """Whether it is dead, or dies now: its line closes a moment before it does."""
        try:
            pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        try:
            return bool(select.select([pidfd], [], [], 1.0)[0])
        finally:
            os.close(pidfd)

    def loot(self):
        try:
            return (self.scratch / "loot").read_bytes()
        except OSError:
            return b""

    def close(self):
        """End it, and everything that it started."""
        self.line.close()
        for pid in descendants(self.zygote):
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                continue


class Scene:
    """The outside of one kind of worker: its uid, the cells' uid."""

    def __init__(self, uid, cell_uid):
        self.uid, self.cell_uid = uid, cell_uid
        self.root = passable("escapes")
        self.name = f"benteng-{os.getpid()}-{uid}-{cell_uid}"
        self.serial = 0
        self.drivers = {}
        self.listeners = {}
        self.shm = Path(f"/dev/shm/benteng-escape-{os.getpid()}")
        self.key = 0x62000000 | os.getpid()
        self.python = interpreter() or sys.executable
        self._make()
        self._listen()
        self._start_victim()

    def _make(self):
        for name in ("outside", "scratch", "app", "mount", "store"):
            (self.root / name).mkdir()
        (self.root / "outside").chmod(0o777)
        (self.root / "scratch").chmod(0o711)
        self.secret = self._file("secret", SECRET, 0o666)
        self.app_file = self._file("app/module.py", "pass\n", 0o644)
        shutil.copy("/bin/sleep", self.root / "app" / "helper")
        self.file = self.root / "outside" / "file"
        self.marker = self.root / "outside" / "signalled"
        os.chown(self.root, self.uid, self.uid)
        for name in ("app", "mount", "store"):
            os.chown(self.root / name, self.uid, self.uid)
        (self.root / "store").chmod(0o700)
        self._file("store/ledger", SECRET, 0o600)
        os.chown(self.root / "scratch", self.cell_uid, self.cell_uid)
        self.reset()

    def _file(self, name, content, mode):
        path = self.root / name
        path.write_text(content)
        path.chmod(mode)
        os.chown(path, self.uid, self.uid)
        return path

    def reset(self):
        """Put back what a vector may have changed."""
        outside = self.root / "outside"
        for entry in outside.iterdir():
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        if os.path.ismount(self.root / "mount"):
            subprocess.run(["umount", str(self.root / "mount")], check=True)
        self.shm.unlink(missing_ok=True)
        self._file("outside/file", "untouched", 0o666)
        os.utime(self._file("app/module.py", "pass\n", 0o644), (1_000_000, 1_000_000))
        os.utime(self.file, (1_000_000, 1_000_000))
        self._forget_objects()
        self._drain()

    def _forget_objects(self):
        """Remove what a vector left in the kernel."""
        libc = ctypes.CDLL(None)
        for get, control in ((libc.shmget, libc.shmctl), (libc.semget, libc.semctl), (libc.msgget, libc.msgctl)):
            number = get(self.key, 0, 0)
            if number >= 0:
                control(*((number, 0, 0) if control is not libc.semctl else (number, 0, 0, 0)))
        libc.mq_unlink(f"/benteng-{os.getpid()}".encode())
        libc.syscall(250, 3, self._key_number())  # KEYCTL_REVOKE

    def _key_number(self):
        lines = [line for line in Path("/proc/keys").read_text().splitlines() if self.name in line]
        return int(lines[0].split()[0], 16) if lines else 0

    def _listen(self):
        make = socket.socket
        tcp = socket.create_server(("127.0.0.1", 0))
        tcp6 = socket.create_server(("::1", 0), family=socket.AF_INET6)
        udp = make(socket.AF_INET, socket.SOCK_DGRAM)
        udp.bind(("127.0.0.1", 0))
        unix, datagram, abstract = make(socket.AF_UNIX), make(socket.AF_UNIX, socket.SOCK_DGRAM), make(socket.AF_UNIX)
        unix.bind(str(self.root / "unix"))
        datagram.bind(str(self.root / "datagram"))
        abstract.bind(f"\0{self.name}")
        for name in ("unix", "datagram"):
            (self.root / name).chmod(0o777)
        for sock in (unix, abstract):
            sock.listen()
        self.listeners = {
            "tcp": tcp,
            "tcp6": tcp6,
            "udp": udp,
            "unix": unix,
            "datagram": datagram,
            "abstract": abstract,
        }
        self.inherited, self.inherited_end = socket.socketpair()
        self.elsewhere = socket.create_server(("127.0.0.1", 0))
        self.elsewhere6 = socket.create_server(("::1", 0), family=socket.AF_INET6)

    def _drain(self):
        while self.reached(0.0):
            continue

    def reached(self, seconds=0.05):
        """Whether something arrived at a listener."""
        ready = select.select(
            [*self.listeners.values(), self.inherited_end] if self.listeners else [], [], [], seconds
        )[0]
        for sock in ready:
            if sock is self.inherited_end or sock in (self.listeners["udp"], self.listeners["datagram"]):
                sock.recv(100)
            else:
                sock.accept()[0].close()
        return bool(ready)

    def _start_victim(self):
        command = [self.python, "-I", str(HERE / "victim.py"), SECRET, str(self.marker)]
        self.victim = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"SECRET": SECRET},
            cwd=self.root,
            text=True,
            user=self.uid,
            group=self.uid,
            extra_groups=[],
        )
        self.known = json.loads(self.victim.stdout.readline())
        self.victims_share = self.share(self.victim.pid)

    @staticmethod
    def share(pid):
        """Return what a process has of the machine: it inherits ours, whatever that is."""
        files = Path(f"/proc/{pid}/limits").read_text().split("Max open files")[1].splitlines()[0].split()
        return os.getpriority(os.PRIO_PROCESS, pid), os.sched_getaffinity(pid), os.sched_getscheduler(pid), files

    def new_victim(self):
        """Put another in the place of one that something was done to."""
        self._end_victim()
        self._start_victim()

    def _end_victim(self):
        self.victim.kill()
        self.victim.wait(PATIENCE)
        self.victim.stdin.close()
        self.victim.stdout.close()

    def victims_spare(self):
        """Ask the victim what its spare memory holds."""
        self.victim.stdin.write("?\n")
        self.victim.stdin.flush()
        return self.victim.stdout.readline().strip("\n")

    def attempt(self, shut, vector, programs=()):
        """Run a vector in a cell of its own, of a pool with this list of programs."""
        key = (shut, *programs)
        control = self._driver(*key)
        self.serial += 1
        scratch = self.root / "scratch" / f"cell-{self.serial}"
        scratch.mkdir(mode=0o700)
        owner = self.uid if shut == "nothing" else self.cell_uid
        os.chown(scratch, owner, owner)
        ours, theirs = socket.socketpair()
        passed = self._passed() if vector.startswith("passed_") else []
        self.passed = passed
        message = json.dumps(self.known | {"vector": vector, "scratch": str(scratch)}).encode()
        socket.send_fds(control, [message], [theirs.fileno(), *(sock.fileno() for sock in passed)])
        theirs.close()
        pid = int(control.recv(100))
        assert select.select([ours], [], [], PATIENCE)[0], "the cell did not start"
        assert ours.recv(100) == b"ready", f"no cell for {vector} in {shut}"
        return Attempt(self.drivers[key][0].pid, pid, ours, scratch)

    def _passed(self):
        return [
            socket.create_connection(self.elsewhere.getsockname()),
            socket.create_connection(self.elsewhere6.getsockname()[:2]),
        ]

    def _driver(self, shut, *programs):
        key = (shut, *programs)
        if key not in self.drivers:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            own = self.cell_uid != self.uid
            scene = {
                "shut": shut,
                "programs": programs,
                "uid": self.cell_uid,
                "own_uid": own,
                "secret": str(self.secret),
                "store": str(self.root / "store"),
                "secret_text": SECRET,
                "outside": str(self.root / "outside"),
                "file": str(self.file),
                "app": str(self.root / "app"),
                "app_file": str(self.app_file),
                "mount": str(self.root / "mount"),
                "shm": str(self.shm),
                "scratch_root": str(self.root / "scratch"),
                "python": self.python,
                "key": self.key,
                "queue": f"benteng-{os.getpid()}",
                "keyname": self.name,
                "unix": str(self.root / "unix"),
                "datagram": str(self.root / "datagram"),
                "abstract": self.name,
                "inherited": self.inherited.fileno(),
                **{name: self.listeners[name].getsockname()[1] for name in ("tcp", "tcp6", "udp")},
            }
            process = subprocess.Popen(
                [self.python, "-I", "-B", str(HERE / "driver.py"), json.dumps(SITE), json.dumps(scene)],
                stdin=theirs.fileno(),
                pass_fds=() if shut == "import" else (self.inherited.fileno(),),
                user=self.uid,
                group=self.uid,
                extra_groups=[],
                cwd="/",
            )
            theirs.close()
            ours.settimeout(PATIENCE)
            assert b"ready" == ours.recv(100), f"no zygote {shut}"
            self.drivers[key] = (process, ours)
        return self.drivers[key][1]

    def close(self):
        self.reset()
        for process, control in self.drivers.values():
            control.close()
            process.wait(PATIENCE)
        self._end_victim()
        for sock in (*self.listeners.values(), self.inherited, self.inherited_end, self.elsewhere, self.elsewhere6):
            sock.close()
        shutil.rmtree(self.root)


def status(pid):
    """Return /proc/PID/status as a dict; empty when the process is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def descendants(pid):
    """Return the pids of all processes below one."""
    found = []
    for child in system.children_of(pid):
        found += [child, *descendants(child)]
    return found
