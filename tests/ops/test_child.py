"""Children that import user code for a process that may not."""

from __future__ import annotations

import json
import os
import select
import sys
import time

import pytest

from benteng.errors import DefinitionError, PolicyError
from benteng.ops import child as module
from benteng.ops.child import environment, run
from benteng.ops.describe import policies_of


def app(project, code):
    """Put code before the project's application."""
    (project.root / "jobs.py").write_text(code + "\n" + (project.root / "jobs.py").read_text())


def described(project, variables=()):
    """What the child says of the project's code."""
    return policies_of("jobs:app", [str(project.root)], variables)


def test_the_code_is_described_and_not_imported_here(project):
    """The policies come back as data; the module was never in this process."""
    policies = described(project)

    assert {"bill@1", "charge@1", "greet@1", "patch@1"} == policies.keys()
    assert "jobs" not in sys.modules


def test_the_child_sees_no_credential(project, monkeypatch):
    """Nothing of ours is in its environment, even if a pool lists it; what a pool lists is."""
    monkeypatch.setenv("BENTENG_DSN", "sqlite:////canary.db")
    monkeypatch.setenv("AWS_SECRET", "canary")
    monkeypatch.setenv("REGION", "id")
    app(project, f"import os; open({str(project.root / 'seen')!r}, 'w').write(repr(dict(os.environ)))")

    described(project, ["REGION", "BENTENG_DSN"])

    seen = (project.root / "seen").read_text()
    assert "canary" not in seen
    assert "'REGION': 'id'" in seen


def test_the_child_inherits_no_descriptor(project):
    """Not even one that was left inheritable."""
    with (project.root / "secret").open("w") as stream:
        os.set_inheritable(stream.fileno(), True)
        app(
            project,
            "import os\n"
            "here = '/proc/self/fd/'\n"
            "links = [os.readlink(here + n) for n in os.listdir(here) if os.path.exists(here + n)]\n"
            f"open({str(project.root / 'seen')!r}, 'w').write(repr(links))",
        )
        described(project)

    assert "secret" not in (project.root / "seen").read_text()


def test_what_the_module_prints_is_no_answer(project):
    """A module cannot speak for the child by printing."""
    app(project, 'print(\'{"version": 1, "types": {}}\', flush=True)')

    assert "greet@1" in described(project)


def test_the_child_reaches_no_store(project):
    """Code that enqueues when it is imported is refused, and no ledger is made or written."""
    with (project.root / "jobs.py").open("a") as stream:
        stream.write("\n\napp.enqueue(greet, {'name': 'x'})\n")

    with pytest.raises(PolicyError, match="no credential"):
        described(project)

    assert not (project.root.parent / "state").exists()


def test_the_child_is_bounded(project):
    """No new privileges, no core file, and memory, files and descriptors limited for ever."""
    app(
        project,
        "import json, resource\n"
        "names = ['AS', 'FSIZE', 'NOFILE', 'CORE']\n"
        "hard = {name: resource.getrlimit(getattr(resource, 'RLIMIT_' + name))[1] for name in names}\n"
        "with open('/proc/self/status') as stream: status = stream.read()\n"
        f"with open({str(project.root / 'seen')!r}, 'w') as stream: json.dump([hard, status], stream)",
    )

    described(project)

    hard, status = json.loads((project.root / "seen").read_text())
    assert "NoNewPrivs:\t1\n" in status
    assert 0 == hard["CORE"]
    assert {"AS": 1 << 30, "FSIZE": 256 << 20, "NOFILE": 256} == {n: hard[n] for n in ("AS", "FSIZE", "NOFILE")}


@pytest.mark.parametrize(
    "code,rule",
    [
        ("import nothing_like_this", "N-import"),
        ("raise RuntimeError('boom')", "N-import"),
        ("raise SystemExit(0)", "N-import"),
        ("import os; os._exit(0)", "L-format"),
        ("import os; os._exit(3)", "N-child"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "N-child"),
        ("import benteng; benteng.Benteng = int; app = 5; del benteng", "N-import"),
    ],
    ids=["missing", "raises", "exits", "exits-hard", "fails-hard", "killed", "lies"],
)
def test_a_module_that_fails_is_a_clear_refusal(project, code, rule):
    """Whatever it does: a rule, no traceback, nothing locked."""
    app(project, code)

    with pytest.raises(PolicyError) as raised:
        described(project)

    assert rule == raised.value.rule


def test_a_wrong_definition_keeps_its_rule_field_and_fix(project):
    """The author reads what the definition broke, as at import."""
    with (project.root / "jobs.py").open("a") as stream:
        stream.write("\n\n@app.job\ndef bad(command: str) -> None: ...\n")

    with pytest.raises(DefinitionError) as raised:
        described(project)

    assert ("D-names", "command") == (raised.value.rule, raised.value.field)
    assert raised.value.fix


def test_a_child_that_hangs_is_ended_with_its_descendants(project):
    """Time is bounded, and nothing it started stays."""
    pid_file = project.root / "pid"
    app(
        project,
        f"import os, time\npid = os.fork()\nif pid: open({str(pid_file)!r}, 'w').write(str(pid))\ntime.sleep(600)",
    )
    before = time.monotonic()

    with pytest.raises(PolicyError, match="N-child"):
        run("benteng.ops.describe:child", ["jobs:app", str(project.root)], cwd=project.root, seconds_max=2)

    assert time.monotonic() - before < 20
    assert _ends(int(pid_file.read_text()), seconds_max=10)


def test_a_child_that_floods_is_ended(project):
    """Output is bounded: memory of this process is not the child's to fill."""
    app(project, "import os\nwhile True: os.write(2, b'x' * 65536); os.write(3, b'y' * 65536)")

    with pytest.raises(PolicyError, match="wrote more than 1048576 bytes"):
        run(
            "benteng.ops.describe:child",
            ["jobs:app", str(project.root)],
            cwd=project.root,
            seconds_max=20,
            out_bytes_max=1 << 20,
        )


def test_the_allow_list_holds_nothing_of_ours():
    """BENTENG_ names pass by no way."""
    seen = environment({"PATH": "/bin", "BENTENG_DSN": "x", "OTHER": "y"}, ["BENTENG_DSN"])

    assert {"PATH": "/bin"} == seen
    assert not [name for name in module.INHERITED if name.startswith("BENTENG")]


def _ends(pid, seconds_max):
    """Whether a process ends in time: a group's death is delivered to each member, and not at once."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], seconds_max)[0])
    finally:
        os.close(handle)
