"""`benteng doctor` where the ledger is PostgreSQL: what is said of it, and how bad it is."""

from __future__ import annotations

from contextlib import closing

import pytest

from benteng.ops.exits import Exit
from benteng.store.postgres import health
from benteng.store.records import Severity
from tests.support.site import STEPS, Site, registry_of

WELL = {
    "version": "17.1",
    "version_number": 170_001,
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "standbys": "",
    "environment": "prod",
    "oldest": 1,
    "newest": 1,
    "in_recovery": False,
    "timeline": "00000001",
    "known_timeline": "00000001",
    "same_system": True,
    "epoch": 0,
    "wait_seconds": 0.0,
    "open_speaks": False,
    "open_access": False,
    "speakers": 1,
}
"""What a ledger in good health says of itself."""


@pytest.fixture
def site(tmp_path, postgres):
    """A dev ledger on the server that the tests share, which does without fsync."""
    with closing(Site(tmp_path, postgres, registry_of(STEPS), STEPS)) as site:
        yield site


@pytest.fixture
def doctor(site, project, monkeypatch):
    """Run doctor on a host that has these facets; return its findings by check."""

    def examine(*facets, dba=False, environment="dev"):
        lines = [f'{facet} = "{site.dsn(facet, "default" if facet == "consumer" else "")}"' for facet in facets]
        (project.root / "benteng.toml").write_text(
            "\n".join(['app = "jobs:app"', f'environment = "{environment}"', "[dsn]", *lines, ""])
        )
        if dba:
            monkeypatch.setenv("BENTENG_DBA_DSN", site.server.dsn(dbname=site.dbname))
        found = project.call("doctor", "--json").document["findings"]
        return lambda check: [(each["level"], each["text"]) for each in found if each["check"] == check]

    return examine


# --- what the ledger says of itself -----------------------------------------------------------------------------------


def test_a_ledger_in_good_health_has_nothing_to_fix():
    """Protocol and history are told, and nothing else."""
    assert {("protocol", Severity.OK), ("history", Severity.OK)} == {
        (each.check, each.severity) for each in health.symptoms(WELL)
    }


@pytest.mark.parametrize(
    "check,severity,changes,word",
    [
        ("store", Severity.ERROR, {"version_number": 130_020}, "older than PostgreSQL 14"),
        ("durability", Severity.GRAVE, {"fsync": "off"}, "fsync"),
        ("durability", Severity.GRAVE, {"synchronous_commit": "off"}, "synchronous_commit"),
        ("durability", Severity.GRAVE, {"full_page_writes": "off"}, "full_page_writes"),
        ("durability", Severity.WARNING, {"standbys": "a", "synchronous_commit": "local"}, "class D1"),
        ("durability", Severity.WARNING, {"standbys": "a", "synchronous_commit": "remote_write"}, "class D1"),
        ("defaults", Severity.GRAVE, {"environment": "dev"}, "a dev installation"),
        ("defaults", Severity.ERROR, {"open_speaks": True}, "every origin"),
        ("defaults", Severity.ERROR, {"open_access": True}, "every actor"),
        ("defaults", Severity.WARNING, {"speakers": 0}, "no login may enqueue"),
        ("history", Severity.ERROR, {"in_recovery": True, "timeline": ""}, "standby"),
        ("history", Severity.ERROR, {"timeline": "00000002"}, "promoted or restored"),
        ("history", Severity.ERROR, {"same_system": False}, "promoted or restored"),
        ("history", Severity.WARNING, {"wait_seconds": 12.0}, "12 s more"),
    ],
)
def test_each_weakness_is_told_with_a_fix(check, severity, changes, word):
    """One changed fact is one symptom, as bad as it is, with what to do."""
    (found,) = [each for each in health.symptoms(WELL | changes) if each.check == check]

    assert severity is found.severity
    assert word in found.text
    assert found.fix


def test_a_real_ledger_is_examined(doctor):
    """Version, class, settings, history, clock: asked through the operator's one verb."""
    found = doctor("operator", "auditor")

    assert [("warning", text) for _, text in found("durability")] == found("durability")
    assert any("fsync is off" in text for _, text in found("durability"))
    assert any("a dev installation" in text for _, text in found("defaults"))
    assert [("ok", "timeline 00000001, fence epoch 0")] == found("history")
    assert [("ok", "the ledger speaks protocol 1 to 1")] == found("protocol")
    assert ["ok"] == [level for level, _ in found("clock")]
    assert "durability D0" in found("store")[0][1]


def test_another_timeline_is_an_error(site, doctor):
    """The database was promoted or restored: claims wait, and doctor says for what."""
    with site.superuser() as owner:
        owner.execute("update benteng.history set timeline = '0000000F'")

    ((level, text),) = doctor("operator", "auditor")("history")

    assert "error" == level
    assert "fence epoch" in text


# --- each host has its part -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("facet", ["producer", "consumer", "keeper"])
def test_a_host_without_an_operator_examines_its_own_login(site, doctor, facet):
    """It opens what it has, says as whom, and notes what is seen elsewhere."""
    found = doctor(facet)

    login = site.login(facet, "default" if facet == "consumer" else "")
    assert [("ok", login)] == [(level, text.split()[-1]) for level, text in found("logins")]
    assert ["note", "note", "note"] == [found(check)[0][0] for check in ("store", "runs", "roles")]


@pytest.mark.parametrize("facet", ["producer", "operator"])
def test_a_demand_is_compared_where_it_stands(site, doctor, project, facet):
    """Every enqueue of this host would be refused: said before one is tried, on the login's own connection."""
    doctor(facet)
    file = project.root / "benteng.toml"
    file.write_text('durability = "D2"\n' + file.read_text())

    found = project.call("doctor", "--json").document["findings"]

    texts = [each["text"] for each in found if (each["check"], each["level"]) == ("durability", "error")]
    assert ["the ledger is of class D0, and this host demands D2: every enqueue will be refused"] == texts


def test_a_login_in_the_place_of_another_is_an_error(site, doctor, project):
    """One login holds one facet: the address of another is refused before any verb."""
    doctor("producer")
    text = f'app = "jobs:app"\n[dsn]\nkeeper = "{site.dsn("producer")}"\n'
    (project.root / "benteng.toml").write_text(text)

    found = project.call("doctor", "--json").document["findings"]

    assert [("error", "keeper: this login is no keeper. Use the login of that facet")] == [
        (each["level"], each["text"]) for each in found if each["check"] == "logins"
    ]


# --- what only the administrator sees ---------------------------------------------------------------------------------


def test_the_administrator_sees_rights_bodies_and_sessions(site, doctor):
    """As shipped: nothing to say but that."""
    found = doctor("operator", "auditor", dba=True)

    assert [("ok", "rights and functions are as shipped, each login has one facet")] == found("roles")
    assert ["ok"] == [level for level, _ in found("horizon")]


@pytest.mark.parametrize("environment,level", [("dev", "warning"), ("prod", "error")])
def test_a_login_with_two_facets_is_told(site, doctor, environment, level):
    """In prod an error: whoever steals that login has both."""
    with site.superuser() as owner:
        owner.execute(f"grant benteng_keeper to {site.login('producer')}".encode())

    found = doctor("operator", dba=True, environment=environment)("roles")

    assert level in {each for each, text in found if site.login("producer") in text and "R-facets" in text}


def test_a_changed_function_is_told(site, doctor):
    """The bodies are compared with the files of this version."""
    with site.superuser() as owner:
        owner.execute("create or replace function benteng.is_dev() returns boolean language sql as 'select true'")

    found = doctor("operator", dba=True)("roles")

    assert any("R-body: benteng.is_dev" in text for _, text in found)


def test_a_session_that_pins_old_rows_is_named(site, doctor, monkeypatch):
    """Who, as what, and since when; not what it asked."""
    monkeypatch.setattr(health, "PINNED_SECONDS_MAX", -1)
    with site.superuser() as sleeper:
        sleeper.execute("begin isolation level repeatable read")
        sleeper.execute("select 'canary'")

        found = doctor("operator", dba=True)("horizon")

    assert ["warning"] == [level for level, text in found if "idle in transaction" in text]
    assert not any("canary" in text for _, text in found)


def test_a_long_statement_pins_them_too(site, doctor, monkeypatch):
    """A report that runs for an hour keeps every row that it could still see."""
    monkeypatch.setattr(health, "PINNED_SECONDS_MAX", -1)
    running = "select count(*) from pg_stat_activity where state = 'active' and query = 'select pg_sleep(60)'"
    with site.superuser() as sleeper, site.superuser() as witness:
        sleeper.pgconn.send_query(b"select pg_sleep(60)")
        site.until(lambda: witness.execute(running).fetchone() == (1,))

        found = doctor("operator", dba=True)("horizon")

        witness.execute("select pg_terminate_backend(%s)", [pid := sleeper.info.backend_pid])
        sleeper.close()
    assert ["warning"] == [level for level, text in found if f"session {pid} " in text]


def test_a_replication_slot_that_nobody_uses_is_named(site, doctor):
    """It keeps WAL until the disk is full; a slot that goes with its session does not."""
    slot = f"left_alone_{site.dbname}"
    with site.superuser() as owner:
        before = doctor("operator", dba=True)("slots")
        owner.execute("select pg_create_physical_replication_slot(%s, true)", [slot])
        owner.execute("select pg_create_physical_replication_slot(%s, true, true)", [f"passing_{site.dbname}"])
        try:
            found = doctor("operator", dba=True)("slots")
        finally:
            owner.execute("select pg_drop_replication_slot(%s)", [slot])

    assert [("ok", "no replication slot keeps anything")] == before
    assert ["warning"] == [level for level, _ in found]
    assert f"{slot} is used by nobody" in found[0][1]


@pytest.mark.parametrize(
    "active,kept,severity",
    [
        (True, health.SLOT_BYTES_MAX, Severity.OK),
        (True, health.SLOT_BYTES_MAX + 1, Severity.WARNING),
        (False, 0, Severity.WARNING),
    ],
    ids=["in-use", "far-behind", "left-alone"],
)
def test_a_slot_is_worth_a_warning_when_it_holds_much_or_for_ever(active, kept, severity):
    """What follows closely is as it should be."""
    assert severity is health._slot("replication slot a", kept, active=active).severity


def test_a_login_that_may_not_look_gets_an_error(site, doctor, monkeypatch, project):
    """An empty list from somebody who sees nothing would be a lie."""
    monkeypatch.setenv("BENTENG_DBA_DSN", site.dsn("auditor"))

    found = doctor("operator")("roles")

    assert ["error"] == [level for level, _ in found]


def test_an_administrators_shell_makes_no_embedded_ledger(site, project, monkeypatch):
    """Without an address of a facet there is nothing but the database to examine."""
    monkeypatch.setenv("BENTENG_DBA_DSN", site.server.dsn(dbname=site.dbname))

    ended = project.call("doctor", "--json")

    assert Exit.WARNINGS.value == ended.code
    assert not (project.root.parent / "state").exists()
