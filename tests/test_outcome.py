from __future__ import annotations

import pytest

from benteng import raised
from benteng.errors import EnvelopeError, Malformed
from benteng.outcome import (
    ERRORS,
    ErrorClass,
    Permanent,
    Snoozed,
    Suspicious,
    Transient,
    classify,
)


class FlakyError(Exception):
    pass


class HostileError(FlakyError):
    pass


FLAKY = f"{FlakyError.__module__}.{FlakyError.__qualname__}"
HOSTILE = f"{HostileError.__module__}.{HostileError.__qualname__}"


@pytest.mark.parametrize(
    "signal, expected",
    [
        (raised.Retry("r"), Transient("text", None, explicit=True)),
        (raised.Retry("r", after=7.5), Transient("text", 7.5, explicit=True)),
        (raised.Snooze(60.0, "r"), Snoozed(60.0, "text")),
        (raised.Permanent("r"), Permanent("text")),
        (raised.Suspicious("r"), Suspicious("text")),
    ],
    ids=["retry", "retry-after", "snooze", "permanent", "suspicious"],
)
def test_handlers_own_words_come_first(signal, expected):
    """Retry, Snooze, Permanent and Suspicious mean what they say, even when a table says otherwise."""
    table = {
        f"benteng.raised.{type(signal).__name__}": ErrorClass.PERMANENT,
        "builtins.Exception": ErrorClass.SUSPICIOUS,
    }

    assert expected == classify(signal, table, "text")


def test_unknown_exception_is_transient_but_not_explicit():
    """A `once` job is not re-run because of an exception that nobody classified: only an explicit Retry does that."""
    assert Transient("text", None, explicit=False) == classify(FlakyError(), {}, "text")


@pytest.mark.parametrize(
    "error, expected",
    [
        (MemoryError(), Transient("text")),
        (ConnectionError(), Transient("text")),
        (ConnectionResetError(), Transient("text")),
        (TimeoutError(), Transient("text")),
        (NotImplementedError(), Permanent("text")),
        (SyntaxError(), Permanent("text")),
        (ModuleNotFoundError(), Permanent("text")),
        (Malformed("R1", "why"), Permanent("text")),
        (EnvelopeError("E1", "why"), Suspicious("text")),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_built_in_table(error, expected):
    """Well-known exceptions, and those derived from them, are classified without a word of the author."""
    assert expected == classify(error, {}, "text")


def test_types_table_comes_before_the_built_in_one():
    """The author of a job type knows better than the defaults."""
    table = {"builtins.ConnectionError": ErrorClass.PERMANENT}

    assert Permanent("text") == classify(ConnectionError(), table, "text")


def test_types_table_wins_with_a_base_over_a_built_in_exact_match():
    """A base class in the type's own table decides before the exact class in the built-in one."""
    table = {"builtins.OSError": ErrorClass.SUSPICIOUS}

    assert "builtins.TimeoutError" in ERRORS
    assert Suspicious("text") == classify(TimeoutError(), table, "text")


def test_most_derived_name_decides():
    """With base and derived class in the table, the derived one decides, whatever the order of the table."""
    table = {FLAKY: ErrorClass.TRANSIENT, HOSTILE: ErrorClass.SUSPICIOUS}

    assert Suspicious("text") == classify(HostileError(), table, "text")
    assert Transient("text") == classify(FlakyError(), table, "text")


def test_name_is_qualified():
    """A class of the same bare name in another module is another class."""
    assert Transient("text") == classify(FlakyError(), {"elsewhere.FlakyError": ErrorClass.PERMANENT}, "text")


def test_text_is_the_cleaned_one():
    """The outcome carries the text it was given, never the exception's own message."""
    outcome = classify(FlakyError("canary-secret"), {}, "text")

    assert "canary-secret" not in repr(outcome)
