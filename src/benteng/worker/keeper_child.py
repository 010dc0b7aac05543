"""A keeper as child of a worker: started with it, started again when it ends, ended with it.

It gets the store's address through a pipe, because arguments and environment are readable for others; the pipe stays
open, so that it also ends when this process is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess

from benteng.worker.program import program
from benteng.worker.say import Say

RESTART_SECONDS = 1.0
RESTART_SECONDS_MAX = 30.0
END_SECONDS = 1.0


class KeeperChild:
    """One keeper process at a time."""

    def __init__(self, dsn: str, environment: str, say: Say, withheld: frozenset[str] = frozenset()) -> None:
        """Start it. It gets this process's variables, but for those withheld: secrets of jobs are not its business."""
        self._settings = json.dumps({"dsn": dsn, "environment": environment}).encode() + b"\n"
        self._say = say
        self._environ = {name: value for name, value in os.environ.items() if name not in withheld}
        self._failures = 0
        self._again_at = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._start()

    def tend(self, now: float) -> frozenset[int]:
        """Start it again when it ended, not more often than its failures allow; return its pid."""
        if self._process is not None and self._process.poll() is not None:
            self._say("keeper_ended", pid=self._process.pid, status=self._process.returncode)
            self._hang_up()
            self._again_at = now + min(RESTART_SECONDS * 2**self._failures, RESTART_SECONDS_MAX)
            self._failures = min(self._failures + 1, 16)
        if self._process is None and now >= self._again_at:
            self._start()
        return frozenset() if self._process is None else frozenset({self._process.pid})

    def close(self) -> None:
        """End it: by hanging up, then by force."""
        process = self._process
        if process is None:
            return
        self._hang_up()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            program("benteng.keeper.loop:main", hidden=True), stdin=subprocess.PIPE, cwd="/", env=self._environ
        )
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(self._settings)
                self._process.stdin.flush()
        self._say("keeper_started", pid=self._process.pid)

    def _hang_up(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
