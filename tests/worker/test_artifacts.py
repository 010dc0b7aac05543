"""`ctx.artifact` and `ctx.extract` in real cells of each tier."""

from __future__ import annotations

import io
import json
import shutil
import tarfile

import pytest

from benteng.evidence import ArtifactFact, ArtifactState
from benteng.job import sha256_hex
from benteng.worker.sandbox import landlock
from tests.support.others import passable
from tests.worker.bed import Bed

TIERS = [
    "low",
    *(
        pytest.param(tier, marks=pytest.mark.skipif(landlock.abi() == 0, reason="this kernel has no Landlock"))
        for tier in ("medium", "high")
    ),
]


@pytest.fixture(scope="module")
def bed(app_registry):
    """A ledger; workers are started by the tests, one for each tier."""
    root = passable("artifacts")
    made = Bed(root, app_registry("archives"))
    yield made
    made.close()
    shutil.rmtree(root)


@pytest.fixture(scope="module")
def worker(bed):
    """Return the worker of a tier's pool."""
    made = {}

    def of(tier):
        if tier not in made:
            made[tier] = bed.worker(name=f"unpack-{tier}", app="archives:app", keeper=not made)
            made[tier].wait("ready")
        return made[tier]

    return of


def approved(bed, data, name):
    """Put an artifact there and approve it; return a payload that names it."""
    digest = sha256_hex(data)
    (bed.root / "artifacts" / digest).write_bytes(data)
    bed.operator.register_artifact(ArtifactFact(f"a-{digest[:8]}", digest, ArtifactState.APPROVED), "test")
    return {"name": name, "host": "web-1", "artifact": {"id": f"a-{digest[:8]}", "sha256": digest}}


def tar(name, content=b"x", mode=0o755):
    """Return a tar file with one member."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        info = tarfile.TarInfo(name)
        info.size, info.mode = len(content), mode
        archive.addfile(info, io.BytesIO(content))
    return made.getvalue()


@pytest.mark.parametrize("tier", TIERS)
def test_an_archive_is_unpacked_in_the_scratch(bed, worker, tier):
    """In a directory of its own, with modes of ours; what it writes is what the archive has."""
    worker(tier)

    ended = bed.ended(bed.enqueue(f"{tier}@1", **approved(bed, tar("bin/tool", b"abc", 0o4755), f"good-{tier}")))

    assert {"inside": True, "bin/tool": ["0o700", 3]} == json.loads(ended.result)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize(
    "name, content, reason, rule",
    [("../out", b"x", "suspicious", "K-outside"), ("big", bytes((1 << 20) + 1), "permanent", "K-limit")],
    ids=["outside", "bomb"],
)
def test_a_bad_archive_is_quarantined_by_rule(bed, worker, tier, name, content, reason, rule):
    """What leads out is suspicious; more than the type's largest file is permanent."""
    worker(tier)

    job = bed.enqueue(f"{tier}@1", **approved(bed, tar(name, content), f"{rule.lower()}-{tier}"))

    assert ("quarantined", reason) == (bed.ended(job).state, bed.show(job).reason)
    assert f"[{rule}]" in bed.show(job).error


@pytest.mark.skipif(landlock.abi() == 0, reason="this kernel has no Landlock, so no tier above LOW")
def test_an_artifact_that_is_exchanged_later_does_not_reach_the_job(bed, worker):
    """The copy is the job's own, read-only, its bytes those that were hashed; it stays when a new copy is refused."""
    worker("medium")
    payload = approved(bed, b"the approved bytes", "exchanged")
    job = bed.enqueue("hold@1", **payload)
    bed.effect("copied")
    place = bed.root / "artifacts" / payload["artifact"]["sha256"]
    place.write_text("other bytes, written into the same file")
    bed.go()

    result = json.loads(bed.ended(job).result)

    assert {"mode": "0o400", "read": "the approved bytes", "again": "Suspicious", "kept": True} == result
