"""Run tasks against one ledger at the same moment: in threads with connections of their own, or in real processes.

A task is a function of this module's `TASKS`: it opens its own facets, and its argument and answer are JSON. The same
task runs either way, so that a race is tested with and without shared memory.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from benteng.testing.ledger import Twin

READY_SECONDS = 30
Task = Callable[[Twin, Any], Any]


@dataclass(frozen=True, slots=True)
class Entry:
    """One runner of a race: the name of its task and its argument."""

    task: str
    argument: Any = None


def in_threads(ledger: Twin, tasks: dict[str, Task], entries: Sequence[Entry]) -> list[Any]:
    """Run all entries at once in threads of this process; return their answers in order. Raises what a task raised."""
    gate = threading.Barrier(len(entries))
    answers: list[Any] = [None] * len(entries)
    errors: list[BaseException] = []

    def run(place: int, entry: Entry) -> None:
        try:
            gate.wait(READY_SECONDS)
            answers[place] = tasks[entry.task](ledger, entry.argument)
        except BaseException as error:  # noqa: BLE001 - handed to the caller below
            errors.append(error)

    threads = [threading.Thread(target=run, args=place_and_entry) for place_and_entry in enumerate(entries)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return answers


def in_processes(ledger: Twin, module: str, entries: Sequence[Entry]) -> list[Any]:
    """Run all entries at once in processes of their own; `module` has the `TASKS`. Raises RuntimeError."""
    runners = [_spawn(ledger, module, entry) for entry in entries]
    try:
        for runner in runners:
            _expect(runner, "ready\n")
        for runner in runners:
            assert runner.stdin is not None
            runner.stdin.write("go\n")
            runner.stdin.flush()
        return [_answer(runner) for runner in runners]
    finally:
        for runner in runners:
            runner.kill()
            runner.communicate()


def _spawn(ledger: Twin, module: str, entry: Entry) -> subprocess.Popen[str]:
    request = msgspec.json.encode([*ledger.recipe, module, entry.task, entry.argument]).decode()
    return subprocess.Popen(
        [sys.executable, "-m", "benteng.testing.race", request],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _expect(runner: subprocess.Popen[str], line: str) -> None:
    assert runner.stdout is not None
    if runner.stdout.readline() != line:
        raise RuntimeError(runner.communicate()[1])


def _answer(runner: subprocess.Popen[str]) -> Any:
    out, err = runner.communicate()
    if runner.returncode:
        raise RuntimeError(err)
    return msgspec.json.decode(out)


def opened(recipe: str, address: str) -> Twin:
    """Open the ledger that a recipe names. Only for tests: it imports what it is told."""
    module, _, name = recipe.partition(":")
    ledger: Twin = getattr(importlib.import_module(module), name)(address)
    return ledger


def main(request: str) -> None:
    """Be one runner: say ready, wait for go, run the task, print its answer."""
    recipe, address, module, task, argument = msgspec.json.decode(request)
    run: Task = importlib.import_module(module).TASKS[task]
    ledger = opened(recipe, address)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    sys.stdout.write(msgspec.json.encode(run(ledger, argument)).decode())
    ledger.close()


if __name__ == "__main__":
    main(sys.argv[1])
