"""A small language for system-call filters, and its assembler to classic BPF.

A rule refuses one call unless all its conditions hold. Conditions look at the six argument words, never behind a
pointer. Nothing here decides what is refused: see seccomp.py. (linux/seccomp.h, linux/filter.h)
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, assert_never

ALLOW: Final = 0x7FFF_0000
ERRNO: Final = 0x0005_0000
USER_NOTIF: Final = 0x7FC0_0000
KILL_PROCESS: Final = 0x8000_0000

LOAD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
AND: Final = 0x54
JUMP: Final = 0x05
JUMP_EQUAL: Final = 0x15
JUMP_GREATER: Final = 0x25
JUMP_GREATER_EQUAL: Final = 0x35
JUMP_BITS: Final = 0x45
RETURN: Final = 0x06

OFFSET_NUMBER: Final = 0
OFFSET_ARCH: Final = 4
OFFSET_ARGUMENTS: Final = 16
JUMP_MAX: Final = 255
INSTRUCTIONS_MAX: Final = 4096
BLOCKS_IN_LINE: Final = 4
"""So few blocks are asked one after the other."""

X32_BIT: Final = 0x4000_0000
WHOLE: Final = 0xFFFF_FFFF


class Refusal(StrEnum):
    """What a refused caller sees.

    absent     as if the kernel lacked the call: libraries that try it first fall back
    denied     "operation not permitted": things that ordinary code may try
    network    "permission denied": the network, so that clients report what they know
    option     "protocol not available": socket options; libraries go on without
    violation  nothing does this by accident: denied, or the end of the process where that is asked for
    broker     not decided here: the process that holds the filter's listener answers, and while there is none, absent
    """

    ABSENT = "absent"
    DENIED = "denied"
    NETWORK = "network"
    OPTION = "option"
    VIOLATION = "violation"
    BROKER = "broker"


_ERRNOS: Final = {
    Refusal.ABSENT: errno.ENOSYS,
    Refusal.DENIED: errno.EPERM,
    Refusal.NETWORK: errno.EACCES,
    Refusal.OPTION: errno.ENOPROTOOPT,
    Refusal.VIOLATION: errno.EPERM,
}


@dataclass(frozen=True, slots=True)
class OneOf:
    """The low half of an argument, masked, is one of these values."""

    argument: int
    values: tuple[int, ...]
    mask: int = WHOLE


@dataclass(frozen=True, slots=True)
class NoneOf:
    """The low half of an argument, masked, is none of these values."""

    argument: int
    values: tuple[int, ...]
    mask: int = WHOLE


@dataclass(frozen=True, slots=True)
class NoBits:
    """None of these bits is set in the low half."""

    argument: int
    bits: int


@dataclass(frozen=True, slots=True)
class AnyBits:
    """At least one of these bits is set in the low half."""

    argument: int
    bits: int


@dataclass(frozen=True, slots=True)
class Zero:
    """All 64 bits are zero: a null pointer."""

    argument: int


@dataclass(frozen=True, slots=True)
class NotZero:
    """At least one of the 64 bits is set: a pointer to something."""

    argument: int


@dataclass(frozen=True, slots=True)
class Outside:
    """The low half is not between low and high, both included."""

    argument: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Listed:
    """The low halves of two arguments are a pair of the table."""

    argument: int
    second: int
    table: tuple[tuple[int, tuple[int, ...]], ...]


Condition = OneOf | NoneOf | NoBits | AnyBits | Zero | NotZero | Outside | Listed


@dataclass(frozen=True, slots=True)
class Rule:
    """Refuse a call unless all conditions hold; without conditions always. `why` is for readers and the docs."""

    call: str
    refusal: Refusal
    unless: tuple[Condition, ...] = ()
    why: str = ""


class Instruction(NamedTuple):
    """One instruction of classic BPF."""

    code: int
    true: int
    false: int
    value: int


def assemble(
    rules: Sequence[Rule], numbers: Mapping[str, int | None], arch: int, highest: int, *, x32: bool, kill: bool
) -> bytes:
    """Return the program: foreign conventions kill, unknown numbers are absent, then the rules, then allowed.

    Rules of one call are asked in their order. `kill`: a violation ends the process. Raises ValueError when a program
    would be too long to be right.
    """
    blocks = {
        number: _block(number, group, kill=kill)
        for call, group in _by_call(rules).items()
        if (number := numbers[call]) is not None
    }
    program = [*_prelude(arch, highest, x32=x32), *_search(sorted(blocks.items()))]
    if len(program) > INSTRUCTIONS_MAX:
        raise ValueError("the filter is longer than the kernel takes")
    return b"".join(struct.pack("=HBBI", *each) for each in program)


def _by_call(rules: Sequence[Rule]) -> dict[str, list[Rule]]:
    groups: dict[str, list[Rule]] = {}
    for rule in rules:
        groups.setdefault(rule.call, []).append(rule)
    return groups


def _search(blocks: Sequence[tuple[int, list[Instruction]]]) -> list[Instruction]:
    """Return code that finds the block of a number by halves: the kernel runs a new filter for each number there is."""
    if len(blocks) <= BLOCKS_IN_LINE:
        return [*(part for _, block in blocks for part in block), _return(ALLOW)]
    middle = len(blocks) // 2
    low, high = _search(blocks[:middle]), _search(blocks[middle:])
    found = Instruction(JUMP_GREATER_EQUAL, 0, 1, blocks[middle][0])
    return [found, Instruction(JUMP, 0, 0, len(low)), *low, *high]


def _prelude(arch: int, highest: int, *, x32: bool) -> list[Instruction]:
    foreign = [Instruction(JUMP_GREATER_EQUAL, 0, 1, X32_BIT), _return(KILL_PROCESS)] if x32 else []
    return [
        Instruction(LOAD, 0, 0, OFFSET_ARCH),
        Instruction(JUMP_EQUAL, 1, 0, arch),
        _return(KILL_PROCESS),
        Instruction(LOAD, 0, 0, OFFSET_NUMBER),
        *foreign,
        Instruction(JUMP_GREATER, 0, 1, highest),
        _return(ERRNO | errno.ENOSYS),
    ]


def _block(number: int, rules: Sequence[Rule], *, kill: bool) -> list[Instruction]:
    """Return the part for one call: it always ends with a return, and is jumped over by other calls."""
    body: list[Instruction] = []
    for rule in rules:
        refuse = _return(_action(rule.refusal, kill=kill))
        body += [part for condition in rule.unless for part in _condition(condition, refuse)]
        if not rule.unless:
            body.append(refuse)
    if rules[-1].unless:
        body.append(_return(ALLOW))
    return [Instruction(JUMP_EQUAL, 0, _offset(len(body)), number), *body]


def _action(refusal: Refusal, *, kill: bool) -> int:
    if refusal is Refusal.BROKER:
        return USER_NOTIF
    return KILL_PROCESS if kill and refusal is Refusal.VIOLATION else ERRNO | _ERRNOS[refusal]


def _condition(condition: Condition, refuse: Instruction) -> list[Instruction]:
    """Return code that falls through when the condition holds, and refuses otherwise."""
    match condition:
        case OneOf(argument, values, mask):
            return [*_masked(argument, mask), *_any_equal(values), refuse]
        case NoneOf(argument, values, mask):
            found = [part for value in values for part in (Instruction(JUMP_EQUAL, 0, 1, value), refuse)]
            return [*_masked(argument, mask), *found]
        case NoBits(argument, bits):
            return [_low(argument), Instruction(JUMP_BITS, 0, 1, bits), refuse]
        case AnyBits(argument, bits):
            return [_low(argument), Instruction(JUMP_BITS, 1, 0, bits), refuse]
        case Zero(argument):
            empty = Instruction(JUMP_EQUAL, 1, 0, 0)
            return [_low(argument), empty, refuse, _high(argument), empty, refuse]
        case NotZero(argument):
            found = Instruction(JUMP_EQUAL, 0, 1, 0)
            return [_low(argument), Instruction(JUMP_EQUAL, 0, 3, 0), _high(argument), found, refuse]
        case Outside(argument, low, high):
            bounds = [Instruction(JUMP_GREATER_EQUAL, 0, 2, low), Instruction(JUMP_GREATER, 1, 0, high)]
            return [_low(argument), *bounds, refuse]
        case Listed():
            return _listed(condition, refuse)
        case _:
            assert_never(condition)


def _listed(condition: Listed, refuse: Instruction) -> list[Instruction]:
    """Return the table as code, built from its end: what is found jumps over the rest."""
    code = [refuse]
    for first, seconds in reversed(condition.table):
        found = [_low(condition.second), *_any_equal(seconds), refuse, Instruction(JUMP, 0, 0, len(code))]
        code = [_low(condition.argument), Instruction(JUMP_EQUAL, 0, _offset(len(found)), first), *found, *code]
    return code


def _any_equal(values: Sequence[int]) -> list[Instruction]:
    """Return code that jumps over the next instruction after it when a value is equal."""
    return [Instruction(JUMP_EQUAL, _offset(len(values) - place), 0, value) for place, value in enumerate(values)]


def _masked(argument: int, mask: int) -> list[Instruction]:
    return [_low(argument)] if mask == WHOLE else [_low(argument), Instruction(AND, 0, 0, mask)]


def _low(argument: int) -> Instruction:
    return Instruction(LOAD, 0, 0, OFFSET_ARGUMENTS + 8 * argument)  # both known machines are little-endian


def _high(argument: int) -> Instruction:
    return Instruction(LOAD, 0, 0, OFFSET_ARGUMENTS + 8 * argument + 4)


def _return(value: int) -> Instruction:
    return Instruction(RETURN, 0, 0, value)


def _offset(distance: int) -> int:
    if distance > JUMP_MAX:
        raise ValueError("a jump is longer than an instruction can say")
    return distance


def errno_of(refusal: Refusal) -> int:
    """Return the error that a refused caller sees."""
    return _ERRNOS[refusal]
