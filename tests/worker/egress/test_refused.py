"""What gets past a broker: nothing. Each vector works without walls, and who sees whether it got out stands outside."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from benteng.worker.sandbox import landlock, system
from tests.support.others import environment, passable
from tests.worker.egress.servers import free_port, listener
from tests.worker.estate import container
from tests.worker.sandbox.escapes.scene import ORDINARY_UID, OWN_UID, PATIENCE, SITE, interpreter

pytestmark = [
    pytest.mark.skipif(landlock.abi() < landlock.ABI_NET, reason="this kernel can have no egress broker"),
    pytest.mark.skipif(os.getuid() != 0, reason="only root can play both kinds of worker"),
    pytest.mark.skipif(interpreter() is None, reason="no Python of this version that other users can run"),
]
DRIVER = Path(__file__).parent / "driver.py"
KINDS = {"own_uid": (0, OWN_UID), "ordinary": (ORDINARY_UID, ORDINARY_UID), "there": (0, ORDINARY_UID)}
"""Of each kind of worker: who it is, and whose its cells. `there`: a warden makes the broker, in a container."""

HOSTS = "127.0.0.1 localhost listed.test rebound.test\n"
BUDGET = 8
VECTORS = (
    "literal",
    "other_port",
    "loopback_v6",
    "mapped",
    "rebound",
    "fastopen_sendto",
    "fastopen_sendmsg",
    "datagram",
    "unix",
    "unix_datagram_pair",
    "dissolve",
    "listen",
    "source_route",
    "rewritten",
    "swapped",
    "hijack",
)


class Outside:
    """Listeners, and whom they saw."""

    def __init__(self, python):
        self.python = python
        self.root = passable("refused")
        (self.root / "hidden").mkdir()
        (self.root / "hosts").write_text(HOSTS)
        self.listed, self.other, self.other6 = listener(), listener(), listener(host="::1")
        self.udp = listener(socket.SOCK_DGRAM)
        self.unix, self.datagram = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        for name, sock in (("unix", self.unix), ("datagram", self.datagram)):
            sock.bind(str(self.root / name))
            (self.root / name).chmod(0o777)
        self.unix.listen()
        self.free = free_port()

    def close(self):
        for sock in (self.listed, self.other, self.other6, self.udp, self.unix, self.datagram):
            sock.close()
        shutil.rmtree(self.root)

    def run(self, vector, kind, *, shut=True, tier="medium", layer="job", registered=True):
        """Run a vector; return what it said, and whom the listeners saw."""
        uid, cell = KINDS[kind]
        scratch = self.root / "scratch"
        scratch.mkdir(mode=0o700)
        os.chown(scratch, cell, cell)
        scene = {
            "vector": vector,
            "uid": cell,
            "shut": shut,
            "tier": tier,
            "layer": layer,
            "registered": registered,
            "door": "there" if kind == "there" else "here",
            "budget": BUDGET if vector == "over_budget" else 1_000,
            "scratch": str(scratch),
            "free": self.free,
            **{name: getattr(self, name).getsockname()[1] for name in ("listed", "other", "other6", "udp")},
            **{name: str(self.root / name) for name in ("unix", "datagram")},
        }
        boxed = kind == "there"
        process = subprocess.Popen(
            [
                *self._container(cell, boxed=boxed),
                self.python,
                "-I",
                "-B",
                str(DRIVER),
                *map(json.dumps, (SITE, scene)),
            ],
            bufsize=0,  # else a second line waits in the buffer, where select does not see it
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            user=uid,
            group=uid,
            extra_groups=[],
            cwd="/",
        )
        try:
            return self._watch(process, vector)
        finally:
            for pid in system.children_of(process.pid) if boxed else ():
                os.kill(pid, signal.SIGKILL)
            process.kill()
            process.communicate()
            shutil.rmtree(scratch)

    def _container(self, uid, *, boxed):
        if not boxed:
            return ()
        return container(uid, group=uid, hidden=self.root / "hidden", network=True, hosts=self.root / "hosts")

    def _watch(self, process, vector):
        said = ""
        while not said.startswith("ended"):
            assert select.select([process.stdout], [], [], PATIENCE * 3)[0], f"{vector} is silent"
            line = process.stdout.readline().decode()
            assert line, f"{vector} ended without a word"
            said = line if line.startswith("ended") else said
        return said, self.reached(), self.count(self.listed)

    def reached(self):
        """Return who came to what is not listed: where, from which address, and what was said."""
        seen = [f"{name}: {who}" for name in ("other", "other6", "unix") for who in self.came(getattr(self, name))]
        for name in ("udp", "datagram"):
            while select.select([getattr(self, name)], [], [], 0)[0]:
                seen.append(f"{name}: {getattr(self, name).recvfrom(100)}")
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.free), 1).close()
            seen.append("somebody listens")
        return seen

    def count(self, sock):
        """Take whoever has come, and count them."""
        return len(self.came(sock))

    @staticmethod
    def came(sock):
        """Take whoever has come; return from where, and what they said so far."""
        found = []
        while select.select([sock], [], [], 0)[0]:
            taken, address = sock.accept()
            with taken, contextlib.suppress(ConnectionError):
                said = taken.recv(100, socket.MSG_DONTWAIT) if select.select([taken], [], [], 0)[0] else b""
                address = f"{address} {said}"
            found.append(address)
        return found


@pytest.fixture(scope="module")
def python(ground):
    """An interpreter that other users can run, with this package for what it starts."""
    return environment(ground / "refused")


@pytest.fixture
def outside(python):
    """What lies outside."""
    made = Outside(python)
    yield made
    made.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tier", ["low", "medium", "high"])
def test_what_is_listed_is_reached(outside, kind, tier):
    """The rig is one in which the broker works, else what follows proves nothing."""
    said, reached, listed = outside.run("listed", kind, tier=tier)

    assert ("ended did\n", [], 1) == (said, reached, listed)


@pytest.mark.parametrize("vector", VECTORS)
def test_each_vector_works_without_walls(outside, vector):
    """By the same code, as the same user, seen by the same listeners; of an option it says itself that it was set."""
    said, reached, _ = outside.run(vector, "ordinary", shut=False)

    assert "ended did\n" == said
    assert reached or vector == "source_route"


@pytest.mark.parametrize("vector", VECTORS)
@pytest.mark.parametrize("tier", ["low", "medium"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_vector_gets_past_the_broker(outside, kind, tier, vector):
    """From a job, of a pool with its own user and of an ordinary user's."""
    said, reached, _ = outside.run(vector, kind, tier=tier)

    assert not reached
    assert vector in ("rewritten", "swapped") or "ended did\n" != said


@pytest.mark.parametrize("tier", ["low", "medium"])
def test_an_import_cannot_answer_for_itself(outside, tier):
    """In a zygote, which may add filters, a listener of one's own meets the second wall when the broker is dead."""
    _, reached, _ = outside.run("hijack", "own_uid", tier=tier, layer="pool")

    assert not reached


@pytest.mark.parametrize("kind", KINDS)
def test_who_is_not_registered_is_refused(outside, kind):
    """An import, a cell between jobs, somebody else's process: not even what is listed."""
    said, _, listed = outside.run("listed", kind, registered=False)

    assert "PermissionError" in said
    assert 0 == listed


def test_the_budget_is_the_brokers(outside):
    """A job reaches what is listed so often and no more."""
    said, _, listed = outside.run("over_budget", "own_uid")

    assert "PermissionError" in said
    assert BUDGET == listed
