"""The scratch directories of a pool's cells: made by each cell, deleted afterwards, a bounded piece at a time.

Deleting never follows a symbolic link and never recurses: a directory found inside another is moved up and emptied in
its turn, so that neither depth nor size of what a job leaves can hold up the supervisor's one thread.
Trust: nothing of what is in them; handlers filled them.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections import deque
from collections.abc import Collection
from itertools import count, islice
from pathlib import Path

ENTRIES_PER_SWEEP = 500
ENTRIES_MAX = 10_000
"""Files and directories that a cell may have in its scratch."""

PLACE = 0
"""Where a cell works that makes one attempt after the other. It stays while each leaves it empty: to make and delete a
directory for each waits for the disk as often as whoever else uses it (handles of attempts are above 0)."""

BLOCK_BYTES = 512
"""The unit of st_blocks, whatever the file system's own."""
PREFIX = "benteng-scratch-"
PRIVATE = 0o700
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def directory_of(root: Path, cell: int) -> Path:
    """Return the directory of a cell."""
    return root / f"cell-{cell}"


def is_over(path: Path, pid: int, bytes_max: int, entries_max: int = ENTRIES_MAX) -> bool:
    """Whether a cell holds more on the disk than it may: in its directory, and in files that it deleted and kept open.

    Looks at a bounded number of entries, follows no link, and counts blocks, not sizes; too many entries are too much.
    """
    left = bytes_max - _deleted_bytes(pid)
    directories = [os.fspath(path)]
    while directories and left >= 0:
        entries = _scanned(directories.pop())
        entries_max -= len(entries)
        if entries_max < 0:
            return True
        for entry in entries:
            left -= _blocks_bytes(entry)
        directories += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    return left < 0


def _scanned(directory: str) -> list[os.DirEntry[str]]:
    """Return the entries of a directory, one more than are too many at most; what is gone or closed to us has none."""
    try:
        with os.scandir(directory) as found:
            return list(islice(found, ENTRIES_MAX + 1))
    except OSError:
        return []


def _blocks_bytes(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_blocks * BLOCK_BYTES
    except OSError:
        return 0


def _deleted_bytes(pid: int) -> int:
    total = 0
    for entry in _scanned(f"/proc/{pid}/fd"):
        try:
            found = Path(entry.path).stat()
        except OSError:
            continue
        if stat.S_ISREG(found.st_mode) and found.st_nlink == 0:
            total += found.st_blocks * BLOCK_BYTES
    return total


class Scratch:
    """One worker's scratch root, 0700, and what is still to be deleted in it."""

    def __init__(self, parent: Path | None = None, owner: tuple[int, int] | None = None) -> None:
        """Make the root, below `parent` or the host's directory for temporary files; it belongs to `owner`.

        It is locked while this process lives. Roots of workers that died without cleaning up are deleted with ours.
        """
        import tempfile  # not for cells, which only name their directories

        made = Path(tempfile.mkdtemp(prefix=f".{PREFIX}", dir=parent))
        if owner is not None:
            os.chown(made, *owner, follow_symlinks=False)
        self._bin = os.open(made, DIRECTORY)
        fcntl.flock(self._bin, fcntl.LOCK_EX)
        self.root = made.rename(made.with_name(made.name[1:]))
        self._names = count()
        self._waste: deque[str] = deque()
        self._handles: dict[int, int] = {}
        for path in self.root.parent.glob(f"{PREFIX}*"):
            if path != self.root and _is_abandoned(path, (os.getuid(), *(owner or ())[:1])):
                self._take(path)

    def path(self, cell: int) -> Path:
        """Return the directory of a cell, which makes it when it is born."""
        return directory_of(self.root, cell)

    def drop(self, cell: int, attempt: int | None = None) -> None:
        """Take the directory of a cell, or of one attempt in it, away; it is deleted piece by piece.

        What is not there is no matter. No link is followed: whoever has the cell's uid may have put one there.
        """
        if attempt is not None:
            handle = self._handle(cell)
            if handle >= 0 and not (attempt == PLACE and is_untouched(str(PLACE), handle)):
                self._take(str(attempt), handle)
            return
        handle = self._handles.pop(cell, -1)
        if handle >= 0:
            os.close(handle)
        self._take(directory_of(self.root, cell).name, self._bin)

    def _handle(self, cell: int) -> int:
        """Return the descriptor of a cell's directory, which stays open as long as the cell; -1: there is none."""
        if cell not in self._handles:
            try:
                self._handles[cell] = os.open(directory_of(self.root, cell).name, DIRECTORY, dir_fd=self._bin)
            except OSError:
                return -1
        return self._handles[cell]

    def _take(self, path: str | Path, directory: int | None = None) -> None:
        name = f"waste-{next(self._names)}"
        try:
            os.rename(path, name, src_dir_fd=directory, dst_dir_fd=self._bin)
        except OSError:
            return
        self._waste.append(name)

    @property
    def dirty(self) -> bool:
        """Whether something is left to delete."""
        return bool(self._waste)

    def sweep(self, entries: int = ENTRIES_PER_SWEEP) -> None:
        """Delete up to so many entries."""
        while self._waste and entries > 0:
            entries = self._empty(self._waste.popleft(), entries)

    def close(self) -> None:
        """Delete what can be deleted within a bounded effort, and the root if it is empty then."""
        for path in self.root.glob("cell-*"):
            self._take(path.name, self._bin)
        self.sweep(100 * ENTRIES_PER_SWEEP)
        for handle in (*self._handles.values(), self._bin):
            os.close(handle)
        try:
            self.root.rmdir()
        except OSError:
            return

    def _empty(self, name: str, entries: int) -> int:
        """Delete entries of one directory, then itself; return how many more may be deleted."""
        try:
            handle = self._opened(name)
        except OSError:
            self._unlink(name, self._bin)
            return entries - 1
        try:
            return self._delete(name, handle, entries)
        finally:
            os.close(handle)

    def _delete(self, name: str, handle: int, entries: int) -> int:
        with os.scandir(handle) as found:
            for entry in found:
                if entries <= 0:
                    self._waste.append(name)
                    return 0
                entries -= 1
                self._delete_entry(handle, entry)
        try:
            os.rmdir(name, dir_fd=self._bin)
        except OSError:  # somebody wrote into it meanwhile, or the file system is read-only: try again some other time
            return entries - 1
        return entries - 1

    def _delete_entry(self, handle: int, entry: os.DirEntry[str]) -> None:
        if not entry.is_dir(follow_symlinks=False):
            self._unlink(entry.name, handle)
            return
        moved = f"waste-{next(self._names)}"
        try:
            _open_up(entry.name, handle)
            os.rename(entry.name, moved, src_dir_fd=handle, dst_dir_fd=self._bin)
        except OSError:
            return
        self._waste.append(moved)

    def _opened(self, name: str) -> int:
        _open_up(name, self._bin)
        return os.open(name, DIRECTORY, dir_fd=self._bin)

    @staticmethod
    def _unlink(name: str, handle: int) -> None:
        try:
            os.unlink(name, dir_fd=handle)
        except OSError:
            return


def is_untouched(name: str, parent: int) -> bool:
    """Whether it is a directory as it was made: private, and empty."""
    try:
        handle = os.open(name, DIRECTORY, dir_fd=parent)
    except OSError:
        return False
    try:
        with os.scandir(handle) as found:
            return stat.S_IMODE(os.fstat(handle).st_mode) == PRIVATE and next(found, None) is None
    finally:
        os.close(handle)


def _is_abandoned(path: Path, uids: Collection[int]) -> bool:
    """Whether a root belongs to one of these users, and no living process has it locked."""
    try:
        handle = os.open(path, DIRECTORY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.fstat(handle).st_uid in uids
    except OSError:
        return False
    finally:
        os.close(handle)


def _open_up(name: str, parent: int) -> None:
    """Give a directory the mode 0700, whatever its owner made of it; a link is not followed. Raises OSError."""
    handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        if not stat.S_ISDIR(os.fstat(handle).st_mode):
            raise NotADirectoryError
        os.chmod(f"/proc/self/fd/{handle}", PRIVATE)  # noqa: PTH101 - no path, and asked for each directory
    finally:
        os.close(handle)
