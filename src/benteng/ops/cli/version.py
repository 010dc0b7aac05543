"""`benteng version`."""

from __future__ import annotations

import click

from benteng.ops.cli.options import json_option
from benteng.ops.output import document, write


@click.command
@json_option
def command(*, as_json: bool) -> None:
    """Show the versions of benteng, Python and SQLite."""
    found = versions()
    if as_json:
        document("version", found)
    else:
        write(f"benteng {found['benteng']} (Python {found['python']}, SQLite {found['sqlite']})")


def versions() -> dict[str, str]:
    """Return the versions by name."""
    import platform
    import sqlite3
    from importlib.metadata import version

    return {"benteng": version("benteng"), "python": platform.python_version(), "sqlite": sqlite3.sqlite_version}
