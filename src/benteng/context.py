"""What a handler may ask of the cell around it: the fence, progress, verified artifacts, successors, a log.

The context holds no credential, no job id and no lease token. What it sends goes through the cell's one channel and is
bounded there; what it gives comes from the grant (DESIGN section 6).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from logging import Logger
    from pathlib import Path

    from benteng.job import ArtifactRef


class Channel(Protocol):
    """The cell's side of a context."""

    @property
    def scratch(self) -> Path:
        """The attempt's own directory, made when it is first asked for."""
        ...

    def progress(self, text: str) -> None:
        """Send a progress text with the next frame."""
        ...

    def then(self, type_name: str, payload: object) -> None:
        """Add a successor to the completing commit."""
        ...

    def secret(self, name: str) -> str:
        """Return a secret of the job's type."""
        ...

    def artifact(self, ref: ArtifactRef) -> Path:
        """Copy an artifact into the scratch directory, hashing it on the way."""
        ...

    def extract(self, path: Path) -> Path:
        """Unpack an archive into the scratch directory."""
        ...

    def remaining_seconds(self) -> float:
        """Tell how long the attempt may still run."""
        ...


class Context:
    """Passed to a handler that has a parameter `ctx`. One for each attempt.

    fence          number of this attempt; never goes back in an installation. Pass it to every system that can check
    it. operation_key  identity of the operation (hex): pass it to every system that dedupes by key
    attempt        which try this is, from 1
    """

    __slots__ = ("_channel", "attempt", "fence", "operation_key")

    def __init__(self, channel: Channel, *, fence: int, operation_key: str, attempt: int) -> None:
        self._channel = channel
        self.fence = fence
        self.operation_key = operation_key
        self.attempt = attempt

    @property
    def scratch(self) -> Path:
        """The attempt's own directory, made when it is first asked for and deleted afterwards."""
        return self._channel.scratch

    @property
    def log(self) -> Logger:
        """A logger for people; lines are cleaned and bounded on their way out of the cell."""
        import logging

        return logging.getLogger("benteng.handler")

    @property
    def remaining_seconds(self) -> float:
        """Seconds until the deadline of this attempt."""
        return self._channel.remaining_seconds()

    def progress(self, text: str) -> None:
        """Say how far the attempt got; people see it with `benteng jobs show`. Cut to 4 KiB."""
        self._channel.progress(text)

    def then(self, job_type: str, payload: object) -> None:
        """Add a job of a type that this type's policy lists as successor, by the commit that completes this one.

        Raises Malformed when the payload does not fit the successor's contract, PolicyError when it is not listed.
        """
        self._channel.then(job_type, payload)

    def secret(self, name: str) -> str:
        """Return a secret that this type's policy lists, as the worker's host had it when the attempt started.

        It is taken out of results, errors, progress and output; still, give it to nobody but whom it is for. Raises
        PolicyError for a name that is not listed.
        """
        return self._channel.secret(name)

    def artifact(self, ref: object) -> Path:
        """Return the path of a private, verified copy of an artifact: hashed while it was copied.

        `ref` is a field of type `Artifact` of the payload. Raises Suspicious when the bytes are not what the job names.
        """
        from benteng.job import ArtifactRef

        return self._channel.artifact(ArtifactRef(str(getattr(ref, "id", "")), str(getattr(ref, "sha256", ""))))

    def extract(self, path: Path) -> Path:
        """Return a new directory in the scratch with what is in a tar or zip file: files and directories only.

        A link to a file of the archive becomes a copy; modes are 0600, or 0700 for what was executable. Raises
        Suspicious for an archive that leads out of itself or holds what is neither file nor directory, Permanent for
        one that is too large, ambiguous or broken; then nothing of it is left.
        """
        return self._channel.extract(path)
