"""A producer and operator as the user that owns the ledger: one JSON request a line on stdin, one answer on stdout."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from pathlib import Path

from benteng import lockfile
from benteng.clock import system_clock
from benteng.gate import Gate, JobSpec
from benteng.keyring import generate, load_signing_key
from benteng.store.open import open_operator, open_producer
from benteng.worker.loading import load


def main() -> None:
    """Set the ledger up, then answer until stdin ends."""
    dsn, project, keys = sys.argv[1:4]
    registry = load("estate:app", [project])
    policies = registry.policies()
    lockfile.write(Path(project) / "benteng.lock", policies)
    with closing(open_operator(dsn)) as operator, closing(open_producer(dsn)) as producer:
        operator.apply_types(lockfile.to_rows(policies), "test")
        operator.allow_access("*", "*", "*", "test")
        generate(Path(keys), origin=producer.origin, now=system_clock())
        gate = Gate(producer, registry, policies, lambda: load_signing_key(Path(keys) / "producer.key"))
        print(json.dumps("up"), flush=True)
        for line in sys.stdin:
            asked = json.loads(line)
            if "type" in asked:
                answer = gate.enqueue(JobSpec(asked["type"], asked["payload"], actor="svc:test")).job_id
            else:
                status = producer.status([asked["job"]])[0]
                result = None if status.result is None else json.loads(status.result)
                answer = {"state": str(status.state), "reason": str(status.reason), "result": result}
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
