"""The broken twins can be made: what they break is still in the source."""

from __future__ import annotations

import pytest

from scripts import twins, twins_postgres
from scripts.breaking import ROOT


def is_there(twin) -> bool:
    """Whether each text is in the source as the breaks before it have left it."""
    text = (ROOT / "src" / twin.file).read_text()
    for old, new in twin.breaks:
        if old not in text:
            return False
        text = text.replace(old, new)
    return True


@pytest.mark.parametrize("module", [twins, twins_postgres], ids=["sqlite", "postgres"])
def test_what_a_twin_breaks_is_there(module):
    """A guard that moves takes its twin along, in the same change."""
    lost = [twin.name for twin in module.TWINS if not is_there(twin)]

    assert [] == lost
