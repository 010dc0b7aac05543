"""The errors that benteng raises, all below `BentengError`.

Each says which rule was broken, where, and what to do. None carries a payload value: an error is logged, stored and
shown, so it must be safe to share (seed, "Audit trail yang benar-benar berguna").
"""

from __future__ import annotations


class BentengError(Exception):
    """Everything that benteng raises on purpose."""


class RuleError(BentengError):
    """A rule was broken. `rule` is its id in the docs, `field` the path it concerns ("" for none), `fix` what to do."""

    def __init__(self, rule: str, reason: str, *, field: str = "", fix: str = "") -> None:
        self.rule = rule
        self.reason = reason
        self.field = field
        self.fix = fix
        super().__init__(str(self))

    def __str__(self) -> str:
        where = f"{self.field}: " if self.field else ""
        fix = f". {self.fix}" if self.fix else ""
        return f"[{self.rule}] {where}{self.reason}{fix}"


class Busy(BentengError):
    """A limit is reached for now (depth, lock, callers that wait). Nothing was stored; try again later."""


class DefinitionError(RuleError):
    """A contract or job type was defined in a way that its tier does not allow. Raised at import, never at run time."""


class Malformed(RuleError):
    """Bytes that are no payload of this contract. Carries no value, only field, rule and fix."""


class Refused(RuleError):
    """The gate refused the job. Nothing was stored but the record of the refusal.

    `suspicious`: an honest caller cannot send this by mistake; it is alerted and tallied.
    """

    def __init__(self, rule: str, reason: str, *, field: str = "", fix: str = "", suspicious: bool = False) -> None:
        super().__init__(rule, reason, field=field, fix=fix)
        self.suspicious = suspicious


class Conflict(Refused):
    """The operation exists already with another payload or from another origin."""


class QueueFull(Refused, Busy):
    """Too many jobs of the origin wait (S-depth). Nothing was stored but the record of the refusal; try again later."""


class NeedsAction(BentengError):
    """What was asked loosens or approves something of tier HIGH: it needs an Action with another person's vote."""


class PolicyError(RuleError):
    """A policy, lock file or configuration is not acceptable. Worker and gate refuse to start with it."""


class StoreError(BentengError):
    """The store could not do what was asked and stored nothing."""


class StoreUnavailable(StoreError):
    """The store cannot be reached or written just now (moved, locked, full, read-only). Try again later."""


class StoreDamaged(StoreError):
    """The store's content is not what it should be. Stop and look; nothing is repaired by itself."""


class FacetError(StoreError):
    """A verb was called that the opened facet does not have."""


class EnvelopeError(RuleError):
    """A signed envelope does not verify: format, key, signature, time or content."""


class KeyringError(BentengError):
    """Keys or trust roots are missing, unreadable, or open to others."""
