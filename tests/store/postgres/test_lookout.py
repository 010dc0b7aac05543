"""How often the keeper looks at everything that runs: seldom, and never too late. See functions/lookout.sql."""

from __future__ import annotations

from benteng.testing.bench import proof

LOOKED_AT = "select benteng.instant(looked_at) from benteng.lookout where isfinite(looked_at)"


def looked_at(owner):
    """Return when everything that runs was looked at last, by the store's clock."""
    return (owner.execute(LOOKED_AT).fetchone() or (0,))[0]


def test_a_round_looks_at_what_runs_only_now_and_then(bench, owner):
    """A minute of rounds each half second with a healthy worker: one look in five seconds, not 120."""
    grant = bench.started()
    looks = set()
    for half_second in range(120):
        if half_second % 8 == 0:
            bench.consumer.extend([proof(grant)])
        bench.reclaim()
        bench.stage()
        looks.add(looked_at(owner))
        bench.advance(0.5)

    assert 12 == len(looks)


def test_a_clock_that_went_back_makes_the_last_look_void(bench):
    """A lease that begins after the server's clock was set back by an hour ends as early as all others do."""
    bench.started(operation="before")
    bench.reclaim()
    bench.advance(-3_600)
    grant = bench.started(operation="after")
    bench.advance(29.5)
    bench.reclaim()
    bench.advance(0.5)

    assert [grant.job.id] == [answer.job_id for answer in bench.reclaim()]


def test_two_keepers_do_not_wait_for_each_other(bench, ledger, owner):
    """Somebody who has written the look and does not commit keeps no other keeper from looking."""
    grant = bench.started()
    with owner.transaction():
        owner.execute("update benteng.lookout set look_at = look_at")
        bench.advance(30)

        assert [grant.job.id] == [answer.job_id for answer in ledger.keeper().reclaim(10)]
