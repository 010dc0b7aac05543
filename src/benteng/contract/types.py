r"""The field types that contracts are made of, and the marks that a field may carry.

Each string type has a pattern that a trailing newline cannot pass and that is also valid ECMA, so that the exported
JSON Schema means the same elsewhere: either an exact length closes it, or it ends in `$(?!\n)`.

Trust: values come from payloads; every check here runs on attacker-chosen text of bounded length.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Final, Self, dataclass_transform

import msgspec
from msgspec import Meta

from benteng.contract.rules import RULES
from benteng.errors import DefinitionError

REASON_MIN: Final = 10
"""Characters that the reason of a waiver must have."""


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Contract(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of a payload contract: unknown fields are refused, values do not change. Subclasses inherit this."""


@dataclass(frozen=True, slots=True)
class Audited:
    """Mark: this field's value may appear in audit summaries. What is not marked appears as type and length only."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Mark: this field names a resource of this kind, with the key `kind:value`. The outermost mark counts.

    Raises DefinitionError: the kind is not 1-32 lower-case letters, digits or dashes.
    """

    name: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9\-]{0,31}", self.name):
            reason = "a resource kind is 1-32 lower-case letters, digits or dashes"
            raise DefinitionError("D-type", reason, fix='Write Kind("host")')


@dataclass(frozen=True, slots=True)
class Waive:
    """Mark: a reviewed exception to one definition rule on this field. It is part of the schema digest.

    Raises DefinitionError: the rule is unknown or cannot be waived, or the reason is too short (D-waiver).
    """

    rule: str
    reason: str

    def __post_init__(self) -> None:
        rule = RULES.get(self.rule)
        if rule is None or not rule.waivable or len(self.reason.strip()) < REASON_MIN:
            raise DefinitionError("D-waiver", RULES["D-waiver"].what, fix=RULES["D-waiver"].fix)


Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$", min_length=64, max_length=64)]
"""A SHA-256 digest: 64 lower-case hexadecimal characters."""

Slug = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9._\-]*$(?!\n)", min_length=1, max_length=64)]
"""A short name: lower-case letters, digits, dot, dash and underscore, starting with a letter or digit."""

HostName = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9](?:[a-z0-9\-]{0,61}[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9\-]{0,61}[a-z0-9])?)*$(?!\n)",
        min_length=1,
        max_length=253,
    ),
    Waive("D-pattern", "each repeat starts with a dot that no label can contain, so the match is deterministic"),
]
"""A lower-case DNS name (RFC 1123): labels of 1-63 characters, 253 in all, no trailing dot."""

TargetId = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9._\-]*$(?!\n)", min_length=1, max_length=128)]
"""The id of something that a job works on, without a kind."""

Target = Annotated[TargetId, Kind("target")]
"""A target id; its resource key is `target:<id>`. Write `Annotated[TargetId, Kind("host")]` for another kind."""

Currency = Annotated[str, Meta(pattern="^[A-Z]{3}$", min_length=3, max_length=3)]
"""A currency code in the form of ISO 4217. Whether it is in use is a semantic check."""

MONEY_FORM: Final = "money must be a decimal string"
MONEY_PATTERN: Final = r"^-?(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,4})?$(?!\n)"


class Money(Decimal):
    """An exact amount, written as a decimal string: at most 15 digits before and 4 after the point, never a float.

    The amount decides, not its spelling: `"12.5"` and `"12.50"` are the same payload, stored as `"12.5"`.

    Raises ValueError: the text is no such string.
    """

    def __new__(cls, text: str) -> Self:
        """Return the amount that `text` writes."""
        if type(text) is not str or not re.search(MONEY_PATTERN, text[:32]):
            raise ValueError(MONEY_FORM)
        return super().__new__(cls, text)

    def spelling(self) -> str:
        """Return the one spelling of this amount: no exponent, no trailing zero, no minus before zero."""
        text = f"{self:f}"
        short = text.rstrip("0").rstrip(".") if "." in text else text
        return "0" if short == "-0" else short


class Artifact(Contract):
    """An immutable reference to an artifact: its id and the digest of its bytes. Never the bytes, never a path."""

    id: Slug
    sha256: Sha256


WINDOW_ORDER: Final = "start must be before end"


class Window(Contract):
    """A half-open interval of time, `start <= t < end`. Both ends need a time zone.

    Raises ValueError: an end has no time zone, or start is not before end.
    """

    start: Annotated[datetime, Meta(tz=True)]
    end: Annotated[datetime, Meta(tz=True)]

    def __post_init__(self) -> None:
        """Refuse an empty or reversed window."""
        if self.start.utcoffset() is None or self.end.utcoffset() is None or self.start >= self.end:
            raise ValueError(WINDOW_ORDER)

    def __contains__(self, instant: datetime) -> bool:
        """Say whether `instant` lies in the window; the end does not."""
        return self.start <= instant < self.end
