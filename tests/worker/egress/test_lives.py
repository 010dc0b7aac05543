"""What becomes of connections, jobs and processes when something ends: seen by the listener, by pids, by /proc."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from benteng.worker import framing, wire
from benteng.worker.framing import Inbox
from benteng.worker.program import program
from benteng.worker.sandbox import landlock
from benteng.worker.wire import Line
from tests.worker.bed import field, wait_gone
from tests.worker.egress.conftest import POOLS

pytestmark = pytest.mark.skipif(landlock.abi() < landlock.ABI_NET, reason="this kernel can have no egress broker")


def test_a_broker_hears_what_came_with_its_terms():
    """A supervisor need not wait for it to stand: what it says meanwhile comes in one piece, and is all heard."""
    ours, theirs = socket.socketpair()
    terms = wire.Open(("listed.test:443",), 10, 65_534, 65_534)
    ours.sendall(framing.frame(terms) + framing.frame(wire.Forget(7)) + framing.frame(wire.Ping()))
    with subprocess.Popen(
        [*program("benteng.worker.egress.program:main"), str(os.getpid())], stdin=theirs.fileno(), env={}, cwd="/"
    ) as broker:
        theirs.close()
        ours.settimeout(20)
        inbox, heard = Inbox(Line.BROKER_READY), []
        while wire.Pong() not in heard:
            assert inbox.fill(ours), heard
            heard += [message for message, _ in inbox.messages()]
        ours.close()

    assert [wire.Used(7), wire.Pong()] == heard
    assert 0 == broker.returncode


@pytest.mark.parametrize("pool", POOLS)
def test_a_cancelled_job_loses_its_connection(bed, town, start, pool):
    """Also one that is deaf to what asks it to end: the listener sees that nobody is there any more."""
    start(pool)
    while town["quiet"].came.acquire(blocking=False) or town["quiet"].left.acquire(blocking=False):
        continue  # what other tests left
    job = bed.enqueue(f"{pool}@1", name=f"cancel-{pool}", host="web-1", what="hold")
    assert town["quiet"].came.acquire(timeout=20)

    bed.producer.cancel([job], "not wanted")

    assert town["quiet"].left.acquire(timeout=20)
    assert "cancelled" == bed.ended(job).state


def test_the_audit_says_what_an_attempt_did(bed, town, start):
    """The record of its end begins with the broker's counts, also of one that was cancelled and had to be killed."""
    start("medium")
    while town["quiet"].came.acquire(blocking=False):
        continue  # what other tests left
    done, refused, held = (
        bed.enqueue("medium@1", name=f"told-{what}", host="web-1", what=what) for what in ("urllib", "address", "hold")
    )
    assert town["quiet"].came.acquire(timeout=20)
    bed.producer.cancel([held], "not wanted")

    states = [bed.ended(job).state for job in (done, refused, held)]

    records = [json.loads(line) for line in bed.audit().splitlines()]
    told = {(each["job_id"], each["event"]): each["detail"] for each in records}
    assert ["completed", "quarantined", "cancelled"] == states
    assert re.fullmatch(r"egress connects=[12] refused=0", told[done, "completed"])
    assert told[refused, "quarantined"].startswith("egress connects=0 refused=1; PermissionError")
    assert re.fullmatch(r"egress connects=[12] refused=0", told[held, "cancelled"])


@pytest.mark.parametrize("pool", POOLS)
def test_a_killed_supervisor_takes_connections_along(bed, town, door, start, pool):
    """Nobody is left to say that they may last: the listener sees their end, and the broker ends too."""
    worker = start(pool)
    while town["quiet"].came.acquire(blocking=False) or town["quiet"].left.acquire(blocking=False):
        continue  # what other tests left
    bed.enqueue(f"{pool}@1", name=f"killed-{pool}", host="web-1", what="hold")
    assert town["quiet"].came.acquire(timeout=20)
    broker = door.broker(worker)

    worker.kill(signal.SIGKILL)

    assert town["quiet"].left.acquire(timeout=20)
    assert wait_gone(broker)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "wedged"])
def test_a_pool_does_not_outlive_its_broker(bed, door, start, how):
    """Zygote and cells die with it, both come back, and the job that was interrupted is done again and nothing lost."""
    worker = start("medium")
    job = bed.enqueue("medium@1", name=f"lives-{how}", host="web-1", what="interrupted")
    cell = door.outside(int(field(bed.effect("begun"), "pid")))
    zygote, broker = door.outside(int(worker.all("ready")[-1]["zygote"])), door.broker(worker)

    os.kill(broker, how)

    assert worker.wait("broker_lost")
    assert all(wait_gone(pid) for pid in (cell, zygote, broker))
    bed.go()
    assert "completed" == bed.ended(job).state, bed.show(job).error
    assert 2 == len(worker.all("ready"))


def test_the_broker_is_somebody_else_with_one_capability(door, start):
    """As root: not root, only the right to reach into sockets of others; as an ordinary user: nothing at all."""
    worker = start("medium")

    status = dict(
        line.split(":\t", 1)
        for line in Path(f"/proc/{door.broker(worker)}/status").read_text().splitlines()
        if ":\t" in line
    )

    wanted = sum(1 << each for each in door.held)
    assert {door.uid} == {int(word) for word in status["Uid"].split()}
    assert (wanted, wanted) == (int(status["CapPrm"], 16), int(status["CapEff"], 16))
    assert "1" == status["NoNewPrivs"]


def test_the_broker_knows_no_credential(bed, door, start):
    """Neither environment, arguments nor descriptors name the store or anything of the worker's."""
    worker = start("medium")
    pid = door.broker(worker)

    said = b"".join(Path(f"/proc/{pid}/{name}").read_bytes() for name in ("environ", "cmdline", "maps"))
    links = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]

    assert str(bed.path.parent).encode() not in said
    assert b"BENTENG" not in said
    assert all(link.startswith(("/dev/null", "socket:", "pipe:", "anon_inode:")) for link in links), links
