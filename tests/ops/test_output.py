"""How commands speak."""

from __future__ import annotations

import io
import json
import sys

import pytest

from benteng.errors import Refused
from benteng.ops import output
from benteng.ops.cli.options import teller, write_lines
from benteng.ops.exits import Exit

FORGED = 'bad\r\n{"level":"info"}\x1b[31m\u202e'


def test_a_report_is_one_line_with_rule_field_reason_and_fix(capsys):
    """Everything a person needs, on one line of stderr; nothing on stdout."""
    output.report(Refused("G-size", "too large", field="name", fix="use an artifact"), Exit.REFUSED)

    said = capsys.readouterr()
    assert "error: name: too large [G-size]. Fix: use an artifact\n" == said.err
    assert "" == said.out


def test_a_report_in_json_names_the_exit_code(capsys):
    """Scripts read the same facts."""
    output.report(Refused("G-size", "too large", field="name"), Exit.REFUSED, output.Form.DOCUMENT)

    assert {
        "schema": "benteng.error/1",
        "rule": "G-size",
        "field": "name",
        "reason": "too large",
        "fix": "",
        "exit": 20,
    } == json.loads(capsys.readouterr().out)


def test_an_unforeseen_error_shows_no_words_of_its_own(capsys):
    """They may hold a payload's value."""
    output.report(KeyError("canary-value"), Exit.INTERNAL)

    assert "canary" not in capsys.readouterr().err


def test_a_password_in_an_address_is_masked(capsys):
    """Also in an error that somebody else wrote."""
    output.report(Refused("S-dsn", "postgresql://u:canary@db/x fails"), Exit.REFUSED, output.Form.DOCUMENT)

    said = capsys.readouterr()
    assert "canary" not in said.err + said.out


@pytest.mark.parametrize(
    "show",
    [
        lambda: output.say(FORGED),
        lambda: output.write(FORGED),
        lambda: output.table(["x"], [[FORGED]]),
        lambda: output.json_line("x", {"a": [FORGED], FORGED: 1}),
        lambda: output.document("x", {"a": {"b": FORGED}}),
        lambda: output.report(Refused("X-x", FORGED, field=FORGED, fix=FORGED), Exit.REFUSED, output.Form.DOCUMENT),
        lambda: teller("text")("output", text=FORGED),
        lambda: teller("json")("output", text=FORGED),
    ],
    ids=["say", "write", "table", "json_line", "document", "report", "event", "event_json"],
)
def test_stored_text_cannot_forge_lines_or_colours(capsys, show):
    """Control and bidirectional characters are escaped on every way to a terminal (C116)."""
    show()

    said = "".join(capsys.readouterr())
    assert "bad" in said
    assert not set("\r\x1b\u202e") & set(said)
    assert not any(line.startswith('{"level"') for line in said.splitlines())


@pytest.mark.parametrize(
    "seconds,text",
    [(-1, "0.0 s"), (0.04, "0.0 s"), (9.94, "9.9 s"), (12, "12 s"), (90, "2 min"), (7200, "2 h"), (864_000, "10 d")],
)
def test_a_duration_reads_like_one(seconds, text):
    """For people: one unit."""
    assert text == output.span(seconds)


def test_an_instant_is_utc():
    """No local time anywhere."""
    assert "2023-11-14T22:13:20.000Z" == output.when(1_700_000_000_000_000)
    assert "" == output.when(0)


class Counted(io.RawIOBase):
    """A stream that counts how often it is written to."""

    def __init__(self):
        self.writes = []

    def writable(self):
        return True

    def write(self, data, /):
        self.writes.append(bytes(data))
        return len(data)


def test_at_level_warning_a_worker_tells_of_what_went_wrong_only(capsys):
    """Jobs that begin and complete are not told of; what is fenced off, set apart, tried again or not a job's is."""
    tell = teller("text", "warning")

    tell("claimed", job=1)
    tell("settled", job=1, state="completed")
    for state in ("scheduled", "quarantined", "cancelled"):
        tell("settled", state=state)
    tell("fenced_off", job=2)
    tell("warning", rule="W-root")

    wrong = ["settled state=scheduled", "settled state=quarantined", "settled state=cancelled", "fenced_off job=2"]
    assert [*wrong, "warning rule=W-root"] == capsys.readouterr().err.splitlines()


def test_what_a_worker_tells_while_it_works_is_written_at_once(monkeypatch):
    """One system call when it comes to rest, not one a line; before the first rest each line is written as it is."""
    raw = Counted()
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BufferedWriter(raw), line_buffering=True))
    tell = teller("text")

    tell("ready")
    write_lines()
    before = len(raw.writes)
    for number in range(20):
        tell("claimed", job=number)
    during = len(raw.writes)
    write_lines()

    assert [1, 1, 2] == [before, during, len(raw.writes)]
    assert ["ready", *(f"claimed job={number}" for number in range(20))] == b"".join(raw.writes).decode().splitlines()
