"""The auditor's verb: read the log, and nothing else."""

from __future__ import annotations

from benteng.store.records import AuditRow, Facet
from benteng.store.sqlite.statements import statements
from benteng.store.sqlite.store import Ledger, Row

_AUDIT = statements("audit")
PAGE_MAX = 10_000


class SqliteAuditor(Ledger):
    """See store.contract.Auditor."""

    facet = Facet.AUDITOR

    def audit_page(self, after: int, limit: int = 1000) -> list[AuditRow]:
        """See Auditor.audit_page."""
        with self.reading() as tx:
            asked = {"after": after, "limit": max(0, min(limit, PAGE_MAX))}
            return [audit_row(row) for row in tx.all(_AUDIT["page"], asked)]


def audit_row(row: Row) -> AuditRow:
    """Return an audit record as stored."""
    return AuditRow(row["seq"], row["leaf"], row["salt"], row["body"])
