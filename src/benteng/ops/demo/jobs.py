"""The demo's application: contracts and handlers as a user would write them. Workers import it as a user's module.

Each handler acts on the outside world (world.py) and notes what it did with its fence.
"""

from __future__ import annotations

import os
import signal
from typing import Annotated, Literal

from benteng.app import Benteng
from benteng.context import Context
from benteng.contract import Artifact, Audited, Contract, Kind, Slug, TargetId
from benteng.ops.demo.world import World
from benteng.policy import Effect, Tier
from benteng.raised import Permanent

POOL = "demo"
LEASE_SECONDS = 2.0
BACKOFF_SECONDS_MIN = 0.8
"""Longer than a keeper's longest pause, so that a pause between two tries is the backoff's doing."""
FEED_ATTEMPTS = 3
CRASHES_MAX = 2

app = Benteng()

Host = Annotated[TargetId, Kind("host"), Audited()]


class PatchApply(Contract):
    """Put an approved artifact on a host."""

    host: Host
    artifact: Artifact
    mode: Literal["rolling", "at-once"] = "rolling"


class HostRestart(Contract):
    """Restart the service of a host, once for each ticket."""

    host: Host
    ticket: Slug


class InvoiceCharge(Contract):
    """Charge one invoice."""

    invoice: Slug


class AccessGrant(Contract):
    """Put a person into a group."""

    user: Slug
    group: Slug


@app.job(
    "patch.apply@1",
    tier=Tier.HIGH,
    effect=Effect.ONCE,
    pool=POOL,
    operation=("host", "artifact.sha256"),
    resources=("host",),
)
def apply_patch(payload: PatchApply, ctx: Context) -> dict[str, str]:
    """Write the verified copy of the artifact to the host."""
    content = ctx.artifact(payload.artifact).read_bytes()
    world = World.of_environment()
    world.write_host(payload.host, content, ctx.fence)
    world.note("patch.apply", payload.host, "applied", fence=ctx.fence, attempt=ctx.attempt)
    return {"host": payload.host, "artifact": payload.artifact.id}


@app.job(
    "host.restart@1",
    tier=Tier.MEDIUM,
    effect=Effect.REPEATABLE,
    pool=POOL,
    operation=("host", "ticket"),
    resources=("host",),
    lease_seconds=LEASE_SECONDS,
    run_seconds_max=60,
    backoff_seconds_min=0.05,
    backoff_seconds_max=0.2,
)
def restart_host(payload: HostRestart, ctx: Context) -> None:
    """Work on the host for as long as the ticket's gate is closed; then write, if the host accepts the fence."""
    world = World.of_environment()
    world.note("host.restart", payload.ticket, "begin", fence=ctx.fence, attempt=ctx.attempt)
    world.pass_gate(payload.ticket)
    world.write_host(payload.host, f"restarted by {payload.ticket}".encode(), ctx.fence)
    world.note("host.restart", payload.ticket, "end", fence=ctx.fence, attempt=ctx.attempt)


@app.job(
    pool=POOL,
    attempts_max=5,
    backoff_seconds_min=BACKOFF_SECONDS_MIN,
    backoff_seconds_base=BACKOFF_SECONDS_MIN,
    backoff_seconds_max=1.25 * BACKOFF_SECONDS_MIN,
)
def pull_feed(feed: Slug, ctx: Context) -> None:
    """Fail twice as a network does, with a URL in the message that holds a password."""
    world = World.of_environment()
    visible = ",".join(sorted(name for name in os.environ if name.startswith(("BENTENG", "DEMO"))))
    world.note("pull_feed", feed, "begin", fence=ctx.fence, attempt=ctx.attempt, detail=visible)
    if ctx.attempt < FEED_ATTEMPTS:
        url = (world.root / "feed.url").read_text()
        msg = f"cannot reach {url}"
        raise ConnectionError(msg)


@app.job(pool=POOL, attempts_max=5, crashes_max=CRASHES_MAX, backoff_seconds_min=0.05, backoff_seconds_max=0.1)
def scan_image(image: Slug, ctx: Context) -> None:
    """Look at an image; the one called poison kills whoever looks."""
    world = World.of_environment()
    world.note("scan_image", image, "begin", fence=ctx.fence, attempt=ctx.attempt)
    if image == "poison":
        os.kill(os.getpid(), signal.SIGKILL)
    world.note("scan_image", image, "end", fence=ctx.fence, attempt=ctx.attempt)


@app.job(
    "invoice.charge@1",
    tier=Tier.MEDIUM,
    effect=Effect.ONCE,
    pool=POOL,
    operation=("invoice",),
    resources=None,
    lease_seconds=LEASE_SECONDS,
    run_seconds_max=60,
)
def charge_invoice(payload: InvoiceCharge, ctx: Context) -> None:
    """Charge, and then take long to say so."""
    world = World.of_environment()
    world.note("invoice.charge", payload.invoice, "charged", fence=ctx.fence, attempt=ctx.attempt)
    world.pass_gate(payload.invoice)


@app.job(
    "access.grant@1",
    tier=Tier.MEDIUM,
    effect=Effect.REPEATABLE,
    pool=POOL,
    operation=("user", "group"),
    resources=None,
)
def grant_access(payload: AccessGrant, ctx: Context) -> None:
    """Add the user to the group; a group that does not exist is no passing trouble."""
    world = World.of_environment()
    group = world.group(payload.group)
    if not group.exists():
        raise Permanent("the group does not exist")
    group.write_text(payload.user)
    world.note("access.grant", f"{payload.user}:{payload.group}", "granted", fence=ctx.fence, attempt=ctx.attempt)
