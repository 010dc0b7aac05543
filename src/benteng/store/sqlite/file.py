"""The database file: made for its owner alone, refused when somebody else could read, write or swap it.

Nothing here opens a file that exists: closing any descriptor of it would drop SQLite's POSIX locks on it
(sqlite.org/howtocorrupt, 2.2).  Trust: nothing about the path; it may be a link, or another user's.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from benteng.errors import StoreError, StoreUnavailable

Identity = tuple[int, int]
"""(st_dev, st_ino): which file lies at a path."""

SIDES = ("-wal", "-shm", "-journal")


def create(path: Path) -> bool:
    """Make an empty file with mode 0600, whatever the umask; return whether it was made now. Never follows a link."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return False
    except OSError as error:
        raise StoreUnavailable(f"cannot create the ledger {path}: {error.strerror}") from None
    try:
        os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)
    return True


def check(path: Path) -> Identity:
    """Return the identity of a file that only its owner can touch, and of its -wal and -shm.

    Raises StoreUnavailable when it is gone, StoreError with the fix when it is open to others, a link, or another's.
    """
    try:
        found = os.lstat(path)
    except OSError as error:
        raise StoreUnavailable(f"the ledger {path} cannot be reached: {error.strerror}") from None
    _check_one(path, found)
    for side in SIDES:
        beside = Path(f"{path}{side}")
        try:
            _check_one(beside, os.lstat(beside))
        except FileNotFoundError:
            continue
    return (found.st_dev, found.st_ino)


def identity(path: Path) -> Identity | None:
    """Return which file lies at the path now, or None."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return (found.st_dev, found.st_ino)


def make_directory(path: Path) -> None:
    """Make a directory and its missing parents, each 0700."""
    if path.is_dir():
        return
    make_directory(path.parent)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        return
    except OSError as error:
        raise StoreUnavailable(f"cannot create the directory {path}: {error.strerror}") from None


def _check_one(path: Path, found: os.stat_result) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise StoreError(f"{path} is a symbolic link. Name the file itself")
    if not stat.S_ISREG(found.st_mode):
        raise StoreError(f"{path} is not a regular file. Name another one")
    if found.st_uid != os.geteuid():
        raise StoreError(f"{path} belongs to uid {found.st_uid}. Run as that user, or name another file")
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise StoreError(f"{path} can be read or written by others. Run: chmod 600 {path}")
    if found.st_nlink > 1:
        raise StoreError(f"{path} has a second name (hard link). Remove it: two names make two write-ahead logs")
