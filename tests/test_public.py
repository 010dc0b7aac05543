"""The public face: every name is there, and nothing is loaded before it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import benteng


def test_names_are_sorted_and_complete():
    """`__all__` is what a reader sees first."""
    assert sorted(benteng.__all__) == benteng.__all__
    assert set(benteng._MODULE_OF) == set(benteng.__all__)


@pytest.mark.parametrize("name", benteng.__all__)
def test_every_public_name_can_be_imported(name):
    """Each name leads to the thing itself."""
    assert getattr(benteng, name) is not None


def test_an_unknown_name_is_an_attribute_error():
    """A typo fails as in any module."""
    with pytest.raises(AttributeError, match="Bentang"):
        _ = benteng.Bentang


def loaded_after(statement):
    """Return the names of modules that a fresh interpreter has loaded after a statement."""
    code = f"import sys\n{statement}\nprint(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_the_package_loads_nothing_of_it():
    """The supervisor and the CLI start without what users define jobs with."""
    ours = {name for name in loaded_after("import benteng") if name.startswith("benteng.")}

    assert set() == ours


@pytest.mark.parametrize("heavy", ["asyncio", "click", "cryptography", "pydantic", "sqlite3", "benteng.store.open"])
def test_defining_jobs_loads_nothing_heavy(heavy):
    """Code that only defines jobs opens no store and loads no cryptography."""
    statement = "from benteng import Benteng\napp = Benteng()\n@app.job\ndef greet(name: str) -> str:\n    return name"

    assert heavy not in loaded_after(statement)
