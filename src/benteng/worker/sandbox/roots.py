"""What a sandboxed cell may read: interpreter, libraries, public data of the system, the app, artifacts. Nothing else.

The store, keys and configuration must lie elsewhere: Landlock cannot take back what lies below a granted directory, so
a worker compares these roots with them before it starts (`exposes`).
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from benteng.worker.sandbox.landlock import Access, Grant

LIBRARIES: Final = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib")
"""The system's libraries, and programs that lie between them; a pool with a list of programs opens none as a whole."""

DATA: Final = (
    "/usr/share/zoneinfo",
    "/usr/share/locale",
    "/usr/share/ca-certificates",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/os-release",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/pki/tls/certs",
    "/etc/pki/tls/openssl.cnf",
    "/etc/pki/ca-trust/extracted",
    "/dev/urandom",
    "/dev/zero",
)
"""Public data of a Linux system; what does not exist is granted to nobody. Not /etc/ssl: it has private keys."""

PACKAGE: Final = str(Path(__file__).resolve().parents[3])
"""The directory that this package is imported from: to be listed; read is only the package itself."""

NAMES: Final = (
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/resolv.conf",
    "/etc/host.conf",
    "/etc/gai.conf",
    "/etc/services",
    "/etc/protocols",
)
"""What a client looks names up in, for pools with `egress`: the first three are the pool's own there."""

DEVICES: Final = ("/dev/null",)

LOADERS: Final = (
    "/lib64/ld-linux-x86-64.so.2",
    "/lib/ld-linux-aarch64.so.1",
    "/lib/ld-musl-x86_64.so.1",
    "/lib/ld-musl-aarch64.so.1",
)
"""What the kernel starts to load a dynamic program; a grant to execute one is no use without it."""


def python() -> tuple[str, ...]:
    """Return the directories of this interpreter's modules and packages."""
    places = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    found = [*places, f"{PACKAGE}/benteng", *(f"{prefix}/pyvenv.cfg" for prefix in (sys.prefix, sys.base_prefix))]
    return tuple(dict.fromkeys(place for place in found if place))


def readable(given: Iterable[str]) -> tuple[str, ...]:
    """Return all that a cell may read: of system and interpreter, and what the worker gives it."""
    shared = sysconfig.get_config_var("LIBDIR")
    own = (shared,) if isinstance(shared, str) else ()
    return outermost((*LIBRARIES, *own, *DATA, *python(), *given))


def outermost(paths: Iterable[str]) -> tuple[str, ...]:
    """Return what exists of these, by its real path and without what lies in another: each one costs every cell."""
    real = sorted({Path(path).resolve() for path in paths if os.path.lexists(path)})
    kept: list[Path] = []
    for path in real:  # sorted: a directory comes before what lies in it
        if not any(path.is_relative_to(other) for other in kept):
            kept.append(path)
    return tuple(str(path) for path in kept)


def coarse(read: Iterable[str], listed: Iterable[str], apart: Sequence[str]) -> tuple[Grant, ...]:
    """Return few grants that let all of this through and nothing that lies apart; for who is held to it elsewhere too.

    Each place is widened to the topmost directory in which nothing lies apart; one that has such is named as it is.
    """
    wide = {_widened(Path(place), apart) for place in (*read, *listed)}
    exact = [place for place in listed if place in wide and any(exposes(place, Path(other)) for other in apart)]
    kept = outermost(place for place in wide if place not in exact)
    return (*(Grant(place, Access.LIST) for place in exact), *(Grant(place, Access.READ) for place in kept))


def _widened(place: Path, apart: Sequence[str]) -> str:
    above = [each for each in (*reversed(place.parents), place) if each != Path("/")]
    return str(next((each for each in above if not any(exposes(str(each), Path(o)) for o in apart)), place))


def application(roots: Iterable[str], secrets: Sequence[Path]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the app's directories to list, and what in them may be read: nothing hidden or secret, no link out of it.

    Keys and a `.env` lie beside the code more often than not. What comes into the directory later is not readable.
    """
    listed, readable = list[str](), list[str]()
    for root in roots:
        listed.append(root)
        for entry in _entries(Path(root)):
            if entry.name.startswith(".") or not exposes(root, entry):
                continue
            if any(exposes(str(entry), secret) for secret in secrets):
                below = application([str(entry)], secrets) if entry.is_dir() else ((), ())
                listed += below[0]
                readable += below[1]
            else:
                readable.append(str(entry))
    return tuple(listed), tuple(readable)


def _entries(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:  # not there, or not ours to read: then nobody below us reads it either
        return []


def around(secrets: Iterable[Path], scratch: str) -> tuple[Grant, ...]:
    """Return grants of all there is but these files and what lies below them: for what is observed and not held.

    Of a directory on the way to one, the names are granted, and the entries that are there now, one by one.
    """
    hidden = [Path(os.path.realpath(each)) for each in secrets]
    places = (*_beside(Path("/"), hidden), scratch)
    given = [Grant(place, access) for place in places for access in (Access.WRITE, Access.EXECUTE)]
    return (Grant("/", Access.LIST), *given)


def _beside(directory: Path, hidden: Sequence[Path]) -> list[str]:
    """Return the entries below a directory, as high up as can be, that neither are nor hold one of these."""
    if directory in hidden:
        return []
    if not any(each.is_relative_to(directory) for each in hidden):
        return [str(directory)]
    return [place for entry in _entries(directory) if not entry.is_symlink() for place in _beside(entry, hidden)]


def grants(read: Iterable[str], write: Iterable[str], listed: Iterable[str] = ()) -> tuple[Grant, ...]:
    """Return what Landlock is told."""
    return (
        *(Grant(path, Access.LIST) for path in listed),
        *(Grant(path, Access.READ) for path in read),
        *(Grant(path, Access.WRITE) for path in write),
        *(Grant(path, Access.DEVICE) for path in DEVICES),
    )


def exposes(root: str, secret: Path) -> bool:
    """Whether a file or directory lies in what may be read, by its real path; also one that does not exist yet."""
    return secret.resolve().is_relative_to(Path(root).resolve())
