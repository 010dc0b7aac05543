"""`benteng init systemd` and `docker`: what the files hold, as those who read them judge it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from click.testing import CliRunner

from benteng import Benteng, lockfile
from benteng.ops.cli import main
from benteng.ops.exits import Exit
from benteng.worker.sandbox import landlock
from tests.support.fixtures import need
from tests.support.others import ROOT, interpreter, ordinary

SETTINGS = """\
environment = "prod"
dsn = "postgresql://benteng_consumer_patch@127.0.0.1/benteng"
app = "jobs:app"

[pool.patch]
uid = 61002
gid = 61002
supervisor_uid = 61001
supervisor_gid = 61001
cell = "unix:/run/benteng/patch.sock"
"""
EXPOSURE_MAX, EXPOSURE_BROKERED_MAX = 1.5, 2.2
ANALYZE = shutil.which("systemd-analyze")
UNITS = ("benteng-patch.service", "benteng-patch-cell.service", "benteng-keeper.service")


HELD = """
import ctypes, errno, json, struct, sys
sys.path[:0] = json.loads(sys.argv[1])
from benteng.worker.sandbox import probe, seccomp, syscalls, system

numbers = [syscalls.number(name, syscalls.this_arch()) for name in json.loads(sys.argv[2])]
step = struct.Struct("HBBI")
refuse = [step.pack(0x15, 0, 1, number) + step.pack(6, 0, 0, 0x50000 | errno.EPERM) for number in numbers]
code = step.pack(0x20, 0, 0, 0) + b"".join(refuse) + step.pack(6, 0, 0, 0x7FFF0000)
buffer = ctypes.create_string_buffer(code, len(code))
system.no_new_privileges()
syscalls.call("seccomp", 1, 0, seccomp.Program(len(code) // step.size, ctypes.addressof(buffer)))
try:
    syscalls.call("name_to_handle_at", -1, None, None, None, 0)
except OSError as error:
    refused = error.errno == errno.EPERM
print(json.dumps({"refused": refused, "held": sorted(probe.probe())}))
"""
"""Put up a filter that refuses these calls, as the engine does, and say which layers hold behind it."""


def made(monkeypatch, directory, kind, *words, settings=SETTINGS):
    """Run the command in a project with these settings; return its result and the files."""
    directory.mkdir()
    (directory / "benteng.toml").write_text(settings)
    (directory / "benteng.toml").chmod(0o644)
    (directory / "out").mkdir()
    monkeypatch.chdir(directory)
    result = CliRunner().invoke(main, ["init", kind, "--pool", "patch", "--out", str(directory / "out"), *words])
    return result, {path.name: path.read_text() for path in (directory / "out").iterdir()}


MORE = {
    "plain": "",
    "programs": 'exec = ["/usr/bin/git"]\nwrite = ["/srv"]\n',
    "egress": 'egress = ["api.example.com:443"]\n',
}


@pytest.mark.parametrize("more", MORE.values(), ids=MORE)
@pytest.mark.parametrize("unit", UNITS)
def test_each_unit_is_closed(tmp_path, monkeypatch, unit, more):
    """The exposure that systemd itself computes is at most 1.5 of 10 for each process (issue 4, R7).

    But for the cells of a pool with `egress`: their broker has the network, and they have namespaces.
    """
    if ANALYZE is None:
        pytest.skip("needs systemd-analyze: the exposure of the units was not looked at")
    made(monkeypatch, tmp_path / "project", "systemd", settings=SETTINGS + more)

    words = [ANALYZE, "security", "--offline=true", "--no-pager", str(tmp_path / "project" / "out" / unit)]
    said = subprocess.run(words, capture_output=True, text=True, check=False).stdout
    exposure = re.search(r"Overall exposure level for \S+: ([0-9.]+)", said)

    assert exposure is not None, said
    brokered = more == MORE["egress"] and unit == "benteng-patch-cell.service"
    assert float(exposure[1]) <= (EXPOSURE_BROKERED_MAX if brokered else EXPOSURE_MAX), said


def test_no_unit_is_started_again_when_it_was_refused(tmp_path, monkeypatch):
    """Each start is written into the log, and what is refused stays refused until somebody mends it."""
    _, files = made(monkeypatch, tmp_path / "project", "systemd")

    services = {name: text for name, text in files.items() if name.endswith(".service")}
    assert set(UNITS) == services.keys()
    assert all(f"\nRestartPreventExitStatus={Exit.CONFIG.value}\n" in text for text in services.values())


@pytest.mark.parametrize("more", MORE.values(), ids=MORE)
def test_systemd_has_nothing_to_say_about_the_units(tmp_path, monkeypatch, more):
    """No unknown setting, group of calls or missing unit: what it warns of it ignores."""
    if ANALYZE is None:
        pytest.skip("needs systemd-analyze: the units were not verified")
    prefix = tmp_path / "prefix"
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin" / "benteng").symlink_to(sys.executable)
    monkeypatch.setattr(sys, "prefix", str(prefix))
    _, files = made(monkeypatch, tmp_path / "project", "systemd", settings=SETTINGS + more)
    units = [str(tmp_path / "project" / "out" / name) for name in files if not name.endswith(".conf")]

    said = subprocess.run([ANALYZE, "verify", "--man=no", *units], capture_output=True, text=True, check=False)

    ours = [line for line in said.stderr.splitlines() if "benteng" in line]
    assert [] == ours
    assert 4 == len(units)


def test_the_users_can_be_made(tmp_path, monkeypatch):
    """systemd-sysusers makes the users with the numbers of the settings, in a root of its own."""
    if shutil.which("systemd-sysusers") is None:
        pytest.skip("needs systemd-sysusers: the users were not made")
    _, files = made(monkeypatch, tmp_path / "project", "systemd")
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)

    subprocess.run(
        ["systemd-sysusers", f"--root={root}", "-"],
        input=files["benteng-patch.sysusers.conf"],
        text=True,
        check=True,
        capture_output=True,
    )
    users = {line.split(":")[0]: line.split(":")[2:4] for line in (root / "etc" / "passwd").read_text().splitlines()}

    assert (["61001", "61001"], ["61002", "61002"]) == (users["benteng-patch"], users["benteng-patch-cell"])
    assert "benteng-keeper" in users


def test_only_what_opens_the_store_has_a_credential(tmp_path, monkeypatch):
    """The cells' unit loads none, has no network, and another user than the supervisor's."""
    _, files = made(monkeypatch, tmp_path / "project", "systemd")
    cell, supervisor = files["benteng-patch-cell.service"], files["benteng-patch.service"]

    assert "LoadCredential" not in cell
    assert "PGPASSFILE" not in cell
    assert "PrivateNetwork=yes" in cell
    assert "LoadCredential=pgpass:" in supervisor
    assert "User=benteng-patch\n" in supervisor
    assert "User=benteng-patch-cell\n" in cell
    assert "SocketMode=0660" in files["benteng-patch-cell.socket"]


def size(name: str) -> None:
    """Be a job type of some size."""


def test_the_cells_are_bounded_together_and_end_together(tmp_path, monkeypatch):
    """What is around them has a cgroup: memory and processes of all, and an end of what left everything (adr/0004)."""
    app = Benteng()
    app.job("big@1", pool="patch", memory_bytes_max=3 << 30, file_bytes_max=1 << 20)(size)
    app.job("other@1", memory_bytes_max=9 << 30)(size)
    lockfile.write(tmp_path / "benteng.lock", app.registry.policies())
    monkeypatch.setenv("BENTENG_LOCK", str(tmp_path / "benteng.lock"))
    settings = SETTINGS + "concurrency = 7\n"
    _, units = made(monkeypatch, tmp_path / "project", "systemd", settings=settings)
    _, containers = made(monkeypatch, tmp_path / "other", "docker", settings=settings)

    memory = 8 * ((3 << 30) + 4 * (1 << 20)) + (512 << 20)
    lines = units["benteng-patch-cell.service"].splitlines()
    assert {"KillMode=mixed", "TasksMax=1024", f"MemoryMax={memory}", "OOMPolicy=continue"} <= set(lines)
    cell = services(containers["compose.yaml"])["patch-cell"]
    assert f"    mem_limit: {memory}\n" in cell
    assert "    pids_limit: 1024\n" in cell


def services(text):
    """Return the lines of each service of a compose file: our own form, two spaces a level."""
    body = text.partition("services:\n")[2].partition("\n\n#")[0]
    parts = re.split(r"^  ([\w-]+):\n", body, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_the_containers_are_closed(tmp_path, monkeypatch):
    """Read-only, no capability, no new privilege, users of their own; the cells have no network and no secret."""
    _, files = made(monkeypatch, tmp_path / "project", "docker")
    text = files["compose.yaml"]
    found = services(text)
    walls = text.partition("services:")[0]

    assert {"patch-cell", "patch", "keeper"} == found.keys()
    assert all("<<: *walls" in service for service in found.values())
    for line in ("read_only: true", "cap_drop: [ALL]", 'security_opt: ["no-new-privileges:true"]'):
        assert line in walls
    assert "network_mode: none" in found["patch-cell"]
    assert "secrets" not in found["patch-cell"]
    assert {"61001:61001", "61002:61002", "65532:65532"} == set(re.findall(r'user: "([0-9:]+)"', text))
    assert "networks: [patch-store]" in found["patch"]
    assert "networks: [keeper-store]" in found["keeper"]
    assert "USER 61002:61002" in files["Dockerfile"]
    assert '--linger, "3600"]' in found["patch"]  # an engine starts again whatever the exit code is


def test_a_broker_has_the_cells_container_and_what_it_needs_there(tmp_path, monkeypatch):
    """A network that nothing else of the pool is in, and our filter in place of the engine's; still no capability."""
    _, files = made(monkeypatch, tmp_path / "project", "docker", settings=SETTINGS + MORE["egress"])
    text = files["compose.yaml"]
    cell, *others = services(text).values()

    assert "networks: [patch-egress]" in cell
    assert "network_mode" not in cell
    assert '"no-new-privileges:true", "seccomp=./patch-cell.seccomp.json"' in cell
    assert "cap_add" not in text
    assert all("patch-egress" not in each and "seccomp" not in each for each in others)
    assert "\n  patch-egress: {}" in text


def test_a_broker_has_the_network_of_the_cells_unit(tmp_path, monkeypatch):
    """With the calls and namespaces that it needs; a pool without `egress` has none of them."""
    _, files = made(monkeypatch, tmp_path / "project", "systemd", settings=SETTINGS + MORE["egress"])
    cell = files["benteng-patch-cell.service"]

    assert "PrivateNetwork" not in cell
    assert "RestrictNamespaces=user mnt net ipc\n" in cell
    assert "SystemCallFilter=mount umount2 pidfd_getfd\n" in cell
    assert "LoadCredential" not in cell


def test_behind_the_filter_of_their_container_cells_have_all_their_walls(tmp_path, monkeypatch):
    """What the file forbids is refused, and every layer that holds without it holds with it: each tried for real."""
    need("" if landlock.abi() >= landlock.ABI_NET else "this kernel can have no egress broker")
    need("" if interpreter() else "no Python of this version that other users can run")
    _, files = made(monkeypatch, tmp_path / "project", "docker", settings=SETTINGS + MORE["egress"])
    (rule,) = json.loads(files["patch-cell.seccomp.json"])["syscalls"]
    python = [interpreter() or "", "-I", "-c", HELD, json.dumps([str(ROOT / "src"), sysconfig.get_path("purelib")])]

    without, behind = (
        json.loads(subprocess.run([*python, names], check=True, capture_output=True, text=True, **ordinary()).stdout)
        for names in (json.dumps([]), json.dumps(rule["names"]))
    )

    assert (False, True) == (without["refused"], behind["refused"])
    assert without["held"] == behind["held"]
    assert {"egress_broker", "together"} <= set(behind["held"])


def test_the_engine_reads_the_compose_file(tmp_path, monkeypatch):
    """As `docker compose config` sees it, where the client has it."""
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode:
        pytest.skip("needs docker compose: no engine has read the compose file")
    made(monkeypatch, tmp_path / "project", "docker")

    words = [docker, "compose", "-f", str(tmp_path / "project" / "out" / "compose.yaml"), "config", "--quiet"]

    assert 0 == subprocess.run(words, check=False).returncode


def test_files_are_printed_or_written_once(tmp_path, monkeypatch):
    """Without a directory they go to stdout; what is there is left as it is."""
    first, _ = made(monkeypatch, tmp_path / "project", "docker")
    (tmp_path / "project" / "out" / "Dockerfile").write_text("mine")

    again = CliRunner().invoke(main, ["init", "docker", "--pool", "patch", "--out", "out"])
    printed = CliRunner().invoke(main, ["init", "docker", "--pool", "patch"])

    assert 0 == first.exit_code
    assert "mine" == Path("out/Dockerfile").read_text()
    assert "Dockerfile exists" in again.stderr
    assert "cap_drop: [ALL]" in printed.stdout


@pytest.mark.parametrize(
    "old, new",
    [
        ("supervisor_uid = 61001\n", ""),
        ('cell = "unix:/run/benteng/patch.sock"\n', ""),
        ("[pool.patch]", "[pool.other]"),
    ],
    ids=["no-user", "no-socket", "no-pool"],
)
def test_a_pool_that_lacks_users_or_a_socket_is_refused(tmp_path, monkeypatch, old, new):
    """With the settings that it lacks, and nothing is written."""
    result, files = made(monkeypatch, tmp_path / "project", "systemd", settings=SETTINGS.replace(old, new))

    assert 78 == result.exit_code
    assert "W-deploy" in result.stderr
    assert {} == files


def test_the_embedded_store_is_refused(tmp_path, monkeypatch):
    """Its file has one user, and the units have several."""
    settings = SETTINGS.replace("postgresql://benteng_consumer_patch@127.0.0.1/benteng", "sqlite:////var/lib/b.db")

    result, _ = made(monkeypatch, tmp_path / "project", "systemd", settings=settings)

    assert 78 == result.exit_code
