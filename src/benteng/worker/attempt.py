"""One attempt inside a cell: judge again, say that it starts, run the handler, say how it ended.

User code is not called before the start was said, and whatever it does ends as one `Ended`. Everything that it wrote
is cleaned and bounded here, and once more by the supervisor. Trust: neither the payload nor what a handler returns or
raises.
"""

from __future__ import annotations

import contextvars
import hashlib
import json
import math
import os
import socket
import sys
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from benteng import clock, raised
from benteng.context import Context
from benteng.contract import Parsed
from benteng.errors import DefinitionError, Malformed, PolicyError
from benteng.evidence import Evidence
from benteng.guard import CELL, Case, Door, judge
from benteng.guard.integrity import refs_of
from benteng.job import ArtifactRef, Job, sha256_hex
from benteng.outcome import Permanent, Snoozed, Suspicious, Transient, classify
from benteng.redact import Scrubber, clean, clean_line, error_text
from benteng.task import JobType, Registry
from benteng.verdict import Admit, Divert, Hold, Refuse, Verdict
from benteng.worker import framing, wire
from benteng.worker.denial import denial
from benteng.worker.scratch import PRIVATE
from benteng.worker.wire import UNSERIALISABLE, Ending, How, Next, Work

LOG_BYTES_MAX: Final = 64 * 1024
LOG_LINE_BYTES_MAX: Final = 8000
PROGRESS_BYTES_MAX: Final = 4096
REASON_BYTES_MAX: Final = 2048
COPY_BYTES: Final = 1 << 20
NOTHING: Final = Evidence(now=0)
"""What a cell knows of the ledger. Its guards ask for nothing else."""

NO_SECRETS: Final = Scrubber()
_canonical: Final = json.JSONEncoder(allow_nan=False, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode


class Stopped(BaseException):
    """Raised into a handler that must end now: its deadline passed, or the worker drains.

    Not an Exception, so that a handler that catches everything it expects does not catch this.
    """


class Mouth:
    """The sending side of a cell's line, for several threads."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = threading.Lock()

    def say(self, *frames: bytes) -> None:
        """Send whole frames. A supervisor that is gone ends the cell."""
        data = b"".join(frames)
        try:
            with self._lock:
                self._sock.sendall(data)
        except OSError:
            os._exit(0)


@dataclass(frozen=True, slots=True)
class Workshop:
    """What all attempts of a cell share.

    place  where in its scratch they work, one after the other; empty: in all of it; None: each has its own
    """

    registry: Registry
    mouth: Mouth
    scratch: Path
    artifacts: str
    place: str | None = None


current: contextvars.ContextVar[Attempt | None] = contextvars.ContextVar("benteng_attempt", default=None)
"""The attempt that the running code belongs to, for its output."""


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt, and the channel behind its handler's `ctx`."""

    work: Work
    payload: bytes
    shop: Workshop
    secrets: dict[str, str] = field(default_factory=dict[str, str], repr=False)
    scrubber: Scrubber = NO_SECRETS
    job_type: JobType | None = None
    parsed: Parsed | None = None
    deadline: float = 0.0
    armed: bool = False
    logged_bytes: int = 0
    partial: str = ""
    next: list[tuple[str, bytes]] = field(default_factory=list[tuple[str, bytes]])
    made: bool = False

    def __post_init__(self) -> None:
        self.job_type = self.shop.registry.types.get(self.work.type)
        self.deadline = clock.boot_seconds() + self.work.run_seconds
        if self.secrets:
            self.scrubber = Scrubber(self.secrets.values())

    @property
    def loads(self) -> bool:
        """Whether judging runs code of the user's."""
        return self.work.type in self.shop.registry.checks

    # ------------------------------------------------------------------------------------------------------- judgement

    def judge(self) -> Ending | None:
        """Return how the attempt ends unstarted, or None when it may start."""
        try:
            verdict = self._verdict()
        except Malformed as error:
            verdict = Refuse(error.rule, error.reason, error.fix, error.field)
        except Exception as error:  # noqa: BLE001 - whatever a loader or a contract raises: no evidence, no start
            verdict = Refuse("G-evidence", f"judging failed ({type(error).__name__})", "mend the evidence loader")
        return None if isinstance(verdict, Admit) else self._unstarted(verdict)

    def _verdict(self) -> Verdict:
        job_type = self.job_type
        if job_type is None:
            return Refuse("G-schema", f"no job type {self.work.type} in this cell", "register the job type")
        if sha256_hex(self.payload) != self.work.payload_sha256:
            return Refuse("G-forged", "the payload is not what was granted", suspicious=True)
        self.parsed = job_type.shape.parse(self.payload)
        registry, value = self.shop.registry, self.parsed.value
        facts = {each.name: each.function(value) for each in registry.loaders_of(job_type)} if self.loads else {}
        case = Case(
            job=_job(self.work, self.payload, job_type),
            policy=job_type.policy,
            door=Door.WORKER,
            shape=job_type.shape,
            parsed=self.parsed,
            checks=registry.checks_of(job_type) if self.loads else (),
            facts=facts,
        )
        return judge(case, NOTHING, CELL)

    def _unstarted(self, verdict: Hold | Divert | Refuse) -> Ending:
        match verdict:
            case Hold():
                how = How.HELD
            case Divert():
                how = How.DIVERTED
            case Refuse(suspicious=True):
                how = How.REFUSED_SUSPICIOUS
            case Refuse():
                how = How.REFUSED
        where = verdict.field if isinstance(verdict, Refuse) else ""
        text, fix = (clean_line(each, bytes_max=REASON_BYTES_MAX) for each in (verdict.reason, verdict.fix))
        return Ending(self.work.handle, how, text, clean_line(verdict.rule, bytes_max=128), where[:256], fix)

    # ------------------------------------------------------------------------------------------------------------- run

    def started(self) -> bytes:
        """Return the frame that says that user code has the attempt from now on."""
        return framing.frame(wire.Started((self.work.handle,)))

    def run(self) -> tuple[Ending, bytes]:
        """Call a handler, sync or async, and return how it ended, with its part of the tail."""
        token = current.set(self)
        try:
            return self._ended(self._call)
        except Stopped:
            return self.stopped()
        finally:
            current.reset(token)

    def _call(self) -> object:
        arguments = self._arguments()
        handler = cast("JobType", self.job_type).handler
        self.armed = True
        if cast("JobType", self.job_type).is_async:
            import asyncio

            return asyncio.run(cast("Any", handler(**arguments)))
        return handler(**arguments)

    async def run_async(self) -> tuple[Ending, bytes]:
        """Await an async handler on the cell's own loop, and return how it ended, with its part of the tail."""
        current.set(self)
        try:
            handler = cast("JobType", self.job_type).handler
            value = await cast("Awaitable[object]", handler(**self._arguments()))
        except BaseException as error:  # noqa: BLE001 - also a cancellation ends as a value
            return self._failed(error)
        return self._completed(value)

    def _ended(self, call: Callable[[], object]) -> tuple[Ending, bytes]:
        try:
            value = call()
            self.armed = False
        except Stopped:
            return self.stopped()
        except BaseException as error:  # noqa: BLE001 - SystemExit and its kin are how an attempt ended, nothing more
            self.armed = False
            return self._failed(error)
        return self._completed(value)

    def _arguments(self) -> dict[str, object]:
        job_type, parsed = cast("JobType", self.job_type), cast("Parsed", self.parsed)
        arguments = job_type.arguments(parsed)
        if job_type.wants_context:
            arguments["ctx"] = Context(
                self,
                fence=self.work.fence,
                operation_key=self.work.operation_key,
                attempt=self.work.attempt,
            )
        return arguments

    @property
    def scratch(self) -> Path:
        """The attempt's own directory. Made when it is first asked for."""
        return Path(self._home())

    def _home(self) -> str:
        """Return it as a text: asked for each attempt, and a Path costs more than the calls."""
        place = str(self.work.handle) if self.shop.place is None else self.shop.place
        home = f"{self.shop.scratch}/{place}" if place else str(self.shop.scratch)
        if place:
            try:
                os.mkdir(home, PRIVATE)  # noqa: PTH102
            except FileExistsError:
                if not os.path.isdir(home):  # noqa: PTH112
                    raise
        self.made = True
        return home

    def settle_in(self) -> None:
        """Move this process into the attempt's own directory."""
        home = self._home()
        os.chdir(home)
        for name in ("HOME", "TMPDIR"):
            if os.environ.get(name) != home:
                os.environ[name] = home
        if "tempfile" in sys.modules:
            sys.modules["tempfile"].tempdir = None  # type: ignore[attr-defined] - it looks at TMPDIR again

    # ------------------------------------------------------------------------------------------------------------ ends

    def _completed(self, value: object) -> tuple[Ending, bytes]:
        self.flush()
        tail = result = result_json(value, cast("JobType", self.job_type).policy.limits.result_bytes_max)
        successors: tuple[Next, ...] = ()
        if self.next:
            successors = tuple(Next(name, len(payload)) for name, payload in self.next)
            tail = b"".join((result, *(payload for _, payload in self.next)))
        handle, size = self.work.handle, len(result)
        return Ending(handle, How.COMPLETED, result_bytes=size, successors=successors, scratch=self.made), tail

    def _failed(self, error: BaseException) -> tuple[Ending, bytes]:
        self.flush()
        if _is_cancellation(error):
            return self.stopped()
        ended = ended_by(self.work.handle, error, cast("JobType", self.job_type), self.scrubber)
        hint = denial(error, self.shop.scratch)
        return msgspec.structs.replace(ended, denied=hint, scratch=self.made), b""

    def stopped(self) -> tuple[Ending, bytes]:
        """Return how an attempt ended that was stopped."""
        self.armed = False
        return Ending(self.work.handle, How.STOPPED, scratch=self.made), b""

    # --------------------------------------------------------------------------------------------------------- channel

    def progress(self, text: str) -> None:
        """Tell people how far it got."""
        cleaned = clean(self.scrubber.text(str(text)), bytes_max=PROGRESS_BYTES_MAX)
        self.shop.mouth.say(framing.frame(wire.Progress(self.work.handle, cleaned)))

    def then(self, type_name: str, payload: object) -> None:
        """Add a successor. Raises PolicyError when it is not listed or too much, Malformed when it does not fit."""
        policy = cast("JobType", self.job_type).policy
        try:
            successor = self.shop.registry.find(type_name)
        except DefinitionError as error:
            raise PolicyError("W-successor", error.reason, fix=error.fix) from None
        if successor.name not in policy.successors:
            fix = f'add successors=("{successor.name}",) to {policy.name}'
            raise PolicyError("W-successor", f"{policy.name} does not list {successor.name} as successor", fix=fix)
        raw = successor.shape.parse(payload) if isinstance(payload, bytes) else successor.shape.parse_value(payload)
        size = sum(len(each) for _, each in self.next) + len(raw.canonical)
        if len(self.next) >= wire.SUCCESSORS_MAX or size > wire.SUCCESSORS_BYTES_MAX:
            reason = f"at most {wire.SUCCESSORS_MAX} successors of {wire.SUCCESSORS_BYTES_MAX} bytes together"
            raise PolicyError("W-successors", reason, fix="let a successor add more")
        if self.scrubber and self.scrubber.finds(raw.canonical):
            raise Malformed(
                "W-leak", "the payload of a successor holds a secret", fix="it asks for its own: ctx.secret"
            )
        self.next.append((successor.name, raw.canonical))

    def secret(self, name: str) -> str:
        """Return a secret. Raises PolicyError for one that the type does not list."""
        if name in self.secrets:
            return self.secrets[name]
        policy = cast("JobType", self.job_type).policy
        why = f"{policy.name} does not list the secret that was asked for, only {', '.join(policy.secrets) or 'none'}"
        fix = "add it to the secrets of the type, lock it anew, and say in [pool.X.secrets] where it comes from"
        raise PolicyError("W-undeclared", why, fix=fix)

    def artifact(self, ref: ArtifactRef) -> Path:
        """Return a private copy whose bytes were hashed while they were copied; a later one takes its place.

        Raises Suspicious when the job does not name the artifact or its bytes are others, OSError when it is not here.
        """
        policy = cast("JobType", self.job_type).policy
        if ref not in refs_of(policy, self.payload).artifacts:
            raise raised.Suspicious("the handler asked for an artifact that its job does not name")
        if not self.shop.artifacts:
            raise FileNotFoundError("this worker has no artifact directory")
        return _verified_copy(Path(self.shop.artifacts) / ref.sha256, self.scratch / ref.sha256, ref.sha256)

    def extract(self, path: Path) -> Path:
        """Unpack an archive into the attempt's directory. Raises Suspicious, Permanent, OSError."""
        from benteng.worker.unpack import unpack

        return unpack(path, self.scratch, cast("JobType", self.job_type).policy.limits.file_bytes_max)

    def remaining_seconds(self) -> float:
        """Tell how long the attempt may still run."""
        return max(0.0, self.deadline - clock.boot_seconds())

    # ---------------------------------------------------------------------------------------------------------- output

    def write(self, text: str) -> None:
        """Take output of the handler; whole lines are sent, within the attempt's budget."""
        self.partial = self.scrubber.text(self.partial + text[: LOG_BYTES_MAX * 2])
        while "\n" in self.partial or len(self.partial) > LOG_LINE_BYTES_MAX:
            line, newline, rest = self.partial.partition("\n")
            if not newline or len(line) > LOG_LINE_BYTES_MAX:
                line, rest = self.partial[:LOG_LINE_BYTES_MAX], self.partial[LOG_LINE_BYTES_MAX:]
            self.partial = rest
            self._line(line)

    def flush(self) -> None:
        """Send what stands in an unfinished line."""
        line, self.partial = self.partial, ""
        if line:
            self._line(line)

    def _line(self, text: str) -> None:
        if self.logged_bytes >= LOG_BYTES_MAX:
            return
        line = clean_line(text, bytes_max=LOG_LINE_BYTES_MAX)
        self.logged_bytes += len(line.encode()) + 1
        if self.logged_bytes >= LOG_BYTES_MAX:
            line = "[the output of this attempt is cut here]"
        self.shop.mouth.say(framing.frame(wire.Log(self.work.handle, line)))


def ended_by(handle: int, error: BaseException, job_type: JobType, scrubber: Scrubber) -> Ending:
    """Return how an attempt ended that raised: by the handler's own words, then by the type's table of names."""
    text = _text_of(error, scrubber)
    outcome = classify(error, job_type.policy.errors, text)
    match outcome:
        case Transient():
            how = How.RETRY if outcome.explicit else How.TRANSIENT
            return Ending(handle, how, text, after_seconds=_seconds(outcome.retry_after_seconds))
        case Snoozed():
            return Ending(handle, How.SNOOZED, text, after_seconds=_seconds(outcome.after_seconds) or 0.0)
        case Permanent():
            return Ending(handle, How.PERMANENT, text)
        case Suspicious():
            return Ending(handle, How.SUSPICIOUS, text)
        case _:
            return Ending(handle, How.TRANSIENT, text)


def result_json(value: object, bytes_max: int) -> bytes:
    """Return a result as canonical JSON; a marker when it is none or too large: finished work is never lost by that."""
    try:
        data = b"null" if value is None else _canonical(msgspec.to_builtins(value, str_keys=True)).encode()
    except Exception as error:  # noqa: BLE001 - user classes may raise anything when they are written out
        return json.dumps({UNSERIALISABLE: type(error).__name__[:128]}).encode()
    return data if len(data) <= bytes_max else json.dumps({UNSERIALISABLE: "too large"}).encode()


def _text_of(error: BaseException, scrubber: Scrubber) -> str:
    try:
        message = scrubber.text(str(error))
    except Exception:  # noqa: BLE001 - the failure path cannot fail
        message = "(its text cannot be read)"
    if isinstance(error, raised.HandlerSignal):
        return error_text(type(error).__name__, message) if message else type(error).__name__
    return error_text(type(error).__qualname__, message)


def _seconds(value: object) -> float | None:
    """Return a duration that a handler gave, within bounds; None when it is no number."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return min(max(float(value), 0.0), wire.SECONDS_MAX)


def _is_cancellation(error: BaseException) -> bool:
    return type(error).__module__ == "asyncio.exceptions" and type(error).__name__ == "CancelledError"


def _job(work: Work, payload: bytes, job_type: JobType) -> Job:
    return Job(
        id="",
        type=work.type,
        tier=job_type.policy.tier,
        payload=payload,
        payload_sha256=work.payload_sha256,
        operation_key=work.operation_key,
        origin="",
    )


def _verified_copy(source: Path, target: Path, sha256: str) -> Path:
    """Put a copy at the target, or leave what is there alone: an earlier copy that was verified stays until then."""
    made = target.with_name(f".{sha256}-{threading.get_native_id()}")
    made.unlink(missing_ok=True)
    try:
        if _copied(source, made) != sha256:
            raise raised.Suspicious(f"the bytes of artifact {sha256[:8]}… are not what the job names")
        return made.replace(target)
    finally:
        made.unlink(missing_ok=True)


def _copied(source: Path, target: Path) -> str:
    """Copy a file into a new one, and return the sha256 of what was written."""
    digest = hashlib.sha256()
    with os.fdopen(os.open(source, os.O_RDONLY | os.O_NOFOLLOW), "rb") as reader:
        handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o400)
        with os.fdopen(handle, "wb") as writer:
            while chunk := reader.read(COPY_BYTES):
                digest.update(chunk)
                writer.write(chunk)
    return digest.hexdigest()
