"""What a supervisor believes of a warden: what the kernel stamps on its messages, not what they say about its user."""

from __future__ import annotations

import os
import socket

import pytest

from benteng.worker import framing, wire
from benteng.worker.asked import Asked
from tests.worker.estate import HIGH


def answering(uid):
    """Fork a warden of a user that claims every uid to be its own; return our end of its line."""
    if os.getuid() != 0:
        pytest.skip("needs root: it speaks as other users, and nobody has looked at what is believed of them")
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        theirs.recv(100)
        theirs.sendall(framing.frame(wire.Holds(("own_uid", "seccomp"))))
        os._exit(0)
    theirs.close()
    return ours, pid


@pytest.mark.parametrize("uid, held", [(HIGH, {"own_uid", "seccomp"}), (0, {"seccomp"})], ids=["other", "root"])
def test_whether_cells_have_a_uid_of_their_own_is_told_by_the_kernel(uid, held):
    """A warden of root's or our own user cannot say that it is another one."""
    line, pid = answering(uid)
    asked = Asked(lambda: line, ())

    assert held == asked.holds(10.0)

    asked.close()
    os.waitpid(pid, 0)
