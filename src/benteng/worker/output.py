"""What cells say for people while attempts run: lines of output and progress. Too much of it is hostile.

Trust: nothing of it; secrets are taken out, what looks like one too, and control characters.
"""

from __future__ import annotations

from benteng.redact import clean_line
from benteng.worker import wire
from benteng.worker.cells import Cell
from benteng.worker.flights import LOG_BYTES_MAX
from benteng.worker.say import Say

STRAYS_MAX = 1_000
PROGRESS_MAX = 10_000


class Output:
    """That of one pool's cells."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._strays: dict[int, int] = {}

    def take(self, cell: Cell, handle: int, text: str, *, progress: bool) -> None:
        """Take output, which may arrive after its attempt ended. Raises ProtocolError for too much."""
        flight = cell.flights.get(handle)
        if flight is None:
            strays = self._strays[cell.number] = self._strays.get(cell.number, 0) + 1
            if strays > STRAYS_MAX:
                raise wire.ProtocolError("output for nobody")
            return
        if progress:
            flight.progress = flight.told(text)
            flight.progressed += 1
        else:
            flight.logged_bytes += len(text) + 16
            self._say("output", job=flight.grant.job.id, text=clean_line(flight.told(text), bytes_max=8192))
        if flight.logged_bytes > LOG_BYTES_MAX or flight.progressed > PROGRESS_MAX:
            raise wire.ProtocolError("a flood of output")

    def forget(self, number: int) -> None:
        """Note that a cell is gone."""
        self._strays.pop(number, None)
