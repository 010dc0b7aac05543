"""Every rule id that the code can name has a heading in the docs."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
RULE = re.compile(r'"([A-Z]-[a-z][a-z0-9-]*)"')
HEADING = re.compile(r"^#+ .*?`?([A-Z]-[a-z][a-z0-9-]*)`?", re.MULTILINE)


def test_every_rule_has_a_heading():
    """A person who is refused can look the rule up."""
    sources = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    pages = "\n".join(path.read_text() for path in (ROOT / "docs" / "reference").glob("*.md"))

    undocumented = set(RULE.findall(sources)) - set(HEADING.findall(pages))

    assert set() == undocumented
