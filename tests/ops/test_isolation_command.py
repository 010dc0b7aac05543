"""`benteng isolation`: what it says, and its exit code, on a host that can hold MEDIUM cells."""

from __future__ import annotations

import pytest

from benteng.worker.sandbox import landlock

pytestmark = pytest.mark.skipif(landlock.abi() == 0, reason="this kernel has no Landlock, so no tier above LOW")


def test_report_finds_what_medium_requires(project):
    """Every layer of the table is there, tried, and nothing that MEDIUM requires is missing on this host."""
    ended = project.call("isolation", "report", "--tier", "medium", "--json")

    assert 0 == ended.code
    assert [] == ended.document["missing"]
    assert {"need": "R", "in_force": True} == {
        key: ended.document["layers"]["landlock_files"][key] for key in ("need", "in_force")
    }


def test_report_exits_35_for_a_pool_below_the_tier(project):
    """HIGH requires a uid of the pool's own; without one the report says so and fails."""
    ended = project.call("isolation", "report", "--tier", "high", "--json")

    assert 35 == ended.code
    assert ["own_uid"] == ended.document["missing"]


def test_a_waiver_is_a_missing_layer(project):
    """What a pool waives is not in force, whatever the host could do."""
    (project.root / "benteng.toml").write_text('app = "jobs:app"\n[pool.default]\nwaive = ["seccomp"]\n')

    ended = project.call("isolation", "report", "--tier", "medium", "--json")

    assert 35 == ended.code
    assert ["seccomp", "no_network"] == ended.document["missing"]
    assert ["seccomp"] == ended.document["waive"]


def test_test_tries_to_get_out_and_does_not(project):
    """Each attempt works without a cell and ends in none: refused at MEDIUM, refused or killed at HIGH."""
    ended = project.call("isolation", "test", "--json")

    assert 0 == ended.code
    attempts = ended.document["attempts"]
    assert {"medium": "refused", "high": "killed"} == attempts["start a program"]
    assert {"refused", "killed"} >= {word for each in attempts.values() for word in each.values()}
