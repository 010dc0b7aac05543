"""The beds of the worker's tests."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from tests.worker.bed import APPS, Bed


@pytest.fixture(scope="session")
def registry():
    """The registry of the app under test, as a producer sees it."""
    spec = importlib.util.spec_from_file_location("jobs", APPS / "jobs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["jobs"] = module
    spec.loader.exec_module(module)
    return module.app.registry


@pytest.fixture
def bed(tmp_path, registry):
    """A ledger with nothing in it and no worker."""
    made = Bed(tmp_path, registry)
    yield made
    made.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory, registry):
    """A ledger and one worker for all tests of a module that do not harm it. Names in payloads must differ."""
    made = Bed(tmp_path_factory.mktemp("shared"), registry)
    made.worker(concurrency=4)
    yield made
    made.close()
