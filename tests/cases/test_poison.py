"""Jobs that harm the process they run in: they end, counted, and their neighbours do not notice."""

from __future__ import annotations

import importlib.util
import json
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.worker.bed import Bed

APPS = Path(__file__).parent / "apps"
MANY = 150


@pytest.fixture(scope="module")
def hungry(tmp_path_factory):
    """A ledger and one worker for the application in apps/hungry.py."""
    spec = importlib.util.spec_from_file_location("hungry", APPS / "hungry.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["hungry"] = module  # its annotations are resolved there
    spec.loader.exec_module(module)
    made = Bed(tmp_path_factory.mktemp("hungry"), module.app.registry)
    with closing(made):
        made.worker(app="hungry:app", cwd=APPS, concurrency=2).wait("ready")
        yield made


def test_job_without_measure_ends_and_the_others_go_on(hungry):
    """A job that takes memory without end is set aside after its attempts; the jobs beside it all complete (C27)."""
    glutton = hungry.enqueue("glutton@1", name="glutton")
    others = hungry.enqueue_many("modest@1", [{"name": f"m-{n}"} for n in range(30)])

    ended = hungry.ended(glutton)

    assert ("quarantined", 2) == (ended.state, hungry.show(glutton).attempts)
    assert {"completed"} == {hungry.ended(job).state for job in others}


def test_async_jobs_leak_no_descriptor(hungry):
    """Job after job on the loop of one cell: the last one sees as many open descriptors as the first (C108)."""
    jobs = hungry.enqueue_many("count@1", [{"name": "x"}] * MANY)

    seen = [json.loads(hungry.ended(job).result) for job in jobs]

    assert 1 == len({pid for pid, _ in seen})
    assert 3 >= max(count for _, count in seen) - min(count for _, count in seen)
