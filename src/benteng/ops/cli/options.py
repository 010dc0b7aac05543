"""The options that commands share, and how a command reaches configuration and store."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TextIO, TypeVar

import click
import msgspec

from benteng.errors import NeedsAction, PolicyError, Refused
from benteng.ops.cli import FORM
from benteng.ops.exits import Exit, Fault
from benteng.ops.output import Form
from benteng.policy import Tier
from benteng.redact import LINE_BYTES_MAX, clean_line

if TYPE_CHECKING:
    from benteng.config import Config
    from benteng.store.contract import Auditor, Operator
    from benteng.store.records import JobView

F = TypeVar("F", bound=Callable[..., Any])


def json_option(command: F) -> F:
    """Give a command `--json`: one document, also for its error."""
    said = "Write one JSON document."
    return click.option("--json", "as_json", is_flag=True, is_eager=True, callback=_document, help=said)(command)


def json_lines_option(command: F) -> F:
    """Give a command `--jsonl`: one document a line."""
    said = "Write one JSON document a line."
    return click.option("--jsonl", "as_lines", is_flag=True, is_eager=True, callback=_lines, help=said)(command)


def _document(ctx: click.Context, _param: click.Parameter, value: bool) -> bool:  # noqa: FBT001 - click's signature
    if value:
        ctx.meta[FORM] = Form.DOCUMENT
    return value


def _lines(ctx: click.Context, _param: click.Parameter, value: bool) -> bool:  # noqa: FBT001 - click's signature
    if value:
        ctx.meta[FORM] = Form.LINES
    return value


def reason_option(command: F) -> F:
    """Give a command that changes something its `--reason`, which the audit log keeps."""
    return click.option("--reason", required=True, callback=_reason, help="Why; the audit log keeps it.")(command)


def log_option(command: F) -> F:
    """Give a long-running command `--log`: how it tells events, on stderr."""
    said = "How events are told on stderr."
    return click.option("--log", type=click.Choice(["text", "json"]), default="text", show_default=True, help=said)(
        command
    )


def level_option(command: F) -> F:
    """Give a worker `--log-level`: whether it tells of jobs that begin and end as they should."""
    said = "warning: nothing of jobs that begin and complete."
    kinds = click.Choice(["info", "warning"])
    return click.option("--log-level", type=kinds, default="info", show_default=True, help=said)(command)


class Teller(Protocol):
    """Tells an event with its fields."""

    def __call__(self, event: str, /, **fields: object) -> None:
        """Tell it."""
        ...


def teller(log: str, level: str = "info") -> Teller:
    """Return what tells events as text, or as JSON lines; at level `warning` without those of jobs that go well."""
    tell = _as_json if log == "json" else _as_text
    return tell if level == "info" else _unless_routine(tell)


def _unless_routine(tell: Teller) -> Teller:
    def told(event: str, /, **fields: object) -> None:
        if event != "claimed" and not (event == "settled" and fields.get("state") == "completed"):
            tell(event, **fields)

    return told


def write_lines() -> None:
    """Write what was told; from now on lines are written together: here, when there are many, and in the end."""
    stream: TextIO = sys.stderr
    if isinstance(stream, io.TextIOWrapper) and stream.line_buffering:
        stream.reconfigure(line_buffering=False)
    sys.stderr.flush()


def _as_text(event: str, /, **fields: object) -> None:
    _tell(" ".join([event, *[f"{name}={value}" for name, value in fields.items() if value not in ("", None)]]))


def _as_json(event: str, /, **fields: object) -> None:
    told = {name: value for name, value in fields.items() if value not in ("", None)}
    facts = {name: value if isinstance(value, int | float) else str(value) for name, value in told.items()}
    _tell(msgspec.json.encode({"event": event} | facts).decode())


def _tell(line: str) -> None:
    """Write one clean line to stderr. A worker tells two a job, so this is what it is: a look and a write."""
    plain = len(line) <= LINE_BYTES_MAX and line.isascii() and line.isprintable()
    sys.stderr.write((line if plain else clean_line(line)) + "\n")


def _reason(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    if not value.strip():
        raise click.BadParameter("say why")
    return value.strip()


def configuration() -> Config:
    """Return the configuration as seen from the working directory."""
    from benteng.config import load

    return load()


@contextmanager
def operator() -> Generator[Operator]:
    """Open the operator's facet. The person is the OS user; there is no flag for that."""
    from benteng.opening import dsn_of
    from benteng.store.open import open_operator
    from benteng.store.records import Facet

    config = configuration()
    with closing(open_operator(dsn_of(config, Facet.OPERATOR), environment=config.environment.value)) as opened:
        yield opened


@contextmanager
def auditor() -> Generator[Auditor]:
    """Open the auditor's facet."""
    from benteng.opening import dsn_of
    from benteng.store.open import open_auditor
    from benteng.store.records import Facet

    config = configuration()
    with closing(open_auditor(dsn_of(config, Facet.AUDITOR), environment=config.environment.value)) as opened:
        yield opened


def needs_two(view: JobView, what: str) -> None:
    """Raise NeedsAction for a job of tier HIGH, in every environment.

    Bringing back, resolving and releasing need another person's vote there (DESIGN section 5); until Actions exist the
    command line has no way round.
    """
    if view.job.tier is Tier.HIGH:
        raise NeedsAction(f"{what} a job of tier HIGH needs an Action with another person's vote")


@contextmanager
def rules() -> Generator[None]:
    """Let a rule of the store that a request breaks count as a refusal, not as a fault of the configuration."""
    try:
        yield
    except PolicyError as error:
        raise Refused(error.rule, error.reason, field=error.field, fix=error.fix) from None


def found(opened: Operator, job_id: str) -> JobView:
    """Return a job. Raises Fault when the store does not know it."""
    view = opened.show(job_id)
    if view is None:
        raise Fault(Exit.NOT_FOUND, "the store knows no such job", fix="benteng jobs list shows which there are")
    return view
