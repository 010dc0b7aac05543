"""The secrets of a pool: read for each attempt of a type that names them, and which types must wait for theirs.

A worker whose secrets are missing does not start. When one goes missing later, no attempt starts without it: its type
is left alone until every secret of it can be read again.
Trust: see secret.py. What is said names secrets, and never shows a value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from benteng import secret
from benteng.errors import PolicyError
from benteng.outcome import Unstarted
from benteng.policy import TypePolicy
from benteng.redact import Scrubber
from benteng.secret import Source
from benteng.worker.flights import Flight
from benteng.worker.say import Say

PAUSE_SECONDS = 2.0


class Vault:
    """What this host may hand to cells of one pool."""

    def __init__(self, sources: Mapping[str, Source], environ: Mapping[str, str], say: Say) -> None:
        self._sources = sources
        self._environ = environ
        self._say = say
        self._resting: dict[str, float] = {}

    def check(self, policies: Iterable[TypePolicy]) -> None:
        """Raise PolicyError for the first secret that cannot be had."""
        for policy in policies:
            self._values(policy)

    def takes(self, policy: TypePolicy, now: float) -> bool:
        """Whether attempts of a type may be claimed: every secret was there when it was last asked for."""
        until = self._resting.get(policy.name)
        if until is None:
            return True
        if now < until:
            return False
        try:
            self._values(policy)
        except PolicyError:
            self._resting[policy.name] = now + PAUSE_SECONDS
            return False
        del self._resting[policy.name]
        self._say("secret_back", type=policy.name)
        return True

    def equip(self, flight: Flight, now: float) -> None:
        """Give an attempt its secrets. One that is missing ends it unstarted, and lets its type rest."""
        if not flight.policy.secrets:
            return
        try:
            flight.secrets = self._values(flight.policy)
        except PolicyError as error:
            flight.outcome = Unstarted(str(error))
            self._resting[flight.policy.name] = now + PAUSE_SECONDS
            self._say("secret_missing", type=flight.policy.name, why=str(error))
            return
        flight.scrubber = Scrubber(flight.secrets.values())

    def _values(self, policy: TypePolicy) -> dict[str, str]:
        return {name: secret.read(name, self._sources.get(name), self._environ) for name in policy.secrets}
