"""Say how long the functions of src are: median and 90th percentile of lines, docstrings not counted.

The house's aim is short functions (median 5-9, p90 under 26). Exit 1 when the median leaves it; the longest are listed
for the reviewer, because a length is a question and not a fault.
"""

from __future__ import annotations

import argparse
import ast
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
MEDIAN_LINES_MAX = 10
P90_LINES_MAX = 26
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Length(NamedTuple):
    """Lines of one function, from `def` to its end, without the docstring."""

    lines: int
    place: str


def main() -> int:
    """Print the figures; the exit code."""
    parser = argparse.ArgumentParser(description="Function lengths of the source.")
    parser.add_argument("path", nargs="?", type=Path, default=ROOT / "src")
    parser.add_argument("--longest", type=int, default=0, metavar="N", help="list the N longest functions")
    options = parser.parse_args()
    found = sorted(measure(options.path), reverse=True)
    if not found:
        print("lengths: no functions found", file=sys.stderr)
        return 1
    median, p90 = summary([length.lines for length in found])
    print(f"functions {len(found)}  median {median:g}  p90 {p90:g}  longest {found[0].lines} ({found[0].place})")
    for length in found[: options.longest]:
        print(f"{length.lines:5}  {length.place}")
    if p90 > P90_LINES_MAX:
        print(f"lengths: p90 is over {P90_LINES_MAX}: look at --longest 20", file=sys.stderr)
    return 1 if median > MEDIAN_LINES_MAX else 0


def measure(path: Path) -> Iterator[Length]:
    """Yield the length of every function below `path`, nested ones and methods included."""
    for file in sorted(path.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, Function) and not _is_declaration(node):
                yield Length(lines_of(node), f"{file.relative_to(path)}:{node.lineno} {node.name}")


def lines_of(node: Function) -> int:
    """Lines from `def` to the last statement, without the docstring."""
    first = node.body[0]
    documented = ast.get_docstring(node, clean=False) is not None
    docstring = (first.end_lineno or first.lineno) - first.lineno + 1 if documented else 0
    return (node.end_lineno or node.lineno) - node.lineno + 1 - docstring


def summary(lines: list[int]) -> tuple[float, float]:
    """Median and 90th percentile; at least one figure is needed."""
    if len(lines) == 1:
        return lines[0], lines[0]
    return statistics.median(lines), statistics.quantiles(lines, n=10, method="inclusive")[-1]


def _is_declaration(node: Function) -> bool:
    """Whether it is a protocol's method or an overload: docstring or `...` and nothing else."""
    body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
    return all(isinstance(stmt, ast.Expr) and isinstance(stmt.value, ast.Constant) for stmt in body)


if __name__ == "__main__":
    sys.exit(main())
