"""The behavioural suite that every store passes: factory in, whole suite out.

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def ledger(self, tmp_path):
            ledger = MyLedger(tmp_path)
            yield ledger
            ledger.close()

Each test's docstring is a promise of the store contract, and every test ends with the invariants. Nothing is skipped.
"""

from __future__ import annotations

from benteng.testing.conformance import _asserts
from benteng.testing.conformance.admit import AdmitPromises
from benteng.testing.conformance.audit import AuditPromises, ClockPromises, ProductionPromises
from benteng.testing.conformance.claim import ClaimPromises, RegisterPromises
from benteng.testing.conformance.depth import DepthPromises
from benteng.testing.conformance.evidence import EvidencePromises
from benteng.testing.conformance.extend import ExtendPromises
from benteng.testing.conformance.hints import HintPromises
from benteng.testing.conformance.keeper import LeadPromises, PurgePromises, ReclaimPromises, StagePromises
from benteng.testing.conformance.kills import KillPromises
from benteng.testing.conformance.mix import MixPromises
from benteng.testing.conformance.operations import OperationPromises
from benteng.testing.conformance.operator import ControlPromises, FindPromises, ShowPromises, TypePromises
from benteng.testing.conformance.own import OwnPromises
from benteng.testing.conformance.quarantine import QuarantinePromises
from benteng.testing.conformance.races import RacePromises
from benteng.testing.conformance.release import ReleasePromises
from benteng.testing.conformance.resources import ResourcePromises
from benteng.testing.conformance.settle import SettlePromises, SuccessorPromises, TurnPromises

MODULES = _asserts.PARTS
"""The modules whose assertions pytest explains."""

PARTS: tuple[type, ...] = (
    AdmitPromises,
    AuditPromises,
    ClaimPromises,
    ClockPromises,
    ControlPromises,
    DepthPromises,
    EvidencePromises,
    ExtendPromises,
    FindPromises,
    HintPromises,
    KillPromises,
    LeadPromises,
    MixPromises,
    OperationPromises,
    OwnPromises,
    ProductionPromises,
    PurgePromises,
    QuarantinePromises,
    RacePromises,
    ReclaimPromises,
    RegisterPromises,
    ReleasePromises,
    ResourcePromises,
    SettlePromises,
    ShowPromises,
    StagePromises,
    SuccessorPromises,
    TurnPromises,
    TypePromises,
)
"""One class for each verb or theme; each can be run alone."""


class StoreConformance(
    AdmitPromises,
    AuditPromises,
    ClaimPromises,
    ClockPromises,
    ControlPromises,
    DepthPromises,
    EvidencePromises,
    ExtendPromises,
    FindPromises,
    HintPromises,
    KillPromises,
    LeadPromises,
    MixPromises,
    OperationPromises,
    OwnPromises,
    ProductionPromises,
    PurgePromises,
    QuarantinePromises,
    RacePromises,
    ReclaimPromises,
    RegisterPromises,
    ReleasePromises,
    ResourcePromises,
    SettlePromises,
    ShowPromises,
    StagePromises,
    SuccessorPromises,
    TurnPromises,
    TypePromises,
):
    """All promises of the store contract. A subclass provides the fixture `ledger`."""


__all__ = ["MODULES", "PARTS", "StoreConformance"]
