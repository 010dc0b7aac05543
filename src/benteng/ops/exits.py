"""What the command line's exit codes mean, and which error ends with which.

One table: the commands, the docs and the tests use it. 0 to 3 are common habit, 4 to 39 are answers about jobs, 64 to
78 are sysexits(3) for troubles of the environment.
"""

from __future__ import annotations

from enum import IntEnum

from benteng import errors


class Exit(IntEnum):
    """How a command ended."""

    OK = 0
    FAILED = 1
    USAGE = 2
    WARNINGS = 3
    NOT_FOUND = 4
    REFUSED = 20
    DUPLICATE = 21
    HELD = 22
    CLOSED = 23
    CONFLICT = 25
    NEEDS_ACTION = 26
    NOT_COMPLETED = 27
    BROKEN = 30
    DIFFERS = 32
    EXCESS = 34
    BELOW = 35
    DAMAGED = 65
    INTERNAL = 70
    IO = 74
    UNAVAILABLE = 75
    CONFIG = 78
    INTERRUPTED = 130


MEANINGS: dict[Exit, str] = {
    Exit.OK: "done",
    Exit.FAILED: "an expectation was not met: `demo` saw something else, `doctor` found an error",
    Exit.USAGE: "the command line is wrong",
    Exit.WARNINGS: "`doctor` found warnings and no error",
    Exit.NOT_FOUND: "no such job, job type or switch",
    Exit.REFUSED: "a rule refused it; the rule's id is in the message",
    Exit.DUPLICATE: "the same operation exists: the receipt is the first job's",
    Exit.HELD: "the job waits for agreement",
    Exit.CLOSED: "a switch is closed: the job was refused, or went to quarantine instead",
    Exit.CONFLICT: "the operation exists with another payload or from another origin",
    Exit.NEEDS_ACTION: "it loosens or approves something of tier HIGH: it needs an Action with another person's vote",
    Exit.NOT_COMPLETED: "the job that was waited for did not complete, or not in time",
    Exit.BROKEN: "the audit log does not verify",
    Exit.DIFFERS: "code, lock file and ledger do not say the same",
    Exit.EXCESS: "somebody may do more in the database than the table of roles gives",
    Exit.BELOW: "`isolation`: a cell is not held here as the tier requires, or a tried job wanted the store or a key",
    Exit.DAMAGED: "the store's content is not what it should be: stop and look",
    Exit.INTERNAL: "a fault of benteng; BENTENG_DEBUG=1 shows where",
    Exit.IO: "a file could not be read or written",
    Exit.UNAVAILABLE: "the store cannot be reached or is busy: try again later",
    Exit.CONFIG: "configuration, keys, policy or the definition of a job type are not acceptable",
    Exit.INTERRUPTED: "stopped by the keyboard",
}

CLOSED_RULES = frozenset({"C-halt", "S-control"})
"""Rules of a refusal that mean: a switch is closed."""

_BY_ERROR: tuple[tuple[type[BaseException], Exit], ...] = (
    # The first that fits counts: subclasses stand before their bases.
    (errors.Conflict, Exit.CONFLICT),
    (errors.QueueFull, Exit.UNAVAILABLE),
    (errors.Refused, Exit.REFUSED),
    (errors.NeedsAction, Exit.NEEDS_ACTION),
    (errors.PolicyError, Exit.CONFIG),
    (errors.DefinitionError, Exit.CONFIG),
    (errors.KeyringError, Exit.CONFIG),
    (errors.RuleError, Exit.REFUSED),
    (errors.StoreDamaged, Exit.DAMAGED),
    (errors.FacetError, Exit.INTERNAL),
    (errors.StoreError, Exit.UNAVAILABLE),
    (errors.Busy, Exit.UNAVAILABLE),
    (OSError, Exit.IO),
    (KeyboardInterrupt, Exit.INTERRUPTED),
)


class Fault(errors.BentengError):
    """What a command itself finds wrong: with its own exit code, and what to do."""

    def __init__(self, code: Exit, reason: str, *, fix: str = "") -> None:
        self.code = code
        self.reason = reason
        self.fix = fix
        super().__init__(f"{reason}. {fix}" if fix else reason)


def exit_of(error: BaseException) -> Exit:
    """Return the exit code that an error means. What nobody foresaw is a fault of ours."""
    if isinstance(error, Fault):
        return error.code
    if isinstance(error, errors.RuleError) and error.rule in CLOSED_RULES:
        return Exit.CLOSED
    return next((code for kind, code in _BY_ERROR if isinstance(error, kind)), Exit.INTERNAL)
