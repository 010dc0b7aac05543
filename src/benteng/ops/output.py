"""How commands speak: data to stdout, talk to stderr, one JSON document or plain text.

Every text passes `redact.clean_line` on its way to a terminal, whoever stored it (cases C115, C116): a job's error
cannot forge a line or recolour the screen.
Trust: none of the texts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import cast

import click
import msgspec

from benteng.clock import SECOND, Instant
from benteng.errors import BentengError, RuleError
from benteng.ops.exits import Exit, Fault
from benteng.redact import clean_line, patterns

TEXT_BYTES_MAX = 64 * 1024
CELL_CHARS_MAX = 60
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"))


def say(text: str) -> None:
    """Tell a person something that is not data: one line on stderr."""
    click.echo(clean_line(text), err=True, color=None if colour_wanted() else False)


def write(text: str) -> None:
    """Write one line of data."""
    click.echo(clean_line(text, bytes_max=TEXT_BYTES_MAX))


def document(noun: str, body: Mapping[str, object]) -> None:
    """Write the one JSON document of a command; `schema` names its form and version."""
    data = msgspec.json.encode({"schema": f"benteng.{noun}/1"} | dict(cast("Mapping[str, object]", cleaned(body))))
    click.echo(msgspec.json.format(data, indent=2))


def json_line(noun: str, body: Mapping[str, object]) -> None:
    """Write one JSON document on one line, and at once: for lists and tails."""
    data = msgspec.json.encode({"schema": f"benteng.{noun}/1"} | dict(cast("Mapping[str, object]", cleaned(body))))
    click.echo(data)


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write rows in columns, long cells cut. Nothing at all when there is no row."""
    cells = [[_cell(text) for text in row] for row in rows]
    if not cells:
        return
    widths = [max(len(row[n]) for row in [list(headings), *cells]) for n in range(len(headings))]
    for row in [list(headings), *cells]:
        click.echo("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


class Form(StrEnum):
    """What stdout was asked to hold. lines: one JSON document a line."""

    TEXT = "text"
    DOCUMENT = "document"
    LINES = "lines"


def report(error: BaseException, code: Exit, form: Form = Form.TEXT) -> None:
    """Say what went wrong in one line on stderr; on stdout too, as a document, when JSON was asked for."""
    facts = _facts(error, code)
    match form:
        case Form.DOCUMENT:
            document("error", facts)
        case Form.LINES:
            json_line("error", facts)
        case Form.TEXT:
            pass
    place = f"{facts['field']}: " if facts["field"] else ""
    rule = f" [{facts['rule']}]" if facts["rule"] else ""
    fix = f". Fix: {facts['fix']}" if facts["fix"] else ""
    said = clean_line(f"{place}{facts['reason']}{rule}{fix}")
    mark = click.style("error:", fg="red") if colour_wanted() else "error:"
    click.echo(f"{mark} {said}", err=True)


def _facts(error: BaseException, code: Exit) -> dict[str, object]:
    facts: dict[str, object] = {"rule": "", "field": "", "reason": _plain(error), "fix": "", "exit": int(code)}
    if isinstance(error, RuleError):
        facts |= {"rule": error.rule, "field": error.field, "reason": error.reason, "fix": error.fix}
    elif isinstance(error, Fault):
        facts |= {"reason": error.reason, "fix": error.fix}
    return facts | {name: patterns(str(facts[name])) for name in ("reason", "fix")}


def _plain(error: BaseException) -> str:
    match error:
        case OSError():
            name = f"{error.filename}: " if isinstance(error.filename, str) else ""
            return f"{name}{error.strerror or type(error).__name__}"
        case KeyboardInterrupt():
            return "stopped"
        case BentengError():
            return str(error) or type(error).__name__
        case _:  # its words may hold a value of a payload
            return f"a fault of benteng ({type(error).__name__}); BENTENG_DEBUG=1 shows where"


def cleaned(value: object) -> object:
    """Return a JSON value with every text in it, names too, cleaned of control characters."""
    match value:
        case str():
            return clean_line(value, bytes_max=TEXT_BYTES_MAX)
        case Mapping():
            pairs = cast("Mapping[str, object]", value).items()
            return {clean_line(str(name)): cleaned(item) for name, item in pairs}
        case list() | tuple():
            return [cleaned(item) for item in cast("Sequence[object]", value)]
        case _:
            return value


def colour_wanted() -> bool:
    """Tell whether talk may be coloured: on a terminal, and NO_COLOR is not set (no-color.org)."""
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR")


def when(instant: Instant) -> str:
    """Return an instant as RFC 3339 in UTC; "" for none."""
    if not instant:
        return ""
    return (_EPOCH + timedelta(microseconds=instant)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def span(seconds: float) -> str:
    """Return a duration for people: `0.3 s`, `12 s`, `5 min`, `3 h`, `2 d`."""
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0.0):.1f} s" if seconds < 10 else f"{seconds:.0f} s"  # noqa: PLR2004 - a digit where it matters


def many(count: int, noun: str) -> str:
    """Return a count with its noun: `1 job`, `2 jobs`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def age(then: Instant, now: Instant) -> str:
    """Return how long ago an instant was, for people."""
    return span((now - then) / SECOND) if then else ""


def _cell(text: str) -> str:
    line = clean_line(text)
    return line if len(line) <= CELL_CHARS_MAX else line[: CELL_CHARS_MAX - 1] + "…"
