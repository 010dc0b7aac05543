"""What keyring.py promises: only exact trust roots are believed, private keys stay private, nothing is overwritten."""

from __future__ import annotations

import base64
import copy
import os
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from benteng.errors import KeyringError
from benteng.keyring import (
    INSTALLATION_KEY_FILE,
    RULES,
    TRUST_FILE,
    Role,
    SigningKey,
    format_trust,
    generate,
    key_id_of,
    load_installation_key,
    load_signing_key,
    load_trust,
    parse_key,
    parse_trust,
)

NOW = 1_800_000_000_000_000
SEED = bytes(range(32))
PUBLIC = SigningKey.from_seed(SEED).public
KEY_ID = key_id_of(PUBLIC)
CANARY = "CANARYCANARYCANARYCANARYCANARY42"

TRUST = f"""
[key.{KEY_ID}]
role = "producer"
public = "{base64.b64encode(PUBLIC).decode()}"
origin = "svc:deployer"
not_before = 2027-01-01T00:00:00Z
not_after = 2028-01-01T02:00:00+02:00
"""


@pytest.fixture
def keys(tmp_path):
    """A directory with the keys of a fresh installation."""
    directory = tmp_path / "keys"
    generate(directory, origin="svc:deployer", now=NOW)
    return directory


def test_trust_file_is_read_exactly():
    """A key's role, owner and window come from the file; times are instants, whatever their zone."""
    [key] = parse_trust(TRUST)

    assert (KEY_ID, Role.PRODUCER, PUBLIC, "svc:deployer") == (key.key_id, key.role, key.public, key.origin)
    assert int(datetime(2027, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000 == key.not_before
    assert int(datetime(2028, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000 == key.not_after
    assert not key.revoked


def test_what_is_not_in_the_file_is_not_trusted():
    """An empty file trusts nobody; an unknown id finds nothing."""
    assert 0 == len(parse_trust(""))
    assert parse_trust(TRUST).find("0" * 16) is None
    assert KEY_ID == parse_trust(TRUST).find(KEY_ID).key_id


def test_key_id_is_the_digest_of_the_key():
    """RFC 8032 7.1 test 1: public key and, by it, the id."""
    key = SigningKey.from_seed(bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"))

    assert "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a" == key.public.hex()
    assert "21fe31dfa154a261" == key.key_id


@pytest.mark.parametrize(
    "before, after, rule, says",
    [
        ("[key.", "[kay.", "K-unknown", "'key'"),
        ('role = "', 'rolle = "', "K-unknown", "'role'"),
        ('origin = "svc:deployer"', 'origin = "svc:deployer"\nrevoced = true', "K-unknown", "'revoked'"),
        ('role = "producer"', "", "K-field", "role"),
        ('role = "producer"', 'role = "CANARY"', "K-field", "role"),
        ('role = "producer"', "role = 7", "K-field", "role"),
        ('origin = "svc:deployer"', "", "K-field", "origin"),
        ("svc:deployer", "CANARY", "K-field", "origin"),
        ("svc:deployer", "svc:deployer\\nCANARY", "K-field", "origin"),
        ("svc:deployer", "svc:deployer\\n", "K-field", "origin"),
        ("2027-01-01T00:00:00Z", "2027-01-01T00:00:00", "K-field", "not_before"),
        ("2027-01-01T00:00:00Z", "2027-01-01", "K-field", "not_before"),
        ("2027-01-01T00:00:00Z", '"2027-01-01T00:00:00Z"', "K-field", "not_before"),
        ("2027-01-01T00:00:00Z", "1800000000", "K-field", "not_before"),
        ("not_after = 2028-01-01T02:00:00+02:00", "", "K-field", "not_after"),
        ("2027-01-01T00:00:00Z", "2028-01-01T00:00:00Z", "K-window", "not_after"),
        ('svc:deployer"', 'svc:deployer"\nrevoked = 1', "K-field", "revoked"),
        ('svc:deployer"', 'svc:deployer"\nrevoked = "false"', "K-field", "revoked"),
        (KEY_ID, "0" * 16, "K-key", KEY_ID),
        (KEY_ID, KEY_ID.upper(), "K-key", KEY_ID),
        ('public = "', 'public = "AAAA', "K-key", "public"),
        ('="\norigin', '"\norigin', "K-key", "public"),
        ("[key.", "[key", "K-unknown", "'key'"),
        ("]", "", "K-toml", "line"),
        ("origin", "origin = CANARY\norigin", "K-toml", "line"),
        ("origin", 'origin = "svc:other"\norigin', "K-toml", "line"),
    ],
)  # fmt: skip
def test_trust_file_that_is_wrong_in_part_is_refused_whole(before, after, rule, says):
    """Each mistake has its rule and names the place, and no value of the file is shown."""
    text = TRUST.replace(before, after, 1)
    assert text != TRUST

    with pytest.raises(KeyringError) as refused:
        parse_trust(text)

    assert f"[{rule}]" in str(refused.value)
    assert says in str(refused.value)
    assert "CANARY" not in str(refused.value)


def test_key_table_must_be_a_table():
    """Another TOML type in its place is refused, not skipped."""
    for text in ("key = 3", "[key]\nabc = 3", "[[key]]\nabc = 3"):
        with pytest.raises(KeyringError, match="K-field"):
            parse_trust(text)


def test_generated_keys_can_be_loaded_and_fit_their_roots(keys):
    """Each role has one key, whose id is in the trust roots with that role and a year of validity."""
    roots = load_trust(keys / TRUST_FILE)

    for role in Role:
        root = roots.find(load_signing_key(keys / f"{role}.key").key_id)
        assert (role, "svc:deployer", NOW, NOW + 365 * 86_400_000_000) == (
            root.role,
            root.origin,
            root.not_before,
            root.not_after,
        )
    assert len(Role) == len(roots)
    assert 32 == len(load_installation_key(keys / INSTALLATION_KEY_FILE))


def test_generated_files_have_exact_modes_whatever_the_umask(tmp_path):
    """The directory is 0700, private keys 0600, the trust roots 0644; no temporary file is left."""
    before = os.umask(0)
    try:
        generate(tmp_path / "keys", origin="svc:a", now=NOW, roles=[Role.PRODUCER])
    finally:
        os.umask(before)

    modes = {path.name: path.stat().st_mode & 0o777 for path in [tmp_path / "keys", *(tmp_path / "keys").iterdir()]}
    assert {"keys": 0o700, "producer.key": 0o600, INSTALLATION_KEY_FILE: 0o600, TRUST_FILE: 0o644} == modes


@pytest.mark.parametrize("existing", ["sealer.key", TRUST_FILE, INSTALLATION_KEY_FILE])
def test_generate_overwrites_nothing(tmp_path, existing):
    """When one of the files is there, even as a dangling link, nothing at all is written."""
    (tmp_path / existing).symlink_to(tmp_path / "nowhere")
    tmp_path.chmod(0o700)

    with pytest.raises(KeyringError, match="K-exists"):
        generate(tmp_path, origin="svc:a", now=NOW)

    assert [existing] == [path.name for path in tmp_path.iterdir()]


def test_generate_loses_a_race_without_overwriting(tmp_path, monkeypatch):
    """A file that appears after the look is not replaced either."""
    monkeypatch.setattr("benteng.keyring._refuse_existing", lambda directory, names: None)
    tmp_path.chmod(0o700)
    (tmp_path / "sealer.key").write_text("theirs")

    with pytest.raises(KeyringError, match="K-exists"):
        generate(tmp_path, origin="svc:a", now=NOW)

    assert "theirs" == (tmp_path / "sealer.key").read_text()
    assert not (tmp_path / TRUST_FILE).exists()
    assert [] == [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(
    "origin", ["", "Deployer", 'svc:a"\nrevoked = true #', "svc:a\n", "svc:\\u0041", "svc:" + "a" * 200]
)
def test_generate_refuses_an_origin_that_the_file_cannot_say(tmp_path, origin):
    """Nothing is written for an origin that would be read differently, or not at all."""
    with pytest.raises(KeyringError):
        generate(tmp_path / "keys", origin=origin, now=NOW)

    assert not (tmp_path / "keys").exists()


def test_generate_refuses_a_directory_that_others_can_read(tmp_path):
    """It does not tighten a directory that it did not make: somebody may rely on it."""
    (tmp_path / "keys").mkdir(mode=0o755)

    with pytest.raises(KeyringError, match="K-mode"):
        generate(tmp_path / "keys", origin="svc:a", now=NOW)


def test_generate_reports_a_place_that_cannot_be(tmp_path):
    """A file where the directory should be is a KeyringError, not an OSError."""
    (tmp_path / "file").write_text("")

    with pytest.raises(KeyringError, match="K-write"):
        generate(tmp_path / "file" / "keys", origin="svc:a", now=NOW)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o601])
def test_private_key_open_to_others_is_refused(keys, mode):
    """Any right of group or others on a private key stops its use, and the message says what to run."""
    path = keys / "producer.key"
    path.chmod(mode)

    with pytest.raises(KeyringError, match=r"K-mode.*chmod 600"):
        load_signing_key(path)


@pytest.mark.parametrize("mode", [0o666, 0o664, 0o646])
def test_trust_roots_that_others_can_write_are_refused(keys, mode):
    """Who can write the trust roots decides what runs."""
    (keys / TRUST_FILE).chmod(mode)

    with pytest.raises(KeyringError, match=r"K-mode.*chmod 644"):
        load_trust(keys / TRUST_FILE)


def test_trust_roots_in_a_directory_open_to_everybody_are_refused(keys):
    """There everybody could put another file in their place; a sticky directory prevents that."""
    keys.chmod(0o777)
    with pytest.raises(KeyringError, match="K-place"):
        load_trust(keys / TRUST_FILE)

    keys.chmod(0o1777)
    assert len(Role) == len(load_trust(keys / TRUST_FILE))


@pytest.mark.parametrize("name, load", [("producer.key", load_signing_key), (TRUST_FILE, load_trust)])
def test_files_of_another_user_are_refused(keys, monkeypatch, name, load):
    """A key file that belongs to somebody else is not ours to believe."""
    owner = os.geteuid()
    if owner == 0:
        os.chown(keys / name, 12345, -1)
    else:
        monkeypatch.setattr("benteng.keyring.os.geteuid", lambda: owner + 1)

    with pytest.raises(KeyringError, match="K-owner"):
        load(keys / name)


@pytest.mark.parametrize("load", [load_signing_key, load_trust])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path, load):
    """A FIFO does not block the start; a directory and a missing file are named."""
    os.mkfifo(tmp_path / "fifo", 0o600)

    for name, rule in (("fifo", "K-place"), (".", "K-place"), ("nothing", "K-missing"), ("no/dir", "K-missing")):
        with pytest.raises(KeyringError, match=rule):
            load(tmp_path / name)


@pytest.mark.parametrize("load", [load_signing_key, load_trust])
def test_large_or_binary_files_are_refused(tmp_path, load):
    """Not read whole, not decoded by guess."""
    path = tmp_path / "file"
    path.touch(mode=0o600)
    for raw, rule in ((b"#" * (2 << 20), "K-size"), (b"\xff\xfe", "K-toml")):
        path.write_bytes(raw)
        path.chmod(0o600)
        with pytest.raises(KeyringError, match=rule):
            load(path)


SEED_TEXT = base64.b64encode(SEED).decode()
LONG_TEXT = base64.b64encode(SEED + b"x").decode()


@pytest.mark.parametrize(
    "text",
    [
        *("", "\n", CANARY, CANARY * 2, "é" * 44, LONG_TEXT),
        *(SEED_TEXT + "\n\n", " " + SEED_TEXT, SEED_TEXT[:-1], SEED_TEXT.replace("8=", "9=")),
    ],
)
def test_key_file_has_one_form(text):
    """32 bytes, base64, one line: anything else, also other base64 of the same bytes, is refused and not shown."""
    assert text != SEED_TEXT

    with pytest.raises(KeyringError, match="K-key") as refused:
        parse_key(text)

    assert "CANARY" not in str(refused.value)


def test_private_bytes_are_never_shown():
    """repr, str, format, errors and copies of a signing key do not show its seed; it cannot be pickled."""
    seed = CANARY.encode()
    key = SigningKey.from_seed(seed)

    shown = f"{key!r} {key} {[key]} {vars(type(key))}"

    assert f"SigningKey({key.key_id})" in shown
    assert CANARY not in shown
    assert seed.hex() not in shown
    with pytest.raises(TypeError):
        key.__reduce_ex__(4)
    with pytest.raises(TypeError):
        copy.deepcopy(key)


@pytest.mark.parametrize("length", [0, 31, 33])
def test_seed_has_32_bytes(length):
    """Another length is refused by us, with the fix, not by the library."""
    with pytest.raises(KeyringError, match=r"K-key.*benteng init"):
        SigningKey.from_seed(bytes(length))


def test_format_and_parse_agree():
    """What is written is what is read, revocation included."""
    roots = parse_trust(TRUST.replace("origin", "revoked = true\norigin"))

    assert roots == parse_trust(format_trust(roots))
    assert "revoked = true" in format_trust(roots)


def test_cryptography_is_loaded_only_when_a_key_is_used():
    """Importing the core stays fast (issue 2: 80 ms)."""
    code = "import sys, benteng.keyring, benteng.envelope, benteng.audit; sys.exit('cryptography' in sys.modules)"

    assert 0 == subprocess.run([sys.executable, "-c", code], check=False).returncode


def test_each_rule_is_documented(request):
    """Each rule id is a heading of the reference."""
    page = (request.config.rootpath / "docs/reference/envelope.md").read_text(encoding="utf-8")

    assert [] == [rule for rule in RULES if f"### {rule}\n" not in page]
