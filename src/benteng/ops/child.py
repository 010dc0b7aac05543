"""Run a Python child that holds no credential, and take a bounded answer from it.

For what must import user code on behalf of a process that may not: the environment is made of an allow-list, nothing
but the standard streams is inherited, time and output are limited, and its whole process group ends with it.
Trust: nothing that it prints.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from benteng.clock import boot_seconds
from benteng.errors import PolicyError
from benteng.policy import LIMITS, Limits, Tier
from benteng.worker.program import program
from benteng.worker.sandbox import basic, system

INHERITED = ("PATH", "LANG", "LC_ALL", "TZ", "HOME", "TMPDIR")
"""Variables that a child may see; never one of ours, nor one that a pool does not list."""

SECONDS_MAX = 30.0
OUT_BYTES_MAX = 4 * 1024 * 1024
TALK_BYTES_MAX = 64 * 1024
CHUNK_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended: its exit code (negative: the signal), its data and the beginning of its talk."""

    code: int
    out: bytes
    talk: str


def run(
    entry: str,
    arguments: Sequence[str],
    *,
    cwd: Path,
    stdin: bytes = b"",
    variables: Iterable[str] = (),
    seconds_max: float = SECONDS_MAX,
    out_bytes_max: int = OUT_BYTES_MAX,
) -> Ended:
    """Run our function `module:function` in a directory. Raises PolicyError when it takes too long or says too much.

    `arguments` are its sys.argv from 2 on; `variables` names what else it may see of the environment.
    """
    with tempfile.TemporaryFile() as given:
        given.write(stdin)
        given.seek(0)
        child = subprocess.Popen(
            [*program(entry), *arguments],
            cwd=cwd,
            env=environment(os.environ, variables),
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    try:
        out, talk = _read(child, boot_seconds() + seconds_max, out_bytes_max)
        child.wait(max(seconds_max, 1.0))
    except subprocess.TimeoutExpired:
        raise _too_long(seconds_max) from None
    finally:
        _end(child)
    return Ended(child.returncode, out, talk.decode(errors="replace"))


def environment(environ: Mapping[str, str], variables: Iterable[str]) -> dict[str, str]:
    """Return what a child may see of an environment: the allow-list, the pool's names, and nothing of benteng's own."""
    names = [name for name in (*INHERITED, *variables) if not name.startswith("BENTENG_")]
    return {name: environ[name] for name in names if name in environ}


def shut_in(limits: Limits = LIMITS[Tier.LOW]) -> int:
    """Be the child: bound this process, and return the stream for its answer; what user code prints goes to stderr."""
    system.die_with_parent(os.getppid())
    system.no_new_privileges()
    system.few_arenas()
    basic.bound(limits, hard=True)
    stream = os.dup(1)
    os.dup2(2, 1)
    return stream


def answer(stream: int, data: bytes) -> None:
    """Be the child: write the whole answer and end, whatever user code left behind (threads, atexit)."""
    while data:
        data = data[os.write(stream, data) :]
    os._exit(0)


def _read(child: subprocess.Popen[bytes], end: float, out_bytes_max: int) -> tuple[bytes, bytes]:
    out, talk = bytearray(), bytearray()
    with selectors.DefaultSelector() as selector:
        for stream, buffer in ((_stream(child.stdout), out), (_stream(child.stderr), talk)):
            selector.register(stream, selectors.EVENT_READ, buffer)
        while selector.get_map():
            ready = selector.select(max(end - boot_seconds(), 0.0))
            if not ready:
                raise _too_long(SECONDS_MAX)
            for key, _ in ready:
                chunk = os.read(key.fd, CHUNK_BYTES)
                if not chunk:
                    selector.unregister(key.fileobj)
                key.data.extend(chunk)
            del talk[TALK_BYTES_MAX:]
            if len(out) > out_bytes_max:
                raise PolicyError(
                    "N-child", f"the application's process wrote more than {out_bytes_max} bytes to its stdout"
                )
    return bytes(out), bytes(talk)


def _stream(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None  # noqa: S101 - both were asked for as pipes
    return stream


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill what is left of the group: also what the user's module may have started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    for stream in (child.stdout, child.stderr):
        _stream(stream).close()


def _too_long(seconds: float) -> PolicyError:
    return PolicyError(
        "N-child",
        f"importing the application took longer than {seconds:.0f} s",
        fix="let the module do nothing at import",
    )
