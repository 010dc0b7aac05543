"""`benteng demo`: the seed's patch scenario with real processes and real signals, each claim checked from outside.

Nothing has to be running: ledger, keys, artifacts and workers live in a directory of their own that is removed at the
end. Importing this package imports nothing else, because workers find the demo's jobs below it.
"""

from __future__ import annotations

from pathlib import Path


def run(*, as_json: bool = False, keep: Path | None = None) -> int:
    """Play the demo; return 0 only if every expectation of every step held, else 1.

    as_json  print one document (`benteng.demo/1`) instead of a line a step
    keep     make the directory here and leave it; raises PolicyError when it exists
    """
    from benteng.ops.demo.play import play

    return play(as_json=as_json, keep=keep)
