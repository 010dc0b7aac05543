"""What a test does with a store's own session that no verb does."""

from __future__ import annotations

import time

from psycopg.pq import ExecStatus

ANSWER_SECONDS = 10.0


def say(store, statement: bytes) -> None:
    """Begin a transaction in the session of a store, or end it, so that what its verbs do is not committed yet."""
    session = store._connected()
    session.until = time.monotonic() + ANSWER_SECONDS
    session.send(statement, ())
    session._checked(ExecStatus.COMMAND_OK)
