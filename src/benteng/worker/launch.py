"""Start a worker from its settings: check what must hold, open the store, start the keeper, run the supervisor.

This is what `benteng worker` calls. It never imports the app: that happens in the zygote, which hears nothing of the
store.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from random import SystemRandom

from benteng import clock
from benteng.errors import KeyringError, PolicyError, StoreError, StoreUnavailable
from benteng.keyring import TrustRoots, load_trust
from benteng.policy import TypePolicy, pending_for
from benteng.redact import clean_line
from benteng.store.open import open_consumer, path_of
from benteng.store.records import WorkerFacts
from benteng.worker import wire
from benteng.worker.judgement import Judge, Settler
from benteng.worker.nursery import Nest, Nursery
from benteng.worker.pool import Pool
from benteng.worker.program import program
from benteng.worker.sandbox import system
from benteng.worker.scratch import Scratch
from benteng.worker.supervisor import INTERNAL, REFUSED, UNAVAILABLE, Plan, Supervisor
from benteng.worker.yard import Means, Say

VERSION = "0.1.0"


def say_to_stderr(event: str, /, **fields: object) -> None:
    """Tell an event as one line of text on stderr."""
    shown = " ".join(f"{name}={clean_line(str(value))}" for name, value in fields.items() if value not in {"", None})
    print(f"{event} {shown}".rstrip(), file=sys.stderr, flush=True)  # noqa: T201 - talk goes to stderr


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Everything that a worker is started with; nothing is read from anywhere else.

    dsn              the store's address;  environment: dev or prod
    app              `module:attribute` of the Benteng object;  cwd: where it is imported, first on its sys.path
    lock             the reviewed policies of this host, all of them
    keeper           whether to start a keeper as child of this process
    trust_path       trust roots for signed jobs; None: nobody is trusted
    artifact_dir     directory of artifact files named by their sha256; None: no artifacts
    paths            more directories for the app's sys.path
    scratch_parent   where the worker's scratch root is made; None: the host's directory for temporary files
    poll_seconds     how long an empty queue is left alone
    give_up_seconds  exit with 75 after the store was away for so long; None: never
    """

    dsn: str
    app: str
    lock: Mapping[str, TypePolicy]
    pool: Pool = field(default_factory=Pool)
    environment: str = "dev"
    keeper: bool = True
    trust_path: Path | None = None
    artifact_dir: Path | None = None
    cwd: Path = field(default_factory=Path.cwd)
    paths: tuple[Path, ...] = ()
    scratch_parent: Path | None = None
    poll_seconds: float = 0.5
    give_up_seconds: float | None = None
    say: Say = say_to_stderr

    @property
    def types(self) -> dict[str, TypePolicy]:
        """The types of the pool."""
        return {name: policy for name, policy in self.lock.items() if policy.pool == self.pool.name}


def run_worker(settings: WorkerSettings) -> int:
    """Work until SIGTERM or SIGINT; return the exit code: 0, 70 internal, 75 store away, 78 refused."""
    try:
        return _run(settings)
    except (PolicyError, KeyringError) as error:
        settings.say("refused", rule=getattr(error, "rule", ""), why=clean_line(str(error)))
        return REFUSED
    except StoreUnavailable as error:
        settings.say("store_away", why=clean_line(str(error)))
        return UNAVAILABLE
    except StoreError as error:
        settings.say("store_damaged", why=clean_line(str(error)))
        return INTERNAL


def read_policies(settings: WorkerSettings) -> dict[str, TypePolicy]:
    """Return the policies of the app as its code defines them, imported in a zygote and never in this process.

    For `benteng policy lock` and for dev mode, where lock and apply happen by themselves. Raises PolicyError.
    """
    with tempfile.TemporaryDirectory(prefix="benteng-") as home, closing(_Asked(_nest(settings, home))) as asked:
        return asked.policies(settings.pool.import_seconds)


def _run(settings: WorkerSettings) -> int:
    check(settings)
    system.adopt_orphans()
    with ExitStack() as stack:
        store = stack.enter_context(
            closing(open_consumer(settings.dsn, settings.pool.name, environment=settings.environment))
        )
        scratch = Scratch(settings.scratch_parent, _owner(settings.pool))
        keep = frozenset({_start_keeper(settings, stack)} if settings.keeper else ())
        rng = SystemRandom()
        means = Means(_nest(settings, str(scratch.root)), settings.lock, os.environ, scratch, rng, settings.say)
        trust = TrustRoots({}) if settings.trust_path is None else load_trust(settings.trust_path)
        judge, settler = Judge(settings.lock, trust), Settler(settings.lock, rng)
        return Supervisor(_plan(settings, keep), store, judge, settler, means).run()


def check(settings: WorkerSettings) -> None:
    """Raise PolicyError for settings with which no worker starts."""
    if not settings.types:
        fix = "name another pool, or run: benteng policy lock"
        raise PolicyError("W-pool", f"the lock file has no job type for pool {settings.pool.name}", fix=fix)
    _check_roots(settings)
    _check_environment(settings)
    _check_pending(settings)
    if os.getuid() == 0 and settings.pool.uid is None:
        text = "the worker runs as root: handlers can read the store. Set uid and gid of the pool, or use another user"
        settings.say("warning", rule="W-root", why=text)


def _check_roots(settings: WorkerSettings) -> None:
    """A cell may read these directories; the store's file must not be below one (DESIGN section 2)."""
    store = path_of(settings.dsn).resolve()
    roots = [settings.cwd, *settings.paths, settings.artifact_dir, settings.scratch_parent]
    for root in roots:
        if root is not None and store.is_relative_to(root.resolve()):
            fix = "move the store, for example to the default place in the state directory"
            raise PolicyError("W-roots", "the store's file lies in a directory that cells may read", fix=fix)


def _check_environment(settings: WorkerSettings) -> None:
    place = str(path_of(settings.dsn))
    for name, value in settings.pool.environment(os.environ).items():
        if settings.dsn in value or place in value:
            raise PolicyError("W-env", f"the variable {name} names the store", fix="take it out of the pool's env")


def _check_pending(settings: WorkerSettings) -> None:
    """In dev say what is not enforced yet, in prod refuse it."""
    for tier in sorted({policy.tier for policy in settings.types.values()}, key=lambda tier: tier.rank):
        missing = pending_for(tier)
        names = ", ".join(row.floor for row in missing)
        if missing and settings.environment != "dev":
            fix = 'use environment = "dev" to try it, or tier LOW'
            raise PolicyError(
                f"P-{missing[0].floor}", f"{tier} jobs need what this version does not have: {names}", fix=fix
            )
        if missing:
            settings.say("warning", rule="P-pending", why=f"{tier}: not enforced yet: {names}")


def _start_keeper(settings: WorkerSettings, stack: ExitStack) -> int:
    """Start a keeper that ends with this process: the pipe that brings it the store's address stays open until then."""
    process = subprocess.Popen(program("benteng.keeper.loop:main"), stdin=subprocess.PIPE, cwd="/")
    stack.callback(_end, process)
    if process.stdin is not None:
        process.stdin.write(json.dumps({"dsn": settings.dsn, "environment": settings.environment}).encode() + b"\n")
        process.stdin.flush()
    settings.say("keeper_started", pid=process.pid)
    return process.pid


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(1.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(5)


def _nest(settings: WorkerSettings, home: str) -> Nest:
    paths = tuple(str(path.resolve()) for path in (settings.cwd, *settings.paths))
    artifacts = "" if settings.artifact_dir is None else str(settings.artifact_dir.resolve())
    return Nest(settings.pool, settings.app, paths, paths[0], home, artifacts)


def _owner(pool: Pool) -> tuple[int, int] | None:
    return (pool.uid, pool.gid) if pool.uid is not None and pool.gid is not None and os.getuid() == 0 else None


def _plan(settings: WorkerSettings, keep: frozenset[int]) -> Plan:
    return Plan(
        pool=settings.pool,
        policies=settings.lock,
        facts=facts_of(settings),
        poll_seconds=settings.poll_seconds,
        give_up_seconds=settings.give_up_seconds,
        keep=keep,
    )


def facts_of(settings: WorkerSettings) -> WorkerFacts:
    """Return who this worker is: host, boot, process and its start; not a name that it chose (cases.md C11)."""
    host, pid = socket.gethostname(), os.getpid()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    started = Path("/proc/self/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[19]
    return WorkerFacts(
        worker=f"{host}/{boot[:8]}/{pid}/{started}",
        pool=settings.pool.name,
        host=host,
        boot_id=boot,
        pid=pid,
        version=VERSION,
        types={name: policy.sha256 for name, policy in settings.types.items()},
    )


class _Asked:
    """A zygote that is only asked what it imported."""

    def __init__(self, nest: Nest) -> None:
        self._nursery = Nursery(nest, os.environ)
        self._line = self._nursery.start()

    def policies(self, seconds: float) -> dict[str, TypePolicy]:
        """Return what it reports. Raises PolicyError."""
        until = clock.boot_seconds() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self._line, selectors.EVENT_READ)
            while selector.select(max(0.0, until - clock.boot_seconds())):
                found = self._heard()
                if found is not None:
                    return found
        raise PolicyError("W-import", f"importing the app took longer than {seconds:g} s")

    def _heard(self) -> dict[str, TypePolicy] | None:
        try:
            for message, tail in self._nursery.receive():
                if isinstance(message, wire.Refuse):
                    raise PolicyError(message.rule, clean_line(message.text))
                return self._nursery.ready(tail)
        except BlockingIOError:
            return None
        except (EOFError, ConnectionError, wire.ProtocolError):
            raise PolicyError("W-import", "importing the app ended the process") from None
        return None

    def close(self) -> None:
        """End it."""
        self._nursery.stop()


__all__ = ["WorkerSettings", "facts_of", "read_policies", "run_worker", "say_to_stderr"]
