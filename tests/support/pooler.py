"""pgbouncer in transaction mode before a test server: one pool for each login and database, as in production.

From the PATH, else from the Debian package when root may install it. It does not run as root.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.servers import PostgresServer, address

READY_SECONDS = 20.0
SETTINGS = """\
[databases]
* = host={home} port={port}
[pgbouncer]
listen_addr =
listen_port = {listen}
unix_socket_dir = {directory}
auth_type = trust
auth_file = {directory}/users
pool_mode = transaction
default_pool_size = 3
max_client_conn = 200
server_idle_timeout = 2
logfile = {directory}/log
pidfile = {directory}/pid
"""


def why_no_pooler() -> str:
    """Say why there is no pgbouncer, or "" when there is one; install it where that is possible."""
    if _found() is None and os.geteuid() == 0 and shutil.which("apt-get"):
        command = ["apt-get", "install", "-y", "-q", "--no-install-recommends", "pgbouncer"]
        subprocess.run(command, check=False, capture_output=True, timeout=90, env={**os.environ, "RUNLEVEL": "1"})
    return "" if _found() else "no pgbouncer: install the package pgbouncer"


def _found() -> str | None:
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


class Pooler:
    """A pgbouncer for the logins that are named. Use as a context manager."""

    def __init__(self, server: PostgresServer, users: list[str]) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="benteng-pooler-"))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        (self.directory / "users").write_text("".join(f'"{user}" ""\n' for user in users))
        settings = SETTINGS.format(home=server.home, port=server.port, listen=self.port, directory=self.directory)
        (self.directory / "ini").write_text(settings)
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        user: dict[str, Any] = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            for path in (self.directory, *self.directory.iterdir()):
                os.chown(path, nobody.pw_uid, nobody.pw_gid)
        command = [_found() or "pgbouncer", "-q", str(self.directory / "ini")]
        return subprocess.Popen[bytes](command, start_new_session=True, cwd="/", stderr=subprocess.DEVNULL, **user)

    def dsn(self, user: str, dbname: str) -> str:
        """Return the address of a database through it."""
        return address(user, dbname, host=str(self.directory), port=self.port)

    def __enter__(self) -> Self:
        until = time.monotonic() + READY_SECONDS
        while not (self.directory / f".s.PGSQL.{self.port}").exists():
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"pgbouncer did not start: {self._said()}")
            time.sleep(0.02)  # it tells nobody when it is ready
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)
        self._process.wait(20)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _said(self) -> str:
        log = self.directory / "log"
        return log.read_text(errors="replace")[-2000:] if log.exists() else "nothing"
