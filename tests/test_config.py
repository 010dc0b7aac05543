"""Configuration: where values come from, and what is refused."""

from __future__ import annotations

import pytest

from benteng.config import Environment, load
from benteng.errors import PolicyError
from benteng.opening import has_operator, keeps_roles
from benteng.secret import Source
from benteng.store.records import Facet


@pytest.fixture
def write(tmp_path):
    """Return a function that writes benteng.toml into the test's directory."""

    def write(text):
        path = tmp_path / "benteng.toml"
        path.write_text(text)
        path.chmod(0o600)
        return path

    return write


def test_without_a_file_the_embedded_defaults_hold(tmp_path):
    """Nothing to configure: dev, the embedded store, lock and keys in the working directory."""
    config = load(tmp_path, {})

    assert config.environment is Environment.DEV
    assert config.dsn(Facet.PRODUCER) == ""
    assert config.lock == tmp_path / "benteng.lock"
    assert config.keys == tmp_path / ".benteng"


def test_the_file_is_found_upwards(tmp_path, write):
    """A command run in a subdirectory sees the project's file, and paths are relative to the file."""
    write('dsn = "sqlite:///queue.db"\n')
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)

    config = load(below, {})

    assert config.dsn(Facet.OPERATOR) == f"sqlite:///{tmp_path}/queue.db"
    assert config.root == tmp_path


def test_arguments_win_over_variables_and_variables_over_the_file(tmp_path, write):
    """Each value says where it came from."""
    path = write('environment = "dev"\napp = "a:app"\ndsn = "sqlite:////x.db"\n')

    config = load(tmp_path, {"BENTENG_APP": "b:app", "BENTENG_DSN": "sqlite:////y.db"}, dsn="sqlite:////z.db")

    assert (config.app, config.dsn(Facet.KEEPER)) == ("b:app", "sqlite:////z.db")
    assert config.sources == {"environment": str(path), "app": "BENTENG_APP", "dsn": "argument"}


def test_pools_are_read(tmp_path, write):
    """A pool that the file does not mention has the defaults."""
    write("[pool.patch]\nconcurrency = 2\nenv = ['LANG']\n")

    config = load(tmp_path, {})

    assert config.pool("patch").concurrency == 2
    assert config.pool("patch").env == ("LANG",)
    assert config.pool("other").concurrency == 4


def test_a_pool_says_where_its_secrets_are(write, tmp_path):
    """A place for each name, and exactly one."""
    write('[pool.patch.secrets]\nstripe = {file = "/etc/benteng/stripe"}\nmail = {env = "MAIL"}\n')
    expected = {"stripe": Source(file="/etc/benteng/stripe"), "mail": Source(env="MAIL")}
    assert expected == load(tmp_path, {}).pool("patch").secrets

    write('[pool.patch.secrets]\nstripe = {file = "/a/b", env = "C"}\n')
    with pytest.raises(PolicyError, match="one of file, env and credential"):
        load(tmp_path, {})


@pytest.mark.parametrize(
    "text, rule, hint",
    [
        ("enviroment = 'dev'", "N-unknown", "environment"),
        ("environment = 'staging'", "N-value", "environment"),
        ("[pool.x]\nconcurency = 2", "N-value", "concurency"),
        ("app = ", "N-format", "TOML"),
    ],
    ids=["typo", "value", "pool", "syntax"],
)
def test_a_wrong_file_is_refused_with_a_hint(tmp_path, write, text, rule, hint):
    """A typo is an error that says what was meant."""
    write(text)

    with pytest.raises(PolicyError) as caught:
        load(tmp_path, {})

    assert caught.value.rule == rule
    assert hint in str(caught.value)


def test_a_file_that_others_may_write_is_refused(tmp_path, write):
    """Whoever can write the configuration can loosen it."""
    write("environment = 'dev'").chmod(0o666)

    with pytest.raises(PolicyError) as caught:
        load(tmp_path, {})

    assert caught.value.rule == "N-mode"
    assert "chmod" in caught.value.fix


def test_each_facet_may_have_its_own_address(tmp_path, write):
    """A database login has one facet: a host lists the addresses that its services need, a pool its own."""
    write(
        """
        [dsn]
        producer = "postgresql://app@db/q"
        consumer = "postgresql://worker@db/q"
        [pool.patch]
        dsn = "postgresql://patch@db/q"
        """
    )

    config = load(tmp_path, {})

    assert config.dsn(Facet.PRODUCER) == "postgresql://app@db/q"
    assert config.dsn(Facet.CONSUMER, "mail") == "postgresql://worker@db/q"
    assert config.dsn(Facet.CONSUMER, "patch") == "postgresql://patch@db/q"


def test_a_host_with_a_pools_address_alone_has_no_embedded_store(tmp_path, write):
    """Such a worker's host has no other facet, and speaks as no operator of a made-up file."""
    write('[pool.patch]\ndsn = "postgresql://patch@db/q"\n')

    config = load(tmp_path, {})

    assert config.dsn(Facet.CONSUMER, "patch") == "postgresql://patch@db/q"
    assert (False, False) == (config.is_embedded, has_operator(config))
    for facet, pool in ((Facet.OPERATOR, ""), (Facet.PRODUCER, ""), (Facet.CONSUMER, "mail")):
        with pytest.raises(PolicyError) as caught:
            config.dsn(facet, pool)
        assert caught.value.rule == "N-dsn"


@pytest.mark.parametrize(
    "text,kept",
    [
        ("", False),
        ('dsn = "sqlite:///queue.db"\n', False),
        ('dsn = "postgresql://app@db/q"\n', True),
        ('[pool.patch]\ndsn = "postgresql://patch@db/q"\n', True),
        ('dsn = "postgresql://app@db/q"\n[pool.patch]\ndsn = "sqlite:///queue.db"\n', False),
    ],
    ids=["embedded", "file", "server", "pool-alone", "one-pool-in-a-file"],
)
def test_roles_are_kept_where_every_ledger_keeps_them(tmp_path, write, text, kept):
    """PostgreSQL enforces them, a file cannot, and one file among the ledgers is enough."""
    write(text)

    assert kept is keeps_roles(load(tmp_path, {}))


def test_a_facet_without_address_is_refused(tmp_path, write):
    """A worker's host has no operator's login, and says so instead of trying another."""
    write('[dsn]\nconsumer = "postgresql://worker@db/q"\n')

    with pytest.raises(PolicyError) as caught:
        load(tmp_path, {}).dsn(Facet.OPERATOR)

    assert caught.value.rule == "N-dsn"
