"""Start a worker from its settings: check what must hold, open the store, start the keeper, run the supervisor.

This is what `benteng worker` calls. It never imports the app: that happens in the zygote, which hears nothing of the
store.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from random import SystemRandom
from tempfile import gettempdir

from benteng.errors import BentengError, KeyringError, PolicyError, StoreError, StoreUnavailable
from benteng.keyring import TrustRoots, load_trust
from benteng.policy import Tier, TypePolicy, missing_for
from benteng.redact import clean_line
from benteng.store.contract import StepwiseConsumer
from benteng.store.open import credential_files, credential_words, is_postgres, open_consumer
from benteng.store.records import WorkerFacts, WorkerRefusal
from benteng.worker import isolation, posture
from benteng.worker.asked import Asked, WardenAwayError, connecting
from benteng.worker.hatchery import Own
from benteng.worker.judgement import Judge, Settler
from benteng.worker.keeper_child import KeeperChild
from benteng.worker.means import Means
from benteng.worker.nursery import Nest
from benteng.worker.pool import Pool
from benteng.worker.sandbox import roots, system
from benteng.worker.sandbox.covers import free_to_cover
from benteng.worker.sandbox.programs import Programs, resolve
from benteng.worker.say import Say
from benteng.worker.scratch import Scratch
from benteng.worker.supervisor import INTERNAL, REFUSED, UNAVAILABLE, Plan, Supervisor, Tend
from benteng.worker.vault import Vault

VERSION = "0.1.0"
WARDEN_SECONDS = 30.0
"""How long a worker waits at its start for the warden of its cells; then it ends with 75."""
PATIENCE_SECONDS_MIN = 1.0
"""The store may take so long to answer, also under leases that are shorter than six of these: their cells' guards do
not depend on it."""

GARBAGE_MIN = 20_000
"""So many objects more than were freed start a search for garbage; Python's own 700 are no two turns of 200 jobs."""


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
    cell             where the warden of zygote and cells is: unix:/path, or fd:N that was inherited; empty: none
    broker           the line to an egress broker that our launcher started: fd:N; empty: who makes the zygote does
    keeper           whether to start a keeper as child of this process; on PostgreSQL it is a service of its own
    trust_path       trust roots for signed jobs; None: nobody is trusted
    artifact_dir     directory of artifact files named by their sha256; None: no artifacts
    paths            more directories for the app's sys.path
    scratch_parent   where the worker's scratch root is made; None: the host's directory for temporary files
    poll_seconds     how long an empty queue is left alone
    give_up_seconds  exit with 75 after the store was away for so long; None: never
    ready            called when the worker claims jobs for the first time
    rests            called each time before the worker waits: what `say` has gathered can be written then
    """

    dsn: str
    app: str
    lock: Mapping[str, TypePolicy]
    pool: Pool = field(default_factory=Pool)
    cell: str = ""
    broker: str = ""
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
    ready: Callable[[], None] = lambda: None
    rests: Callable[[], None] = lambda: None

    @property
    def types(self) -> dict[str, TypePolicy]:
        """The types of the pool."""
        return self.pool.own(self.lock)


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
    except WardenAwayError as error:
        settings.say("warden_away", why=clean_line(str(error)))
        return UNAVAILABLE
    except StoreError as error:
        settings.say("store_damaged", why=clean_line(str(error)))
        return INTERNAL


def _run(settings: WorkerSettings) -> int:
    system.hide()
    with ExitStack() as stack:
        asked = Asked(connecting(settings.cell), settings.pool.env, settings.pool.uid) if settings.cell else None
        if asked is not None:
            stack.callback(asked.close)
        held = _examined(settings, asked)
        system.adopt_orphans()
        store = stack.enter_context(closing(_consumer(settings)))
        hatchery = asked or _own(settings)
        tend = _keeper(settings, stack)
        rng = SystemRandom()
        broker = connecting(settings.broker) if settings.broker else None
        means = Means(nest_of(settings, held), settings.lock, hatchery, rng, settings.say, broker)
        trust = TrustRoots({}) if settings.trust_path is None else load_trust(settings.trust_path)
        judge, settler = Judge(settings.lock, trust), Settler(settings.lock, rng)
        supervisor = Supervisor(_plan(settings, tend, held), store, judge, settler, means)
        _seldom_collect()
        return supervisor.run()


def _seldom_collect() -> None:
    """Leave what stays out of every search for garbage, and search seldom: the loop makes hardly any cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_MIN)


def _examined(settings: WorkerSettings, asked: Asked | None) -> frozenset[str]:
    """Return the layers that hold where the cells are. A refusal is recorded where the ledger lets it, and raised."""
    elsewhere = None
    try:
        if asked is not None:
            _check_warden(settings)
            elsewhere = asked.holds(WARDEN_SECONDS)
        return check(settings, elsewhere)
    except PolicyError as error:
        if settings.types:
            _record(settings, WorkerRefusal(error.rule, clean_line(error.reason)), elsewhere)
        raise


def _record(settings: WorkerSettings, refusal: WorkerRefusal, elsewhere: frozenset[str] | None) -> None:
    """Write a refusal into the log. A ledger that is not there yet is not made for it."""
    if not is_postgres(settings.dsn) and not all(path.exists() for path in credential_files(settings.dsn)):
        return
    contained = any(policy.tier is not Tier.LOW for policy in settings.types.values())
    try:
        held = isolation.held(settings.pool, contained=contained) if elsewhere is None else elsewhere
        with closing(_consumer(settings)) as store:
            store.register(facts_of(settings, held), refusal)
    except BentengError as error:
        settings.say("warning", rule="W-unrecorded", why=f"the log does not have it: {clean_line(str(error))}")


def _consumer(settings: WorkerSettings) -> StepwiseConsumer:
    """Open the store. A call that is asked again after a lost answer must not outlive a third of a lease."""
    beat = min(policy.limits.lease_seconds for policy in settings.types.values()) / 3
    patience = max(PATIENCE_SECONDS_MIN, beat / 2)
    return open_consumer(settings.dsn, settings.pool.name, environment=settings.environment, patience_seconds=patience)


def check(settings: WorkerSettings, elsewhere: frozenset[str] | None = None) -> frozenset[str]:
    """Return the layers that hold where the cells are. Raises PolicyError for settings with which no worker starts.

    `elsewhere`: the layers that a warden's host has; None: the cells are made here.
    """
    _check_types(settings)
    if not settings.types:
        fix = "name another pool, or run: benteng policy lock"
        raise PolicyError("W-pool", f"the lock file has no job type for pool {settings.pool.name}", fix=fix)
    _check_roots(settings)
    _check_environment(settings)
    _check_pending(settings)
    _vault(settings).check(settings.types.values())
    held = isolation.check(_site(settings), settings.say, elsewhere)
    if elsewhere is None and os.getuid() == 0 and settings.pool.uid is None:
        text = "the worker runs as root: handlers can read the store. Set uid and gid of the pool, or use another user"
        settings.say("warning", rule="W-root", why=text)
    return held


def _check_warden(settings: WorkerSettings) -> None:
    """Who the other side is must be known: each looks at the other's uid, which the kernel tells."""
    if settings.pool.uid is None:
        text = f"pool {settings.pool.name} has its cells elsewhere, and no uid by which to know them"
        raise PolicyError("W-cell", text, field="uid", fix="set uid and gid of the pool to those of its cells")
    if settings.pool.uid == os.getuid():
        text = f"the supervisor has the uid of the cells of pool {settings.pool.name}"
        raise PolicyError("W-cell", text, field="uid", fix="run the two sides as different users")


def _check_types(settings: WorkerSettings) -> None:
    """A name that no reviewed type has would be a restriction that somebody believes in, and a queue that stands."""
    pool = settings.pool
    strange = [name for name in pool.types if name not in settings.lock or settings.lock[name].pool != pool.name]
    if strange:
        text = f"pool {pool.name} accepts {clean_line(strange[0])}, which the lock file does not give to it"
        raise PolicyError("W-types", text, field="types", fix="name types of this pool, as name@major")


def _check_roots(settings: WorkerSettings) -> None:
    """A cell may read these directories; nothing that opens the store may be below one (DESIGN section 2)."""
    files = [path.resolve() for path in credential_files(settings.dsn)]
    roots = [settings.cwd, *settings.paths, settings.artifact_dir, settings.scratch_parent]
    for root in roots:
        if root is not None and any(file.is_relative_to(root.resolve()) for file in files):
            text = "what opens the store (its file, a password file or key) lies in a directory that cells may read"
            fix = "move it, for example to the default place in the state directory, or to ~/.pgpass"
            raise PolicyError("W-roots", text, fix=fix)


def _site(settings: WorkerSettings) -> isolation.Site:
    return isolation.Site(
        pool=settings.pool,
        tiers=frozenset(policy.tier for policy in settings.types.values()),
        dev=settings.environment == "dev",
        read=() if settings.artifact_dir is None else (str(settings.artifact_dir),),
        secrets=_secrets(settings),
        covers=_covers(settings),
    )


def _covers(settings: WorkerSettings) -> tuple[str, ...] | None:
    """Return what is covered for LOW jobs: directories as a whole, other files alone; None when jobs need one of them.

    Of an embedded store its directory: files beside the ledger come and go, and have what it has.
    """
    embedded = () if is_postgres(settings.dsn) else credential_files(settings.dsn)
    paths = [each.parent if each in embedded else each for each in _secrets(settings)]
    places = [settings.cwd, *settings.paths, settings.artifact_dir, settings.scratch_parent or Path(gettempdir())]
    needed = [*map(str, filter(None, places)), *roots.python(), *settings.pool.read, *settings.pool.write]
    if not free_to_cover([path for path in paths if path.is_dir()], needed):
        return None
    return tuple(str(path.resolve()) for path in paths)


def _secrets(settings: WorkerSettings) -> tuple[Path, ...]:
    """Return what no cell may read: what opens the store, the directory of the keys, and files of secrets."""
    keys = () if settings.trust_path is None else (settings.trust_path.parent,)
    paths = (source.path(os.environ) for source in settings.pool.secrets.values())
    return (*credential_files(settings.dsn), *keys, *(path for path in paths if path is not None))


def _check_environment(settings: WorkerSettings) -> None:
    words = credential_words(settings.dsn)
    for name, value in settings.pool.environment(os.environ).items():
        if any(word in value for word in words):
            raise PolicyError("W-env", f"the variable {name} names the store", fix="take it out of the pool's env")


def _check_pending(settings: WorkerSettings) -> None:
    """In dev say what is not enforced yet, in prod refuse it."""
    for tier in sorted({policy.tier for policy in settings.types.values()}, key=lambda tier: tier.rank):
        missing = missing_for(tier, roles=is_postgres(settings.dsn))
        names = ", ".join(row.floor for row in missing)
        if missing and settings.environment != "dev":
            fix = 'use environment = "dev" to try it, or tier LOW'
            raise PolicyError(f"P-{missing[0].floor}", f"{tier} jobs need what there is not: {names}", fix=fix)
        if missing:
            settings.say("warning", rule="F-pending", why=f"{tier}: not enforced yet: {names}")


def _keeper(settings: WorkerSettings, stack: ExitStack) -> Tend:
    """Start a keeper when one is wanted; return what looks after it.

    Not on PostgreSQL: there a worker's login is that of its pool alone, and a keeper has its own (DESIGN section 2).
    """
    if not settings.keeper or is_postgres(settings.dsn):
        return _nobody
    withheld = frozenset(source.env for source in settings.pool.secrets.values())
    child = stack.enter_context(closing(KeeperChild(settings.dsn, settings.environment, settings.say, withheld)))
    return child.tend


def _nobody(now: float) -> frozenset[int]:
    del now
    return frozenset()


def nest_of(settings: WorkerSettings, held: frozenset[str]) -> Nest:
    """Return what the pool's zygote is started with. held: the layers that hold on this host."""
    paths = tuple(str(path.resolve()) for path in (settings.cwd, *settings.paths))
    artifacts = "" if settings.artifact_dir is None else str(settings.artifact_dir.resolve())
    tiers = [policy.tier for policy in settings.types.values()]
    programs = _programs(settings, paths)
    covers = () if os.getuid() == 0 or "own_uid" in held else (_covers(settings) or ())
    return Nest(
        pool=settings.pool,
        app=settings.app,
        paths=paths,
        cwd=paths[0],
        artifacts=artifacts,
        programs=programs,
        covers=covers,
        needs=isolation.needs(settings.pool, held, covers),
        shut=isolation.shut(tiers),
        secrets=_secrets(settings),
    )


def _programs(settings: WorkerSettings, paths: tuple[str, ...]) -> Programs:
    """Return what cells may start, and what they may read then; nothing of a pool without a list. Tells what it is."""
    pool = settings.pool
    if not pool.exec:
        return Programs()
    listed, readable = roots.application(paths, _secrets(settings))
    found = resolve(pool.name, pool.exec, (*roots.DATA, *roots.python(), *readable, *pool.read))
    settings.say("programs", pool=pool.name, run=" ".join(found.run), libraries=len(found.read))
    return Programs(found.run, found.read, (*listed, *found.listed))


def _own(settings: WorkerSettings) -> Own:
    """Make the zygotes here, as the pool's user when this process is root."""
    pool = settings.pool
    owner = (pool.uid, pool.gid) if pool.uid is not None and pool.gid is not None and os.getuid() == 0 else None
    scratch = Scratch(settings.scratch_parent, owner)
    return Own(pool.environment(os.environ), scratch, apart=owner is not None)


def _plan(settings: WorkerSettings, tend: Tend, held: frozenset[str]) -> Plan:
    return Plan(
        pool=settings.pool,
        policies=settings.lock,
        facts=facts_of(settings, held),
        poll_seconds=settings.poll_seconds,
        give_up_seconds=settings.give_up_seconds,
        tend=tend,
        vault=_vault(settings),
        ready=settings.ready,
        rests=settings.rests,
    )


def _vault(settings: WorkerSettings) -> Vault:
    return Vault(settings.pool.secrets, os.environ, settings.say)


def facts_of(settings: WorkerSettings, held: frozenset[str]) -> WorkerFacts:
    """Return who this worker is: host, boot, process and its start; not a name that it chose (cases.md C11).

    held: the layers that hold on this host.
    """
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
        isolation=posture.text(_site(settings), settings.types, held),
    )


__all__ = ["WorkerSettings", "facts_of", "nest_of", "run_worker", "say_to_stderr"]
