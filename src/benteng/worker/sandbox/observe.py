"""Which layers a process has, as the kernel tells anybody who looks: what a cell says of itself does not count here.

Trust: the kernel's files of that process; not the process.
"""

from __future__ import annotations

import os
from typing import Final

from benteng.worker.sandbox.system import kernel_text
from benteng.worker.scratch import PREFIX

SECCOMP_FILTER: Final = "2"
NO_CAPABILITY: Final = 0
NAMESPACES: Final = {
    "net": "network_namespace",
    "ipc": "ipc_namespace",
    "pid_for_children": "pid_namespace",
    "mnt": "mount_namespace",
}


def seen(pid: int) -> frozenset[str]:
    """Return the layers of another process that can be seen from here; none when it is gone."""
    layers = {name for name, holds in _holds(_status(pid)).items() if holds} | _namespaces(pid)
    if "mount_namespace" in layers and _has_noexec_scratch(pid):
        layers.add("noexec_scratch")
    return frozenset(layers)


def _holds(status: dict[str, str]) -> dict[str, bool]:
    sets = [status.get(name, "f") for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")]
    uids = {int(each) for each in status.get("Uid", str(os.getuid())).split()}
    return {
        "no_new_privs": status.get("NoNewPrivs") == "1",
        "seccomp": status.get("Seccomp") == SECCOMP_FILTER,
        "capabilities": all(int(each, 16) == NO_CAPABILITY for each in sets),
        "own_uid": not uids & {0, os.getuid()},
    }


def _status(pid: int) -> dict[str, str]:
    try:
        lines = kernel_text(f"/proc/{pid}/status").splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _namespaces(pid: int) -> set[str]:
    try:
        return {
            layer
            for name, layer in NAMESPACES.items()
            if os.readlink(f"/proc/{pid}/ns/{name}") != os.readlink(f"/proc/self/ns/{name}")  # noqa: PTH115 - no paths
        }
    except OSError:  # gone, or not ours to look at: nothing is known
        return set()


def _has_noexec_scratch(pid: int) -> bool:
    """Whether a scratch root is a mount of its own there, from which nothing can be run: proc_pid_mountinfo(5)."""
    try:
        mounts = kernel_text(f"/proc/{pid}/mountinfo").splitlines()
    except OSError:
        return False
    fields = [mount.split(" ") for mount in mounts]
    return any(f"/{PREFIX}" in each[4] and "noexec" in each[5].split(",") for each in fields)
