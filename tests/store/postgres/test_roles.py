"""The denial matrix: what no login may do, tried as that login, refused by the database itself.

The cells are made from the facet table and from what is installed, so that a new verb, table or helper is tried by
everybody as soon as it exists.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import psycopg
import pytest

from benteng.errors import PolicyError, StoreUnavailable
from benteng.store import contract
from benteng.store.open import open_consumer, open_operator, open_producer
from benteng.store.postgres import findings, roles
from benteng.store.records import Admission, Disposal, Facet
from benteng.testing.ledger import make_job, make_policy, type_row
from tests.store.postgres.installation import LOGINS, fresh
from tests.support.servers import PostgresServer, Server

DENIED = "42501"
GRANTED_NOTHING = "01007"  # a warning: whoever may use something but not give it away
SQL = """
  select n.nspname, p.proname, p.provariadic <> 0,
         array(select format_type(t, null) from unnest(p.proargtypes) with ordinality a (t, i) order by i),
         pg_get_functiondef(p.oid), p.oid::regprocedure::text
  from pg_proc p join pg_namespace n on n.oid = p.pronamespace
  where n.nspname in ('benteng', 'benteng_v1')
  order by 1, 2
"""


READ = ("select * from REL", "copy (select * from REL) to stdout")
TABLE = (
    *READ,
    "insert into REL default values",
    "update REL set COL = COL",
    "delete from REL",
    "truncate REL",
    "copy REL to stdout",
    "copy REL from stdin",
    "lock table REL in row share mode",
    "lock table REL in access exclusive mode",
    "select table_to_xml(OID::regclass, true, true, '')",
    "drop table REL",
    "alter table REL disable trigger all",
    "alter table REL add column extra int",
    "alter table REL owner to session_user",
    "create index on REL (COL)",
    "create trigger extra before update on REL for each row execute function suppress_redundant_updates_trigger()",
    "create rule extra as on insert to REL do instead nothing",
    "grant select on REL to session_user",
)
SEQUENCE = (
    *READ,
    "select nextval(OID::regclass)",
    "select setval(OID::regclass, 1)",
    "select nextval('REL')",
    "select setval('REL', 1)",
    "alter sequence REL restart",
)
ATTEMPTS = {
    "r": TABLE,
    "p": TABLE,
    "S": SEQUENCE,
    "v": (*READ, "drop view REL"),
    "m": (*READ, "drop materialized view REL"),
}
"""Every way to read or write a relation, by its kind."""


@dataclass(frozen=True)
class Routine:
    """A function of the ledger as it is installed."""

    schema: str
    name: str
    variadic: bool
    types: list[str]
    source: str
    signature: str

    @property
    def call(self) -> str:
        """A call of it. The arguments are no constants: a strict function of constant nulls is never called at all."""
        given = ", ".join(f"null::{type_} as a{n}" for n, type_ in enumerate(self.types)) or "1 as none"
        names = [f"a.a{n}" for n in range(len(self.types))]
        if self.variadic:
            names[-1] = f"variadic {names[-1]}"
        return " ".join(
            ["select", f"{self.schema}.{self.name}({', '.join(names)})", "from (select", given, "offset 0) a"]
        )


@dataclass(frozen=True)
class Relation:
    """A table, view or sequence of the ledger as it is installed."""

    name: str
    oid: int
    kind: str
    column: str

    @property
    def attempts(self) -> list[str]:
        """Every way to read or write it."""
        words = {"REL": self.name, "OID": str(self.oid), "COL": self.column}
        return [re.sub(r"\b(REL|OID|COL)\b", lambda word: words[word[0]], text) for text in ATTEMPTS[self.kind]]


@dataclass(frozen=True)
class Installed:
    """One database with a ledger, and what is in it."""

    server: Server
    dbname: str
    bystander: int
    routines: list[Routine]
    relations: list[Relation]

    @property
    def dsn(self):
        """The superuser's address."""
        return self.server.dsn(dbname=self.dbname)

    def connect(self, login):
        """Connect as a login, or as the superuser."""
        return self.server.connect(login, self.dbname)

    @property
    def verbs(self) -> list[Routine]:
        """What is in the schema of the verbs."""
        return [routine for routine in self.routines if routine.schema == roles.VERBS]

    @property
    def helpers(self) -> list[Routine]:
        """What is the owner's alone."""
        return [routine for routine in self.routines if routine.schema == roles.TABLES]


@contextmanager
def installed(server, *careless):
    """A ledger in a database of its own, after these statements of a careless superuser."""
    dbname = fresh(server)
    with server.connect(dbname=dbname) as connection:
        for statement in careless:
            connection.execute(statement.replace("DATABASE", dbname).encode())
        yield look(connection, server, dbname)
    server.drop_database(dbname)


def look(connection, server, dbname):
    """What is installed."""
    relations = """
      select format('%I.%I', n.nspname, c.relname), c.oid::int, c.relkind::text,
             coalesce((select quote_ident(attname) from pg_attribute where attrelid = c.oid and attnum = 1), '')
      from pg_class c join pg_namespace n on n.oid = c.relnamespace
      where n.nspname in ('benteng', 'benteng_v1') and c.relkind in ('r', 'p', 'v', 'm', 'S')
      order by 1
    """
    routines = [Routine(*row) for row in connection.execute(SQL)]
    found = [Relation(*row) for row in connection.execute(relations)]
    return Installed(server, dbname, connection.info.backend_pid, routines, found)


@pytest.fixture(scope="module")
def ledger(postgres) -> Iterator[Installed]:
    """An installed ledger with a login for every facet."""
    with installed(postgres) as ledger:
        yield ledger


@pytest.fixture(scope="module")
def careless(postgres) -> Iterator[Installed]:
    """The same, where somebody has given everybody the schema of the tables, all verbs, and temporary tables."""
    usage, temporary = "grant usage on schema benteng to public", "grant temporary on database DATABASE to public"
    execute = "grant execute on all functions in schema benteng_v1 to public"
    with installed(postgres, usage, temporary, execute) as ledger:
        yield ledger


def allowed(ledger, login, attempts):
    """The attempts that the database did not refuse with "insufficient privilege", each with what it said."""
    with ledger.connect(login) as connection:
        assert [] != attempts
        said = {attempt: outcome(connection, attempt) for attempt in attempts}
    return {attempt: state for attempt, state in said.items() if state not in {DENIED, GRANTED_NOTHING}}


def outcome(connection, attempt):
    """The SQLSTATE of an attempt, or "done". It is rolled back in any case."""
    warned = []
    connection.add_notice_handler(note := lambda notice: warned.append(notice.sqlstate))
    try:
        try:
            with connection.transaction(force_rollback=True):
                connection.execute(attempt.encode())
        except (
            psycopg.errors.ActiveSqlTransaction
        ):  # it may not run in a transaction, and asks for the right after that
            connection.execute(attempt.encode())
    except psycopg.Error as error:
        return error.sqlstate or type(error).__name__
    finally:
        connection.remove_notice_handler(note)
    return GRANTED_NOTHING if GRANTED_NOTHING in warned else "done"


def facet_of(login):
    """What a login may call."""
    return roles.may_call(LOGINS[login].facet)


each_login = pytest.mark.parametrize("login", LOGINS)


# --- the table --------------------------------------------------------------------------------------------------------


def test_the_facet_table_is_the_contract():
    """Verbs are what the protocols declare: none is forgotten, none invented, origin and close are none."""
    declared = {name for name in vars(contract.Producer) if not name.startswith("_")}

    assert declared == roles.FACET_VERBS["producer"]
    assert {"admit", "evidence", "status", "cancel"} == declared
    assert set(Facet) == set(roles.PROTOCOLS)
    assert set(roles.LIMITS) == set(roles.FACET_VERBS)
    assert {"sealer": frozenset(), "approver": frozenset()}.items() <= roles.FACET_VERBS.items()


def test_the_sql_needs_no_connection_and_does_not_vary():
    """What is reviewed is what is run: the same input gives the same text, with every verb of the table."""
    text = roles.script(*LOGINS.values())

    assert text == roles.script(*LOGINS.values())
    assert [] == [
        (facet, verb)
        for facet, verbs in roles.FACET_VERBS.items()
        for verb in verbs
        if f"('benteng_{facet}', '{verb}')" not in text
    ]
    assert "{" not in text


@pytest.mark.parametrize(
    "rule,login",
    [
        ("R-name", ("x; drop role y", "producer", "")),
        ("R-name", ("Upper", "producer", "")),
        ("R-name", ("benteng_owner", "producer", "")),
        ("R-name", ("benteng_sealer", "producer", "")),
        ("R-name", ("pg_read_all_data", "producer", "")),
        ("R-name", ("x" * 64, "producer", "")),
        ("R-facet", ("x", "owner", "")),
        ("R-pool", ("x", "consumer", "")),
        ("R-pool", ("x", "keeper", "patch")),
        ("R-pool", ("x", "consumer", "a'b")),
    ],
)
def test_a_login_that_cannot_be_is_refused(rule, login):
    """Names stand in SQL: only those that need no quoting. One facet, and a pool for a consumer alone."""
    with pytest.raises(PolicyError) as refused:
        roles.Login(*login)

    assert rule == refused.value.rule
    assert login[0] not in str(refused.value) or login[0] in {"x", "pg_read_all_data"}


# --- what works -------------------------------------------------------------------------------------------------------


@each_login
def test_a_login_may_call_its_verbs(ledger, login):
    """The matrix does not hold because everything is refused: each login may execute exactly the verbs of its facet."""
    query = "select has_function_privilege(%s, %s, 'execute')"

    with ledger.connect("postgres") as connection:
        callable_ = {v.name for v in ledger.verbs if connection.execute(query, [login, v.signature]).fetchone()[0]}

    assert {v.name for v in ledger.verbs} & facet_of(login) == callable_


@each_login
def test_a_login_is_known_by_its_name(ledger, login):
    """session_user decides: neither `set role` nor another search path changes whom the ledger sees."""
    own = roles.group(LOGINS[login].facet)

    with ledger.connect(login) as connection:
        connection.execute(f"set role {own}".encode())
        seen = connection.execute("select session_user, current_user").fetchone()

    assert (login, own) == seen


def test_a_login_has_its_limits(ledger):
    """Connections are limited by the server; timeouts are set when the session starts."""
    names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "search_path")
    with ledger.connect("denial_keeper") as connection:
        settings = [connection.execute(f"show {name}".encode()).fetchone()[0] for name in names]
    with ledger.connect("postgres") as connection:
        limit = connection.execute("select rolconnlimit from pg_roles where rolname = 'denial_keeper'").fetchone()

    assert ["30s", "5s", "10s", "pg_catalog, pg_temp"] == settings
    assert (5,) == limit


def test_the_server_never_sees_a_password(ledger, monkeypatch):
    """Only the SCRAM verifier is sent: a server that logs every statement logs no password."""
    if not isinstance(ledger.server, PostgresServer):
        pytest.skip("the log of a server that was given to us is not ours to read")
    monkeypatch.setenv("PGOPTIONS", "-c log_statement=all")

    try:
        roles.create_login(ledger.dsn, roles.Login("denial_logged", "keeper"), "canary-password")
        written = ledger.server.log.read_text()
    finally:
        with ledger.connect("postgres") as connection:
            connection.execute("drop role if exists denial_logged")
            connection.execute("delete from benteng.login where name = 'denial_logged'")

    assert 'alter role "denial_logged" password' in written
    assert "canary-password" not in written


# --- the matrix -------------------------------------------------------------------------------------------------------


def foreign_verbs(ledger, login):
    """Execute a verb of another facet."""
    return [verb.call for verb in ledger.verbs if verb.name not in facet_of(login)]


def helpers(ledger, _login):
    """Execute what the verbs are made of."""
    return [helper.call for helper in ledger.helpers]


def relations(ledger, _login):
    """Use any table, view or sequence, by name or by number."""
    return [attempt for relation in ledger.relations for attempt in relation.attempts]


def identities(_ledger, login):
    """Act as the owner, another group, another login or the superuser; join them; gain a power."""
    others = ["postgres", roles.OWNER, *(name for name in LOGINS if name != login)]
    groups = [roles.group(facet) for facet in roles.FACET_VERBS if facet != LOGINS[login].facet]
    powers = ("superuser", "createrole", "createdb", "replication", "bypassrls", "connection limit -1")
    return [
        *(f"set role {name}" for name in [*others, *groups]),
        *(f"set local role {name}" for name in [*others, *groups]),
        *(f"set session authorization {name}" for name in [*others, *groups]),
        *(f"grant {name} to {login}" for name in [roles.OWNER, *groups]),
        *(f"alter role {name} password 'x'" for name in others),
        *(f"alter role {name} login" for name in [roles.OWNER, *groups]),
        *(f"alter role {name} rename to mine" for name in others),
        *(f"drop role {name}" for name in others),
        *(f"alter role {login} {power}" for power in powers),
        f"reassign owned by {roles.OWNER} to {login}",
        "create role mine login",
        f"grant pg_read_all_data to {login}",
        f"grant pg_execute_server_program to {login}",
        "alter role postgres set search_path = pg_temp",
    ]


def functions(ledger, login):
    """Replace, change, drop, take or give away a function. Reading its source is no secret."""
    changes = ("security invoker", "set search_path = public", f"owner to {login}", "rename to mine", "cost 1")
    return [
        *(routine.source for routine in ledger.routines),
        *(f"alter function {routine.signature} {change}" for routine in ledger.routines for change in changes),
        *(f"drop function {routine.signature}" for routine in ledger.routines),
        *(f"grant execute on function {routine.signature} to public" for routine in ledger.routines),
    ]


def objects(_ledger, _login):
    """Make what could shadow, store or trap: in our schemas, in public, in the catalogue, or temporarily."""
    body = "returns int language sql as 'select 1'"
    schemas = ("benteng_v1", "benteng", "public", "pg_temp", "pg_catalog")
    return [
        *(f"create function {schema}.claim() {body}" for schema in schemas),
        *(f"create table {schema}.job (n int)" for schema in schemas),
        *(f"create view {schema}.login as select 1 as n" for schema in schemas),
        *(f"create sequence {schema}.fence" for schema in schemas),
        *(f"create type {schema}.move as (n int)" for schema in schemas),
        *(f"create domain {schema}.text as int" for schema in schemas),
        *(f"create operator {schema}.= (leftarg = int, rightarg = int, function = int4eq)" for schema in schemas),
        "create temporary table job (n int)",
        "select 1 as n into temporary login",
        "create schema mine",
        "create extension dblink",
        "create event trigger mine on ddl_command_start execute function benteng.no_change()",
        "create publication mine for all tables",
        "create foreign data wrapper mine",
        "select lo_create(0)",
        "select lo_creat(0)",
        "select lo_from_bytea(0, 'x')",
        "alter default privileges for role benteng_owner grant execute on functions to public",
        "alter schema benteng_v1 rename to old",
        "grant create on schema benteng_v1 to public",
        "grant usage on schema benteng to public",
        "comment on schema benteng_v1 is 'mine'",
    ]


def the_server(ledger, _login):
    """Reach the server's files, programs, settings and catalogues, or other sessions."""
    return [
        "copy (select 1) to program 'id'",
        "copy (select 1) to '/tmp/benteng-denial'",
        "select pg_read_file('/etc/passwd')",
        "select pg_read_binary_file('postgresql.conf')",
        "select pg_ls_dir('.')",
        "select lo_import('/etc/passwd')",
        "select lo_export(1, '/tmp/benteng-denial')",
        "load '/tmp/benteng-denial.so'",
        "select * from pg_authid",
        "select * from pg_shadow",
        "update pg_catalog.pg_proc set prosrc = 'select 1'",
        "delete from pg_catalog.pg_auth_members",
        "alter system set fsync = off",
        "select pg_reload_conf()",
        f"alter database {ledger.dbname} set search_path = pg_temp",
        f"drop database {ledger.dbname}",
        "create database mine",
        "create tablespace mine location '/tmp'",
        "set session_replication_role = replica",
        "set log_statement = 'none'",
        "set session_preload_libraries = 'x'",
        "select pg_switch_wal()",
        "select pg_create_restore_point('x')",
        "select pg_promote()",
        "select pg_create_physical_replication_slot('x')",
        "checkpoint",
        f"select pg_terminate_backend({ledger.bystander})",
        f"select pg_cancel_backend({ledger.bystander})",
    ]


PARTS = {
    part.__name__: part for part in (foreign_verbs, helpers, relations, identities, functions, objects, the_server)
}


@each_login
@pytest.mark.parametrize("part", PARTS)
def test_denied(ledger, login, part):
    """Each attempt of each login is refused by the database."""
    assert {} == allowed(ledger, login, PARTS[part](ledger, login))


@each_login
@pytest.mark.parametrize("part", ["foreign_verbs", "helpers", "relations"])
def test_denied_without_the_first_wall(careless, login, part):
    """Where somebody gave away verbs and the schema of the tables, each verb, helper and table refuses by itself."""
    assert {} == allowed(careless, login, PARTS[part](careless, login))


def test_the_matrix_covers_what_is_installed(ledger, record_property):
    """Every login meets every foreign verb, helper and relation; the size is reported."""
    parts = {name: sum(len(part(ledger, login)) for login in LOGINS) for name, part in PARTS.items()}
    verbs = [verb.name for verb in ledger.verbs]
    record_property("cells", parts)
    print(f"denial matrix: {sum(parts.values())} cells, {parts}")

    assert sum(name not in facet_of(login) for name in verbs for login in LOGINS) == parts["foreign_verbs"]
    assert len(LOGINS) * len(ledger.helpers) == parts["helpers"]
    assert len(LOGINS) * len(ledger.relations) <= parts["relations"] // 3
    assert {"job", "operation", "audit", "login", "fence"} <= {
        r.name.removeprefix("benteng.") for r in ledger.relations
    }


def test_strangers_cannot_connect(ledger, postgres):
    """A login without a group does not get into the database at all."""
    with postgres.connect() as connection:
        connection.execute("drop role if exists denial_stranger")
        connection.execute("create role denial_stranger login")
        if postgres.password:
            connection.execute(f"alter role denial_stranger password '{postgres.password}'".encode())

    with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
        ledger.connect("denial_stranger")


# --- tricks -----------------------------------------------------------------------------------------------------------


@each_login
def test_temporary_names_shadow_nothing(careless, login):
    """Where somebody gave back temporary tables, a verb still sees its own tables, functions and operators."""
    with careless.connect(login) as connection:
        connection.execute("set search_path = pg_temp, pg_catalog")
        connection.execute("create temporary table login (name text, facet text, pool text)")
        connection.execute("insert into login values (session_user, 'operator', 'bill')")
        connection.execute("create temporary table installation (environment text)")
        body = "returns boolean language sql as 'select true'"
        connection.execute(f"create function pg_temp.lies(text, text) {body}".encode())
        connection.execute("create operator pg_temp.= (leftarg = text, rightarg = text, function = pg_temp.lies)")
        connection.execute(f"create function pg_temp.lies(text, name) {body}".encode())
        connection.execute("create operator pg_temp.= (leftarg = text, rightarg = name, function = pg_temp.lies)")
        connection.execute(
            "create function pg_temp.clock_timestamp() returns timestamptz language sql as 'select null::timestamptz'"
        )
        seen = connection.execute("select login, facet, pool from benteng_v1.protocol()").fetchall()

    own = LOGINS[login]
    assert [] == [row for row in seen if row != (own.name, own.facet, own.pool or None)]


@each_login
def test_a_group_without_a_row_may_nothing(postgres, login):
    """A login that is in the group but not registered is refused by each verb itself."""
    with installed(postgres, "delete from benteng.login") as ledger:
        own = [verb.call for verb in ledger.verbs if verb.name in roles.FACET_VERBS[LOGINS[login].facet]]

        assert not own or {} == allowed(ledger, login, own)


# --- making logins ----------------------------------------------------------------------------------------------------


def test_a_role_that_exists_is_not_taken_over(ledger):
    """What an existing role can do was never examined: R-exists."""
    with pytest.raises(PolicyError) as refused:
        roles.create_login(ledger.dsn, LOGINS["denial_keeper"])

    assert "R-exists" == refused.value.rule


def test_an_unreachable_database_says_no_address(ledger):
    """The error of a connection repeats no address and no password."""
    with pytest.raises(StoreUnavailable) as refused:
        roles.install("postgresql://boss:canary@127.0.0.1:1/x")

    assert "canary" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_making_roles_twice_changes_nothing(ledger):
    """`roles create` may be repeated, and takes back what was granted beyond the table."""
    with ledger.connect("postgres") as connection:
        connection.execute("grant execute on all functions in schema benteng_v1 to public, benteng_sealer")
        connection.execute("grant select on all tables in schema benteng to benteng_auditor")
        connection.execute("grant usage on schema benteng to public")

    roles.install(ledger.dsn)

    assert [] == findings.verify(ledger.dsn)


# --- pools ------------------------------------------------------------------------------------------------------------


def test_a_login_opens_no_other_pool(ledger):
    """The pool is the login's: the client says so at once."""
    dsn = ledger.server.dsn("denial_bill", ledger.dbname)

    with pytest.raises(PolicyError) as refused:
        open_consumer(dsn, "patch")

    assert "S-pool" == refused.value.rule


def test_the_verbs_take_no_pool(ledger):
    """A client claims from its login's pool whatever it accepts, and registers for no other by a lie."""
    admit_to_patch(ledger)

    stolen = claimed(ledger, "denial_bill", "bill")
    with ledger.connect("denial_bill") as connection, pytest.raises(psycopg.errors.DatabaseError) as refused:
        connection.execute("select benteng_v1.register('w', 'patch', 'h', 'b', 1, 'v', '{}')")

    assert [] == stolen
    assert "S-pool" == refused.value.diag.message_detail
    assert ["patch@1"] == claimed(ledger, "denial_patch", "patch")


def claimed(ledger, login, pool):
    """The types of what a login is granted."""
    with closing(open_consumer(ledger.server.dsn(login, ledger.dbname), pool)) as consumer:
        return [grant.job.type for grant in consumer.claim(10, ["patch@1"])]


def admit_to_patch(ledger):
    """One ready job of a type of pool patch."""
    policy = make_policy("patch@1", pool="patch")
    with closing(open_operator(ledger.server.dsn("denial_operator", ledger.dbname))) as operator:
        operator.apply_types([type_row(policy)], "test")
    with closing(open_producer(ledger.server.dsn("denial_producer", ledger.dbname))) as producer:
        (receipt,) = producer.admit([Admission(make_job(policy, origin=producer.origin))])
    assert Disposal.ADMITTED == receipt.disposal, receipt
