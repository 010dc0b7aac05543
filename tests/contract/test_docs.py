"""The reference page and the tables say the same."""

import re
from pathlib import Path

from benteng.contract import PAYLOAD_RULES, RULES, PayloadLimits
from benteng.contract.definition import FORBIDDEN_WORDS, SECRET_WORDS

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "contracts.md").read_text(encoding="utf-8")


def test_every_rule_has_its_heading():
    """An undocumented rule, or the heading of one that is gone, is a red build."""
    assert {*RULES, *PAYLOAD_RULES} == set(re.findall(r"^### ([DP]-[a-z0-9-]+)$", PAGE, re.MULTILINE))


def test_every_rule_explains_itself():
    """What, why and fix are written, and waivable rules show their waiver."""
    for rule_id, rule in (RULES | PAYLOAD_RULES).items():
        assert rule.what
        assert rule.why
        assert rule.fix
        assert rule.waivable == (f'Waive("{rule_id}"' in rule.fix and rule_id != "D-waiver")


def test_waivable_rules_are_documented_as_such():
    """The page says which rules can be waived."""
    sections = re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]
    documented = {
        section.split("\n", 1)[0] for section in sections if re.search(r"can be waived", section, re.IGNORECASE)
    }

    assert {rule_id for rule_id, rule in RULES.items() if rule.waivable} == documented - {"D-waiver"}


def test_limits_and_words_are_documented():
    """The numbers and words of the page are those of the code."""
    limits = PayloadLimits()
    numbers = (limits.payload_bytes_max, limits.depth_max, limits.items_max, limits.text_max)

    assert all(f"| {number:,}" in PAGE for number in numbers)
    assert all(re.search(rf"\b{word}\b", PAGE) for word in FORBIDDEN_WORDS)
    assert all(re.search(rf"\b{word}\b", PAGE) for word in SECRET_WORDS if word != "apikey")
