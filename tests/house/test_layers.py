"""The layers and security contracts of pyproject.toml."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
# Named by a contract before they are written. Remove a line when its module arrives; add none.
PENDING = {"benteng.store.redis"}


def named_modules():
    """Every module of benteng that a deny-list contract names."""
    keys = ("source_modules", "forbidden_modules", "protected_modules", "allowed_importers")
    named = {module for contract in CONTRACTS for key in keys for module in contract.get(key, [])}
    return {module for module in named if module.partition(".")[0] == "benteng"}


def exists(module):
    """Whether the module is in src."""
    path = ROOT / "src" / module.replace(".", "/")
    return path.with_suffix(".py").is_file() or any(path.glob("*.py"))


def lint(package_parent):
    """Run import-linter on the benteng below `package_parent`, with this repository's contracts."""
    return subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"],
        cwd=package_parent.parent,
        check=False,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(package_parent), "PATH": "/usr/bin:/bin", "COLUMNS": "200"},
    )


@pytest.fixture
def copy(tmp_path):
    """A copy of the source with its contracts, to be broken on purpose."""
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path / "src"


def write(copy, module, code):
    """Append `code` to a module of the copy, making it and its packages when they are missing."""
    path = copy / module.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    for package in [p for p in path.parents if p.is_relative_to(copy / "benteng")]:
        (package / "__init__.py").touch()
    path.write_text((path.read_text() if path.exists() else "") + f"\n{code}\n")


def broken(done):
    """The names of the contracts that import-linter reports as broken."""
    return re.findall(r"^(.+) BROKEN", done.stdout, re.MULTILINE)


def test_the_source_keeps_every_contract():
    """The tree as it is breaks no layer and no security contract."""
    done = lint(ROOT / "src")

    assert 0 == done.returncode, done.stdout


@pytest.mark.parametrize(
    "module,code,contract",
    [
        ("benteng.verdict", "import benteng.decide", "A layer imports only from those below"),
        ("benteng.errors", "import benteng.verdict", "A layer imports only from those below"),
        ("benteng.store.sqlite", "import benteng.store.redis", "The concrete stores do not know each other"),
        ("benteng.gate", "import benteng.store.sqlite", "Nobody but store.open imports a concrete store"),
        ("benteng.worker.supervisor", "import importlib", "What holds a credential cannot import user code"),
        ("benteng.worker.supervisor", "import benteng.app", "What holds a credential cannot import user code"),
        ("benteng.keeper.sweeper", "def f():\n    import runpy", "What holds a credential cannot import user code"),
        ("benteng.worker.zygote", "import benteng.store.records", "What runs user code cannot reach the store"),
        ("benteng.worker.pool", "import rich.table", "The worker path imports no presentation library"),
        ("benteng.worker.pool", "import benteng.worker.loading", "Only the zygote imports the worker's loader"),
        ("benteng.worker.zygote", "import benteng.worker.rehearsal.watch", "No worker can be observed instead of held"),
        ("benteng.keeper", "import benteng.ops.application", "Only a producer's command and credential-free children"),
        ("benteng.policy", "import pickle", "Nothing can unpickle"),
    ],
)
def test_each_contract_can_break(copy, module, code, contract):
    """No contract is blind: the import that it forbids turns it red."""
    for imported in re.findall(r"benteng[\w.]+", code):
        write(copy, imported, "")
    write(copy, module, code)

    found = broken(lint(copy))

    assert [True] == [name.startswith(contract) for name in found if name.startswith(contract)], found


def test_a_module_without_a_layer_is_refused(copy):
    """Deny by default: a new module is in no layer until somebody has decided which."""
    write(copy, "benteng.novelty", '"""New."""')

    assert 0 != lint(copy).returncode


def test_every_module_that_a_contract_names_exists():
    """A renamed module cannot slip out of its security contract."""
    missing = {module for module in named_modules() if not exists(module)}

    assert missing <= PENDING
