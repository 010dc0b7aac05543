"""THREATS.md: each control names its proof, and the proof exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| (?P<id>[A-Z]\d+) \|(?P<rest>.*)\|$", re.MULTILINE)
LINK = re.compile(r"\[`(?P<path>(?:tests|src/benteng/testing)/[\w/.]+)(?:::(?P<test>\w+))?`\]\((?P<target>[^)]+)\)")
PATH = re.compile(r"tests/[\w/]+\.py")
LATER = re.compile(r"coming: issue \d+|open: no issue yet")


def rows():
    """Each threat's id and the text of its row."""
    return {row["id"]: row["rest"] for row in ROW.finditer((ROOT / "THREATS.md").read_text())}


def has_test(path, name):
    """Whether the file holds that test, at any depth."""
    tree = ast.parse((ROOT / path).read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return any(isinstance(node, functions) and node.name == name for node in ast.walk(tree))


def test_every_threat_has_a_proof_or_says_when():
    """No row claims a control without a test, or the issue that brings it."""
    bare = [name for name, text in rows().items() if not LINK.search(text) and not LATER.search(text)]

    assert rows()
    assert [] == bare


def test_ids_are_unique():
    """An id names one threat: commits and reports may cite it."""
    ids = [row["id"] for row in ROW.finditer((ROOT / "THREATS.md").read_text())]

    assert len(set(ids)) == len(ids)


def test_every_test_that_is_named_exists():
    """A renamed or removed test takes its row's claim away, loudly."""
    links = list(LINK.finditer((ROOT / "THREATS.md").read_text()))

    missing = [link["path"] for link in links if not (ROOT / link["path"]).is_file()]
    assert [] == missing
    gone = [link[0] for link in links if link["test"] and not has_test(link["path"], link["test"])]
    assert [] == gone
    assert [] == [link[0] for link in links if link["target"] != link["path"]]


def test_every_mention_of_a_test_file_exists():
    """Also outside the links: in prose."""
    mentioned = set(PATH.findall((ROOT / "THREATS.md").read_text()))

    assert [] == sorted(path for path in mentioned if not (ROOT / path).is_file())
