"""The owner of the database, with an editor on the file: nothing unsigned starts at HIGH, and what he did can be seen.

Not defended against him (DESIGN section 1): availability, order, attempt counts, LOW and unsigned MEDIUM jobs.
"""

from __future__ import annotations

import dataclasses

import pytest

from benteng.decide import Disposition
from benteng.errors import StoreDamaged
from benteng.evidence import ControlMode
from benteng.gate import JobSpec
from benteng.keyring import TrustRoots
from benteng.lifecycle import State
from benteng.store.records import Admission
from benteng.testing.bench import quarantine, records, settlement
from benteng.testing.invariants import BrokenLedgerError, check_ledger
from benteng.testing.ledger import LOW, MEDIUM
from tests.guard_cases import payload

FAR = 4_000_000_000_000_000


@pytest.fixture
def rows_of(by_hand):
    """Copy the rows of a job, to be put back later as if nothing had happened since."""

    def copy(job_id):
        rows = {}
        for table, identity in (("operation", "job_id"), ("job", "id")):
            # pragma_table_info leaves out generated columns, which nobody may write.
            names = ", ".join(name for (name,) in by_hand("select name from pragma_table_info(?)", table))
            rows[table, names] = by_hand(f"select {names} from {table} where {identity} = ?", job_id)  # noqa: S608 - two tables

        def put_back():
            by_hand("delete from quarantine where id = ?", job_id)
            by_hand("delete from operation where job_id = ?", job_id)
            for (table, names), (row,) in rows.items():
                marks = ", ".join("?" * len(row))
                by_hand(f"insert into {table} ({names}) values ({marks})", *row)  # noqa: S608 - two tables

        return put_back

    return copy


FORGED = [
    ("expires_at", FAR, "E-mismatch"),
    ("available_at", 1, "E-mismatch"),
    ("generation", 1, "E-mismatch"),
    ("origin", "os:999", "E-mismatch"),
    ("tier", "low", "E-mismatch"),
    ("policy_sha256", "0" * 64, "E-mismatch"),
    ("id", "01890000-0000-7000-8000-000000000000", "E-mismatch"),
    ("refs", '{"artifacts":[],"targets":[],"resources":[]}', "G-forged"),
    ("type", "medium@1", "G-forged"),
    ("envelope", b"", "G-unsigned"),
]


@pytest.mark.parametrize("column, value, rule", FORGED)
def test_forged_column_of_a_signed_job_does_not_start(site, by_hand, column, value, rule):
    """Whichever column of a signed job is changed, its supervisor stops it by a rule before any cell starts."""
    job = site.enqueue()
    by_hand(f"update job set {column} = ? where id = ?", value, job.id)  # noqa: S608 - the fixed list above
    by_hand("update operation set job_id = (select id from job)")

    assert rule == site.rule()


def test_envelope_of_another_job_does_not_help(site, by_hand):
    """A valid signature over another job is no signature over this one."""
    first = site.enqueue(target="web-1")
    site.claim()
    second = site.enqueue(target="web-2")
    by_hand("update job set envelope = ? where id = ?", first.envelope, second.id)

    assert "E-mismatch" == site.rule()


@pytest.mark.parametrize("rule, change", [("E-mismatch", dict), ("E-signature", lambda parts: parts | {"body": b"{}"})])
def test_envelope_of_a_neighbour_does_not_help(site, by_hand, rule, change):
    """Jobs that were signed together cannot change places, nor lend each other their path."""
    specs = [JobSpec("high@1", payload(target), actor="svc:deployer") for target in ("web-1", "web-2")]
    first, second = (site.bench.view(each.job_id).job for each in site.gate.enqueue_many(specs))
    raw = first.envelope
    parts = change({"head": raw[:107], "body": raw[107:]})
    assert second.envelope[11:75] == raw[11:75]
    by_hand("update job set envelope = ? where id = ?", b"".join(parts.values()), second.id)

    rules = {grant.job.id: judged.verdict.rule for grant in site.claim() if (judged := site.judge.verdict(grant))}

    assert {second.id: rule} == rules


def test_retired_key_stops_a_job_without_an_alarm(site):
    """An honest producer can be late: the job does not start, and nobody is accused."""
    site.enqueue()
    (grant,) = site.claim()
    keys = {key.key_id: dataclasses.replace(key, not_after=grant.evidence.now) for key in site.judge.trust}

    judged = dataclasses.replace(site.judge, trust=TrustRoots(keys)).verdict(grant)

    assert ("E-key-late", False) == (judged.verdict.rule, judged.verdict.suspicious)


def test_untouched_job_starts(site):
    """The site is one where a good job would go to a cell: otherwise the refusals here would prove nothing."""
    site.enqueue()

    assert "" == site.rule()


def test_unsigned_high_job_does_not_start_by_being_made_ready(site, by_hand):
    """An unsigned HIGH job waits for agreement; flipped from held to ready it is stopped before any cell starts."""
    signed = site.enqueue()
    site.bench.operator.cancel([signed.id], "make room")
    unsigned = site.bench.job(site.gate.policies["high@1"], envelope=b"", **_identity(signed))
    site.bench.producer.admit([Admission(unsigned, State.HELD, "R1", "a reason")])
    by_hand("update job set state = 'ready' where state = 'held'")

    assert "G-unsigned" == site.rule()


def test_quarantined_job_flipped_to_ready_is_seen(site, rows_of):
    """Nobody but a replay leads out of quarantine: the log does not go where the row is (repeats: not promised)."""
    job = site.enqueue()
    put_back = rows_of(job.id)
    (grant,) = site.claim()
    site.bench.settle(quarantine(grant))
    check_ledger(site.bench.ledger)
    put_back()

    with pytest.raises(BrokenLedgerError, match=f"I12 {job.id} is ready, its records end at quarantined"):
        check_ledger(site.bench.ledger)


def test_completed_operation_put_back_is_seen(site, rows_of):
    """Operation row deleted, old signed job inserted again: inside its validity only the log tells (not promised)."""
    job = site.enqueue()
    put_back = rows_of(job.id)
    (grant,) = site.claim()
    site.bench.settle(settlement(grant))
    put_back()

    with pytest.raises(BrokenLedgerError, match=f"I12 {job.id} is ready, its records end at completed"):
        check_ledger(site.bench.ledger)


@pytest.mark.parametrize("expires_at", [FAR, 0])
def test_old_signed_job_does_not_start_after_its_validity(site, by_hand, rows_of, expires_at):
    """A day later the same envelope is worth nothing, whatever the columns say."""
    job = site.enqueue()
    put_back = rows_of(job.id)
    (grant,) = site.claim()
    site.bench.settle(settlement(grant))
    site.bench.advance(86_401)
    put_back()
    by_hand("update job set expires_at = ?", expires_at)

    assert "E-expired" == site.rule()


def test_exchanged_payload_of_an_unsigned_type_is_seen(site, by_hand):
    """MEDIUM needs no signature, so a row rewritten whole starts; the log has two payloads for one job."""
    job, other = site.enqueue("medium", "web-1"), site.enqueue("medium", "web-2")
    by_hand("delete from job where id = ?", other.id)
    by_hand(
        "update job set envelope = x'', payload = ?, payload_sha256 = ?, operation_key = ?,"
        " refs = replace(refs, 'web-1', 'web-2')",
        other.payload,
        other.payload_sha256,
        other.operation_key,
    )
    site.claim()

    told = [record["payload"] for record in records(site.bench.audit()) if record["job_id"] == job.id]
    assert (2, 2) == (len(told), len(set(told)))


def test_attempts_set_back_are_seen(broken, by_hand):
    """A count can be set back, the records of the starts cannot: the log has more of them than the policy allows."""
    grant = broken.started()
    for _ in range(5):
        by_hand("update job set attempts = 0")
        broken.settle(settlement(grant, Disposition.RETRY, delay_seconds=1.0))
        broken.due()
        (grant,) = broken.claim()

    claims = [record["attempt"] for record in records(broken.audit()) if record["event"] == "claimed"]
    assert LOW.limits.attempts_max < len(claims)
    assert len(set(claims)) < len(claims)


def test_lifted_switch_is_seen(broken, by_hand):
    """A start under a switch that nobody opened stands in the log behind the record that closed it."""
    broken.tighten(ControlMode.HALT)
    by_hand("delete from control")
    broken.started()

    events = [record["event"] for record in records(broken.audit())]
    assert "loosened" not in events
    assert events.index("tightened") < events.index("claimed")


def test_cut_log_is_seen(broken, by_hand):
    """Without the last records the jobs are where no record leads; the signed checkpoint for more is to come."""
    grant = broken.started()
    broken.settle(settlement(grant))
    by_hand("delete from audit where seq >= (select max(seq) - 1 from audit)")

    with pytest.raises(BrokenLedgerError, match="I12"):
        check_ledger(broken.ledger, broken.journal)


def test_fence_set_back_is_seen(ledger, broken, by_hand):
    """A number that a new process gave out a second time stands in the log twice."""
    broken.admitted()
    second = broken.admitted(MEDIUM, operation="1")
    broken.claim(1, [LOW.name])
    by_hand("update installation set fence = 0")

    (grant,) = ledger.consumer().claim(1, [MEDIUM.name])

    assert (second.id, 1) == (grant.job.id, grant.lease.fence)
    with pytest.raises(BrokenLedgerError, match="I3 fence 1 was given after 1"):
        check_ledger(ledger)


def test_fence_set_back_takes_no_resource(ledger, broken, by_hand):
    """A resource knows the last fence that held it: a lower one does not get it, and its job is set apart."""
    first = broken.started(MEDIUM, operation="1", resources=("host:a",))
    broken.settle(settlement(first))
    second = broken.admitted(MEDIUM, operation="2", resources=("host:a",))
    by_hand("update installation set fence = 0")

    assert [] == ledger.consumer().claim(1, [MEDIUM.name])
    assert State.QUARANTINED is ledger.operator().show(second.id).state


def test_fence_set_back_stops_a_process_that_has_seen_higher(broken, by_hand):
    """A process that gave out a fence does not give it out again, whoever wrote to the file meanwhile."""
    broken.started()
    broken.admitted()
    by_hand("update installation set fence = 0")

    with pytest.raises(StoreDamaged):
        broken.claim()


def _identity(job):
    names = ("payload", "payload_sha256", "operation_key", "refs", "actor", "expires_at")
    return {name: getattr(job, name) for name in names}
