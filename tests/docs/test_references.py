"""Documents point to what exists: links between pages, and paths of files and folders."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path

import pytest

from tests.support.markdown import code_names
from tests.support.source_code import ROOT

DECISIONS = ROOT / "docs" / "adr"
"""Decisions stay as they were taken: paths in them may have moved since."""

PAGES = sorted(
    path
    for path in chain(ROOT.glob("*.md"), (ROOT / "docs").rglob("*.md"), ROOT.glob("deploy/*.md"))
    if path.name != "CHANGELOG.md"
)
FOLDERS = sorted(path.name for path in ROOT.iterdir() if path.is_dir() and path.name[0] != ".")

_LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
_PATH = re.compile(rf"(?:{'|'.join(map(re.escape, FOLDERS))})/[\w./*-]+")
_PLACEHOLDER = re.compile(r"[A-Z][A-Z_]+")


def name_of(page: Path) -> str:
    """A page's path from the root."""
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_files(page: Path) -> None:
    links = _LINK.findall(page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", [p for p in PAGES if p.parent != DECISIONS], ids=name_of)
def test_paths_name_files_and_folders(page: Path) -> None:
    paths = [name for name in code_names(page.read_text()) if _PATH.fullmatch(name)]
    patterns = [_PLACEHOLDER.sub("*", path) for path in paths]
    assert [pattern for pattern in patterns if not any(ROOT.glob(pattern))] == []
