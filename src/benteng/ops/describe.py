"""What an application's code says about its job types, asked without importing it here.

The parent side holds a credential and reads lock-file JSON; the child (`python -m benteng.ops.describe module:attr`)
imports the user's module, inert, in an environment without credential, and prints. What comes back is only ever
compared with, or locked as, reviewed data.
Trust: none of the child's output; `policy.parse_lock` judges it as it judges a file.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from benteng import inert
from benteng.errors import BentengError, DefinitionError, PolicyError, RuleError
from benteng.ops.child import Ended, answer, run, shut_in
from benteng.ops.reference import check_reference
from benteng.policy import TypePolicy, parse_lock, render_lock
from benteng.redact import error_text

TEXT_CHARS_MAX = 2048
FAILED = b"failed "
"""Begins the answer of a child that could not do what it was asked."""


class Failure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why the child could not answer."""

    rule: str
    reason: str
    field: str = ""
    fix: str = ""
    defined: bool = False


def policies_of(reference: str, paths: Sequence[str], variables: Iterable[str] = ()) -> dict[str, TypePolicy]:
    """Return the policies of an application's code by name. Raises PolicyError, DefinitionError.

    `paths` are where its module may be found; the first is the child's working directory. `variables`: names of
    environment variables that the code needs at import (a pool's `env`).
    """
    arguments = [check_reference(reference), *paths]
    ended = run("benteng.ops.describe:child", arguments, cwd=Path(paths[0]), variables=variables)
    return parse_lock(checked(ended)).types


def checked(ended: Ended) -> bytes:
    """Return what a child answered. Raises what it said was wrong, or how it died."""
    if ended.code != 0 or ended.out.startswith(FAILED):
        raise failure_of(ended)
    return ended.out


def failure_of(ended: Ended) -> RuleError:
    """Return the error that a child that failed means: its own words, bounded, or how it died."""
    try:
        said = msgspec.json.decode(ended.out.removeprefix(FAILED), type=Failure)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        last = ended.talk.strip().rpartition("\n")[2]
        how = f"signal {-ended.code}" if ended.code < 0 else f"exit code {ended.code}"
        return PolicyError("N-child", error_text("the application's process ended", f"{how} {last}"))
    kind = DefinitionError if said.defined else PolicyError
    rule, reason, field, fix = (text[:TEXT_CHARS_MAX] for text in (said.rule, said.reason, said.field, said.fix))
    return kind(rule, reason, field=field, fix=fix)


def failure(error: BaseException) -> bytes:
    """Return what the child says when it cannot answer."""
    if isinstance(error, RuleError):
        said = Failure(error.rule, error.reason, error.field, error.fix, isinstance(error, DefinitionError))
    elif isinstance(error, BentengError):
        said = Failure("N-child", str(error))
    else:
        said = Failure(
            "N-import", f"the application cannot be imported: {error_text(type(error).__name__, str(error))}"
        )
    return FAILED + msgspec.json.encode(said)


def child() -> None:
    """Be the child: print the lock file of one application, or why not."""
    from benteng.ops.application import load_app

    inert.mark()
    stream = shut_in()
    try:
        said = render_lock(load_app(sys.argv[2], sys.argv[3:]).registry.policies())
    except BaseException as error:  # noqa: BLE001 - user code may raise anything, SystemExit too
        said = failure(error)
    answer(stream, said)
