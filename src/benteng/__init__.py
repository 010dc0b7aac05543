"""benteng: a hardened job queue for background jobs whose one wrong execution is expensive."""

from benteng.app import Benteng, NotCompleted, Receipt
from benteng.context import Context
from benteng.contract import (
    Artifact,
    Audited,
    Contract,
    HostName,
    Money,
    Sha256,
    Slug,
    Target,
    Text,
    Waive,
    Window,
    kind,
)
from benteng.errors import BentengError, Busy, Conflict, DefinitionError, Refused, StoreUnavailable
from benteng.lifecycle import State
from benteng.policy import Effect, Tier
from benteng.raised import ErrorClass, Permanent, Retry, Snooze, Suspicious
from benteng.verdict import ADMIT, Divert, Hold, Refuse, Verdict

__all__ = [
    "ADMIT",
    "Artifact",
    "Audited",
    "Benteng",
    "BentengError",
    "Busy",
    "Conflict",
    "Context",
    "Contract",
    "DefinitionError",
    "Divert",
    "Effect",
    "ErrorClass",
    "Hold",
    "HostName",
    "Money",
    "NotCompleted",
    "Permanent",
    "Receipt",
    "Refuse",
    "Refused",
    "Retry",
    "Sha256",
    "Slug",
    "Snooze",
    "State",
    "StoreUnavailable",
    "Suspicious",
    "Target",
    "Text",
    "Tier",
    "Verdict",
    "Waive",
    "Window",
    "kind",
]
