"""Bytes that came past the gate: garbage, pickles and other people's formats start nothing and run nothing."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from msgspec.structs import replace

from benteng.evidence import Control, ControlMode, ControlScope
from benteng.guard import CELL, Case, Door, judge
from benteng.job import own_operation_key, sha256_hex
from benteng.lifecycle import QuarantineReason, State
from benteng.policy import Tier
from benteng.store.records import Admission, Disposal, Query
from benteng.testing.bench import quarantine, records, settlement
from benteng.testing.ledger import LOW
from benteng.verdict import Refuse
from tests.guard_cases import case, evidence, job_type

GARBAGE = [
    b"",
    b"null",
    b"[]",
    b"\xff\xfe",
    b"{",
    b'{"target":"web-7","target":"web-8"}',
    b'{"target":NaN}',
    b'{"target":"web-7\\u0000"}',
    b"[" * 20_000,
    b"\x80\x04\x95.",
]


class Bomb:
    """Touches a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_past_the_gate_does_not_reach_a_cell(site, garbage):
    """A producer that calls `admit` itself, with bytes that no contract reads: stopped by store or supervisor."""
    good = site.enqueue("medium")
    site.bench.operator.cancel([good.id], "make room")
    job = replace(
        good,
        id="01890000-0000-7000-8000-000000000000",
        payload=garbage,
        payload_sha256=sha256_hex(garbage),
        envelope=b"",
    )

    (receipt,) = site.bench.producer.admit([Admission(job)])

    assert Disposal.REFUSED is receipt.disposal or site.rule()


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_of_a_low_job_is_refused_in_the_cell(garbage):
    """Where no key and no reference follow from the payload, the contract itself refuses before the handler."""
    kind = job_type(Tier.LOW, operation=(), resources=())
    job = Case(_low(kind, garbage), kind.policy, Door.WORKER, shape=kind.shape)

    assert isinstance(judge(job, evidence(), CELL), Refuse)


COLUMNS = ("payload", "envelope", "refs", "actor", "request_id", "summary", "last_error", "progress", "operation_key")


@pytest.mark.parametrize("column", COLUMNS)
def test_pickle_in_any_column_stays_bytes(site, by_hand, tmp_path, column):
    """Nothing that reads a job ever unpickles: the marker is not made, and a signed job does not start (C112)."""
    marker = tmp_path / "owned"
    job = site.enqueue()
    blob = pickle.dumps(Bomb(marker))
    kind = "blob" if column in {"payload", "envelope"} else "text"
    by_hand(f"update job set {column} = cast(? as {kind}) where id = ?", blob, job.id)  # noqa: S608 - the list above

    grants = site.claim()
    verdicts = [site.judge.verdict(grant) for grant in grants]
    site.bench.operator.show(job.id)

    assert not marker.exists()
    assert column in {"summary", "last_error", "progress"} or not grants or all(verdicts)


def test_pickle_as_result_stays_bytes(bench, tmp_path):
    """What a worker hands over as a result is kept and given back as it is, and nobody loads it (C112)."""
    marker = tmp_path / "owned"
    blob = pickle.dumps(Bomb(marker))
    grant = bench.started(LOW)
    bench.settle(settlement(grant, result=blob))

    (status,) = bench.producer.status([grant.job.id])

    assert blob == status.result
    assert not marker.exists()


def test_marker_is_made_by_who_unpickles(tmp_path):
    """The bomb is live: otherwise the two tests above would prove nothing."""
    pickle.loads(pickle.dumps(Bomb(tmp_path / "owned")))  # noqa: S301 - our own bytes, to see that they act

    assert (tmp_path / "owned").exists()


CANARY = "canary-7d1f"
HOSTILE = '\r\n{"event":"completed"}\x1b[2J\u202e\x00'


@pytest.mark.parametrize("state", [State.READY, State.HELD, State.RUNNING, State.COMPLETED, State.QUARANTINED])
def test_no_list_shows_a_payload_in_any_state(bench, state):
    """Wherever a job is, lists, status, receipts and records hold no byte of its payload (C97, C114)."""
    payload = f'{{"x":"{CANARY}"}}'.encode()
    entry = state if state in {State.HELD, State.QUARANTINED} else State.READY
    job = bench.admitted(payload=payload, entry=entry)
    if state in {State.RUNNING, State.COMPLETED}:
        (grant,) = bench.claim()
        if state is State.COMPLETED:
            bench.settle(settlement(grant))

    shown = repr(
        (bench.operator.find(Query()), bench.producer.status([job.id]), bench.view(job.id).audit, bench.audit())
    )

    assert state is bench.state(job.id)
    assert CANARY not in shown


def test_no_record_holds_text_that_acts(bench):
    """Names, reasons and errors that came with line breaks, escapes or bidi stand in the log as visible text (C116)."""
    bench.admit(bench.job(actor="svc:a" + HOSTILE), bench.job(request_id=HOSTILE), bench.job(summary=HOSTILE))
    grant = bench.started(priority=0)
    bench.settle(quarantine(grant, rule=HOSTILE, error=HOSTILE))
    bench.operator.discard([grant.job.id], HOSTILE)
    bench.operator.tighten(Control(ControlScope.TYPE, HOSTILE, ControlMode.HALT, HOSTILE))

    said = [text for record in records(bench.audit()) for text in record.values() if isinstance(text, str)]

    assert any("u202e" in text for text in said)
    assert [] == [text for text in said if not text.isprintable()]


@pytest.mark.parametrize("column", ["tier", "refs", "operation_key", "payload_sha256", "type"])
def test_bad_row_among_good_ones_harms_nobody(broken, by_hand, column):
    """A row garbled in one column among a hundred: the others start in order, the bad one runs never (I15)."""
    jobs = [broken.admitted() for _ in range(100)]
    by_hand(f"update job set {column} = cast(x'ff00' as text) where id = ?", jobs[50].id)  # noqa: S608 - the list above

    started = [grant.job.id for grant in broken.claim(100)]

    assert [job.id for job in jobs if job is not jobs[50]] == started
    view = broken.operator.show(jobs[50].id)
    assert view is None or view.state is State.READY or view.reason is QuarantineReason.UNDECODABLE


def _low(kind, payload):
    job = case(kind).job
    return replace(job, payload=payload, payload_sha256=sha256_hex(payload), operation_key=own_operation_key(job.id))
