"""The operator's verbs: a person's view, a person's switches, and what a person does with quarantined jobs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from benteng.errors import DefinitionError, PolicyError
from benteng.evidence import ArtifactFact, Control, Evidence
from benteng.job import sha256_hex
from benteng.lifecycle import QuarantineReason, State
from benteng.policy import RELOCK, TYPE_NAME, TypePolicy, check_depth, check_floors
from benteng.store.postgres import rows, wire
from benteng.store.postgres.connection import Ledger
from benteng.store.postgres.health import health
from benteng.store.postgres.keeper import tighten
from benteng.store.postgres.producer import bounded, within_batch
from benteng.store.postgres.wire import BOOL, ENTRANCE, INT8, QUESTION, TEXT, TYPE_ROW, UUID
from benteng.store.records import Cancelled, Depth, Facet, Health, JobView, Page, Query, Question, Replay, TypeRow

PAGE_MAX = 1_000
_SEQ_MAX = (1 << 63) - 1


class PostgresOperator(Ledger):
    """See store.contract.Operator."""

    facet = Facet.OPERATOR

    def find(self, query: Query) -> Page:
        """See Operator.find."""
        limit = max(1, min(query.limit, PAGE_MAX))
        texts = (query.type, query.origin, query.actor, query.request_id, query.resource, query.reason or "")
        found = self.call(
            "find",
            TEXT.many(query.states),
            *map(TEXT, texts),
            INT8(_cursor(query.after)),
            INT8(limit + 1),
            repeatable=True,
        )
        lines = tuple(map(rows.line, found[:limit]))
        return Page(lines, str(found[limit - 1]["seq"]) if len(found) > limit else "")

    def show(self, job_id: str) -> JobView | None:
        """See Operator.show."""
        key = wire.job_uuid(job_id)
        found = self.call("show", UUID(key), repeatable=True) if key else []
        return rows.view(found[0]) if found else None

    def controls(self) -> list[Control]:
        """See Operator.controls."""
        return [rows.control(row) for row in self.call("controls", repeatable=True)]

    def tighten(self, control: Control) -> None:
        """See Operator.tighten."""
        tighten(self, control)

    def loosen(self, control: Control) -> None:
        """See Operator.loosen."""
        asked = (control.scope.value, bounded(control.name), control.mode.value, bounded(control.reason))
        self.call("loosen", *map(TEXT, asked))

    def cancel(self, job_ids: Sequence[str], reason: str) -> list[Cancelled]:
        """See Operator.cancel."""
        within_batch(job_ids)
        return [rows.cancelled(row) for row in self.call("cancel", wire.ids(job_ids), TEXT(bounded(reason)))]

    def release(self, job_ids: Sequence[str], reason: str) -> list[Cancelled]:
        """See Operator.release."""
        within_batch(job_ids)
        return [rows.cancelled(row) for row in self.call("release", wire.ids(job_ids), TEXT(bounded(reason)))]

    def classify(self, job_id: str, reason: QuarantineReason, note: str) -> None:
        """See Operator.classify."""
        self.call("classify", _one(job_id), TEXT(reason.value), TEXT(bounded(note)))

    def discard(self, job_ids: Sequence[str], reason: str, *, free: bool = False) -> list[Cancelled]:
        """See Operator.discard."""
        within_batch(job_ids)
        asked = wire.ids(dict.fromkeys(job_ids))
        return [rows.cancelled(row) for row in self.call("discard", asked, TEXT(bounded(reason)), BOOL(free))]

    def resolve(self, job_id: str, *, happened: bool, reason: str) -> Cancelled:
        """See Operator.resolve."""
        (row,) = self.call("resolve", _one(job_id), BOOL(happened), TEXT(bounded(reason)))
        return Cancelled(job_id, State(row["resolve"]))

    def replay(self, replay: Replay) -> Cancelled:
        """See Operator.replay."""
        asked = self._types.one(ENTRANCE, wire.entrance(replay.job, replay.entry))
        (row,) = self.call("replay", asked, TEXT(bounded(replay.reason)))
        return Cancelled(replay.job.id, State(row["replay"]))

    def evidence(self, questions: Sequence[Question]) -> list[Evidence]:
        """See Operator.evidence. The origin is that of the job which has the operation, not the operator's own."""
        within_batch(questions)
        asked = self._types.many(QUESTION, map(wire.question, questions))
        return [rows.evidence(row) for row in self.call("evidence", asked, repeatable=True)]

    def depths(self) -> list[Depth]:
        """See Operator.depths."""
        return [Depth(**row) for row in self.call("depths", repeatable=True)]

    def limit_depth(self, depth: Depth, reason: str) -> None:
        """See Operator.limit_depth. An origin is a producer's login."""
        check_depth(depth.jobs_max)
        self.call("limit_depth", TEXT(depth.origin), INT8(depth.jobs_max), TEXT(bounded(reason)), repeatable=True)

    def types(self) -> list[TypeRow]:
        """See Operator.types."""
        return [TypeRow(**row) for row in self.call("types", repeatable=True)]

    def apply_types(self, rows: Sequence[TypeRow], reason: str) -> list[str]:
        """See Operator.apply_types."""
        for row in rows:
            check(row)
        asked = self._types.many(TYPE_ROW, map(wire.type_row, rows))
        (answer,) = self.call("apply_types", asked, TEXT(bounded(reason)))
        return answer["apply_types"]

    def register_artifact(self, fact: ArtifactFact, reason: str) -> None:
        """See Operator.register_artifact."""
        texts = map(TEXT, (fact.id, fact.sha256, fact.state.value))
        expires_at = None if fact.expires_at is None else INT8(fact.expires_at)
        self.call("register_artifact", *texts, expires_at, TEXT(bounded(reason)), repeatable=True)

    def allow_access(self, actor: str, type_name: str, target: str, reason: str) -> None:
        """See Operator.allow_access."""
        self.call("allow_access", *map(TEXT, (actor, type_name, target, bounded(reason))), repeatable=True)

    def health(self) -> Health:
        """See Operator.health."""
        (row,) = self.call("health", repeatable=True)
        return health(row)


def _cursor(after: str) -> int:
    """Return the number of a page's last line; anything else than a number of 64 bits starts at the newest."""
    return int(after) if after.isascii() and after.isdigit() and len(after) < 19 else _SEQ_MAX  # noqa: PLR2004  64 bits


def _one(job_id: str) -> wire.Param | None:
    key = wire.job_uuid(job_id)
    return UUID(key) if key else None


def check(row: TypeRow) -> None:
    """Raise PolicyError when a row carries no policy, another type's, or one below its tier's floor."""
    if sha256_hex(row.policy) != row.sha256:
        raise PolicyError("S-policy", "the digest is not that of the policy", fix=RELOCK)
    try:
        policy = msgspec.json.decode(row.policy, type=TypePolicy)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise PolicyError("S-policy", "a policy cannot be read", fix=RELOCK) from None
    if policy.name != row.name or not TYPE_NAME.fullmatch(row.name):
        raise PolicyError("S-policy", "a row carries the policy of another type", fix=RELOCK)
    try:
        check_floors(policy, frozenset({"effect", "resources"}))
    except DefinitionError as error:
        raise PolicyError(error.rule, error.reason, fix=error.fix) from None
