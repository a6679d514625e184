"""Which functions of CANN's library a kernel calls, as the Linalg text declares them."""

from __future__ import annotations

import re

_DECLARED = re.compile(r"func\.func private @(?P<name>\w+?)(?:_\d+)?\(")


def library_notes(linalg: str) -> tuple[str, ...]:
    """A note for each function, as tests cannot run it here."""
    names = sorted({found["name"] for found in _DECLARED.finditer(linalg)})
    return tuple(f"calls {name} of CANN's library, which was not run here" for name in names)
