from __future__ import annotations

import stat
from pathlib import Path

import pytest

from benteng.errors import PolicyError
from benteng.store.open import default_dsn, open_operator, open_producer, path_of


@pytest.mark.parametrize(
    "dsn",
    [
        "redis://:hunter2@h/0",
        "mysql://u:hunter2@h/db",
        "ledger.db",
        "sqlite://host/x.db",
        "sqlite:///",
        "sqlite:///:memory:",
        "sqlite:///x.db?mode=memory",
        "sqlite:///x%00.db",
        "",
    ],
)
def test_other_addresses_are_refused_without_being_repeated(dsn):
    """Only a file is a ledger in this version; the refusal says what to use and repeats no password."""
    with pytest.raises(PolicyError) as refused:
        open_producer(dsn)

    assert "sqlite:///" in refused.value.fix
    assert "hunter2" not in str(refused.value)


def test_address_names_a_relative_or_an_absolute_file(tmp_path, monkeypatch):
    """Three slashes are relative to the working directory, four are absolute; escapes are undone."""
    monkeypatch.chdir(tmp_path)

    assert tmp_path / "a b.db" == path_of("sqlite:///a%20b.db")
    assert Path("/srv/b.db") == path_of("sqlite:////srv/b.db")


def test_default_ledger_lies_in_a_private_state_directory(tmp_path, monkeypatch):
    """The default file and the directories made for it are the owner's alone, whatever the umask."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    with_default = open_operator(default_dsn())
    with_default.close()

    made = tmp_path / "state" / "benteng"
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (made.parent, made, made / "benteng.db")]
    assert [0o700, 0o700, 0o600] == modes


def test_relative_state_directory_is_not_believed(tmp_path, monkeypatch):
    """XDG says that a relative XDG_STATE_HOME counts as unset."""
    monkeypatch.setenv("XDG_STATE_HOME", "state")
    monkeypatch.setenv("HOME", str(tmp_path))

    assert f"sqlite:///{tmp_path}/.local/state/benteng/benteng.db" == default_dsn()
