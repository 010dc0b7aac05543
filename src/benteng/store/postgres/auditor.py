"""The auditor's verb: read the log, and nothing else."""

from __future__ import annotations

from benteng.store.postgres import rows
from benteng.store.postgres.connection import Ledger
from benteng.store.postgres.wire import INT8
from benteng.store.records import AuditRow, Facet


class PostgresAuditor(Ledger):
    """See store.contract.Auditor."""

    facet = Facet.AUDITOR

    def audit_page(self, after: int, limit: int = 1000) -> list[AuditRow]:
        """See Auditor.audit_page. A record that is younger than an open transaction may come with a later page."""
        found = self.call("audit_page", INT8(after), INT8(limit), repeatable=True)
        return [rows.audit_row(row) for row in found]
