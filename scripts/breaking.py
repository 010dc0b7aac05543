"""Run tests against copies of the source that are broken on purpose: what twins.py and twins_postgres.py share."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SECONDS_MAX = 180


class Twin(NamedTuple):
    """One deliberate break: in `file` each `old` becomes `new`, and a test chosen by `tests` in `suite` must fail."""

    name: str
    file: str
    breaks: tuple[tuple[str, str], ...]
    tests: str
    suite: str


def run(twins: Sequence[Twin], description: str) -> int:
    """Run the twins that the command line names, or all; 0 when each was caught."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("names", nargs="*", help="only these twins")
    names = parser.parse_args().names
    chosen = [twin for twin in twins if not names or twin.name in names]
    for suite in sorted({twin.suite for twin in chosen}):
        code, said = _run(None, " or ".join(f"({twin.tests})" for twin in chosen if twin.suite == suite), suite)
        if code:
            print(f"twins: {suite} fails without any break: {said}", file=sys.stderr)
            return 1
    survivors = [twin.name for twin in chosen if not _is_caught(twin)]
    print(f"twins: {len(chosen) - len(survivors)} of {len(chosen)} caught", *survivors)
    return 1 if survivors or not chosen else 0


def _is_caught(twin: Twin) -> bool:
    code, said = _run(twin, twin.tests, twin.suite)
    print(f"{twin.name:32} {'caught by ' + said if code == 1 else f'SURVIVED (pytest exit {code})'}", flush=True)
    return code == 1


def _run(twin: Twin | None, tests: str, suite: str) -> tuple[int, str]:
    """Run the tests against a copy of the source, broken by the twin if there is one."""
    with tempfile.TemporaryDirectory(prefix="twin-") as directory:
        source = Path(directory) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        if twin:
            _break(source / twin.file, twin)
        return _test(source, tests, suite)


def _break(path: Path, twin: Twin) -> None:
    text = path.read_text()
    for old, new in twin.breaks:
        if old not in text:
            raise SystemExit(
                f"twins: {twin.name}: a text to break is not in {twin.file} any more. Move the twin with it"
            )
        text = text.replace(old, new)
    path.write_text(text)


def _test(source: Path, tests: str, suite: str) -> tuple[int, str]:
    """Return pytest's exit code (1: a test failed) and the name of the first test that failed."""
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:cacheprovider", suite, "-k", tests],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    failed = [line.partition("::")[2] for line in ran.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return ran.returncode, failed[0].partition(" - ")[0] if failed else ran.stdout[-500:]
