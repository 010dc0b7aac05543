"""N and N-1: what a ledger of this version says to clients of the version before and after."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from benteng.errors import StoreError
from benteng.lifecycle import State
from benteng.store.postgres import connection, migrate, wire
from benteng.store.postgres.connection import PROTOCOL
from benteng.store.records import Query
from benteng.testing.bench import settlement
from benteng.testing.ledger import LOW
from tests.support.fixtures import need

ROOT = Path(__file__).resolve().parents[3]
FACETS = ["producer", "consumer", "keeper", "operator", "auditor"]
RANGE = """
create or replace function benteng_v1.protocol()
returns table (oldest integer, newest integer, login text, facet text, pool text, environment text)
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select {oldest}, {newest}, l.name, l.facet, l.pool, i.environment
  from benteng.installation i
  left join benteng.login l on l.name = session_user
$$
"""
CLIENT = """
import json, sys
import benteng
from benteng.errors import BentengError
from benteng.store.open import open_consumer, open_producer
from benteng.store.postgres.connection import PROTOCOL
from benteng.store.records import Admission
from benteng.testing.bench import settlement
from benteng.testing.ledger import MEDIUM, POOL, make_job

said = {"protocol": PROTOCOL, "file": benteng.__file__}
try:
    producer, consumer = open_producer(sys.argv[1]), open_consumer(sys.argv[2], POOL)
    job = make_job(MEDIUM, origin=producer.origin, operation="o-1", resources=("host:a",))
    (receipt,) = producer.admit([Admission(job)])
    (grant,) = consumer.claim(1, [job.type])
    (settled,) = consumer.settle([settlement(grant, result=b'"done"')])
    said |= {"disposal": receipt.disposal, "fence": grant.lease.fence, "state": settled.state}
except BentengError as error:
    said |= {"error": type(error).__name__, "why": str(error)}
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def previous(tmp_path_factory):
    """The interpreter of an environment with the previous version in it, built and installed without network.

    There is no release yet: it is this tree with its protocol number lowered by one.
    """
    need("" if importlib.util.find_spec("ensurepip") else "no ensurepip: the previous version cannot be installed")
    place = tmp_path_factory.mktemp("previous")
    wheel = built(source(place / "tree"), place / "dist")
    venv.create(place / "env", with_pip=True)
    python = place / "env" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", wheel)
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    # What benteng depends on is ours; our own benteng is not, because no .pth file is read behind a .pth file.
    Path(site, "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def source(tree):
    """Copy what a wheel is made of, one protocol back."""
    shutil.copytree(ROOT / "src", tree / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    module = tree / "src" / "benteng" / "store" / "postgres" / "connection.py"
    now, before = f"\nPROTOCOL = {PROTOCOL}\n", f"\nPROTOCOL = {PROTOCOL - 1}\n"
    text = module.read_text()
    assert 1 == text.count(now)
    module.write_text(text.replace(now, before))
    return tree


def built(tree, target):
    """Build the wheel of a tree with the locked backend."""
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", target, cwd=tree)
    (wheel,) = target.glob("*.whl")
    return wheel


def run(*command, **options):
    """Run a command that must succeed, and return what it says."""
    done = subprocess.run(list(map(str, command)), check=False, capture_output=True, text=True, **options)
    assert 0 == done.returncode, done.stderr
    return done.stdout


def asked(python, ledger):
    """Let the previous version admit, claim and settle a job, as two logins, and return what it met."""
    return json.loads(run(python, "-I", "-c", CLIENT, ledger.site.dsn("t_producer"), ledger.site.dsn("t_default")))


def test_previous_version_runs_a_job(previous, bench, ledger, owner):
    """While a ledger speaks N-1 and N, workers and producers of the version before go on through an upgrade."""
    owner.execute(RANGE.format(oldest=PROTOCOL - 1, newest=PROTOCOL).encode())

    said = asked(previous, ledger)

    assert {"protocol": PROTOCOL - 1, "disposal": "admitted", "state": "completed"}.items() <= said.items()
    assert not Path(said["file"]).is_relative_to(ROOT)
    (line,) = bench.operator.find(Query()).lines
    view = bench.view(line.job_id)
    assert (State.COMPLETED, b'"done"', said["fence"]) == (view.state, view.result, view.fence)


def test_previous_version_is_refused_where_it_is_too_old(previous, bench, ledger):
    """A ledger that does not speak N-1 any more refuses its clients by name before a verb, and nothing is stored."""
    said = asked(previous, ledger)

    assert "StoreError" == said["error"]
    assert f"protocol {PROTOCOL} to {PROTOCOL}, this benteng {PROTOCOL - 1}" in said["why"]
    assert () == bench.operator.find(Query()).lines


def test_client_that_knows_fewer_arguments_is_understood(bench, monkeypatch):
    """Workers of before migration 006 do not say what their attempts did with the network."""
    monkeypatch.setattr(wire, "used", lambda _: ())
    monkeypatch.setattr(wire, "NOT_PLAIN", ())
    monkeypatch.setattr(wire, "is_plain", lambda _: False)
    bench.admit(bench.job(), bench.job())
    one, two = bench.claim(2)

    turn = bench.consumer.turn([settlement(one)], 1, [LOW.name])
    bench.journal.settled(turn.settled)
    settled = bench.settle(settlement(two, error="it says"))

    assert [one.job.id, two.job.id] == [each.job_id for each in (*turn.settled, *settled)]


def test_parameters_that_were_added_leave_one_verb(owner):
    """Two functions of a name would make the call of a client of before ambiguous: the old one is dropped."""
    for verb, added in OLD.items():
        schema, name = verb.split(".")
        owner.execute(f"create function {verb}({added}) returns void language sql as ''".encode())
        assert 2 == _count(owner, schema, name)

    owner.execute(next(step.text for step in migrate.migrations() if "006" in step.name).encode())

    assert {1} == {_count(owner, *verb.split(".")) for verb in OLD}


OLD = {
    "benteng_v1.settle": "benteng_v1.settlement[], benteng_v1.entrance[], boolean",
    "benteng_v1.turn": "benteng_v1.settlement[], benteng_v1.entrance[], bigint, text[], text",
    "benteng.end_attempts": "benteng.login, benteng_v1.settlement[], benteng_v1.entrance[], boolean",
    "benteng.move_jobs": "benteng.move[], timestamptz",
    "benteng.note": "benteng.move[], timestamptz",
}
"""What migration 006 drops: functions as they were before, by their parameters."""


def _count(owner, schema, name):
    asked = "select count(*) from pg_proc where proname = %s and pronamespace = %s::regnamespace"
    return owner.execute(asked.encode(), [name, schema]).fetchone()[0]


@pytest.mark.parametrize("facet", FACETS)
@pytest.mark.parametrize("step", [-1, 1], ids=["older", "newer"])
def test_client_outside_the_range_is_refused(ledger, monkeypatch, facet, step):
    """Whatever it opens, a client older or newer than the ledger's range gets a typed error with both numbers."""
    monkeypatch.setattr(connection, "PROTOCOL", PROTOCOL + step)

    with pytest.raises(StoreError, match=f"protocol {PROTOCOL} to {PROTOCOL}, this benteng {PROTOCOL + step}"):
        getattr(ledger, facet)()


@pytest.mark.parametrize("step", [-1, 0], ids=["previous", "present"])
def test_client_within_the_range_is_let_in(ledger, owner, monkeypatch, step):
    """A ledger that speaks two protocols opens for both."""
    owner.execute(RANGE.format(oldest=PROTOCOL - 1, newest=PROTOCOL).encode())
    monkeypatch.setattr(connection, "PROTOCOL", PROTOCOL + step)

    assert "t_producer" in ledger.producer().origin
