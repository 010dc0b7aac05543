"""Write requirements/*.txt: every dependency pinned, with the sha256 of every file of its release.

The locks carry no index address: where packages come from is the machine's own business, what they contain is ours.
Resolution is universal (one lock for each supported Python and architecture) and is left to uv, which is taken from
PATH or installed into a temporary environment. Standard library only, so that it runs before anything is installed.

    python3 -m scripts.lock             # resolve again where pyproject.toml changed, keep the other pins
    python3 -m scripts.lock --upgrade   # newest versions of everything
    python3 -m scripts.lock --check     # exit 1 when a lock does not belong to pyproject.toml (no network)
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

from scripts.env import ROOT, pip_settings

PYTHON_FLOOR = "3.11"
LOCKS = {
    "run": [],  # what a deployment needs
    "dev": ["--extra=cli", "--extra=postgres", "--extra=pydantic", "--extra=test", "--group=dev"],  # what `make` needs
}
# Wheels only: setting up never runs a package's build script.
HEADER = """\
# Made by scripts/lock.py from pyproject.toml; do not edit. Install with --require-hashes.
# Inputs: {inputs}
--only-binary :all:
"""


def main() -> int:
    """Write or check the locks; the exit code."""
    parser = argparse.ArgumentParser(description="Write the hashed dependency locks.")
    parser.add_argument("--upgrade", action="store_true", help="move every pin to the newest version")
    parser.add_argument("--check", action="store_true", help="only say whether the locks belong to pyproject.toml")
    options = parser.parse_args()
    return check() if options.check else write(upgrade=options.upgrade)


def check() -> int:
    """1 when a lock was made from other inputs than today's pyproject.toml."""
    stale = [name for name in LOCKS if f"# Inputs: {inputs()}\n" not in _path(name).read_text()]
    for name in stale:
        print(f"requirements/{name}.txt does not belong to pyproject.toml: run make lock", file=sys.stderr)
    return 1 if stale else 0


def write(*, upgrade: bool) -> int:
    """Resolve and write each lock."""
    with tempfile.TemporaryDirectory(prefix="benteng-lock-") as scratch:
        uv = shutil.which("uv") or _install_uv(Path(scratch))
        for name, selection in LOCKS.items():
            pins = _resolve(uv, _path(name), selection, upgrade=upgrade)
            _path(name).write_text(HEADER.format(inputs=inputs()) + pins)
            print(f"requirements/{name}.txt written, {pins.count('sha256:')} hashes")
    return 0


def inputs() -> str:
    """Digest of all that decides what is locked."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    decides = {
        "dependencies": project["project"]["dependencies"],
        "extras": project["project"]["optional-dependencies"],
        "groups": project["dependency-groups"],
        "locks": LOCKS,
    }
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()


def _path(name: str) -> Path:
    return ROOT / "requirements" / f"{name}.txt"


def _resolve(uv: str, path: Path, selection: list[str], *, upgrade: bool) -> str:
    command = [uv, "pip", "compile", "pyproject.toml", *selection, "--universal", "--generate-hashes"]
    command += ["--python-version", PYTHON_FLOOR, "--no-annotate", "--no-header", "--no-emit-index-url", "--quiet"]
    with tempfile.TemporaryDirectory(prefix="benteng-lock-") as scratch:
        output = Path(scratch, path.name)  # holds the old pins: uv keeps those that still fit
        if path.exists() and not upgrade:
            output.write_text(path.read_text())
        subprocess.run(
            [*command, "--output-file", str(output)], cwd=ROOT, check=True, env={**pip_settings(), **os.environ}
        )
        return "".join(line for line in output.read_text().splitlines(keepends=True) if not line.startswith("--"))


def _install_uv(scratch: Path) -> str:
    venv.create(scratch / "env", with_pip=True)
    subprocess.run([scratch / "env/bin/python", "-m", "pip", "install", "--quiet", "uv"], check=True)
    return str(scratch / "env/bin/uv")


if __name__ == "__main__":
    sys.exit(main())
