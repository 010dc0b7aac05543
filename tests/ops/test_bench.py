"""`benteng bench`: it measures with every record counted, tells when they are missing, and leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any
from xml.etree import ElementTree as ET

import msgspec
import psycopg
import pytest

from benteng.ops.bench.chart import svg
from benteng.ops.bench.marks import ENDED, RUNS, Marks
from benteng.ops.bench.phases import percentiles
from benteng.ops.bench.report import Cost, Point, Report, Row
from benteng.policy import PENDING

SECONDS_MAX = 240
"""Several workers start one after another, on a machine that does other things too."""
LONG = os.environ.get("BENTENG_TEST_LONG") == "1"


def bench(directory, *arguments, **variables):
    """Run the command in a directory of its own; return its exit code, its document and its talk."""
    done = subprocess.run(
        [sys.executable, "-m", "benteng.ops", "bench", "--json", *arguments],
        cwd=directory,
        env=os.environ | {"TMPDIR": str(directory / "tmp")} | variables,
        capture_output=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    said: dict[str, Any] = msgspec.json.decode(done.stdout)
    return done.returncode, said, done.stderr.decode()


@pytest.fixture
def home(tmp_path):
    """Return an installation's directory with a ledger's address, and a place for temporary files."""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "benteng.toml").write_text('dsn = "sqlite:///own/queue.db"\n')
    (tmp_path / "benteng.toml").chmod(0o600)
    return tmp_path


def left(home):
    """Return what a run left behind."""
    return [str(path.relative_to(home)) for path in home.rglob("*") if path.name not in ("tmp", "own", "benteng.toml")]


@pytest.mark.timeout(SECONDS_MAX)
def test_every_phase_counts_what_the_ledger_wrote(home):
    """One operation and one record for each job let in, two more for each that was worked off; nothing is left."""
    code, said, talk = bench(
        home, "--jobs", "40", "--seconds", "0.5", "--backlog", "60", "--concurrency", "2", "--plot", "plot.svg"
    )

    assert (0, "") == (code, talk)
    enqueue, drain = said["rows"][:3], said["rows"][3]
    assert [(1.0, 1.0)] * 3 == [(row["operations"], row["audit"]) for row in enqueue]
    assert (120, 2.0) == (drain["jobs"], drain["audit"])
    assert [3.0, 3.0] == [row["audit"] for row in said["rows"][4:6]]
    assert all(row["p50_ms"] > 0 for row in said["rows"][4:6])
    assert [] == said["problems"]
    assert ("wal", "full", "D1") == tuple(said["store"][name] for name in ("journal_mode", "synchronous", "durability"))
    assert said["points"]
    assert ["plot.svg"] == left(home)


@pytest.mark.timeout(SECONDS_MAX)
def test_scratch_database_and_its_logins_are_gone_afterwards(home, postgres):
    """On PostgreSQL a run has a database and logins of its own, reads the server's settings, and drops both."""
    code, said, talk = bench(
        home,
        *("enqueue", "drain", "--tier", "medium", "--jobs", "20", "--concurrency", "2"),
        BENTENG_DSN=postgres.dsn("nobody", "nothing"),
        BENTENG_DBA_DSN=postgres.dsn("postgres", "postgres"),
    )

    assert (0, "") == (code, talk)
    assert "medium" == said["tier"]
    assert [1.0, 1.0, 1.0, None] == [row["operations"] for row in said["rows"]]
    with psycopg.connect(postgres.dsn("postgres", "postgres"), autocommit=True) as connection:
        assert [(said["store"]["fsync"],)] == connection.execute("show fsync").fetchall()
        databases = connection.execute(
            "select datname from pg_database where datname like 'benteng_bench_%'"
        ).fetchall()
        roles = connection.execute("select rolname from pg_roles where rolname like 'benteng_bench_%'").fetchall()
    assert ([], []) == (databases, roles)
    assert [] == left(home)


def test_postgres_without_an_administrator_is_refused(home):
    """Nobody's own ledger is filled with no-op jobs because a scratch database could not be made."""
    code, said, talk = bench(home, "enqueue", BENTENG_DSN="postgresql://web@/app")

    assert code == said["exit"]
    assert "BENTENG_DBA_DSN" in talk


@pytest.mark.skipif(not LONG, reason="long: runs with BENTENG_TEST_LONG=1")
@pytest.mark.timeout(SECONDS_MAX)
def test_every_layer_has_a_row(home):
    """What cannot be measured yet is in the table too, so that it is missed."""
    code, said, _ = bench(home, "--layers", "--jobs", "20", "--concurrency", "2")

    named = {cost["layer"] for cost in said["costs"]}
    assert code == 0
    assert {"low ledger", "low work", "medium work", "medium seccomp", "high signature", "high work"} <= named
    assert {row.floor for row in PENDING} <= named


def test_missing_records_are_a_problem():
    """A figure without its records is not believed: operations, audit records and runs are compared with the jobs."""
    report = Report("low", "sqlite", {})

    report.check("good", 10, operations=10, audit=20, runs=[1] * 10)
    report.check("no operation", 10, operations=9, audit=20)
    report.check("no audit", 10, operations=10, audit=9)
    report.check("twice", 10, operations=10, audit=20, runs=[1, 2])
    report.check("never", 10, operations=10, audit=20, runs=[0, 1])

    assert ["no operation", "no audit", "twice", "never"] == [each.partition(":")[0] for each in report.problems]


def test_witness_is_shared_by_processes(tmp_path):
    """What a handler's process marks, the benchmark sees; a second run of the same job shows."""
    marks = Marks.make(tmp_path / "marks", 3)
    code = "import sys, pathlib, benteng.ops.bench.marks as m; m.Marks(pathlib.Path(sys.argv[1])).run(1)"

    for _ in range(2):
        subprocess.run([sys.executable, "-c", code, str(tmp_path / "marks")], check=True)

    assert [0, 2, 0] == marks.column(RUNS, range(3))
    assert [False, True, False] == [bool(each) for each in marks.column(ENDED, range(3))]


def test_plot_is_xml_with_each_series():
    """A browser can show it; names are escaped."""
    report = Report("low", "sqlite <1>", {}, points=[Point(0.0, 4.0, None, None), Point(0.25, 8.0, 1.5, 3.0)])

    root = ET.fromstring(svg(report))  # noqa: S314 - our own text

    lines = [each.get("class") for each in root.iter() if each.tag.endswith("polyline")]
    assert ["rate", "p50", "p99"] == lines
    assert "benteng bench: sqlite <1>, tier low" == next(root.iter("{http://www.w3.org/2000/svg}title")).text


def test_report_tells_people_what_is_not_known():
    """A dash is not a zero."""
    report = Report("low", "sqlite", {}, [Row("drain", 10, 2.0, audit=2.0)], [Cost("anchor", "to come", None)])

    assert [["drain", "10", "5", "-", "-", "-", "2.0"]] == report.table()
    assert [["anchor", "-", "", "to come"]] == report.cost_table()


@pytest.mark.parametrize("values, expected", [([], (None, None)), ([3.0], (3.0, 3.0))], ids=["none", "one"])
def test_percentiles_of_few_values(values, expected):
    """A short run has no statistics to invent."""
    assert expected == percentiles(values)
