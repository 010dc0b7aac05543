"""`benteng init`, `artifact`, `audit`, `policy`: what they write and what they find."""

from __future__ import annotations

import base64
import hashlib
import json
import sqlite3
from contextlib import closing

import pytest

from benteng import merkle
from benteng.audit import AuditRecord, Event, body_bytes
from benteng.keyring import load_signing_key, load_trust
from benteng.lifecycle import QuarantineReason
from benteng.ops.log import last_seq
from benteng.ops.views import sentence
from benteng.store.durability import Durability
from benteng.store.open import open_consumer
from benteng.store.records import AuditRow, WorkerFacts


def ledger(project):
    """The path of the project's ledger."""
    return project.root.parent / "state/benteng/benteng.db"


# ------------------------------------------------------------------------------------------------------------- init


def test_init_makes_what_runs_and_overwrites_nothing(tmp_path, project, monkeypatch):
    """A newcomer's three files; a second run leaves every byte as it is."""
    (tmp_path / "new").mkdir()
    monkeypatch.chdir(tmp_path / "new")

    first = project.call("init", "--json")
    bytes_then = {path: path.read_bytes() for path in (tmp_path / "new").rglob("*") if path.is_file()}
    second = project.call("init", "--json")

    assert (0, ["benteng.toml", "jobs.py", ".benteng"]) == (first.code, first.document["written"])
    assert (0, []) == (second.code, second.document["written"])
    assert bytes_then == {path: path.read_bytes() for path in (tmp_path / "new").rglob("*") if path.is_file()}
    assert 0 == project.call("enqueue", "greet", "name=dunia").code


def test_the_keys_are_trusted_and_private(project):
    """The producer's key signs for this OS user; nobody else can read it, and no repository gets it."""
    project.call("init", "--keys")

    keys = project.root / ".benteng"
    key = load_signing_key(keys / "producer.key")
    assert load_trust(keys / "trust.toml").find(key.key_id) is not None
    assert 0o600 == (keys / "producer.key").stat().st_mode & 0o777
    assert "*" in (keys / ".gitignore").read_text().splitlines()
    assert ["benteng.toml", "jobs.py"] == sorted(path.name for path in project.root.iterdir() if path.is_file())


# ---------------------------------------------------------------------------------------------------------- artifact


def test_an_artifact_is_kept_by_its_digest(project):
    """Copied under its sha256, read-only, and registered; the reference is data."""
    data = b"patch\0" * 1000
    (project.root / "p.tar").write_bytes(data)

    ended = project.call("artifact", "register", "p.tar", "--id", "patch-7", "--reason", "first", "--json")

    digest = hashlib.sha256(data).hexdigest()
    kept = project.root / "artifacts" / digest
    assert (0, "patch-7", digest) == (ended.code, ended.document["id"], ended.document["sha256"])
    assert (data, 0o444) == (kept.read_bytes(), kept.stat().st_mode & 0o777)
    assert [digest] == [path.name for path in kept.parent.iterdir()]
    assert "artifact_registered" in [r["event"] for r in project.call("audit", "tail", "--jsonl").lines]


def test_a_file_that_only_has_the_name_is_replaced(project):
    """What lies under a digest has that digest after a registration."""
    (project.root / "p.tar").write_bytes(b"good")
    kept = project.root / "artifacts" / hashlib.sha256(b"good").hexdigest()
    kept.parent.mkdir()
    kept.write_bytes(b"evil")

    project.call("artifact", "register", "p.tar", "--id", "p", "--reason", "x")

    assert b"good" == kept.read_bytes()


def test_prod_registers_nothing_by_one_person(project):
    """Exit 26, and no file is copied."""
    (project.root / "benteng.toml").write_text('environment = "prod"\n')
    (project.root / "p.tar").write_bytes(b"x")

    ended = project.call("artifact", "register", "p.tar", "--id", "p", "--reason", "x")

    assert 26 == ended.code
    assert not (project.root / "artifacts").exists()


# ------------------------------------------------------------------------------------------------------------- audit


def test_the_tail_is_the_end_of_the_log(project):
    """Oldest of them first, readable, without values."""
    project.quarantined("greet@1", QuarantineReason.PERMANENT, name="canary")

    lines = project.call("audit", "tail", "-n", "2", "--jsonl").lines
    every = project.call("audit", "tail", "--jsonl").out

    assert ["claimed", "quarantined"] == [record["event"] for record in lines]
    assert "canary" not in every
    assert ["seq", "at", "event", "job", "what"] == project.call("audit", "tail").out.splitlines()[0].split()


def test_what_a_worker_did_is_found_by_its_name_and_by_its_host(project):
    """Registered, claimed and settled; the name is read from the left, piece by piece; an unknown one is exit 4."""
    names = {"web-1": "web-1/b1/7/1", "web-11": "web-11/b2/7/1"}
    for host, name in names.items():
        with closing(open_consumer(project.dsn, "default")) as consumer:
            consumer.register(WorkerFacts(name, "default", host, "b", 7, "0.1", {}))

    def found(*words):
        return [record["worker"] for record in project.call("audit", "show", *words, "--jsonl").lines]

    assert [names["web-1"]] == found("--worker", "web-1")
    assert [names["web-1"]] == found("--worker", "web-1/b1")
    assert [names["web-11"]] == found("--worker", names["web-11"])
    assert 4 == project.call("audit", "show", "--worker", "web").code
    assert 2 == project.call("audit", "show").code


def test_the_whole_log_verifies_to_the_root_that_its_export_gives(project):
    """Exit 0 and an RFC 6962 root that anybody can compute from the export."""
    project.quarantined("greet@1", QuarantineReason.PERMANENT, name="a")

    ended = project.call("audit", "verify", "--json")
    rows = [json.loads(line) for line in project.call("audit", "export").out.splitlines()]

    leaves = [merkle.leaf_hash(base64.b64decode(row["leaf"])) for row in rows]
    assert (0, True, len(rows)) == (ended.code, ended.document["whole"], ended.document["size"])
    assert merkle.root(leaves).hex() == ended.document["root"]


@pytest.mark.parametrize(
    "tamper,rule",
    [
        ("update audit set body = cast(replace(body, 'at_us', 'at_ux') as blob) where seq = 2", "L-body"),
        ("delete from audit where seq = 2", "L-gap"),
        ("update audit set salt = null where seq = 2", "L-half"),
    ],
    ids=["changed", "removed", "half-erased"],
)
def test_a_tampered_log_exits_30(project, tamper, rule):
    """Who owns the file can change it, and it shows: which record, and how."""
    project.quarantined("greet@1", QuarantineReason.PERMANENT, name="a")
    with closing(sqlite3.connect(ledger(project))) as database, database:
        for (name,) in database.execute("select name from sqlite_master where type = 'trigger'").fetchall():
            database.execute(f"drop trigger {name}")
        database.execute(tamper)

    ended = project.call("audit", "verify", "--json")
    told = project.call("audit", "verify")

    assert (30, False) == (ended.code, ended.document["whole"])
    assert {"seq": 2, "rule": rule} in ended.document["problems"]
    assert "BROKEN" in told.out


# ------------------------------------------------------------------------------------------------------------ policy


def test_lock_apply_and_diff_agree_in_the_end(project):
    """Each step says what changes; exit 32 while code, lock file and ledger differ."""
    assert 32 == project.call("policy", "check").code
    assert 32 == project.call("policy", "diff").code

    locked = project.call("policy", "lock", "--json")
    halfway = project.call("policy", "diff", "--json")
    applied = project.call("policy", "apply", "--json")

    assert "greet@1: added (low)" in locked.document["changes"]
    assert (32, []) == (halfway.code, halfway.document["differences"]["lock file -> code"])
    assert ["bill@1", "charge@1", "greet@1", "patch@1"] == sorted(applied.document["changes"])
    assert (0, 0) == (project.call("policy", "diff").code, project.call("policy", "check").code)
    assert {"greet@1", "patch@1"} < project.call("policy", "show", "--json").document["types"].keys()


def test_a_changed_limit_is_a_difference(project):
    """A reviewer reads the field, the old and the new value."""
    project.call("policy", "lock")
    jobs = project.root / "jobs.py"
    jobs.write_text(jobs.read_text().replace("@app.job\ndef greet", "@app.job(lease_seconds=60)\ndef greet"))

    ended = project.call("policy", "check")

    assert 32 == ended.code
    assert "greet@1: limits.lease_seconds 12.0 -> 60.0\n" == ended.out


def test_policies_are_read_without_importing_the_code_here(project):
    """A module that fails is a refusal, and the lock file stays as it was."""
    project.call("policy", "lock")
    reviewed = (project.root / "benteng.lock").read_bytes()
    (project.root / "jobs.py").write_text("raise RuntimeError('boom')")

    ended = project.call("policy", "lock")

    assert (78, reviewed) == (ended.code, (project.root / "benteng.lock").read_bytes())
    assert "[N-import]" in ended.talk


def test_high_policies_need_an_action_in_prod(project):
    """Exit 26; nothing of the batch is applied."""
    project.call("policy", "lock")
    (project.root / "benteng.toml").write_text('app = "jobs:app"\nenvironment = "prod"\n')

    ended = project.call("policy", "apply")

    assert 26 == ended.code
    assert 32 == project.call("policy", "diff").code


@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, 8, 9, 1000])
def test_the_end_of_the_log_is_found_without_reading_it(size):
    """A log of any size: a logarithmic number of single records, and the exact last one."""
    log = Log(size)

    assert size == last_seq(log)
    assert log.rows_read <= 2 * size.bit_length() + 2


class Log:
    """A log of so many records that counts what is read of it."""

    origin = "os:1000"
    durability = Durability.D1

    def __init__(self, size):
        self.size = size
        self.rows_read = 0

    def audit_page(self, after, limit=1000):
        """Some records."""
        self.rows_read += limit
        return [AuditRow(seq, b"") for seq in range(after + 1, min(after + limit, self.size) + 1)]

    def close(self):
        """Nothing to give back."""


def test_the_log_tells_what_a_worker_waives():
    """Whoever reads the tail sees that jobs were not contained, without reading JSON."""
    said = AuditRecord(at_us=1, event=Event.REGISTERED, detail="pool x, version 1", summary='{"waive":["seccomp"]}')

    assert "pool x, version 1 · waives seccomp" == sentence(AuditRow(1, b"", b"", body_bytes(said)))[-1]
