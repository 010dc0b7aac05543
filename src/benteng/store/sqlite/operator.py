"""The operator's verbs: a person's view, a person's switches, and what a person does with quarantined jobs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from benteng.audit import Event
from benteng.errors import DefinitionError, NeedsAction, PolicyError
from benteng.evidence import ArtifactFact, ArtifactState, Control, Evidence
from benteng.job import sha256_hex
from benteng.lifecycle import QuarantineReason
from benteng.policy import DEPTH_DEFAULT, RELOCK, TYPE_NAME, Tier, TypePolicy, check_depth, check_floors
from benteng.store.records import Cancelled, Depth, Facet, Health, JobView, Page, Query, Question, Replay, TypeRow
from benteng.store.sqlite import control, quarantine, switches, views
from benteng.store.sqlite.cancel import cancel
from benteng.store.sqlite.evidence import of_owned
from benteng.store.sqlite.health import health
from benteng.store.sqlite.producer import within_batch
from benteng.store.sqlite.release import release
from benteng.store.sqlite.statements import statements
from benteng.store.sqlite.store import Ledger, Tx
from benteng.store.sqlite.text import REASON_BYTES_MAX, as_array, bounded

_JOB_TYPE = statements("job_type")
_REGISTRY = statements("registry")


class SqliteOperator(Ledger):
    """See store.contract.Operator."""

    facet = Facet.OPERATOR

    def find(self, query: Query) -> Page:
        """See Operator.find."""
        with self.reading() as tx:
            return views.find(tx, query)

    def show(self, job_id: str) -> JobView | None:
        """See Operator.show."""
        with self.reading() as tx:
            return views.show(tx, job_id)

    def controls(self) -> list[Control]:
        """See Operator.controls."""
        with self.reading() as tx:
            return control.closed(tx)

    def tighten(self, control: Control) -> None:
        """See Operator.tighten."""
        with self.writing() as tx:
            switches.tighten(tx, control)

    def loosen(self, control: Control) -> None:
        """See Operator.loosen."""
        with self.writing() as tx:
            switches.loosen(tx, control)

    def cancel(self, job_ids: Sequence[str], reason: str) -> list[Cancelled]:
        """See Operator.cancel."""
        within_batch(job_ids)
        with self.writing() as tx:
            return cancel(tx, job_ids, needed(reason))

    def release(self, job_ids: Sequence[str], reason: str) -> list[Cancelled]:
        """See Operator.release."""
        within_batch(job_ids)
        with self.writing() as tx:
            return release(tx, job_ids, needed(reason))

    def classify(self, job_id: str, reason: QuarantineReason, note: str) -> None:
        """See Operator.classify."""
        with self.writing() as tx:
            quarantine.classify(tx, job_id, reason, needed(note))

    def discard(self, job_ids: Sequence[str], reason: str, *, free: bool = False) -> list[Cancelled]:
        """See Operator.discard."""
        within_batch(job_ids)
        with self.writing() as tx:
            return quarantine.discard(tx, job_ids, needed(reason), free=free)

    def resolve(self, job_id: str, *, happened: bool, reason: str) -> Cancelled:
        """See Operator.resolve."""
        with self.writing() as tx:
            return quarantine.resolve(tx, job_id, happened=happened, reason=needed(reason))

    def replay(self, replay: Replay) -> Cancelled:
        """See Operator.replay."""
        with self.writing() as tx:
            return quarantine.replay(tx, replay, needed(replay.reason))

    def evidence(self, questions: Sequence[Question]) -> list[Evidence]:
        """See Operator.evidence. The origin is that of the job which has the operation, not the operator's own."""
        within_batch(questions)
        with self.reading() as tx:
            return of_owned(tx, questions)

    def depths(self) -> list[Depth]:
        """See Operator.depths."""
        with self.reading() as tx:
            return [Depth(row["origin"], row["jobs_max"]) for row in tx.all(_REGISTRY["depths"])]

    def limit_depth(self, depth: Depth, reason: str) -> None:
        """See Operator.limit_depth. Any name may be an origin: a key's, or `os:` and a user's number."""
        why = needed(reason)
        check_depth(depth.jobs_max)
        with self.writing() as tx:
            origin = {"origin": bounded(depth.origin), "default": DEPTH_DEFAULT}
            (was,) = tx.all(_REGISTRY["depth"], origin)
            tx.run(_REGISTRY["limit_depth"], origin | {"jobs_max": depth.jobs_max})
            detail = f"depth of {origin['origin']}: {was['jobs_max']} -> {depth.jobs_max}"
            tx.say(Event.POLICY_APPLIED, reason=why, detail=detail)

    def types(self) -> list[TypeRow]:
        """See Operator.types."""
        with self.reading() as tx:
            return [TypeRow(row["name"], row["policy"], row["sha256"]) for row in tx.all(_JOB_TYPE["all"])]

    def apply_types(self, rows: Sequence[TypeRow], reason: str) -> list[str]:
        """See Operator.apply_types."""
        parsed = [(row, _policy(row)) for row in rows]
        with self.writing() as tx:
            return [row.name for row, policy in parsed if _apply(tx, row, policy, needed(reason))]

    def register_artifact(self, fact: ArtifactFact, reason: str) -> None:
        """See Operator.register_artifact."""
        why = needed(reason)
        with self.writing() as tx:
            if fact.state is not ArtifactState.REVOKED:  # taking trust away takes one person (DESIGN section 5)
                _only_dev(tx, "registering an artifact")
            tx.run(
                _REGISTRY["artifact"],
                {
                    "id": fact.id,
                    "sha256": fact.sha256,
                    "state": str(fact.state),
                    "expires_at": fact.expires_at,
                },
            )
            detail = f"{fact.id} sha256:{fact.sha256} {fact.state}"
            tx.say(Event.ARTIFACT_REGISTERED, reason=why, detail=detail)

    def allow_access(self, actor: str, type_name: str, target: str, reason: str) -> None:
        """See Operator.allow_access."""
        why = needed(reason)
        with self.writing() as tx:
            _only_dev(tx, "allowing access")
            tx.run(_REGISTRY["access"], {"actor": actor, "type": type_name, "target": target})
            tx.say(Event.POLICY_APPLIED, actor=actor, type=type_name, reason=why, detail=f"access to {target}")

    def health(self) -> Health:
        """See Operator.health."""
        with self.reading() as tx:
            return health(tx, self.place.path)


def needed(reason: str) -> str:
    """Return the reason, bounded. Raises PolicyError when there is none: what a person changes says why."""
    if not reason.strip():
        raise PolicyError("S-reason", "a reason is needed", fix="say why")
    return bounded(reason, REASON_BYTES_MAX)


def _policy(row: TypeRow) -> TypePolicy:
    """Return the policy in a row. Raises PolicyError when it is none, is another's, or is below its tier's floor."""
    if sha256_hex(row.policy) != row.sha256:
        raise PolicyError("S-policy", f"{row.name}: the digest is not that of the policy", fix=RELOCK)
    try:
        policy = msgspec.json.decode(row.policy, type=TypePolicy)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise PolicyError("S-policy", f"{bounded(row.name)}: the policy cannot be read", fix=RELOCK) from None
    if policy.name != row.name or not TYPE_NAME.fullmatch(row.name):
        raise PolicyError("S-policy", "a row carries the policy of another type", fix=RELOCK)
    try:
        check_floors(policy, frozenset({"effect", "resources"}))
    except DefinitionError as error:
        raise PolicyError(error.rule, error.reason, fix=error.fix) from None
    return policy


def _apply(tx: Tx, row: TypeRow, policy: TypePolicy, reason: str) -> bool:
    """Write one row if it differs; return whether it did."""
    old = tx.one(_JOB_TYPE["some"], {"names": as_array([row.name])})
    if old is not None and (old["sha256"], old["policy"]) == (row.sha256, row.policy):
        return False
    if tx.environment != "dev" and Tier.HIGH in {policy.tier, old["tier"] if old else None}:
        raise NeedsAction(f"{row.name} is of tier HIGH: changing its policy needs another person's vote")
    tx.run(
        _JOB_TYPE["write"],
        {
            "name": row.name,
            "pool": policy.pool,
            "tier": str(policy.tier),
            "policy": row.policy,
            "sha256": row.sha256,
            "now": tx.now,
        },
    )
    tx.memo.clear()
    tx.say(Event.POLICY_APPLIED, type=row.name, policy_sha256=row.sha256, reason=reason)
    return True


def _only_dev(tx: Tx, what: str) -> None:
    if tx.environment != "dev":
        raise NeedsAction(f"{what} needs an Action with another person's vote, outside a dev installation")
