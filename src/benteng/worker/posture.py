"""What a worker can really do where it runs to hold its cells, as one text for the tamper-evident log.

Layers tried for real, waivers written out, the pool's settings, digests of the policies. Bounded: lists of the settings
that do not fit stand there as their number and digest, what holds the cells and what is waived is never shortened. It
holds no value of a variable and no address of a store.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from typing import Any

import msgspec

from benteng.audit import SUMMARY_BYTES_MAX
from benteng.policy import Tier, TypePolicy
from benteng.worker import isolation
from benteng.worker.isolation import Site
from benteng.worker.sandbox import landlock


def text(site: Site, policies: Mapping[str, TypePolicy], held: frozenset[str]) -> str:
    """Return what holds the cells of a worker as JSON in ASCII, of at most SUMMARY_BYTES_MAX bytes.

    policies: of its types;  held: the layers that hold on this host.
    """
    said = document(site, policies, held)
    whole = _encoded(said)
    if len(whole) <= SUMMARY_BYTES_MAX:
        return whole
    return _encoded(said | {"settings": {name: _shortened(each) for name, each in said["settings"].items()}})


def document(site: Site, policies: Mapping[str, TypePolicy], held: frozenset[str]) -> dict[str, Any]:
    """Return what holds the cells of a worker as plain values."""
    settings = msgspec.json.decode(msgspec.json.encode(site.pool, order="sorted"), type=dict[str, Any])
    return {
        "environment": "dev" if site.dev else "prod",
        "host": _host(),
        "policies": {"count": len(policies), "sha256": _digest({name: each.sha256 for name, each in policies.items()})},
        "tiers": {tier.value: _tier(site, tier, held) for tier in sorted(site.tiers, key=lambda tier: tier.rank)},
        "waive": settings.pop("waive"),
        "settings": settings,
    }


def _tier(site: Site, tier: Tier, held: frozenset[str]) -> dict[str, object]:
    found = isolation.report(site.pool, tier, held)
    return {"in_force": list(found.in_force), "missing": list(found.missing)}


def _host() -> dict[str, object]:
    return {
        "kernel": os.uname().release,
        "landlock": landlock.abi(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "root": os.getuid() == 0,
    }


def _shortened(value: Any) -> Any:
    return {"count": len(value), "sha256": _digest(value)} if type(value) in (list, dict) and value else value


def _digest(value: object) -> str:
    return hashlib.sha256(_encoded(value).encode()).hexdigest()


def _encoded(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
