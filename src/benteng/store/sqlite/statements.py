"""Read the named statements of a .sql file beside this package. SQL lives in files, one verb a file, never in strings.

A file holds `-- name: word` lines; the text up to the next one is that statement.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any

HERE = Path(__file__).parent
QUERIES = HERE / "queries"
_MARK = "-- name: "
_PARAMETER = re.compile(r"(?<!\w):([a-z_0-9]+)")

Binding = Callable[[Mapping[str, Any]], tuple[Any, ...]]
"""Makes the parameters of a statement of a row that has them by name."""


@cache
def statements(verb: str) -> MappingProxyType[str, str]:
    """Return the statements of `queries/<verb>.sql` by name."""
    return MappingProxyType(parse((QUERIES / f"{verb}.sql").read_text(encoding="utf-8")))


@cache
def by_place(sql: str) -> tuple[str, Binding]:
    """Return a statement with places for the names of its parameters, and what puts a row's values there.

    For what runs for many rows: whoever binds names has SQLite look for each among all of them, row after row. A number
    is a name too: to Python 3.12 and later `?1` is worth a warning for each value of each row, and 3.14 refuses it.
    """
    names = _PARAMETER.findall(sql)
    pick = itemgetter(*names)
    return _PARAMETER.sub("?", sql), pick if len(names) > 1 else lambda row: (pick(row),)


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
