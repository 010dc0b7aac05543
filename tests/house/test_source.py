"""Rules of the source that no linter has."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PICKLES = {"pickle", "_pickle", "cPickle", "shelve", "marshal", "dill", "cloudpickle", "joblib"}
WALL_CLOCKS = {
    "time.time",
    "time.time_ns",
    "time.localtime",
    "time.gmtime",
    "datetime.now",
    "datetime.utcnow",
    "datetime.today",
    "date.today",
}
ENDINGS = tuple(f".{clock}" for clock in WALL_CLOCKS)
CLOCK = "src/benteng/clock.py"


def name_of(file):
    """Its path in the repository."""
    return str(file.relative_to(ROOT))


def trees():
    """Every source file, parsed."""
    return {name_of(file): ast.parse(file.read_text()) for file in SOURCES}


def imported(tree):
    """The root names of all modules that a file imports, at any depth of the code."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


def wall_clocks(tree):
    """Each use of a wall clock, called or handed on, also by `from time import time`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and f".{ast.unparse(node)}".endswith(ENDINGS):
            yield f"{node.lineno} {ast.unparse(node)}"
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            yield from (f"{node.lineno} {a.name}" for a in node.names if f"time.{a.name}" in WALL_CLOCKS)


def test_nothing_imports_pickle():
    """Bytes become values by a strict parser only: no file of src imports anything that unpickles."""
    importing = [name for name, tree in trees().items() if PICKLES & set(imported(tree))]

    assert [] == importing


def test_only_the_clock_module_reads_the_wall_clock():
    """Time is an argument: decisions never look at this host's clock."""
    reading = [f"{name}:{use}" for name, tree in trees().items() if name != CLOCK for use in wall_clocks(tree)]

    assert [] == reading


@pytest.mark.parametrize("code", ["import time\ntime.time()", "from time import time", "datetime.datetime.now(UTC)"])
def test_each_way_to_read_the_wall_clock_is_seen(code):
    """The sweep above is not blind."""
    assert [] != list(wall_clocks(ast.parse(code)))


def test_every_module_says_what_it_promises():
    """Each module opens with a docstring."""
    silent = [name for name, tree in trees().items() if not ast.get_docstring(tree)]

    assert [] == silent


def test_the_package_is_typed():
    """Users' type checkers may rely on our annotations."""
    assert (ROOT / "src/benteng/py.typed").is_file()
