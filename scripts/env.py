"""Build .venv from the hashed lock; do nothing when that is done.

Needs only a Python with venv (or uv on PATH) and the machine's own way to a package index. Everything installed is in
requirements/dev.txt with its sha256, and benteng itself is installed editable without a build download. The stamp in
.venv names what it was built from: lock, pyproject.toml and Python. Until the version is checked, this file keeps to
what Python 3.7 can parse, so that it can refuse with a sentence.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / ".benteng-stamp"
LOCK = ROOT / "requirements" / "dev.txt"
FLOOR = (3, 11)
FROM_LOCK = ["--require-hashes", "--requirement", str(LOCK)]
EDITABLE = ["--no-deps", "--no-build-isolation", "--editable", str(ROOT)]  # the backend is in the lock


def main() -> int:
    """Build when the stamp does not fit; the exit code."""
    if sys.version_info[:2] < FLOOR:
        return _refuse(f"benteng needs Python 3.11 or newer, this is {_version()}. Try: make env PYTHON=python3.13")
    with LOCK.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two `make` at once build one environment
        if STAMP.exists() and STAMP.read_text() == _wanted():
            return 0
        return _build()


def pip_settings() -> dict[str, str]:
    """Where packages come from and whom to trust: pip's configuration under uv's names, since uv does not read it."""
    names = {"UV_DEFAULT_INDEX": "global.index-url", "SSL_CERT_FILE": "global.cert"}
    found = {name: _output(sys.executable, "-m", "pip", "config", "get", key) for name, key in names.items()}
    return {name: value for name, value in found.items() if value}


def _build() -> int:
    _say(f"building .venv with Python {_version()}")
    if VENV.exists() and not _fits():
        shutil.rmtree(VENV)
    STAMP.unlink(missing_ok=True)
    try:
        if not _build_with_uv():
            _build_with_pip()
    except subprocess.CalledProcessError as error:
        return _refuse(f"could not build .venv: {' '.join(error.cmd[:4])} failed")
    STAMP.write_text(_wanted())
    _say("done: .venv/bin/benteng")
    return 0


def _build_with_uv() -> bool:
    """False when there is no uv, or when it fails (its configuration is not pip's): then pip has its turn."""
    uv = shutil.which("uv")
    if not uv:
        return False
    environment = {**pip_settings(), **os.environ}
    steps = [] if VENV.exists() else [[uv, "venv", "--quiet", "--python", sys.executable, str(VENV)]]
    install = [uv, "pip", "install", "--quiet", "--python", str(PYTHON)]
    steps += [[*install, *FROM_LOCK], [*install, *EDITABLE]]
    done = all(subprocess.run(step, check=False, cwd=ROOT, env=environment).returncode == 0 for step in steps)
    if not done:
        _say("uv could not do it, trying with pip")
    return done


def _build_with_pip() -> None:
    _need_venv()
    if not VENV.exists() or not _succeeds(PYTHON, "-m", "pip", "--version"):
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    install = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, *FROM_LOCK], check=True)
    subprocess.run([*install, *EDITABLE], check=True)


def _need_venv() -> None:
    """Debian and Ubuntu ship venv apart from Python: as root install it, otherwise say how."""
    if _succeeds(sys.executable, "-c", "import venv, ensurepip"):
        return
    packages = [f"python3.{sys.version_info.minor}-venv", "python3-venv"]
    _say(f"this Python has no venv module (package {packages[0]})")
    if os.geteuid() == 0 and shutil.which("apt-get") and any(map(_apt_install, packages)):
        return
    sys.exit(_refuse(f"install it with: sudo apt-get install {packages[0]}   (or install uv)"))


def _apt_install(package: str) -> bool:
    _say(f"apt-get install {package}")
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "--yes", "-qq", package]
    for step in (install, ["apt-get", "update", "-qq"], install):  # package lists may be missing or old
        done = subprocess.run(step, check=False, env=quiet, stdout=sys.stderr).returncode == 0
        if done and step is install:
            break
    return _succeeds(sys.executable, "-c", "import venv, ensurepip")


def _fits() -> bool:
    """Whether .venv runs this very Python."""
    print_version = "import sys; print(sys.version, sys.base_prefix)"
    return PYTHON.exists() and _output(PYTHON, "-c", print_version) == f"{sys.version} {sys.base_prefix}"


def _wanted() -> str:
    parts = [LOCK.read_bytes(), (ROOT / "pyproject.toml").read_bytes(), sys.version.encode(), str(VENV).encode()]
    return hashlib.sha256(b"\0".join(hashlib.sha256(part).digest() for part in parts)).hexdigest() + "\n"


def _output(*command: str | Path) -> str:
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip()


def _succeeds(*command: str | Path) -> bool:
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def _version() -> str:
    return ".".join(map(str, sys.version_info[:3]))


def _say(text: str) -> None:
    print(f"env: {text}", file=sys.stderr)


def _refuse(text: str) -> int:
    _say(text)
    return 1


if __name__ == "__main__":
    sys.exit(main())
