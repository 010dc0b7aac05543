"""Functions stay short."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from scripts import lengths

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments):
    """Run the script as `make check` does."""
    command = [sys.executable, "scripts/lengths.py", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)


def test_the_median_function_of_src_fits_the_house():
    """Half of all functions have at most ten lines."""
    done = run()

    assert 0 == done.returncode, done.stdout
    assert "median" in done.stdout


def test_a_long_median_fails(tmp_path):
    """The script says no when functions grow."""
    body = "\n".join(f"    x{n} = {n}" for n in range(40))
    (tmp_path / "long.py").write_text(f"def long():\n{body}\n")

    done = run(tmp_path)

    assert 1 == done.returncode


def test_a_docstring_costs_no_lines(tmp_path):
    """Writing the promise down never makes a function "too long"."""
    (tmp_path / "f.py").write_text('def f():\n    """One.\n\n    Two.\n    """\n    return 1\n')

    assert [lengths.Length(2, "f.py:1 f")] == list(lengths.measure(tmp_path))
