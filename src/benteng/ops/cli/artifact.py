"""`benteng artifact register`: make a file known that jobs may refer to. Only in `dev`, until approval is signed."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

import click

from benteng.config import Environment
from benteng.errors import NeedsAction
from benteng.evidence import ArtifactFact, ArtifactState
from benteng.ops.cli.options import configuration, json_option, operator, reason_option, rules
from benteng.ops.output import document, write

CHUNK_BYTES = 1 << 20


@click.group
def command() -> None:
    """Make the artifacts known that jobs may refer to."""


@command.command
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--id", "artifact_id", required=True, help="The name by which jobs refer to it.")
@reason_option
@json_option
def register(file: Path, artifact_id: str, reason: str, *, as_json: bool) -> None:
    """Copy FILE into the artifact directory under its sha256, and register it as approved. Writes its reference."""
    config = configuration()
    if config.environment is not Environment.DEV:
        raise NeedsAction(
            "approving an artifact needs an Action with other persons' votes; only dev registers one like this"
        )
    digest = keep(file, config.artifacts)
    with operator() as opened, rules():
        opened.register_artifact(ArtifactFact(artifact_id, digest, ArtifactState.APPROVED), reason)
    if as_json:
        document("artifact", {"id": artifact_id, "sha256": digest, "path": str(config.artifacts / digest)})
    else:
        write(f"{artifact_id} {digest}")


def keep(file: Path, directory: Path) -> str:
    """Copy a file into a directory under the name of its sha256, hashed while copied, and return that.

    Atomic and durable, mode 0444. A file that has the name already is replaced by the bytes that have the digest.
    """
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=directory, prefix=".incoming.")
    try:
        with os.fdopen(handle, "wb") as target, file.open("rb") as source:
            digest = hashlib.sha256()
            while chunk := source.read(CHUNK_BYTES):
                digest.update(chunk)
                target.write(chunk)
            target.flush()
            os.fchmod(target.fileno(), 0o444)
            os.fsync(target.fileno())
        Path(temporary).replace(directory / digest.hexdigest())
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return digest.hexdigest()
