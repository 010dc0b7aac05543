"""The command line of our own child processes: this interpreter, isolated, and one function of ours."""

from __future__ import annotations

import sys
from pathlib import Path

PACKAGE_ROOT = str(Path(__file__).parents[2])


def program(entry: str, *, hidden: bool = False) -> list[str]:
    """Return the command for `module:function`; more arguments may follow, from sys.argv[2] on.

    `hidden`: it holds a credential, so other processes of the same user may not look into it (system.hide).
    The same code as ours runs there: our package's directory comes first on its path, before an installed copy.
    Isolated (-I): no PYTHON* variable, user site or working directory decides what is imported. Writes no byte code
    (-B).
    """
    module, _, function = entry.partition(":")
    hide = "from benteng.worker.sandbox.system import hide; hide(); " if hidden else ""
    code = f"import sys; sys.path.insert(0, sys.argv[1]); {hide}from {module} import {function}; {function}()"
    return [sys.executable, "-I", "-B", "-c", code, PACKAGE_ROOT]
