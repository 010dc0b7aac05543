"""The exit codes."""

from __future__ import annotations

import pytest

from benteng import errors
from benteng.ops.exits import MEANINGS, Exit, Fault, exit_of


def test_every_code_has_a_meaning():
    """Nobody has to guess what a code says."""
    assert set(Exit) == MEANINGS.keys()


@pytest.mark.parametrize(
    "error,code",
    [
        (errors.Refused("G-schema", "no"), Exit.REFUSED),
        (errors.Refused("C-halt", "no"), Exit.CLOSED),
        (errors.Refused("S-control", "no"), Exit.CLOSED),
        (errors.Conflict("S-conflict", "no"), Exit.CONFLICT),
        (errors.QueueFull("S-depth", "no"), Exit.UNAVAILABLE),
        (errors.Malformed("P-type", "no"), Exit.REFUSED),
        (errors.EnvelopeError("E-key", "no"), Exit.REFUSED),
        (errors.NeedsAction("no"), Exit.NEEDS_ACTION),
        (errors.PolicyError("L-stale", "no"), Exit.CONFIG),
        (errors.DefinitionError("D-names", "no"), Exit.CONFIG),
        (errors.KeyringError("no"), Exit.CONFIG),
        (errors.StoreUnavailable("no"), Exit.UNAVAILABLE),
        (errors.StoreDamaged("no"), Exit.DAMAGED),
        (errors.Busy("no"), Exit.UNAVAILABLE),
        (FileNotFoundError("no"), Exit.IO),
        (KeyboardInterrupt(), Exit.INTERRUPTED),
        (ZeroDivisionError("no"), Exit.INTERNAL),
        (Fault(Exit.NOT_FOUND, "no"), Exit.NOT_FOUND),
    ],
    ids=lambda value: value.name if isinstance(value, Exit) else getattr(value, "rule", type(value).__name__),
)
def test_each_error_has_its_code(error, code):
    """Scripts can tell a refusal from a trouble of the environment."""
    assert code is exit_of(error)
