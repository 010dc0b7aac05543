"""Read the audit log through the auditor's one verb: all of it in pages, or only its end."""

from __future__ import annotations

from collections.abc import Iterator

from benteng.store.contract import Auditor
from benteng.store.records import AuditRow

PAGE = 1_000


def pages(auditor: Auditor, after: int = 0) -> Iterator[list[AuditRow]]:
    """Yield the records behind a number, in pages, in order."""
    while page := auditor.audit_page(after, PAGE):
        yield page
        after = page[-1].seq


def last(auditor: Auditor, count: int) -> Iterator[list[AuditRow]]:
    """Yield the last records, in pages, in order. Reads a few single ones to find the end, not the whole log."""
    return pages(auditor, max(0, last_seq(auditor) - count))


def last_seq(auditor: Auditor) -> int:
    """Return the number of the last record, 0 for none."""
    beyond = 1
    while auditor.audit_page(beyond - 1, 1):
        beyond *= 2
    within = beyond // 2
    while beyond - within > 1:
        middle = (within + beyond) // 2
        if auditor.audit_page(middle - 1, 1):
            within = middle
        else:
            beyond = middle
    return within
