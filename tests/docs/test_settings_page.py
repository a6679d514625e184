"""The page of settings is what the settings classes say, and says something about each."""

from __future__ import annotations

import pytest

from tests.support.source_code import ROOT, public_classes
from tools.settings_page import SECTIONS, Section, meanings, settings_page

PAGE = ROOT / "docs" / "settings.md"


def test_the_page_is_fresh() -> None:
    assert PAGE.read_text() == settings_page(), "run: make docs"


def test_each_settings_class_has_a_section() -> None:
    named = {name for name in public_classes() if name.endswith("Settings")}
    assert named == {section.kind.__name__ for section in SECTIONS}


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.title)
def test_each_setting_has_a_meaning(section: Section) -> None:
    without = [name for name, meaning in meanings(section.kind).items() if not meaning]
    assert not without, f"{section.kind.__name__}: add a string below {without}"
