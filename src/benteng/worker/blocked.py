"""What people read when a pool's walls were the reason: which pool, what was blocked, and what would allow it.

The sentence is the supervisor's own. A cell says only which path and which kind of act failed; that is compared with
what the pool's cells may do, so that nobody is told to open what is open already, or what must stay shut. PURE.
Trust: nothing of what a cell says.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

from benteng.redact import ERROR_BYTES_MAX, clean_line
from benteng.worker.wire import Act, Denied

BYTES_MAX = 512
SENTENCES_BYTES_MAX = 1024
SECRET = "no setting allows it: it opens the ledger, or is a key or a secret"  # noqa: S105 - a sentence
CLAIM = re.compile(r"blocked(\W+by\W+pool)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the walls of a pool's cells let through.

    read, write  full paths, with all that lies below;  secrets: what no setting may open
    programs     what its cells may start
    own_uid      whether its cells may change modes, owners and times
    """

    pool: str
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    own_uid: bool = False


def sentence(denied: Denied, bounds: Bounds) -> str:
    """Return why an act was blocked and what would allow it; "" when the walls were not the reason."""
    match denied.act:
        case Act.FILE:
            what, fix = _file(denied.path, bounds)
        case Act.MODE:
            what = f"change mode, owner or times of {denied.path}"
            fix = "" if bounds.own_uid else f"give [pool.{bounds.pool}] a uid and gid of its own"
        case Act.NETWORK:
            what, fix = "use the network", f"name host and port in egress of [pool.{bounds.pool}]"
        case Act.PROGRAM:
            what = f"start the program {denied.path}" if denied.path else "start a program"
            fix = "" if denied.path in bounds.programs else f"name it in exec of [pool.{bounds.pool}]"
        case Act.CALL:
            what = "start a process, or make a system call that cells do not have"
            fix = "threads work; docs/reference/isolation.md lists the calls"
        case _:
            assert_never(denied.act)
    return blocked(bounds.pool, what, fix) if fix else ""


def violation(pool: str, *, listed: bool) -> str:
    """Return what to say when the kernel ended a cell. `listed`: the pool has a list of programs.

    Where it has none, to start one is such a call, and the one that people make by mistake.
    """
    fix = "no setting allows it" if listed else f"if that was to start a program: name it in exec of [pool.{pool}]"
    return blocked(pool, "make a system call that no job needs", fix)


def blocked(pool: str, what: str, fix: str) -> str:
    """Return the sentence for an error of a job, cleaned and bounded: parts of it may come from a handler."""
    return clean_line(f"blocked by pool {pool}: {what}; {fix}", bytes_max=BYTES_MAX)


def explained(error: str, sentences: Iterable[str]) -> str:
    """Return an error with these sentences after it.

    The error is cut for their sake, and never the other way round; a sentence of this kind that it brings along is
    marked as what its handler said.
    """
    ours = clean_line(". ".join(each for each in sentences if each), bytes_max=SENTENCES_BYTES_MAX)
    theirs = disowned(error)
    if not ours:
        return theirs
    room = ERROR_BYTES_MAX - len(ours.encode()) - 2
    return ". ".join(each for each in (clean_line(theirs, bytes_max=room), ours) if each)


def disowned(error: str) -> str:
    """Return an error that cannot be taken for a sentence of ours, with advice that nobody should follow."""
    return CLAIM.sub(r"(says the handler) blocked\1", error)


def _file(path: str, bounds: Bounds) -> tuple[str, str]:
    path = posixpath.normpath(path)
    name = json.dumps(path, ensure_ascii=False)
    if not path.startswith("/") or _is_below(path, bounds.write):
        return "", ""
    if any(_is_below(path, (secret,)) or _is_below(secret, (path,)) for secret in bounds.secrets):
        return f"open {path}", SECRET
    if _is_below(path, bounds.read):
        return f"write {path}", f"add write = [{name}] to [pool.{bounds.pool}]"
    return f"open {path}", f"add read = [{name}], or write, to [pool.{bounds.pool}]"


def _is_below(path: str, roots: Iterable[str]) -> bool:
    return any(Path(path).is_relative_to(root) for root in roots)
