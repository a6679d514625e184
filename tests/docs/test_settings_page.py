"""The page of settings is what the settings classes say, and says something about each."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path

import pytest

from kernelfarm.service.settings import ENV_PREFIX
from tests.support.source_code import ROOT, public_classes
from tools.settings_page import SECTIONS, Section, meanings, settings_page

PAGE = ROOT / "docs" / "settings.md"

OF_TESTS = {"KERNELFARM_FUZZ_SEED"}
OF_COMPOSE = {
    "KERNELFARM_CACHE_MEMORY",
    "KERNELFARM_IMAGE",
    "KERNELFARM_PORT",
    "KERNELFARM_SERVER_IMAGE",
}
"""Variables that the files in `deploy` pass on under other names."""

DOCUMENTS = sorted(
    path
    for path in chain(ROOT.glob("*.md"), (ROOT / "docs").glob("*.md"), ROOT.glob("deploy/*.md"))
    if path.name != "CHANGELOG.md"
)


def test_the_page_is_fresh() -> None:
    assert PAGE.read_text() == settings_page(), "run: make docs"


def test_each_settings_class_has_a_section() -> None:
    named = {name for name in public_classes() if name.endswith("Settings")}
    assert named == {section.kind.__name__ for section in SECTIONS}


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.title)
def test_each_setting_has_a_meaning(section: Section) -> None:
    without = [name for name, meaning in meanings(section.kind).items() if not meaning]
    assert not without, f"{section.kind.__name__}: add a string below {without}"


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.name)
def test_documents_name_only_variables_that_exist(page: Path) -> None:
    settings = {name for section in SECTIONS for name in section.kind.model_fields}
    known = {f"{ENV_PREFIX}{name.upper()}" for name in settings} | OF_TESTS | OF_COMPOSE
    named = set(re.findall(rf"{ENV_PREFIX}[A-Z0-9_]*[A-Z0-9]", page.read_text()))
    assert not named - known
