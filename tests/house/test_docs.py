"""Generated blocks of the docs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from scripts import docs

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\]\(([^)#\s]+)")
PAGE = "before\n<!-- generated: make-targets -->\nold\n<!-- end -->\nafter\n"


def test_the_docs_say_what_the_code_says():
    """Every generated block is what its generator writes today."""
    done = subprocess.run([sys.executable, "scripts/docs.py", "--check"], cwd=ROOT, check=False, capture_output=True)

    assert 0 == done.returncode, done.stderr.decode()


def test_only_the_block_is_replaced():
    """What people wrote around a block stays."""
    page = docs.render(PAGE, {"make-targets": "new\n"})

    assert "before\n<!-- generated: make-targets -->\nnew\n<!-- end -->\nafter\n" == page


def test_a_stale_unknown_open_or_missing_block_is_a_fault(tmp_path, monkeypatch):
    """--check sees what --write would have to change, and what nobody can write."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "Makefile").write_text("env: ## build it\n")
    (tmp_path / "a.md").write_text(PAGE)
    (tmp_path / "docs/b.md").write_text("<!-- generated: nonsense -->\n<!-- end -->\n<!-- generated: open -->\n")
    monkeypatch.setattr(docs, "ROOT", tmp_path)

    faults = docs.faults({"make-targets": docs.make_targets(), "lonely": ""})

    assert [
        "a.md is stale: run make docs",
        "docs/b.md: a generated block has no end",
        "no generator is called nonsense: see scripts/docs.py",
        "no page has a block for lonely",
    ] == faults


def test_every_link_between_pages_leads_somewhere():
    """A reader who follows a link of the docs arrives."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    links = [(page, link) for page in pages for link in LINK.findall(page.read_text()) if "://" not in link]

    dead = [f"{page.relative_to(ROOT)}: {link}" for page, link in links if not (page.parent / link).exists()]

    assert links
    assert [] == dead


def test_every_decision_has_a_number_of_its_own():
    """Two decisions of one day are told apart."""
    pages = sorted((ROOT / "docs" / "adr").glob("*.md"))
    numbers = [page.name.split("-")[0] for page in pages]

    assert numbers == [f"{number:04}" for number in range(len(pages))]
    for page, number in zip(pages[1:], numbers[1:], strict=True):
        assert page.read_text().startswith(f"# {number}. "), page.name
