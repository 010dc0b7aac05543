"""Lets pytest explain the suite's failed assertions. Imported before the parts, which pytest then rewrites."""

from __future__ import annotations

import pytest

PARTS = (
    "admit",
    "audit",
    "claim",
    "depth",
    "evidence",
    "extend",
    "keeper",
    "kills",
    "mix",
    "operations",
    "operator",
    "own",
    "quarantine",
    "races",
    "release",
    "resources",
    "settle",
)
"""The modules with promises."""

pytest.register_assert_rewrite(*(f"benteng.testing.conformance.{part}" for part in PARTS))
