"""Secrets of job types, through the real worker. The canary is looked for from outside: in files, /proc and events."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import shutil
from pathlib import Path
from urllib.parse import quote

import pytest

from benteng.errors import PolicyError
from benteng.secret import Source
from benteng.worker.pool import Pool
from benteng.worker.sandbox import landlock
from tests.support.others import passable
from tests.worker.bed import Bed, field

pytestmark = pytest.mark.skipif(landlock.abi() == 0, reason="this kernel has no Landlock, so no tier above LOW")

CANARY = 'sk_live/4eC39H+q&Lyj"Ws'
PEM = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG\n9w0BAQEFAASCBKcwggSj\n-----END KEY-----"
FORMS = {
    "raw": CANARY,
    "json": json.dumps(CANARY)[1:-1],
    "url": quote(CANARY, safe=""),
    "hex": CANARY.encode().hex(),
    **{f"base64-{n}": base64.b64encode(b"u:"[:n] + CANARY.encode() + b"!").decode()[4:-4] for n in range(3)},
}
"""What must not be found. Of base64 the middle: its edges hold what stood beside the secret."""


WAITS = ("wait-medium", "wait-high")
"""Jobs that wait for the test, in the middle of their run."""


def leaks(data):
    """The forms of the canary that stand in some bytes."""
    return [name for name, form in FORMS.items() if form.encode() in data]


def write(path, text, mode=0o600):
    """Write a secret's file."""
    path.write_text(text)
    path.chmod(mode)
    return str(path)


@pytest.fixture(scope="module")
def bed(app_registry):
    """A ledger, and a worker whose pool has the secrets: the canary in a file, a key of several lines in a variable."""
    root = passable("vault")
    made = Bed(root, app_registry("vaults"))
    (root / "secrets").mkdir(mode=0o700)
    sources = {"stripe": {"file": write(root / "secrets" / "stripe", CANARY + "\n")}, "pem": {"env": "SIGNING"}}
    pipes = [root / name for name in ("effects", *WAITS)]
    for pipe in pipes[1:]:
        os.mkfifo(pipe)
    settings = {"name": "vault", "concurrency": 1, "secrets": sources, "write": [str(pipe) for pipe in pipes]}
    made.worker(app="vaults:app", environ={"SIGNING": PEM}, **settings).wait("ready")
    yield made
    made.close()
    shutil.rmtree(root)


@pytest.fixture
def worker(bed):
    """The worker that all tests share."""
    return bed.workers[0]


def everywhere(bed, worker):
    """All that may not hold a secret: the ledger with its log, audit, events, scratch."""
    stored = [data for name in ("store", "scratch", "keys", "artifacts") for data in contents(bed.root / name)]
    worker.listen(0)
    return b"\n".join([*stored, bed.audit(), json.dumps(worker.events, ensure_ascii=False).encode()])


def contents(root):
    """What the files below a directory hold; the worker removes scratch while it is looked at."""
    for folder, _, names in os.walk(root):
        for path in (Path(folder, name) for name in names):
            with contextlib.suppress(FileNotFoundError):
                if path.is_file():
                    yield path.read_bytes()


@pytest.mark.parametrize("job_type, name", [("use.medium@1", WAITS[0]), ("use.high@1", WAITS[1])], ids=WAITS)
def test_a_secret_reaches_its_handler_and_leaves_no_trace(bed, worker, job_type, name):
    """The handler has it; store, audit, output, scratch and the processes' environments and arguments never do."""
    job = bed.enqueue(job_type, name=name, host="web-1")
    used = bed.effect(f"used {name}")
    pids = [worker.zygote(), int(field(used, "pid"))]
    seen = b"".join(Path(f"/proc/{pid}/{what}").read_bytes() for pid in pids for what in ("environ", "cmdline"))
    during = everywhere(bed, worker)
    os.close(os.open(bed.root / name, os.O_WRONLY))
    ended = bed.ended(job)

    assert hashlib.sha256(CANARY.encode()).hexdigest() == field(used, "sha256")
    assert [] == leaks(seen)
    assert PEM.encode() not in seen
    assert [] == leaks(during)
    assert "completed" == ended.state
    assert [] == leaks(ended.result)
    assert {"raw": "***", "inside": "Authorization: ***;", "***": "key"}.items() <= json.loads(ended.result).items()
    assert [] == leaks(everywhere(bed, worker))
    assert worker.all("output", job=job)


def test_a_secret_of_several_lines_is_found_in_each(bed, worker):
    """Output comes line by line; no line of a key is shown."""
    job = bed.enqueue("use.async@1", name="pem", host="web-1")

    assert b'"***"' == bed.ended(job).result
    shown = json.dumps(worker.all("output", job=job))
    assert "***" in shown
    assert not [line for line in PEM.splitlines() if line in shown]


@pytest.mark.parametrize("name", ["retry", "permanent", "suspicious", "snooze", "unknown", "long", "worded", "named"])
def test_errors_are_scrubbed(bed, worker, name):
    """Whatever is raised, also when the text is cut in the middle of the secret, or a pattern takes a part of it."""
    job = bed.enqueue("fail@1", name=name, host="web-1")

    bed.until(job, "quarantined", *(["scheduled"] if name == "snooze" else []))
    error = bed.show(job).error

    assert [] == leaks(error.encode())
    assert CANARY[:8] not in error
    assert CANARY[-6:] not in error
    assert [] == leaks(everywhere(bed, worker))


@pytest.mark.parametrize("name", ["result", "garbage", "error"])
def test_the_supervisor_scrubs_without_trusting_the_cell(bed, worker, name):
    """Frames that a hostile handler writes past the cell's own scrubbing, with escapes, are scrubbed all the same."""
    job = bed.enqueue("hostile@1", name=name, host="web-1")

    ended = bed.ended(job)

    assert [] == leaks(ended.result or b"")
    assert CANARY not in json.dumps(json.loads(ended.result or b"null"), ensure_ascii=False)
    assert [] == leaks(everywhere(bed, worker))


def test_a_successor_cannot_carry_a_secret(bed, worker):
    """`then` says so, and the error is permanent; nothing with it is admitted."""
    job = bed.enqueue("leak@1", name="a", host="web-1")

    assert ("quarantined", "permanent") == (bed.ended(job).state, bed.show(job).reason)
    assert "W-leak" in bed.show(job).error
    assert [] == leaks(everywhere(bed, worker))


def test_a_forged_successor_with_a_secret_is_suspicious(bed, worker):
    """Past the cell's own check the supervisor finds it, also behind escapes."""
    job = bed.enqueue("forge@1", name="successor", host="web-1")

    assert ("quarantined", "suspicious") == (bed.ended(job).state, bed.show(job).reason)
    assert "W-leak" in bed.show(job).error
    assert "note@1" not in {line.type for line in bed.jobs()}
    assert [] == leaks(everywhere(bed, worker))


def test_a_secret_that_is_not_listed_is_refused(bed):
    """The error names what to do, and no attempt is wasted on another try."""
    job = bed.enqueue("ask@1", name="a", host="web-1")

    assert ("quarantined", "permanent") == (bed.ended(job).state, bed.show(job).reason)
    assert "W-undeclared" in bed.show(job).error
    assert "only stripe" in bed.show(job).error


def test_no_other_job_finds_a_secret(bed):
    """A job of a type without it, started right after one with it in the same pool, has it nowhere in its memory."""
    first = bed.enqueue("use.medium@1", name="before", host="web-1")
    bed.ended(first)
    found = json.loads(bed.ended(bed.enqueue("plain@1", name="after", host="web-1")).result)

    used = bed.effect("used before")
    assert ("W-undeclared", 0) == (found["asked"], found["found"])
    assert int(field(used, "found")) > 0
    assert str(found["pid"]) != field(used, "pid")


def test_a_trap_of_an_earlier_job_meets_no_secret(bed):
    """What a job leaves in its process is not there for a job with secrets: that one has a cell of its own."""
    trapped = json.loads(bed.ended(bed.enqueue("trap@1", name="trap", host="web-1")).result)
    bed.ended(bed.enqueue("use.medium@1", name="next", host="web-1"))

    assert str(trapped) != field(bed.effect("used next"), "pid")
    assert 0 == bed.count("trapped")


def test_a_rotated_secret_is_read_anew(bed):
    """Each attempt gets what is there when it starts: nobody restarts a worker for it."""
    place = bed.root / "secrets" / "stripe"
    bed.ended(bed.enqueue("use.medium@1", name="old", host="web-1"))
    write(place.with_name("new"), "rotated-" + CANARY)
    place.with_name("new").rename(place)
    bed.ended(bed.enqueue("use.medium@1", name="new", host="web-1"))
    write(place, CANARY + "\n")

    digests = [field(bed.effect(f"used {name}"), "sha256") for name in ("old", "new")]

    assert [hashlib.sha256(text.encode()).hexdigest() for text in (CANARY, "rotated-" + CANARY)] == digests


def test_without_its_secret_a_job_waits_and_says_why(bed, worker):
    """A secret that goes missing starts no attempt, spends none, and lets other types go on; back, the job runs."""
    place = bed.root / "secrets" / "stripe"
    place.rename(place.with_name("away"))
    job = bed.enqueue("use.medium@1", name="missing", host="web-1")
    said = worker.wait("secret_missing", type="use.medium@1")
    other = bed.ended(bed.enqueue("plain@1", name="meanwhile", host="web-1"))
    waiting = bed.show(job)
    place.with_name("away").rename(place)

    assert "W-secret" in said["why"]
    assert "completed" == other.state
    assert ("ready", 0) == (waiting.state, waiting.attempts)
    assert f"{place} cannot be read: No such file" in waiting.error
    assert "completed" == bed.ended(job).state
    assert worker.wait("secret_back", type="use.medium@1")


@pytest.mark.parametrize(
    "sources, why",
    [
        ({}, "this pool does not say where it is"),
        ({"stripe": {"file": "{root}/none"}}, "cannot be read: No such file"),
        ({"stripe": {"file": "{root}/open"}}, "open to others"),
    ],
    ids=["undeclared", "absent", "open"],
)
def test_a_worker_without_its_secrets_does_not_start(bed, sources, why):
    """Exit 78, with what to do."""
    write(bed.root / "open", CANARY, 0o644)
    filled = {name: {key: text.format(root=bed.root) for key, text in each.items()} for name, each in sources.items()}

    refused = bed.worker(name="vault", app="vaults:app", secrets=filled, keeper=False)

    said = refused.wait("refused")
    assert 78 == refused.exit_code()
    assert ("W-secret", True) == (said["rule"], why in said["why"])
    assert CANARY not in json.dumps(refused.events)


def test_nobody_below_the_supervisor_has_the_variable_of_a_secret(bed, worker):
    """The keeper has no use for it either. It holds a credential, so that only root can look."""
    pids = [worker.zygote(), *([int(worker.wait("keeper_started")["pid"])] if os.getuid() == 0 else [])]

    assert [] == [pid for pid in pids if b"SIGNING" in Path(f"/proc/{pid}/environ").read_bytes()]


def test_a_pool_cannot_list_the_variable_of_a_secret():
    """What `env` lists is in every process of the pool, for ever."""
    with pytest.raises(PolicyError, match="W-env"):
        Pool(env=("MY_SIGNER",), secrets={"pem": Source(env="MY_SIGNER")})


def test_no_cell_may_read_the_file_of_a_secret(bed):
    """A secret's file below a directory that cells may read stops the start, as the store's does."""
    place = bed.root / "artifacts" / "stripe"
    sources = {"stripe": {"file": write(place, CANARY)}, "pem": {"env": "SIGNING"}}

    refused = bed.worker(name="vault", app="vaults:app", secrets=sources, keeper=False, environ={"SIGNING": PEM})

    assert "W-roots" == refused.wait("refused")["rule"]
    place.unlink()
