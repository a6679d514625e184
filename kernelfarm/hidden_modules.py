"""Hides modules while a library is imported that would import them for features of no use here."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def hidden(*names: str) -> Iterator[None]:
    """Imports of these modules fail within the block, as if they were not installed.

    A module that is imported already stays. Use it only for modules that the library itself treats
    as optional.
    """
    absent = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type] # None means: not there
    try:
        yield
    finally:
        for name in absent:
            sys.modules.pop(name, None)
