"""The frames between supervisor, warden, zygote, cells and egress broker; and the table of what may be said when.

A frame is a version byte, two u32 lengths, a msgpack header and raw bytes. What is not in PERMITTED for the state of
the line does not even decode: whoever says it is killed. Handles are small numbers that mean nothing elsewhere.
Trust: nothing that arrives. Bytes, depth and numbers are bounded before they are looked at (openssh, monitor.c).
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Final, TypeVar, Union

import msgspec

from benteng.errors import BentengError
from benteng.policy import LOCK_BYTES_MAX, SECRETS_MAX, Limits
from benteng.worker.pool import Kind, Start

VERSION: Final = 1
PREFIX: Final = struct.Struct(">BII")
FRAME_BYTES_MAX: Final = 256 * 1024
"""Header and tail of a frame from or to a cell: one attempt's payload, result and successors fit."""

INBOX_BYTES: Final = 16 * 1024
"""What a line's buffer has at first: most never hold more, and each page of it costs every cell."""

ZYGOTE_BYTES_MAX: Final = LOCK_BYTES_MAX
UNSERIALISABLE: Final = "unserialisable"
"""Key of the result that stands for one that could not be kept: the job completed all the same."""
SUCCESSORS_MAX: Final = 16
SUCCESSORS_BYTES_MAX: Final = 128 * 1024
TEXT_CHARS_MAX: Final = 8192
PLAIN_BYTES_MAX: Final = 1024
ENDING_BYTES_MAX: Final = 48 * 1024
"""At most so much of a frame's header one attempt takes: without, and with the texts of its end or its successors."""

SECONDS_MAX: Final = 1e9

M = TypeVar("M")


class ProtocolError(BentengError):
    """The peer said something that it may not say. It is hostile or broken; either way it is killed."""


class _Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """One header. The tag is its class name."""


Handle = Annotated[int, msgspec.Meta(ge=0, le=(1 << 53) - 1)]
Size = Annotated[int, msgspec.Meta(ge=0, le=FRAME_BYTES_MAX)]
Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=SECONDS_MAX)]
Line_ = Annotated[str, msgspec.Meta(max_length=TEXT_CHARS_MAX)]
Name = Annotated[str, msgspec.Meta(max_length=256)]


# ------------------------------------------------------------------------------------------------- supervisor to a cell


class Named(_Message, frozen=True):
    """A secret of an attempt: its name, and the size of its value in the tail."""

    name: Name
    value_bytes: Size


class Work(_Message, frozen=True):
    """One attempt to make. The next bytes of the frame's tail are its payload, then the values of its secrets."""

    handle: Handle
    type: Name
    fence: Handle
    attempt: Handle
    operation_key: Name
    payload_sha256: Name
    run_seconds: Seconds
    payload_bytes: Size
    secrets: Annotated[tuple[Named, ...], msgspec.Meta(max_length=SECRETS_MAX)] = ()


class Grants(_Message, frozen=True, tag=True):
    """Attempts to make."""

    works: tuple[Work, ...]


class Shelf(_Message, frozen=True, tag=True):
    """Take more attempts from the socket that comes along, one whenever one has ended. A serial cell alone has one."""


class Stop(_Message, frozen=True, tag=True):
    """End one attempt of a wide cell if it can be ended: its deadline passed, or it is no longer wanted."""

    handle: Handle


# ------------------------------------------------------------------------------------------------- a cell to supervisor


class How(StrEnum):
    """How a cell says that an attempt ended."""

    COMPLETED = "completed"
    TRANSIENT = "transient"
    RETRY = "retry"
    PERMANENT = "permanent"
    SUSPICIOUS = "suspicious"
    SNOOZED = "snoozed"
    STOPPED = "stopped"
    HELD = "held"
    DIVERTED = "diverted"
    REFUSED = "refused"
    REFUSED_SUSPICIOUS = "refused_suspicious"


BEFORE_START: Final = frozenset({How.HELD, How.DIVERTED, How.REFUSED, How.REFUSED_SUSPICIOUS})
"""How an attempt may end that was not started; all other ends need a start first."""


class Hello(_Message, frozen=True, tag=True):
    """The cell stands, and these layers are in force."""

    layers: Annotated[tuple[Name, ...], msgspec.Meta(max_length=32)]


class Started(_Message, frozen=True, tag=True):
    """These attempts passed the second judgement; user code has them from now on."""

    handles: Annotated[tuple[Handle, ...], msgspec.Meta(min_length=1, max_length=1000)]


class Next(_Message, frozen=True):
    """A successor: its type, and the size of its payload in the tail."""

    type: Name
    payload_bytes: Size


class Act(StrEnum):
    """What a handler wanted to do when the kernel said no, as far as its exception tells."""

    FILE = "file"
    MODE = "mode"
    NETWORK = "network"
    PROGRAM = "program"
    CALL = "call"


class Denied(_Message, frozen=True):
    """An act that the kernel denied, with its full path if it has one."""

    act: Act
    path: Line_ = ""


class Ending(_Message, frozen=True):
    """How one attempt ended. Its part of the tail: the result, then the payloads of the successors.

    denied: a hint why it failed;  scratch: whether the attempt's directory was made.
    """

    handle: Handle
    how: How
    text: Line_ = ""
    rule: Name = ""
    field: Name = ""
    fix: Line_ = ""
    after_seconds: Seconds | None = None
    result_bytes: Size = 0
    successors: Annotated[tuple[Next, ...], msgspec.Meta(max_length=SUCCESSORS_MAX)] = ()
    denied: Denied | None = None
    scratch: bool = False

    @property
    def tail_bytes(self) -> int:
        """The size of its part of the tail."""
        more = sum([each.payload_bytes for each in self.successors]) if self.successors else 0
        return self.result_bytes + more

    @property
    def header_bytes_max(self) -> int:
        """At most so much of a frame's header it takes."""
        return PLAIN_BYTES_MAX if self.how is How.COMPLETED and not self.successors else ENDING_BYTES_MAX


class Ended(_Message, frozen=True, tag=True):
    """These attempts ended."""

    endings: Annotated[tuple[Ending, ...], msgspec.Meta(min_length=1, max_length=1000)]


class Progress(_Message, frozen=True, tag=True):
    """How far an attempt got."""

    handle: Handle
    text: Line_


class Log(_Message, frozen=True, tag=True):
    """A line that an attempt wrote."""

    handle: Handle
    text: Line_


# ------------------------------------------------------------------------------------------------ supervisor and zygote


class Configure(_Message, frozen=True, tag=True):
    """The first thing a zygote hears: what to import, as whom, and shut in by what. Holds nothing of the store.

    shut: the zygote itself is shut in, before the import; cells of MEDIUM and HIGH are in any case.
    programs: what these may start; with it, read and listed are all that they may read.
    covers: what it takes out of the sight of its cells when it is not shut in.
    scratch: where its cells' directories are; the zygote fills it in, since only its own host knows it.
    names: files of names for a pool with `egress`, as (path, text); the zygote then hands over its listener.
    """

    app: str
    paths: tuple[str, ...]
    cwd: str
    start: Start
    artifacts: str
    uid: int | None = None
    gid: int | None = None
    scratch: str = ""
    read: tuple[str, ...] = ()
    listed: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    waive: frozenset[str] = frozenset()
    shut: bool = False
    own_uid: bool = False
    programs: tuple[str, ...] = ()
    covers: tuple[str, ...] = ()
    names: tuple[tuple[str, str], ...] = ()


class Listener(_Message, frozen=True, tag=True):
    """The zygote is shut in; what its filter asks is to be answered on the descriptor that comes along."""


class Brokered(_Message, frozen=True, tag=True):
    """The broker answers from now on: the app may be imported."""


class Spawn(_Message, frozen=True, tag=True):
    """Make a cell; its end of the line comes along as a descriptor."""

    cell: Handle
    kind: Kind
    width: Annotated[int, msgspec.Meta(ge=1, le=1000)]
    limits: Limits


class Guard(_Message, frozen=True, tag=True):
    """Kill each of these cells at that second of CLOCK_BOOTTIME unless told otherwise before; 0: no limit."""

    until: tuple[tuple[Handle, Seconds], ...]


class End(_Message, frozen=True, tag=True):
    """Kill a cell and its group."""

    cell: Handle


class Ready(_Message, frozen=True, tag=True):
    """The app is imported. Tail: the policies of its registry, as JSON."""


class Refuse(_Message, frozen=True, tag=True):
    """The app cannot be used."""

    rule: Name
    text: Line_


class Spawned(_Message, frozen=True, tag=True):
    """The cell runs; its pidfd comes along."""

    cell: Handle
    pid: Annotated[int, msgspec.Meta(ge=2)]


class Exited(_Message, frozen=True, tag=True):
    """The cell is dead and reaped: status as of waitpid; guarded: the zygote killed it, to keep the lease."""

    cell: Handle
    status: int
    guarded: bool


# ------------------------------------------------------------------------------------------------ supervisor and warden

CELLS_MAX: Final = 4096


class Examine(_Message, frozen=True, tag=True):
    """Say what your host can put in force."""


class Hatch(_Message, frozen=True, tag=True):
    """Make a zygote; its end of the line to the supervisor comes along. Its variables, beside what all have."""

    env: Annotated[tuple[Name, ...], msgspec.Meta(max_length=256)]


class Employ(_Message, frozen=True, tag=True):
    """Start an egress broker; its end of the line to the supervisor comes along."""


class Look(_Message, frozen=True, tag=True):
    """Say what you see of this cell, whose pidfd comes along; its layers, if they are asked for."""

    cell: Handle
    layers: bool


class Signal(_Message, frozen=True, tag=True):
    """Signal the cell, whose pidfd comes along, and its group."""

    number: Annotated[int, msgspec.Meta(ge=1, le=64)]


class Measure(_Message, frozen=True, tag=True):
    """Say which of these cells hold more on the disk than they may: cell, pid, bytes."""

    cells: Annotated[tuple[tuple[Handle, Handle, Handle], ...], msgspec.Meta(max_length=CELLS_MAX)]


class Drop(_Message, frozen=True, tag=True):
    """Delete the scratch directory of a cell, or of one attempt in it."""

    cell: Handle
    attempt: Handle | None = None


class Cull(_Message, frozen=True, tag=True):
    """End the zygote, within so many seconds by itself or else by force, and say when it is done."""

    patience_seconds: Seconds


class Holds(_Message, frozen=True, tag=True):
    """These layers hold here, each tried for real."""

    layers: Annotated[tuple[Name, ...], msgspec.Meta(max_length=64)]


class Hatched(_Message, frozen=True, tag=True):
    """The zygote runs."""

    pid: Handle


class Seen(_Message, frozen=True, tag=True):
    """What is seen of a cell. One that is none of the zygote's has no layer."""

    cell: Handle
    layers: Annotated[tuple[Name, ...], msgspec.Meta(max_length=64)]
    below: Handle
    threads: Handle


class Full(_Message, frozen=True, tag=True):
    """These cells hold more on the disk than they may."""

    cells: Annotated[tuple[Handle, ...], msgspec.Meta(max_length=CELLS_MAX)]


class Gone(_Message, frozen=True, tag=True):
    """The zygote is dead and reaped, and so is all that it had started."""


# ------------------------------------------------------------------------------------------------ supervisor and broker


class Open(_Message, frozen=True, tag=True):
    """The first thing a broker hears: the pool's list, and how many connects a job may make."""

    rules: tuple[str, ...]
    connects_max: int
    uid: int | None = None
    gid: int | None = None


class Listen(_Message, frozen=True, tag=True):
    """Answer on the listener that comes along."""


class Listening(_Message, frozen=True, tag=True):
    """The broker has the listener."""


class Register(_Message, frozen=True, tag=True):
    """Let a process connect for the job of this handle; its pidfd comes along."""

    handle: Handle


class Registered(_Message, frozen=True, tag=True):
    """It may."""

    handle: Handle


class Forget(_Message, frozen=True, tag=True):
    """Let nothing connect for that job any more."""

    handle: Handle


class Used(_Message, frozen=True, tag=True):
    """What a job did that is to be forgotten: connects made, refusals, and the first of those as (what, fix)."""

    handle: Handle
    connects: Handle = 0
    refused: Handle = 0
    blocked: Annotated[tuple[tuple[Line_, Line_], ...], msgspec.Meta(max_length=16)] = ()


class Ping(_Message, frozen=True, tag=True):
    """Say that you are there."""


class Pong(_Message, frozen=True, tag=True):
    """The broker's loop turns."""


class Line(StrEnum):
    """A line and its state: who speaks, and what was said before."""

    TO_CELL = "to_cell"
    TO_SERIAL_CELL = "to_serial_cell"
    CELL_BORN = "cell_born"
    CELL_READY = "cell_ready"
    TO_NEW_ZYGOTE = "to_new_zygote"
    TO_SHUT_ZYGOTE = "to_shut_zygote"
    TO_ZYGOTE = "to_zygote"
    ZYGOTE_SHUTTING = "zygote_shutting"
    ZYGOTE_STARTING = "zygote_starting"
    ZYGOTE_READY = "zygote_ready"
    TO_WARDEN = "to_warden"
    FROM_WARDEN = "from_warden"
    TO_NEW_BROKER = "to_new_broker"
    TO_BROKER = "to_broker"
    BROKER_READY = "broker_ready"


PERMITTED: Final[Mapping[Line, tuple[type[_Message], ...]]] = {
    Line.TO_CELL: (Grants, Stop),
    Line.TO_SERIAL_CELL: (Grants, Shelf),
    Line.CELL_BORN: (Hello, Log),
    Line.CELL_READY: (Started, Ended, Progress, Log),
    Line.TO_NEW_ZYGOTE: (Configure,),
    Line.TO_SHUT_ZYGOTE: (Brokered,),
    Line.TO_ZYGOTE: (Spawn, Guard, End),
    Line.ZYGOTE_SHUTTING: (Listener, Refuse),
    Line.ZYGOTE_STARTING: (Ready, Refuse),
    Line.ZYGOTE_READY: (Spawned, Exited),
    Line.TO_WARDEN: (Examine, Hatch, Employ, Look, Signal, Measure, Drop, Cull),
    Line.FROM_WARDEN: (Holds, Hatched, Seen, Full, Gone),
    Line.TO_NEW_BROKER: (Open,),
    Line.TO_BROKER: (Listen, Register, Forget, Ping),
    Line.BROKER_READY: (Listening, Registered, Used, Pong),
}
"""Which messages may arrive on a line in its state. Everything else kills the speaker."""

_DECODERS: Final[Mapping[Line, msgspec.msgpack.Decoder[Any]]] = {
    line: msgspec.msgpack.Decoder(Union[messages])  # noqa: UP007 - built from the table
    for line, messages in PERMITTED.items()
}
_ENCODER: Final = msgspec.msgpack.Encoder()


def frame(message: _Message, tail: bytes = b"") -> bytes:
    """Return a message as bytes to send."""
    header = _ENCODER.encode(message)
    return PREFIX.pack(VERSION, len(header), len(tail)) + header + tail


def grant_frames(works: Sequence[tuple[Work, bytes]]) -> list[bytes]:
    """Return attempts to make, each with its part of the tail, in as few frames as the cap allows."""
    return _frames([(work, part, PLAIN_BYTES_MAX + len(part)) for work, part in works], Grants)


def ended_frames(endings: Sequence[tuple[Ending, bytes]]) -> list[bytes]:
    """Return how attempts ended, each with its part of the tail, in as few frames as the cap allows."""
    return _frames([(ending, part, ending.header_bytes_max + len(part)) for ending, part in endings], Ended)


def _frames(given: list[tuple[M, bytes, int]], message: Callable[[tuple[M, ...]], _Message]) -> list[bytes]:
    """Return items, each with its part of the tail and its cost, in as few frames as the cap allows.

    One alone always fits.
    """
    frames: list[bytes] = []
    first = size = 0
    for at, (_, _, cost) in enumerate(given):
        if at > first and size + cost > FRAME_BYTES_MAX:
            frames.append(_frame_of(given[first:at], message))
            first, size = at, 0
        size += cost
    return [*frames, _frame_of(given[first:], message)] if given else frames


def _frame_of(batch: list[tuple[M, bytes, int]], message: Callable[[tuple[M, ...]], _Message]) -> bytes:
    return frame(message(tuple([each for each, _, _ in batch])), b"".join([part for _, part, _ in batch]))


def parts(works: tuple[Work, ...], tail: bytes) -> Iterator[tuple[Work, bytes, dict[str, str]]]:
    """Yield attempts with their payloads and secrets. Raises ProtocolError."""
    pieces = iter(cut(tail, [size for work in works for size in _sizes(work)]))
    for work in works:
        yield work, next(pieces), {each.name: next(pieces).decode() for each in work.secrets}


def ends(said: Ended, tail: bytes) -> Iterator[tuple[Ending, bytes]]:
    """Return how attempts ended, each with its part of the tail. Raises ProtocolError."""
    return zip(said.endings, cut(tail, [each.tail_bytes for each in said.endings]), strict=True)


def _sizes(work: Work) -> tuple[int, ...]:
    return (work.payload_bytes, *(each.value_bytes for each in work.secrets))


def cut(tail: bytes, sizes: list[int]) -> list[bytes]:
    """Return the tail in pieces of these sizes. Raises ProtocolError when they do not add up to it."""
    if sum(sizes) != len(tail):
        raise ProtocolError("the sizes do not add up to the frame")
    pieces: list[bytes] = []
    start = 0
    for size in sizes:
        pieces.append(tail[start : start + size])
        start += size
    return pieces


class Inbox:
    """Reassembles frames from a stream, in one buffer that grows to what it has to hold."""

    def __init__(self, line: Line, bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.line = line
        self._bytes_max = bytes_max
        self._buffer = bytearray(min(INBOX_BYTES, PREFIX.size + bytes_max))
        self._view = memoryview(self._buffer)
        self._filled = 0

    def fill(self, sock: socket.socket) -> bool:
        """Receive once; False at the end of the stream. Descriptors that a peer attaches are dropped by the kernel.

        Raises BlockingIOError when there is nothing, and ConnectionError.
        """
        self._hold(self._filled + 1)
        count = sock.recv_into(self._view[self._filled :])
        self._filled += count
        return count > 0

    def accept(self, data: bytes) -> None:
        """Take bytes that were received elsewhere; at most what `room` says."""
        self._hold(self._filled + len(data))
        self._view[self._filled : self._filled + len(data)] = data
        self._filled += len(data)

    @property
    def room(self) -> int:
        """How many bytes may be received now."""
        return PREFIX.size + self._bytes_max - self._filled

    def messages(self) -> Iterator[tuple[Any, bytes]]:
        """Yield whole messages with their tails; the state of the line is looked at for each. Raises ProtocolError."""
        start = 0
        try:
            while (end := self._end(start)) is not None:
                begin, start = start, end  # a reader that stops here has had this one
                yield self._decode(begin)
        finally:
            rest = bytes(self._view[start : self._filled])
            self._view[: len(rest)] = rest
            self._filled = len(rest)

    def _hold(self, wanted: int) -> None:
        """Have room for so many bytes in all, as far as a frame may be large."""
        if wanted > len(self._buffer) < PREFIX.size + self._bytes_max:
            old = self._view[: self._filled]
            self._buffer = bytearray(min(max(wanted, 4 * len(self._buffer)), PREFIX.size + self._bytes_max))
            self._view = memoryview(self._buffer)
            self._view[: self._filled] = old

    def _end(self, start: int) -> int | None:
        if self._filled - start < PREFIX.size:
            return None
        version, header, tail = PREFIX.unpack_from(self._buffer, start)
        if version != VERSION:
            raise ProtocolError("unknown version")
        if header + tail > self._bytes_max:
            raise ProtocolError("the frame is too large")
        end = start + PREFIX.size + header + tail
        return end if end <= self._filled else None

    def _decode(self, start: int) -> tuple[Any, bytes]:
        _, header, tail = PREFIX.unpack_from(self._buffer, start)
        begin = start + PREFIX.size
        middle = begin + header
        try:
            message = _DECODERS[self.line].decode(self._view[begin:middle])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise ProtocolError(f"not permitted on {self.line}") from None
        return message, bytes(self._view[middle : middle + tail])


class Outbox:
    """What waits to be sent without blocking, in order, with the descriptors that go along."""

    def __init__(self) -> None:
        self._parts: deque[tuple[memoryview, tuple[int, ...]]] = deque()
        self.bytes = 0

    def __bool__(self) -> bool:
        return bool(self._parts)

    def put(self, data: bytes, descriptors: tuple[int, ...] = ()) -> None:
        """Add a frame."""
        self._parts.append((memoryview(data), descriptors))
        self.bytes += len(data)

    def abandon(self) -> list[int]:
        """Forget everything; return the descriptors that were not sent."""
        numbers = [number for _, descriptors in self._parts for number in descriptors]
        self._parts.clear()
        return numbers

    def flush(self, sock: socket.socket) -> list[int]:
        """Send what the socket takes; return the descriptors that were sent. Raises ConnectionError."""
        sent: list[int] = []
        while self._parts:
            data, descriptors = self._parts.popleft()
            try:
                count = socket.send_fds(sock, [data], list(descriptors)) if descriptors else sock.send(data)
            except BlockingIOError:
                self._parts.appendleft((data, descriptors))
                break
            sent.extend(descriptors)
            self.bytes -= count
            if count < len(data):
                self._parts.appendleft((data[count:], ()))
        return sent
