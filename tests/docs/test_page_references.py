"""Pages for people name only what exists: pages, headings, files, modules, commands, settings."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path

import pytest

from kernelfarm.cli import COMMANDS
from kernelfarm.client.settings import ClientSettings
from tests.support.known_variables import ROOT, VARIABLES
from tools.settings_page import fields_of

PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")),
        ROOT / "deploy" / "README.md",
        *(ROOT / "docs").rglob("*.md"),
    ]
)
# Decisions stay as they were taken; the names in PyTorch's operator database are not ours.
_DATED = [page for page in PAGES if page.parent.name == "adr"]
CURRENT = [p for p in PAGES if p not in _DATED and p.name != "operator_database.md"]

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_CODE_SPAN = re.compile(r"`([^`\n]+)`")
_PATH = re.compile(r"[\w.*-]+(?:/[\w.*-]+)+/?")
_FILE_ENDING = re.compile(r"\.(?:py|md|proto|lua)$")
_PLACEHOLDER = re.compile(r"[A-Z]{2,}(?:_[A-Z]+)*(?!\w*\.md)")
_VARIABLE = re.compile(r"KERNELFARM_[A-Z0-9_]*[A-Z0-9]")


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def _files() -> Iterator[str]:
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [f for f in folders if not f.startswith(".") and f != "__pycache__"]
        yield from (_name(Path(folder, name)) for name in names)


FILES = frozenset(_files())
TOP_FOLDERS = {name.partition("/")[0] for name in FILES if "/" in name}


def _without_blocks(text: str) -> str:
    """The text without blocks of code, which may name files of a user's own."""
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def _code(text: str) -> str:
    """What a page shows as code: spans, and blocks of either kind."""
    fenced = re.findall(r"^```[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    indented = re.findall(r"^ {4}(.*)$", text, re.MULTILINE)
    return "\n".join([*_CODE_SPAN.findall(text), *fenced, *indented])


def _anchor(heading: str) -> str:
    """What a heading is linked by on GitHub."""
    kept = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return kept.replace(" ", "-")


def _anchors(page: Path) -> set[str]:
    text = _without_blocks(page.read_text())
    return {_anchor(found) for found in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}


def _exists(path: str, page: Path) -> bool:
    """Whether a path exists: from the root, from the page, or as the end of a file's path."""
    pattern = _PLACEHOLDER.sub("*", path).rstrip("/")
    if any(next(folder.glob(pattern), None) for folder in (ROOT, page.parent)):
        return True
    is_short = path.partition("/")[0] not in TOP_FOLDERS
    return is_short and any(name.endswith(f"/{path}") for name in FILES)


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_link_leads_to_a_page_and_a_heading(page: Path) -> None:
    broken = []
    for link in _LINK.findall(_without_blocks(page.read_text())):
        path, _, anchor = link.partition("#")
        if "://" in path:
            continue
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", CURRENT, ids=_name)
def test_every_path_in_backticks_exists(page: Path) -> None:
    spans = _CODE_SPAN.findall(_without_blocks(page.read_text()))
    paths = [span for span in spans if _PATH.fullmatch(span)]
    ours = [p for p in paths if p.partition("/")[0] in TOP_FOLDERS or _FILE_ENDING.search(p)]
    assert [path for path in ours if not _exists(path, page)] == []


@pytest.mark.parametrize("page", CURRENT, ids=_name)
def test_every_module_that_a_page_runs_exists(page: Path) -> None:
    modules = re.findall(r"python -m ([\w.]+)", page.read_text())
    ours = [module.replace(".", "/") for module in modules if module.split(".")[0] in TOP_FOLDERS]
    missing = [m for m in ours if FILES.isdisjoint({f"{m}.py", f"{m}/__main__.py"})]
    assert missing == []


# CONTRIBUTING shows how to add a command, by an example that does not exist.
@pytest.mark.parametrize("page", [p for p in CURRENT if p.stem != "CONTRIBUTING"], ids=_name)
def test_every_command_that_a_page_names_exists(page: Path) -> None:
    code = _code(page.read_text())
    named = re.findall(r"^(?:\S*bin/)?kernelfarm ([a-z-]+)", code, re.MULTILINE)
    assert [name for name in named if name not in COMMANDS] == []


@pytest.mark.parametrize("page", CURRENT, ids=_name)
def test_every_target_of_make_that_a_page_names_exists(page: Path) -> None:
    targets = re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = re.findall(r"^make ((?:[a-z0-9-]+ ?)+)", _code(page.read_text()), re.MULTILINE)
    assert [name for names in named for name in names.split() if name not in targets] == []


@pytest.mark.parametrize("page", CURRENT, ids=_name)
def test_every_setting_that_a_page_names_is_read_somewhere(page: Path) -> None:
    known = VARIABLES | {f"KERNELFARM_{name.upper()}" for name in fields_of(ClientSettings)}
    read = (ROOT / name for name in FILES if name.endswith((".py", ".yaml", "run")))
    missing = set(_VARIABLE.findall(page.read_text())) - known
    if missing:
        missing -= {name for path in read for name in _VARIABLE.findall(path.read_text())}
    assert missing == set()


def test_the_index_lists_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / link).resolve() for link in _LINK.findall(index.read_text())}
    listed = [p for p in PAGES if p.is_relative_to(index.parent) and p != index]
    assert [_name(p) for p in listed if p not in linked and p.parent not in linked] == []


def test_the_architecture_shows_the_import_contract_that_is_enforced() -> None:
    contracts = ConfigParser()
    contracts.read(ROOT / ".importlinter")
    layers = contracts["importlinter:contract:packages"]["layers"].strip()
    assert f"```\n{layers}\n```" in (ROOT / "ARCHITECTURE.md").read_text()
