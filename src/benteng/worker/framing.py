"""Frames: how a message and raw bytes travel on a line, and how they are put together again.

A frame is a version byte, two u32 lengths, a msgpack header and raw bytes.
Trust: nothing that arrives. Bytes are bounded before they are looked at; see wire.PERMITTED for what they may say.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar, Union

import msgspec

from benteng.worker.wire import (
    FRAME_BYTES_MAX,
    PERMITTED,
    PLAIN_BYTES_MAX,
    Ended,
    Ending,
    Grants,
    Line,
    Message,
    ProtocolError,
    Work,
)

VERSION: Final = 1
PREFIX: Final = struct.Struct(">BII")

INBOX_BYTES: Final = 16 * 1024
"""What a line's buffer has at first: most never hold more, and each page of it costs every cell."""

M = TypeVar("M")

_DECODERS: Final[Mapping[Line, msgspec.msgpack.Decoder[Any]]] = {
    line: msgspec.msgpack.Decoder(Union[messages])  # noqa: UP007 - built from the table
    for line, messages in PERMITTED.items()
}
_ENCODER: Final = msgspec.msgpack.Encoder()


def frame(message: Message, tail: bytes = b"") -> bytes:
    """Return a message as bytes to send."""
    header = _ENCODER.encode(message)
    return PREFIX.pack(VERSION, len(header), len(tail)) + header + tail


def grant_frames(works: Sequence[tuple[Work, bytes]]) -> list[bytes]:
    """Return attempts to make, each with its part of the tail, in as few frames as the cap allows."""
    return _frames([(work, part, PLAIN_BYTES_MAX + len(part)) for work, part in works], Grants)


def ended_frames(endings: Sequence[tuple[Ending, bytes]]) -> list[bytes]:
    """Return how attempts ended, each with its part of the tail, in as few frames as the cap allows."""
    return _frames([(ending, part, ending.header_bytes_max + len(part)) for ending, part in endings], Ended)


def _frames(given: list[tuple[M, bytes, int]], message: Callable[[tuple[M, ...]], Message]) -> list[bytes]:
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


def _frame_of(batch: list[tuple[M, bytes, int]], message: Callable[[tuple[M, ...]], Message]) -> bytes:
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
