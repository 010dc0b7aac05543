"""What every test may count on: Hypothesis profiles, and long tests only on request."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.support.fixtures"]

LONG = os.environ.get("BENTENG_TEST_LONG") == "1"

# Derandomized: the same commit gives the same verdict everywhere. The long profile is the one that searches.
settings.register_profile("ci", max_examples=50, derandomize=True, deadline=None, database=None)
settings.register_profile("long", max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("long" if LONG else "ci")


def pytest_collection_modifyitems(items):
    """Mark the long tests as skipped, loudly, unless BENTENG_TEST_LONG=1."""
    if LONG:
        return
    skip = pytest.mark.skip(reason="long: runs with BENTENG_TEST_LONG=1")
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(skip)
