"""Import the user's module, in a process that holds no credential, and find its registry.

Trust: the module runs with everything that this process may do; so this is called only in zygotes and cells.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from benteng import inert
from benteng.errors import PolicyError
from benteng.redact import error_text
from benteng.task import Registry
from benteng.worker.sandbox import system


def load(app: str, paths: Sequence[str]) -> Registry:
    """Import `module:attribute` and return its registry. Raises PolicyError, whatever the module raises."""
    inert.mark()
    sys.path[:0] = [path for path in paths if path not in sys.path]
    module_name, _, attribute = app.partition(":")
    try:
        found: object = getattr(importlib.import_module(module_name), attribute or "app")
    except BaseException as error:  # noqa: BLE001 - also SystemExit at import is a reason to refuse
        raise PolicyError(
            "W-import", f"importing {app} failed: {error_text(type(error).__name__, str(error))}"
        ) from None
    registry: object = getattr(found, "registry", None)
    if not isinstance(registry, Registry):
        raise PolicyError("W-app", f"{app} is not a Benteng object", fix='name it as "module:attribute"')
    return registry


def refuse_threads() -> None:
    """Raise PolicyError, naming them, when the import left threads: a fork would lose them and keep their locks."""
    mine = os.getpid()
    others = [system.thread_name(mine, thread) for thread in system.threads_of(mine) if thread != mine]
    if others:
        python = _python_threads()
        names = ", ".join(sorted(python or others))
        fix = 'start them when they are needed, or set start = "exec" for the pool'
        raise PolicyError("W-threads", f"importing the app started {len(others)} thread(s): {names}", fix=fix)


def _python_threads() -> list[str]:
    import threading

    main = threading.main_thread()
    return [_described(thread) for thread in threading.enumerate() if thread is not main]


def _described(thread: object) -> str:
    target: object = getattr(thread, "_target", None)
    module = getattr(target, "__module__", None) or type(thread).__module__
    return f"{getattr(thread, 'name', '?')} ({module})"
