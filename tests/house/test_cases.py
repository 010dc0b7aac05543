"""docs/explanation/cases.md: every known failure has a test that exists, or says which part brings it."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "explanation" / "cases.md"
ROW = re.compile(r"^\| (?P<id>[CN]\d+) \| (?P<elsewhere>[^|]+) \| (?P<here>[^|]+) \| (?P<proof>.*) \|$", re.MULTILINE)
LINK = re.compile(r"\[`(?P<path>(?:tests|src)/[\w/.]+\.py)::(?P<test>\w+)`\]\((?P<target>[^)]+)\)")
LATER = "## Not in the embedded spine"
WORDS_MAX = 12

# fmt: off
KNOWN = frozenset(f"C{n:02}" for n in (
    1, 3, 5, 6, 8, 9, 11, 13, 15, 16, 17, 20, 21, 22, 25, 26, 27, 30, 31, 33, 34, 36, 37, 39, 41, 43, 45, 46, 49,
    50, 52, 53, 55, 56, 58, 60, 62, 63, 65, 67, 69, 71, 72, 74, 75, 78, 79, 81, 83, 85, 87, 88, 90, 92, 95, 97, 98,
    100, 102, 104, 106, 108, 110, 112, 114, 116, 118, 119, 121, 123, 125, 127, 129,
))
"""The failures of other queues that were collected before the first line was written."""
# fmt: on


def proved():
    """Each case with its row, from the part of the page before the last list."""
    return {row["id"]: row for row in ROW.finditer(PAGE.read_text().partition(LATER)[0])}


def later():
    """The cases of the last list."""
    return re.findall(r"\bC\d+\b", PAGE.read_text().partition(LATER)[2])


@cache
def functions_in(path):
    """The names of the functions in a file, at any depth."""
    tree = ast.parse((ROOT / path).read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, functions)}


@cache
def failing_in(path):
    """The names of the tests in a file that are marked as expected to fail."""
    tree = ast.parse((ROOT / path).read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return {node.name for node in functions if any("mark.xfail" in ast.unparse(mark) for mark in node.decorator_list)}


def test_every_known_case_has_its_place():
    """Each case is proved or comes later, and never both: a case cannot fall between."""
    here = {case for case in proved() if case.startswith("C")}

    assert set(KNOWN) == here | set(later())
    assert not here & set(later())


def test_no_case_is_told_twice():
    """One id, one row: reports may cite it."""
    ids = [row["id"] for row in ROW.finditer(PAGE.read_text())] + later()

    assert sorted(set(ids)) == sorted(ids)


def test_every_row_links_a_test_that_exists():
    """A renamed or removed test takes its case's claim away, loudly."""
    bare = [case for case, row in proved().items() if not LINK.search(row["proof"])]
    links = [link for row in proved().values() for link in LINK.finditer(row["proof"])]
    gone = [link[0] for link in links if link["test"] not in functions_in(link["path"])]

    assert [] == bare
    assert [] == gone
    assert [] == [link[0] for link in links if link["target"] != f"../../{link['path']}"]


def test_what_is_open_says_so():
    """A row claims no control whose test is expected to fail; and none stays `open` when it is closed."""
    said = {case for case, row in proved().items() if re.search(r"\bopen:", row["here"])}
    failing = {
        case
        for case, row in proved().items()
        if any(link["test"] in failing_in(link["path"]) for link in LINK.finditer(row["proof"]))
    }

    assert failing == said


def test_every_row_is_read_as_one():
    """A row whose form is broken would be skipped by the tests above."""
    started = re.findall(r"^\| ([CN]\d+) ", PAGE.read_text(), re.MULTILINE)

    assert list(proved()) == started


def test_the_failure_is_told_in_few_words():
    """A line, not a report: what happens elsewhere in at most twelve words."""
    long = [case for case, row in proved().items() if len(row["elsewhere"].split()) > WORDS_MAX]

    assert [] == long


def test_every_test_of_a_case_is_linked():
    """What stands in tests/cases proves something on the page; nothing is proved in secret."""
    linked = {link["test"] for link in LINK.finditer(PAGE.read_text())}
    names = {
        name
        for path in (ROOT / "tests" / "cases").glob("test_*.py")
        for name in functions_in(str(path.relative_to(ROOT)))
        if name.startswith("test_")
    }

    assert names
    assert set() == names - linked - CONTROLS


CONTROLS = frozenset(
    {
        "test_low_job_with_a_date_of_expiry_can_start",
        "test_marker_is_made_by_who_unpickles",
        "test_one_person_revokes_an_artifact_at_once",
        "test_replay_enters_nowhere_further_on",
        "test_retired_key_stops_a_job_without_an_alarm",
        "test_tier_as_a_word_is_no_way_around_its_floors",
        "test_untouched_job_starts",
    }
)
"""Tests that show that an attack is live, and regressions that belong to no case."""
