"""Import the user's application. Only where user code may be: a producer, or a child that holds no credential.

A worker, a keeper and an operator never call this: what they must know of the code comes from `describe` and `rejudge`.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benteng.errors import PolicyError

if TYPE_CHECKING:
    from benteng.app import Benteng

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


def load_app(reference: str, paths: Sequence[str]) -> Benteng:
    """Import `module:attribute` from these paths. Raises PolicyError, and whatever the module itself raises."""
    from benteng.app import Benteng

    name, _, attribute = check_reference(reference).partition(":")
    sys.path[:0] = [path for path in paths if path not in sys.path]
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise PolicyError("N-app", f"there is no module {error.name} in {paths[0]}", fix="run it there") from None
    found = getattr(module, attribute, None)
    if not isinstance(found, Benteng):
        raise PolicyError("N-app", f"{reference} is no Benteng application", fix="make one: app = Benteng()")
    return found
