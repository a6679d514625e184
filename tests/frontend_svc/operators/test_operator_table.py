"""The page of operators is equal to the table in the code."""

from __future__ import annotations

from pathlib import Path

from frontend_svc.operators import DECOMPOSED, EXTERN_GROUPS
from frontend_svc.operators.table import operator_table

PAGE = Path(__file__).parents[3] / "docs" / "operators.md"


def test_the_operator_page_is_fresh() -> None:
    assert PAGE.read_text() == operator_table(), (
        "run: python -m frontend_svc.operators > docs/operators.md"
    )


def test_the_page_lists_every_operator_and_every_group_once() -> None:
    rows = [line.split(" | ")[0] for line in operator_table().splitlines() if line.startswith("| ")]
    assert sorted(r.split("`")[1] for r in rows if r.startswith("| `")) == sorted(DECOMPOSED)
    for group in EXTERN_GROUPS:
        assert rows.count(f"| {group.name}") == 1
