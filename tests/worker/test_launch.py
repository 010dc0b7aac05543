"""What a worker refuses to start with, and how it says so."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from benteng import lockfile
from benteng.audit import SUMMARY_BYTES_MAX
from benteng.errors import PolicyError
from benteng.lockfile import to_rows
from benteng.policy import LIMITS, Effect, Tier, TypePolicy
from benteng.store.open import open_operator
from benteng.worker.launch import WorkerSettings, check, facts_of, run_worker
from benteng.worker.pool import Pool

LOW = TypePolicy(name="greet@1", tier=Tier.LOW, effect=Effect.REPEATABLE, limits=LIMITS[Tier.LOW])


def settings(tmp_path, **changes):
    """Settings of a worker with one LOW type, with changes."""
    for name in ("store", "app"):
        (tmp_path / name).mkdir(exist_ok=True)
    dsn = f"sqlite:///{tmp_path}/store/b.db"
    made = WorkerSettings(dsn=dsn, app="a:app", lock={LOW.name: LOW}, cwd=tmp_path / "app", say=silent)
    return dataclasses.replace(made, **changes)


def silent(event, /, **fields):
    """Tell nobody."""


@pytest.mark.parametrize("where", ["cwd", "artifact_dir", "scratch_parent"])
def test_the_store_must_not_lie_where_cells_may_read(tmp_path, where):
    """A pool whose readable directories contain the store's file does not start (DESIGN section 2)."""
    with pytest.raises(PolicyError, match="W-roots"):
        check(settings(tmp_path, **{where: tmp_path}))


def test_a_link_does_not_hide_where_the_store_is(tmp_path):
    """Paths are compared after links are followed."""
    (tmp_path / "link").symlink_to(tmp_path)

    with pytest.raises(PolicyError, match="W-roots"):
        check(settings(tmp_path, cwd=tmp_path / "link"))


def test_a_variable_that_names_the_store_is_refused(tmp_path, monkeypatch):
    """Also when the pool lists it under a harmless name."""
    monkeypatch.setenv("HARMLESS", f"look at sqlite:///{tmp_path}/store/b.db")

    with pytest.raises(PolicyError, match="W-env"):
        check(settings(tmp_path, pool=Pool(env=("HARMLESS",))))


@pytest.mark.parametrize("name", ["BENTENG_DSN", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "api_key", "GH_TOKEN"])
def test_a_pool_does_not_list_credentials(name):
    """Names that look like secrets are refused when the pool is made."""
    with pytest.raises(PolicyError, match="W-env"):
        Pool(env=(name,))


@pytest.mark.parametrize("changes", [{"concurrency": 0}, {"concurrency": 1001}, {"uid": 0, "gid": 0}, {"uid": 5}])
def test_a_pool_that_cannot_be_is_refused(changes):
    """Bounds of concurrency; a uid with its gid, and never root."""
    with pytest.raises(PolicyError, match="W-"):
        Pool(**changes)


def test_prod_refuses_what_is_not_enforced_yet(tmp_path):
    """MEDIUM and HIGH need parts that are pending; dev only says so."""
    medium = msgspec.structs.replace(LOW, tier=Tier.MEDIUM)

    check(settings(tmp_path, lock={LOW.name: medium}))
    with pytest.raises(PolicyError, match="P-action"):
        check(settings(tmp_path, lock={LOW.name: medium}, environment="prod"))


def test_an_empty_pool_is_refused(tmp_path):
    """Nothing to do is a mistake in the name."""
    with pytest.raises(PolicyError, match="W-pool"):
        check(settings(tmp_path, pool=Pool(name="other")))


def test_a_worker_is_known_by_facts(tmp_path):
    """Host, boot, pid and start: not a name that it chose (cases.md C11)."""
    facts = facts_of(settings(tmp_path), frozenset())

    assert facts.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert str(facts.pid) in facts.worker
    assert {LOW.name: LOW.sha256} == facts.types


def test_what_holds_the_cells_is_in_the_log_when_a_worker_starts(bed):
    """Layers that were tried, what is missing, waivers written out and the pool's settings; no address, no value."""
    worker = bed.worker(waive=["seccomp"], read=["/srv/inventory"])
    job = bed.enqueue("greet@1", name="a")
    bed.ended(job)
    worker.stop()

    (said,) = [
        json.loads(r["summary"]) for r in map(json.loads, bed.audit().splitlines()) if r["event"] == "registered"
    ]
    assert ["seccomp"] == said["waive"]
    assert ["low", "medium", "high"] == sorted(said["tiers"], key=["low", "medium", "high"].index)
    assert "landlock_files" in said["tiers"]["high"]["in_force"]
    assert {"seccomp", "no_network"} <= set(said["tiers"]["high"]["missing"])
    assert ["/srv/inventory"] == said["settings"]["read"]
    assert len(bed.policies) == said["policies"]["count"]
    assert str(bed.path) not in json.dumps(said)


def test_a_refusal_to_start_is_in_the_log(bed, monkeypatch):
    """A worker below its minimum is known to whoever reads the log, not only to whoever sees its stderr."""
    worker = bed.worker(env=["EFFECTS", "HARMLESS"], environ={"HARMLESS": bed.dsn})

    assert 78 == worker.exit_code()
    (said,) = refusals(bed)
    assert "W-env" == said["rule"]
    assert "HARMLESS" in said["reason"]
    assert "tiers" in json.loads(said["summary"])


def refusals(bed):
    """Return what the log has of workers that were refused."""
    return [r for r in map(json.loads, bed.audit().splitlines()) if r["event"] == "worker_refused"]


def test_a_refusal_makes_no_ledger(tmp_path):
    """One that is not there yet, perhaps at the wrong place, is not made to hold the reason why nothing starts."""
    asked = settings(tmp_path, cwd=tmp_path)

    assert 78 == run_worker(asked)
    assert not (tmp_path / "store" / "b.db").exists()


def test_what_a_worker_says_is_bounded_and_keeps_its_waivers(tmp_path):
    """Lists of the settings give way, as number and digest; what holds the cells and what is waived does not."""
    paths = tuple(f"/srv/\u00e9-{number:04}" for number in range(1_000))
    said = facts_of(settings(tmp_path, pool=Pool(read=paths, waive=frozenset({"seccomp"}))), frozenset({"group"}))

    assert len(said.isolation.encode()) <= SUMMARY_BYTES_MAX
    assert said.isolation.isascii()
    found = json.loads(said.isolation)
    assert ["seccomp"] == found["waive"]
    assert 1_000 == found["settings"]["read"]["count"]
    assert "group" in found["tiers"]["low"]["in_force"]


def test_code_that_differs_from_the_lock_file_is_refused(bed):
    """The difference is named, nothing is claimed, the exit code is 78."""
    greet = bed.policies["greet@1"]
    other = msgspec.structs.replace(greet, limits=msgspec.structs.replace(greet.limits, attempts_max=4))
    lockfile.write(bed.root / "benteng.lock", bed.policies | {"greet@1": other})
    job = bed.enqueue("greet@1", name="a")
    worker = bed.worker()

    said = worker.wait("refused")

    assert 78 == worker.exit_code()
    assert "greet@1: limits.attempts_max 4 -> 5" in said["why"]
    assert "ready" == bed.status(job).state


def test_a_ledger_that_differs_from_the_lock_file_is_refused(bed):
    """Lock file, code and ledger must agree, else nothing is claimed."""
    greet = bed.policies["greet@1"]
    other = msgspec.structs.replace(greet, limits=msgspec.structs.replace(greet.limits, attempts_max=4))
    with closing(open_operator(bed.dsn)) as operator:
        operator.apply_types(to_rows({"greet@1": other}), "behind the lock file's back")
    worker = bed.worker()

    said = worker.wait("refused")

    assert 78 == worker.exit_code()
    assert "greet@1" in said["why"]
    assert not worker.all("claimed")


@pytest.mark.parametrize(
    "app,why", [("broken:app", "SystemExit"), ("nowhere:app", "ModuleNotFoundError"), ("json:loads", "W-app")]
)
def test_an_app_that_cannot_be_imported_is_refused(bed, app, why):
    """Whatever the module raises, also SystemExit; without a secret that it said on the way."""
    worker = bed.worker(app=app)

    said = worker.wait("refused")

    assert 78 == worker.exit_code()
    assert why in json.dumps(said)
    assert "hunter2hunter2" not in json.dumps(worker.events)
    (record,) = refusals(bed)
    assert (said["rule"], said["why"]) == (record["rule"], record["reason"])


@pytest.fixture
def threaded(tmp_path, app_registry):
    """A bed for the app that starts a thread at import."""
    from tests.worker.bed import Bed

    made = Bed(tmp_path, app_registry("threads"))
    yield made
    made.close()


def test_threads_at_import_are_refused_by_name(threaded):
    """A fork would lose the thread and keep its locks (questions.md 13)."""
    worker = threaded.worker(app="threads:app")

    said = worker.wait("refused")

    assert 78 == worker.exit_code()
    assert "W-threads" == said["rule"]
    assert "telemetry" in said["why"]


def test_such_an_app_runs_in_executed_cells(threaded):
    """With start = "exec" each cell imports the app itself; the supervisor never does: it has no such thread."""
    worker = threaded.worker(app="threads:app", start="exec")

    status = threaded.ended(threaded.enqueue("greet@1", name="dunia"))

    assert ("completed", b'"Halo, dunia"') == (status.state, status.result)
    assert 1 == sum(1 for _ in Path(f"/proc/{worker.pid}/task").iterdir())


def test_a_pidfd_that_is_no_cell_is_not_believed(tmp_path, app_registry):
    """A zygote that hands over another process, to have it killed, is killed itself; the supervisor lives."""
    from tests.worker.bed import Bed

    with closing(Bed(tmp_path, app_registry("pidfds"))) as bed:
        worker = bed.worker(app="pidfds:app")

        assert "pidfd" in worker.wait("suspicious")["why"]
        worker.wait("zygote_lost")
        assert 0 == worker.stop(), worker.events


CHANGING = """
from benteng.app import Benteng
app = Benteng()

@app.job(attempts_max={attempts}, lease_seconds=5.0)
def greet(name: str) -> str:
    return name
"""


def test_a_new_zygote_is_compared_anew(tmp_path, app_registry):
    """Code that was changed under a running worker gets no cell: the worker drains and exits with 78."""
    from tests.worker.bed import Bed

    (tmp_path / "app").mkdir()
    (tmp_path / "bed").mkdir()
    code = tmp_path / "app" / "changing.py"
    code.write_text(CHANGING.format(attempts=5))
    with closing(Bed(tmp_path / "bed", app_registry(str(code)))) as bed:
        worker = bed.worker(app="changing:app", cwd=tmp_path / "app")
        bed.ended(bed.enqueue("greet@1", name="before"))
        code.write_text(CHANGING.format(attempts=4))
        os.kill(worker.zygote(), signal.SIGKILL)

        assert "attempts_max" in worker.wait("refused", rule="L-differs")["why"]
        assert 78 == worker.exit_code()
        assert 1 == len(worker.all("ready"))
        assert ["L-differs"] == [record["rule"] for record in refusals(bed)]
