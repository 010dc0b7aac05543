"""Where a host has a secret, and its value, read anew each time: it may have been rotated.

A value is text of 8 to 8192 bytes. One line end at the end of a file belongs to the editor, not to the secret. What
is raised names the secret and its place, and never a value.
Trust: the host's own configuration. A file that others may read or change is refused.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from pathlib import Path

import msgspec

from benteng.errors import PolicyError
from benteng.policy import SECRET_BYTES

CREDENTIALS = "CREDENTIALS_DIRECTORY"
"""Where systemd says that a unit's credentials are (systemd.exec(5))."""

OPEN_TO_OTHERS = stat.S_IRWXO | stat.S_IWGRP | stat.S_IXGRP
MEND = {
    errno.ENOENT: "put it there",
    errno.EACCES: "chown it to the worker's user, mode 0400",
}


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where a pool gets one secret: exactly one of these.

    file        full path of a file that holds it, and nothing else
    env         a variable of the worker's own environment; it never reaches handlers by itself
    credential  name of a credential that systemd hands to the worker's unit
    """

    file: str = ""
    env: str = ""
    credential: str = ""

    def __post_init__(self) -> None:
        if sum(map(bool, (self.file, self.env, self.credential))) != 1:
            raise ValueError("a secret comes from one of file, env and credential")
        if self.file and not self.file.startswith("/"):
            raise ValueError("the file of a secret is a full path")
        if "/" in self.credential or self.credential in {".", ".."}:
            raise ValueError("a credential is named without its directory")

    def path(self, environ: Mapping[str, str]) -> Path | None:
        """Return the file that holds the secret; None for a variable, and for a credential that nobody handed out."""
        if self.file:
            return Path(self.file)
        if self.credential and CREDENTIALS in environ:
            return Path(environ[CREDENTIALS]) / self.credential
        return None


def read(name: str, source: Source | None, environ: Mapping[str, str]) -> str:
    """Return the value of a secret now. Raises PolicyError, rule W-secret."""
    if source is None:
        raise _refused(
            name, "this pool does not say where it is", "name its file, env or credential in [pool.X.secrets]"
        )
    path = source.path(environ)
    if path is not None:
        return _checked(name, _content(name, path).removesuffix(b"\n").removesuffix(b"\r"))
    if source.credential:
        raise _refused(
            name, f"{CREDENTIALS} is not set", f"LoadCredential={source.credential}:... in the worker's unit"
        )
    if source.env not in environ:
        raise _refused(name, f"the worker's variable {source.env} is not set", "set it where the worker is started")
    return _checked(name, os.fsencode(environ[source.env]))


def _content(name: str, path: Path) -> bytes:
    """Read a file by the descriptor that was examined; links are followed, as Kubernetes makes them (..data/name)."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        why = f"{path} cannot be read: {os.strerror(error.errno or errno.EIO)}"
        raise _refused(name, why, MEND.get(error.errno or 0, "")) from None
    try:
        _examine(name, path, os.fstat(handle))
        return os.read(handle, SECRET_BYTES[1] + 3)
    except OSError:
        raise _refused(name, f"{path} cannot be read", "look at its file system") from None
    finally:
        os.close(handle)


def _examine(name: str, path: Path, info: os.stat_result) -> None:
    if not stat.S_ISREG(info.st_mode):
        raise _refused(name, f"{path} is no file", "write the secret into a file of its own")
    if info.st_uid not in (os.geteuid(), 0):
        raise _refused(name, f"{path} belongs to somebody else", f"chown it to the worker's user or root: {path}")
    # A group may read what root gave it (0640 root:benteng); systemd's ACL for a unit's user shows as such a group.
    shared = info.st_mode & stat.S_IRGRP and info.st_uid != 0
    if info.st_mode & OPEN_TO_OTHERS or shared:
        raise _refused(name, f"{path} is open to others", f"chmod 0400 {path}")


def _checked(name: str, value: bytes) -> str:
    shortest, longest = SECRET_BYTES
    if not shortest <= len(value) <= longest:
        fix = "a shorter one cannot be taken out of results and logs again" if len(value) < shortest else ""
        raise _refused(name, f"its value has less than {shortest} or more than {longest} bytes", fix)
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise _refused(name, "its value is no text", "write it in base64, and decode it in the handler")
    return text


def _refused(name: str, why: str, fix: str) -> PolicyError:
    return PolicyError("W-secret", f"secret {name}: {why}", fix=fix)
