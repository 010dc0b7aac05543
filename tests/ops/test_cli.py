"""The command `benteng` itself: help, lazy loading, errors."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from benteng.ops.cli import COMMANDS, main

HEAVY = (
    "sqlite3",
    "cryptography",
    "asyncio",
    "rich",
    "msgspec",
    "benteng.contract",
    "benteng.store",
    "benteng.worker",
)


def commands():
    """Every command by its words."""
    context = click.Context(main)
    for name in COMMANDS:
        command = main.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from ((f"{name} {below}", command.commands[below]) for below in command.commands)
        else:
            yield name, command


def test_help_loads_nothing_heavy(project):
    """`benteng --help` is fast because it imports no store, no cryptography and no command."""
    code = (
        "import sys, io, contextlib\n"
        "from benteng.ops.cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit): main(['--help'])\n"
        "import json; print(json.dumps([out.getvalue(), sorted(sys.modules)]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=project.root, env=project.environ, check=True, capture_output=True
    )
    shown, loaded = json.loads(done.stdout)

    assert [] == [name for name in loaded if name.startswith(HEAVY)]
    assert [] == [name for name in loaded if name.startswith("benteng.ops.") and name != "benteng.ops.cli"]
    assert [] == [name for name in COMMANDS if f"\n  {name} " not in shown]


def test_help_needs_no_store(project):
    """No file is made by looking."""
    assert 0 == project.run("--help").code
    assert ["benteng.toml", "jobs.py"] == sorted(path.name for path in project.root.iterdir())
    assert not (project.root.parent / "state").exists()


@pytest.mark.parametrize("words,command", list(commands()), ids=[words for words, _ in commands()])
def test_every_command_explains_itself(words, command):
    """A sentence for each command, a word for each option."""
    assert command.help
    assert [] == [p.name for p in command.params if isinstance(p, click.Option) and not p.help and not p.metavar]


@pytest.mark.parametrize("words,command", list(commands()), ids=[words for words, _ in commands()])
def test_what_changes_something_asks_why(words, command):
    """A mutating command needs a reason; none takes the person's identity as an option."""
    options = {name for param in command.params for name in param.opts}

    if words.split()[-1] in {"cancel", "discard", "resolve", "replay", "kill", "register"}:
        assert "--reason" in options
    assert not options & {"--user", "--operator", "--password", "--token", "--dsn"}


def test_a_mistyped_command_gets_a_suggestion(project):
    """Usage errors are exit 2, with the near name."""
    ended = project.call("quarantin")

    assert 2 == ended.code
    assert "did you mean quarantine?" in ended.talk


def test_a_wrong_configuration_is_one_line(project):
    """No traceback: the key, the rule, the fix; exit 78."""
    (project.root / "benteng.toml").write_text("enviroment = 'dev'\n")

    ended = project.call("config", "show")

    assert (78, "") == (ended.code, ended.out)
    assert "error: enviroment: unknown setting [N-unknown]. Fix: did you mean environment?\n" == ended.talk


def test_a_wrong_configuration_in_json_is_a_document(project):
    """--json answers in JSON, also when it fails."""
    (project.root / "benteng.toml").write_text("enviroment = 'dev'\n")

    ended = project.call("config", "show", "--json")

    assert ("benteng.error/1", "N-unknown", 78) == tuple(ended.document[k] for k in ("schema", "rule", "exit"))


def test_an_unforeseen_error_is_a_fault_of_ours(project, monkeypatch):
    """Exit 70, one line; BENTENG_DEBUG=1 shows the traceback."""
    (project.root / "benteng.toml").unlink()
    (project.root / "benteng.lock").mkdir()
    monkeypatch.setattr("benteng.config.load", lambda: 1 / 0)

    quiet = project.call("config", "show")
    monkeypatch.setenv("BENTENG_DEBUG", "1")
    loud = project.call("config", "show")

    assert (70, 70) == (quiet.code, loud.code)
    assert 1 == quiet.talk.count("\n")
    assert "Traceback" not in quiet.talk
    assert "Traceback" in loud.talk


def test_config_shows_where_values_come_from_and_no_password(project, monkeypatch):
    """Sources by name; the address without its password."""
    monkeypatch.setenv("BENTENG_DSN", "postgresql://u:canary@db/x")

    ended = project.call("config", "show", "--sources", "--json")

    assert "canary" not in ended.out
    assert "BENTENG_DSN" == ended.document["sources"]["dsn"]
    assert "default" == ended.document["sources"]["lock"]


def test_version_is_the_installed_one(project):
    """Versions that a bug report needs."""
    assert {"schema", "benteng", "python", "sqlite"} == project.call("version", "--json").document.keys()


def test_every_command_and_exit_code_has_a_heading():
    """What is not in the reference does not exist for users."""
    from benteng.ops.exits import Exit

    reference = Path(__file__).parents[2] / "docs/reference"
    cli, exits = (reference / "cli.md").read_text(), (reference / "exit-codes.md").read_text()

    assert [] == [words for words, _ in commands() if f"### `benteng {words}" not in cli]
    assert [] == [code for code in Exit if f"| {int(code)} |" not in exits]


def test_a_damaged_store_exits_65(project):
    """Stop and look: nothing is repaired by itself."""
    store = project.root.parent / "state/benteng"
    store.mkdir(parents=True, mode=0o700)
    (store / "benteng.db").write_bytes(b"no database" * 100)
    (store / "benteng.db").chmod(0o600)

    assert 65 == project.call("jobs", "list").code


def test_a_store_that_cannot_be_reached_exits_75(project, monkeypatch):
    """Try again later."""
    monkeypatch.setenv("BENTENG_DSN", f"sqlite:///{project.root.parent}/away/x.db")

    assert 75 == project.call("jobs", "list").code


def test_a_file_that_cannot_be_read_exits_74(project):
    """The name of the file is in the message."""
    ended = project.call("enqueue", "greet", "--json", "@nothing.json")

    assert 74 == ended.code
    assert "nothing.json: No such file or directory" in ended.talk


def test_every_schema_is_in_the_reference():
    """Scripts can look up each document that a command writes."""
    root = Path(__file__).parents[2]
    source = "\n".join(path.read_text() for path in (root / "src/benteng/ops").rglob("*.py"))
    nouns = set(re.findall(r'(?:document|json_line|_tell|_told|show_page)\(\s*"([a-z-]+)"', source))

    assert {"error", "job", "policy-lock", "resolved"} < nouns
    assert [] == [n for n in sorted(nouns) if f"`benteng.{n}/1`" not in (root / "docs/reference/cli.md").read_text()]
