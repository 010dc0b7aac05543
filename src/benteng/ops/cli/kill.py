"""`benteng kill`: the switches. Closing takes one person; when the command returns, no job starts under the switch."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

import click

from benteng.evidence import Control, ControlMode, ControlScope
from benteng.lifecycle import State
from benteng.ops.cli.options import json_option, operator, rules
from benteng.ops.exits import Exit, Fault
from benteng.ops.output import document, many, say, table
from benteng.ops.views import control as control_view

if TYPE_CHECKING:
    from benteng.store.contract import Operator

MODES = [mode.value for mode in ControlMode if mode is not ControlMode.OPEN]


@click.command
@click.argument("job_type", metavar="[TYPE]", default="")
@click.option("--pool", default="", help="Switch a whole pool.")
@click.option("--origin", default="", help="Switch all jobs of one origin, as os:1000.")
@click.option("--mode", type=click.Choice(MODES), default=ControlMode.HALT.value, show_default=True, help="How closed.")
@click.option("--reason", default="", help="Why; the audit log keeps it. Required but for --list.")
@click.option("--list", "listing", is_flag=True, help="List the switches that are not open.")
@click.option("--open", "opening", is_flag=True, help="Open the switch again.")
@json_option
def command(  # each option is one of the command's own
    *, job_type: str, pool: str, origin: str, mode: str, reason: str, listing: bool, opening: bool, as_json: bool
) -> None:
    """Close a switch over a job TYPE, a pool or an origin: no job starts under it from then on.

    TYPE without a major means every major that the ledger knows. halt: nothing enters and nothing starts; hold: new
    jobs wait for agreement; divert: new jobs go to quarantine. Running jobs go on: see `benteng jobs cancel`.
    """
    with operator() as opened, rules():
        if listing:
            switches = opened.controls()
        else:
            switches = _asked(
                opened, job_type, pool, origin, ControlMode.OPEN if opening else ControlMode(mode), reason
            )
            _set(opened, switches, opening=opening)
            _say_running(opened, switches, opening=opening)
    _show(switches, as_json=as_json)


def _asked(opened: Operator, job_type: str, pool: str, origin: str, mode: ControlMode, reason: str) -> list[Control]:
    given = [(scope, name) for scope, name in zip(ControlScope, (job_type, origin, pool), strict=True) if name]
    if len(given) != 1:
        raise Fault(Exit.USAGE, "name one of TYPE, --pool and --origin", fix="or list the switches with --list")
    if not reason.strip():
        raise Fault(Exit.USAGE, "a switch needs a reason", fix="add --reason")
    scope, name = given[0]
    return [Control(scope, each, mode, reason.strip()) for each in _names(opened, scope, name, mode)]


def _names(opened: Operator, scope: ControlScope, name: str, mode: ControlMode) -> list[str]:
    """Return what a name stands for. A name that matches nothing is refused: a mistyped switch would stop nothing."""
    closed = [switch.name for switch in opened.controls() if switch.scope is scope]
    if mode is ControlMode.OPEN:
        return _matching(name, closed, "no such switch is closed")
    match scope:
        case ControlScope.TYPE:
            return _matching(
                name, [*(row.name for row in opened.types()), *closed], "the ledger knows no such job type"
            )
        case ControlScope.POOL:
            return _matching(name, [*_pools(opened), *closed], "no job type of the ledger is in that pool")
        case ControlScope.ORIGIN:
            return [name]  # an origin may be stopped before it has ever sent a job


def _matching(name: str, known: list[str], otherwise: str) -> list[str]:
    found = sorted({each for each in known if name in {each, each.partition("@")[0]}})
    if not found:
        near = difflib.get_close_matches(name, known, 1)
        raise Fault(
            Exit.NOT_FOUND, otherwise, fix=f"did you mean {near[0]}?" if near else "benteng policy show lists the types"
        )
    return found


def _pools(opened: Operator) -> list[str]:
    from benteng.lockfile import from_rows

    return [policy.pool for policy in from_rows(opened.types()).values()]


def _set(opened: Operator, switches: list[Control], *, opening: bool) -> None:
    for switch in switches:
        if opening:
            opened.loosen(switch)
        else:
            opened.tighten(switch)


def _say_running(opened: Operator, switches: list[Control], *, opening: bool) -> None:
    """Tell how many jobs of a closed type are running still: the switch does not stop them."""
    from benteng.store.records import Query

    for switch in switches:
        if opening or switch.scope is ControlScope.POOL:
            continue
        by_type = switch.scope is ControlScope.TYPE
        of_type, of_origin = (switch.name, "") if by_type else ("", switch.name)
        asked = Query(states=(State.RUNNING,), type=of_type, origin=of_origin, limit=1000)
        running = opened.find(asked).lines
        if running:
            say(f"{many(len(running), 'running job')} of {switch.name} may go on: see benteng jobs cancel")


def _show(switches: list[Control], *, as_json: bool) -> None:
    rows = [control_view(switch) for switch in switches]
    if as_json:
        document("controls", {"controls": rows})
    else:
        table(["scope", "name", "mode", "reason"], [[str(value) for value in row.values()] for row in rows])
    if not rows:
        say("every switch is open")
