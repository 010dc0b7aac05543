"""benteng: a hardened job queue for background jobs whose one wrong execution is expensive.

The public names, each loaded when it is first used: a supervisor or a `benteng --help` loads none of what users
define jobs with.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benteng.aio import AsyncReceipt
    from benteng.app import Benteng
    from benteng.context import Context
    from benteng.contract import (
        Artifact,
        Audited,
        Contract,
        HostName,
        Kind,
        Money,
        Sha256,
        Slug,
        Target,
        TargetId,
        Waive,
        Window,
    )
    from benteng.errors import BentengError, Busy, Conflict, DefinitionError, QueueFull, Refused, StoreUnavailable
    from benteng.gate import JobSpec
    from benteng.lifecycle import State
    from benteng.policy import Effect, Tier
    from benteng.raised import ErrorClass, Permanent, Retry, Snooze, Suspicious
    from benteng.receipt import NotCompleted, Receipt
    from benteng.verdict import ADMIT, Divert, Hold, Refuse, Verdict

_HOME = {
    "aio": ("AsyncReceipt",),
    "app": ("Benteng",),
    "context": ("Context",),
    "contract": (
        "Artifact",
        "Audited",
        "Contract",
        "HostName",
        "Kind",
        "Money",
        "Sha256",
        "Slug",
        "Target",
        "TargetId",
        "Waive",
        "Window",
    ),
    "errors": ("BentengError", "Busy", "Conflict", "DefinitionError", "QueueFull", "Refused", "StoreUnavailable"),
    "gate": ("JobSpec",),
    "lifecycle": ("State",),
    "policy": ("Effect", "Tier"),
    "raised": ("ErrorClass", "Permanent", "Retry", "Snooze", "Suspicious"),
    "receipt": ("NotCompleted", "Receipt"),
    "verdict": ("ADMIT", "Divert", "Hold", "Refuse", "Verdict"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "ADMIT",
    "Artifact",
    "AsyncReceipt",
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
    "JobSpec",
    "Kind",
    "Money",
    "NotCompleted",
    "Permanent",
    "QueueFull",
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
    "TargetId",
    "Tier",
    "Verdict",
    "Waive",
    "Window",
]


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        msg = f"module 'benteng' has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(import_module(f"benteng.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
