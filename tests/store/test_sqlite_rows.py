from __future__ import annotations

import re
import sqlite3
from contextlib import closing

import msgspec
import pytest

from benteng.decide import Disposition
from benteng.errors import PolicyError
from benteng.evidence import ControlMode
from benteng.job import Refs
from benteng.lifecycle import ACTIVE, OperationState, QuarantineReason, State
from benteng.store.records import Admission, Depth, Disposal, LeaseProof, Query, Refusal, Settlement, TypeRow
from benteng.store.sqlite import refusals
from benteng.store.sqlite.rows import UndecodableError, decode_refs, encode_refs
from benteng.store.sqlite.settle import clamped
from benteng.store.sqlite.statements import by_place, parse, schema, statements
from benteng.testing.bench import Bench, proof, records, settlement
from benteng.testing.ledger import HIGH, LOW, MEDIUM, make_policy, type_row


@pytest.fixture
def bench(ledger):
    """The ledger with its facets open and its types applied."""
    return Bench(ledger)


@pytest.fixture
def by_hand(ledger):
    """Run SQL on the file as somebody with an editor would, checks off."""

    def run(sql, *values):
        with closing(sqlite3.connect(ledger.path)) as raw, raw:
            raw.execute("pragma ignore_check_constraints = on")
            return raw.execute(sql, values).fetchall()

    return run


BAD = {
    "tier": "update job set tier = 'extreme' where id = ?",
    "refs": "update job set refs = '[1, 2' where id = ?",
    "too many resources": 'update job set refs = \'{"artifacts":[],"targets":[],"resources":[\''
    " || (with recursive n (i) as (select 10 union all select i + 1 from n where i < 30)"
    " select group_concat('\"host:' || i || '\"') from n) || ']}' where id = ?",
    "key": "update job set operation_key = 'k' where id = ?",
    "no utf-8": "update job set refs = cast(x'fffe' as text) where id = ?",
    "fence from the future": "update job set fence = 4611686018427387904 where id = ?",
}


@pytest.mark.parametrize("bad", BAD)
def test_one_bad_row_is_set_apart_alone(bench, by_hand, bad):
    """A row that somebody garbled goes to quarantine as undecodable; the hundred around it start (I15)."""
    jobs = [bench.admitted() for _ in range(20)]
    by_hand(BAD[bad], jobs[7].id)

    grants = bench.claim(100)

    assert [job.id for n, job in enumerate(jobs) if n != 7] == [grant.job.id for grant in grants]
    assert QuarantineReason.UNDECODABLE is bench.view(jobs[7].id).reason


def test_resource_with_a_fence_from_the_future_stops_its_job_alone(bench, by_hand):
    """A fence in a resource never goes back, also when somebody wrote it by hand; other jobs start."""
    by_hand("insert into resource (key, fence) values ('host:bad', 4611686018427387904)")
    bad = bench.admitted(MEDIUM, operation="1", resources=("host:bad",))
    good = bench.admitted(MEDIUM, operation="2", resources=("host:good",))

    assert [good.id] == [grant.job.id for grant in bench.claim(5)]
    assert State.QUARANTINED is bench.state(bad.id)


def test_resource_with_a_garbled_key_keeps_nobody_asleep(bench, by_hand):
    """What an attempt held is freed and said once, also when one of the keys cannot be read: the next job wakes."""
    holder = bench.started(MEDIUM, operation="1", resources=("host:a",))
    waiter = bench.admitted(MEDIUM, operation="2", resources=("host:a",))
    assert [] == bench.claim(5)
    by_hand("insert into resource (key, holder) values (cast(x'ff' as text), ?)", holder.job.id)

    bench.consumer.settle([settlement(holder)])

    assert State.READY is bench.state(waiter.id)


def test_job_without_its_operation_stops_no_other(bench, by_hand):
    """Rows that do not fit together are left as they are, said once to the audit, and found by nobody else."""
    lost, good = bench.started(), bench.started()
    by_hand("delete from operation where job_id = ?", lost.job.id)

    settled = bench.consumer.settle([settlement(lost), settlement(good)])

    assert [good.job.id] == [one.job_id for one in settled]
    assert [lost.job.id] == [r["job_id"] for r in records(bench.audit()) if r["rule"] == "S-damaged"]


def test_one_damaged_among_many_takes_nothing_from_the_others(bench, by_hand):
    """A set is ended together, and one whose rows do not fit is left out of it, wherever it stands."""
    jobs = [bench.admitted() for _ in range(9)]
    grants = bench.claim(9)
    for lost in (0, 4, 5):
        by_hand("delete from operation where job_id = ?", jobs[lost].id)

    settled = bench.consumer.settle([settlement(grant) for grant in grants])

    assert [job.id for n, job in enumerate(jobs) if n not in {0, 4, 5}] == [one.job_id for one in settled]
    assert {jobs[n].id for n in (0, 4, 5)} == {r["job_id"] for r in records(bench.audit()) if r["rule"] == "S-damaged"}


def test_types_with_other_terms_start_together_each_by_its_own(bench, by_hand):
    """One claim gives each its lease; a damaged one undoes no more than its own start, and nothing is said twice."""
    slow = make_policy("t.slow@1", limits={"lease_seconds": 77.0})
    bench.operator.apply_types([type_row(slow)], "a reason")
    jobs = [bench.admitted(policy) for policy in (LOW, slow, LOW, slow)]
    by_hand("update job set fence = 4611686018427387904 where id = ?", jobs[3].id)

    grants = bench.claim(9, (LOW.name, slow.name))

    assert [job.id for job in jobs[:3]] == [grant.job.id for grant in grants]
    assert [LOW.limits.lease_seconds, 77.0, LOW.limits.lease_seconds] == [grant.lease.seconds for grant in grants]
    untils = [bench.view(grant.job.id).lease_until for grant in grants]
    assert [bench.clock() + int(grant.lease.seconds * 1_000_000) for grant in grants] == untils
    claimed = [record["job_id"] for record in records(bench.audit()) if record["event"] == "claimed"]
    assert sorted(job.id for job in jobs[:3]) == sorted(claimed)


def test_attempt_named_twice_is_stale_and_no_damage(bench):
    """The second settlement of one attempt in a batch is answered as what it is."""
    grant = bench.started()

    (settled,) = bench.consumer.settle([settlement(grant), settlement(grant)])

    assert grant.job.id == settled.job_id
    assert ["S-stale"] == [r["rule"] for r in records(bench.audit()) if r["rule"]]


def test_unreadable_policy_starts_nothing_and_frees_nothing(bench, by_hand):
    """A garbled policy grants nothing: its type does not start, a running job of it runs no second time."""
    running, waiting = bench.started(), bench.admitted()
    by_hand("update job_type set policy = cast('{}' as blob) where name = ?", LOW.name)

    assert [] == bench.claim(5)
    (settled,) = bench.consumer.settle([settlement(running, Disposition.INTERRUPT)])
    assert QuarantineReason.UNCERTAIN is settled.reason
    assert State.READY is bench.state(waiting.id)


def test_policy_of_another_digest_is_unreadable(bench, by_hand):
    """A policy counts only with its own digest: editing a limit by hand grants nothing."""
    bench.admitted()
    by_hand("update job_type set policy = cast(replace(policy, '\"attempts_max\":3', '\"attempts_max\":9') as blob)")

    assert [] == bench.claim(5)


def test_garbled_rows_are_shown_as_far_as_they_can_be(bench, by_hand):
    """Lists and views do not fail on a row that cannot be read."""
    job = bench.admitted()
    by_hand("update job set refs = cast(x'ff' as text), tier = 'x', last_error = cast(x'ff41' as text)")

    assert 1 == len(bench.operator.find(Query()).lines)
    assert Refs() == bench.view(job.id).job.refs


FORGED = [
    LeaseProof("\ud800", 1, "t"),
    LeaseProof("x", 1 << 70, "t"),
    LeaseProof("x", -1, "t"),
    LeaseProof("x", 1, "\ud800"),
    LeaseProof("x\0", 0, ""),
]


@pytest.mark.parametrize("forged", FORGED)
def test_forged_proof_of_any_shape_proves_nothing(bench, forged):
    """Whatever a worker sends as a proof, the answer is lost, and the others of its batch are answered."""
    grant = bench.started()

    assert [True, False] == [one.lost for one in bench.consumer.extend([forged, proof(grant)])]
    settled = bench.consumer.settle([Settlement(forged, Disposition.COMPLETE), settlement(grant)])
    assert [grant.job.id] == [one.job_id for one in settled]


@pytest.mark.parametrize(
    "changes, rule",
    [
        ({"id": "not-a-uuid"}, "S-format"),
        ({"id": "\ud800"}, "S-format"),
        ({"type": "no major"}, "S-format"),
        ({"type": "unknown.type@1"}, "S-type"),
        ({"operation_key": "short"}, "S-format"),
        ({"priority": 10}, "S-format"),
        ({"priority": -1}, "S-format"),
        ({"generation": 1}, "S-format"),
        ({"available_at": 1 << 63}, "S-format"),
        ({"expires_at": -1}, "S-format"),
        ({"actor": "a\nb"}, "S-format"),
        ({"actor": "\ud800"}, "S-format"),
        ({"request_id": "r" * 300}, "S-format"),
        ({"payload_sha256": "0" * 64}, "S-digest"),
        ({"origin": "os:0x"}, "S-origin"),
        ({"policy_sha256": "0" * 64}, "S-policy"),
        ({"envelope": b"e" * 20_000}, "S-limit"),
        ({"summary": "s" * 5_000}, "S-limit"),
        ({"summary": "\ud800"}, "S-limit"),
        ({"refs": Refs(resources=tuple(f"host:{n:02}" for n in range(17)))}, "S-resources"),
        ({"refs": Refs(resources=("host:b", "host:a"))}, "S-resources"),
        ({"refs": Refs(resources=("host:a", "host:a"))}, "S-resources"),
        ({"refs": Refs(resources=("nokind",))}, "S-resources"),
        ({"refs": Refs(resources=("host:",))}, "S-resources"),
        ({"refs": Refs(resources=("host:\n",))}, "S-resources"),
        ({"refs": Refs(targets=("t" * 300,))}, "S-format"),
    ],
)
def test_job_that_is_not_well_formed_is_refused_alone(bench, changes, rule):
    """Each rule of the store's own check, with a good job in the same batch that enters."""
    bad, good = bench.job(**changes), bench.job()

    refused, admitted = bench.producer.admit([Admission(bad), Admission(good)])

    assert (Disposal.REFUSED, rule) == (refused.disposal, refused.rule)
    assert Disposal.ADMITTED is admitted.disposal
    assert [rule] == [r["rule"] for r in records(bench.audit()) if r["event"] == "refused"]


def test_origin_that_may_not_speak_is_refused(bench, by_hand):
    """Without a row in `speaks` nothing of that actor and type enters."""
    by_hand("delete from speaks")
    by_hand("insert into speaks values (?, 'svc:tester', ?)", bench.producer.origin, LOW.name)

    allowed, other_actor, other_type = bench.producer.admit(
        [
            Admission(bench.job()),
            Admission(bench.job(actor="svc:other")),
            Admission(bench.job(MEDIUM, operation="x")),
        ]
    )

    assert ["", "S-speaks", "S-speaks"] == [receipt.rule for receipt in (allowed, other_actor, other_type)]


def test_the_depth_holds_within_a_call(bench):
    """Of the jobs of one call as many enter as there is room for."""
    bench.operator.limit_depth(Depth(bench.producer.origin, 3), "a reason")
    bench.admitted()

    receipts = bench.admit(*(bench.job() for _ in range(4)))

    assert ["", "", "S-depth", "S-depth"] == [receipt.rule for receipt in receipts]


def test_a_full_origin_is_counted_now_and_then(ledger, bench):
    """While it is full most calls count nothing: 2 us a job lie between two counts, by the ledger's clock."""
    bench.operator.limit_depth(Depth(bench.producer.origin, 3), "a reason")
    for _ in range(3):
        bench.admitted()
    with closing(sqlite3.connect(ledger.path)) as raw:
        raw.execute("update depth set jobs = 3000000, counted_at = ?", [bench.clock()])
        raw.commit()
        refused = bench.admit(bench.job())
        (kept,) = raw.execute("select jobs from depth").fetchone()
        bench.advance(7)
        bench.admit(bench.job())
        (counted,) = raw.execute("select jobs from depth").fetchone()

    assert ["S-depth"] == [receipt.rule for receipt in refused]
    assert (3_000_000, 3) == (kept, counted)


def test_history_of_a_forgotten_job_is_nobody_elses(bench, by_hand):
    """Records are found by a number in line, and no number comes again, also when the last one's job is forgotten."""
    lost = bench.admitted()
    by_hand("delete from job")
    by_hand("delete from operation")

    job = bench.admitted()

    assert {job.id} == {record["job_id"] for record in records(bench.view(job.id).audit)}
    assert {lost.id, job.id} == {record["job_id"] for record in records(bench.audit()) if record["job_id"]}


def test_records_of_one_job_are_found_without_a_walk_through_the_log(bench):
    """Each of the two ways to it has its index."""
    connection = bench.consumer._connection
    plan = connection.execute(
        f"explain query plan {statements('audit')['of_job']}", {"seq": 1, "job_id": "", "limit": 1}
    ).fetchall()

    assert ["audit_job", "audit_job_id"] == re.findall(r"SEARCH audit USING INDEX (\w+)", str(plan))
    assert "SCAN" not in str(plan)


@pytest.mark.parametrize(
    "sql, anonymous, placed",
    [
        ("insert into t values (:b, :a, :b)", "insert into t values (?, ?, ?)", ("B", "A", "B")),
        ("select :a", "select ?", ("A",)),
        (
            "-- a: one of b:c\nselect json_extract(x, '$.b'), :c_1",
            "-- a: one of b:c\nselect json_extract(x, '$.b'), ?",
            ("C",),
        ),
    ],
    ids=["twice", "alone", "other-colons"],
)
def test_parameters_by_name_find_their_places(sql, anonymous, placed):
    """What runs for many rows is bound by place, and means the same. Numbers are names: Python 3.14 refuses them."""
    found, binding = by_place(sql)

    assert anonymous == found
    assert placed == binding({"a": "A", "b": "B", "c_1": "C"})


def test_a_count_of_a_number_that_was_never_drawn_is_void(ledger, bench):
    """What was counted at a number that was never drawn says nothing: somebody wrote it by hand."""
    bench.operator.limit_depth(Depth(bench.producer.origin, 3), "a reason")
    for _ in range(3):
        bench.admitted()
    with closing(sqlite3.connect(ledger.path)) as raw:
        raw.execute("update depth set seq = 1000000")
        raw.commit()

    assert ["S-depth"] == [receipt.rule for receipt in bench.admit(bench.job())]


def test_a_replay_counts_though_all_were_counted_before(ledger, bench):
    """It draws no number in line, so that it is added to what was counted."""
    apart = [bench.admitted(entry=State.QUARANTINED) for _ in range(2)]
    bench.operator.limit_depth(Depth(bench.producer.origin, 3), "a reason")
    bench.admitted()
    with closing(sqlite3.connect(ledger.path)) as raw:
        raw.execute("update depth set jobs = 1, seq = 3")
        raw.commit()
    for job in apart:
        bench.replay(job)

    assert ["S-depth"] == [receipt.rule for receipt in bench.admit(bench.job())]


@pytest.mark.usefixtures("bench")
def test_depth_of_a_deep_queue_is_counted_from_indexes(ledger):
    """Once an origin is near its depth it is counted now and then: no row of a job is read for those that wait."""
    with closing(sqlite3.connect(ledger.path)) as raw:
        plan = [row[3] for row in raw.execute(f"explain query plan {statements('admit')['depth']}", {"origin": "o"})]

    assert [
        "SCAN job USING COVERING INDEX job_ready",
        "SEARCH job USING COVERING INDEX job_origin",
        "SCAN job USING INDEX job_lease",
    ] == [step.partition(" (")[0] for step in plan if " job " in step]


def test_flood_of_refusals_is_counted_and_summed_up(bench, by_hand):
    """Beyond a rate refusals are only counted; one record says so at once, and one sums the minute up."""
    flood = [Refusal(LOW.name, "svc:x", "r", "F9", "no") for _ in range(500)]
    bench.producer.admit([], flood)
    within = len([r for r in records(bench.audit()) if r["event"] == "refused"])
    bench.advance(61)
    bench.stage()
    bench.stage()

    told = [r["detail"] for r in records(bench.audit()) if r["event"] == "refused"]
    assert refusals.RECORDS_PER_MINUTE + 1 == within
    assert within + 1 == len(told)
    assert told[-1].startswith(f"{500 - refusals.RECORDS_PER_MINUTE} more in the minute")
    assert [(500,)] == by_hand("select count from tally where rule = 'F9'")


def test_tallies_go_after_a_week(bench, by_hand):
    """What no breaker looks back to is dropped, and only when its sum was told."""
    bench.producer.admit([], [Refusal(LOW.name, "svc:x", "r", "F9", "no") for _ in range(30)])
    bench.advance(8 * 86_400)
    bench.keeper.purge(10)
    untold = by_hand("select count(*) from tally")
    bench.stage()
    bench.keeper.purge(10)

    assert [(1,)] == untold
    assert [(0,)] == by_hand("select count(*) from tally")


def test_flood_of_made_up_types_shares_one_tally(bench, by_hand):
    """A new name in each refusal does not make a new row, nor a new allowance of records."""
    bench.producer.admit([], [Refusal(f"made.up{n}@1", "svc:x", "r", f"bad rule {n}", "no") for n in range(200)])

    assert [("?", "?", 200)] == by_hand("select type, rule, count from tally")
    assert refusals.RECORDS_PER_MINUTE + 1 == len([r for r in records(bench.audit()) if r["event"] == "refused"])


def test_flood_of_stale_settlements_is_counted(bench):
    """A zombie that settles in a loop cannot fill the disk."""
    grant = bench.started()
    bench.settle(settlement(grant))
    for _ in range(60):
        bench.consumer.settle([settlement(grant)])

    stale = [r for r in records(bench.audit()) if r["rule"] == refusals.STALE]
    assert refusals.RECORDS_PER_MINUTE + 1 == len(stale)


@pytest.mark.parametrize(
    "asked, waited",
    [
        (0.0, 0.5),
        (-5.0, 0.5),
        (9.0, 9.0),
        (1e9, 60.0),
        (float("inf"), 60.0),
        (float("-inf"), 0.5),
        (float("nan"), 60.0),
    ],
)
def test_delay_is_bounded_whatever_a_worker_sends(asked, waited):
    """A delay lies within its bounds; what is no number waits longest."""
    assert waited == clamped(asked, 0.5, 60.0)


def test_endless_retention_is_a_bounded_instant(bench, by_hand):
    """A limit beyond all reason, which only a hand could have written, does not fail the settlements beside it."""
    endless = make_policy("t.endless@1", limits={"operation_keep_seconds": 1e300, "result_keep_seconds": 1e300})
    bench.operator.apply_types([type_row(endless)], "a reason")
    bench.admitted(endless)
    (grant,) = bench.claim(1, [endless.name])

    assert [grant.job.id] == [one.job_id for one in bench.settle(settlement(grant))]


def test_refs_survive_their_row_and_nothing_else_does():
    """References come back as they went in; anything else raises."""
    refs = Refs(targets=("t",), resources=("host:a", "host:b"))

    assert refs == decode_refs(encode_refs(refs))
    for text in ("", "null", "{}", "[]", '{"artifacts":[],"targets":[],"resources":["b","a"]}', "\ufffd", "[" * 9_999):
        with pytest.raises(UndecodableError):
            decode_refs(text)


def test_checks_of_the_schema_are_the_life_cycles(bench, by_hand):
    """The states that a row may have are those of lifecycle.py."""
    (job_sql,) = by_hand("select sql from sqlite_master where name = 'job'")
    (operation_sql,) = by_hand("select sql from sqlite_master where name = 'operation'")

    def states(sql):
        return set(re.findall(r"'(\w+)'", sql.partition("state in (")[2].partition(")")[0]))

    assert set(ACTIVE) == states(job_sql[0])
    assert set(OperationState) == states(operation_sql[0])


def test_every_table_is_strict(bench, by_hand):
    """No column takes a value of another type."""
    tables = by_hand("select name, strict from pragma_table_list where schema = 'main' and name not like 'sqlite_%'")

    assert 16 == len(tables)
    assert {1} == {strict for _, strict in tables}


PLANS = [
    ("claim", "candidates", "SEARCH job USING COVERING INDEX job_ready"),
    ("claim", "load", "SEARCH j USING INTEGER PRIMARY KEY"),
    ("settle", "running", "SEARCH j USING INDEX sqlite_autoindex_job_1"),
    ("extend", "proven", "SEARCH job USING INDEX sqlite_autoindex_job_1"),
    ("reclaim", "expired", "SEARCH job USING INDEX job_lease"),
    ("stage", "due", "SEARCH job USING INDEX job_due"),
    ("stage", "late", "SEARCH job USING INDEX job_expires"),
    ("resource", "waiter", "SEARCH job USING INDEX job_waits"),
    ("resource", "release", "SEARCH resource USING INDEX resource_holder"),
    ("admit", "owners", "SEARCH o USING INDEX operation_key"),
    ("evidence", "owners", "SEARCH o USING INDEX operation_key"),
    ("admit", "taken", "SEARCH o USING COVERING INDEX sqlite_autoindex_operation_1"),
    ("admit", "span", "SEARCH job"),
    ("refuse", "untold", "SEARCH tally USING INDEX tally_open"),
    ("purge", "results", "SEARCH operation USING INDEX operation_result"),
    ("purge", "operations", "SEARCH operation USING INDEX operation_keep"),
]


@pytest.mark.parametrize("file, name, expected", PLANS)
def test_hot_statements_use_their_index(bench, ledger, file, name, expected):
    """A large table does not make a verb slow: no scan, and no sort of the candidates."""
    sql = statements(file)[name]
    with closing(sqlite3.connect(ledger.path)) as raw:
        named = dict.fromkeys(re.findall(r":([a-z_0-9]+)", sql))
        plan = [row[3] for row in raw.execute(f"explain query plan {sql}", named)]

    assert any(step.startswith(expected) for step in plan), plan
    assert not any(step.startswith(("SCAN job", "SCAN j ")) or "SCAN operation" in step for step in plan), plan
    assert not (file == "claim" and any("TEMP B-TREE" in step for step in plan)), plan


def test_halted_types_backlog_costs_no_scan(bench):
    """A kill switch on a type with a backlog does not hide the jobs behind it."""
    for _ in range(200):
        bench.admitted(priority=0)
    behind = bench.admitted(MEDIUM, operation="x")
    bench.tighten(ControlMode.HALT)

    assert [behind.id] == [grant.job.id for grant in bench.claim(5)]


def test_statements_are_read_by_name():
    """A file of statements is comments, then named statements, nothing else."""
    found = parse("-- x.sql: y\n\n-- name: one\nselect 1;\n\n-- name: two\n-- why\nselect 2\nfrom x;\n")

    assert {"one": "select 1", "two": "-- why\nselect 2\nfrom x"} == found


def test_schema_is_lower_case_and_has_no_if_not_exists():
    """It is made once, in one transaction: a half-made one would be hidden by `if not exists`."""
    assert "if not exists" not in schema()
    assert not re.search(r"\b(CREATE|TABLE|SELECT|UPDATE)\b", re.sub(r"--.*", "", schema()))


def test_type_below_its_floor_is_not_applied(bench):
    """The ledger does not take a policy that no author could have defined."""
    low = msgspec.structs.replace(HIGH, signed=False)
    row = TypeRow(low.name, msgspec.json.encode(low, order="sorted"), low.sha256)

    with pytest.raises(PolicyError, match="F-signed"):
        bench.operator.apply_types([row], "a reason")
    assert HIGH.sha256 == {row.name: row.sha256 for row in bench.operator.types()}[HIGH.name]
