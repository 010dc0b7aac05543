"""What the guards are asked about: one job at one door, with what that door knows of its type."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from benteng.contract import Parsed, Shape
from benteng.envelope import JobClaims
from benteng.job import Job
from benteng.policy import TypePolicy
from benteng.verdict import Check


class Door(StrEnum):
    """Where a job is judged."""

    GATE = "gate"
    WORKER = "worker"
    REPLAY = "replay"


class Case(msgspec.Struct, frozen=True, gc=False):
    """One job to judge.

    policy   the reviewed policy of its type, from the door's own host
    claims   the verified claims of its envelope; None when it carries none
    shape    the compiled contract; None in a process that holds no user code
    parsed   the payload as the contract reads it; None there too
    checks, facts   the type's semantic checks, and what the evidence loaders returned, by name
    """

    job: Job
    policy: TypePolicy
    door: Door
    claims: JobClaims | None = None
    shape: Shape | None = None
    parsed: Parsed | None = None
    checks: tuple[Check, ...] = ()
    facts: Mapping[str, object] = {}
