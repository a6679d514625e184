"""Tables of Markdown pages, for tests that compare a page with the code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_CODE = re.compile(r"`([^`]+)`")
_CELLS = re.compile(r"(?<!\\)\|")
_RULE = re.compile(r"\|[-:| ]+\|")


def table_rows(page: Path, header: str) -> Iterator[tuple[str, ...]]:
    """The rows of each table of a page whose first line begins with `| HEADER |`."""
    is_inside = False
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith(f"| {header} |"):
            is_inside = True
        elif not line.startswith("|"):
            is_inside = False
        elif is_inside and not _RULE.fullmatch(line):
            yield tuple(cell.strip() for cell in _CELLS.split(line)[1:-1])


def code_names(text: str) -> tuple[str, ...]:
    """What stands between backquotes."""
    return tuple(_CODE.findall(text))
