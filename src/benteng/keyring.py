"""Keys: who may sign what, and the private keys of this host.

A trust root is a public key with one role, one origin and a time window; what is signed is judged against the
`trust.toml` of the *judge's own* host. Reading is apart from parsing: only `load_*` and `generate` touch files.
Trust: the owner of the files. A private key that others can read, or trust roots that others can write, are refused.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import os
import stat
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, NoReturn, cast

import msgspec

from benteng.clock import Instant
from benteng.errors import KeyringError
from benteng.redact import clean_line

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

KEY_BYTES = 32
KEY_ID_HEX_CHARS = 16
ORIGIN_CHARS_MAX = 128
KEY_FILE_BYTES_MAX = 4096
TRUST_FILE_BYTES_MAX = 1 << 20
VALID_DAYS_DEFAULT = 365

MAKE_KEYS = "Make keys with: benteng init --keys"
TRUST_FILE = "trust.toml"
INSTALLATION_KEY_FILE = "installation.key"


RULES: Mapping[str, str] = MappingProxyType(
    {
        "K-missing": "a key or trust file does not exist or cannot be read",
        "K-mode": "a private key is open to others, or a trust file can be written by others",
        "K-owner": "a key or trust file belongs to another user",
        "K-place": "a directory on the way can be written by everybody, or a file is no regular file",
        "K-exists": "a key would be overwritten",
        "K-toml": "the trust file is no TOML",
        "K-unknown": "the trust file has an unknown field",
        "K-field": "a field of the trust file is missing or not what it should be",
        "K-key": "a key is not 32 bytes in base64, or its id is not the digest of its bytes",
        "K-window": "a key's validity ends before it begins",
        "K-write": "a key or trust file cannot be written",
        "K-size": "a key or trust file is too large",
    },
)
"""The rules of this module by id; each KeyringError names one (docs/reference/envelope.md)."""


class Role(StrEnum):
    """What a key may sign. A key has exactly one."""

    PRODUCER = "producer"
    APPROVER = "approver"
    SEALER = "sealer"
    OPERATOR = "operator"


ROLES: Mapping[Role, str] = MappingProxyType(
    {
        Role.PRODUCER: "signs job envelopes",
        Role.APPROVER: "votes on actions",
        Role.SEALER: "signs audit checkpoints",
        Role.OPERATOR: "proposes actions and tightens control",
    },
)


@dataclass(frozen=True, slots=True)
class TrustedKey:
    """One trust root. `origin` says whose key it is; valid from `not_before` until just before `not_after`."""

    key_id: str
    role: Role
    public: bytes
    origin: str
    not_before: Instant
    not_after: Instant
    revoked: bool = False


@dataclass(frozen=True, slots=True)
class TrustRoots:
    """The keys that this host trusts, by key id. What is not in it is not trusted."""

    keys: Mapping[str, TrustedKey]

    def find(self, key_id: str) -> TrustedKey | None:
        """Return the key of that id, revoked and expired ones too: the caller judges."""
        return self.keys.get(key_id)

    def __iter__(self) -> Iterator[TrustedKey]:
        return iter(self.keys.values())

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(frozen=True, slots=True, repr=False)
class SigningKey:
    """A private Ed25519 key (RFC 8032) that signs and never shows itself."""

    key_id: str
    public: bytes
    _private: Ed25519PrivateKey = field(compare=False)

    @classmethod
    def from_seed(cls, seed: bytes) -> SigningKey:
        """Return the key of a seed of 32 bytes. Raises KeyringError for any other length."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        if len(seed) != KEY_BYTES:
            raise _error("K-key", "the seed of a key", f"must have {KEY_BYTES} bytes", MAKE_KEYS)
        private = Ed25519PrivateKey.from_private_bytes(seed)
        public = private.public_key().public_bytes_raw()
        return cls(key_id_of(public), public, private)

    def sign(self, message: bytes) -> bytes:
        """Return the signature, 64 bytes. The same message gives the same signature."""
        return self._private.sign(message)

    def __repr__(self) -> str:
        return f"SigningKey({self.key_id})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a signing key does not leave its process: load it from its file where it is needed")


def key_id_of(public: bytes) -> str:
    """Return the id of a raw public key: the first 16 hex characters of its SHA-256."""
    return hashlib.sha256(public).hexdigest()[:KEY_ID_HEX_CHARS]


# ------------------------------------------------------------------------------------------------- parsing, without I/O


_ORIGIN = r"\A(?:[a-z][a-z0-9_-]*:[A-Za-z0-9._@/-]+|[a-z_][a-z0-9_]*)\Z"
"""os:1000, svc:deployer; or a login of a PostgreSQL ledger as it is."""


class _KeyTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: Role
    public: Annotated[str, msgspec.Meta(max_length=64)]
    origin: Annotated[str, msgspec.Meta(pattern=_ORIGIN, max_length=ORIGIN_CHARS_MAX)]
    not_before: Annotated[datetime, msgspec.Meta(tz=True)]
    not_after: Annotated[datetime, msgspec.Meta(tz=True)]
    revoked: bool = False


def parse_trust(text: str) -> TrustRoots:
    """Return the trust roots written in `trust.toml`. Raises KeyringError: wrong in part is wrong whole."""
    import tomllib

    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _error("K-toml", TRUST_FILE, f"is no TOML ({_place(error)})", "Correct the file") from None
    _refuse_unknown("", document, ["key"])
    tables = _table("key", document.get("key", {}))
    return TrustRoots(MappingProxyType({key_id: _trusted_key(key_id, table) for key_id, table in tables.items()}))


def format_trust(keys: Iterable[TrustedKey]) -> str:
    """Return `trust.toml` for these keys; `parse_trust` reads the same keys back."""
    return _HEADING + "".join(map(_format_key, keys))


def parse_key(text: str) -> bytes:
    """Return the 32 bytes of a key file: base64 on one line. Raises KeyringError, which never shows the text."""
    return _decode_key("the key file", text.removesuffix("\n"))


def _trusted_key(key_id: str, value: object) -> TrustedKey:
    where = f"key.{key_id}"
    table = _convert(where, _table(where, value))
    public = _decode_key(f"{where}.public", table.public)
    if key_id_of(public) != key_id:
        raise _error("K-key", where, "is not the id of its public key", f"Name the table [key.{key_id_of(public)}]")
    if table.not_after <= table.not_before:
        raise _error("K-window", f"{where}.not_after", "is not after not_before", "Correct the dates")
    window = (_instant(table.not_before), _instant(table.not_after))
    return TrustedKey(key_id, table.role, public, table.origin, *window, revoked=table.revoked)


def _convert(where: str, table: dict[str, object]) -> _KeyTable:
    _refuse_unknown(where, table, _KeyTable.__struct_fields__)
    for name in ("not_before", "not_after"):
        # msgspec would also take a string; a TOML date-time is checked by the TOML parser and by editors.
        if not isinstance(table.get(name), datetime):
            raise _error("K-field", f"{where}.{name}", "must be a TOML date-time", "Write it as 2026-01-31T00:00:00Z")
    try:
        return msgspec.convert(table, _KeyTable)
    except msgspec.ValidationError as error:
        raise _error("K-field", where, _without_value(error), "See docs/reference/envelope.md") from None


def _refuse_unknown(where: str, table: Mapping[str, object], known: Iterable[str]) -> None:
    for name in table:
        if name not in known:
            import difflib

            close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.0)
            raise _error("K-unknown", where or TRUST_FILE, "has an unknown field", f"Did you mean {close[0]!r}?")


def _table(where: str, value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise _error("K-field", where, "must be a table", "Write [key.<id>]")
    return cast("dict[str, object]", value)


def _decode_key(where: str, text: str) -> bytes:
    """Return 32 bytes from their one canonical base64 form."""
    try:
        raw = base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        raw = b""
    if len(raw) != KEY_BYTES or base64.b64encode(raw).decode() != text:
        raise _error("K-key", where, f"is not {KEY_BYTES} bytes in base64", MAKE_KEYS)
    return raw


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _instant(when: datetime) -> Instant:
    return (when - _EPOCH) // timedelta(microseconds=1)


_HEADING = """\
# The keys that this host trusts (docs/reference/envelope.md). Who can write this file decides what runs here:
# change it by hand, on this host, after looking at the key. Retire a key with revoked = true; do not delete it.
"""


def _format_key(key: TrustedKey) -> str:
    return f"""
[key.{key.key_id}]
role = "{key.role}"
public = "{base64.b64encode(key.public).decode()}"
origin = "{key.origin}"
not_before = {_date_time(key.not_before)}
not_after = {_date_time(key.not_after)}
revoked = {"true" if key.revoked else "false"}
"""


def _date_time(instant: Instant) -> str:
    return (_EPOCH + timedelta(microseconds=instant)).isoformat().replace("+00:00", "Z")


def _without_value(error: msgspec.ValidationError) -> str:
    """Return what was expected and where, without what was found."""
    said, at, found_at = str(error).rpartition(" - at `$")
    what, place = (said, found_at) if at else (found_at, "")
    what = "has no valid role" if "enum" in what else what.partition(", got")[0].replace("Expected", "expected")
    return f"{place.strip('.`')} {what}".strip()


def _place(error: ValueError) -> str:
    """Return "at line 3, column 9" of a TOML error, without the words that may quote the file."""
    return str(error).rpartition("(")[2].rstrip(")")


def _error(rule: str, where: str, reason: str, fix: str) -> KeyringError:
    return KeyringError(f"[{rule}] {clean_line(where, bytes_max=512)}: {reason}. {fix}")


# ---------------------------------------------------------------------------------------------------------------- files


def load_signing_key(path: Path) -> SigningKey:
    """Return the private key in a file that only its owner, the present user, can read. Raises KeyringError."""
    return SigningKey.from_seed(parse_key(_read_private(path)))


def load_installation_key(path: Path) -> bytes:
    """Return the secret key of the audit's keyed digests (`redact.keyed`), kept like a private key."""
    return parse_key(_read_private(path))


def load_trust(path: Path) -> TrustRoots:
    """Return the trust roots in a file that only root or the present user can write. Raises KeyringError."""
    _refuse_open_directory(path)
    with _opened(path) as (stream, status):
        if status.st_uid not in {0, os.geteuid()}:
            raise _error("K-owner", str(path), "belongs to another user", f"Run: chown root {path}")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise _error("K-mode", str(path), "can be written by others", f"Run: chmod 644 {path}")
        return parse_trust(_read(stream, path, TRUST_FILE_BYTES_MAX))


def generate(
    directory: Path,
    *,
    origin: str,
    now: Instant,
    roles: Iterable[Role] = tuple(Role),
    valid_days: int = VALID_DAYS_DEFAULT,
    random_bytes: Callable[[int], bytes] = os.urandom,
) -> TrustRoots:
    """Make one key per role, the installation key, and the trust roots that name them; return the trust roots.

    `directory` (0700, made when missing) gets `<role>.key` and `installation.key` (0600) and, last, `trust.toml`
    (0644): until that exists nothing is trusted. Overwrites nothing: raises KeyringError when a file is there.
    """
    seeds = {role: random_bytes(KEY_BYTES) for role in roles}
    keys = [_new_root(role, seed, origin, now, valid_days) for role, seed in seeds.items()]
    roots = _checked(keys)
    private = {f"{role}.key": seed for role, seed in seeds.items()} | {INSTALLATION_KEY_FILE: random_bytes(KEY_BYTES)}
    _make_directory(directory)
    _refuse_existing(directory, [*private, TRUST_FILE])
    for name, raw in private.items():
        _create(directory / name, base64.b64encode(raw).decode() + "\n", 0o600)
    _create(directory / TRUST_FILE, format_trust(keys), 0o644)
    return roots


def _checked(keys: list[TrustedKey]) -> TrustRoots:
    """Return the roots as every reader of the file will see them: an origin cannot smuggle a line into it."""
    roots = parse_trust(format_trust(keys))
    if list(roots) != keys:
        raise _error("K-field", "origin", "cannot be written down as it is", "Choose an origin like svc:deployer")
    return roots


def _new_root(role: Role, seed: bytes, origin: str, now: Instant, valid_days: int) -> TrustedKey:
    public = SigningKey.from_seed(seed).public
    not_after = now + timedelta(days=valid_days) // timedelta(microseconds=1)
    return TrustedKey(key_id_of(public), role, public, origin, now, not_after)


def _read_private(path: Path) -> str:
    with _opened(path) as (stream, status):
        if status.st_uid != os.geteuid():
            raise _error("K-owner", str(path), "belongs to another user", f"Run: chown {os.geteuid()} {path}")
        if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise _error(
                "K-mode", str(path), "is open to others", f"Run: chmod 600 {path}, and replace a key that leaked"
            )
        return _read(stream, path, KEY_FILE_BYTES_MAX)


@contextlib.contextmanager
def _opened(path: Path) -> Generator[tuple[int, os.stat_result]]:
    """Open a regular file and look at what was opened, not at what the path may name by then."""
    try:
        # Without O_NONBLOCK a FIFO in the place of a key would stop the start for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise _error("K-missing", str(path), f"cannot be read ({error.strerror})", MAKE_KEYS) from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _error("K-place", str(path), "is no regular file", "Put the key or trust file there")
        yield descriptor, status
    finally:
        os.close(descriptor)


def _read(descriptor: int, path: Path, bytes_max: int) -> str:
    raw = os.read(descriptor, bytes_max + 1)
    if len(raw) > bytes_max:
        raise _error("K-size", str(path), f"is larger than {bytes_max} bytes", "Put the key or trust file there")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise _error("K-toml", str(path), "is not UTF-8 text", "Put the key or trust file there") from None


def _refuse_open_directory(path: Path) -> None:
    """Refuse a directory in which everybody can replace the file; the sticky bit of /tmp prevents that."""
    try:
        mode = path.absolute().parent.stat().st_mode
    except OSError as error:
        raise _error("K-missing", str(path), f"cannot be read ({error.strerror})", MAKE_KEYS) from None
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise _error("K-place", str(path.parent), "can be written by everybody", f"Run: chmod o-w {path.parent}")


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.lstat()
    except OSError as error:
        raise _error("K-write", str(directory), f"cannot be made ({error.strerror})", "Choose another one") from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise _error("K-place", str(directory), "is no directory of the present user", "Choose another one")
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise _error("K-mode", str(directory), "is open to others", f"Run: chmod 700 {directory}")


def _refuse_existing(directory: Path, names: Iterable[str]) -> None:
    for path in (directory / name for name in names):
        if os.path.lexists(path):
            raise _error("K-exists", str(path), "exists already", "Nothing was written. Move it away to make new keys")


def _create(path: Path, text: str, mode: int) -> None:
    """Write a new file whole and on disk, or not at all; never replace one."""
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    try:
        _write(temporary, text, mode)
        _publish(temporary, path)
        _sync_directory(path.parent)
    except FileExistsError:
        raise _error("K-exists", str(path), "exists already", "Move it away to make new keys") from None
    except OSError as error:
        raise _error(
            "K-write", str(path), f"cannot be written ({error.strerror})", "Choose another directory"
        ) from None
    finally:
        temporary.unlink(missing_ok=True)


def _write(path: Path, text: str, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as stream:
        stream.write(text)
        stream.flush()
        os.fchmod(descriptor, mode)  # exactly, whatever the umask
        os.fsync(descriptor)


def _publish(temporary: Path, path: Path) -> None:
    """Give the file its name. link(2) never replaces a file; rename(2) would, also one that appeared meanwhile."""
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links; `_refuse_existing` has looked
        temporary.rename(path)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
