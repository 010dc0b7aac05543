"""What zygote and cells have: seen from outside, through /proc, while a handler runs."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from benteng.worker.sandbox import basic, null
from tests.worker.bed import field

CANARY = "canary-7f3a9c"


@pytest.fixture(scope="module")
def seen(tmp_path_factory, registry):
    """A worker with credentials in its environment, and the pids of its zygote and of a cell with a running handler."""
    from tests.worker.bed import Bed

    bed = Bed(tmp_path_factory.mktemp("isolation"), registry)
    worker = bed.worker(environ={"BENTENG_DSN": bed.dsn, "AWS_SECRET_ACCESS_KEY": CANARY, "REGION": "id"})
    zygote = worker.zygote()
    job = bed.enqueue("look@1", name="a")
    cell = int(field(bed.effect("look"), "pid"))
    yield bed, {"zygote": zygote, "cell": cell}, job
    bed.go()
    bed.ended(job)
    bed.close()


@pytest.mark.parametrize("who", ["zygote", "cell"])
@pytest.mark.parametrize("what", ["environ", "cmdline", "maps"])
def test_nothing_names_the_store(seen, who, what):
    """Neither environment, arguments nor mapped files know where the store is, or a credential (cases.md C102)."""
    bed, pids, _ = seen

    text = Path(f"/proc/{pids[who]}/{what}").read_bytes().decode("utf-8", "replace")

    assert str(bed.path.parent) not in text
    assert CANARY not in text
    assert "BENTENG_" not in text


@pytest.mark.parametrize("who", ["zygote", "cell"])
def test_no_descriptor_leads_to_the_store(seen, who):
    """A cell has its line and nothing else; a zygote its control line and a pipe."""
    bed, pids, _ = seen
    allowed = ("/dev/null", "socket:", "pipe:", "anon_inode:", str(bed.root / "effects"))  # the handler's own

    found = [str(link.readlink()) for link in Path(f"/proc/{pids[who]}/fd").iterdir()]

    assert all(target.startswith(allowed) for target in found), found
    if who == "cell":
        assert 1 == sum(1 for target in found if target.startswith("socket:"))


def test_only_listed_variables_arrive(seen):
    """PATH and the pool's list, HOME and TMPDIR as scratch; no variable of ours, none that was not named."""
    _, pids, _ = seen

    names = {line.partition("=")[0] for line in Path(f"/proc/{pids['zygote']}/environ").read_text().split("\0") if line}

    assert names <= {"PATH", "LANG", "LC_ALL", "TZ", "HOME", "TMPDIR", "EFFECTS", "LC_CTYPE"}


def test_the_kernel_confirms_the_bounds(seen):
    """No new privileges, no core, bounded files and memory, an own group."""
    _, pids, _ = seen
    pid = pids["cell"]

    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
    )
    limits = Path(f"/proc/{pid}/limits").read_text()

    assert "1" == status["NoNewPrivs"]
    assert "0077" == status["Umask"]
    assert pid == os.getpgid(pid) == os.getsid(pid)
    bounds = {line[:26].strip(): line[26:].split() for line in limits.splitlines()}
    assert ["0", "0"] == bounds["Max core file size"][:2]
    assert "unlimited" not in bounds["Max address space"]
    assert int(bounds["Max open files"][1]) <= 4096


def test_the_scratch_directory_is_private(seen):
    """0700, below the worker's own root."""
    bed, pids, _ = seen

    here = Path(f"/proc/{pids['cell']}/cwd").readlink()

    assert here.is_relative_to(bed.root / "scratch")
    assert 0o700 == stat.S_IMODE(here.stat().st_mode)


@pytest.mark.skipif(os.getuid() == 0, reason="root may look into every process: run this as an ordinary user too")
@pytest.mark.parametrize("what", ["environ", "maps", "mem", "fd"])
def test_a_handler_cannot_look_into_the_supervisor(seen, what):
    """The process that holds the credential is closed to others of the same user."""
    bed, _, _ = seen
    path = f"/proc/{bed.workers[0].pid}/{what}"

    with pytest.raises(PermissionError):
        list(Path(path).iterdir()) if what == "fd" else Path(path).read_bytes()


def test_each_layer_is_tried_for_real():
    """`probe` says what holds after trying it in throw-away processes; here everything does."""
    assert {"group", "descriptors", "rlimits", "no_new_privs", "parent"} == set(basic.probe())
    assert () == null.probe()


@pytest.mark.parametrize("layer", sorted(basic.TRIALS))
def test_a_layer_that_does_not_hold_is_not_reported(monkeypatch, layer):
    """A trial that fails, or raises, is no layer."""

    def broken():
        raise OSError

    monkeypatch.setitem(basic.TRIALS, layer, broken)

    assert layer not in basic.probe()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else: run this as root too")
def test_a_zygote_becomes_the_user_of_its_pool(tmp_path):
    """After that the store's file cannot be read, and there is no way back."""
    from benteng.worker import wire
    from benteng.worker.pool import Start
    from benteng.worker.zygote import _become

    secret = tmp_path / "store"
    secret.write_text("secret")
    secret.chmod(0o600)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _become(wire.Configure("a:b", (), "/", Start.FORK, "", 61_234, 61_234))
            ids = (*os.getresuid(), *os.getresgid(), *os.getgroups())
            try:
                secret.read_text()
            except PermissionError:
                code = 0 if set(ids) == {61_234} else 2
        finally:
            os._exit(code)

    assert 0 == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_supervisor_does_not_carry_the_broker():
    """What a worker starts with has no code of the egress broker in its memory: another process is the broker."""
    program = "import sys, benteng.worker.launch; print([name for name in sys.modules if name.endswith('broker')])"

    answer = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)

    assert "[]\n" == answer.stdout
