"""Somebody else on the host, of the supervisor's uid: what it holds, and what happens to it, is what vectors want."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from pathlib import Path

secret = sys.argv[1].encode()
marker = sys.argv[2]
held = ctypes.create_string_buffer(secret.ljust(32, b"."), 32)
spare = ctypes.create_string_buffer(b"w" * 32, 32)
opened = os.memfd_create("held")
os.write(opened, secret)


def signalled(number, frame):
    """Leave a mark."""
    with Path(marker).open("a") as file:
        file.write("signalled\n")


os.setsid()
signal.signal(signal.SIGUSR1, signalled)
print(
    json.dumps(
        {
            "victim": os.getpid(),
            "address": ctypes.addressof(held),
            "spare": ctypes.addressof(spare),
            "descriptor": opened,
        }
    ),
    flush=True,
)
while sys.stdin.readline():
    print(bytes(spare).decode("latin1"), flush=True)
