"""How many rows of a page a kernel may copy at once: those of one page, wherever it begins.

A block of keys begins at a multiple of its own length, so a power of two that divides the rows of a
page is in one page.
"""

from __future__ import annotations

import math

from kernelfarm.ir.algebra.expr import Expr
from optimizer_svc.analysis.page_tables import PagedOperands
from optimizer_svc.analysis.verdicts import Refused

LARGEST_CHUNK = 128
"""The keys of a block of the code that a chip has for flash attention."""
_LEAST_CHUNK = 16


def chunk_rows(page_rows: int, keys: Expr) -> int:
    """The rows of a chunk of a page with `page_rows` rows, a power of two; 0 if it has too few.

    No chunk is cut by the last of `keys` keys: what a page has behind it may be NaN. Chunks of
    fewer than 16 rows would take more copies than a block of keys takes time.
    """
    parts = (keys.constant, *(coefficient for _, coefficient in keys.terms))
    common = math.gcd(page_rows, LARGEST_CHUNK, *parts)
    # The largest power of two that divides it.
    chunk = common & -common
    return chunk if chunk >= _LEAST_CHUNK else 0


def slow_in_place(pages: PagedOperands, keys: Expr, rows: int, most_rows: int) -> Refused | None:
    """Why keys in pages are copied faster than read in place; None if they are not.

    `rows` queries share a head of `keys` keys. Up to `most_rows` of them, a kernel that loads rows
    one by one takes less time than copies and a kernel of chunks.
    """
    if rows <= most_rows or chunk_rows(pages.keys.size, keys):
        return None
    return Refused(
        f"chunks of {_LEAST_CHUNK} rows do not divide a page and the keys, and more than"
        f" {most_rows} queries share a head of keys"
    )
