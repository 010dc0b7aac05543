"""Which programs the jobs of a pool may start, and the files that these and Python itself need: resolved at start.

With a list, a cell does not read the system's library directories as a whole. It reads the libraries that are needed,
one by one: a readable program that may not be executed could else be run all the same, as `ld.so PROGRAM`.
Trust: the pool's settings; nothing of the files that they name.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benteng.errors import PolicyError
from benteng.worker.sandbox import elf, roots
from benteng.worker.sandbox.library_cache import cached_libraries

LIBRARY_DIRECTORIES: Final = ("/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib")
"""Where the loader looks when its cache does not know a name."""

BY_NAME_ALONE: Final = ("libnss_", "libresolv.so", "libgcc_s.so", "libanl.so")
"""Libraries that the C library loads when it needs them, and no file lists as needed."""

FILES_MAX: Final = 200_000
"""Files that are looked at in what cells may read."""


@dataclass(frozen=True, slots=True)
class Programs:
    """What a list comes to, by real paths.

    run     the programs, and the loaders that the kernel starts for them
    read    all else that is opened: libraries one by one; directories as a whole where no other program lies in them
    listed  directories that are opened entry by entry: of these only the names are known
    """

    run: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    listed: tuple[str, ...] = ()


def resolve(pool: str, names: Sequence[str], places: Iterable[str]) -> Programs:
    """Return what may be run, and what of these places may be read besides. Raises PolicyError (W-exec)."""
    programs = [_checked(pool, name) for name in names]
    finder = Finder()
    run = dict.fromkeys(each for path in programs for each in (path, *finder.take(path)))
    roots_ = roots.outermost(places)
    strange = set[str]()
    for path in _elf_files(pool, roots_):
        if not elf.is_program(path):
            finder.take(path)
        elif os.path.realpath(path) not in run:
            strange.add(path)
    finder.take(os.path.realpath(sys.executable))
    finder.take_by_name_alone()
    listed, readable = list[str](), list[str]()
    for root in roots_:
        _open(root, strange, listed, readable)
    return Programs(tuple(run), roots.outermost((*readable, *(finder.found - run.keys()))), tuple(listed))


def check(pool: str, names: Sequence[str]) -> None:
    """Raise PolicyError (W-exec) for the first name that is no program which may be listed."""
    for name in names:
        _checked(pool, name)


def _checked(pool: str, name: str) -> str:
    """Return the real path of a program that may be listed."""
    if not name.startswith("/"):
        raise _refused(pool, f"{name} is not a full path", "write the program's full path")
    path = os.path.realpath(name)
    try:
        found = Path(path).stat()
        with Path(path).open("rb") as file:
            start = file.read(2)
    except OSError:
        raise _refused(pool, f"{name} is not there, or not to be read", "take it out, or install it") from None
    if not stat.S_ISREG(found.st_mode) or not found.st_mode & 0o111:
        raise _refused(pool, f"{name} is not a program", "name a file that can be executed")
    if start == b"#!":
        raise _refused(pool, f"{name} is a script", "list its interpreter, and give the script by `read`")
    _check_rights(pool, name, path, found)
    _check_kind(pool, name, path)
    return path


def _check_rights(pool: str, name: str, path: str, found: os.stat_result) -> None:
    if found.st_mode & (stat.S_ISUID | stat.S_ISGID) or "security.capability" in os.listxattr(path):
        raise _refused(pool, f"{name} gives rights to whoever starts it", "list a program without set-uid bits")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise _refused(pool, f"{name} may be written by others", f"chmod go-w {name}")


def _check_kind(pool: str, name: str, path: str) -> None:
    try:
        found = elf.read(path)
    except (elf.ElfError, OSError):
        raise _refused(pool, f"{name} is not a program of this machine", "list an ELF program") from None
    if not found.program:
        raise _refused(pool, f"{name} is a library or a loader, which runs whatever can be read", "list a program")
    if path in {os.path.realpath(each) for each in roots.LOADERS}:
        raise _refused(pool, f"{name} is the loader, which runs whatever can be read", "list the program itself")


def _refused(pool: str, what: str, fix: str) -> PolicyError:
    return PolicyError("W-exec", f"pool {pool}: {what}", field="exec", fix=fix)


class Finder:
    """Finds libraries as the loader does, but takes every one that it could take: more files, none of them a guess."""

    def __init__(self) -> None:
        self.found: set[str] = set()
        self._read: set[str] = set()
        self._cache = cached_libraries()

    def take(self, path: str) -> list[str]:
        """Add what a file needs, what that needs, and so on; return the loaders that they name."""
        loaders, waiting = list[str](), [os.path.realpath(path)]
        while waiting:
            real = waiting.pop()
            found = None if real in self._read else _understood(real)
            self._read.add(real)
            if found is None:
                continue
            if found.interpreter:
                loaders.append(os.path.realpath(found.interpreter))
            waiting += [library for name in found.needed for library in self._places(name, found, real)]
            self.found.update(waiting)
        self.found.update(loaders)
        return loaders

    def take_by_name_alone(self) -> None:
        """Add the libraries that are loaded without being listed anywhere."""
        for name, places in self._cache.items():
            if name.startswith(BY_NAME_ALONE):
                for path in map(os.path.realpath, places):
                    self.found.add(path)
                    self.take(path)

    def _places(self, name: str, needing: elf.Elf, path: str) -> Iterator[str]:
        for candidate in self._candidates(name, needing, path):
            found = _understood(candidate)
            if found is not None and found.machine == needing.machine:
                yield os.path.realpath(candidate)

    def _candidates(self, name: str, needing: elf.Elf, path: str) -> list[str]:
        if "/" in name:
            return [name]
        origin = str(Path(path).parent)
        own = [each.replace("$ORIGIN", origin).replace("${ORIGIN}", origin) for each in needing.search]
        known = self._cache.get(name) or [f"{directory}/{name}" for directory in LIBRARY_DIRECTORIES]
        return [*(f"{directory}/{name}" for directory in own), *known]


def _understood(path: str) -> elf.Elf | None:
    try:
        return elf.read(path)
    except (elf.ElfError, OSError):
        return None


def _elf_files(pool: str, places: Iterable[str]) -> Iterator[str]:
    """Yield the ELF files in these places, following no link. Raises PolicyError when there are too many files."""
    left, waiting = FILES_MAX, [*places]
    yield from (place for place in waiting if elf.is_elf(place))
    while waiting:
        for entry in _entries(waiting.pop()):
            left -= 1
            if left < 0:
                fix = "name less in `read`"
                raise _refused(pool, f"more than {FILES_MAX} files lie in what its cells may read", fix)
            if entry.is_dir():
                waiting.append(entry.path)
            elif entry.is_file() and elf.is_elf(entry.path):
                yield entry.path


def _entries(directory: str) -> list[os.DirEntry[str]]:
    """Return what lies in a directory but links; nothing of a file, nor of what is not ours to read."""
    try:
        with os.scandir(directory) as found:
            return [entry for entry in found if not entry.is_symlink()]
    except OSError:
        return []


def _open(place: str, strange: set[str], listed: list[str], readable: list[str]) -> None:
    """Open a directory as a whole when nothing strange lies in it, else entry by entry and no link of it."""
    if place in strange:
        return
    inside = {path for path in strange if path.startswith(f"{place}/")}
    if not inside:
        readable.append(place)
        return
    listed.append(place)
    for path in sorted(entry.path for entry in _entries(place)):
        _open(path, inside, listed, readable)
