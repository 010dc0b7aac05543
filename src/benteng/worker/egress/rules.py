"""What the cells of a pool may connect to: `host:port` rules, and which addresses each of them opens. Pure.

A rule names a host, a host below a suffix (`*.example.org`) or an address, and one port. An address that is not of the
public internet is refused unless the rule has the word for its kind: also when a name came to mean it meanwhile.
Trust: the pool's settings; not what a name resolves to.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from benteng.errors import PolicyError

RULES_MAX: Final = 256
HOST_CHARS_MAX: Final = 253
PORT_MAX: Final = 65_535
VIRTUAL: Final = ipaddress.ip_network("198.18.0.0/15")
"""Addresses that stand for names in cells (RFC 2544: never routed). Nothing real may be one."""

NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
_LABEL: Final = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST: Final = re.compile(rf"(\*\.{_LABEL}\.)?{_LABEL}(\.{_LABEL})*", re.ASCII)
_RULE: Final = re.compile(
    r"(?P<host>\[[0-9a-f:.]+\]|[^\s:\[\]]+):(?P<port>[1-9][0-9]{0,4})(?: (?P<word>[a-z-]+))?", re.ASCII
)

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Kind(StrEnum):
    """What an address is. A rule opens `public`, and one of the next three if it says so; `never` is never opened."""

    PUBLIC = "public"
    PRIVATE = "private"
    LOOPBACK = "loopback"
    LINK_LOCAL = "link-local"
    NEVER = "never"


WORDS: Final = (Kind.PRIVATE, Kind.LOOPBACK, Kind.LINK_LOCAL)
"""The words that a rule may end with."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of the list: a name, `*.suffix` or an address as text; a port; and the kind of address it opens."""

    host: str
    port: int
    opens: Kind = Kind.PUBLIC

    def __str__(self) -> str:
        word = "" if self.opens is Kind.PUBLIC else f" {self.opens}"
        return f"{target(self.host, self.port)}{word}"

    @property
    def is_wild(self) -> bool:
        """Whether it is for all hosts right below a suffix."""
        return self.host.startswith("*.")

    def is_for(self, host: str) -> bool:
        """Whether it is for this host: a wildcard stands for exactly one label."""
        return host == self.host or (self.is_wild and host.partition(".")[2] == self.host[2:])

    def takes(self, address: Address) -> bool:
        """Whether the address is of a kind that it opens."""
        kind = kind_of(address)
        return kind is Kind.PUBLIC or (kind is self.opens and kind is not Kind.NEVER)


def parse(texts: Iterable[str], pool: str = "") -> tuple[Rule, ...]:
    """Return the rules of a pool. Raises PolicyError naming the place in the list, the rule and the fix."""
    found = tuple(_parse(text, f"pool.{pool}.egress[{place}]") for place, text in enumerate(texts))
    if len(found) > RULES_MAX:
        raise PolicyError("W-egress", f"at most {RULES_MAX} rules", field=f"pool.{pool}.egress", fix="use a wildcard")
    return found


def _parse(text: str, field: str) -> Rule:
    match = _RULE.fullmatch(text.lower())
    if match is None or int(match["port"]) > PORT_MAX:
        fix = 'write "host:port", "*.example.org:443", "10.0.0.5:5432 private" or "[2001:db8::1]:443"'
        raise PolicyError("W-egress", "this is not a host with a port", field=field, fix=fix)
    opens = _opens(match["word"], field)
    host = match["host"].strip("[]")
    address = address_of(host)
    if address is None:
        return Rule(_name(host, field), int(match["port"]), opens)
    rule = Rule(str(address), int(match["port"]), opens)
    if not rule.takes(address):
        kind = kind_of(address)
        fix = "name a host of the network" if kind is Kind.NEVER else f'write "{target(host, rule.port)} {kind}"'
        raise PolicyError("W-egress", f"its address is {kind}, and the rule does not say so", field=field, fix=fix)
    return rule


def _opens(word: str | None, field: str) -> Kind:
    if word is None:
        return Kind.PUBLIC
    if word not in WORDS:
        raise PolicyError(
            "W-egress", "the word after the port is unknown", field=field, fix=f"one of {', '.join(WORDS)}"
        )
    return Kind(word)


def _name(host: str, field: str) -> str:
    name = host.removesuffix(".")
    if len(name) > HOST_CHARS_MAX or _HOST.fullmatch(name) is None:
        fix = "names have letters, digits and hyphens (punycode for others); a wildcard is *. before two labels or more"
        raise PolicyError("W-egress", "this is not the name of a host", field=field, fix=fix)
    if name.rpartition(".")[2].isdigit():
        raise PolicyError("W-egress", "this is neither a name nor an address", field=field, fix="write it as a.b.c.d")
    return name


def address_of(host: str) -> Address | None:
    """Return a host that is an address as such; None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def target(host: str, port: int) -> str:
    """Return `host:port` as it is written in a rule."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def kind_of(address: Address) -> Kind:
    """Return what an address is; for one that holds another inside, what that is."""
    inner = _inside(address)
    if inner is not None:
        return kind_of(inner)
    if address.is_unspecified or address.is_multicast or address in VIRTUAL or _is_tunnel(address):
        return Kind.NEVER
    if address.is_loopback:
        return Kind.LOOPBACK
    if address.is_link_local:
        return Kind.LINK_LOCAL
    return Kind.PUBLIC if address.is_global else _not_global(address)


def _not_global(address: Address) -> Kind:
    """Private networks and shared address space are private; broadcast, documentation and the like never."""
    inside = any(address in network for network in _PRIVATE if network.version == address.version)
    return Kind.PRIVATE if inside else Kind.NEVER


_PRIVATE: Final = tuple(
    ipaddress.ip_network(text)
    for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
)


def _inside(address: Address) -> Address | None:
    if not isinstance(address, ipaddress.IPv6Address):
        return None
    if address in NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped


def _is_tunnel(address: Address) -> bool:
    """Whether it is delivered to an IPv4 address that it holds: 6to4 and Teredo, which nobody needs any more."""
    return isinstance(address, ipaddress.IPv6Address) and (address.sixtofour is not None or address.teredo is not None)
