"""The table of layers, what it makes of a host and of a cell, and each layer alone."""

from __future__ import annotations

import os
import signal

import pytest

from benteng.errors import PolicyError
from benteng.policy import Tier
from benteng.worker import isolation
from benteng.worker.isolation import Site
from benteng.worker.pool import Pool
from benteng.worker.sandbox import landlock, layers, observe, probe, roots, trial
from benteng.worker.sandbox.landlock import Access, Grant
from benteng.worker.sandbox.layers import LAYERS, Need, Seen

ALL = frozenset(LAYERS)
CELL = frozenset(name for name, row in LAYERS.items() if row.seen is Seen.CELL)


def site(pool=None, tiers=(Tier.MEDIUM,), *, dev=True, secrets=()):
    """A worker about to start."""
    return Site(pool or Pool(), frozenset(tiers), dev, (), tuple(secrets))


def silent(event, /, **fields):
    """Say nothing."""


def test_a_higher_tier_never_requires_less():
    """What LOW requires MEDIUM does, and what MEDIUM requires HIGH does."""
    assert layers.required(Tier.LOW) <= layers.required(Tier.MEDIUM) <= layers.required(Tier.HIGH)


@pytest.mark.parametrize("name", sorted(layers.required(Tier.HIGH)))
def test_each_required_layer_is_missed(name):
    """Without any one of them HIGH is below its minimum, and it is that one."""
    assert (name,) == layers.missing(Tier.HIGH, ALL - {name})


def test_a_cell_is_not_believed_about_what_can_be_seen():
    """This process has no filter, whatever it says: a cell that claims every layer gets no MEDIUM work."""
    found = isolation.lacking(Tier.MEDIUM, ALL, observe.seen(os.getpid()), Pool())

    assert {"seccomp", "capabilities" if os.getuid() == 0 else "seccomp", "no_new_privs"} <= set(found)


def test_a_cell_that_lacks_a_layer_gets_no_work():
    """What only the cell can know is missed when it does not say it."""
    seen = observe.seen(os.getpid())

    assert "landlock_files" in isolation.lacking(Tier.MEDIUM, CELL - {"landlock_files"}, seen, Pool())


@pytest.mark.parametrize("dev", [True, False])
@pytest.mark.parametrize("name", ["landlock_files", "seccomp", "capabilities"])
def test_a_host_without_a_layer_starts_no_pool(monkeypatch, name, dev):
    """Neither in prod nor in dev, and the refusal names the layer."""
    monkeypatch.setattr(probe, "probe", lambda: tuple(ALL - {name}))

    with pytest.raises(PolicyError, match=name) as caught:
        isolation.check(site(dev=dev), silent)

    assert "W-layers" == caught.value.rule


def test_prod_refuses_high_without_an_own_uid_and_dev_is_loud(monkeypatch):
    """The one layer that an ordinary user cannot have."""
    monkeypatch.setattr(probe, "probe", lambda: tuple(ALL))
    said = []

    isolation.check(site(tiers=(Tier.HIGH,)), lambda event, /, **fields: said.append(fields))

    assert ["W-layers"] == [each["rule"] for each in said]
    assert "own_uid" in said[0]["why"]
    with pytest.raises(PolicyError, match="own_uid"):
        isolation.check(site(tiers=(Tier.HIGH,), dev=False), silent)


@pytest.mark.parametrize(
    "pool, tiers, rule",
    [
        (Pool(), (Tier.LOW, Tier.MEDIUM), "W-mixed"),
        (Pool(waive=frozenset({"seccomp"})), (Tier.MEDIUM,), "W-waive"),
        (Pool(read=("/var/lib/keys",)), (Tier.MEDIUM,), "W-roots"),
    ],
    ids=["mixed", "waived", "exposed"],
)
def test_prod_refuses_a_pool_that_would_not_hold(tmp_path, pool, tiers, rule):
    """Mixed tiers, waivers, and a readable directory with a secret in it."""
    from pathlib import Path

    with pytest.raises(PolicyError) as caught:
        isolation.check(site(pool, tiers, dev=False, secrets=[Path("/var/lib/keys/producer.key")]), silent)

    assert rule == caught.value.rule


@pytest.mark.parametrize("settings", [{"read": ("relative",)}, {"write": ("/",)}, {"waive": frozenset({"group"})}])
def test_a_pool_refuses_settings_that_would_undo_it(settings):
    """Relative paths, the root directory, and layers that cost nothing."""
    with pytest.raises(PolicyError):
        Pool(**settings)


def test_an_application_is_opened_around_its_secrets(tmp_path):
    """Hidden entries and what holds a secret are left out, at any depth; the rest is readable."""
    for name in ("code.py", ".env", "data/public.txt", "data/keys/producer.key", "data/keys/other.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")

    listed, readable = roots.application([str(tmp_path)], [tmp_path / "data/keys/producer.key"])

    assert [str(tmp_path / each) for each in ("", "data", "data/keys")] == list(listed)
    assert [str(tmp_path / each) for each in ("code.py", "data/keys/other.txt", "data/public.txt")] == list(readable)


def test_a_link_to_a_secret_is_not_opened(tmp_path):
    """A link beside the code that leads to the keys counts as the keys."""
    (tmp_path / "app").mkdir()
    (tmp_path / "keys").mkdir()
    (tmp_path / "app" / "link").symlink_to(tmp_path / "keys")

    _, readable = roots.application([str(tmp_path / "app")], [tmp_path / "keys" / "producer.key"])

    assert () == readable


def test_a_link_out_of_the_application_is_not_opened(tmp_path):
    """What lies elsewhere is named in the pool's `read`, not by whoever can make a link."""
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "link").symlink_to("/etc")

    assert ((str(tmp_path / "app"),), ()) == roots.application([str(tmp_path / "app")], [])


def test_roots_are_said_once():
    """What does not exist, and what lies in another root, costs no cell anything."""
    assert ("/etc/ssl", "/usr") == roots.outermost(("/usr/lib", "/usr", "/etc/ssl", "/etc/ssl/certs", "/nowhere"))


def test_few_grants_let_through_what_is_given_and_nothing_that_lies_apart(tmp_path):
    """The widest directories around what may be read; none holds the other cells' scratch or the kernel's files."""
    for name in ("work/app/code", "work/lib", "work/scratch/cell-1", "other/data/sub"):
        (tmp_path / name).mkdir(parents=True)
    read = [str(tmp_path / each) for each in ("work/app/code", "other/data/sub")] + ["/proc/self"]
    listed = [str(tmp_path / each) for each in ("work", "work/lib")]

    found = roots.coarse(read, listed, [str(tmp_path / "work/scratch"), "/proc"])

    assert {
        Grant(str(tmp_path / "work"), Access.LIST),
        Grant(str(tmp_path / "work/app"), Access.READ),
        Grant(str(tmp_path / "work/lib"), Access.READ),
        Grant(str(tmp_path / "other"), Access.READ),
        Grant(os.path.realpath("/proc/self"), Access.READ),
    } == set(found)


def test_only_sigsys_is_a_violation():
    """A crash of any other kind is a crash."""
    assert isolation.is_violation(signal.SIGSYS)
    assert not isolation.is_violation(signal.SIGKILL)
    assert not isolation.is_violation(int(signal.SIGSYS) << 8)


@pytest.mark.skipif(landlock.abi() == 0, reason="this kernel has no Landlock")
@pytest.mark.parametrize("name", sorted(probe.TRIALS))
def test_each_layer_holds_alone(name):
    """Tried by itself in a throw-away process: it can be done before, and not afterwards."""
    if name == "own_uid" and os.getuid() != 0:
        pytest.skip("only root can become another user")
    if name == "mount_namespace" and os.getuid() == 0:
        pytest.skip("only an ordinary user's files are covered: test_covers.py does it as one")

    assert probe.holds(probe.TRIALS[name])


def test_a_trial_that_raises_or_dies_has_not_held():
    """Deny by default: no answer is no."""
    assert not probe.holds(lambda place: 1 // 0 == 0)
    assert not probe.holds(lambda place: os.kill(os.getpid(), signal.SIGKILL) is None)


def test_a_cell_that_does_not_stand_proves_nothing(monkeypatch):
    """When the walls cannot be put up, `isolation test` does not say that they held."""
    from benteng.worker.sandbox import linux

    monkeypatch.setattr(linux, "enter_pool", lambda walls: 1 // 0)

    results = trial.run()

    assert results
    assert not any(each.held for each in results)


def test_nobody_is_seen_of_a_process_that_is_gone():
    """A pid that is nobody's has no layer."""
    assert frozenset() == observe.seen(0x7FFF_FFFE)


def test_every_row_says_what_it_is_for():
    """The docs are made from the table: no row without words, none that no tier uses."""
    assert all(row.does for row in LAYERS.values())
    assert all({row.low, row.medium, row.high} != {Need.UNUSED} for row in LAYERS.values())
