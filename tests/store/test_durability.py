"""What a ledger may lose, and the refusal of one that may lose more than was demanded."""

from __future__ import annotations

from contextlib import closing

import pytest

from benteng import Benteng
from benteng.errors import PolicyError, Refused
from benteng.gate import JobSpec
from benteng.lifecycle import State
from benteng.store.durability import Durability, refuse_weaker
from benteng.store.open import default_dsn, open_operator
from benteng.store.postgres.health import durability
from benteng.store.records import Query
from tests.support.site import STEPS, Site, registry_of

END = """
select pg_terminate_backend(pid, 5000)
from pg_stat_activity
where application_name = 'benteng-producer'
"""


@pytest.fixture
def site(tmp_path, cluster):
    """Make a ledger on a server that is set as it is told, with a producer's login."""
    made = []

    def make(**settings):
        server = cluster(durable=True, settings=settings)
        made.append(Site(tmp_path, server, registry_of(STEPS), STEPS))
        return made[-1]

    yield make
    for each in made:
        each.close()


def app_of(directory, monkeypatch, **settings):
    """An application with one LOW type, and a benteng.toml beside it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(directory / "state"))
    lines = [f'{name} = "{value}"' for name, value in settings.items()]
    (directory / "benteng.toml").write_text("\n".join([*lines, ""]))
    app = Benteng(config=directory)

    @app.job
    def greet(name: str) -> str:
        return name

    return app


def demanding(wanted):
    """A job of the tests' application for a ledger of at least this class."""
    return JobSpec("step@1", {"name": "a"}, actor="svc:test", durability=wanted)


@pytest.mark.parametrize(
    "fsync,commit,standbys,expected",
    [
        ("on", "on", "", Durability.D1),
        ("on", "local", "a", Durability.D1),
        ("on", "remote_write", "a", Durability.D1),
        ("on", "on", "a", Durability.D2),
        ("on", "remote_apply", "a", Durability.D2),
        ("on", "on", " ", Durability.D1),
        ("on", "off", "a", Durability.D0),
        ("off", "on", "a", Durability.D0),
    ],
)
def test_the_class_follows_from_the_settings(fsync, commit, standbys, expected):
    """A standby counts only when a commit waits for its disk, and nothing counts without fsync."""
    row = {"fsync": fsync, "synchronous_commit": commit, "standbys": standbys}

    assert expected is durability(row)


def test_classes_are_ordered():
    """Each class satisfies a demand for itself and for less, and none for more."""
    for at, has in enumerate(Durability):
        for wanted in list(Durability)[: at + 1]:
            refuse_weaker(has, wanted)
        for wanted in list(Durability)[at + 1 :]:
            with pytest.raises(PolicyError, match="S-durability"):
                refuse_weaker(has, wanted)


@pytest.mark.parametrize("configured,asked", [("D2", "D0"), ("D0", "D2"), ("D1", "D2"), ("D2", "D1")])
def test_sqlite_refuses_more_than_one_disk(tmp_path, monkeypatch, configured, asked):
    """The stricter of configuration and argument counts; nothing was stored."""
    refused = pytest.raises(PolicyError, match="S-durability")
    with closing(app_of(tmp_path, monkeypatch, durability=configured)) as app, refused:
        app.enqueue("greet", {"name": "a"}, durability=asked)

    with closing(open_operator(default_dsn())) as operator:
        assert () == operator.find(Query()).lines
    with closing(app_of(tmp_path, monkeypatch)) as app:
        assert State.READY is app.enqueue("greet", {"name": "a"}, durability="D1").state
        assert Durability.D1 is app.gate.producer.durability


def test_an_unknown_class_is_refused(tmp_path, monkeypatch):
    """A mistyped demand demands nothing silently: G-durability."""
    with closing(app_of(tmp_path, monkeypatch)) as app, pytest.raises(Refused, match="G-durability"):
        app.enqueue("greet", {"name": "a"}, durability="D3")


def test_postgres_takes_what_its_settings_allow(site):
    """D1 with fsync and synchronous_commit; D2 is refused without a standby, and nothing is stored."""
    made = site()

    job = made.gate.enqueue(demanding("D1"))
    with pytest.raises(PolicyError, match="S-durability"):
        made.gate.enqueue(demanding("D2"))

    assert [job.job_id] == [line.job_id for line in made.operator().find(Query()).lines]
    assert Durability.D1 is made.producer.durability


def test_a_weaker_login_is_a_weaker_ledger(site):
    """A session that does not wait for the disk is refused, whatever the server is set to."""
    made = site()
    with made.superuser() as owner:
        owner.execute(f"alter role {made.login('producer')} set synchronous_commit = off".encode())
    made.producer.close()
    made.open()

    with pytest.raises(PolicyError, match="the ledger is of class D0"):
        made.gate.enqueue(demanding("D1"))


def test_the_class_is_that_of_the_connection_which_carries_the_job(site):
    """A failover to a weaker server between two jobs is seen: the class is read again with each connection."""
    made = site(synchronous_commit="on")
    made.gate.enqueue(demanding("D1"))
    with made.superuser() as owner:
        owner.execute("alter system set synchronous_commit = off")
        owner.execute("select pg_reload_conf()")
        owner.execute(END)

    with pytest.raises(PolicyError, match="S-durability"):
        made.gate.enqueue(demanding("D1"))


def test_a_synchronous_standby_satisfies_d2(tmp_path, cluster):
    """Every commit waits for the standby's disk: class D2."""
    server = cluster(durable=True)
    server.standby(sync=True)
    with closing(Site(tmp_path, server, registry_of(STEPS), STEPS)) as made:
        receipt = made.gate.enqueue(demanding("D2"))

        assert State.READY is made.show(receipt.job_id).state
