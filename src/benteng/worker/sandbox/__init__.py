"""What a cell is shut in with. One flavour a module, each with two functions: `probe()` and `enter(spec)`.

`null` does nothing and says so; `basic` is what every Linux has for an ordinary user. Stronger flavours are added
beside them with the same two functions (openssh, sandbox-*.c).
"""

from __future__ import annotations

from dataclasses import dataclass

from benteng.policy import Limits


@dataclass(frozen=True, slots=True)
class Spec:
    """What to shut in.

    parent     pid of the zygote: if that is not the parent any more, the process ends
    keep       the descriptor that stays open
    limits     the hard bounds;  width: how many attempts share them
    scratch    the only place that is meant to be written
    """

    parent: int
    keep: int
    limits: Limits
    width: int
    scratch: str
