"""`benteng supervise` for real, as root: who each process is, what it may and holds, and what happens when it ends."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from benteng.worker.launcher import REFUSED_SECONDS, pause_seconds
from benteng.worker.sandbox import system
from tests.worker.bed import wait_gone
from tests.worker.estate import BROKER, HIGH, LOW, SUPERVISOR, Estate, descendants, status_of

NONE = "0000000000000000"
LAUNCHER_CAPABILITIES = f"{1 << 5 | 1 << 6 | 1 << 7 | 1 << 8:016x}"
WHO = (
    "launcher",
    "low supervisor",
    "low warden",
    "low zygote",
    "low cell",
    "high supervisor",
    "high warden",
    "high zygote",
    "high cell",
)


def pids_of(command, estate):
    """Return the pid of each process, with a running handler in a cell of each pool."""
    found = {"launcher": command.pid}
    for pool in ("low", "high"):
        started = command.wait("started", f"pool={pool}")
        found |= {f"{pool} {side}": int(started[side]) for side in ("supervisor", "warden")}
        found[f"{pool} cell"] = estate.effect(f"{pool}.peek")
        found[f"{pool} zygote"] = system.parent_of(found[f"{pool} cell"])
    return found


@pytest.fixture(scope="module")
def estate():
    """One estate for all that only look."""
    made = Estate()
    yield made
    made.close()


@pytest.fixture(scope="module")
def running(estate):
    """Both pools with a running handler each."""
    notified = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notified.bind(str(estate.root / "notify"))
    command = estate.command(
        "supervise", NOTIFY_SOCKET=str(estate.root / "notify"), AWS_SECRET_ACCESS_KEY="canary-5c1d"
    )
    jobs = [estate.enqueue("low.peek@1", "a"), estate.enqueue("high.peek@1", "a")]
    yield pids_of(command, estate), notified
    estate.go()
    assert ["completed", "completed"] == [estate.ended(job)["state"] for job in jobs]
    assert 0 == command.stop()
    notified.close()


EXPECTED_UID = {
    "launcher": 0,
    "low supervisor": SUPERVISOR,
    "high supervisor": SUPERVISOR,
    "low warden": LOW,
    "low zygote": LOW,
    "low cell": LOW,
    "high warden": HIGH,
    "high zygote": HIGH,
    "high cell": HIGH,
}


@pytest.mark.parametrize("who", WHO)
def test_each_process_is_who_it_should_be(running, who):
    """All four uids and gids, and no other group but, for root, its own."""
    status = status_of(running[0][who])
    uid = str(EXPECTED_UID[who])

    assert [uid] * 4 == status["Uid"].split()
    assert [uid] * 4 == status["Gid"].split()
    assert who == "launcher" or [] == status["Groups"].split()


@pytest.mark.parametrize("who", WHO)
def test_each_process_may_what_it_must(running, who):
    """The launcher has four capabilities and the others none, also none that they could gain."""
    status = status_of(running[0][who])
    wanted = LAUNCHER_CAPABILITIES if who == "launcher" else NONE

    assert {"CapEff": wanted, "CapPrm": wanted, "CapBnd": wanted, "CapInh": NONE, "CapAmb": NONE} == {
        name: status[name] for name in ("CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb")
    }
    assert "1" == status["NoNewPrivs"]
    assert ("2" if who in {"high zygote", "high cell"} else "0") == status["Seccomp"]


@pytest.mark.parametrize("who", WHO)
def test_only_a_supervisor_has_the_store_open(running, estate, who):
    """No descriptor, mapping, variable or argument of any other process leads to it."""
    pid = running[0][who]
    store = str(estate.root / "store")
    links = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]
    words = Path(f"/proc/{pid}/environ").read_bytes() + Path(f"/proc/{pid}/cmdline").read_bytes()

    assert who.endswith("supervisor") == any(link.startswith(store) for link in links)
    assert store not in words.decode("utf-8", "replace")
    assert "canary-5c1d" not in words.decode("utf-8", "replace")
    assert who.endswith("supervisor") or store not in Path(f"/proc/{pid}/maps").read_text("utf-8", "replace")


def test_the_launcher_opens_no_network_and_no_store(running):
    """Its sockets are those that it made for its children, and it gave them away."""
    links = [str(link.readlink()) for link in Path(f"/proc/{running[0]['launcher']}/fd").iterdir()]

    assert not [link for link in links if link.startswith("socket:")]


def test_readiness_is_told_when_every_pool_claims(running):
    """To the socket of the service manager, once."""
    _, notified = running
    notified.settimeout(20)

    assert b"READY=1" == notified.recv(100)


def test_a_refused_environment_starts_nothing(estate):
    """A credential in the environment, in whatever variable."""
    for name, value in (("PGPASSWORD", "x"), ("BENTENG_DSN", "sqlite:////x"), ("URL", "https://a:secret@example.org")):
        command = estate.command("supervise", **{name: value})
        assert 78 == command.exit_code()
        assert any("W-credential" in line for line in command.said)
        assert not any("secret" in line for line in command.said)


def test_an_ordinary_user_is_refused(estate):
    """There is no half way: who cannot become others runs `benteng worker`."""
    command = estate.command("supervise", uid=SUPERVISOR)

    assert 78 == command.exit_code()
    assert any("W-supervise" in line for line in command.said)


@pytest.fixture
def own():
    """An estate for one test that kills."""
    made = Estate()
    yield made
    made.close()


@pytest.mark.parametrize("victim", ["supervisor", "warden", "zygote", "cell"])
def test_what_dies_is_started_again_and_its_job_runs_once_more(own, victim):
    """Nothing of the old pair lives when the job starts again, and the other pool notices nothing."""
    command = own.command("supervise")
    job, other = own.enqueue("high.peek@1", "a"), own.enqueue("low.peek@1", "b")
    pids = pids_of(command, own)
    old = {pids[f"high {who}"] for who in ("zygote", "cell")}

    os.kill(pids[f"high {victim}"], signal.SIGKILL)
    again = own.effect("high.peek", count=2)

    assert all(wait_gone(pid) for pid in old - ({pids["high zygote"]} if victim == "cell" else set()))
    assert again not in old
    own.go()
    assert ["completed", "completed"] == [own.ended(each)["state"] for each in (job, other)]
    assert 1 == len([line for line in own.effects if line.startswith("low.peek")])
    assert 0 == command.stop()


@pytest.fixture
def ports():
    """Two listeners outside of all pools; the first is listed."""
    with socket.create_server(("127.0.0.1", 0)) as listed, socket.create_server(("127.0.0.1", 0)) as other:
        yield listed, other


def _brokered(own, server):
    """Start a pool that may connect to one listener, and return the command and its broker's pid."""
    port = server.getsockname()[1]
    own.configure(f'egress = ["localhost:{port} loopback"]\nbroker_uid = {BROKER}\nbroker_gid = {BROKER}')
    command = own.command("supervise", "--pool", "high", AWS_SECRET_ACCESS_KEY="canary-5c1d")
    return command, int(command.wait("started", "pool=high")["broker"])


def _call(own, name, server):
    """Let a job connect to a listener."""
    return own.enqueue("call@1", f"{name}-{server.getsockname()[1]}")


def test_a_broker_is_its_own_user_with_one_capability(own, ports):
    """It reaches into sockets of the pool's user and may nothing else; nothing that it has leads to the store."""
    listed, other = ports
    command, broker = _brokered(own, listed)
    first, second = _call(own, "first", listed), _call(own, "second", other)
    _answer(listed)

    assert "hello" == own.ended(first)["result"]
    assert "quarantined" == own.ended(second)["state"]
    other.setblocking(False)
    with pytest.raises(BlockingIOError):
        other.accept()
    status = status_of(broker)
    assert ([str(BROKER)] * 4, [str(BROKER)] * 4, []) == tuple(
        status[name].split() for name in ("Uid", "Gid", "Groups")
    )
    assert {f"{1 << 19:016x}"} == {status[name] for name in ("CapEff", "CapPrm", "CapBnd")}
    assert ({NONE}, "1") == ({status[name] for name in ("CapInh", "CapAmb")}, status["NoNewPrivs"])
    assert b"" == Path(f"/proc/{broker}/environ").read_bytes()
    links = [str(link.readlink()) for link in Path(f"/proc/{broker}/fd").iterdir()]
    words = [Path(f"/proc/{broker}/{name}").read_text("utf-8", "replace") for name in ("cmdline", "maps")]
    assert not [each for each in links + words if str(own.root / "store") in each]
    assert 0 == command.stop()


def test_a_broker_that_dies_is_started_again_with_its_pool(own, ports):
    """Without it nothing of the pool goes on, and the next job connects as before."""
    command, broker = _brokered(own, ports[0])
    everything = descendants(command.pid)

    os.kill(broker, signal.SIGKILL)
    command.wait("started", "pool=high", count=2)
    job = _call(own, "again", ports[0])
    _answer(ports[0])

    assert "hello" == own.ended(job)["result"]
    assert all(wait_gone(pid) for pid in everything)
    assert 0 == command.stop()


def _answer(server):
    server.settimeout(20)
    connection, _ = server.accept()
    connection.sendall(b"hello")
    connection.close()


def test_nothing_is_ready_when_a_pool_is_refused(own):
    """The lock file has no type of one pool: exit code 78, the other pool is ended too, and READY=1 is never said."""
    notified = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notified.bind(str(own.root / "notify"))
    lock = own.root / "project" / "benteng.lock"
    lock.write_text(lock.read_text().replace('"high"', '"other"'))
    command = own.command("supervise", NOTIFY_SOCKET=str(own.root / "notify"))

    assert 78 == command.exit_code()

    notified.setblocking(False)
    assert b"STOPPING=1" == notified.recv(100)
    notified.close()


def test_a_pool_that_is_refused_later_is_started_again_late(own):
    """Its lock file changed meanwhile: half a minute at least, since each start is a record; the other pool works."""
    command = own.command("supervise")
    command.wait("ready", "pool=high")
    command.wait("ready", "pool=low")
    lock = own.root / "project" / "benteng.lock"
    lock.write_text(lock.read_text().replace('"high"', '"other"'))

    os.kill(int(command.wait("started", "pool=high")["supervisor"]), signal.SIGKILL)
    command.wait("ended", "pool=high", "who=supervisor", "status=78")

    assert float(command.wait("again", "pool=high", count=2)["seconds"]) >= REFUSED_SECONDS / 2
    own.go()
    assert "completed" == own.ended(own.enqueue("low.peek@1", "a"))["state"]
    assert 0 == command.stop()


@pytest.mark.parametrize(
    "failures, refused, seconds",
    [(0, False, 0), (1, False, 0.5), (3, False, 2), (20, False, 30), (0, True, 0), (1, True, 30), (9, True, 3600)],
)
def test_how_long_a_pool_waits(failures, refused, seconds):
    """Longer each time; one that is refused much longer, and an hour in the end."""
    assert seconds == pause_seconds(failures, refused=refused)


def test_a_drain_lets_jobs_end_and_leaves_nothing(own):
    """SIGTERM: what runs may finish; then every process is gone."""
    command = own.command("supervise")
    job = own.enqueue("high.peek@1", "a")
    pids_of_high = own.effect("high.peek")
    everything = descendants(command.pid)

    command.process.send_signal(signal.SIGTERM)
    command.wait("draining", "attempts=1")
    own.go()

    assert 0 == command.exit_code()
    assert "completed" == own.status(job)["state"]
    assert pids_of_high in everything
    assert all(wait_gone(pid) for pid in everything)


def test_a_killed_launcher_drains_its_pools(own):
    """Nobody restarts anything then, so nothing stays."""
    command = own.command("supervise")
    own.enqueue("high.peek@1", "a")
    own.effect("high.peek")
    everything = descendants(command.pid)

    command.process.kill()

    assert len(everything) >= 7
    assert all(wait_gone(pid, 15) for pid in everything)


def test_medium_cells_are_used_again_and_scratch_is_bounded_and_deleted(own):
    """What needs a look or a measurement from outside works through the warden too."""
    command = own.command("supervise")
    runs = [own.ended(own.enqueue("serial@1", f"s{n}"))["result"] for n in range(4)]
    scratch = Path(own.ended(own.enqueue("high.run@1", "x"))["result"])
    full = own.ended(own.enqueue("fill@1", "f"))

    assert len(set(runs)) < 4
    assert "quarantined" == full["state"]
    assert 0 == command.stop()
    assert not scratch.exists()
    assert not scratch.parent.exists()
