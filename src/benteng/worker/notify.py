"""Tell who started this process how it is: the protocol of sd_notify(3), and a plain pipe for our own launcher."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

VARIABLE = "NOTIFY_SOCKET"


def notify(state: str, environ: Mapping[str, str]) -> bool:
    """Send a state, as "READY=1", to the socket that NOTIFY_SOCKET names; tell whether there was one that took it."""
    name = environ.get(VARIABLE, "")
    if not name.startswith(("/", "@")):
        return False
    address = f"\0{name[1:]}" if name.startswith("@") else name
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        try:
            sock.sendto(state.encode(), address)
        except OSError:
            return False
    return True


def write_ready(descriptor: int) -> None:
    """Say on an inherited pipe that this process is ready, and close it. A reader that is gone is no matter."""
    try:
        os.write(descriptor, b"READY=1\n")
    except OSError:
        pass
    finally:
        os.close(descriptor)
