"""What the README shows is true: its code runs, and its commands exist."""

import re
from pathlib import Path
from typing import Any

from benteng import Tier
from benteng.ops.cli import COMMANDS

README = (Path(__file__).parents[2] / "README.md").read_text()
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_code_of_the_readme_runs():
    """All blocks, one after the other, in one module: two job types of the tiers that the text names."""
    names: dict[str, Any] = {"__name__": "readme"}

    for block in PYTHON.findall(README):
        exec(compile(block, "README.md", "exec"), names)  # noqa: S102 - our own README

    tiers = {name: policy.tier for name, policy in names["app"].registry.policies().items()}
    assert {"greet@1": Tier.LOW, "patch.apply@1": Tier.HIGH} == tiers


def test_the_commands_of_the_readme_exist():
    """A reader who types what the README says finds the command."""
    named = set(re.findall(r"(?:\$ |`)benteng ([a-z]+)", README))

    assert set() == named - set(COMMANDS)
