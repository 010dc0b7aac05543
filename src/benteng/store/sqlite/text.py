"""Bound texts on their way into a row: one line, no control characters, and no text makes a statement fail."""

from __future__ import annotations

from benteng.redact import ERROR_BYTES_MAX, clean_line

PROGRESS_BYTES_MAX = 4096
REASON_BYTES_MAX = 512


def bounded(text: str, bytes_max: int = ERROR_BYTES_MAX) -> str:
    """Return the text as one clean line of at most `bytes_max` bytes."""
    if len(text) <= bytes_max and text.isascii() and text.isprintable():
        return text
    return clean_line(text, bytes_max=bytes_max)
