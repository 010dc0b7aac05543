"""Read the loader's cache of libraries: which files it may take for a name.

The format is glibc's (sysdeps/generic/dl-cache.h).
Trust: the host's root, who writes it; offsets and counts are bounded all the same.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final

CACHE: Final = "/etc/ld.so.cache"
MAGIC: Final = b"glibc-ld.so.cache1.1"
HEAD: Final = struct.Struct("<20sII20x")
ENTRY: Final = struct.Struct("<iIIIQ")
BYTES_MAX: Final = 16 << 20


def cached_libraries(path: str = CACHE) -> dict[str, list[str]]:
    """Return the paths for each name, of every kind of processor; nothing when there is no cache of this format."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(BYTES_MAX)
    except OSError:
        return {}
    start = data.find(MAGIC)  # a cache for old loaders may have their format first
    if start < 0 or len(data) < start + HEAD.size:
        return {}
    _, count, _ = HEAD.unpack_from(data, start)
    found: dict[str, list[str]] = {}
    for index in range(min(count, (len(data) - start - HEAD.size) // ENTRY.size)):
        _, key, value, _, _ = ENTRY.unpack_from(data, start + HEAD.size + index * ENTRY.size)
        found.setdefault(_text(data, start + key), []).append(_text(data, start + value))
    return found


def _text(data: bytes, at: int) -> str:
    return os.fsdecode(data[at : data.find(b"\0", at)])
