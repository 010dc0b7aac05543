from __future__ import annotations

import subprocess
import sys

import pytest

from benteng.testing.clock import START, TestClock
from benteng.testing.faults import SCENARIOS, Nursery
from benteng.testing.race import Entry, in_threads
from benteng.testing.sqlite import SqliteLedger
from benteng.testing.trap import Trap

READ_CLOCK = "import sys; from benteng.testing.clock import TestClock; print(TestClock(sys.argv[1])())"


def test_clock_stands_still_until_it_is_moved(tmp_path):
    """A test clock moves by what the test says, forwards and backwards."""
    clock = TestClock(tmp_path / "clock")
    seen = [clock(), clock()]
    clock.advance(1.5)
    seen.append(clock())
    clock.advance(-2)
    seen.append(clock())

    assert [START, START, START + 1_500_000, START - 500_000] == seen


def test_clock_is_shared_between_processes(tmp_path):
    """Another process that opens the same file sees the same instant."""
    clock = TestClock(tmp_path / "clock")
    clock.set(1_234_567)

    told = subprocess.run([sys.executable, "-c", READ_CLOCK, clock.path], capture_output=True, text=True, check=True)

    assert "1234567" == told.stdout.strip()


def test_trap_counts_only_when_armed():
    """Opening a store before the trap is armed costs no step; a trap that kills at 0 only counts."""
    trap = Trap(0)
    trap.step()
    trap.arm()
    trap.step()
    trap.step()

    assert 2 == trap.steps


@pytest.mark.parametrize("kill_at", [1, 3])
def test_nursery_kills_with_a_real_signal(tmp_path, kill_at):
    """The child dies by SIGKILL before the statement asked for; without a kill it tells how many there were."""
    with Nursery() as nursery:
        ledger = SqliteLedger(tmp_path)
        clean = nursery.run(ledger, "cancel", [[], "warm up"], 0)
        killed = nursery.run(ledger, "cancel", [[], "again"], kill_at)

    assert (False, True) == (clean.killed, killed.killed)
    assert clean.statements >= kill_at


def test_nursery_tells_a_failed_child_from_a_killed_one(tmp_path):
    """A child that fails by itself is an error of the test, not a successful kill."""
    with Nursery() as nursery, pytest.raises(RuntimeError, match="ended with 1"):
        nursery.run(SqliteLedger(tmp_path), "cancel", ["not", "its", "arguments"], 0)


def test_every_writing_verb_is_under_the_knife():
    """No verb of the contract that changes something is left out of the sweep."""
    from benteng.store import contract

    facets = (contract.Producer, contract.Consumer, contract.Keeper, contract.Operator, contract.Auditor)
    verbs = {name for facet in facets for name in vars(facet) if not name.startswith("_")}
    reading = {
        "evidence",
        "status",
        "find",
        "show",
        "controls",
        "depths",
        "types",
        "health",
        "audit_page",
        "hints",
        "origin",
        "close",
    }

    assert verbs - reading == set(SCENARIOS) - {"settle-end", "register-refused"}


def test_race_reports_what_a_task_raised(tmp_path):
    """An exception in a thread of a race reaches the test."""

    def fail(_ledger, _argument):
        raise LookupError

    with pytest.raises(LookupError):
        in_threads(SqliteLedger(tmp_path), {"fail": fail}, [Entry("fail")])
