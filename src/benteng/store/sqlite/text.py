"""Bound texts on their way into a row: one line, no control characters, and no text makes a statement fail."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from benteng.redact import ERROR_BYTES_MAX, clean_line

PROGRESS_BYTES_MAX = 4096
REASON_BYTES_MAX = 512


def bounded(text: str, bytes_max: int = ERROR_BYTES_MAX) -> str:
    """Return the text as one clean line of at most `bytes_max` bytes."""
    if len(text) <= bytes_max and text.isascii() and text.isprintable():
        return text
    return clean_line(text, bytes_max=bytes_max)


def as_array(items: Sequence[object]) -> str:
    """Return items as the JSON array that `json_each` reads."""
    return msgspec.json.encode(items).decode()
