"""Names as cells see them: each listed name has a virtual address, and only the broker knows real ones. Pure.

A cell looks names up in a hosts file of its own, and all others by DNS over TCP to a virtual server, which is the
broker. So a name that means another address tomorrow changes nothing in a cell, and two names at one address stay two.
Trust: nothing in a question.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from benteng.worker.egress.rules import VIRTUAL, Address, Rule, address_of

SERVER: Final = "198.18.0.53"
SERVER_PORT: Final = 53
FIRST: Final = int(VIRTUAL.network_address) + 256
SIXTH: Final = int(ipaddress.IPv6Address("fd62:656e:7465:6e67::"))
"""Where the same addresses begin for IPv6; a unique local prefix (RFC 4193) that no host has."""

NAMES_MAX: Final = 32_768
"""Names that a pool's wildcards may stand for while its broker lives; none is given twice."""

QUESTION_BYTES_MAX: Final = 512
TYPE_A, TYPE_AAAA = 1, 28
TTL_SECONDS: Final = 30
_HEADER: Final = struct.Struct(">6H")
NXDOMAIN, NOTIMP = 3, 4


@dataclass(slots=True)
class Names:
    """The virtual addresses of one pool. `rules`: its list."""

    rules: Sequence[Rule]
    _name_of: dict[str, str] = field(default_factory=dict[str, str])
    _virtual_of: dict[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        for rule in self.rules:
            if not rule.is_wild and address_of(rule.host) is None:
                self.virtual(rule.host)

    def virtual(self, name: str) -> str | None:
        """Return the address that stands for a name; None when no rule is for it, or there are too many."""
        if name not in self._virtual_of:
            if len(self._virtual_of) >= NAMES_MAX or not any(rule.is_for(name) for rule in self.rules):
                return None
            address = str(ipaddress.IPv4Address(FIRST + len(self._virtual_of)))
            self._virtual_of[name], self._name_of[address] = address, name
        return self._virtual_of[name]

    def name(self, address: Address) -> str | None:
        """Return the name that an address stands for, in whichever way it is written."""
        if isinstance(address, ipaddress.IPv6Address):
            inner = address.ipv4_mapped or ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
            if address.ipv4_mapped is None and address != sixth(inner):
                return None
            address = inner
        return self._name_of.get(str(address))

    def listed(self) -> tuple[str, ...]:
        """Return the names that have an address."""
        return tuple(self._virtual_of)

    def files(self) -> dict[str, str]:
        """Return the text of each file in which a cell looks names up."""
        own = [] if "localhost" in self._virtual_of else ["127.0.0.1 localhost"]
        hosts = [*own, *(f"{address} {name}" for name, address in self._virtual_of.items())]
        hosts += [f"{sixth(ipaddress.IPv4Address(address))} {name}" for name, address in self._virtual_of.items()]
        return {
            "/etc/hosts": "\n".join(hosts) + "\n",
            "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n",
            "/etc/resolv.conf": f"nameserver {SERVER}\nsearch .\noptions use-vc timeout:2 attempts:1\n",
            "/etc/gai.conf": "precedence ::ffff:0:0/96 100\n",  # IPv4 first
        }


def sixth(address: ipaddress.IPv4Address) -> ipaddress.IPv6Address:
    """Return the IPv6 address that stands for the same name as an IPv4 one."""
    return ipaddress.IPv6Address(SIXTH | int(address))


@dataclass(frozen=True, slots=True)
class Answer:
    """What a question gets: its bytes, and the name that was not on the list ("" if it was)."""

    data: bytes
    refused: str = ""


def answer(question: bytes, names: Names) -> Answer:
    """Return the answer to a DNS question. Raises ValueError for bytes that are none."""
    try:
        name, kind, end = _read(question)
    except (struct.error, IndexError, UnicodeDecodeError):
        raise ValueError("not a DNS question") from None
    address = names.virtual(name)
    data = b"" if address is None else _packed(address, kind)
    code = 0 if address is not None else NXDOMAIN
    number, flags = _HEADER.unpack_from(question)[:2]
    if flags >> 11 & 0xF:
        code, data = NOTIMP, b""
    head = _HEADER.pack(number, 0x8180 | code, 1, 1 if data else 0, 0, 0)
    record = b"\xc0\x0c" + struct.pack(">HHIH", kind, 1, TTL_SECONDS, len(data)) + data if data else b""
    return Answer(head + question[_HEADER.size : end] + record, "" if address is not None else name)


def _packed(address: str, kind: int) -> bytes:
    """Return what a record of that type has; nothing for a type that names do not have here."""
    four = ipaddress.IPv4Address(address)
    return {TYPE_A: four.packed, TYPE_AAAA: sixth(four).packed}.get(kind, b"")


def _read(question: bytes) -> tuple[str, int, int]:
    """Return the name, the type, and where the question ends."""
    if len(question) > QUESTION_BYTES_MAX or _HEADER.unpack_from(question)[2] != 1:
        raise IndexError
    at, labels = _HEADER.size, list[str]()
    while (size := question[at]) != 0:
        if size > 63:  # noqa: PLR2004 - RFC 1035 2.3.4; above are pointers, and a question has nothing to point to
            raise IndexError
        labels.append(question[at + 1 : at + 1 + size].decode("ascii").lower())
        at += 1 + size
    kind, _ = struct.unpack_from(">HH", question, at + 1)
    return ".".join(labels), kind, at + 5
