"""Stand for a zygote: put the pool layer in force, then fork a cell for each vector that the test names.

argv: the site directory of benteng, the scene as JSON. Descriptor 0 is a socket: each message names a vector and its
scratch, and brings the cell's line. Cells say `ready`, wait, run the vector, say how it ended, and stay until hung up.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

sys.path[:0] = json.loads(sys.argv[1])

from benteng.policy import LIMITS, Tier  # noqa: E402 - found by the line above
from benteng.worker.sandbox import (  # noqa: E402
    Spec,
    basic,
    capabilities,
    covers,
    linux,
    namespaces,
    processes,
    programs,
    roots,
    system,
)

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
import vectors  # noqa: E402

scene = json.loads(sys.argv[2])
shut = scene["shut"]
limits = LIMITS[Tier.HIGH].__class__(
    attempts_max=1, crashes_max=1, memory_bytes_max=256 << 20, file_bytes_max=16 << 20, open_files_max=64
)
given = (scene["app"], *json.loads(sys.argv[1]))
listed = scene["programs"]
found = programs.resolve("test", listed, (*roots.DATA, *roots.python(), *given)) if listed else programs.Programs()
walls = linux.Walls(
    read=found.read if listed else roots.readable(given),
    listed=found.listed,
    scratch=scene["scratch_root"],
    own_uid=scene["own_uid"],
    shut=shut in ("medium", "high"),
    programs=found.run,
)


def main():
    """Serve until the test hangs up."""
    control = socket.socket(fileno=0)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    system.adopt_orphans()
    if shut == "low":
        if scene["own_uid"]:
            capabilities.become(scene["uid"], scene["uid"])
        else:
            covers.enter([scene["store"]])
        system.no_new_privileges()
    elif shut != "nothing":
        capabilities.limit()  # no namespaces: they are optional, so the worst case is without
        if scene["own_uid"]:
            if listed:
                capabilities.become_keeping(scene["uid"], scene["uid"], capabilities.Capability.SYS_ADMIN)
            else:
                capabilities.become(scene["uid"], scene["uid"])
        if listed:
            namespaces.own_users()
            capabilities.hold({capabilities.Capability.SYS_ADMIN})
        linux.enter_pool(walls)
    control.send(b"ready")
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, 4096, 8)
        if not data:
            os._exit(0)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            be_cell(json.loads(data), descriptors, parent)
        for descriptor in descriptors:
            os.close(descriptor)
        control.send(str(pid).encode())


def be_cell(message, descriptors, parent):
    """Run one vector."""
    try:
        attempt(message, descriptors, parent)
    finally:
        os._exit(70)


def attempt(message, descriptors, parent):
    """Put the job layer in force, tell the test, and run the vector."""
    line, *passed = descriptors
    os.set_inheritable(line, False)
    scene.update(message)
    scene["passed"], scene["passed6"] = (*passed, -1, -1)[:2]
    if shut in ("low", "medium", "high") and not passed:
        basic.enter(Spec(parent, line, limits, 1, scene["scratch"]))
        line = basic.KEPT
    if shut in ("medium", "high"):
        if listed:
            processes.leave()
        linux.enter_job(walls, Tier(shut), scene["scratch"])
    sock = socket.socket(fileno=line)
    sock.send(b"ready")
    sock.recv(1)
    try:
        vectors.VECTORS[message["vector"]](scene)
        said = "did"
    except BaseException as error:  # noqa: BLE001 - whatever stops it is the answer
        said = f"{type(error).__name__}: {error}"
    sock.send(said.encode())
    sock.recv(1)
    os._exit(0)


main()
