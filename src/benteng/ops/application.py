"""Import the user's application. Only where user code may be: a producer, or a child that holds no credential.

A worker, a keeper and an operator never call this: what they must know of the code comes from `describe` and `rejudge`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from benteng.errors import BentengError, PolicyError
from benteng.ops.reference import check_reference
from benteng.redact import error_text

if TYPE_CHECKING:
    from benteng.app import Benteng


def load_app(reference: str, paths: Sequence[str]) -> Benteng:
    """Import `module:attribute` from these paths. Raises PolicyError, DefinitionError."""
    from benteng.app import Benteng

    name, _, attribute = check_reference(reference).partition(":")
    sys.path[:0] = [path for path in paths if path not in sys.path]
    try:
        module = importlib.import_module(name)
    except BentengError:
        raise
    except (Exception, SystemExit) as error:
        raise _not_imported(name, error, paths) from error
    found = getattr(module, attribute, None)
    if not isinstance(found, Benteng):
        raise PolicyError("N-app", f"{reference} is no Benteng application", fix="make one: app = Benteng()")
    return found


def _not_imported(name: str, error: BaseException, paths: Sequence[str]) -> PolicyError:
    if isinstance(error, ModuleNotFoundError) and error.name is not None and f"{name}.".startswith(f"{error.name}."):
        return PolicyError("N-app", f"there is no module {error.name} in {paths[0]}", fix="run it where the module is")
    return PolicyError(
        "N-import", f"the application cannot be imported: {error_text(type(error).__name__, str(error))}"
    )
