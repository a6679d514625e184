"""The glossary names what is in the code, and covers each public class that needs a word."""

from __future__ import annotations

from pathlib import Path

from tests.support.markdown import code_names, table_rows
from tests.support.source_code import ROOT, defined_names, public_classes

PAGE = ROOT / "docs" / "glossary.md"
SELF_EXPLAINING = Path(__file__).with_name("self_explaining_names.txt")

ROWS = tuple(table_rows(PAGE, "term"))
NAMED = frozenset(name for row in ROWS for name in code_names(row[2]))


def self_explaining_names() -> list[str]:
    """Class names that are the field's own words."""
    lines = SELF_EXPLAINING.read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_each_name_of_the_glossary_exists() -> None:
    assert sorted(name for name in NAMED if not exists(name)) == []


def exists(name: str) -> bool:
    """True for a path of the repository, and for a name that the code defines."""
    is_path = "/" in name or (ROOT / name).is_dir()
    return (ROOT / name).exists() if is_path else name in defined_names()


def test_each_term_is_one_line_with_a_meaning_and_a_name() -> None:
    assert ROWS
    for row in ROWS:
        assert len(row) == 3 and all(row), row
        assert code_names(row[2]), row
    terms = [row[0] for row in ROWS]
    assert len(terms) == len(set(terms))


def test_each_public_class_is_explained_or_listed_as_self_explaining() -> None:
    known = NAMED | set(self_explaining_names())
    missing = {name: path for name, path in public_classes().items() if name not in known}
    assert not missing, (
        f"these classes have no line in docs/glossary.md: {missing}; add one, or add the name to"
        f" {SELF_EXPLAINING.relative_to(ROOT)} if it is a usual word of compilers, gRPC or caches"
    )


def test_the_list_of_self_explaining_names_has_only_classes_without_a_line() -> None:
    listed = self_explaining_names()
    assert listed == sorted(listed)
    assert len(listed) == len(set(listed))
    assert not set(listed) - public_classes().keys()
    assert not set(listed) & NAMED
