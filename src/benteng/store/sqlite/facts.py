"""What a connection has read of types, switches and access, for as long as nobody can have changed it.

A fact is used again only while no other connection has committed since it was read. SQLite says so by `data_version`,
by which it also throws away its own pages; it is asked inside the transaction that decides. A facet that may itself
write one of these tables keeps nothing from one transaction to the next.
"""

from __future__ import annotations

import sqlite3
from typing import Any

from benteng.store.records import Facet
from benteng.store.sqlite.rights import READ, RIGHTS
from benteng.store.sqlite.statements import statements

_FACTS = statements("facts")

TABLES = frozenset({"job_type", "control", "speaks", "access"})
KEPT_MAX = 4096

Known = dict[tuple[str, ...], Any]


class Facts:
    """The facts that one connection knows."""

    def __init__(self, facet: Facet) -> None:
        self._is_keeping = keeps(facet)
        self._version = -1
        self._known: Known = {}

    def known(self, connection: sqlite3.Connection) -> Known:
        """Return what still holds in the transaction that the connection has open."""
        if not self._is_keeping:
            return {}
        (version,) = connection.execute(_FACTS["version"]).fetchone()
        if version != self._version or len(self._known) > KEPT_MAX:
            self._version, self._known = version, {}
        return self._known


def keeps(facet: Facet) -> bool:
    """Return whether a facet may change none of the tables that facts are read from."""
    return all(RIGHTS[facet].get(table, frozenset()) <= {READ} for table in TABLES)
