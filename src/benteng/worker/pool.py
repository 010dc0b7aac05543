"""A pool: which attempts run beside each other, how many, and what their cells may see.

A pool may mix tiers; each tier has its own kind of cell (DESIGN section 4). Everything here comes from the host's own
configuration, never from running code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from benteng.errors import PolicyError
from benteng.policy import POOL_DEFAULT, Tier, TypePolicy
from benteng.secret import Source
from benteng.worker.egress.rules import Rule, parse
from benteng.worker.sandbox import layers

CONCURRENCY_MAX = 1_000
STARTS_PER_MINUTE_MAX = 100_000
JOBS_PER_CELL = 1_000
CONNECTS_PER_JOB = 1_000
ENV_ALWAYS = ("PATH", "LANG", "LC_ALL", "TZ")
"""Variables that every cell has; HOME and TMPDIR are its scratch directory."""

_CREDENTIAL = re.compile(r"BENTENG_|PASS(WORD|WD|PHRASE)|SECRET|TOKEN|CREDENTIAL|API_?KEY|PRIVATE|DSN", re.IGNORECASE)


class Start(StrEnum):
    """How a cell begins. fork: from the zygote that has imported the app. exec: each cell imports it anew (slow)."""

    FORK = "fork"
    EXEC = "exec"


class Kind(StrEnum):
    """How a cell works.

    wide    many attempts at a time, on threads and one event loop (LOW)
    serial  one attempt at a time, reused (MEDIUM)
    single  one attempt, then it ends (HIGH)
    """

    WIDE = "wide"
    SERIAL = "serial"
    SINGLE = "single"


KINDS: Mapping[Tier, Kind] = {Tier.LOW: Kind.WIDE, Tier.MEDIUM: Kind.SERIAL, Tier.HIGH: Kind.SINGLE}
TIERS: Mapping[Kind, Tier] = {kind: tier for tier, kind in KINDS.items()}


@dataclass(frozen=True, slots=True)
class Pool:
    """The settings of one pool. Raises PolicyError for what cannot be.

    concurrency       attempts at the same time, all tiers together
    types             the only job types that it accepts of those that the policies give it; none: all
    starts_per_minute  how many attempts each worker may start within any 60 seconds; 0: no bound
    env               names of variables that handlers see, beside ENV_ALWAYS; never secrets
    secrets           where each secret comes from that types of the pool name
    read, write       what cells of MEDIUM and HIGH may read, and what they may write, beside what all may: full paths
    exec              full paths of the programs that cells of MEDIUM and HIGH may start; none: they start nothing
    egress            what cells may connect to, as in egress/rules.py; none: no network, but for LOW, which has all
    egress_connects_per_job  how many connects an attempt may make
    broker_uid, broker_gid   whom the egress broker becomes when the worker is root; None: nobody (65534)
    waive             layers that are not put in force, for `dev` alone: MEDIUM and HIGH jobs are not contained then
    uid, gid          whom zygote and cells become when the worker is root; None: nobody else
    drain_seconds     how long running attempts may finish after SIGTERM
    import_seconds    how long the app may take to import
    jobs_per_cell     a serial cell is replaced after so many attempts
    """

    name: str = POOL_DEFAULT
    concurrency: int = 4
    types: tuple[str, ...] = ()
    starts_per_minute: int = 0
    start: Start = Start.FORK
    env: tuple[str, ...] = ()
    secrets: Mapping[str, Source] = field(default_factory=dict[str, Source])
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    exec: tuple[str, ...] = ()
    egress: tuple[str, ...] = ()
    egress_connects_per_job: int = CONNECTS_PER_JOB
    broker_uid: int | None = None
    broker_gid: int | None = None
    waive: frozenset[str] = frozenset()
    uid: int | None = None
    gid: int | None = None
    drain_seconds: float = 10.0
    import_seconds: float = 60.0
    jobs_per_cell: int = JOBS_PER_CELL

    def __post_init__(self) -> None:
        if not 1 <= self.concurrency <= CONCURRENCY_MAX:
            raise PolicyError("W-concurrency", f"pool {self.name}: concurrency is 1 to {CONCURRENCY_MAX}")
        if not 0 <= self.starts_per_minute <= STARTS_PER_MINUTE_MAX:
            fix = f"1 to {STARTS_PER_MINUTE_MAX}, or 0 for no bound"
            raise PolicyError("W-starts", f"pool {self.name}: starts_per_minute is out of its bounds", fix=fix)
        if self.uid == 0 or (self.uid is None) != (self.gid is None):
            raise PolicyError("W-uid", f"pool {self.name}: uid and gid are set together, and are not root")
        self._check_egress()
        for path in (*self.read, *self.write):
            if not path.startswith("/") or path.strip("/") == "":
                raise PolicyError("W-paths", f"pool {self.name}: read and write name full paths, and not the root")
        unknown = self.waive - layers.WAIVABLE.keys()
        if unknown:
            fix = f"these can be waived: {', '.join(sorted(layers.WAIVABLE))}"
            raise PolicyError("W-waive", f"pool {self.name}: {len(unknown)} layer(s) cannot be waived", fix=fix)
        given = {source.env for source in self.secrets.values()}
        for name in self.env:
            if is_credential(name) or name in given:
                fix = "give handlers what they need without a credential in the environment"
                raise PolicyError("W-env", f"pool {self.name}: {name} looks like a credential", fix=fix)

    def _check_egress(self) -> None:
        parse(self.egress, self.name)
        if self.egress_connects_per_job < 1:
            raise PolicyError("W-egress", f"pool {self.name}: egress_connects_per_job is 1 or more")
        if self.egress and self.waive:
            raise PolicyError(
                "W-egress", f"pool {self.name}: egress needs every layer", fix="take out waive, or egress"
            )
        alone = self.broker_uid is None or self.broker_uid not in (0, self.uid)
        if not alone or (self.broker_uid is None) != (self.broker_gid is None):
            text = f"pool {self.name}: broker_uid and broker_gid are set together, and are neither root nor the pool's"
            raise PolicyError("W-uid", text)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """What cells may connect to."""
        return parse(self.egress, self.name)

    def own(self, policies: Mapping[str, TypePolicy]) -> dict[str, TypePolicy]:
        """Return the policies of the types that run here: those of this pool that it accepts."""
        mine = {name: policy for name, policy in policies.items() if policy.pool == self.name}
        return {name: policy for name, policy in mine.items() if not self.types or name in self.types}

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of the pool's zygote, out of that of this process."""
        return {name: environ[name] for name in (*ENV_ALWAYS, *self.env) if name in environ}


def is_credential(name: str) -> bool:
    """Whether the name of a variable looks like that of a credential."""
    return _CREDENTIAL.search(name) is not None
