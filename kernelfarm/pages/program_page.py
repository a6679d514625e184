"""The page of one model's programs, one for each target."""

from __future__ import annotations

from collections.abc import Sequence

from kernelfarm.pages.program_view import ProgramView
from kernelfarm.pages.rendering import rendered


def program_page(title: str, programs: Sequence[ProgramView]) -> str:
    """One self-contained HTML page; `title` names what was compiled."""
    return rendered("program.html", "program.js", title=title, programs=programs)
