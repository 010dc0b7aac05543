"""Ways out of a cell, each as hostile code would go it. Run by driver.py in a cell, never by pytest itself.

A vector takes the scene, a dict of the test's: paths, ports and pids outside. What it learns it leaves in `loot`,
in its own scratch; whether it got out is decided by the test, which looks from outside.
"""

# ruff: noqa: D103, PTH123, S606 - each name is the promise; hostile code goes the shortest way
from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import resource
import signal
import socket
import struct
import time
from pathlib import Path

VECTORS = {}
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
KEEP = []  # what must stay open while the test looks


def vector(function):
    """Make a function known by its name."""
    VECTORS[function.__name__] = function
    return function


def call(number, *arguments):
    """Make a system call by its x86_64 number; raise OSError when it fails."""
    words = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result = libc.syscall(ctypes.c_long(number), *words)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def text(value):
    return ctypes.c_char_p(value.encode())


def take(scene, data):
    """Keep what was learned."""
    Path(scene["scratch"], "loot").write_bytes(data)


# -------------------- files


@vector
def read_passwd(scene):
    take(scene, Path("/etc/passwd").read_bytes())


@vector
def read_file(scene):
    take(scene, Path(scene["secret"]).read_bytes())


@vector
def read_ledger(scene):
    take(scene, Path(scene["store"], "ledger").read_bytes())


@vector
def read_ledger_by_victims_root(scene):
    take(scene, Path(f"/proc/{scene['victim']}/root{scene['store']}/ledger").read_bytes())


@vector
def read_ledger_uncovered(scene):
    libc.umount2(text(scene["store"]), 2)
    take(scene, Path(scene["store"], "ledger").read_bytes())


@vector
def read_ledger_in_own_space(scene):
    libc.unshare(0x1002_0000)
    read_ledger_uncovered(scene)


@vector
def read_by_symlink(scene):
    link = Path(scene["scratch"], "link")
    link.symlink_to(scene["secret"])
    take(scene, link.read_bytes())


@vector
def read_by_hardlink(scene):
    link = Path(scene["scratch"], "link")
    os.link(scene["secret"], link)
    take(scene, link.read_bytes())


@vector
def read_by_dots(scene):
    take(scene, Path(scene["scratch"] + "/../../secret").read_bytes())


@vector
def read_by_proc_root(scene):
    take(scene, Path("/proc/self/root" + scene["secret"]).read_bytes())


@vector
def read_by_proc_cwd(scene):
    take(scene, Path(f"/proc/{scene['victim']}/cwd/secret").read_bytes())


@vector
def read_by_openat2(scene):
    how = ctypes.create_string_buffer(struct.pack("QQQ", os.O_RDONLY, 0, 0), 24)
    take(scene, os.read(call(437, -100, text(scene["secret"]), how, 24), 100))


@vector
def read_by_handle(scene):
    handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
    call(303, -100, text(scene["secret"]), handle, ctypes.create_string_buffer(4), 0)
    take(scene, os.read(call(304, os.open("/", os.O_RDONLY), handle, os.O_RDONLY), 100))


@vector
def write_file(scene):
    Path(scene["file"]).write_text("changed")


@vector
def create_file(scene):
    Path(scene["outside"], "new").write_text("x")


@vector
def create_in_shared_memory(scene):
    Path(scene["shm"]).write_text("x")


@vector
def create_directory(scene):
    Path(scene["outside"], "new").mkdir()


@vector
def create_symlink(scene):
    Path(scene["outside"], "new").symlink_to("/etc/passwd")


@vector
def create_pipe(scene):
    os.mkfifo(Path(scene["outside"], "new"))


@vector
def create_device(scene):
    os.mknod(Path(scene["outside"], "new"), 0o20666, os.makedev(1, 3))


@vector
def truncate_file(scene):
    os.truncate(scene["file"], 0)


@vector
def truncate_by_open(scene):
    os.open(scene["file"], os.O_RDONLY | os.O_TRUNC)


@vector
def truncate_app_by_open(scene):
    os.open(scene["app_file"], os.O_RDONLY | os.O_TRUNC)


@vector
def remove_file(scene):
    Path(scene["file"]).unlink()


@vector
def rename_over(scene):
    own = Path(scene["scratch"], "own")
    own.write_text("changed")
    own.rename(scene["file"])


@vector
def link_out(scene):
    own = Path(scene["scratch"], "own")
    own.write_text("x")
    os.link(own, Path(scene["outside"], "new"))


@vector
def change_mode(scene):
    Path(scene["file"]).chmod(0o600)


@vector
def change_mode_of_app(scene):
    os.fchmod(os.open(scene["app_file"], os.O_RDONLY), 0o4777)


@vector
def change_owner(scene):
    os.chown(scene["file"], -1, 61_999)


@vector
def change_times(scene):
    os.utime(scene["file"], (1, 1))


@vector
def change_times_to_now(scene):
    os.utime(scene["file"])


@vector
def change_times_to_now_by_old_calls(scene):
    call(132, text(scene["file"]), None)


@vector
def change_times_of_app(scene):
    os.utime(os.open(scene["app_file"], os.O_RDONLY), (1, 1))


@vector
def change_attribute(scene):
    os.setxattr(scene["file"], "user.mark", b"x")


@vector
def write_to_app(scene):
    Path(scene["app_file"]).write_text("changed")


@vector
def mount_something(scene):
    call(165, text("none"), text(scene["mount"]), text("tmpfs"), 0, None)


@vector
def change_root(scene):
    os.chroot(scene["scratch"])


@vector
def watch_directory(scene):
    watch = libc.inotify_init1(0)
    call(254, watch, text(scene["outside"]), 0xFFF)
    KEEP.append(watch)


# -------------------- programs


@vector
def execute(scene):
    os.execv("/bin/sleep", ["sleep", "1000"])


@vector
def execute_script(scene):
    script = Path(scene["scratch"], "script")
    script.write_text("#!/bin/sh\nsleep 1000\n")
    descriptor = os.open(script, os.O_RDONLY)
    libc.fchmod(descriptor, 0o755)  # refused where the uid is shared: then it was 0600 and is no program anyway
    os.execv(script, ["script"])


@vector
def execute_from_memory(scene):
    memory = os.memfd_create("x")
    os.write(memory, Path("/bin/sleep").read_bytes())
    os.execve(memory, ["sleep", "1000"], {})


@vector
def execute_by_loader(scene):
    os.execv("/lib64/ld-linux-x86-64.so.2", ["ld", "/bin/sleep", "1000"])


@vector
def execute_interpreter(scene):
    os.execv(scene["python"], ["python", "-c", "import time; time.sleep(1000)"])


@vector
def execute_interpreter_by_loader(scene):
    os.execv("/lib64/ld-linux-x86-64.so.2", ["ld", scene["python"], "-c", "import time; time.sleep(1000)"])


@vector
def execute_program_of_app(scene):
    os.execv(Path(scene["app"], "helper"), ["sleep", "1000"])


@vector
def execute_program_of_app_by_loader(scene):
    os.execv("/lib64/ld-linux-x86-64.so.2", ["ld", str(Path(scene["app"], "helper")), "1000"])


@vector
def execute_by_listed_program(scene):
    os.execv("/usr/bin/env", ["env", "sleep", "1000"])


@vector
def execute_copy_of_listed_program(scene):
    copy = Path(scene["scratch"], "copy")
    copy.write_bytes(Path("/bin/sleep").read_bytes())
    libc.chmod(text(str(copy)), 0o755)
    os.execv(copy, ["sleep", "1000"])


@vector
def run_listed(scene):
    """Not a way out: what the list is for."""
    pid = os.posix_spawn("/usr/bin/env", ["env", "-i", "MARK=x"], {})
    assert os.waitpid(pid, 0)[1] == 0


@vector
def execute_in_child(scene):
    KEEP.append(os.posix_spawn("/bin/sleep", ["sleep", "1000"], {}))


# -------------------- processes


def _stay(pid):
    if pid == 0:
        time.sleep(1000)
        os._exit(0)


@vector
def fork(scene):
    _stay(os.fork())


@vector
def fork_daemon(scene):
    pid = os.fork()
    if pid == 0:
        os.setsid()
        _stay(os.fork())
        os._exit(0)
    time.sleep(0.05)


@vector
def fork_by_number(scene):
    _stay(call(57))


@vector
def fork_by_clone(scene):
    _stay(call(56, signal.SIGCHLD, 0, 0, 0, 0))


@vector
def fork_by_clone3(scene):
    _stay(call(435, ctypes.create_string_buffer(struct.pack("QQQQQQQQ", 0, 0, 0, 0, signal.SIGCHLD, 0, 0, 0), 64), 64))


@vector
def fork_by_other_convention(scene):
    """`int 0x80` has other numbers: 2 is fork there."""
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(b"\x53\xb8\x02\x00\x00\x00\xcd\x80\x5b\xc3")
    where = ctypes.addressof(ctypes.c_char.from_buffer(code))
    _stay(ctypes.CFUNCTYPE(ctypes.c_int)(where)())


@vector
def signal_victim(scene):
    os.kill(scene["victim"], signal.SIGUSR1)


@vector
def signal_group(scene):
    os.killpg(scene["victim"], signal.SIGUSR1)


@vector
def signal_thread(scene):
    call(234, scene["victim"], scene["victim"], signal.SIGUSR1)


@vector
def signal_by_queue(scene):
    info = ctypes.create_string_buffer(struct.pack("iii", signal.SIGUSR1, 0, -1) + bytes(116), 128)
    call(129, scene["victim"], signal.SIGUSR1, info)


@vector
def signal_by_pidfd(scene):
    signal.pidfd_send_signal(os.pidfd_open(scene["victim"]), signal.SIGUSR1)


@vector
def signal_by_input(scene):
    one, other = socket.socketpair()
    fcntl.fcntl(one, fcntl.F_SETOWN, scene["victim"])
    fcntl.fcntl(one, 10, signal.SIGUSR1)
    fcntl.fcntl(one, fcntl.F_SETFL, fcntl.fcntl(one, fcntl.F_GETFL) | os.O_ASYNC)
    other.send(b"x")
    KEEP.extend((one, other))


@vector
def signal_by_ioctl(scene):
    one, other = socket.socketpair()
    fcntl.ioctl(one, 0x8901, struct.pack("i", scene["victim"]))
    fcntl.fcntl(one, 10, signal.SIGUSR1)
    fcntl.fcntl(one, fcntl.F_SETFL, fcntl.fcntl(one, fcntl.F_GETFL) | os.O_ASYNC)
    other.send(b"x")
    KEEP.extend((one, other))


@vector
def trace_victim(scene):
    call(101, 0x4206, scene["victim"], 0, 0)


@vector
def read_victims_memory(scene):
    buffer = ctypes.create_string_buffer(32)
    local = ctypes.create_string_buffer(struct.pack("QQ", ctypes.addressof(buffer), 32), 16)
    remote = ctypes.create_string_buffer(struct.pack("QQ", scene["address"], 32), 16)
    call(310, scene["victim"], local, 1, remote, 1, 0)
    take(scene, buffer.raw)


@vector
def read_victims_memory_by_file(scene):
    with open(f"/proc/{scene['victim']}/mem", "rb", 0) as memory:
        memory.seek(scene["address"])
        take(scene, memory.read(32))


@vector
def write_victims_memory(scene):
    buffer = ctypes.create_string_buffer(b"\0" * 32, 32)
    local = ctypes.create_string_buffer(struct.pack("QQ", ctypes.addressof(buffer), 32), 16)
    remote = ctypes.create_string_buffer(struct.pack("QQ", scene["spare"], 32), 16)
    call(311, scene["victim"], local, 1, remote, 1, 0)


@vector
def read_victims_environment(scene):
    take(scene, Path(f"/proc/{scene['victim']}/environ").read_bytes())


@vector
def take_victims_descriptor(scene):
    taken = call(438, os.pidfd_open(scene["victim"]), scene["descriptor"], 0)
    take(scene, os.pread(taken, 100, 0))


@vector
def reopen_victims_descriptor(scene):
    take(scene, Path(f"/proc/{scene['victim']}/fd/{scene['descriptor']}").read_bytes())


@vector
def hold_victim(scene):
    KEEP.append(os.pidfd_open(scene["victim"]))


@vector
def slow_victim(scene):
    os.setpriority(os.PRIO_PROCESS, scene["victim"], 19)


@vector
def pin_victim(scene):
    os.sched_setaffinity(scene["victim"], {0})


@vector
def idle_victim(scene):
    os.sched_setscheduler(scene["victim"], os.SCHED_IDLE, os.sched_param(0))


@vector
def idle_victim_by_attributes(scene):
    attributes = ctypes.create_string_buffer(struct.pack("IIQiIQQQ", 48, 5, 0, 0, 0, 0, 0, 0), 48)
    call(314, scene["victim"], attributes, 0)


@vector
def limit_victim(scene):
    resource.prlimit(scene["victim"], resource.RLIMIT_NOFILE, (77, 77))


@vector
def become_root(scene):
    os.setuid(0)
    take(scene, scene["secret_text"].encode() if os.getuid() == 0 else b"")


# -------------------- network


@vector
def tcp_connect(scene):
    socket.create_connection(("127.0.0.1", scene["tcp"]), 2).sendall(b"out")


@vector
def tcp_connect_ipv6(scene):
    socket.create_connection(("::1", scene["tcp6"]), 2).sendall(b"out")


@vector
def tcp_fastopen_sendmsg(scene):
    sock = socket.socket()
    KEEP.append(sock)
    sock.sendmsg([b"out"], [], 0x20000000, ("127.0.0.1", scene["tcp"]))


@vector
def tcp_fastopen_sendto(scene):
    sock = socket.socket()
    KEEP.append(sock)
    sock.sendto(b"out", 0x20000000, ("127.0.0.1", scene["tcp"]))


def _serve(scene, sock):
    take(scene, str(sock.getsockname()[1]).encode())
    KEEP.append(sock)


@vector
def tcp_listen(scene):
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.listen()
    _serve(scene, sock)


@vector
def tcp_listen_without_bind(scene):
    sock = socket.socket()
    sock.listen()
    _serve(scene, sock)


@vector
def udp_sendto(scene):
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"out", ("127.0.0.1", scene["udp"]))


@vector
def udp_sendmsg(scene):
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendmsg([b"out"], [], 0, ("127.0.0.1", scene["udp"]))


@vector
def unix_connect(scene):
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(scene["unix"])
    sock.send(b"out")


@vector
def unix_connect_abstract(scene):
    sock = socket.socket(socket.AF_UNIX)
    sock.connect("\0" + scene["abstract"])
    sock.send(b"out")


@vector
def unix_datagram(scene):
    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"out", scene["datagram"])


@vector
def unix_datagram_pair(scene):
    one, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    one.sendmsg([b"out"], [], 0, scene["datagram"])


@vector
def unix_datagram_many(scene):
    """Sendmmsg has its own way to an address."""
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    KEEP.extend((one, other))
    data = ctypes.create_string_buffer(b"out", 3)
    path = scene["datagram"].encode()
    name = ctypes.create_string_buffer(struct.pack("H", socket.AF_UNIX) + path + b"\0")
    vec = ctypes.create_string_buffer(struct.pack("QQ", ctypes.addressof(data), 3), 16)
    header = struct.pack("QIxxxxQQQQIxxxx", ctypes.addressof(name), len(path) + 3, ctypes.addressof(vec), 1, 0, 0, 0)
    call(307, one.fileno(), ctypes.create_string_buffer(header + struct.pack("Ixxxx", 0)), 1, 0)


@vector
def unix_bind(scene):
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(scene["outside"] + "/new")


@vector
def socket_netlink(scene):
    KEEP.append(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0))


@vector
def socket_packet(scene):
    KEEP.append(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3))


@vector
def socket_raw(scene):
    KEEP.append(socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))


@vector
def socket_vsock(scene):
    KEEP.append(socket.socket(40, socket.SOCK_STREAM))


@vector
def socket_crypto(scene):
    KEEP.append(socket.socket(38, socket.SOCK_SEQPACKET))


@vector
def use_inherited_descriptor(scene):
    os.write(scene["inherited"], b"out")


def _dissolve(scene):
    sock = socket.socket(fileno=scene["passed"])
    KEEP.append(sock)
    libc.connect(sock.fileno(), ctypes.c_char_p(struct.pack("H14x", 0)), 16)
    return sock


@vector
def passed_socket_reconnect(scene):
    sock = _dissolve(scene)
    sock.connect(("127.0.0.1", scene["tcp"]))
    sock.send(b"out")


@vector
def passed_socket_fastopen(scene):
    _dissolve(scene).sendmsg([b"out"], [], 0x20000000, ("127.0.0.1", scene["tcp"]))


@vector
def passed_socket_source_route(scene):
    sock = socket.socket(fileno=scene["passed6"])
    KEEP.append(sock)
    header = bytes((0, 2, 4, 0, 0, 0, 0, 0)) + socket.inet_pton(socket.AF_INET6, "fd99::bad")
    sock.setsockopt(socket.IPPROTO_IPV6, 57, header)


# -------------------- kernel objects


@vector
def ipc_shared_memory(scene):
    call(29, scene["key"], 4096, 0o1666)


@vector
def ipc_semaphore(scene):
    call(64, scene["key"], 1, 0o1666)


@vector
def ipc_messages(scene):
    call(68, scene["key"], 0o1666)


@vector
def ipc_posix_queue(scene):
    call(240, text(scene["queue"]), 0o102, 0o666, None)


@vector
def ring(scene):
    KEEP.append(call(425, 4, ctypes.create_string_buffer(120)))


@vector
def fault_handler(scene):
    KEEP.append(call(323, 1))


@vector
def kernel_program(scene):
    attributes = ctypes.create_string_buffer(struct.pack("IIII", 2, 4, 8, 1) + bytes(112), 128)
    KEEP.append(call(321, 0, attributes, 128))


@vector
def performance_counter(scene):
    attributes = ctypes.create_string_buffer(struct.pack("IIQQQQQ", 1, 112, 1, 0, 0, 0, 0x60) + bytes(64), 112)
    KEEP.append(call(298, attributes, 0, -1, -1, 0))


@vector
def kernel_key(scene):
    key = call(248, text("user"), text(scene["keyname"]), text("x"), 1, -4)
    call(250, 5, key, 0x3F3F3F3F)


@vector
def memory_file(scene):
    KEEP.append(os.memfd_create("held"))


@vector
def watch_file_system(scene):
    KEEP.append(call(300, 0x200, 0))


@vector
def new_user_namespace(scene):
    call(272, 0x10000000)


@vector
def new_network_namespace(scene):
    call(272, 0x40000000)


@vector
def new_namespace_by_clone(scene):
    _stay(call(56, 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0))


@vector
def second_filter(scene):
    _filter(0)


@vector
def second_filter_by_prctl(scene):
    code = ctypes.create_string_buffer(struct.pack("=HBBI", 6, 0, 0, 0x7FFF0000), 8)
    filter_ = ctypes.create_string_buffer(struct.pack("=H6xQ", 1, ctypes.addressof(code)), 16)
    libc.prctl(38, 1, 0, 0, 0)
    if libc.prctl(22, 2, filter_, 0, 0) < 0:
        raise OSError(ctypes.get_errno(), "refused")


@vector
def second_listener(scene):
    KEEP.append(_filter(8))


def _filter(flags):
    code = ctypes.create_string_buffer(struct.pack("=HBBI", 6, 0, 0, 0x7FFF0000), 8)
    filter_ = ctypes.create_string_buffer(struct.pack("=H6xQ", 1, ctypes.addressof(code)), 16)
    libc.prctl(38, 1, 0, 0, 0)
    return call(317, 1, flags, filter_)


@vector
def other_personality(scene):
    call(135, 0x0400000)


@vector
def kernel_log(scene):
    buffer = ctypes.create_string_buffer(1 << 16)
    count = call(103, 3, buffer, 1 << 16)
    take(scene, scene["secret_text"].encode() if count > 0 else b"")


@vector
def lose_parent_tie(scene):
    if libc.prctl(1, 0, 0, 0, 0) < 0:
        raise OSError(ctypes.get_errno(), "refused")
    take(scene, scene["secret_text"].encode())


# -------------------- resources


@vector
def much_memory(scene):
    held = bytearray(400 << 20)
    held[:: mmap.PAGESIZE] = b"x" * len(held[:: mmap.PAGESIZE])
    KEEP.append(held)


@vector
def one_big_file(scene):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with open(scene["scratch"] + "/big", "wb", 0) as big:
        big.writelines(bytes(1 << 20) for _ in range(32))


@vector
def many_descriptors(scene):
    KEEP.extend(os.open("/dev/null", os.O_RDONLY) for _ in range(200))
