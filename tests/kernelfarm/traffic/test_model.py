"""Sectors of blocks, counted by the model and point by point."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelfarm.ir.text import parse_kernel
from kernelfarm.targets import MemoryFacts, target_facts
from kernelfarm.traffic import choose_block, kernel_accesses
from kernelfarm.traffic.access_patterns import AccessPattern
from kernelfarm.traffic.model import flat_block, moved, touched_bytes
from tests.support.traffic_kernels import CHANNELS_LAST, batch_norm_relu

MEMORY = target_facts("cuda:sm_90a").memory


def test_a_flat_block_fills_the_last_axis_first() -> None:
    extents = {"a": 10, "b": 7, "c": 100}
    assert flat_block(("a", "b", "c"), extents, 1024) == {"c": 100, "b": 7, "a": 2}
    assert flat_block(("a", "c", "b"), extents, 64) == {"b": 7, "c": 10, "a": 1}


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3)), min_size=1, max_size=3))
def test_sectors_of_nested_runs_are_exact(levels: list[tuple[int, int]]) -> None:
    """Each axis extends the run of the ones before it, or starts new runs, at whole sectors."""
    run, steps, block, is_far = 4, [], {}, False
    for number, (points, gap) in enumerate(levels):
        is_far = is_far or gap > 0
        step = -(-run // 32) * 32 * (1 + gap) if is_far else run
        steps.append((f"d{number}", float(step)))
        block[f"d{number}"] = points
        run = step * (points - 1) + run
    pattern = AccessPattern("in0", 4, 1 << 30, tuple(steps), is_store=False)
    offsets = [
        sum(int(step) * place for (_, step), place in zip(steps, places, strict=True))
        for places in product(*(range(points) for points, _ in levels))
    ]
    exact = {byte // 32 for offset in offsets for byte in (offset, offset + 3)}
    found = touched_bytes(pattern, block, 32) // 32
    assert len(exact) <= found <= 2 * len(exact)


@pytest.mark.parametrize(
    ("index", "step"),
    [("d0", 4.0), ("7*d0", 28.0), ("-d0 + 99", 4.0), ("d0//2", 2.0), ("d0 % 4 + 5", 8.0)],
)
def test_steps_are_those_of_the_first_points(index: str, step: float) -> None:
    kernel = parse_kernel(
        "kernel copy\nparam in in0: f32[700]\nparam out out0: f32[100]\nfor d0 in 100\n"
        f"  %0: f32 = load in0[{index}]\n  store out0[d0] = %0\n"
    )
    read, written = kernel_accesses(kernel).patterns
    assert dict(read.steps)["d0"] == pytest.approx(step, rel=0.3)
    assert (dict(written.steps), written.is_store) == ({"d0": 4.0}, True)


def test_rows_of_a_table_are_far_apart_and_their_elements_adjacent() -> None:
    kernel = parse_kernel("""\
kernel rows_of_table
param in in0: f32[3000000]
param in in1: i64[100]
param out out0: f32[3000]
for d0 in 100
for d1 in 30
  %0: i64 = load in1[d0]
  %1 = indirect %0 in 100000
  %2: f32 = load in0[30*%1 + d1]
  store out0[30*d0 + d1] = %2
""")
    table = next(p for p in kernel_accesses(kernel).patterns if p.param == "in0")
    assert dict(table.steps)["d1"] == 4.0
    assert dict(table.steps)["d0"] > 1_000_000


def test_a_kernel_moves_at_least_its_tensors_once() -> None:
    tensors, vectors = 2 * 2 * 25690112, 4 * 64 * 4
    assert choose_block(batch_norm_relu(), MEMORY).moved.least_bytes == tensors + vectors
    flat = replace(MEMORY, tile_side_bytes=None)
    strided = choose_block(batch_norm_relu(CHANNELS_LAST, CHANNELS_LAST), flat).moved
    assert strided.cost_bytes > 5 * strided.least_bytes


def test_data_that_a_cache_keeps_cost_less_when_they_are_read_again() -> None:
    accesses = kernel_accesses(batch_norm_relu(CHANNELS_LAST, CHANNELS_LAST))
    block = flat_block(("d0", "d1", "d2"), accesses.extents, 1024)
    small, large = (moved(accesses, block, MemoryFacts(cache_bytes=n)) for n in (1 << 20, 1 << 30))
    assert large.least_bytes == small.least_bytes < large.cost_bytes < small.cost_bytes


def test_a_varying_size_is_a_likely_one_within_its_range() -> None:
    text = (
        "kernel copy\nsize s0 from 2 to {}\nparam in in0: f32[s0]\nparam out out0: f32[s0]\n"
        "for d0 in s0\n  %0: f32 = load in0[d0]\n  store out0[d0] = %0\n"
    )
    assert kernel_accesses(parse_kernel(text.format(16))).extents == {"d0": 16}
    assert kernel_accesses(parse_kernel(text.format(10**6))).extents == {"d0": 509}
