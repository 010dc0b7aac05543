"""The harness of the PostgreSQL store: a database for each ledger, opened as the least logins, with a test clock.

Only a test installation has that clock: the superuser replaces `benteng.now()` in the ledger's own database, by a body
that reads the clock's file. No role of the ledger can do that, and no ledger that `benteng migrate` made has it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import msgspec
import psycopg
from psycopg import sql

from benteng.store.contract import Auditor, Keeper, Operator, StepwiseConsumer, StepwiseProducer, Store
from benteng.store.open import open_auditor, open_consumer, open_keeper, open_operator, open_producer
from benteng.store.postgres import migrate, roles
from benteng.testing.clock import TestClock
from benteng.testing.ledger import OTHER_POOL, POOL
from benteng.testing.trap import Trap

S = TypeVar("S", bound=Store)
Address = Callable[[str, str], str]
RECIPE = "benteng.testing.postgres:opened"
LOGINS: tuple[roles.Login, ...] = (
    roles.Login("t_producer", "producer"),
    roles.Login("t_default", "consumer", POOL),
    roles.Login("t_other", "consumer", OTHER_POOL),
    roles.Login("t_keeper", "keeper"),
    roles.Login("t_operator", "operator"),
    roles.Login("t_auditor", "auditor"),
)
"""One login a facet, and one a pool: the suite never speaks as the owner."""

_CLOCK = """
create or replace function benteng.now() returns timestamptz
language plpgsql volatile security definer
as $$
declare
  v_bytes bytea := pg_read_binary_file({path}, 0, 8);
  v_us    bigint := 0;
begin
  for v_at in 0 .. 7 loop
    v_us := v_us | (get_byte(v_bytes, v_at)::bigint << (8 * v_at));
  end loop;
  return timestamptz 'epoch' + v_us * interval '1 microsecond';
end $$;
alter function benteng.now() owner to postgres;
grant execute on function benteng.now() to benteng_owner;
"""


@dataclass(frozen=True, slots=True)
class Site:
    """Where a ledger is: an address with places for `{user}` and `{database}`, its database, its clock's directory."""

    address: str
    database: str
    directory: str
    environment: str = "dev"

    def dsn(self, user: str, database: str = "") -> str:
        """Return an address as one login."""
        return self.address.replace("{user}", user).replace("{database}", database or self.database)


class PostgresLedger:
    """A ledger in a database of its own, whose clock is `directory/clock`."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.clock = TestClock(Path(site.directory) / "clock")
        self._opened: list[Store] = []
        self._made: list[PostgresLedger] = []

    @property
    def recipe(self) -> tuple[str, str]:
        """How another process opens this ledger."""
        return RECIPE, msgspec.json.encode(asdict(self.site)).decode()

    def producer(self) -> StepwiseProducer:
        """Open the producer facet."""
        return self._kept(open_producer(self.site.dsn("t_producer"), environment=self.site.environment))

    def consumer(self, pool: str = POOL) -> StepwiseConsumer:
        """Open the consumer facet of one pool."""
        login = next(each.name for each in LOGINS if each.pool == pool)
        return self._kept(open_consumer(self.site.dsn(login), pool, environment=self.site.environment))

    def keeper(self) -> Keeper:
        """Open the keeper facet."""
        return self._kept(open_keeper(self.site.dsn("t_keeper"), environment=self.site.environment))

    def operator(self) -> Operator:
        """Open the operator facet."""
        return self._kept(open_operator(self.site.dsn("t_operator"), environment=self.site.environment))

    def auditor(self) -> Auditor:
        """Open the auditor facet."""
        return self._kept(open_auditor(self.site.dsn("t_auditor"), environment=self.site.environment))

    def _kept(self, store: S) -> S:
        self._opened.append(store)
        return store

    def close(self) -> None:
        """Close every connection that was opened through this harness."""
        for each in (*self._opened, *self._made):
            each.close()
        self._opened.clear()

    def copy(self) -> PostgresLedger:
        """Return a ledger of its own with the same rows and time."""
        return self._made_of(made_from(self.site, self.site.database))

    def production(self) -> PostgresLedger:
        """Return a fresh `prod` installation."""
        site = replace(self.site, environment="prod")
        return self._made_of(made_from(site, template(site)))

    def _made_of(self, ledger: PostgresLedger) -> PostgresLedger:
        ledger.clock.set(self.clock())
        self._made.append(ledger)
        return ledger

    def trap(self, kill_at: int) -> Trap:
        """Return a trap that steps at every statement of every connection of this process.

        For a child that is meant to die: nothing takes the hook out again.
        """
        trap, execute = Trap(kill_at), psycopg.Cursor.execute

        def traced(cursor: psycopg.Cursor[Any], query: Any, *arguments: Any, **options: Any) -> Any:
            trap.step()
            return execute(cursor, query, *arguments, **options)

        setattr(psycopg.Cursor, "execute", traced)  # noqa: B010 - the overloads of psycopg forbid the plain form
        return trap

    def give_away(self, job_id: str, origin: str) -> None:
        """Make a job look as if another origin had admitted it."""
        for table, key in (("operation", "job_id"), ("job", "id"), ("quarantine", "id")):
            statement = sql.SQL("update benteng.{} set origin = %s where {} = %s")
            self.by_hand(statement.format(sql.Identifier(table), sql.Identifier(key)), origin, job_id)

    def damage(self, job_id: str) -> None:
        """Make the row of a job undecodable."""
        self.by_hand(sql.SQL("update benteng.job set tier = 'unheard-of' where id = %s"), job_id)

    def swap_payload(self, job_id: str) -> None:
        """Put another payload into the row of a job."""
        self.by_hand(sql.SQL("update benteng.job set payload = '{}' where id = %s"), job_id)

    def by_hand(self, statement: sql.SQL | sql.Composed, *values: str) -> None:
        """Do what no facet may, as the superuser."""
        with superuser(self.site) as connection:
            connection.execute(statement, values)

    def remove(self) -> None:
        """Close, and drop the database and those that were made beside it, closed or not."""
        self.close()
        for each in self._made:
            each.remove()
        self._made.clear()
        drop(self.site)
        shutil.rmtree(self.site.directory, ignore_errors=True)


def opened(address: str) -> PostgresLedger:
    """Open the ledger that a recipe names, in another process."""
    return PostgresLedger(msgspec.json.decode(address, type=Site))


def fresh(address: Address, environment: str = "dev") -> PostgresLedger:
    """Return a fresh ledger on the server at `address(user, database)`, whose user `postgres` is the superuser."""
    site = Site(address("{user}", "{database}").replace("%7B", "{").replace("%7D", "}"), "", "", environment)
    return made_from(site, template(site))


def made_from(site: Site, source: str) -> PostgresLedger:
    """Return a ledger in a new database that is a copy of another; whoever is connected to that one is disconnected."""
    directory = Path(tempfile.mkdtemp(prefix="benteng-clock-"))
    directory.chmod(0o755)  # the server's user reads the clock
    new = replace(site, database=f"t_{uuid4().hex}", directory=str(directory))
    with superuser(site, "postgres") as connection:
        connection.execute("select pg_terminate_backend(pid, 5000) from pg_stat_activity where datname = %s", [source])
        names = sql.Identifier(new.database), sql.Identifier(source)
        connection.execute(sql.SQL("create database {} template {}").format(*names))
        connection.execute(sql.SQL("revoke all on database {} from public").format(names[0]))
        groups = sql.SQL(", ").join(sql.Identifier(roles.group(facet)) for facet in roles.FACET_VERBS)
        connection.execute(sql.SQL("grant connect on database {} to {}").format(names[0], groups))
    ledger = PostgresLedger(new)
    ledger.clock.path.chmod(0o644)
    with superuser(new) as connection:
        connection.execute(sql.SQL(_CLOCK).format(path=sql.Literal(str(ledger.clock.path))))
    return ledger


def template(site: Site) -> str:
    """Return the name of a database that holds an empty ledger of the environment; made once on each server."""
    name = f"template_{site.environment}"
    with superuser(site, "postgres") as connection:
        if connection.execute("select from pg_database where datname = %s", [name]).fetchone() is None:
            connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
            _fill(replace(site, database=name))
    return name


def _fill(site: Site) -> None:
    migrate.up(site.dsn("postgres"), site.environment)
    with superuser(site) as connection:
        for login in LOGINS:
            if connection.execute("select from pg_roles where rolname = %s", [login.name]).fetchone() is None:
                connection.execute(roles.login_sql(login).encode())
            else:
                values = [login.name, login.facet, login.pool or None]
                connection.execute("insert into benteng.login (name, facet, pool) values (%s, %s, %s)", values)


def drop(site: Site) -> None:
    """Drop the database of a ledger, whoever is connected to it."""
    with superuser(site, "postgres") as connection:
        connection.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(site.database)))


def superuser(site: Site, database: str = "") -> psycopg.Connection[Any]:
    """Connect as the server's superuser, each statement its own transaction."""
    return psycopg.connect(site.dsn("postgres", database), autocommit=True)
