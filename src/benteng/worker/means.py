"""What the processes of a pool are made with. Randomness is an argument; time is given with each call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from benteng.policy import TypePolicy
from benteng.worker.asked import Connect
from benteng.worker.hatchery import Hatchery
from benteng.worker.nursery import Nest
from benteng.worker.say import Say


@dataclass(frozen=True, slots=True)
class Means:
    """What a yard and its crew work with.

    broker: opens the line to an egress broker that our launcher started; None: who makes the zygote starts it.
    """

    nest: Nest
    policies: Mapping[str, TypePolicy]
    hatchery: Hatchery
    rng: Random
    say: Say
    broker: Connect | None = None
