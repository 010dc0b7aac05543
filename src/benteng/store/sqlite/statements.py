"""Read the named statements of a .sql file beside this package. SQL lives in files, one verb a file, never in strings.

A file holds `-- name: word` lines; the text up to the next one is that statement.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import MappingProxyType

HERE = Path(__file__).parent
QUERIES = HERE / "queries"
_MARK = "-- name: "


@cache
def statements(verb: str) -> MappingProxyType[str, str]:
    """Return the statements of `queries/<verb>.sql` by name."""
    return MappingProxyType(parse((QUERIES / f"{verb}.sql").read_text(encoding="utf-8")))


def schema() -> str:
    """Return the text of schema.sql with its placeholders in it."""
    return (HERE / "schema.sql").read_text(encoding="utf-8")


def parse(text: str) -> dict[str, str]:
    """Split the text of a .sql file into its named statements, without comments' line or trailing semicolon."""
    found: dict[str, str] = {}
    for part in text.split(f"\n{_MARK}")[1:]:
        name, _, body = part.partition("\n")
        found[name.strip()] = body.strip().removesuffix(";")
    return found
