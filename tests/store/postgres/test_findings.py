"""`roles verify`: a clean installation has no finding, and each kind of damage is found under its rule."""

from __future__ import annotations

import psycopg
import pytest

from benteng.errors import StoreUnavailable
from benteng.store.postgres import findings, roles
from tests.store.postgres.installation import fresh

DAMAGE = [
    ("R-owner", "benteng_owner", "alter role benteng_owner login"),
    ("R-owner", "damage_owner", "create role damage_owner login in role benteng_owner"),
    ("R-owner", "benteng.tally", "alter table benteng.tally owner to postgres"),
    ("R-owner", "benteng_v1", "alter schema benteng_v1 owner to postgres"),
    ("R-group", "benteng_sealer", "alter role benteng_sealer createrole"),
    ("R-group", "benteng_sealer", "grant pg_monitor to benteng_sealer"),
    ("R-superuser", "denial_keeper", "alter role denial_keeper superuser"),
    ("R-superuser", "denial_keeper", "alter role denial_keeper bypassrls"),
    ("R-facets", "denial_keeper", "grant benteng_operator to denial_keeper"),
    ("R-facets", "denial_keeper", "grant pg_read_all_data to denial_keeper"),
    ("R-facets", "denial_keeper", "update benteng.login set facet = 'operator' where name = 'denial_keeper'"),
    ("R-facets", "ghost", "insert into benteng.login (name, facet) values ('ghost', 'operator')"),
    ("R-facets", "damage_group", "create role damage_group in role benteng_operator"),
    ("R-limits", "denial_keeper", "alter role denial_keeper connection limit -1"),
    ("R-limits", "denial_keeper", "alter role denial_keeper reset lock_timeout"),
    ("R-table", "benteng_auditor", "grant select on benteng.audit to benteng_auditor"),
    ("R-table", "benteng_producer", "grant update (mode) on benteng.control to benteng_producer"),
    ("R-table", "denial_patch", "grant usage on sequence benteng.fence to public"),
    ("R-table", "benteng_keeper", "grant maintain on benteng.job to benteng_keeper"),
    ("R-table", "damage_maintainer", "create role damage_maintainer in role pg_maintain"),
    ("R-schema", "benteng", "grant usage on schema benteng to benteng_auditor"),
    ("R-schema", "benteng_v1", "grant create on schema benteng_v1 to benteng_operator"),
    ("R-schema", "benteng_v1", "grant usage on schema benteng_v1 to public"),
    ("R-schema", "public", "grant create on schema public to public"),
    ("R-schema", "database DATABASE", "grant temporary on database DATABASE to public"),
    ("R-schema", "function lo_create", "grant execute on function lo_create(oid) to public"),
    ("R-function", "benteng_v1.protocol", "alter function benteng_v1.protocol() owner to postgres"),
    ("R-function", "benteng_v1.protocol", "alter function benteng_v1.protocol() security invoker"),
    ("R-function", "benteng_v1.protocol", "alter function benteng_v1.protocol() reset search_path"),
    ("R-function", "benteng_v1.protocol", "alter function benteng_v1.protocol() set search_path = pg_catalog"),
    ("R-function", "benteng_v1.protocol", "grant execute on function benteng_v1.protocol() to public"),
    ("R-function", "benteng_v1.reclaim", "grant execute on function benteng_v1.reclaim to benteng_consumer"),
    ("R-function", "benteng.now", "grant execute on function benteng.now() to benteng_keeper"),
    ("R-function", "benteng.now", "alter function benteng.now() security definer"),
    (
        "R-body",
        "benteng.now",
        "create or replace function benteng.now() returns timestamptz language sql as 'select now()'",
    ),
    ("R-body", "benteng_v1.back_door", "create function benteng_v1.back_door() returns int language sql as 'select 1'"),
    (
        "R-default",
        "benteng_owner",
        "alter default privileges for role benteng_owner grant execute on functions to public",
    ),
    ("R-trigger", "benteng.audit", "alter table benteng.audit disable trigger all"),
    ("R-missing", "benteng_keeper", "revoke execute on function benteng_v1.reclaim from benteng_keeper"),
    ("R-missing", "denial_keeper", "revoke benteng_keeper from denial_keeper"),
    ("R-missing", "benteng.wake", "drop function benteng.wake"),
]


@pytest.fixture(scope="module")
def ledger(postgres):
    """The address of a ledger."""
    dbname = fresh(postgres)
    yield postgres.dsn(dbname=dbname)
    postgres.drop_database(dbname)


@pytest.fixture
def superuser(ledger):
    """A connection that may do damage. All of it is taken back."""
    with psycopg.connect(ledger) as connection:
        yield connection
        connection.rollback()


def test_a_clean_installation_has_no_finding(ledger):
    """What install, migrate and create make is what verify wants: nobody learns to ignore it."""
    assert [] == findings.verify(ledger)


def test_a_login_of_another_ledger_is_no_finding(superuser):
    """Groups are the server's: a member without a row here belongs elsewhere, and every verb refuses it."""
    superuser.execute("create role elsewhere login in role benteng_operator")

    assert [] == findings.examine(superuser)


@pytest.mark.parametrize("rule,subject,damage", DAMAGE, ids=[f"{rule}: {damage}"[:80] for rule, _, damage in DAMAGE])
def test_damage_is_found(superuser, rule, subject, damage):
    """Each right too many, and each change of what protects, is found under its rule, with what to do."""
    dbname = superuser.info.dbname
    if "maintain" in damage and superuser.info.server_version < 170000:
        pytest.skip("MAINTAIN exists from PostgreSQL 17")
    superuser.execute(damage.replace("DATABASE", dbname).encode())

    found = findings.examine(superuser)

    ours = [finding for finding in found if finding.rule == rule]
    assert subject.replace("DATABASE", dbname) in {finding.subject for finding in ours}, found
    assert all(finding.said and finding.fix for finding in ours)
    assert {rule != "R-missing"} == {finding.excess for finding in ours}


def test_every_rule_is_tried():
    """No rule of the table is without a damage that it finds."""
    assert {*findings.RULES, findings.BODY} == {case[0] for case in DAMAGE}


def test_an_empty_database_is_not_installed(postgres):
    """Without a ledger there is one finding, and it is not excess."""
    dbname = postgres.create_database()

    found = findings.verify(postgres.dsn(dbname=dbname))

    assert [("R-missing", False)] == [(finding.rule, finding.excess) for finding in found]
    postgres.drop_database(dbname)


def test_an_ordinary_login_may_not_look(ledger):
    """A login that cannot see everything gets an error, not an empty list."""
    with pytest.raises(StoreUnavailable, match="superuser"):
        findings.verify(ledger.replace("//postgres", "//denial_auditor"))


def test_every_function_of_the_files_is_known():
    """The reader of the files finds every `create function` in them."""
    folders = [roles.HERE / "functions", roles.HERE / "migrations"]
    text = "\n".join(path.read_text() for folder in folders for path in folder.glob("*.sql")).lower()
    created = text.count("\ncreate function") + text.count("\ncreate or replace function")

    assert created == len(list(findings.bodies_in(text)))
