"""What a job type is allowed: tiers, effects, limits, floors, and the lock file that people review.

A `TypePolicy` is data. It is written to `benteng.lock` for review, put into the store's `job_type` table, and obeyed
from the lock file of the supervisor's own host: never from what running code says about itself (DESIGN section 2). A
type below its tier's floor is refused when it is defined. Every limit of benteng that concerns a job is here.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import msgspec

from benteng.errors import DefinitionError, PolicyError
from benteng.raised import ErrorClass

DAY_SECONDS = 86_400
LOCK_VERSION = 1
LOCK_BYTES_MAX = 4 * 1024 * 1024
POOL_DEFAULT = "default"
PRIORITY_DEFAULT = 5
PRIORITY_MAX = 9
RESOURCES_MAX = 16
DEPTH_DEFAULT = 100_000
"""How many active jobs one origin may have when nobody said otherwise."""
DEPTH_MAX = 10_000_000
"""What an operator may let one origin have at most: so many are still counted within a call."""
SECRETS_MAX = 8
SECRET_NAME = re.compile(r"[a-z][a-z0-9_-]{1,47}", re.ASCII)
SECRET_BYTES = (8, 8192)
"""The shortest secret that can be found again in text without tearing up words, and the longest that is handed over."""
ARCHIVE_ENTRIES_MAX = 5_000
ARCHIVE_DEPTH_MAX = 32
ARCHIVE_NAME_BYTES_MAX = 255
ARCHIVE_PATH_BYTES_MAX = 1_024
ARCHIVE_RATIO_MAX = 200
"""An archive may grow so many times by being unpacked, beside a first MiB; a type's `file_bytes_max` bounds it too."""
ARCHIVE_READ_BYTES_MAX = 2 << 20
"""The most that is read of an archive at once: a zip file's directory, one header of a tar file."""
TYPE_NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*@[1-9][0-9]{0,3}", re.ASCII)
"""`name@major`; matched in full. The name is dotted lower-case words, the major a number without leading zero."""


class Tier(StrEnum):
    """How bad one wrong run is (seed, "risk-tiered queue"). Ordered: LOW < MEDIUM < HIGH."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"

    @property
    def rank(self) -> int:
        """0 for LOW, 1 for MEDIUM, 2 for HIGH: for comparisons."""
        return ("low", "medium", "high").index(self.value)


class Effect(StrEnum):
    """What a second run does.

    repeatable  the handler may run again after a crash: the effect is the same, or checked by the fence
    once        after the start only an explicit Retry or Snooze runs it again; anything unclear parks it as uncertain
    """

    REPEATABLE = "repeatable"
    ONCE = "once"


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The bounds of a type's jobs. The store enforces the counted ones itself, whatever a worker says.

    attempts_max          tries that spend an attempt, crashes included
    crashes_max           tries that end with a dead cell or an expired lease
    handbacks_max         free returns (drain, unstarted, crashed together); above it a return spends an attempt
    snoozes_max           free snoozes; above it a snooze is quarantined as exhausted
    backoff_seconds_*     full jitter between min and base * 2^(attempt - 1), capped by max
    lease_seconds         how long a claim is hidden from others without a heartbeat
    run_seconds_max       deadline of one attempt; then SIGTERM, grace_seconds, SIGKILL
    expires_seconds       a job not started within this is quarantined as expired; 0: never
    operation_keep_seconds  how long the operation of a job that ended is kept, and so refuses a second one where it
                          does; None: for ever
    """

    attempts_max: int
    crashes_max: int
    handbacks_max: int = 20
    snoozes_max: int = 100
    snooze_seconds_max: float = DAY_SECONDS
    backoff_seconds_base: float = 1.0
    backoff_seconds_min: float = 0.1
    backoff_seconds_max: float = 300.0
    lease_seconds: float = 12.0
    run_seconds_max: float = 300.0
    grace_seconds: float = 3.0
    payload_bytes_max: int = 65_536
    result_bytes_max: int = 65_536
    result_keep_seconds: float = 7 * DAY_SECONDS
    operation_keep_seconds: float | None = 30 * DAY_SECONDS
    expires_seconds: float = 0.0
    memory_bytes_max: int = 1 << 30
    file_bytes_max: int = 256 << 20
    open_files_max: int = 256

    def __post_init__(self) -> None:
        """Write whole seconds as floats, so that a policy has one digest before and after it was written down."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if "_seconds" in name and isinstance(value, int):
                msgspec.structs.force_setattr(self, name, float(value))


LIMITS: dict[Tier, Limits] = {
    Tier.LOW: Limits(attempts_max=5, crashes_max=3),
    Tier.MEDIUM: Limits(attempts_max=5, crashes_max=3),
    Tier.HIGH: Limits(attempts_max=3, crashes_max=2, operation_keep_seconds=None, expires_seconds=DAY_SECONDS),
}


class KeyPath(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A dotted field path whose value (or each value of whose list) gives a key `kind:value`."""

    path: str
    kind: str


class TypePolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, dict=True):
    """Everything about one job type that must not be decided by running code. One entry of `benteng.lock`.

    name         `name@major`
    operation    field paths that make the operation's identity; empty: each job is its own operation (LOW only)
    resources    fields whose values are locked for the attempt;  targets: fields of the access rule
    artifacts    field paths of artifact references
    successors   types that a handler may add with `ctx.then`
    secrets      names of secrets that a handler may ask for with `ctx.secret`; the pool says where each comes from
    errors       qualified exception name -> class, before the built-in table
    schema_sha256  digest of the contract's JSON Schema
    """

    name: str
    tier: Tier
    effect: Effect
    pool: str = POOL_DEFAULT
    operation: tuple[str, ...] = ()
    resources: tuple[KeyPath, ...] = ()
    artifacts: tuple[str, ...] = ()
    targets: tuple[KeyPath, ...] = ()
    successors: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    errors: dict[str, ErrorClass] = {}
    signed: bool = False
    schema_sha256: str = ""
    limits: Limits

    @cached_property
    def sha256(self) -> str:
        """Digest of this entry: what a job, an audit record and `job_type` carry as `policy_sha256`."""
        return hashlib.sha256(msgspec.json.encode(self, order="sorted")).hexdigest()

    @property
    def closes(self) -> bool:
        """Whether an uncertain job keeps its resources closed until a person resolves it."""
        return self.tier is Tier.HIGH


ATTEMPTS_CAP = {Tier.LOW: 25, Tier.MEDIUM: 25, Tier.HIGH: 5}
CRASHES_CAP = 10
HANDBACKS_CAP = 100
SNOOZES_CAP = 1_000
SNOOZE_SECONDS_CAP = 7 * DAY_SECONDS
BACKOFF_SECONDS_FLOOR = 0.05
LEASE_SECONDS_CAP = 3_600
GRACE_SECONDS_CAP = 60
BYTES_CAP = 65_536
MEMORY_BYTES = (64 << 20, 64 << 30)
OPEN_FILES = (16, 4_096)
EXPIRES_SECONDS_CAP = 7 * DAY_SECONDS


@dataclass(frozen=True, slots=True)
class Floor:
    """One rule that a type must not fall below. `holds` is asked with the policy and what its author wrote out."""

    id: str
    why: str
    fix: str
    holds: Callable[[TypePolicy, frozenset[str]], bool]


def _are_secrets(names: tuple[str, ...]) -> bool:
    """Whether these are at most SECRETS_MAX names of secrets, each once."""
    return len(set(names)) == len(names) <= SECRETS_MAX and all(SECRET_NAME.fullmatch(name) for name in names)


def _is_finite(limits: Limits) -> bool:
    """Whether every number of the limits is one: neither infinite nor NaN."""
    values: tuple[float | None, ...] = msgspec.structs.astuple(limits)
    return all(value is None or math.isfinite(value) for value in values)


FLOORS: tuple[Floor, ...] = (
    Floor(
        "F-number",
        "limits are finite numbers",
        "write a number; operation_keep_seconds=None keeps for ever",
        lambda p, _: _is_finite(p.limits),
    ),
    Floor(
        "F-effect",
        "above LOW the author must say what a second run does",
        "add effect=Effect.REPEATABLE or effect=Effect.ONCE",
        lambda p, declared: p.tier is Tier.LOW or "effect" in declared,
    ),
    Floor(
        "F-once",
        "LOW means harmless when doubled, so it cannot be `once`",
        "use tier=Tier.MEDIUM, or effect=Effect.REPEATABLE",
        lambda p, _: p.tier is not Tier.LOW or p.effect is Effect.REPEATABLE,
    ),
    Floor(
        "F-operation",
        "above LOW the operation needs an identity",
        'add operation=("field", ...): the fields that make two jobs the same operation',
        lambda p, _: p.tier is Tier.LOW or bool(p.operation),
    ),
    Floor(
        "F-resources",
        "above LOW the author must say what may not be worked on twice at a time",
        'add resources=("field", ...), or resources=None if nothing is shared',
        lambda p, declared: p.tier is Tier.LOW or "resources" in declared,
    ),
    Floor(
        "F-secrets",
        "secrets are 8 different names at most, of 2 to 48 lower-case letters, digits, _ and -",
        'write secrets=("name", ...)',
        lambda p, _: _are_secrets(p.secrets),
    ),
    Floor(
        "F-wide",
        "LOW jobs share one process, and each could take the secrets of the others",
        "use tier=Tier.MEDIUM, whose jobs with secrets have a cell of their own, or leave out secrets",
        lambda p, _: p.tier is not Tier.LOW or not p.secrets,
    ),
    Floor(
        "F-signed",
        "HIGH jobs are signed by their producer",
        "leave signed=True",
        lambda p, _: p.tier is not Tier.HIGH or p.signed,
    ),
    Floor(
        "F-attempts",
        "attempts are bounded: 25 at LOW and MEDIUM, 5 at HIGH",
        "lower attempts_max",
        lambda p, _: 1 <= p.limits.attempts_max <= ATTEMPTS_CAP[p.tier],
    ),
    Floor(
        "F-crashes",
        "crashes are bounded: 1 to 10, and no more than attempts",
        "lower crashes_max",
        lambda p, _: 1 <= p.limits.crashes_max <= min(CRASHES_CAP, p.limits.attempts_max),
    ),
    Floor(
        "F-returns",
        "free returns and snoozes are bounded: at most 100 hand-backs and 1000 snoozes of at most 7 days",
        "lower handbacks_max, snoozes_max or snooze_seconds_max",
        lambda p, _: (
            0 <= p.limits.handbacks_max <= HANDBACKS_CAP
            and 0 <= p.limits.snoozes_max <= SNOOZES_CAP
            and 0 < p.limits.snooze_seconds_max <= SNOOZE_SECONDS_CAP
        ),
    ),
    Floor(
        "F-backoff",
        "a retry waits: 0.05 s <= backoff min <= max <= 1 day, base above 0",
        "set backoff_seconds_min, backoff_seconds_base and backoff_seconds_max in that range",
        lambda p, _: (
            BACKOFF_SECONDS_FLOOR <= p.limits.backoff_seconds_min <= p.limits.backoff_seconds_max <= DAY_SECONDS
            and p.limits.backoff_seconds_base > 0
        ),
    ),
    Floor(
        "F-lease",
        "a lease lasts 1 s to 1 hour, an attempt at most a day, a grace at most 60 s",
        "set lease_seconds, run_seconds_max and grace_seconds in that range",
        lambda p, _: (
            1 <= p.limits.lease_seconds <= LEASE_SECONDS_CAP
            and 0 < p.limits.run_seconds_max <= DAY_SECONDS
            and 0 <= p.limits.grace_seconds <= GRACE_SECONDS_CAP
        ),
    ),
    Floor(
        "F-bytes",
        "payload and result are at most 64 KiB; bigger data is an artifact",
        "lower payload_bytes_max or result_bytes_max",
        lambda p, _: 0 < p.limits.payload_bytes_max <= BYTES_CAP and 0 < p.limits.result_bytes_max <= BYTES_CAP,
    ),
    Floor(
        "F-cell",
        "a cell has bounds: 64 MiB to 64 GiB of memory, files up to 64 GiB, 16 to 4096 open files",
        "set memory_bytes_max, file_bytes_max and open_files_max in that range",
        lambda p, _: (
            MEMORY_BYTES[0] <= p.limits.memory_bytes_max <= MEMORY_BYTES[1]
            and 0 <= p.limits.file_bytes_max <= MEMORY_BYTES[1]
            and OPEN_FILES[0] <= p.limits.open_files_max <= OPEN_FILES[1]
        ),
    ),
    Floor(
        "F-expires",
        "a HIGH job is valid for at most 7 days",
        "set expires_seconds between 1 and 604800",
        lambda p, _: p.tier is not Tier.HIGH or 1 <= p.limits.expires_seconds <= EXPIRES_SECONDS_CAP,
    ),
    Floor(
        "F-keep",
        "a HIGH operation is remembered for ever, others for a day at least; a result is kept 0 s or longer",
        "leave operation_keep_seconds=None at HIGH, >= 86400 elsewhere; result_keep_seconds >= 0",
        lambda p, _: (
            p.limits.result_keep_seconds >= 0
            and (
                p.limits.operation_keep_seconds is None
                or (p.tier is not Tier.HIGH and p.limits.operation_keep_seconds >= DAY_SECONDS)
            )
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Pending:
    """A floor whose part is not built yet. `dev` prints it; `prod` refuses the tiers, naming it."""

    floor: str
    tiers: tuple[Tier, ...]
    missing: str


PENDING: tuple[Pending, ...] = (
    Pending("quorum", (Tier.HIGH,), "artifacts approved by signatures of several persons"),
    Pending("agreement", (Tier.HIGH,), "agreement of a second person before a job runs"),
    Pending("action", (Tier.MEDIUM, Tier.HIGH), "Actions: access, trust and replay changed only by signed votes"),
    Pending("anchor", (Tier.HIGH,), "audit checkpoints signed and kept off this host"),
    Pending(
        "journal", (Tier.HIGH,), "a journal of started jobs on each host, which refuses repeats that the ledger hides"
    ),
    Pending("breaker", (Tier.HIGH,), "a breaker that stops the flow by itself"),
)
"""Rows are deleted by the issue that builds the part; at the end a test asserts that the table is empty."""


UNROLED = Pending("roles", (Tier.MEDIUM, Tier.HIGH), "a ledger that keeps roles apart: PostgreSQL does, SQLite cannot")
"""Never to be deleted: whoever opens a SQLite file has every role of it, whatever else is built."""


def missing_for(tier: Tier, *, roles: bool) -> tuple[Pending, ...]:
    """Return the floors of a tier that do not stand. `roles`: whether its ledger keeps roles apart."""
    rows = PENDING if roles else (*PENDING, UNROLED)
    return tuple(row for row in rows if tier in row.tiers)


def check_depth(jobs_max: int) -> None:
    """Raise PolicyError (S-depth) for a number of active jobs that no origin can be given."""
    if not 1 <= jobs_max <= DEPTH_MAX:
        raise PolicyError("S-depth", "that is no depth of an origin", fix=f"give it 1 to {DEPTH_MAX} active jobs")


def check_floors(policy: TypePolicy, declared: frozenset[str]) -> None:
    """Raise DefinitionError for the first floor that the type falls below. `declared`: option names written out."""
    for floor in FLOORS:
        if not floor.holds(policy, declared):
            raise DefinitionError(floor.id, f"job type {policy.name}: {floor.why}", fix=floor.fix)


class LockFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The reviewed policies of all job types, by name."""

    version: int = LOCK_VERSION
    types: dict[str, TypePolicy] = {}


def render_lock(types: Mapping[str, TypePolicy]) -> bytes:
    """Return the text of `benteng.lock`: one canonical, indented JSON document, made to be read in a diff."""
    lock = LockFile(types=dict(sorted(types.items())))
    return msgspec.json.format(msgspec.json.encode(lock, order="sorted"), indent=2) + b"\n"


def parse_lock(data: bytes) -> LockFile:
    """Read the text of `benteng.lock`. Raises PolicyError when it is not one, or when a type is below its floor."""
    if len(data) > LOCK_BYTES_MAX:
        raise PolicyError("L-size", f"the lock file is larger than {LOCK_BYTES_MAX} bytes")
    try:
        lock = msgspec.json.decode(data, type=LockFile)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PolicyError("L-format", f"the lock file cannot be read: {error}", fix=RELOCK) from None
    if lock.version != LOCK_VERSION:
        raise PolicyError("L-version", f"lock file version {lock.version} is not {LOCK_VERSION}", fix=RELOCK)
    for name, policy in lock.types.items():
        if name != policy.name:
            raise PolicyError("L-name", f"entry {name} describes {policy.name}", fix=RELOCK)
        _check_locked(policy)
    return lock


RELOCK = "write it anew with: benteng policy lock, and review the difference"


def _check_locked(policy: TypePolicy) -> None:
    try:
        check_floors(policy, frozenset({"effect", "resources"}))
    except DefinitionError as error:
        raise PolicyError(error.rule, error.reason, fix=error.fix) from None


def differences(old: Mapping[str, TypePolicy], new: Mapping[str, TypePolicy]) -> list[str]:
    """Return one line for each type and field that differs, in order of name: for people and for refusals."""
    lines: list[str] = []
    for name in sorted(old.keys() | new.keys()):
        if name not in new:
            lines.append(f"{name}: removed")
        elif name not in old:
            lines.append(f"{name}: added ({new[name].tier})")
        else:
            lines.extend(_changed_fields(name, old[name], new[name]))
    return lines


def _changed_fields(name: str, old: TypePolicy, new: TypePolicy) -> list[str]:
    was, now = _flat(old), _flat(new)
    return [f"{name}: {field} {was[field]!r} -> {now[field]!r}" for field in now if was[field] != now[field]]


def _flat(policy: TypePolicy) -> dict[str, object]:
    fields: dict[str, object] = msgspec.structs.asdict(policy)
    limits: dict[str, object] = msgspec.structs.asdict(policy.limits)
    del fields["limits"]
    return fields | {f"limits.{key}": value for key, value in limits.items()}
