"""Read what an ELF file says about itself: whether it is a program, its loader, and the libraries that it needs.

Only the headers and the dynamic section are read, and every offset and count is bounded. 64-bit little-endian files
alone are understood, as both known machines have them; another ELF file is called foreign. (elf(5), gABI)
Trust: nothing of the file. What cannot be understood raises, or is a program, whichever lets less through.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

MAGIC: Final = b"\x7fELF"
IDENT: Final = MAGIC + bytes((2, 1))
"""How a file of 64 bits begins whose numbers have their low byte first."""

IDENT_BYTES: Final = 16
TYPE_EXECUTABLE, TYPE_SHARED = 2, 3
SEGMENT_LOAD, SEGMENT_DYNAMIC, SEGMENT_INTERPRETER = 1, 2, 3
TAG_NEEDED, TAG_STRINGS, TAG_RPATH, TAG_RUNPATH, TAG_FLAGS_1 = 1, 5, 15, 29, 0x6FFF_FFFB
FLAG_1_PIE: Final = 0x0800_0000

HEADER: Final = struct.Struct("<HHIQQQIHHHHHH")
"""What follows the sixteen bytes that say how to read the rest."""

SEGMENT: Final = struct.Struct("<IIQQQQQQ")
ENTRY: Final = struct.Struct("<qQ")
FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
"""To open any file without waiting for somebody at the other end of a pipe."""

SEGMENTS_MAX: Final = 256
ENTRIES_MAX: Final = 4_096
NAME_BYTES_MAX: Final = 4_096


class ElfError(ValueError):
    """An ELF file that is damaged, or of another machine."""


@dataclass(frozen=True, slots=True)
class Elf:
    """What a file says.

    program      it is meant to be started: linked as one, or it names a loader
    interpreter  the loader that the kernel starts for it; "" when it needs none
    needed       names of libraries;  search: directories to look for them first, may begin with $ORIGIN
    """

    machine: int
    program: bool
    interpreter: str
    needed: tuple[str, ...]
    search: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Segment:
    kind: int
    offset: int
    address: int
    bytes_in_file: int


def is_elf(path: str) -> bool:
    """Whether a regular file begins as an ELF file does; one that cannot be read is none that anybody could run."""
    try:
        handle = os.open(path, FLAGS)
    except OSError:
        return False
    try:
        return os.pread(handle, len(MAGIC), 0) == MAGIC
    except OSError:  # a directory
        return False
    finally:
        os.close(handle)


def is_program(path: str) -> bool:
    """Whether a file is an ELF file that is meant to be started, or one that is not understood."""
    if not is_elf(path):
        return False
    try:
        return read(path).program
    except (ElfError, OSError):
        return True


def read(path: str) -> Elf:
    """Return what an ELF file says. Raises ElfError, OSError."""
    with _opened(path) as handle:
        kind, machine, _, _, segments_at, _, _, _, size, count, *_ = _unpack(HEADER, handle, IDENT_BYTES)
        if os.pread(handle, len(IDENT), 0) != IDENT or kind not in (TYPE_EXECUTABLE, TYPE_SHARED):
            raise ElfError("not a 64-bit little-endian program or library")
        if size != SEGMENT.size or count > SEGMENTS_MAX:
            raise ElfError("its program headers are not as they should be")
        segments = [_segment(handle, segments_at + index * size) for index in range(count)]
        interpreter = "".join(_text(handle, each.offset) for each in segments if each.kind == SEGMENT_INTERPRETER)
        if not any(each.kind == SEGMENT_LOAD for each in segments):
            raise ElfError("it has nothing to load")
        dynamic = list(_dynamic(handle, segments))
        pie = any(tag == TAG_FLAGS_1 and value & FLAG_1_PIE for tag, value in dynamic)
        return Elf(
            machine=machine,
            program=kind == TYPE_EXECUTABLE or bool(interpreter) or pie,
            interpreter=interpreter,
            needed=tuple(_strings(handle, segments, dynamic, TAG_NEEDED)),
            search=_search(handle, segments, dynamic),
        )


@contextmanager
def _opened(path: str) -> Generator[int]:
    handle = os.open(path, FLAGS)
    try:
        yield handle
    finally:
        os.close(handle)


def _unpack(form: struct.Struct, handle: int, offset: int) -> tuple[int, ...]:
    data = os.pread(handle, form.size, offset) if offset < 1 << 62 else b""
    if len(data) != form.size:
        raise ElfError("it is shorter than it says")
    return form.unpack(data)


def _segment(handle: int, at: int) -> _Segment:
    kind, _, offset, address, _, bytes_in_file, _, _ = _unpack(SEGMENT, handle, at)
    return _Segment(kind, offset, address, bytes_in_file)


def _dynamic(handle: int, segments: list[_Segment]) -> Generator[tuple[int, int]]:
    for segment in segments:
        if segment.kind == SEGMENT_DYNAMIC:
            for index in range(min(segment.bytes_in_file // ENTRY.size, ENTRIES_MAX)):
                tag, value = _unpack(ENTRY, handle, segment.offset + index * ENTRY.size)
                if tag == 0:
                    return
                yield tag, value


def _strings(handle: int, segments: list[_Segment], dynamic: list[tuple[int, int]], wanted: int) -> Generator[str]:
    """Yield the texts of a tag: offsets into a table that is given by its address in memory."""
    table = next((value for tag, value in dynamic if tag == TAG_STRINGS), None)
    for tag, value in dynamic:
        if tag == wanted and table is not None:
            yield _text(handle, _offset(segments, table + value))


def _search(handle: int, segments: list[_Segment], dynamic: list[tuple[int, int]]) -> tuple[str, ...]:
    found = [text for tag in (TAG_RUNPATH, TAG_RPATH) for text in _strings(handle, segments, dynamic, tag)]
    return tuple(part for text in found for part in text.split(":") if part)


def _offset(segments: list[_Segment], address: int) -> int:
    for each in segments:
        if each.kind == SEGMENT_LOAD and each.address <= address < each.address + each.bytes_in_file:
            return address - each.address + each.offset
    raise ElfError("an address that no part of the file has")


def _text(handle: int, offset: int) -> str:
    data = os.pread(handle, NAME_BYTES_MAX, offset) if offset < 1 << 62 else b""
    text, end, _ = data.partition(b"\0")
    if not end:
        raise ElfError("a name without an end")
    return os.fsdecode(text)
