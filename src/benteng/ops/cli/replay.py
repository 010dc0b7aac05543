"""`benteng replay JOB`: judged again, and back with its own attempt budget. One job at a time, on purpose."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from benteng import lockfile
from benteng.errors import Refused
from benteng.lifecycle import State
from benteng.ops.cli.options import configuration, found, json_option, needs_two, operator, reason_option, rules
from benteng.ops.exits import Exit, Fault
from benteng.ops.output import document, write
from benteng.verdict import Admit, Divert, Hold, Refuse

if TYPE_CHECKING:
    from benteng.config import Config
    from benteng.keyring import TrustRoots
    from benteng.ops.rejudge import Judgement
    from benteng.store.contract import Operator
    from benteng.store.records import JobView


@click.command
@click.argument("job")
@reason_option
@click.option(
    "--app", "reference", default="", metavar="MODULE:ATTR", help="The application; default: from benteng.toml."
)
@json_option
@click.pass_context
def command(ctx: click.Context, job: str, reason: str, reference: str, *, as_json: bool) -> None:
    """Judge a quarantined JOB again and bring it back, with a new attempt budget; its history stays.

    Contract, references, signature, approval, access, checks and switches are judged as they are today. What is refused
    again stays in quarantine.
    """
    config = configuration()
    with operator() as opened, rules():
        view = found(opened, job)
        _refuse_what_cannot(view)
        state = replay(opened, view, config, reference, reason)
    if as_json:
        document("replay", {"job": job, "state": state.value, "generation": view.job.generation + 1})
    else:
        write(f"{job} {state} generation {view.job.generation + 1}")
    if state is State.HELD:
        ctx.exit(int(Exit.HELD))


def replay(opened: Operator, view: JobView, config: Config, reference: str, reason: str) -> State:
    """Judge a quarantined job again and, if it is admitted or held, bring it back; return its state now.

    Raises Refused with the rule that refused it again, PolicyError, StoreUnavailable.
    """
    from benteng.ops.cli.policy import variables_of
    from benteng.ops.reference import paths_of
    from benteng.ops.rejudge import Code, rejudge

    code = Code(reference or config.app, paths_of(config.root), variables_of(config))
    judgement = rejudge(opened, view, lockfile.read(config.lock), trust_of(config), code)
    return _settle(opened, view, judgement, reason)


def trust_of(config: Config) -> TrustRoots:
    """Return this host's trust roots; without a trust file nothing is trusted."""
    from benteng.keyring import TRUST_FILE, TrustRoots, load_trust

    path = config.keys / TRUST_FILE
    return load_trust(path) if path.exists() else TrustRoots({})


def _refuse_what_cannot(view: JobView) -> None:
    if view.state is not State.QUARANTINED:
        raise Fault(Exit.NOT_FOUND, f"the job is {view.state}, not in quarantine", fix=f"benteng why {view.job.id}")
    needs_two(view, "replaying")


def _settle(opened: Operator, view: JobView, judgement: Judgement, reason: str) -> State:
    from benteng.store.records import Replay

    match judgement.verdict:
        case Admit():
            entry = State.SCHEDULED if judgement.job.available_at > view.now else State.READY
        case Hold():
            entry = State.HELD
        case Divert(rule=rule, reason=why, fix=fix):
            raise Refused(rule, f"a switch or check would divert it again: {why}", fix=fix)
        case Refuse() as no:
            raise Refused(no.rule, f"refused again: {no.reason}", field=no.field, fix=no.fix)
    return opened.replay(Replay(judgement.job, entry, reason)).state
