"""How an application is named, and where its modules are looked for. Imports nothing of it."""

from __future__ import annotations

import os
import re
from pathlib import Path

from benteng.errors import PolicyError

REFERENCE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
"""`module:attribute`; matched in full."""


def check_reference(reference: str) -> str:
    """Return a reference that has the right form. Raises PolicyError."""
    if not reference:
        raise PolicyError(
            "N-app",
            "no application is named",
            fix='name it as module:attribute, or set app in benteng.toml ("jobs:app")',
        )
    if not REFERENCE.fullmatch(reference):
        raise PolicyError("N-app", "an application is named as module:attribute", fix="for example jobs:app")
    return reference


def paths_of(root: Path) -> tuple[str, ...]:
    """Return where an application's modules are looked for: its directory, then PYTHONPATH. Absolute."""
    more = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return (str(root), *(str(Path(path).absolute()) for path in more))
