"""How much a ledger may lose of what it acknowledged; and the refusal of one that may lose more than was demanded.

The one place where a demand meets a class: both stores ask it, on the connection that will carry the jobs.
"""

from __future__ import annotations

from enum import StrEnum

from benteng.errors import PolicyError


class Durability(StrEnum):
    """What survives (DESIGN section 9). D0: nothing surely. D1: a crash of the node. D2: the loss of its disk too."""

    D0 = "D0"
    D1 = "D1"
    D2 = "D2"


def refuse_weaker(has: Durability, wanted: Durability) -> None:
    """Raise PolicyError (S-durability) when a ledger is of a lower class than is demanded."""
    if has < wanted:
        fix = "see benteng doctor for what weakens it; or demand less: durability in benteng.toml or of enqueue"
        raise PolicyError("S-durability", f"the ledger is of class {has}, and {wanted} is demanded", fix=fix)


__all__ = ["Durability", "refuse_weaker"]
