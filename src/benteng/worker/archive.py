"""What is in a tar or zip file, one member after the other, read in bounded pieces. Judges nothing, writes nothing.

The format goes by the first bytes, so that nobody sees another archive in the file than we do. Whatever a reader of
the standard library raises on it means that it cannot be read (K-format).
Trust: none of the bytes. No size, count or offset in them decides how much is read at once.
"""

from __future__ import annotations

import bz2
import functools
import gzip
import lzma
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import IO, Any, Final, cast

from benteng.policy import ARCHIVE_PATH_BYTES_MAX, ARCHIVE_READ_BYTES_MAX
from benteng.raised import HandlerSignal, Permanent

SKIP_BYTES: Final = 64 * 1024
HEAD_BYTES: Final = 6
SIZE_MAX: Final = ARCHIVE_READ_BYTES_MAX + 1
SLACK_BYTES: Final = 16 << 20
"""What the headers of a tar file may need beside what is in it."""


class Kind(StrEnum):
    """What a member is. other: a device, a pipe, a socket, a file with holes, or what we do not know."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    HARDLINK = "hardlink"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Member:
    """One entry as the archive has it. `read(n)` gives up to n more bytes of a file, until the next one is asked for.

    target      of a link, as it is written there
    executable  whether its owner may execute it
    """

    name: str
    kind: Kind
    read: Callable[[int], bytes]
    target: str = ""
    executable: bool = False


def members(stream: IO[bytes], bytes_max: int) -> Iterator[Member]:
    """Yield the members. `bytes_max`: more than this will not be kept of them. Raises Permanent."""
    try:
        yield from _members(stream, bytes_max)
    except HandlerSignal:
        raise
    except Exception as error:  # noqa: BLE001 - the readers of tar and zip raise whatever comes to them
        raise _unreadable(error) from None


def too_much(what: str) -> Permanent:
    """Return the error for an archive that exceeds a limit."""
    return Permanent(f"[K-limit] the archive has {what}")


def _members(stream: IO[bytes], bytes_max: int) -> Iterator[Member]:
    head = stream.read(HEAD_BYTES)
    stream.seek(0)
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        yield from _zip(stream)
        return
    opener = next((opener for magic, opener in OPENERS.items() if head.startswith(magic)), _plain)
    yield from _tar(Forward(opener(stream), 2 * bytes_max + SLACK_BYTES))


def _plain(stream: Any) -> Any:
    return stream


OPENERS: Final[dict[bytes, Callable[[Any], Any]]] = {
    b"\x1f\x8b": lambda stream: gzip.GzipFile(fileobj=stream),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
}


class Capped:
    """A file of which nobody reads a large piece at once: readers take sizes from the archive itself."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes; -1: what is left. Raises Permanent when that is too many."""
        data = cast("bytes", self._inner.read(min(size, SIZE_MAX) if size >= 0 else SIZE_MAX))
        if max(size, len(data)) > ARCHIVE_READ_BYTES_MAX:
            raise too_much("a header that is too large")
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go somewhere."""
        return cast("int", self._inner.seek(offset, whence))

    def tell(self) -> int:
        """Return where it stands."""
        return cast("int", self._inner.tell())

    def seekable(self) -> bool:
        """Yes."""
        return True


class Forward(Capped):
    """A file that is read from begin to end, to a limit of what comes out of its decompression."""

    def __init__(self, inner: Any, bytes_max: int) -> None:
        super().__init__(inner)
        self._at = 0
        self._bytes_max = bytes_max

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes. Raises Permanent when that is too many, or all together are."""
        data = super().read(size)
        self._at += len(data)
        if self._at > self._bytes_max:
            raise too_much("more in it than it may")
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        """Skip forward, by reading."""
        if whence or offset < self._at:
            raise ValueError("an archive is read forward")
        while self._at < offset and self.read(min(SKIP_BYTES, offset - self._at)):
            pass
        return self._at

    def tell(self) -> int:
        """Return how much was read."""
        return self._at


def _tar(stream: Forward) -> Iterator[Member]:
    with tarfile.open(fileobj=cast("Any", stream), mode="r:") as archive:
        for each in archive:
            content = archive.extractfile(each) if each.isreg() and not each.issparse() else None
            read = _nothing if content is None else functools.partial(_guarded, content.read)
            yield Member(each.name, _tar_kind(each), read, each.linkname, bool(each.mode & stat.S_IXUSR))


def _tar_kind(each: tarfile.TarInfo) -> Kind:
    if each.issparse():
        return Kind.OTHER
    kinds = {
        Kind.FILE: each.isreg(),
        Kind.DIRECTORY: each.isdir(),
        Kind.SYMLINK: each.issym(),
        Kind.HARDLINK: each.islnk(),
    }
    return next((kind for kind, is_one in kinds.items() if is_one), Kind.OTHER)


ZIP_KINDS: Final = {0: Kind.FILE, stat.S_IFREG: Kind.FILE, stat.S_IFDIR: Kind.DIRECTORY, stat.S_IFLNK: Kind.SYMLINK}


def _zip(stream: IO[bytes]) -> Iterator[Member]:
    with zipfile.ZipFile(cast("Any", Capped(stream))) as archive:
        for each in archive.infolist():
            mode = each.external_attr >> 16
            name = each.orig_filename  # zipfile cuts the other one at a NUL
            kind = Kind.DIRECTORY if each.is_dir() else ZIP_KINDS.get(stat.S_IFMT(mode), Kind.OTHER)
            with archive.open(each) as content:
                read = functools.partial(_guarded, content.read)
                target = read(ARCHIVE_PATH_BYTES_MAX + 1).decode() if kind is Kind.SYMLINK else ""
                yield Member(name, kind, read, target, bool(mode & stat.S_IXUSR))


def _nothing(size: int) -> bytes:
    del size
    return b""


def _guarded(read: Callable[[int], bytes], size: int) -> bytes:
    try:
        return read(size)
    except HandlerSignal:
        raise
    except Exception as error:  # noqa: BLE001 - as in `members`
        raise _unreadable(error) from None


def _unreadable(error: Exception) -> Permanent:
    return Permanent(f"[K-format] the archive cannot be read as tar or zip ({type(error).__name__})")
