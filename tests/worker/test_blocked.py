"""Errors that the walls of a cell caused say so; nothing else does. In real cells, and the pure part alone."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from benteng.ops.why import explain
from benteng.redact import ERROR_BYTES_MAX
from benteng.worker.blocked import SECRET, Bounds, blocked, explained, sentence
from benteng.worker.denial import denial
from benteng.worker.sandbox import landlock
from benteng.worker.wire import Act, Denied
from tests.support.others import passable
from tests.worker.bed import APPS, Bed

WALLS = pytest.mark.skipif(landlock.abi() == 0, reason="this kernel has no Landlock, so no tier above LOW")
NETWORK = "use the network; name host and port in egress of [pool.{pool}]"
CALL = "start a process, or make a system call that cells do not have; threads work"
PASSWD = 'open /etc/passwd; add read = ["/etc/passwd"], or write, to [pool.{pool}]'
SAID = {
    "read": PASSWD,
    "relative": PASSWD,
    "write": 'write {root}/project/barred.py; add write = ["{root}/project/barred.py"] to [pool.{pool}]',
    "key": "open {root}/keys/producer.key; " + SECRET,
    "store": "open {root}/store/benteng.db; " + SECRET,
    "around": "open {root}/store; " + SECRET,
    "connect": NETWORK,
    "urllib": NETWORK,
    "program": "start a program; name it in exec of [pool.{pool}]",
    "fork": CALL,
    "mode": "change mode, owner or times of {root}/scratch/",
    "memory": CALL,
    "wrapped": PASSWD,
    "forged-long": PASSWD,
}
NOT_SAID = ["own", "absent", "forged", "class", "bad"]
WHERE = {"medium": [*SAID], "high": ["read", "write", "key", "connect", "wrapped", "memory"]}


def ours(error):
    """Whether an error has a sentence that is not marked as the handler's."""
    return "blocked by pool" in error.lower().replace("(says the handler) blocked by pool", "")


@pytest.fixture(scope="module")
def bed(app_registry):
    """A ledger, the app in a project of its own, and a worker for each tier, started when a test needs it."""
    root = passable("barred")
    (root / "project").mkdir()
    shutil.copy(APPS / "barred.py", root / "project")
    made = Bed(root, app_registry("barred"))
    yield made
    made.close()
    shutil.rmtree(root)


@pytest.fixture(scope="module")
def failed(bed):
    """Run a job that fails, in a pool's worker; return how it is shown."""
    started = set()

    def run(pool, name):
        if pool not in started:
            bed.worker(name=pool, app="barred:app", cwd=bed.root / "project", keeper=not started).wait("ready")
            started.add(pool)
        job = bed.enqueue(f"{pool}@1", name=name, host="web-1")
        assert "quarantined" == bed.ended(job).state
        return bed.show(job)

    return run


@WALLS
@pytest.mark.parametrize(
    "pool, name",
    [pytest.param(pool, name, id=f"{pool}-{name}") for pool, acts in WHERE.items() for name in acts],
)
def test_what_the_walls_blocked_is_said_with_what_would_allow_it(bed, failed, pool, name):
    """`benteng why` and `show` have the pool, the act, its path, and the setting."""
    view = failed(pool, name)

    said = f"blocked by pool {pool}: " + SAID[name].format(pool=pool, root=bed.root)
    assert said in view.error
    assert said in "\n".join(explain(view, [view.job.type]).facts)


@WALLS
@pytest.mark.parametrize("name", NOT_SAID)
def test_what_was_not_the_walls_fault_is_not_said(failed, name):
    """A file of one's own without its mode, one that is absent, another class, what cannot be read, a handler's lie."""
    view = failed("medium", name)

    assert not ours(view.error)
    assert name != "class" or "suspicious" == view.reason


@WALLS
def test_a_lie_is_marked_as_one(failed):
    """Advice that a handler made up is not taken for the supervisor's; long text does not push the true one out."""
    assert "(says the handler) blocked by pool medium: open /;" in failed("medium", "forged").error
    assert failed("medium", "forged-long").error.endswith("to [pool.medium]")


@WALLS
def test_nobody_is_told_to_open_what_is_open(bed, failed):
    """A handler that claims a denial of what its cells may read gets no advice to read; writing is another matter."""
    error = failed("medium", "forged-open").error

    assert "add read" not in error


@WALLS
def test_a_path_is_cleaned_and_scrubbed(failed):
    """What a handler gives as path comes into a sentence that people and terminals read."""
    error = failed("medium", "forged-secret").error

    assert "blocked by pool medium" in error
    assert "\x1b" not in error
    assert "hunter2" not in error


@pytest.mark.parametrize("name", ["forged-secret", "forged"])
def test_low_has_no_walls(failed, name):
    """What is denied there is denied by the host, and no setting of the pool changes it."""
    assert not ours(failed("low", name).error)


SCRATCH = Path("/scratch")
BOUNDS = Bounds("p", ("/srv/app", "/usr/lib"), ("/srv/out",), ("/srv/store/b.db", "/srv/app/.keys"), own_uid=False)


@pytest.mark.parametrize(
    "path, said",
    [
        ("/etc/hosts", 'open /etc/hosts; add read = ["/etc/hosts"], or write'),
        ("/srv/app/a", 'write /srv/app/a; add write = ["/srv/app/a"]'),
        ("/srv/app/../../etc/x", "open /etc/x; add read"),
        ("/srv/application", "open /srv/application; add read"),
        ("/srv/out/a", ""),
        ("/srv/store/b.db", f"open /srv/store/b.db; {SECRET}"),
        ("/srv/store", f"open /srv/store; {SECRET}"),
        ("/", f"open /; {SECRET}"),
        ("/srv/app/.keys/k", f"open /srv/app/.keys/k; {SECRET}"),
        ('/a"b', 'add read = ["/a\\"b"]'),
        ("", ""),
        ("relative", ""),
    ],
    ids=["out", "in", "dots", "prefix", "written", "secret", "above", "root", "within", "quote", "none", "relative"],
)
def test_a_path_is_compared_with_what_the_cells_may_touch(path, said):
    """The advice is the least that would do; what holds a secret is never advised."""
    found = sentence(Denied(Act.FILE, path), BOUNDS)

    assert said in found
    assert bool(said) == bool(found)
    assert "read = " not in found or SECRET not in found


def test_an_own_uid_changes_modes():
    """Then a denial had another reason."""
    assert "uid and gid" in sentence(Denied(Act.MODE, "/x"), BOUNDS)
    assert "" == sentence(Denied(Act.MODE, "/x"), replace(BOUNDS, own_uid=True))


def test_a_program_that_is_listed_was_not_blocked():
    """It failed to start for a reason of its own."""
    assert "exec of [pool.p]" in sentence(Denied(Act.PROGRAM, "/usr/bin/git"), BOUNDS)
    assert "" == sentence(Denied(Act.PROGRAM, "/usr/bin/git"), replace(BOUNDS, programs=("/usr/bin/git",)))


def test_everything_fits():
    """However long the parts are, the end of the sentence is kept."""
    long = sentence(Denied(Act.FILE, "/" + "é" * 8000), BOUNDS)

    error = explained("x" * 10_000, (blocked("p", "what", "fix one"), blocked("p", "what", "fix two")))

    assert len(long.encode()) <= 512
    assert len(error.encode()) <= ERROR_BYTES_MAX
    assert error.endswith("fix one. blocked by pool p: what; fix two")
    assert "x" == explained("x", ())
    assert "only" == explained("", ("only",))


def test_the_innermost_denial_counts():
    """Libraries wrap; what they met first is what is said."""
    outer, inner = PermissionError(13, "no", "/outer"), PermissionError(13, "no", "/inner")
    outer.__context__ = ValueError()
    outer.__context__.__cause__ = inner

    assert Denied(Act.FILE, "/inner") == denial(outer, SCRATCH)


@pytest.mark.parametrize(
    "error",
    [ValueError("x"), FileNotFoundError(2, "x", "/x"), OSError("x"), KeyboardInterrupt()],
    ids=lambda error: type(error).__name__,
)
def test_other_errors_are_no_denials(error):
    """Only what the kernel says when something may not be."""
    assert None is denial(error, SCRATCH)


def test_a_chain_without_end_ends():
    """A handler can tie its exceptions into a ring, and give them any name."""
    one, two = PermissionError(13, "no", 7), ValueError()
    one.__cause__, two.__cause__ = two, one

    assert Denied(Act.NETWORK) == denial(one, SCRATCH)
    assert Denied(Act.FILE, str(Path.cwd() / "b")) == denial(PermissionError(13, "no", b"b"), SCRATCH)
    assert None is denial(PermissionError(13, "no", "/scratch/b"), SCRATCH)
