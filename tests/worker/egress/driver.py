"""A cell behind a real broker, for one vector: the whole way of a pool with `egress`, but for its supervisor.

argv: directories to import from, then the scene as JSON. The broker is the program itself, in a fork, with names of the
test's own; or a warden makes it, and the names are those of /etc/hosts. Says on stdout what became of the vector, as it
sees it; the test looks from outside.
"""

# ruff: noqa: D103 - a vector is named after what it does

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import socket
import struct
import sys
import threading
import time

sys.path[:0] = json.loads(sys.argv[1])

from benteng.policy import Tier  # noqa: E402 - found by the line above
from benteng.worker import framing, wire  # noqa: E402
from benteng.worker.egress import program, resolver  # noqa: E402
from benteng.worker.egress.names import Names  # noqa: E402
from benteng.worker.egress.rules import address_of, parse  # noqa: E402
from benteng.worker.framing import Inbox  # noqa: E402
from benteng.worker.sandbox import capabilities, linux, roots, seccomp, system  # noqa: E402
from benteng.worker.warden import Bell, Warden, shut_in  # noqa: E402
from benteng.worker.wire import Line  # noqa: E402

scene = json.loads(sys.argv[2])
LISTED, OTHER, OTHER6, UDP = scene["listed"], scene["other"], scene["other6"], scene["udp"]
libc = ctypes.CDLL(None, use_errno=True)
KEEP = []
SECONDS = 15
"""How long a race is tried at most, however loaded the machine is."""


def connect(host, port, family=socket.AF_INET):
    """Connect and say something, so that who listens knows."""
    sock = socket.socket(family)
    sock.settimeout(3)
    KEEP.append(sock)
    sock.connect((host, port))
    sock.sendall(b"out")
    return sock


def listed():
    connect("listed.test", LISTED)


def literal():
    connect("127.0.0.1", OTHER)


def other_port():
    connect("listed.test" if scene["shut"] else "127.0.0.1", OTHER)


def loopback_v6():
    connect("::1", OTHER6, socket.AF_INET6)


def mapped():
    connect("::ffff:127.0.0.1", OTHER, socket.AF_INET6)


def rebound():
    """A name under a rule without a word that means the loopback today; outside of a cell: where it leads."""
    connect("rebound.test" if scene["shut"] else "127.0.0.1", OTHER)


def fastopen_sendto():
    sock = socket.socket()
    KEEP.append(sock)
    sock.sendto(b"out", 0x20000000, ("127.0.0.1", OTHER))


def fastopen_sendmsg():
    sock = socket.socket()
    KEEP.append(sock)
    sock.sendmsg([b"out"], [], 0x20000000, ("127.0.0.1", OTHER))


def datagram():
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"out", ("127.0.0.1", UDP))


def unix():
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(scene["unix"])
    sock.sendall(b"out")


def unix_datagram_pair():
    one, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    one.sendmsg([b"out"], [], 0, scene["datagram"])


def dissolve():
    """Take a connection apart by AF_UNSPEC, and make another of the same socket."""
    sock = connect("listed.test" if scene["shut"] else "127.0.0.1", LISTED)
    if libc.connect(sock.fileno(), bytes(16), 16):
        raise OSError(ctypes.get_errno(), "AF_UNSPEC")
    sock.connect(("127.0.0.1", OTHER))
    sock.sendall(b"out")


def source_route():
    """IPV6_RTHDR on a connected socket: what it sends goes another way from then on. Seen by reading it back."""
    sock = socket.socket(socket.AF_INET6)
    KEEP.append(sock)
    header = bytes((0, 2, 4, 0, 0, 0, 0, 0)) + socket.inet_pton(socket.AF_INET6, "fd99::bad")
    sock.setsockopt(socket.IPPROTO_IPV6, 57, header)
    print("rthdr", flush=True)


def listen():
    sock = socket.socket()
    KEEP.append(sock)
    sock.bind(("127.0.0.1", scene["free"]))
    sock.listen()


def rewritten():
    """Two threads write the address anew while it is connected to: what was read once counts. Ends when it got out."""
    address = ctypes.create_string_buffer(16)
    there = socket.gethostbyname("listed.test") if scene["shut"] else "127.0.0.1"
    images = [
        struct.pack("=H", 2) + port.to_bytes(2, "big") + socket.inet_aton(host) + bytes(8)
        for host, port in ((there, LISTED), ("127.0.0.1", OTHER))
    ]
    stop = threading.Event()
    sys.setswitchinterval(1e-6)  # the writers take turns often, also on a loaded machine

    def write(image):
        while not stop.is_set():
            ctypes.memmove(address, image, 16)

    threads = [threading.Thread(target=write, args=(image,)) for image in images]
    for thread in threads:
        thread.start()
    until, tries, out = time.monotonic() + SECONDS, 0, False
    while not out and time.monotonic() < until and (tries < 900 or not scene["shut"]):
        tries += 1
        with socket.socket() as sock:
            out = libc.connect(sock.fileno(), address, 16) == 0 and sock.getpeername()[1] == OTHER
    stop.set()
    for thread in threads:
        thread.join()


def swapped():
    """Put another socket under the same number while a connect is on its way."""
    there = socket.gethostbyname("listed.test") if scene["shut"] else "127.0.0.1"
    first, stop = socket.socket(), threading.Event()
    number = os.dup(first.fileno())

    def swap():
        while not stop.is_set():
            with socket.socket() as sock:
                os.dup2(sock.fileno(), number)

    thread = threading.Thread(target=swap)
    thread.start()
    image = struct.pack("=H", 2) + LISTED.to_bytes(2, "big") + socket.inet_aton(there) + bytes(8)
    until = time.monotonic() + SECONDS
    for _ in range(200):
        libc.connect(number, image, 16)
        if time.monotonic() > until:
            break
    stop.set()
    thread.join()
    if not scene["shut"]:
        connect("127.0.0.1", OTHER)


def over_budget():
    for _ in range(scene["budget"] + 1):
        connect("listed.test" if scene["shut"] else "127.0.0.1", LISTED)


def hijack():
    """When the broker is dead, answer for oneself: a listener of one's own, and "go on"."""
    sock = scene.get("made") or socket.socket()
    KEEP.append(sock)
    system.no_new_privileges()
    found = []

    def victim():
        found.append(seccomp.listen(seccomp.Filter(seccomp.Layer.OPEN_POOL, egress=True)))
        ready.set()
        sock.connect(("127.0.0.1", OTHER))
        sock.sendall(b"out")

    ready = threading.Event()
    thread = threading.Thread(target=victim, daemon=True)
    thread.start()
    if not ready.wait(2):
        raise PermissionError("no listener")
    data = bytearray(80)
    fcntl.ioctl(found[0], 0xC0502100, data)
    (number,) = struct.unpack_from("=Q", data)
    fcntl.ioctl(found[0], 0xC0182101, bytearray(struct.pack("=QqiI", number, 0, 0, 1)))
    thread.join(2)


VECTORS = {name: each for name, each in globals().items() if getattr(each, "__module__", "") == "__main__"}


def names(name):
    """Look names up as the test has it."""
    return (address_of("127.0.0.1"),) if name.endswith(".test") else ()


def attempt():
    """Run the vector and say how it ended."""
    try:
        VECTORS[scene["vector"]]()
        said = "did"
    except BaseException as error:  # noqa: BLE001 - whatever stops it is the answer
        said = f"{type(error).__name__}: {error}"
    print(f"ended {said}", flush=True)
    sys.stdin.readline()
    os._exit(0)


def main():
    """Play supervisor: a broker, a zygote that is the cell too, and the vector in it."""
    if not scene["shut"]:
        attempt()
    rules = [f"listed.test:{LISTED} loopback", f"rebound.test:{OTHER}"]
    line, theirs = socket.socketpair()
    broker = {"here": fork_broker, "there": ask_warden}[scene["door"]](line, theirs)
    theirs.close()
    line.sendall(framing.frame(wire.Open(tuple(rules), scene["budget"], 65_534, 65_534)))
    ours, other = socket.socketpair()
    parent, cell = os.getpid(), os.fork()
    if cell == 0:
        line.close()
        be_cell(other, rules, parent)
    other.close()
    _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
    if not descriptors:
        print("ended no cell", flush=True)
        os._exit(1)
    tell(line, wire.Listen(), descriptors[0])
    if scene["registered"]:
        tell(line, wire.Register(1), os.pidfd_open(cell))
    ours.sendall(b"g")
    if ours.recv(1) == b"k":
        os.kill(broker, signal.SIGKILL)
        while line.recv(100):  # until the broker is gone
            continue
        ours.sendall(b"k")
    os.waitpid(cell, 0)


def fork_broker(line, theirs):
    """Have a broker as child; return with whom it ends."""
    broker = os.fork()
    if broker == 0:
        line.close()
        resolver.look_up = names
        os.dup2(theirs.fileno(), 0)
        sys.argv[2] = str(os.getppid())
        program.main()
    return broker


def ask_warden(line, theirs):
    """Have a warden make the broker; return with whom it ends."""
    asked, answers = socket.socketpair()
    warden = os.fork()
    if warden == 0:
        line.close()
        asked.close()
        shut_in()
        with Bell() as bell:
            Warden(answers, ()).run(bell)
        os._exit(0)
    answers.close()
    KEEP.append(asked)
    socket.send_fds(asked, [framing.frame(wire.Employ())], [theirs.fileno()])
    return warden


def tell(line, message, number):
    """Say something to the broker and wait for its word."""
    socket.send_fds(line, [framing.frame(message)], [number])
    os.close(number)
    inbox = Inbox(Line.BROKER_READY)
    while not list(inbox.messages()):
        assert inbox.fill(line)


def be_cell(line, rules, parent):
    """Shut oneself in, hand the listener over, and run the vector."""
    walls = linux.Walls(
        read=roots.readable((*json.loads(sys.argv[1]), *roots.NAMES)),
        scratch=scene["scratch"],
        own_uid=scene["uid"] != 0,
        shut=scene["tier"] != "low",
        names=Names(parse(rules)).files(),
    )
    linux.leave_host(walls)
    if os.getuid() == 0:
        capabilities.become(scene["uid"], scene["uid"])
    listener = linux.enter_pool(walls) if scene["tier"] != "low" else linux.enter_open_pool(walls)
    system.die_with_parent(parent)
    socket.send_fds(line, [b"l"], [listener])
    os.close(listener)
    line.recv(1)
    if scene["vector"] == "hijack":
        scene["made"] = socket.socket()  # while the broker is there to make it
    if scene["layer"] == "job":
        if scene["tier"] == "low":
            linux.enter_open_job()
        else:
            linux.enter_job(walls, Tier(scene["tier"]), scene["scratch"])
    if scene["vector"] == "hijack":
        line.send(b"k")
        line.recv(1)
    attempt()


main()
