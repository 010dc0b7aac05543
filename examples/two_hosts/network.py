"""Two hosts on one machine: a network namespace each, joined to ours by a pair of virtual interfaces. Needs root."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from dataclasses import dataclass
from types import TracebackType
from typing import Self


@dataclass(frozen=True, slots=True)
class Host:
    """A host of its own as far as the network goes. `gateway`: where the rest of the world is, seen from there."""

    name: str
    link: str
    gateway: str

    @property
    def prefix(self) -> tuple[str, ...]:
        """What stands before a command that is to run there."""
        return ("nsenter", f"--net=/run/netns/{self.name}", "--")

    def cut(self) -> None:
        """Pull the cable: no packet passes any more, and nobody is told."""
        _run("ip", "link", "set", self.link, "down")

    def heal(self) -> None:
        """Put it in again."""
        _run("ip", "link", "set", self.link, "up")


class Network:
    """Two hosts, as a context manager. Their addresses are in 10.83.0.0/16."""

    def __init__(self) -> None:
        self._tag = secrets.token_hex(2)
        octet = secrets.randbelow(120)
        self.hosts = tuple(Host(f"bt{self._tag}{n}", f"bt{self._tag}{n}", f"10.83.{2 * octet + n}.1") for n in (0, 1))

    def __enter__(self) -> Self:
        try:
            for host in self.hosts:
                self._join(host)
        except BaseException:
            self._remove()
            raise
        return self

    def _join(self, host: Host) -> None:
        theirs = host.gateway.removesuffix("1") + "2"
        _run("ip", "netns", "add", host.name)
        _run("ip", "link", "add", host.link, "type", "veth", "peer", "name", "eth0", "netns", host.name)
        _run("ip", "address", "add", f"{host.gateway}/24", "dev", host.link)
        _run("ip", "link", "set", host.link, "up")
        _run("ip", "-n", host.name, "address", "add", f"{theirs}/24", "dev", "eth0")
        _run("ip", "-n", host.name, "link", "set", "eth0", "up")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _remove(self) -> None:
        for host in self.hosts:
            for command in (("ip", "link", "delete", host.link), ("ip", "netns", "delete", host.name)):
                subprocess.run(command, check=False, capture_output=True)


def why_not() -> str:
    """Say why there can be no such hosts here, or "" when there can."""
    if os.geteuid() != 0:
        return "needs root: it makes network namespaces"
    if not shutil.which("ip") or not shutil.which("nsenter"):
        return "needs the commands ip (iproute2) and nsenter (util-linux)"
    name = f"bt{secrets.token_hex(3)}"
    try:
        _run("ip", "netns", "add", name)
        _run("ip", "netns", "delete", name)
    except subprocess.CalledProcessError:
        return "may not make network namespaces here (ip netns add)"
    return ""


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
