from __future__ import annotations

import dataclasses

import pytest

from benteng.verdict import ADMIT, Admit, Divert, Hold, Refuse

SAID = [ADMIT, Hold("H1", "why"), Divert("D1", "why"), Refuse("R1", "why")]
NAMES = [type(verdict).__name__ for verdict in SAID]


@pytest.mark.parametrize("verdict", SAID, ids=NAMES)
def test_verdict_has_no_truth_value(verdict):
    """Code that treats a verdict as a boolean fails loudly, whatever the verdict is: also for Admit."""
    with pytest.raises(TypeError, match="no truth value"):
        bool(verdict)


@pytest.mark.parametrize("verdict", SAID, ids=NAMES)
def test_verdict_has_no_truth_value_in_a_condition(verdict):
    """`if verdict`, `not verdict` and `verdict and ...` are all refused."""
    with pytest.raises(TypeError):
        _ = not verdict
    with pytest.raises(TypeError):
        _ = verdict and True


@pytest.mark.parametrize("verdict", SAID[1:], ids=NAMES[1:])
def test_verdict_cannot_be_changed(verdict):
    """What a guard said stays said."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        verdict.rule = "other"


def test_verdicts_compare_by_value():
    """Two guards that say the same are equal; another rule is another verdict."""
    assert Admit() == ADMIT
    assert Refuse("R1", "why") == Refuse("R1", "why")
    assert Refuse("R1", "why") != Refuse("R2", "why")
    assert Hold("R1", "why") != Divert("R1", "why")


def test_refusal_is_not_suspicious_unless_said():
    """Suspicion raises alerts, so that it is never the default."""
    assert Refuse("R1", "why").suspicious is False
