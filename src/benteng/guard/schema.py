"""Schema: the payload is exactly what the contract says, in its canonical bytes, of the reviewed contract."""

from __future__ import annotations

from benteng.contract import Parsed, Shape
from benteng.errors import Malformed
from benteng.evidence import Evidence
from benteng.guard.case import Case
from benteng.verdict import ADMIT, Refuse, Verdict


def schema(case: Case, evidence: Evidence) -> Verdict:
    """Refuse bytes that the contract does not read back as the very same bytes (seed, "Schema")."""
    del evidence
    if case.shape is None:
        return Refuse("G-schema", f"no contract is known for {case.job.type}", "register the job type")
    if case.shape.schema_digest != case.policy.schema_sha256:
        return Refuse("G-contract", "the contract in the code is not the reviewed one", "run: benteng policy lock")
    try:
        again = _read(case, case.shape)
    except Malformed as error:
        return Refuse(error.rule, error.reason, error.fix, error.field)
    if (again.canonical, again.digest) != (case.job.payload, case.job.payload_sha256):
        return Refuse("G-canonical", "the stored bytes are not canonical", suspicious=True)
    return ADMIT


def _read(case: Case, shape: Shape) -> Parsed:
    """Read the bytes back, unless this door has read them already: what it parsed reads back as itself."""
    parsed, payload = case.parsed, case.job.payload
    return parsed if parsed is not None and parsed.canonical == payload else shape.parse(payload)
