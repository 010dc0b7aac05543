"""List the benchmarks below bench/ with the first line of each docstring; exit 1 when there is none yet."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Print one line a script; the exit code."""
    scripts = sorted((ROOT / "bench").glob("*.py"))
    if not scripts:
        print("bench: there is no benchmark yet", file=sys.stderr)
        return 1
    for script in scripts:
        promise = (ast.get_docstring(ast.parse(script.read_text())) or "").partition("\n")[0]
        print(f".venv/bin/python bench/{script.name}  # {promise}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
