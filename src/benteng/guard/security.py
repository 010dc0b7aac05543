"""Security: no text that means something to a shell, a template or a path, above LOW.

The contract already refuses fields that are made for such text (definition rules). This guard looks at the values: a
string that carries command substitution, template syntax or path traversal has no business in a reference (seed,
"Keamanan"). It is a net under the contract, not a filter to rely on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import cast

import msgspec

from benteng.evidence import Evidence
from benteng.guard.case import Case
from benteng.policy import Tier
from benteng.verdict import ADMIT, Refuse, Verdict

LOADED = re.compile(
    r"\$[({]|`|\.\.[/\\]|\{\{|\{%|<%|<script|&&|\|\||;\s*(?:rm|curl|wget|sh|bash|drop)\b|%00|%2e%2e", re.IGNORECASE
)
"""Syntax of shells, templates, SQL and paths that references never contain. No nested quantifiers: linear time."""


def security(case: Case, evidence: Evidence) -> Verdict:
    """Refuse, as suspicious, a MEDIUM or HIGH payload with a string that carries such syntax, naming its field."""
    del evidence
    if case.policy.tier is Tier.LOW:
        return ADMIT
    waived = case.shape.free_text if case.shape is not None else frozenset[str]()
    for path, text in _strings("", msgspec.json.decode(case.job.payload)):
        if path not in waived and LOADED.search(text):
            return Refuse(
                "G-syntax",
                "the text carries shell, template, SQL or path syntax",
                "send a reference instead; what must be text goes into an artifact",
                field=path,
                suspicious=True,
            )
    return ADMIT


def _strings(path: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, item in cast("dict[str, object]", value).items():
            yield from _strings(f"{path}.{key}" if path else key, item)
    elif isinstance(value, list):
        for item in cast("list[object]", value):
            yield from _strings(path, item)
