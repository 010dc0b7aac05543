"""Import contracts whose modules may still be on their way.

import-linter refuses a contract that names a missing module. The security contracts of pyproject.toml stand before the
modules do, so these types skip what is missing; tests/house/test_layers.py says which modules may be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from importlinter.contracts.forbidden import ForbiddenContract
from importlinter.contracts.protected import ProtectedContract

if TYPE_CHECKING:
    from grimp import ImportGraph
    from importlinter import ContractCheck

ROOT = "benteng"


class ForbiddenPresent(ForbiddenContract):
    """`forbidden`, over those of the named modules that exist."""

    type_name = "forbidden_present"

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:  # noqa: FBT001 - import-linter's signature
        """Check what is there."""
        self.source_modules: Any = _present(self.source_modules, graph)
        self.forbidden_modules: Any = _present(self.forbidden_modules, graph)
        return super().check(graph, verbose)


class ProtectedPresent(ProtectedContract):
    """`protected`, over those of the named modules that exist."""

    type_name = "protected_present"

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:  # noqa: FBT001 - import-linter's signature
        """Check what is there."""
        self.protected_modules: Any = _present(self.protected_modules, graph)
        self.allowed_importers: Any = _present(self.allowed_importers, graph)
        return super().check(graph, verbose)


def _present(expressions: Any, graph: ImportGraph) -> Any:
    return type(expressions)(e for e in expressions if _is_external(e) or str(e) in graph.modules)


def _is_external(expression: Any) -> bool:
    name = str(expression)
    return name != ROOT and not name.startswith(f"{ROOT}.")
