from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from benteng.testing.bench import Bench
from benteng.testing.conformance.kills import picture, recover
from benteng.testing.faults import Nursery
from benteng.testing.invariants import check_ledger
from benteng.testing.ledger import MEDIUM
from benteng.testing.sqlite import SqliteLedger

STRACE = shutil.which("strace") or ""
SYSCALLS = "pwrite64,write,fdatasync,fsync,ftruncate,fcntl"
SYSCALLS_MAX = 400

CHILD = """
import sys
from benteng.testing.bench import Bench, settlement
from benteng.testing.ledger import MEDIUM
from benteng.testing.sqlite import SqliteLedger

ledger = SqliteLedger(sys.argv[1])
bench = Bench(ledger, types=())
sys.stdout.write("go")
sys.stdout.flush()  # from here on
bench.admit(*(bench.job(MEDIUM, operation=str(n), resources=("host:a",)) for n in range(3)))
while grants := bench.claim(2):
    bench.settle(*map(settlement, grants))
"""


def test_death_while_the_ledger_is_made(tmp_path):
    """Killed at any statement of the first opening, the next opening makes a whole ledger of what lies there."""
    k, fates = 0, []
    (tmp_path / "warm").mkdir()
    with Nursery() as nursery:
        nursery.run(SqliteLedger(tmp_path / "warm"), "cancel", [[], "warm up"], 0)  # so that no child has to import
        while not fates or fates[-1].killed:
            k += 1
            (tmp_path / str(k)).mkdir()
            ledger = SqliteLedger(tmp_path / str(k))
            fates.append(nursery.run(ledger, "open", [], k))
            bench = Bench(ledger)
            assert bench.started(MEDIUM, operation="a")
            check_ledger(ledger, bench.journal)
            ledger.close()

    assert len(fates) > 30


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.skipif(not STRACE, reason="strace is not installed: kills between system calls are not tested here")
def test_death_at_system_calls(tmp_path, ledger):
    """Killed at any write, sync or lock call of admit, claim and settle, every verb happened wholly or not at all."""
    Bench(ledger)
    template = ledger.copy()
    deaths = 0
    for n in range(1, SYSCALLS_MAX):
        victim = template.copy()
        ran = subprocess.run(
            [
                *(STRACE, "-f", "-qq", "-o", os.devnull, "-e", f"inject={SYSCALLS}:signal=SIGKILL:when={n}"),
                *(sys.executable, "-c", CHILD, str(victim.directory)),
            ],
            check=False,
            capture_output=True,
            timeout=60,
        )
        deaths += ran.returncode != 0
        jobs, *_ = picture(victim)
        assert len(jobs) in {0, 3}
        recover(victim)
        victim.close()
        if ran.returncode == 0:
            break

    assert deaths > 5
