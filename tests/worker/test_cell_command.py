"""`benteng cell`: supervisor and cells in two containers that share a socket, and what each does without the other."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import subprocess
from pathlib import Path

import pytest

from benteng.worker.sandbox import system
from tests.worker.bed import wait_gone
from tests.worker.estate import HIGH, LOW, SUPERVISOR, Estate, container, descendants, inside, outside, status_of


@pytest.fixture
def estate():
    """An estate whose pool `high` has its cells behind a socket."""
    made = Estate()
    made.configure(f'cell = "unix:{made.root}/run/high.sock"')
    (made.root / "empty").mkdir()
    yield made
    made.close()


def cell_side(estate, uid=HIGH, *, network=False):
    """Start the cells' container: the store is not there at all. Return when it listens."""
    prefix = container(uid, group=SUPERVISOR, hidden=estate.root / "store", network=network)
    listen = ("cell", "--listen", f"unix:{estate.root}/run/high.sock", "--supervisor", str(SUPERVISOR))
    command = estate.command(*listen, "--group", str(SUPERVISOR), prefix=prefix)
    command.wait("listening")
    return command


def supervisor_side(estate):
    """Start the supervisor's container: the application is not there but for the settings and the lock file."""
    prefix = container(SUPERVISOR, group=SUPERVISOR, hidden=estate.root / "empty")
    return estate.command("worker", "--pool", "high", prefix=prefix)


def namespaces(pid):
    """Return the namespaces of a process."""
    return {name: Path(f"/proc/{pid}/ns/{name}").readlink() for name in ("mnt", "pid", "net", "ipc")}


def test_two_containers_run_every_kind_of_cell(estate):
    """HIGH and MEDIUM through a socket, from other namespaces; layers are looked at, scratch is measured."""
    cells = cell_side(estate)
    worker = supervisor_side(estate)
    one = estate.enqueue("high.peek@1", "a")
    handler = outside(cells, estate.effect("high.peek"))
    here, there = namespaces(inside(worker)), namespaces(handler)
    status = status_of(handler)
    estate.go()

    assert "completed" == estate.ended(one)["state"]
    assert all(here[name] != there[name] for name in here)
    assert ([str(HIGH)] * 4, "2", "1") == (status["Uid"].split(), status["Seccomp"], status["NoNewPrivs"])
    assert {"completed"} == {estate.ended(estate.enqueue("serial@1", f"s{n}"))["state"] for n in range(3)}
    estate.halt()
    assert "quarantined" == estate.ended(estate.enqueue("fill@1", "f"))["state"]
    os.kill(inside(worker), signal.SIGTERM)
    assert 0 == worker.exit_code()
    cells.wait("disconnected")
    os.kill(inside(cells), signal.SIGTERM)
    assert 0 == cells.exit_code()
    assert not (estate.root / "run" / "high.sock").exists()


def test_a_killed_supervisor_takes_its_cells_along(estate):
    """The connection ends, and with it zygote and cells; the next supervisor finds a clean side."""
    cells = cell_side(estate)
    worker = supervisor_side(estate)
    job = estate.enqueue("high.peek@1", "a")
    handler = outside(cells, estate.effect("high.peek"))

    os.kill(inside(worker), signal.SIGKILL)

    assert wait_gone(handler, 10)
    cells.wait("disconnected")
    supervisor_side(estate)
    estate.effect("high.peek", count=2)
    estate.go()
    assert "completed" == estate.ended(job)["state"]


def test_a_stopped_supervisor_loses_its_cells_before_the_lease_ends(estate):
    """It cannot hang up and does not prolong: the zygote's guard ends the attempt."""
    cells = cell_side(estate)
    worker = supervisor_side(estate)
    estate.enqueue("high.peek@1", "a")
    handler = outside(cells, estate.effect("high.peek"))

    os.kill(inside(worker), signal.SIGSTOP)

    assert wait_gone(handler, 10)


def freeze(pids):
    """Stop processes."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)


def thaw(pids):
    """Let them go on in this order: the first may have ended the others before their turn comes."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def test_a_frozen_cell_side_leaves_its_job_to_the_lease(estate):
    """As an engine pauses a container: nobody answers, so nothing is settled; when it thaws, what ran is ended."""
    cells = cell_side(estate)
    worker = supervisor_side(estate)
    job = estate.enqueue("high.brief@1", "a")
    handler = outside(cells, estate.effect("high.brief"))
    frozen = [inside(cells), *descendants(inside(cells))]

    freeze(frozen)
    worker.wait("zygote_lost")
    worker.wait("fenced_off", "outcome=lost")
    held = estate.status(job)["state"]
    thaw(frozen)

    assert wait_gone(handler, 20)
    assert held != "completed"
    estate.go()
    assert "completed" == estate.ended(job)["state"]
    estate.effect("done")
    assert 1 == sum(line.startswith("done") for line in estate.effects)
    assert worker.process.poll() is None


def test_a_frozen_zygote_is_lost_and_what_its_cell_said_counts(estate):
    """It reaps nobody, so its warden ends it; the attempt had ended, and is not made again."""
    cells = cell_side(estate)
    worker = supervisor_side(estate)
    job = estate.enqueue("high.brief@1", "a")
    handler = outside(cells, estate.effect("high.brief"))
    zygote = system.parent_of(handler)

    os.kill(zygote, signal.SIGSTOP)
    estate.go()
    worker.wait("zygote_lost")

    assert wait_gone(zygote, 20)
    assert "completed" == estate.ended(job)["state"]
    assert "completed" == estate.ended(estate.enqueue("high.brief@1", "b"))["state"]
    estate.effect("done b")
    assert ["a", "b"] == [line.split()[1] for line in estate.effects if line.startswith("done")]


def test_a_killed_cell_side_leaves_its_jobs_to_the_lease(estate):
    """Nobody can say that the attempt is dead, so nothing is settled; the supervisor goes on when cells are back."""
    first = cell_side(estate)
    worker = supervisor_side(estate)
    job = estate.enqueue("high.peek@1", "a")
    estate.effect("high.peek")

    os.kill(inside(first), signal.SIGKILL)
    worker.wait("zygote_lost")
    worker.wait("fenced_off", "outcome=lost")
    cell_side(estate)

    estate.effect("high.peek", count=2)
    estate.go()
    assert "completed" == estate.ended(job)["state"]
    assert worker.process.poll() is None


def test_cells_of_another_user_get_no_work(estate):
    """The kernel says who answers; it is not the pool's user, so nothing is sent to it."""
    (estate.root / "run").chmod(0o755)
    os.chown(estate.root / "run", LOW, LOW)
    cell_side(estate, LOW)
    worker = supervisor_side(estate)
    job = estate.enqueue("high.run@1", "a")

    assert 78 == worker.exit_code()
    assert any("W-peer" in line and "not the pool's user" in line for line in worker.said)
    assert "ready" == estate.status(job)["state"]


def test_a_pool_with_egress_connects_from_the_cells_container(estate):
    """What is listed, by a broker beside the cells; the supervisor has no network, and learns what was done."""
    with socket.create_server(("127.0.0.1", 0)) as listed, socket.create_server(("127.0.0.1", 0)) as other:
        ports = [each.getsockname()[1] for each in (listed, other)]
        cell = f'cell = "unix:{estate.root}/run/high.sock"'
        estate.configure(f'{cell}\negress = ["localhost:{ports[0]} loopback"]')
        cell_side(estate, network=True)
        worker = supervisor_side(estate)
        first, second = (estate.enqueue("call@1", f"call-{port}") for port in ports)
        listed.settimeout(60)
        connection, _ = listed.accept()
        connection.sendall(b"hello")
        connection.close()

        assert "hello" == estate.ended(first)["result"]
        assert "quarantined" == estate.ended(second)["state"]
        assert ("1", "0") == tuple(worker.wait("egress", f"job={first}")[name] for name in ("connects", "refused"))
        assert "0" == worker.wait("egress", f"job={second}")["connects"]
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.accept()


def test_a_side_that_can_have_no_broker_gets_no_work(estate):
    """A container that has no network of any kind: it is tried there, and the supervisor says so."""
    estate.configure(f'cell = "unix:{estate.root}/run/high.sock"\negress = ["a.example.org:443"]')
    cell_side(estate)
    worker = supervisor_side(estate)

    assert 78 == worker.exit_code()
    assert any("W-egress" in line and "the host of its cells can have no egress broker" in line for line in worker.said)


def test_a_stranger_is_turned_away(estate):
    """Root is one here: only the users that were named may connect, whatever the file's mode lets through."""
    cells = cell_side(estate)

    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(estate.root / "run" / "high.sock"))
        sock.settimeout(20)
        assert b"" == sock.recv(1)
    cells.wait("refused", "rule=W-peer", "uid=0")


def test_a_second_supervisor_is_turned_away(estate):
    """One at a time; the first one's attempt goes on."""
    cells = cell_side(estate)
    supervisor_side(estate)
    job = estate.enqueue("high.peek@1", "a")
    estate.effect("high.peek")

    connect = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); print(s.recv(1))"
    said = subprocess.run(
        [estate.python, "-I", "-c", connect, str(estate.root / "run" / "high.sock")],
        user=SUPERVISOR,
        group=SUPERVISOR,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    )

    assert "b''\n" == said.stdout
    cells.wait("refused", "rule=W-busy")
    estate.go()
    assert "completed" == estate.ended(job)["state"]


def test_the_socket_is_for_its_owner_and_one_group(estate):
    """0660 and the group that was named; without one 0600."""
    cells = cell_side(estate)
    found = (estate.root / "run" / "high.sock").stat()
    os.kill(inside(cells), signal.SIGTERM)
    cells.exit_code()
    path = f"unix:{estate.root}/run/alone.sock"
    alone = estate.command("cell", "--listen", path, "--supervisor", str(SUPERVISOR), uid=HIGH)
    alone.wait("listening")

    assert (0o660, SUPERVISOR) == (stat.S_IMODE(found.st_mode), found.st_gid)
    assert 0o600 == stat.S_IMODE((estate.root / "run" / "alone.sock").stat().st_mode)


@pytest.mark.parametrize(
    "uid, listen, why",
    [
        (0, "unix:{root}/run/high.sock", "must not be root"),
        (HIGH, "tcp:127.0.0.1:80", "no address to listen on"),
        (HIGH, "unix:{root}/nowhere/high.sock", "does not exist"),
        (HIGH, "unix:{root}/open/high.sock", "others may replace"),
        (HIGH, "fd:2", "not a unix socket that listens"),
    ],
    ids=["root", "tcp", "nowhere", "open", "pipe"],
)
def test_a_side_that_cannot_be_does_not_start(estate, uid, listen, why):
    """With the reason, and exit code 78."""
    (estate.root / "open").mkdir(mode=0o777)
    (estate.root / "open").chmod(0o777)

    command = estate.command("cell", "--listen", listen.format(root=estate.root), "--supervisor", "61301", uid=uid)

    assert 78 == command.exit_code()
    assert any("W-cell" in line and why in line for line in command.said), command.said


def test_a_socket_that_is_left_over_is_taken_over_and_a_used_one_is_not(estate):
    """Who listens is asked, not guessed."""
    path = estate.root / "run" / "high.sock"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    os.chown(path, HIGH, HIGH)
    left.close()
    cell_side(estate)

    second = estate.command("cell", "--listen", f"unix:{path}", "--supervisor", "61301", uid=HIGH)

    assert 78 == second.exit_code()
    assert any("somebody listens" in line for line in second.said)
