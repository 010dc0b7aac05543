"""`benteng isolation try`: what it lists is what was done, whoever runs it, and nobody gets the store or a key."""

from __future__ import annotations

import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import tomllib
from pathlib import Path

import pytest

from benteng.policy import Tier
from benteng.worker.rehearsal import allow, watch
from benteng.worker.rehearsal.allow import Pool, State
from benteng.worker.rehearsal.sight import Kind, Sight, peer
from benteng.worker.sandbox import landlock, syscalls
from tests.support.others import ORDINARY_UID, environment, interpreter
from tests.worker.bed import APPS, wait_gone
from tests.worker.sandbox.escapes.scene import OWN_UID

pytestmark = pytest.mark.skipif(landlock.abi() == 0, reason="this kernel has no Landlock: nothing can be rehearsed")
ROOT = Path(__file__).parents[2]
KINDS = {"ordinary": (ORDINARY_UID, None), "own_uid": (0, OWN_UID), "root": (0, None)}
"""Who runs the command, and as whom the cell runs if as another."""


@pytest.fixture(scope="module")
def python():
    """An interpreter with this package that every user can run: a venv of one, outside of root's home."""
    if os.getuid() != 0:
        yield sys.executable
        return
    if interpreter() is None:
        pytest.skip("no Python of this version that other users can run")
    home = Path(tempfile.mkdtemp(prefix="benteng-venv-"))
    home.chmod(0o755)
    yield environment(home)
    shutil.rmtree(home)


class Scene:
    """A project of somebody's, and what lies outside of it."""

    def __init__(self, kind, python):
        self.uid, self.own = KINDS[kind]
        self.python = python
        self.root = Path(tempfile.mkdtemp(prefix="benteng-scene-"))
        self.place = self.root / "place"
        self.store = self.root / "state" / "benteng.db"
        for name in ("app", "place/in", "place/out", "state", "app/.benteng"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        for name in ("import", "read", "by-c"):
            (self.place / "in" / f"{name}.txt").write_text(name)
        (self.place / "out" / "old.txt").write_text("old")
        shutil.copy("/usr/bin/tee", self.place / "tee")
        shutil.copy(APPS / "acts.py", self.root / "app" / "jobs.py")
        for path in (self.store, self.store.with_name("benteng.db-wal"), self.root / "app/.benteng/producer.key"):
            path.write_text("secret")
        self.environ = {"PATH": "/usr/bin:/bin", "PLACE": str(self.place), "HOME": str(self.root)}
        self.given = {"env": ["PLACE", "WANTED", "PORT"]}
        self.configure()

    def configure(self, lines=(), environment="dev"):
        """Write benteng.toml, with lines for the pool."""
        who = [f"uid = {self.own}", f"gid = {self.own}"] if self.own else []
        self.given = self.given | tomllib.loads("\n".join(lines[1:]))
        pool = [f"{name} = {json.dumps(value)}" for name, value in self.given.items()]
        head = [
            'app = "jobs:app"',
            f'dsn = "sqlite:///{self.store}"',
            f'environment = "{environment}"',
            "[pool.default]",
        ]
        (self.root / "app" / "benteng.toml").write_text("\n".join([*head, *who, *pool]))
        self._give_away()

    def _give_away(self):
        for path in (self.root, *self.root.rglob("*")):
            owner = self.own if self.own and path.is_relative_to(self.place) else self.uid
            if os.getuid() == 0:
                os.chown(path, owner, owner, follow_symlinks=False)
            if path.is_dir():
                path.chmod(0o755)

    def run(self, name, *words, payload='{"name": "a"}', code=0, **environ):
        """Try a type and return the document."""
        (self.root / "app" / "payload.json").write_text(payload)
        self._give_away()
        done = self.command("isolation", "try", name, "--payload", "payload.json", "--json", *words, **environ)
        if code != done.returncode:
            raise AssertionError(f"{done.returncode}\n{done.stdout.decode()[:300]}\n{done.stderr.decode()}")
        return json.loads(done.stdout)

    def command(self, *words, **environ):
        """Run `benteng` as the one whose project it is."""
        user = {"user": self.uid, "group": self.uid, "extra_groups": []} if os.getuid() == 0 else {}
        return subprocess.run(
            [self.python, "-m", "benteng.ops", *words],
            cwd=self.root / "app",
            env=self.environ | environ,
            capture_output=True,
            timeout=90,
            check=False,
            **user,
        )

    def wanted(self, document, *states):
        """What was wanted, as kind and name, in these states; of files, those of the scene, by their path in it.

        Programs of the host read what its locale and libraries make them read.
        """
        return {
            (row["kind"], row["what"].replace(f"{self.root}/", ""))
            for row in document["wanted"]
            if row["state"] in states
            and (row["kind"] not in ("read", "write", "exec") or row["what"].startswith(str(self.root)))
        }


@pytest.fixture(params=KINDS)
def scene(request, python):
    """A scene for each kind of user."""
    if os.getuid() != 0 and request.param != "ordinary":
        pytest.skip("only root can be root")
    made = Scene(request.param, python)
    yield made
    shutil.rmtree(made.root)


@pytest.fixture
def project(python):
    """A scene for what does not depend on the user."""
    made = Scene("ordinary", python)
    yield made
    shutil.rmtree(made.root)


@pytest.fixture
def listener():
    """A server on this host, and what it heard."""
    heard = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hear():
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                with client:
                    heard.append(client.recv(100))

        thread = threading.Thread(target=hear, daemon=True)
        thread.start()
        yield server.getsockname()[1], heard
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def did(place, heard):
    """Whether all of `every` happened, as seen from outside."""
    out = place / "out"
    return (
        "read" == (out / "made.txt").read_text()
        and not (out / "old.txt").exists()
        and (out / "teed").exists()
        and [b"hello"] == heard
    )


def test_what_is_listed_is_what_was_done(scene, listener):
    """Files read, at import and by C too, written and deleted, the program, the host by its name, the variable."""
    port, heard = listener

    found = scene.run("every", PORT=str(port), EXTRA="x")

    assert did(scene.place, heard)
    assert ("completed", "medium", False) == (found["outcome"], found["tier"], found["cut"])
    assert {
        ("read", "place/in/import.txt"),
        ("read", "place/in/read.txt"),
        ("read", "place/in/by-c.txt"),
        ("write", "place/out/made.txt"),
        ("write", "place/out/old.txt"),
        ("write", "place/out/teed"),
        ("exec", "place/tee"),
        ("egress", f"localhost:{port} (127.0.0.1)"),
        ("env", "EXTRA"),
        ("process", "start processes"),
    } == scene.wanted(found, "review")
    pasted = tomllib.loads("\n".join(found["paste"]))["pool"]["default"]
    assert {str(scene.place / "in" / f"{name}.txt") for name in ("by-c", "import", "read")} <= set(pasted["read"])
    assert [str(scene.place / "out")] == pasted["write"]
    assert [str(scene.place / "tee")] == pasted["exec"]
    assert [f"localhost:{port} private"] == pasted["egress"]
    assert ["PLACE", "WANTED", "PORT", "EXTRA"] == pasted["env"]


def test_nobody_gets_the_store_or_a_key(scene):
    """Not by a link, not by a program that is started, not what lies beside it; it is told, and the command says 35."""
    paths = [scene.store, scene.store.with_name("benteng.db-wal"), scene.root / "app/.benteng/producer.key"]

    found = scene.run("steal", code=35, WANTED=":".join(map(str, paths)))

    assert ["Permission denied"] * 12 == (scene.place / "out" / "said").read_text().splitlines()
    assert ["secret"] * 3 == [path.read_text() for path in paths]
    wanted = scene.wanted(found, "never")
    assert {(kind, str(path.relative_to(scene.root))) for path in paths for kind in ("read", "write")} <= wanted
    assert not any("state" in line or ".benteng" in line for line in found["paste"])


def test_calls_that_no_setting_gives_are_refused_and_told(scene):
    """The handler sees what it will see in its cell: no memory in files, no port of its own."""
    found = scene.run("forbidden")

    assert "38 13" == (scene.place / "out" / "said").read_text()
    assert {("call", "memfd_create"), ("call", "bind")} == scene.wanted(found, "never")


def test_every_way_to_change_a_directory_is_listed(project):
    """By path and by handle, what it was and what it becomes; and a file that is opened by the oldest call."""
    for name in ("a", "b", "c", "d"):
        (project.place / "in" / f"{name}.txt").write_text(name)
    (project.place / "out" / "removed").mkdir()

    found = project.run("change")

    assert "completed" == found["outcome"]
    names = ("a-renamed", "a-replaced", "b-renamed", "c-renamed", "d-renamed", "directory", "e", "fifo", "linked")
    expected = {("write", f"place/out/{name}") for name in (*names, "removed", "symlinked")}
    expected |= {("write", f"place/in/{name}.txt") for name in ("a", "b", "c", "d", "by-c")}
    expected |= {("read", "place/in/read.txt")} if platform.machine() == "x86_64" else set()
    assert expected <= project.wanted(found, "review")


def test_whatever_a_call_points_to_the_observer_goes_on(project):
    """Pointers to nowhere and paths without an end are the caller's trouble; and nobody answers for himself."""
    found = project.run("strange")

    assert "completed" == found["outcome"]
    assert "{-1} []" == (project.place / "out" / "said").read_text()


@pytest.mark.parametrize(
    "name,payload",
    [("every.high", '{"name": "a", "host": "web-7"}'), ("every.low", '{"name": "a"}')],
    ids=["high", "low"],
)
def test_each_tier_can_be_rehearsed(project, listener, name, payload):
    """HIGH is observed as MEDIUM is; a LOW cell has no walls, so that nothing is to be added."""
    port, heard = listener

    found = project.run(name, payload=payload, PORT=str(port))

    assert did(project.place, heard)
    files = {(kind, what) for kind, what in project.wanted(found, "review") if kind in ("read", "write", "exec")}
    assert (6 if name == "every.high" else 0) == len(files - {("exec", "place/tee")})


def test_what_was_pasted_is_enough(project):
    """With the lines in the pool's settings nothing is left to review but what they do not hold.

    A pool with a list of programs reads less, so that the first paste brings up what the second one adds.
    """
    project.environ |= {"PORT": "1"}  # nobody listens: it fails after the files and the program
    for _ in range(2):
        found = project.run("every", code=27)
        (project.place / "out" / "old.txt").write_text("old")
        project.configure([line for line in found["paste"] if not line.startswith("egress")])

    again = project.run("every", code=27)

    assert {("egress", "localhost:1 (127.0.0.1)")} == project.wanted(again, "review")


def test_a_handler_that_never_ends_is_ended(project):
    """At its deadline, with what it started, also when that left its group."""
    found = project.run("stay", code=27)

    assert "longer than it may" in found["why"]
    assert wait_gone(int((project.place / "out" / "pid").read_text()))


@pytest.mark.parametrize(
    "name,payload,why",
    [("fail", '{"name": "a"}', "it did not work"), ("every", '{"name": 7}', "["), ("every", "{", "P-json")],
    ids=["raises", "type", "json"],
)
def test_what_did_not_complete_says_why(project, name, payload, why):
    """Exit 27, and the reason; a payload that the contract does not take never reaches the handler."""
    found = project.run(name, payload=payload, code=27)

    assert why in found["why"]
    assert not (project.place / "out" / "made.txt").exists()


def test_an_app_that_cannot_be_imported_is_refused(project):
    """With the rule and the reason of a worker."""
    (project.place / "in" / "import.txt").unlink()

    found = project.run("every", code=78)

    assert "import" in found["reason"]


def test_prod_wants_to_be_asked(project):
    """The handler would do for real what it does: --yes says that this is meant, and the type is the reviewed one."""
    assert 0 == project.command("policy", "lock").returncode
    project.configure(environment="prod")

    asked = project.run("forbidden", code=2)
    assert not (project.place / "out" / "said").exists()
    found = project.run("forbidden", "--yes")

    assert "--yes" in asked["fix"]
    assert "completed" == found["outcome"]


def test_an_unknown_type_is_told(project):
    """Exit 4, with the names that there are."""
    assert "every@1" in project.run("evry", code=4)["fix"]


# ---------------------------------------------------------------------------------------------------------- the list


def state(sight, **given):
    """The state of one sight in a pool with a granted directory and a secret."""
    facts = {"read": ("/srv/in",), "write": ("/srv/out",), "listed": ("/srv/app",), "secrets": (Path("/srv/keys"),)}
    lists = {"env": ["REGION"], "exec": ["/usr/bin/git"]}
    pool = Pool("p", Tier.MEDIUM, lists=lists, set=frozenset({"ZONE", "DB_PASSWORD"}), **facts | given)
    (row,) = allow.rows([sight], pool)
    return row.state


@pytest.mark.parametrize(
    "sight,expected",
    [
        (Sight(Kind.READ, "/srv/in/a"), State.GRANTED),
        (Sight(Kind.READ, "/srv/inside"), State.REVIEW),
        (Sight(Kind.READ, "/srv/keys/a"), State.NEVER),
        (Sight(Kind.READ, "/srv"), State.NEVER),
        (Sight(Kind.READ, "/proc/1/environ"), State.NEVER),
        (Sight(Kind.READ, "/etc/hosts"), State.GRANTED),
        (Sight(Kind.WRITE, "/srv/out/a", made=True), State.GRANTED),
        (Sight(Kind.WRITE, "/srv/in/a"), State.REVIEW),
        (Sight(Kind.WRITE, "/srv/app/made", made=True), State.NEVER),
        (Sight(Kind.WRITE, "/made", made=True), State.NEVER),
        (Sight(Kind.WRITE, "/sys/power/state"), State.NEVER),
        (Sight(Kind.EXECUTE, "/usr/bin/git"), State.GRANTED),
        (Sight(Kind.EXECUTE, "/usr/bin/rm"), State.REVIEW),
        (Sight(Kind.CONNECT, "10.0.0.5:443"), State.REVIEW),
        (Sight(Kind.CONNECT, "10.0.0.5:5432", named="db"), State.NEVER),
        (Sight(Kind.CONNECT, "unix:/run/docker.sock"), State.NEVER),
        (Sight(Kind.VARIABLE, "REGION"), State.GRANTED),
        (Sight(Kind.VARIABLE, "ZONE"), State.REVIEW),
        (Sight(Kind.VARIABLE, "NOWHERE"), State.GRANTED),
        (Sight(Kind.VARIABLE, "DB_PASSWORD"), State.NEVER),
        (Sight(Kind.CALL, "bpf"), State.NEVER),
    ],
    ids=lambda value: f"{value.kind}-{value.what}" if isinstance(value, Sight) else str(value),
)
def test_the_state_of_each_thing(sight, expected):
    """What is there, what may be given, and what nothing gives."""
    assert expected is state(sight, store=frozenset({"db:5432"}))


def test_nothing_that_is_never_given_is_pasted():
    """Whatever was wanted beside it."""
    pool = Pool("p", Tier.MEDIUM, secrets=(Path("/srv/keys"),), lists={"read": ["/a"]})
    found = allow.rows([Sight(Kind.READ, "/srv/keys/k"), Sight(Kind.READ, "/srv/data"), Sight(Kind.CALL, "bpf")], pool)

    assert ["[pool.p]", 'read = ["/a", "/srv/data"]'] == allow.paste(found, pool)


@pytest.mark.parametrize(
    "raw,expected",
    [
        (b"\x02\x00\x01\xbb\x0a\x00\x00\x05" + bytes(8), "10.0.0.5:443"),
        (b"\x0a\x00\x01\xbb" + bytes(4) + bytes(15) + b"\x01" + bytes(4), "[::1]:443"),
        (b"\x01\x00\x00name\x00rest", "unix:name"),
        (b"\x01\x00/nowhere/at/all\x00", ""),
        (b"\x00\x00", ""),
        (b"\x02\x00\x01", ""),
        (b"", ""),
    ],
    ids=["inet", "inet6", "abstract", "absent", "unspecified", "short", "empty"],
)
def test_an_address_is_read_as_the_kernel_reads_it(raw, expected):
    """And what is none leads to nobody."""
    assert expected == peer(raw)


@pytest.mark.parametrize("tier", [Tier.MEDIUM, Tier.HIGH])
@pytest.mark.parametrize("arch", syscalls.Arch)
def test_a_rehearsal_refuses_what_its_tier_refuses(tier, arch):
    """Nothing in the filter refuses by itself but unknown calls: each refusal is asked, and so it is seen."""
    code = watch.program(tier, arch, own_uid=False)

    returned = [value for kind, _, _, value in watch.INSTRUCTION.iter_unpack(code) if kind == 6]
    assert 1 == sum(1 for value in returned if value & watch.ACTION == 0x0005_0000)
    assert returned.count(watch.NOTIFY) > 100
