"""Temporaries that are alive at the same time never overlap."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kernelfarm.ir.algebra.expr import as_expr, symbol
from kernelfarm.ir.program_ir import ARENA_ALIGNMENT_BYTES
from optimizer_svc.analysis.arena import Lifetime, plan_arena

SIZES = (as_expr(4), as_expr(64), as_expr(1000), symbol("s0") * 4, symbol("s0") * 8)


@st.composite
def lifetimes(draw):
    found = []
    for value in range(draw(st.integers(0, 12))):
        first = draw(st.integers(0, 10))
        last = draw(st.integers(first, 12))
        found.append(Lifetime(value, draw(st.sampled_from(SIZES)), first, last))
    return found


@given(lives=lifetimes(), size=st.integers(1, 100))
def test_no_two_live_temporaries_overlap(lives, size) -> None:
    arena = plan_arena(lives)
    sizes = {"s0": size}
    spans = []
    for life in lives:
        begin = arena.offsets[life.value].evaluate(sizes)
        end = begin + life.size_bytes.evaluate(sizes)
        assert begin % ARENA_ALIGNMENT_BYTES == 0
        assert end <= arena.size_bytes.evaluate(sizes)
        spans.append((begin, end))
    for k, a in enumerate(lives):
        for j, b in enumerate(lives[:k]):
            if a.first <= b.last and b.first <= a.last:
                assert spans[k][0] >= spans[j][1] or spans[j][0] >= spans[k][1]


def test_a_temporary_gets_the_smallest_gap_that_fits() -> None:
    lives = [
        Lifetime(0, as_expr(256), 0, 1),
        Lifetime(1, as_expr(64), 0, 9),
        Lifetime(2, as_expr(64), 0, 1),
        Lifetime(3, as_expr(64), 0, 9),
        Lifetime(4, as_expr(64), 2, 9),
    ]
    arena = plan_arena(lives)
    assert arena.offsets[4] == 320
    assert arena.size_bytes == 448
