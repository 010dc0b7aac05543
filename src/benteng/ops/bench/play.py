"""Run what was asked for on a place of its own, and return the report."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence

from benteng.config import Config
from benteng.ops.bench import layers
from benteng.ops.bench.jobs import app
from benteng.ops.bench.phases import Phase, Runner, Size
from benteng.ops.bench.place import place
from benteng.ops.bench.report import Report
from benteng.policy import Tier

LAYER_JOBS_MAX = 1_000


def play(
    config: Config,
    tier: Tier,
    phases: Sequence[Phase],
    size: Size,
    concurrency: int,
    *,
    with_layers: bool,
    say: Callable[[str], None],
) -> Report:
    """Measure the phases, and with `with_layers` what each layer costs. Raises StoreError, StoreUnavailable, Fault."""
    with place(config, size.slots()) as made, contextlib.closing(app):
        with contextlib.redirect_stderr(io.StringIO()):  # what `dev` says of locking and applying
            app.gate  # noqa: B018 - it opens when it is first asked for
        report = Report(tier.value, made.ledger.name, made.ledger.settings())
        run = Runner(made, app, tier, concurrency, report, say)
        run.run(phases, size)
        if with_layers:
            report.costs = layers.measure(run, min(size.jobs, LAYER_JOBS_MAX))
    return report
