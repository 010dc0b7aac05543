"""What the demo says: steps with their expectations, one line each for people, one document for programs.

A step has passed when at least one expectation was stated and every one held: a step that looked at nothing proves
nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

SCHEMA = "benteng.demo/1"
MARKS = {"done": ("✔", "+"), "refused": ("✖", "x"), "recovered": ("↻", "~"), "parked": ("⏸", "="), "failed": ("✘", "!")}
"""Kind of step -> its mark, and the one for a terminal that cannot show it."""


class Expectation(msgspec.Struct, frozen=True):
    """One thing that had to be so. `found` says what was there instead, when it was not."""

    what: str
    held: bool
    found: str = ""


@dataclass(slots=True)
class Step:
    """One step while it is played, and its record afterwards. `audit`: numbers of the records that tell of it."""

    number: int
    kind: str
    title: str
    where: str = ""
    said: str = ""
    audit: list[int] = field(default_factory=list[int])
    expectations: list[Expectation] = field(default_factory=list[Expectation])
    seconds: float = 0.0

    def expect(self, what: str, *, held: bool, found: str = "") -> None:
        """Record one expectation."""
        self.expectations.append(Expectation(what, held, "" if held else found))

    def equal(self, what: str, expected: object, actual: object) -> None:
        """Record the expectation that two values are equal."""
        self.expect(what, held=expected == actual, found=f"{actual!s}, not {expected!s}")

    def missed(self, what: str) -> None:
        """Record that something expected did not come."""
        self.expect(what, held=False, found="it did not come in time")

    @property
    def ok(self) -> bool:
        """Whether something was looked at and all of it was as expected."""
        return bool(self.expectations) and all(each.held for each in self.expectations)


class StepRecord(msgspec.Struct, frozen=True):
    """A step as `--json` prints it."""

    step: int
    kind: str
    title: str
    where: str
    said: str
    ok: bool
    seconds: float
    audit: list[int]
    expectations: list[Expectation]


class Document(msgspec.Struct, frozen=True):
    """The whole demo as `--json` prints it. `root`: of the audit tree over all `records` (hex)."""

    schema: str
    ok: bool
    seconds: float
    records: int
    root: str
    steps: list[StepRecord]


@dataclass(slots=True)
class Report:
    """All steps of one run. `write` gets each line; every line ever written is kept in `lines`."""

    write: Callable[[str], None]
    plain: bool = False
    steps: list[Step] = field(default_factory=list[Step])
    lines: list[str] = field(default_factory=list[str])
    records: int = 0
    root: str = ""
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Seconds since the demo began."""
        return time.monotonic() - self.started

    @property
    def ok(self) -> bool:
        """Whether every step passed, and there was one."""
        return bool(self.steps) and all(step.ok for step in self.steps)

    def say(self, line: str) -> None:
        """Write one line."""
        self.lines.append(line)
        self.write(line)

    def add(self, step: Step) -> None:
        """Take a played step in, and say it."""
        self.steps.append(step)
        self.say(self._line(step))
        for each in step.expectations:
            if not each.held:
                self.say(f"{'':9}expected: {each.what}; found: {each.found or 'otherwise'}")

    def end(self) -> None:
        """Say how it all went."""
        held = sum(each.held for step in self.steps for each in step.expectations)
        total = sum(len(step.expectations) for step in self.steps)
        passed = sum(step.ok for step in self.steps)
        verdict = "all as promised" if self.ok else "NOT as promised"
        self.say(
            f"{verdict}: {passed} of {len(self.steps)} steps, {held} of {total} expectations, in {self.seconds:.1f} s"
        )

    def document(self) -> bytes:
        """Return the run as one JSON document."""
        steps = [_record(step) for step in self.steps]
        document = Document(SCHEMA, self.ok, round(self.seconds, 3), self.records, self.root, steps)
        return msgspec.json.encode(document)

    def _line(self, step: Step) -> str:
        mark = MARKS[step.kind if step.ok else "failed"][self.plain]
        audit = f"audit #{step.audit[-1]}" if step.audit else ""
        return f"{self.seconds:5.1f} s {mark} {step.title:<22} {step.where:<18} {step.said:<62} {audit}".rstrip()


def _record(step: Step) -> StepRecord:
    seconds = round(step.seconds, 3)
    return StepRecord(
        step.number,
        step.kind,
        step.title,
        step.where,
        step.said,
        step.ok,
        seconds,
        step.audit,
        step.expectations,
    )
