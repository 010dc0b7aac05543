"""Unpack an archive into a directory of its own: directories and files, nothing else, all within it and within limits.

Each member is judged before anything of it is written, and written relative to directories that we made and opened
(O_NOFOLLOW, O_EXCL). No link is made: one to a file of the same archive becomes a copy. The first member that is
refused ends it; what looks hostile is suspicious, what is merely too much or broken is permanent.
Trust: none of the archive, neither names nor sizes.
"""

from __future__ import annotations

import os
import posixpath
import re
import shutil
import stat
import tempfile
import unicodedata
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from benteng.policy import (
    ARCHIVE_DEPTH_MAX,
    ARCHIVE_ENTRIES_MAX,
    ARCHIVE_NAME_BYTES_MAX,
    ARCHIVE_PATH_BYTES_MAX,
    ARCHIVE_RATIO_MAX,
)
from benteng.raised import HandlerSignal, Permanent, Suspicious
from benteng.redact import clean_line
from benteng.worker.archive import Kind, Member, members, too_much

Parts = tuple[str, ...]

CHUNK_BYTES: Final = 64 * 1024
RATIO_BYTES_MIN: Final = 1 << 20
"""So much may come out of any archive, however small it is: text compresses well."""

LINKS_MAX: Final = 8
"""Links that lead to links that lead to ... a file."""

DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
OLD: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DRIVE: Final = re.compile(r"[A-Za-z]:")


def unpack(archive: Path, scratch: Path, bytes_max: int) -> Path:
    """Return a new directory in scratch with what is in the archive: at most `bytes_max` in all.

    Raises Suspicious or Permanent, naming rule and member; then the directory is gone. OSError when the archive is
    not there or the disk is full.
    """
    with os.fdopen(os.open(archive, OLD), "rb") as stream:
        info = os.fstat(stream.fileno())
        if not stat.S_ISREG(info.st_mode):
            raise Permanent("[K-format] the archive is no file")
        bytes_max = min(bytes_max, max(RATIO_BYTES_MIN, info.st_size * ARCHIVE_RATIO_MAX))
        root = Path(tempfile.mkdtemp(dir=scratch, prefix="unpacked-"))
        try:
            _fill(root, members(stream, bytes_max), bytes_max)
        except BaseException:
            shutil.rmtree(root, ignore_errors=True)
            raise
    return root


def _fill(root: Path, found: Iterable[Member], bytes_max: int) -> None:
    handle = os.open(root, DIRECTORY)
    try:
        tree = Tree(handle, bytes_max)
        for member in found:
            tree.add(member)
        tree.copy_linked()
    finally:
        os.close(handle)


class Tree:
    """What was unpacked so far, below one open directory.

    Names are compared as the pickiest file system would: two that differ in case or composition alone are one.
    """

    def __init__(self, root: int, bytes_max: int) -> None:
        self._root = root
        self._bytes_left = bytes_max
        self._kinds: dict[Parts, tuple[Parts, Kind]] = {(): ((), Kind.DIRECTORY)}
        self._links: dict[Parts, Member] = {}

    def add(self, member: Member) -> None:
        """Judge a member and write it. Raises Suspicious, Permanent, OSError."""
        parts = parts_of(member.name)
        if not parts:
            if member.kind is Kind.DIRECTORY:
                return
            raise suspicious("K-name", member.name, "has no name")
        self._enter(parts, member)
        match member.kind:
            case Kind.DIRECTORY:
                os.close(self._opened(parts))
            case Kind.FILE:
                self._write(parts, member.read, executable=member.executable)
            case Kind.SYMLINK | Kind.HARDLINK:
                target_of(member)
                self._links[parts] = member
            case Kind.OTHER:
                raise suspicious("K-special", member.name, "is neither file nor directory")

    def copy_linked(self) -> None:
        """Make each link a copy of the file that it leads to."""
        for parts, link in self._links.items():
            source = self._behind(link)
            folder = self._opened(source[:-1])
            try:
                handle = os.open(source[-1], OLD, dir_fd=folder)
            finally:
                os.close(folder)
            with os.fdopen(handle, "rb") as stream:
                executable = bool(os.fstat(handle).st_mode & stat.S_IXUSR)
                self._write(parts, stream.read, executable=executable)

    def _enter(self, parts: Parts, member: Member) -> None:
        """Note a member and the directories above it, unless one of them is there already as something else."""
        for end in range(1, len(parts) + 1):
            entry = (parts[:end], member.kind if end == len(parts) else Kind.DIRECTORY)
            known = self._kinds.get(_folded(parts[:end]))
            if known is not None and (known != entry or entry[1] is not Kind.DIRECTORY):
                raise twice(member.name)
            self._kinds[_folded(parts[:end])] = entry
        if len(self._kinds) > ARCHIVE_ENTRIES_MAX:
            raise too_much(f"more than {ARCHIVE_ENTRIES_MAX} files and directories")

    def _behind(self, link: Member) -> Parts:
        """Return the file that a link leads to, over other links. Raises Permanent when there is none."""
        parts = target_of(link)
        for _ in range(LINKS_MAX):
            if parts in self._links:
                parts = target_of(self._links[parts])
        if self._kinds.get(_folded(parts)) != (parts, Kind.FILE):
            raise Permanent(f"[K-link] member {shown(link.name)} leads to no file of the archive")
        return parts

    def _write(self, parts: Parts, read: Callable[[int], bytes], *, executable: bool) -> None:
        folder = self._opened(parts[:-1])
        try:
            handle = os.open(parts[-1], NEW, 0o700 if executable else 0o600, dir_fd=folder)
        finally:
            os.close(folder)
        with os.fdopen(handle, "wb", buffering=0) as stream:
            while chunk := read(CHUNK_BYTES):
                self._bytes_left -= len(chunk)
                if self._bytes_left < 0:
                    raise too_much("more in it than it may")
                stream.write(chunk)

    def _opened(self, parts: Parts) -> int:
        """Return a descriptor of a directory, made where it is missing; nothing on the way is a link."""
        handle = os.dup(self._root)
        for part in parts:
            try:
                _make_directory(part, handle)
                below = os.open(part, DIRECTORY, dir_fd=handle)
            finally:
                os.close(handle)
            handle = below
        return handle


def parts_of(name: str) -> Parts:
    """Return a member's name as the parts of a path; () is the archive's own directory.

    Raises Suspicious for a name that leads elsewhere, or that means different things to different readers; Permanent
    for one that is too long.
    """
    parts = tuple(part for part in name.split("/") if part not in {"", "."})
    size = len(name.encode(errors="surrogatepass"))
    if size > ARCHIVE_PATH_BYTES_MAX or len(parts) > ARCHIVE_DEPTH_MAX:
        raise too_much("a name that is too long or too deep")
    if any(len(part.encode(errors="surrogatepass")) > ARCHIVE_NAME_BYTES_MAX for part in parts):
        raise too_much("a name that is too long or too deep")
    if name.startswith("/") or "\\" in name or _DRIVE.match(name) or ".." in parts:
        raise suspicious("K-outside", name, "leads out of the archive")
    if clean_line(name) != name:
        raise suspicious("K-name", name, "has characters that hide what it is")
    return parts


def target_of(link: Member) -> Parts:
    """Return where a link leads within the archive: a hard link from its root, a symbolic one from where it lies.

    No link is ever made, so that a path means what it says. Raises Suspicious when it leads out, as `parts_of`.
    """
    beside = posixpath.dirname(link.name) if link.kind is Kind.SYMLINK else ""
    leads = posixpath.normpath(posixpath.join(beside, link.target))
    if link.target.startswith("/") or leads.startswith(".."):
        raise suspicious("K-outside", link.name, "is a link out of the archive")
    return parts_of(leads)


def suspicious(rule: str, name: str, why: str) -> HandlerSignal:
    """Return the error for a member that looks hostile."""
    return Suspicious(f"[{rule}] member {shown(name)} {why}")


def twice(name: str) -> Permanent:
    """Return the error for a member whose name another has too, or had with other case or as another kind."""
    return Permanent(f"[K-twice] member {shown(name)} is there already, as something else or in other spelling")


def shown(name: str) -> str:
    """Return a member's name for people."""
    return clean_line(name[:80])


def _folded(parts: Parts) -> Parts:
    return tuple(unicodedata.normalize("NFC", part).casefold() for part in parts)


def _make_directory(name: str, parent: int) -> None:
    try:
        os.mkdir(name, 0o700, dir_fd=parent)
    except FileExistsError:
        return
