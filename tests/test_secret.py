"""Where secrets come from, and what is refused about a place. No value is ever named."""

from __future__ import annotations

import os

import msgspec
import pytest

from benteng.errors import PolicyError
from benteng.secret import Source, read

VALUE = "correct horse battery"


@pytest.fixture
def place(tmp_path):
    """Write a secret's file, by default as it should be."""

    def make(content=VALUE, mode=0o400):
        path = tmp_path / "stripe"
        path.unlink(missing_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        path.chmod(mode)
        return path

    return make


def test_each_source_is_read(place, tmp_path):
    """A file, a variable of the worker, a credential of its unit."""
    path = place()

    assert VALUE == read("stripe", Source(file=str(path)), {})
    assert VALUE == read("stripe", Source(env="KEY"), {"KEY": VALUE})
    assert VALUE == read("stripe", Source(credential="stripe"), {"CREDENTIALS_DIRECTORY": str(tmp_path)})


@pytest.mark.parametrize(
    "content, value",
    [
        (VALUE + "\n", VALUE),
        (VALUE + "\r\n", VALUE),
        (VALUE + "\n\n", VALUE + "\n"),
        (" " + VALUE + " ", " " + VALUE + " "),
        ("12345678", "12345678"),
        ("é" * 4096 + "\n", "é" * 4096),
    ],
    ids=["line", "windows", "two-lines", "spaces", "shortest", "longest"],
)
def test_one_line_end_is_the_editors(place, content, value):
    """Everything else of a file is the secret."""
    assert value == read("stripe", Source(file=str(place(content))), {})


@pytest.mark.parametrize(
    "content, why",
    [
        ("", "less than 8"),
        ("1234567\n", "less than 8"),
        ("x" * 8193, "more than 8192"),
        (b"\xff" * 16, "no text"),
        ("1234\x005678", "no text"),
    ],
    ids=["empty", "short", "long", "bytes", "nul"],
)
def test_a_value_that_cannot_be_guarded_is_refused(place, content, why):
    """Too short to be found again, too long for a frame, or no text."""
    with pytest.raises(PolicyError, match=why) as refused:
        read("stripe", Source(file=str(place(content))), {})

    assert "W-secret" == refused.value.rule
    assert "1234" not in str(refused.value)


@pytest.mark.parametrize("mode", [0o440, 0o404, 0o420, 0o402, 0o410, 0o401, 0o777], ids=oct)
def test_a_file_that_others_may_touch_is_refused(place, mode):
    """Also by a group, unless the file is root's own."""
    path = place(mode=mode)
    if os.getuid() == 0:
        os.chown(path, 0, 0)
    allowed = mode == 0o440 and path.stat().st_uid == 0

    if allowed:
        assert VALUE == read("stripe", Source(file=str(path)), {})
        return
    with pytest.raises(PolicyError, match=f"open to others. chmod 0400 {path}"):
        read("stripe", Source(file=str(path)), {})


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away: run this as root too")
def test_a_file_of_somebody_else_is_refused(place):
    """Its owner could put another secret there, or change who reads it."""
    path = place()
    os.chown(path, 61_001, 61_001)

    with pytest.raises(PolicyError, match="belongs to somebody else"):
        read("stripe", Source(file=str(path)), {})


def test_what_is_no_file_is_refused_and_holds_nobody_up(tmp_path):
    """A pipe without a writer would stop the supervisor's one thread."""
    os.mkfifo(tmp_path / "pipe", 0o400)

    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(PolicyError, match=r"is no file|cannot be read"):
            read("stripe", Source(file=str(path)), {})


def test_a_link_leads_to_the_file_that_is_examined(place, tmp_path):
    """Kubernetes rotates a secret by turning a link."""
    link = tmp_path / "link"
    link.symlink_to(place(mode=0o444))
    with pytest.raises(PolicyError, match="open to others"):
        read("stripe", Source(file=str(link)), {})

    place()

    assert VALUE == read("stripe", Source(file=str(link)), {})


@pytest.mark.parametrize(
    "source, why",
    [
        (None, "does not say where"),
        (Source(env="KEY"), "variable KEY is not set"),
        (Source(credential="stripe"), "CREDENTIALS_DIRECTORY is not set. LoadCredential=stripe"),
        (Source(file="/nonexistent/stripe"), "cannot be read: No such file"),
    ],
    ids=["none", "env", "credential", "file"],
)
def test_what_is_missing_says_how_to_mend_it(source, why):
    """The secret, its place and the fix."""
    with pytest.raises(PolicyError, match=why) as refused:
        read("stripe", source, {})

    assert "secret stripe" in str(refused.value)


@pytest.mark.parametrize(
    "source",
    [{}, {"file": "/a", "env": "B"}, {"file": "a"}, {"credential": "../a"}, {"credential": ".."}, {"path": "/a"}],
    ids=["nothing", "two", "relative", "outside", "parent", "unknown"],
)
def test_a_source_is_one_place(source):
    """Found when the configuration is read."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(source, Source)
