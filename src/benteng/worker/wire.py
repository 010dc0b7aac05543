"""The messages between supervisor, warden, zygote, cells and egress broker; and the table of what may be said when.

What is not in PERMITTED for the state of the line does not even decode (see framing.py): whoever says it is killed.
Handles are small numbers that mean nothing elsewhere.
Trust: nothing that arrives. Depth and numbers are bounded before they are looked at (openssh, monitor.c).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Final

import msgspec

from benteng.errors import BentengError
from benteng.policy import LOCK_BYTES_MAX, SECRETS_MAX, Limits
from benteng.worker.pool import Kind, Start

FRAME_BYTES_MAX: Final = 256 * 1024
"""Header and tail of a frame from or to a cell: one attempt's payload, result and successors fit."""

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


class ProtocolError(BentengError):
    """The peer said something that it may not say. It is hostile or broken; either way it is killed."""


class Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """One header. The tag is its class name."""


Handle = Annotated[int, msgspec.Meta(ge=0, le=(1 << 53) - 1)]
Size = Annotated[int, msgspec.Meta(ge=0, le=FRAME_BYTES_MAX)]
Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=SECONDS_MAX)]
Line_ = Annotated[str, msgspec.Meta(max_length=TEXT_CHARS_MAX)]
Name = Annotated[str, msgspec.Meta(max_length=256)]


# ------------------------------------------------------------------------------------------------- supervisor to a cell


class Named(Message, frozen=True):
    """A secret of an attempt: its name, and the size of its value in the tail."""

    name: Name
    value_bytes: Size


class Work(Message, frozen=True):
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


class Grants(Message, frozen=True, tag=True):
    """Attempts to make."""

    works: tuple[Work, ...]


class Shelf(Message, frozen=True, tag=True):
    """Take more attempts from the socket that comes along, one whenever one has ended. A serial cell alone has one."""


class Stop(Message, frozen=True, tag=True):
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


class Hello(Message, frozen=True, tag=True):
    """The cell stands, and these layers are in force."""

    layers: Annotated[tuple[Name, ...], msgspec.Meta(max_length=32)]


class Started(Message, frozen=True, tag=True):
    """These attempts passed the second judgement; user code has them from now on."""

    handles: Annotated[tuple[Handle, ...], msgspec.Meta(min_length=1, max_length=1000)]


class Next(Message, frozen=True):
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


class Denied(Message, frozen=True):
    """An act that the kernel denied, with its full path if it has one."""

    act: Act
    path: Line_ = ""


class Ending(Message, frozen=True):
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


class Ended(Message, frozen=True, tag=True):
    """These attempts ended."""

    endings: Annotated[tuple[Ending, ...], msgspec.Meta(min_length=1, max_length=1000)]


class Progress(Message, frozen=True, tag=True):
    """How far an attempt got."""

    handle: Handle
    text: Line_


class Log(Message, frozen=True, tag=True):
    """A line that an attempt wrote."""

    handle: Handle
    text: Line_


# ------------------------------------------------------------------------------------------------ supervisor and zygote


class Configure(Message, frozen=True, tag=True):
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


class Listener(Message, frozen=True, tag=True):
    """The zygote is shut in; what its filter asks is to be answered on the descriptor that comes along."""


class Brokered(Message, frozen=True, tag=True):
    """The broker answers from now on: the app may be imported."""


class Spawn(Message, frozen=True, tag=True):
    """Make a cell; its end of the line comes along as a descriptor."""

    cell: Handle
    kind: Kind
    width: Annotated[int, msgspec.Meta(ge=1, le=1000)]
    limits: Limits


class Guard(Message, frozen=True, tag=True):
    """Kill each of these cells at that second of CLOCK_BOOTTIME unless told otherwise before; 0: no limit."""

    until: tuple[tuple[Handle, Seconds], ...]


class End(Message, frozen=True, tag=True):
    """Kill a cell and its group."""

    cell: Handle


class Ready(Message, frozen=True, tag=True):
    """The app is imported. Tail: the policies of its registry, as JSON."""


class Refuse(Message, frozen=True, tag=True):
    """The app cannot be used."""

    rule: Name
    text: Line_


class Spawned(Message, frozen=True, tag=True):
    """The cell runs; its pidfd comes along."""

    cell: Handle
    pid: Annotated[int, msgspec.Meta(ge=2)]


class Exited(Message, frozen=True, tag=True):
    """The cell is dead and reaped: status as of waitpid; guarded: the zygote killed it, to keep the lease."""

    cell: Handle
    status: int
    guarded: bool


# ------------------------------------------------------------------------------------------------ supervisor and warden

CELLS_MAX: Final = 4096


class Examine(Message, frozen=True, tag=True):
    """Say what your host can put in force."""


class Hatch(Message, frozen=True, tag=True):
    """Make a zygote; its end of the line to the supervisor comes along. Its variables, beside what all have."""

    env: Annotated[tuple[Name, ...], msgspec.Meta(max_length=256)]


class Employ(Message, frozen=True, tag=True):
    """Start an egress broker; its end of the line to the supervisor comes along."""


class Look(Message, frozen=True, tag=True):
    """Say what you see of this cell, whose pidfd comes along; its layers, if they are asked for."""

    cell: Handle
    layers: bool


class Signal(Message, frozen=True, tag=True):
    """Signal the cell, whose pidfd comes along, and its group."""

    number: Annotated[int, msgspec.Meta(ge=1, le=64)]


class Measure(Message, frozen=True, tag=True):
    """Say which of these cells hold more on the disk than they may: cell, pid, bytes."""

    cells: Annotated[tuple[tuple[Handle, Handle, Handle], ...], msgspec.Meta(max_length=CELLS_MAX)]


class Drop(Message, frozen=True, tag=True):
    """Delete the scratch directory of a cell, or of one attempt in it."""

    cell: Handle
    attempt: Handle | None = None


class Cull(Message, frozen=True, tag=True):
    """End the zygote, within so many seconds by itself or else by force, and say when it is done."""

    patience_seconds: Seconds


class Holds(Message, frozen=True, tag=True):
    """These layers hold here, each tried for real."""

    layers: Annotated[tuple[Name, ...], msgspec.Meta(max_length=64)]


class Hatched(Message, frozen=True, tag=True):
    """The zygote runs."""

    pid: Handle


class Seen(Message, frozen=True, tag=True):
    """What is seen of a cell. One that is none of the zygote's has no layer."""

    cell: Handle
    layers: Annotated[tuple[Name, ...], msgspec.Meta(max_length=64)]
    below: Handle
    threads: Handle


class Full(Message, frozen=True, tag=True):
    """These cells hold more on the disk than they may."""

    cells: Annotated[tuple[Handle, ...], msgspec.Meta(max_length=CELLS_MAX)]


class Gone(Message, frozen=True, tag=True):
    """The zygote is dead and reaped, and so is all that it had started."""


# ------------------------------------------------------------------------------------------------ supervisor and broker


class Open(Message, frozen=True, tag=True):
    """The first thing a broker hears: the pool's list, and how many connects a job may make."""

    rules: tuple[str, ...]
    connects_max: int
    uid: int | None = None
    gid: int | None = None


class Listen(Message, frozen=True, tag=True):
    """Answer on the listener that comes along."""


class Listening(Message, frozen=True, tag=True):
    """The broker has the listener."""


class Register(Message, frozen=True, tag=True):
    """Let a process connect for the job of this handle; its pidfd comes along."""

    handle: Handle


class Registered(Message, frozen=True, tag=True):
    """It may."""

    handle: Handle


class Forget(Message, frozen=True, tag=True):
    """Let nothing connect for that job any more."""

    handle: Handle


class Used(Message, frozen=True, tag=True):
    """What a job did that is to be forgotten: connects made, refusals, and the first of those as (what, fix)."""

    handle: Handle
    connects: Handle = 0
    refused: Handle = 0
    blocked: Annotated[tuple[tuple[Line_, Line_], ...], msgspec.Meta(max_length=16)] = ()


class Ping(Message, frozen=True, tag=True):
    """Say that you are there."""


class Pong(Message, frozen=True, tag=True):
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


PERMITTED: Final[Mapping[Line, tuple[type[Message], ...]]] = {
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
