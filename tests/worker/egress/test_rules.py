"""The list and the names, alone: what a rule opens, what is no rule, and what a cell is told."""

from __future__ import annotations

import ipaddress
import struct

import pytest

from benteng.errors import PolicyError
from benteng.worker.egress.names import NAMES_MAX, NXDOMAIN, Names, answer, sixth
from benteng.worker.egress.rules import RULES_MAX, Kind, kind_of, parse
from benteng.worker.pool import Pool

KINDS = {
    "93.184.216.34": Kind.PUBLIC,
    "2606:2800:220:1::1": Kind.PUBLIC,
    "10.0.0.5": Kind.PRIVATE,
    "172.31.255.1": Kind.PRIVATE,
    "192.168.1.1": Kind.PRIVATE,
    "100.64.0.1": Kind.PRIVATE,
    "fd12::1": Kind.PRIVATE,
    "127.0.0.1": Kind.LOOPBACK,
    "127.9.9.9": Kind.LOOPBACK,
    "::1": Kind.LOOPBACK,
    "::ffff:127.0.0.1": Kind.LOOPBACK,
    "::ffff:10.0.0.5": Kind.PRIVATE,
    "64:ff9b::7f00:1": Kind.LOOPBACK,
    "64:ff9b::a00:5": Kind.PRIVATE,
    "169.254.169.254": Kind.LINK_LOCAL,
    "fe80::1": Kind.LINK_LOCAL,
    "::ffff:169.254.169.254": Kind.LINK_LOCAL,
    "0.0.0.0": Kind.NEVER,  # noqa: S104 - an address that must be refused
    "::": Kind.NEVER,
    "224.0.0.1": Kind.NEVER,
    "ff02::1": Kind.NEVER,
    "255.255.255.255": Kind.NEVER,
    "240.0.0.1": Kind.NEVER,
    "198.18.1.0": Kind.NEVER,
    "192.0.2.1": Kind.NEVER,
    "2002:7f00:1::": Kind.NEVER,
    "2001:0:53aa:64c::1": Kind.NEVER,
}


@pytest.mark.parametrize("address, kind", KINDS.items(), ids=KINDS)
def test_an_address_has_one_kind(address, kind):
    """Also one that holds another inside is what that is."""
    assert kind is kind_of(ipaddress.ip_address(address))


@pytest.mark.parametrize("word", ["", "private", "loopback", "link-local"])
def test_an_address_is_opened_by_its_word_alone(word):
    """A rule opens the public internet and the kind that it names; what is never opened stays closed."""
    (rule,) = parse([f"name.example.org:443 {word}".strip()])

    opened = {kind for address, kind in KINDS.items() if rule.takes(ipaddress.ip_address(address))}

    assert opened == {Kind.PUBLIC} | ({Kind(word)} if word else set())


@pytest.mark.parametrize(
    "text, shown",
    [
        ("api.example.com:443", "api.example.com:443"),
        ("API.Example.COM.:443", "api.example.com:443"),
        ("*.example.org:443", "*.example.org:443"),
        ("10.0.0.5:5432 private", "10.0.0.5:5432 private"),
        ("[2606:2800:220:1::1]:443", "[2606:2800:220:1::1]:443"),
        ("[::1]:443 loopback", "[::1]:443 loopback"),
        ("xn--bcher-kva.example:1", "xn--bcher-kva.example:1"),
    ],
)
def test_a_rule_is_read(text, shown):
    """Names in lower case without the last dot, addresses in their short form."""
    assert [shown] == [str(rule) for rule in parse([text])]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "api.example.com",
        "api.example.com:0",
        "api.example.com:65536",
        "api.example.com:443 public",
        "api.example.com:443  private",
        "https://api.example.com:443",
        "*:443",
        "*.com:443",
        "a.*.example.org:443",
        "**.example.org:443",
        "bücher.example:443",
        "-a.example.org:443",
        "1.2.3:443",
        "256.1.1.1:443",
        "2001:db8::1:443",
        "10.0.0.5:5432",
        "10.0.0.5:5432 loopback",
        "127.0.0.1:80",
        "169.254.169.254:80 private",
        "0.0.0.0:80 private",
        "198.18.0.53:53 private",
        "a b:443",
        f"{'a.' * 130}example:443",
    ],
    ids=lambda text: text[:40] or "empty",
)
def test_what_is_no_rule_is_refused(text):
    """With the place in the list and a fix; the text itself is not repeated."""
    with pytest.raises(PolicyError) as caught:
        parse(["ok.example.org:443", text], "billing")

    assert ("W-egress", "pool.billing.egress[1]") == (caught.value.rule, caught.value.field)
    assert caught.value.fix


def test_a_list_is_bounded():
    """More rules than a person reviews are refused."""
    with pytest.raises(PolicyError, match="at most"):
        parse([f"a{number}.example.org:443" for number in range(RULES_MAX + 1)])


@pytest.mark.parametrize(
    "settings, rule",
    [
        ({"egress": ("nonsense",)}, "W-egress"),
        ({"egress": ("a.example.org:1",), "waive": frozenset({"seccomp"})}, "W-egress"),
        ({"egress_connects_per_job": 0}, "W-egress"),
        ({"broker_uid": 0, "broker_gid": 0}, "W-uid"),
        ({"broker_uid": 5}, "W-uid"),
        ({"uid": 5, "gid": 5, "broker_uid": 5, "broker_gid": 5}, "W-uid"),
    ],
    ids=["no-rule", "waived", "no-connect", "root", "half", "pool"],
)
def test_a_pool_refuses_what_cannot_be(settings, rule):
    """At once, by its rule."""
    with pytest.raises(PolicyError) as caught:
        Pool(**settings)

    assert rule == caught.value.rule


def names(*texts):
    """Return the names of a list."""
    return Names(parse(texts))


def test_each_listed_name_has_an_address_of_its_own():
    """In both families, the same each time, and back."""
    made = names("a.example.org:1", "b.example.org:1", "a.example.org:2", "10.0.0.5:1 private")

    one, other = made.virtual("a.example.org"), made.virtual("b.example.org")

    assert ("a.example.org", "b.example.org") == made.listed()
    assert one != other
    assert "a.example.org" == made.name(ipaddress.IPv4Address(one))
    assert "a.example.org" == made.name(sixth(ipaddress.IPv4Address(one)))
    assert "a.example.org" == made.name(ipaddress.IPv6Address(f"::ffff:{one}"))
    assert made.name(ipaddress.IPv6Address(f"::{one}")) is None
    assert f"{one} a.example.org" in made.files()["/etc/hosts"]


def test_a_wildcard_stands_for_one_label():
    """Neither for none nor for two, and never for a part of one."""
    made = names("*.example.org:443")

    found = [made.virtual(name) for name in ("x.example.org", "example.org", "a.b.example.org", "xexample.org")]

    assert [True, False, False, False] == [address is not None for address in found]


def test_the_names_of_a_wildcard_are_bounded(monkeypatch):
    """A job that makes up names gets no more of the broker's memory, and no address is given twice."""
    monkeypatch.setattr("benteng.worker.egress.names.NAMES_MAX", 3)
    made = names("*.example.org:443")

    found = [made.virtual(f"x{number}.example.org") for number in range(5)]

    assert [None, None] == found[3:]
    assert 3 == len(set(found[:3]))
    assert NAMES_MAX < 1 << 17


def question(name, kind=1, flags=0x0100):
    """Return a question as clients ask it."""
    labels = b"".join(bytes([len(label)]) + label for label in name.encode().split(b"."))
    return struct.pack(">6H", 7, flags, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", kind, 1)


def test_dns_tells_virtual_addresses_alone():
    """A listed name in either family; nothing else of it; and that there is no other name."""
    made = names("a.example.org:1")
    virtual = ipaddress.IPv4Address(made.virtual("a.example.org"))

    assert answer(question("A.example.org"), made).data.endswith(virtual.packed)
    assert answer(question("a.example.org", 28), made).data.endswith(sixth(virtual).packed)
    assert 0 == answer(question("a.example.org", 16), made).data[7]
    unknown = answer(question("evil.example.org"), made)
    assert (NXDOMAIN, "evil.example.org") == (unknown.data[3] & 0xF, unknown.refused)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 11,
        question("a")[:-1],
        question("a")[:14],
        b"\0" * 4 + b"\0\2" + b"\0" * 20,
        b"\0" * 600,
        question("a")[:12] + b"\xc0\x0c\0\1\0\1",
        question("a")[:12] + b"\1\xff\0\0\1\0\1",
    ],
    ids=["empty", "short", "cut", "no-type", "two", "long", "pointer", "bytes"],
)
def test_what_is_no_question_gets_no_answer(data):
    """One typed error, whatever arrives."""
    with pytest.raises(ValueError, match="DNS"):
        answer(data, names("a.example.org:1"))
