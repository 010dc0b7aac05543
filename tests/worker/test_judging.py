"""The supervisor's judgement: what does not fit is refused before any cell hears of it."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from benteng.evidence import ArtifactFact, ArtifactState
from benteng.job import sha256_hex


def tamper(bed, sql, *values):
    """Change the ledger behind everybody's back, as its owner could."""
    with closing(sqlite3.connect(bed.path)) as database, database:
        for (name,) in database.execute("select name from sqlite_master where type = 'trigger'").fetchall():
            database.execute(f'drop trigger "{name}"')
        database.execute("pragma ignore_check_constraints = on")
        database.execute(sql, values)


@pytest.mark.parametrize(
    "column,value",
    [
        ("payload", b'{"host":"web-2","name":"a"}'),
        ("operation_key", "0" * 64),
        ("actor", "svc:other"),
        ("request_id", "other"),
        ("priority", 0),
        ("envelope", b"{}"),
        ("envelope", b""),
    ],
)
def test_a_changed_column_is_suspicious(bed, column, value):
    """Whatever differs from payload and signature did not come from an honest gate; the handler is never called."""
    job = bed.enqueue("high@1", name="a", host="web-1")
    tamper(bed, f"update job set {column} = ? where id = ?", value, job)  # noqa: S608 - a fixed list of columns
    bed.worker()

    bed.until(job, "quarantined")

    view = bed.show(job)
    assert view.reason in {"suspicious", "undecodable"}
    assert 0 == bed.count("high")
    assert 0 == view.starts


def test_a_signer_whom_this_host_does_not_trust_is_refused(bed):
    """Trust is what this host's own file says."""
    job = bed.enqueue("high@1", name="a", host="web-1")
    (bed.root / "keys" / "trust.toml").write_text("")
    bed.worker()

    assert ("quarantined", "suspicious") == (bed.ended(job).state, bed.status(job).reason)
    assert 0 == bed.count("high")


def test_an_artifact_is_hashed_while_it_is_copied(bed):
    """The handler gets a private copy of exactly the bytes that the job names."""
    data = b"#!patch"
    (bed.root / "artifacts" / sha256_hex(data)).write_bytes(data)
    bed.operator.register_artifact(ArtifactFact("p1", sha256_hex(data), ArtifactState.APPROVED), "test")
    bed.worker()

    status = bed.ended(bed.enqueue("patch@1", host="web-1", artifact={"id": "p1", "sha256": sha256_hex(data)}))

    assert ("completed", b'"#!patch"') == (status.state, status.result)
    assert bed.effect("patch").startswith("patch 400 ")


def test_other_bytes_are_suspicious(bed):
    """A file under the right name with wrong content never reaches the handler."""
    digest = sha256_hex(b"#!patch")
    (bed.root / "artifacts" / digest).write_bytes(b"#!other")
    bed.operator.register_artifact(ArtifactFact("p1", digest, ArtifactState.APPROVED), "test")
    bed.worker()

    status = bed.ended(bed.enqueue("patch@1", host="web-1", artifact={"id": "p1", "sha256": digest}))

    assert ("quarantined", "suspicious") == (status.state, status.reason)
    assert 0 == bed.count("patch")
