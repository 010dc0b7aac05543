"""Archives: what is unpacked, and everything that is not. What came out is seen by walking the disk around it."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path

import pytest

from benteng.raised import HandlerSignal, Permanent, Suspicious
from benteng.worker import unpack as module
from benteng.worker.unpack import unpack

BYTES_MAX = 4 << 20


@pytest.fixture
def room(tmp_path):
    """A scratch directory beside something that must not change."""
    (tmp_path / "scratch").mkdir()
    (tmp_path / "outside").write_text("before")
    return tmp_path / "scratch"


def tar(*entries):
    """Return a tar file. An entry: a name, then content, or fields of its header."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, what in entries:
            info = tarfile.TarInfo(name)
            content = what if isinstance(what, bytes) else b""
            info.size = len(content)
            for field, value in what.items() if isinstance(what, dict) else ():
                setattr(info, field, value)
            archive.addfile(info, io.BytesIO(content))
    return made.getvalue()


def zipped(*entries, compression=zipfile.ZIP_DEFLATED):
    """Return a zip file. An entry: a name, content, and a mode of Unix."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", compression) as archive:
        for name, content, *mode in entries:
            info = zipfile.ZipInfo("placeholder")
            info.filename = info.orig_filename = name
            info.compress_type = compression
            info.external_attr = (mode[0] if mode else stat.S_IFREG | 0o644) << 16
            archive.writestr(info, content)
    return made.getvalue()


def link(target, *, hard=False):
    """The header's fields of a link."""
    return {"type": tarfile.LNKTYPE if hard else tarfile.SYMTYPE, "linkname": target}


def unpacked(room, data):
    """Unpack bytes; return what is there, by path: content, or None for a directory."""
    archive = room / "archive"
    archive.write_bytes(data)
    root = unpack(archive, room, BYTES_MAX)
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() and not path.is_symlink() else None
        for path in root.rglob("*")
    }


def refusal(room, data):
    """Unpack what must be refused; return the error, after a look at what is left."""
    with pytest.raises(HandlerSignal) as refused:
        unpacked(room, data)
    assert ["archive"] == sorted(path.name for path in room.iterdir())
    assert ["outside", "scratch"] == sorted(path.name for path in room.parent.iterdir())
    assert "before" == (room.parent / "outside").read_text()
    return refused.value


FILES = (("d/", {"type": tarfile.DIRTYPE}), ("./d/a.txt", b"alpha"), ("e/f/b", b"beta" * 50_000), ("empty", b""))
EXPECTED = {"d": None, "d/a.txt": b"alpha", "e": None, "e/f": None, "e/f/b": b"beta" * 50_000, "empty": b""}
PACKED = {
    "tar": tar(*FILES),
    "gz": gzip.compress(tar(*FILES)),
    "bz2": bz2.compress(tar(*FILES)),
    "xz": lzma.compress(tar(*FILES)),
    **{
        name: zipped(("d/", b""), *((n, c) for n, c in FILES[1:] if isinstance(c, bytes)), compression=method)
        for name, method in (
            ("stored", zipfile.ZIP_STORED),
            ("zip", zipfile.ZIP_DEFLATED),
            ("zip-xz", zipfile.ZIP_LZMA),
        )
    },
}


@pytest.mark.parametrize("data", PACKED.values(), ids=PACKED.keys())
def test_files_and_directories_come_out(room, data):
    """With their content, and directories that are only implied."""
    assert EXPECTED == unpacked(room, data)


def test_modes_are_ours(room):
    """No setuid, no sticky, nothing for others; what its owner could execute, its owner can."""
    data = tar(*((name, {"mode": mode}) for name, mode in (("s", 0o7777), ("x", 0o744), ("r", 0o666))))

    unpacked(room, data)

    (root,) = [path for path in room.iterdir() if path.is_dir()]
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in root.iterdir()}
    assert {"s": 0o700, "x": 0o700, "r": 0o600} == modes
    assert 0o700 == stat.S_IMODE(root.stat().st_mode)


@pytest.mark.parametrize(
    "data",
    [
        tar(("l", link("d/a")), ("d/a", b"alpha")),
        tar(("d/a", b"alpha"), ("l", link("d/a", hard=True))),
        tar(("d/a", b"alpha"), ("m", link("d/l")), ("d/l", link("../d/./a"))),
        zipped(("d/a", b"alpha"), ("l", b"d/a", stat.S_IFLNK | 0o777)),
    ],
    ids=["symbolic", "hard", "chain", "zip"],
)
def test_a_link_within_becomes_a_copy(room, data):
    """The content is there, the link is not."""
    found = unpacked(room, data)

    assert {b"alpha"} == set(found.values()) - {None}
    assert not [path for path in room.rglob("*") if path.is_symlink() or (path.is_file() and path.stat().st_nlink > 1)]


DEVICE = {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3}
HOSTILE = {
    "absolute": ("K-outside", tar(("/tmp/x", b"x"))),
    "parent": ("K-outside", tar(("../outside", b"x"))),
    "parent-inside": ("K-outside", tar(("a/../../outside", b"x"))),
    "parent-harmless": ("K-outside", tar(("a/../b", b"x"))),
    "backslash": ("K-outside", tar(("..\\outside", b"x"))),
    "drive": ("K-outside", tar(("C:x", b"x"))),
    "symlink-absolute": ("K-outside", tar(("l", link("/etc/passwd")))),
    "symlink-parent": ("K-outside", tar(("d/l", link("../../outside")))),
    "symlink-through": ("K-outside", tar(("l", link("..")), ("l/outside", b"x"))),
    "hardlink-absolute": ("K-outside", tar(("l", link("/etc/passwd", hard=True)))),
    "hardlink-parent": ("K-outside", tar(("d/l", link("../outside", hard=True)))),
    "device": ("K-special", tar(("null", DEVICE))),
    "fifo": ("K-special", tar(("pipe", {"type": tarfile.FIFOTYPE}))),
    "control": ("K-name", tar(("a\nb", b"x"))),
    "bidi": ("K-name", tar(("a\u202eb", b"x"))),
    "undecodable": ("K-name", tar(("a\udcff", b"x"))),
    "no-name": ("K-name", tar((".", b"x"))),
    "zip-absolute": ("K-outside", zipped(("/tmp/x", b"x"))),
    "zip-parent": ("K-outside", zipped(("../outside", b"x"))),
    "zip-backslash": ("K-outside", zipped(("..\\outside", b"x"))),
    "zip-nul": ("K-name", zipped(("a\0/../../outside", b"x")).replace(b"..", b"xx")),
    "zip-symlink": ("K-outside", zipped(("l", b"../outside", stat.S_IFLNK | 0o777))),
    "zip-fifo": ("K-special", zipped(("p", b"", stat.S_IFIFO | 0o644))),
}


@pytest.mark.parametrize("rule, data", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_looks_hostile_is_suspicious_and_leaves_nothing(room, rule, data):
    """The whole archive is refused (cases.md C127), and what was written before is gone."""
    error = refusal(room, data)

    assert isinstance(error, Suspicious)
    assert f"[{rule}]" in str(error)


def header(size, kind=tarfile.REGTYPE):
    """The header of a member of a tar file that says that it has that size."""
    info = tarfile.TarInfo("x")
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


def overlapping():
    """A zip file whose directory lists the same bytes a thousand times."""
    one = zipped(("a", bytes(1 << 20)))
    at = one.index(b"PK\x01\x02")
    entry = one[at : one.index(b"PK\x05\x06")]
    many = b"".join(entry.replace(b"a", f"{n:04}".encode()[-1:], 1) for n in range(1000))
    return one[:at] + many + struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1000, 1000, len(many), at, 0)


def many_entries(count):
    """A zip file's directory of so many entries."""
    entry = struct.pack("<4s6H3L5H2L", b"PK\x01\x02", 20, 20, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0) + b"a"
    return b"PK\x03\x04" + entry * count + struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, len(entry) * count, 4, 0)


BAD = {
    "twice": ("K-twice", tar(("a", b"1"), ("a", b"2"))),
    "case": ("K-twice", tar(("a", b"1"), ("A", b"2"))),
    "case-directory": ("K-twice", tar(("d/a", b"1"), ("D/b", b"2"))),
    "composed": ("K-twice", tar(("\u00e9", b"1"), ("e\u0301", b"2"))),
    "file-and-directory": ("K-twice", tar(("a", b"1"), ("a/b", b"2"))),
    "directory-and-file": ("K-twice", tar(("a/b", b"1"), ("a", b"2"))),
    "link-and-below": ("K-twice", tar(("d/x", b""), ("l", link("d")), ("l/y", b"2"))),
    "zip-twice": ("K-twice", zipped(("a", b"1"), ("A", b"2"))),
    "dangling": ("K-link", tar(("l", link("nothing")))),
    "loop": ("K-link", tar(("a", link("b")), ("b", link("a")))),
    "to-directory": ("K-link", tar(("d/a", b"x"), ("l", link("d")))),
    "size": ("K-limit", tar(("a", bytes(BYTES_MAX + 1)))),
    "size-together": ("K-limit", tar(*((str(n), bytes(BYTES_MAX // 4)) for n in range(5)))),
    "copies": ("K-limit", tar(("a", bytes(BYTES_MAX // 2)), *((f"l{n}", link("a", hard=True)) for n in range(3)))),
    "ratio": ("K-limit", gzip.compress(tar(("a", bytes(2 << 20))))),
    "size-said": ("K-limit", gzip.compress(header(1 << 40) + bytes(64 << 20))),
    "size-lied": ("K-format", header(1 << 20) + b"x"),
    "pax": ("K-limit", gzip.compress(header(100 << 20, tarfile.XHDTYPE) + bytes(100 << 20))),
    "long-name": ("K-limit", gzip.compress(header(100 << 20, tarfile.GNUTYPE_LONGNAME) + bytes(100 << 20))),
    "zip-ratio": ("K-limit", zipped(("a", bytes(2 << 20)))),
    "zip-entries": ("K-limit", many_entries(60_000)),
    "deep": ("K-limit", tar(("/".join("a" * 33), b""))),
    "name": ("K-limit", tar(("a" * 256, b""))),
    "path": ("K-limit", tar(("/".join(["a" * 200] * 6), b""))),
    "no-archive": ("K-format", b"hello" * 500),
    "empty-file": ("K-format", b""),
    "cut": ("K-format", gzip.compress(tar(*FILES))[:-30]),
    "cut-tar": ("K-format", tar(("a", bytes(4096)))[:2000]),
    "checksum": ("K-format", zipped(("a", b"alpha"), compression=zipfile.ZIP_STORED).replace(b"alpha", b"alphb")),
    "encrypted": (
        "K-format",
        zipped(("a", b"x")).replace(b"PK\x01\x02\x14\x03\x14\0\0", b"PK\x01\x02\x14\x03\x14\0\1"),
    ),
}


@pytest.mark.parametrize("rule, data", BAD.values(), ids=BAD.keys())
def test_what_is_too_much_ambiguous_or_broken_is_permanent(room, rule, data):
    """No retry heals it; nothing of it is left."""
    error = refusal(room, data)

    assert isinstance(error, Permanent)
    assert f"[{rule}]" in str(error)


@pytest.mark.parametrize(
    "data",
    [tar(*((str(n), b"") for n in range(50))), tar(*(("/".join([str(n), *"abcdefgh", "x"]), b"") for n in range(5)))],
    ids=["files", "implied"],
)
def test_entries_are_counted(room, monkeypatch, data):
    """Directories that only stand in a name are entries too: they fill a disk as well."""
    monkeypatch.setattr(module, "ARCHIVE_ENTRIES_MAX", 49)
    assert "[K-limit]" in str(refusal(room, data))

    monkeypatch.setattr(module, "ARCHIVE_ENTRIES_MAX", 51)
    assert unpacked(room, data)


def test_a_size_that_lies_does_not_help(room):
    """What counts is what comes out, not what a header says."""
    data = bytearray(zipped(("a", bytes(BYTES_MAX + 1)), compression=zipfile.ZIP_STORED))

    assert "[K-limit]" in str(refusal(room, bytes(data)))
    assert "[K-" in str(refusal(room, overlapping()))


def test_a_name_that_cannot_be_shown_is_cleaned_in_the_error(room):
    """An archive's names reach logs and terminals."""
    error = refusal(room, tar(("x\x1b[2Jy", b"x")))

    assert "\x1b" not in str(error)


def test_what_is_no_regular_file_is_not_opened_for_long(room):
    """A pipe without a writer holds nobody up; a link is not followed."""
    os.mkfifo(room / "pipe")
    (room / "link").symlink_to(room / "pipe")

    with pytest.raises(Permanent, match="K-format"):
        unpack(room / "pipe", room, BYTES_MAX)
    with pytest.raises(OSError, match="symbolic"):
        unpack(room / "link", room, BYTES_MAX)


def test_a_directory_that_is_exchanged_meanwhile_is_not_followed(room, monkeypatch):
    """Another thread of the job puts a link where a directory was: the write fails, and lands nowhere."""
    real = module._make_directory

    def exchanged(name, parent):
        if name == "d" and not exchanged.done:
            exchanged.done = True
            os.symlink(room.parent, name, dir_fd=parent)
            return
        real(name, parent)

    exchanged.done = False
    monkeypatch.setattr(module, "_make_directory", exchanged)
    (room / "archive").write_bytes(tar(("d/landed", b"x")))

    with pytest.raises(OSError):  # noqa: PT011 - ELOOP or ENOTDIR, by kernel
        unpack(room / "archive", room, BYTES_MAX)

    assert not (room.parent / "landed").exists()


def test_many_readers_errors_are_one(room):
    """Whatever bytes come, the answer is an archive or an error of ours."""
    good = PACKED["gz"]
    for at in range(0, len(good), 7):
        data = good[:at] + bytes([good[at] ^ 0xFF]) + good[at + 1 :]
        try:
            unpacked(room, data)
        except HandlerSignal:
            continue
    assert zlib.crc32(good)


def test_no_test_is_left_out():
    """Each rule of the two modules is broken above."""
    source = Path(module.__file__).read_text() + Path(module.__file__).with_name("archive.py").read_text()
    rules = {rule for rule, _ in (*HOSTILE.values(), *BAD.values())}

    assert {f"K-{word}" for word in ("outside", "special", "name", "twice", "link", "limit", "format")} == rules
    assert not [rule for rule in rules if rule not in source]
