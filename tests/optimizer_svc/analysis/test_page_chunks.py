"""How many rows of a page come at once."""

from __future__ import annotations

import pytest

from kernelfarm.ir.algebra.expr import Expr, as_expr, symbol
from optimizer_svc.analysis.page_chunks import chunk_rows


@pytest.mark.parametrize(
    ("page_rows", "keys", "chunk"),
    [
        (16, 16 * 70, 16),
        (64, 64 * 3, 64),
        (256, 256 * 3, 128),
        (48, 48 * 5, 16),
        (96, 96 * 5, 32),
        (64, 64 * 3 - 16, 16),
        (64, 64 * 3 - 8, 0),
        (24, 24 * 8, 0),
        (8, 8 * 70, 0),
        (1, 1024, 0),
        (64, symbol("n") * 64, 64),
        (64, symbol("n") * 64 + 32, 32),
        (64, symbol("n"), 0),
        (32, symbol("n") * symbol("m") * 32, 32),
    ],
)
def test_a_chunk_divides_a_page_and_the_keys(page_rows: int, keys: int | Expr, chunk: int) -> None:
    assert chunk_rows(page_rows, as_expr(keys)) == chunk
