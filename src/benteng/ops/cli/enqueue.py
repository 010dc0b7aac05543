"""`benteng enqueue TYPE`: one job through the same gate as the application's own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from benteng.lifecycle import State
from benteng.ops.cli import FORM
from benteng.ops.cli.options import configuration
from benteng.ops.exits import Exit, Fault, exit_of
from benteng.ops.output import Form, document, table, write
from benteng.policy import PRIORITY_DEFAULT, PRIORITY_MAX
from benteng.store.durability import Durability
from benteng.verdict import Admit, Divert, Hold, Refuse, Verdict

if TYPE_CHECKING:
    from benteng.app import Benteng
    from benteng.gate import JobSpec
    from benteng.receipt import Receipt
    from benteng.task import JobType

PAYLOAD_BYTES_READ_MAX = 1 << 20
"""More is not even read; the contract's own limit is lower."""


@click.command
@click.argument("job_type", metavar="TYPE")
@click.argument("words", nargs=-1, metavar="[FIELD=VALUE]...")
@click.option("--json", "source", metavar="@FILE|-", default="", help="The payload as JSON, from a file or from stdin.")
@click.option("--actor", default="", help="On whose behalf, as svc:deployer or user:ana.")
@click.option("--request-id", default="", help="Correlation id, kept with the job and in the audit log.")
@click.option(
    "--priority", type=click.IntRange(0, PRIORITY_MAX), default=PRIORITY_DEFAULT, show_default=True, help="0 is first."
)
@click.option(
    "--delay", "delay_seconds", type=float, default=0.0, metavar="S", help="Start no earlier than S seconds from now."
)
@click.option(
    "--durability",
    type=click.Choice(list(Durability)),
    default=Durability.D0,
    show_default=True,
    help="The class that the ledger must have: D1 outlives a crash, D2 the loss of its disk. Else nothing is stored.",
)
@click.option("--dry-run", "--explain", is_flag=True, help="Say what each guard says; admit and record nothing.")
@click.option(
    "--app", "reference", default="", metavar="MODULE:ATTR", help="The application; default: from benteng.toml."
)
@click.option(
    "--wait", "wait_seconds", type=float, metavar="S", help="Wait up to S seconds for the end, and write the result."
)
@click.option("--receipt-json", is_flag=True, help="Write the receipt as one JSON document.")
@click.pass_context
def command(ctx: click.Context, /, *, job_type: str, words: tuple[str, ...], source: str, **options: Any) -> None:
    """Send one job of TYPE through the gate, and write its id and state.

    FIELD=VALUE words are typed by the contract; dots nest: artifact.id=patch-7. Anything else comes with --json.
    Secrets never belong into a payload, and never on a command line.
    """
    ctx.meta[FORM] = Form.DOCUMENT if options["receipt_json"] else Form.TEXT
    app = _application(options["reference"])
    try:
        spec = _spec(job_type, _payload(app, job_type, words, source), options)
        code = _dry_run(app, spec, options) if options["dry_run"] else _enqueue(app, spec, options)
    finally:
        app.close()
    ctx.exit(int(code))


def _application(reference: str) -> Benteng:
    from benteng.ops.application import load_app
    from benteng.ops.reference import paths_of

    config = configuration()
    return load_app(reference or config.app, paths_of(config.root))


def _spec(job_type: str, payload: object, options: dict[str, Any]) -> JobSpec:
    from benteng.gate import JobSpec

    names = ("actor", "request_id", "priority", "delay_seconds", "durability")
    return JobSpec(job_type, payload, **{name: options[name] for name in names})


def _find(app: Benteng, job_type: str) -> JobType | None:
    from benteng.errors import DefinitionError

    try:
        return app.registry.find(job_type)
    except DefinitionError:
        return None  # the gate refuses it, and records that


def _payload(app: Benteng, job_type: str, words: tuple[str, ...], source: str) -> object:
    if source:
        if words:
            raise Fault(Exit.USAGE, "the payload is given twice", fix="use either FIELD=VALUE words or --json")
        return _read(source)
    from benteng.ops.fields import payload_of

    found = _find(app, job_type)
    return payload_of(words, found.shape.json_schema() if found is not None else {})


def _read(source: str) -> bytes:
    if source == "-":
        return sys.stdin.buffer.read(PAYLOAD_BYTES_READ_MAX)
    if not source.startswith("@"):
        fix = "a payload may hold what a process list must not show: use @FILE, or - for stdin"
        raise Fault(Exit.USAGE, "--json takes no JSON itself", fix=fix)
    with Path(source[1:]).open("rb") as stream:
        return stream.read(PAYLOAD_BYTES_READ_MAX)


# ------------------------------------------------------------------------------------------------------------- dry run


def _dry_run(app: Benteng, spec: JobSpec, options: dict[str, Any]) -> Exit:
    from benteng.ops.explain import explain

    said = explain(app.gate, spec)
    rows = [{"guard": each.guard} | _described(each.verdict) for each in said]
    if options["receipt_json"]:
        document("verdicts", {"verdicts": rows})
    else:
        table(
            ["guard", "verdict", "rule", "field", "reason"], [[str(v) for v in list(row.values())[:5]] for row in rows]
        )
    return next((code for each in said if (code := _exit_of(each.verdict)) is not Exit.OK), Exit.OK)


def _described(verdict: Verdict) -> dict[str, object]:
    match verdict:
        case Admit():
            return {"verdict": "admit", "rule": "", "field": "", "reason": "", "fix": ""}
        case Hold() | Divert() | Refuse():
            name = type(verdict).__name__.lower()
            field = verdict.field if isinstance(verdict, Refuse) else ""
            return {"verdict": name, "rule": verdict.rule, "field": field, "reason": verdict.reason, "fix": verdict.fix}


def _exit_of(verdict: Verdict) -> Exit:
    from benteng.errors import Conflict, Refused

    match verdict:
        case Admit():
            return Exit.OK
        case Hold():
            return Exit.HELD
        case Divert():
            return Exit.CLOSED
        case Refuse(rule="S-conflict"):
            return exit_of(Conflict(verdict.rule, verdict.reason))
        case Refuse():
            return exit_of(Refused(verdict.rule, verdict.reason))


# ------------------------------------------------------------------------------------------------------------- for real


def _enqueue(app: Benteng, spec: JobSpec, options: dict[str, Any]) -> Exit:
    receipt = app.enqueue(
        spec.type,
        spec.payload,
        actor=spec.actor,
        request_id=spec.request_id,
        priority=spec.priority,
        delay_seconds=spec.delay_seconds,
        durability=spec.durability,
    )
    if options["wait_seconds"] is None:
        _write(receipt, {}, as_json=options["receipt_json"])
        return _receipt_exit(receipt)
    return _wait(receipt, options["wait_seconds"], as_json=options["receipt_json"])


def _receipt_exit(receipt: Receipt) -> Exit:
    if receipt.duplicate:
        return Exit.DUPLICATE
    return {State.HELD: Exit.HELD, State.QUARANTINED: Exit.CLOSED}.get(receipt.state, Exit.OK)


def _wait(receipt: Receipt, wait_seconds: float, *, as_json: bool) -> Exit:
    from benteng.receipt import NotCompleted

    try:
        result = receipt.result(wait_seconds)
    except NotCompleted as error:
        raise Fault(Exit.NOT_COMPLETED, str(error), fix=f"benteng why {receipt.job_id}") from None
    _write(receipt, {"result": result, "now": State.COMPLETED.value}, as_json=as_json)
    return Exit.DUPLICATE if receipt.duplicate else Exit.OK


def _write(receipt: Receipt, more: dict[str, object], *, as_json: bool) -> None:
    if as_json:
        facts = {"job": receipt.job_id, "state": receipt.state.value, "duplicate": receipt.duplicate}
        document("receipt", facts | more)
        return
    write(f"{receipt.job_id} {more.get('now', receipt.state.value)}{' duplicate' if receipt.duplicate else ''}")
    if "result" in more:
        write(msgspec.json.encode(more["result"]).decode())
