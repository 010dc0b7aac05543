"""The beds of the worker's tests."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from tests.worker.bed import APPS, Bed


@pytest.fixture(scope="session")
def app_registry():
    """Load the registry of an app under test, as a producer sees it."""

    def load(name):
        if name not in sys.modules:
            path = Path(name) if name.endswith(".py") else APPS / f"{name}.py"
            spec = importlib.util.spec_from_file_location(name, path)
            assert spec is not None
            assert spec.loader is not None
            sys.modules[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(sys.modules[name])
        return sys.modules[name].app.registry

    return load


@pytest.fixture(scope="session")
def registry(app_registry):
    """The registry of most tests."""
    return app_registry("jobs")


@pytest.fixture(scope="session")
def hostile_registry(app_registry):
    """The registry of the attacks."""
    return app_registry("hostile")


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
