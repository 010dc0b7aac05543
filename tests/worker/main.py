"""A worker process for the tests: settings as a line of JSON on stdin, events as lines of JSON on stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benteng import lockfile
from benteng.secret import Source
from benteng.store.records import Settlement, Turn
from benteng.store.sqlite.consumer import SqliteConsumer
from benteng.worker.launch import WorkerSettings, run_worker
from benteng.worker.pool import Pool, Start


def say(event: str, /, **fields: object) -> None:
    """Tell the test."""
    print(json.dumps({"event": event} | {name: str(value) for name, value in fields.items()}), flush=True)


def tell_turns() -> None:
    """Tell the test of each time that the ledger is asked for work."""
    turn = SqliteConsumer.turn

    def told(store: SqliteConsumer, settlements: Sequence[Settlement], n: int, accepts: Sequence[str]) -> Turn:
        say("turn", settled=len(settlements), room=n)
        return turn(store, settlements, n, accepts)

    SqliteConsumer.turn = told  # type: ignore[method-assign]


def main() -> int:
    """Run the worker."""
    wanted = json.loads(sys.stdin.readline())
    if wanted["tell_turns"]:
        tell_turns()
    pool = wanted.pop("pool")
    settings = WorkerSettings(
        dsn=wanted["dsn"],
        app=wanted["app"],
        lock=lockfile.read(Path(wanted["lock"])),
        pool=Pool(
            **pool
            | {
                "start": Start(pool.get("start", "fork")),
                "types": tuple(pool.get("types", ())),
                "env": tuple(pool.get("env", ())),
                "secrets": {name: Source(**each) for name, each in pool.get("secrets", {}).items()},
                "read": tuple(pool.get("read", ())),
                "write": tuple(pool.get("write", ())),
                "exec": tuple(pool.get("exec", ())),
                "egress": tuple(pool.get("egress", ())),
                "waive": frozenset(pool.get("waive", ())),
            }
        ),
        cell=wanted["cell"],
        keeper=wanted["keeper"],
        artifact_dir=Path(wanted["artifacts"]),
        trust_path=Path(wanted["trust"]),
        cwd=Path(wanted["cwd"]),
        scratch_parent=Path(wanted["scratch"]),
        poll_seconds=0.05,
        give_up_seconds=wanted["give_up_seconds"],
        say=say,
    )
    return run_worker(settings)


if __name__ == "__main__":
    sys.exit(main())
