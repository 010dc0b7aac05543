from __future__ import annotations

from msgspec.structs import replace

from benteng.job import ArtifactRef, Refs
from benteng.store.postgres import wire
from benteng.store.postgres.rows import Started
from benteng.store.records import Disposal
from benteng.testing.ledger import MEDIUM

COLUMNS = """
select a.attname, a.atttypid::bigint
from pg_attribute a
join pg_class c on c.oid = a.attrelid
where c.oid = to_regclass('benteng_v1.' || %s)
  and a.attnum > 0
order by a.attnum
"""


def test_layouts_are_the_types_of_the_database(owner):
    """Each field has the name, the place and the type that the composite type in the schema has."""
    for layout in wire.LAYOUTS:
        here = [(name, kind.oid) for name, kind in layout.fields.items()]

        assert here == owner.execute(COLUMNS, [layout.name]).fetchall(), layout.name


def test_rows_of_started_jobs_are_the_type_of_the_database(owner):
    """They are read by the place of each column: it is the same in the schema."""
    started = [name for name, _ in owner.execute(COLUMNS, ["granted"]).fetchall()]

    assert started == list(Started._fields)


def test_texts_that_postgresql_cannot_hold_are_refused(bench):
    """NUL and lone surrogates are no names: the job is refused alone, with its rule, and nothing breaks."""
    good = bench.job()
    bad = [
        bench.job(actor="svc:a\0b"),
        bench.job(request_id="\ud800"),
        bench.job(summary='{"x":"\0"}'),
        replace(bench.job(MEDIUM, operation="a"), refs=Refs(resources=("host:\0",))),
        replace(bench.job(MEDIUM, operation="b"), refs=Refs(targets=("host:\udfff",))),
        replace(bench.job(MEDIUM, operation="c"), refs=Refs(artifacts=(ArtifactRef("a\0", "0" * 64),))),
    ]

    receipts = bench.admit(*bad, good)

    assert [(Disposal.REFUSED, "S-format")] * len(bad) == [(each.disposal, each.rule) for each in receipts[:-1]]
    assert Disposal.ADMITTED is receipts[-1].disposal


def test_id_that_is_no_uuid_is_refused(bench):
    """An id of another form names no job, in any verb."""
    receipts = bench.admit(replace(bench.job(), id="' or 1=1 --"), replace(bench.job(), id=""))

    assert ["S-format"] * 2 == [receipt.rule for receipt in receipts]
    assert [] == bench.producer.status(["x", "' or 1=1 --"])
    assert [] == bench.producer.cancel(["x"], "a reason")
    assert bench.operator.show("x") is None


def test_numbers_beyond_64_bits_do_not_break_the_batch(bench):
    """A number that no column holds is out of range, not an error of the driver."""
    (receipt, good) = bench.admit(bench.job(available_at=1 << 70), bench.job())

    assert ["S-format", ""] == [receipt.rule, good.rule]
