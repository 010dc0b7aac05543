"""A production installation, as a new user makes it: docs/how-to/postgres.md, word by word, on a fresh server."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest

from tests.support import others
from tests.support.site import Process

PAGE = Path(__file__).parents[2] / "docs/how-to/postgres.md"
BLOCK = re.compile(r"^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
HOST = re.compile(r"^# .*\bon the (\w+)'s host$")
HOSTS = ("administrator", "operator", "producer", "worker")
LOGINS = {"operator": ("o_ana", "a_log", "k_main"), "producer": ("p_web",), "worker": ("w_default",)}
SHELL = 'set -eo pipefail; benteng() { "$PYTHON" -m benteng.ops "$@"; }\n'
BILL = """

from benteng import Contract, Effect, Slug, Tier


class Bill(Contract):
    account: Slug


@app.job("bill@1", tier=Tier.MEDIUM, effect=Effect.REPEATABLE, operation=("account",), resources=None)
def bill(payload: Bill) -> None: ...
"""


def blocks(kind, host=""):
    """The blocks of one kind on the page, those of one host without their first line."""
    found = [match["text"] for match in BLOCK.finditer(PAGE.read_text()) if match["kind"] == kind]
    named = [(HOST.match(text.partition("\n")[0]), text.partition("\n")[2]) for text in found]
    return [rest for match, rest in named if match and match[1] == host] if host else found


def commands(text):
    """The commands of a console block; what stands between them is what they say."""
    return [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ ")]


class Installation:
    """The page's hosts: a directory of the code each, a home with its own passwords, and one server for all.

    An ordinary user does everything on them, as the page asks.
    """

    def __init__(self, root, server, python):
        self.root, self.server, self.python = root, server, python
        self.processes = []
        self.exported = {}
        for host in HOSTS:
            (root / host).mkdir(mode=0o700)
            (root / f"{host}.home").mkdir(mode=0o700)
        self.pgpass("administrator", f"*:*:*:postgres:{server.password}")

    def environ(self, host):
        """The environment of a person who has just logged in there."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("BENTENG_", "PG", "XDG_"))}
        own = self.exported if host == "administrator" else {}
        return kept | {"HOME": str(self.root / f"{host}.home"), "PYTHON": self.python, "NO_COLOR": "1"} | own

    def placed(self, text):
        """The page's text with the server's address in the place of `db`."""
        return text.replace("@db/benteng", f"@127.0.0.1:{self.server.port}/benteng")

    def pgpass(self, host, *lines):
        file = self.root / f"{host}.home" / ".pgpass"
        file.touch(mode=0o600)
        with file.open("a") as stream:
            stream.writelines(f"{line}\n" for line in lines)

    def carry_passwords(self):
        """Do what the page tells in words: each password to its host."""
        for host, logins in LOGINS.items():
            for login in logins:
                secret = (self.root / "administrator" / f"{login}.secret").read_text().strip()
                self.pgpass(host, f"127.0.0.1:{self.server.port}:benteng:{login}:{secret}")

    def configure(self, host):
        """Write the host's benteng.toml and jobs.py as they stand on the page."""
        (toml,) = blocks("toml", host)
        (code,) = blocks("python", "each") or [blocks("python")[0].partition("\n")[2]]
        for name, text in (("benteng.toml", self.placed(toml)), ("jobs.py", code)):
            (self.root / host / name).write_text(text)
            (self.root / host / name).chmod(0o600)

    def run(self, host, command, code=0):
        """Run one command of the page there; return what it wrote."""
        done = self.shell(host, command)
        said = [done.stdout.decode(), done.stderr.decode(), *map(self.heard, self.processes)]
        assert code == done.returncode, (host, command, *said)
        return done.stdout.decode(), done.stderr.decode()

    def shell(self, host, command):
        """Have the user's shell do something there."""
        others.give_away(self.root)
        return subprocess.run(
            ["bash", "-c", SHELL + self.placed(command)],
            cwd=self.root / host,
            env=self.environ(host),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=120,
            check=False,
            **others.ordinary(),
        )

    def start(self, host, command):
        """Start a service of the page, and wait until it serves."""
        words = command.removesuffix("&").split()[1:]
        arguments = (self.python, "-m", "benteng.ops", *words, "--log", "json")
        others.give_away(self.root)
        self.processes.append(Process(arguments, self.root / host, self.environ(host), others.ordinary()))
        return self.processes[-1]

    def heard(self, process):
        """What a service has said so far."""
        process.listen()
        return process.text[-1500:]

    def follow(self, host, which=0):
        """Do one console block of a host; return what each of its commands wrote to stdout."""
        return [self.do(host, command) for command in commands(blocks("console", host)[which])]

    def do(self, host, command):
        """Do one line: export, start, examine or run."""
        if command.startswith("export "):
            name, _, value = command.removeprefix("export ").partition("=")
            self.exported[name] = self.placed(value)
            return ""
        if command.endswith("&"):
            self.start(host, command)
            return ""
        if command.endswith("benteng doctor"):
            return self.examine(host, command)
        return self.run(host, command)[0]

    def examine(self, host, command="benteng doctor"):
        """Run doctor and return its findings."""
        return msgspec.json.decode(self.shell(host, f"{command} --json").stdout)["findings"]

    def close(self):
        for process in self.processes:
            process.close()


@pytest.fixture
def installation(cluster):
    """A fresh durable server, and four hosts with nothing on them, where an ordinary user may go."""
    place = Path(tempfile.mkdtemp(prefix="benteng-page-"))
    place.chmod(0o755)
    python = others.environment(place / "python") if os.getuid() == 0 else sys.executable
    (place / "hosts").mkdir()
    made = Installation(place / "hosts", cluster(durable=True), python)
    yield made
    made.close()
    shutil.rmtree(place)


def bad(findings):
    """The findings that a person would have to do something about."""
    return [each for each in findings if each["level"] in {"warning", "error"}]


def test_a_new_user_gets_a_production_ledger(installation):
    """Each command of the page does what it says; doctor has no complaint on any host; prod refuses MEDIUM by name."""
    (create,) = blocks("sql")
    with installation.server.connect() as connection:
        connection.execute(create.encode())

    installation.follow("administrator", 0)
    installation.follow("administrator", 1)
    installation.carry_passwords()
    for host in LOGINS:
        installation.configure(host)
    installation.follow("operator", 0)
    lock = (installation.root / "operator" / "benteng.lock").read_bytes()
    for host in ("producer", "worker"):
        (installation.root / host / "benteng.lock").write_bytes(lock)
    producer, receipt = installation.follow("producer", 0)
    worker, _ = installation.follow("worker", 0)
    (waited,) = installation.follow("producer", 1)
    listed, _, operator = installation.follow("operator", 1)
    (installation.root / "administrator" / "benteng.toml").write_text('environment = "prod"\n')
    *_, administrator = installation.follow("administrator", 2)

    first = receipt.split()[0]
    assert '"Halo, semesta"' == waited.splitlines()[-1]
    assert first in listed
    assert "completed" in installation.run("operator", f"benteng why {first}")[0]
    for name, findings in (("producer", producer), ("worker", worker), ("operator", operator)):
        assert [] == bad(findings), name
    assert ["roles", "horizon"] == [each["check"] for each in administrator if each["check"] in {"roles", "horizon"}]
    refuses_medium(installation)
    refuses_what_nobody_allowed(installation)


def refuses_medium(installation):
    """The floors that are not built yet stop a MEDIUM type in prod, by name, before anything is stored."""
    code = installation.root / "producer" / "jobs.py"
    code.write_text(code.read_text() + BILL)
    installation.run("producer", "benteng policy lock")

    _, talk = installation.run("producer", "benteng enqueue bill account=a1 --actor svc:web", code=78)

    assert "F-pending" in talk
    assert "bill@1 is medium" in talk


def refuses_what_nobody_allowed(installation):
    """Another actor is refused by the ledger, and what is allowed afterwards is in the audit."""
    installation.configure("producer")
    installation.run("producer", "benteng policy lock")

    _, talk = installation.run("producer", "benteng enqueue greet name=x --actor svc:other", code=20)
    installation.run("producer", "benteng enqueue greet name=x")
    log, _ = installation.run("operator", "benteng audit tail")

    assert "S-speaks" in talk
    assert "greetings of nobody in particular" in log
