"""Play the acts one after the other and report: the demo's main loop.

A step that fails, or raises, does not end the demo: the others still tell what they see. The exit code tells the rest.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benteng.ops.demo.proof import root_of
from benteng.ops.demo.report import Report, Step
from benteng.ops.demo.site import Site, site
from benteng.ops.demo.stage import Missed, Stage, contents, stage
from benteng.ops.demo.steps import ACTS, Act
from benteng.redact import clean_line


def play(*, as_json: bool, keep: Path | None) -> int:
    """Play all acts on a site of their own; return the exit code."""
    report = Report(_silent if as_json else _printer(), plain=not _shows_marks())
    with site(keep) as made:
        report.say(f"benteng demo in {made.root}: SQLite, one keeper, two workers; nothing else is needed")
        with stage(made) as ready:
            _play(ready, report)
        _look_at_lines(made, report)
        if not report.ok:
            _show_logs(made, report)
    report.end()
    if as_json:
        sys.stdout.write(report.document().decode() + "\n")
    return 0 if report.ok else 1


def _play(ready: Stage, report: Report) -> None:
    _open_gate(ready)
    ready.crew.start("keeper", ["keeper"])
    for letter in "ab":
        ready.worker(letter)
    for number, act in enumerate(ACTS, 1):
        report.add(_played(number, act, ready))
    report.records, report.root = root_of(ready)


def _open_gate(ready: Stage) -> None:
    """Lock and apply the policies before the processes ask for them; what `dev` says to that goes to a log."""
    with (ready.site.logs / "producer.log").open("w") as log, contextlib.redirect_stderr(log):
        ready.app.gate  # noqa: B018 - it opens when it is first asked for


def _played(number: int, act: Act, ready: Stage) -> Step:
    step = Step(number, act.kind, act.title)
    began = time.monotonic()
    try:
        act.play(ready, step)
    except Missed as missed:
        step.missed(str(missed))
    except Exception as error:  # noqa: BLE001 - whatever breaks: the step has failed, the others still tell what they see
        step.expect("the step can be played", held=False, found=f"{type(error).__name__}: {error}")
    finally:
        for member in ready.crew.alive():
            member.go_on()
    step.seconds = time.monotonic() - began
    return step


def _look_at_lines(made: Site, report: Report) -> None:
    """What was printed holds no secret either."""
    if report.steps and any(made.canary in line for line in report.lines):
        report.steps[-1].expect("no secret was printed", held=False, found="the canary")


def _show_logs(made: Site, report: Report) -> None:
    """After a failure: how the talk of each process ended."""
    for log, content in contents(made.logs):
        last = content.decode(errors="replace").strip().rpartition("\n")[2]
        report.say(f"{log.name}: {clean_line(last)}")


def _printer() -> Callable[[str], None]:
    def write(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    return write


def _silent(line: str) -> None:
    del line


def _shows_marks() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
