"""Temporaries that are alive at the same time never overlap."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kernelfarm.ir.algebra.expr import as_expr, ceil_div, symbol
from kernelfarm.ir.program_ir import ARENA_ALIGNMENT_BYTES
from optimizer_svc.analysis.arena import Lifetime, plan_arena

S0 = symbol("s0")
SIZES = (
    *(as_expr(4), as_expr(64), as_expr(1000), S0 * 4, S0 * 8),
    *(S0 * 4096, S0 * 1028, S0 * 128 + 64, (S0 + 1) * symbol("s1") * 64, ceil_div(S0, 3) * 2048),
)


@st.composite
def lifetimes(draw):
    found = []
    for value in range(draw(st.integers(0, 12))):
        first = draw(st.integers(0, 10))
        last = draw(st.integers(first, 12))
        found.append(Lifetime(value, draw(st.sampled_from(SIZES)), first, last))
    return found


@given(lives=lifetimes(), size=st.integers(0, 100), other=st.integers(1, 9))
def test_no_two_live_temporaries_overlap(lives, size, other) -> None:
    arena = plan_arena(lives)
    sizes = {"s0": size, "s1": other}
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


def test_blocks_of_several_sizes_share_the_bytes_of_a_larger_one() -> None:
    lives = [
        Lifetime(0, as_expr(64), 0, 1),
        Lifetime(1, as_expr(128), 1, 2),
        Lifetime(2, as_expr(64), 2, 4),
        Lifetime(3, as_expr(192), 3, 4),
        Lifetime(4, as_expr(64), 3, 3),
    ]
    assert plan_arena(lives).size_bytes == 320


def test_multiples_of_a_dynamic_size_are_packed_like_constant_sizes() -> None:
    lives = [
        Lifetime(0, S0 * 3072, 0, 1),
        Lifetime(1, S0 * 1024, 2, 3),
        Lifetime(2, S0 * 2048, 2, 3),
        Lifetime(3, S0 * 3072, 4, 5),
    ]
    assert plan_arena(lives).size_bytes is S0 * 3072


@given(lives=lifetimes())
def test_the_arena_holds_what_is_alive_at_any_step(lives) -> None:
    sizes = {"s0": 7, "s1": 3}
    size = plan_arena(lives).size_bytes.evaluate(sizes)
    for step in range(13):
        alive = [life for life in lives if life.first <= step <= life.last]
        assert size >= sum(life.size_bytes.evaluate(sizes) for life in alive)
