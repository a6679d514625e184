"""Tilings for chips with a local buffer: shares of cores, sub-blocks, buffers and bytes."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from codegen_svc.emitters.triton.local_tiling import local_bytes, local_tiling
from codegen_svc.emitters.triton.tiling import Tiling, is_reduction, static_numel
from kernelfarm.dtypes import DType
from kernelfarm.ir.loop_ir import Kernel, Load, Store, operands_of, varying_values
from kernelfarm.targets import LocalBufferFacts, TargetFacts, target_facts
from tests.support.examples import examples
from tests.support.loop_kernels import emitter_shapes
from tests.support.loop_kernels.emitter_shapes import D0, R0, Body

ASCEND = target_facts("ascend:910b")
CHIP = ASCEND.section(LocalBufferFacts)
F16, F32 = DType.F16, DType.F32


def chip_of(size_bytes: int, cores: int = CHIP.vector_cores) -> TargetFacts:
    buffer = replace(CHIP, size_bytes=size_bytes, vector_cores=cores)
    return replace(ASCEND, local_buffer=buffer)


def live_bytes(kernel: Kernel, tiling: Tiling) -> int:
    """The values that live together at the fullest statement, counted one by one."""
    uses = [operands_of(statement) for statement in kernel.body]
    fullest = 0
    for now in range(len(kernel.body)):
        held = [
            _bytes(kernel, tiling, value)
            for value in range(now + 1)
            if value == now or any(value in uses[later] for later in range(now, len(uses)))
        ]
        fullest = max(fullest, sum(held))
    return fullest


def _bytes(kernel: Kernel, tiling: Tiling, value: int) -> int:
    statement = kernel.body[value]
    if isinstance(statement, Store):
        return 0
    is_whole = not is_reduction(kernel) or value in varying_values(kernel)
    elems = tiling.xsub * (max(1, tiling.rblock) if is_whole else 1)
    if isinstance(statement, Load):
        return elems * kernel.param(statement.param).dtype.itemsize_bytes * tiling.load_buffers
    return elems * statement.dtype.itemsize_bytes


@st.composite
def row_kernels(draw: st.DrawFn) -> Kernel:
    """Kernels over rows, with or without a reduction, that hold up to seven values at a time."""
    rows, width = draw(st.integers(1, 100_000)), draw(st.integers(1, 20_000))
    reduced, loads = draw(st.booleans()), draw(st.integers(1, 6))
    dtype = draw(st.sampled_from([F16, F32]))
    body, reduction = Body(), {"r0": width} if reduced else {}
    index = D0 * width + R0 if reduced else D0
    count = rows * width if reduced else rows
    params = [emitter_shapes.param(f"in{n}", dtype, count) for n in range(loads)]
    # All are loaded before the first is used.
    values = [body.load(p.name, index) for p in params]
    total = values[0]
    for value in values[1:]:
        total = body.compute("add", total, value, dtype=dtype)
    if reduced:
        total = body.reduce("sum", total, dtype)
    body.store("out0", D0, total)
    out = emitter_shapes.param("out0", dtype, rows)
    return emitter_shapes.kernel("rows", [*params, out], {"d0": rows}, reduction, body)


@settings(max_examples=examples(150), deadline=None)
@given(row_kernels(), st.integers(11, 20), st.integers(1, 64))
def test_every_tiling_fits_its_chip_and_covers_all_rows(
    kernel: Kernel, size_bits: int, cores: int
) -> None:
    target = chip_of(1 << size_bits, cores)
    chip = target.section(LocalBufferFacts)
    tiling = local_tiling(kernel, target, 32)
    assert tiling is not None
    needed = local_bytes(kernel, tiling, chip)
    assert live_bytes(kernel, tiling) <= needed <= chip.size_bytes
    assert tiling.xblock % tiling.xsub == 0
    rows = static_numel(kernel.outer)
    assert rows is not None
    assert -(-rows // tiling.xblock) <= cores
    width = static_numel(kernel.reduction)
    if tiling.is_persistent:
        assert width is not None and tiling.rblock >= width


@settings(max_examples=examples(60), deadline=None)
@given(row_kernels(), st.integers(11, 20))
def test_a_row_is_read_in_pieces_or_once_only_if_nothing_better_fits(
    kernel: Kernel, size_bits: int
) -> None:
    target = chip_of(1 << size_bits)
    chip = target.section(LocalBufferFacts)
    tiling = local_tiling(kernel, target, 32)
    assert tiling is not None
    is_piece = bool(tiling.rblock) and not tiling.is_persistent
    has_steps = tiling.xblock > tiling.xsub or is_piece
    if is_piece:
        width = static_numel(kernel.reduction) or 0
        whole = replace(tiling, xblock=1, xsub=1, is_persistent=True, load_buffers=1)
        rblock = 1 << (width - 1).bit_length()
        assert local_bytes(kernel, replace(whole, rblock=rblock), chip) > chip.size_bytes
    if has_steps and tiling.load_buffers == 1:
        double = replace(tiling, xblock=2, xsub=1, load_buffers=2)
        assert local_bytes(kernel, double, chip) > chip.size_bytes
    assert has_steps or tiling.load_buffers == 1


def test_rows_are_divided_evenly_among_the_cores() -> None:
    tiling = local_tiling(emitter_shapes.layer_norm_silu(F16, 1000, 1024), ASCEND, 32)
    assert tiling is not None
    # 1000 rows on 48 cores are 21 each; in sub-blocks of eight, 24, and not 32 as in one of 32.
    assert (tiling.xblock, tiling.xsub) == (24, 8)


def test_a_row_that_does_not_fit_twice_is_fetched_without_a_second_buffer() -> None:
    kernel = emitter_shapes.reduce_rows("sum", 480, 1 << 14, F32, F32)
    ample, narrow = local_tiling(kernel, chip_of(1 << 18), 32), local_tiling(kernel, ASCEND, 32)
    assert ample is not None and narrow is not None
    assert (ample.rblock, ample.load_buffers, ample.is_persistent) == (1 << 14, 2, True)
    assert (narrow.rblock, narrow.load_buffers, narrow.is_persistent) == (1 << 14, 1, True)


def test_blocks_are_aligned_in_the_buffer() -> None:
    kernel = emitter_shapes.scalar_op("add", (F16, F16), F16, 3)
    tiling = Tiling(1, 1, 0, False, 32)
    one_elem_each = local_bytes(kernel, tiling, replace(CHIP, alignment_bytes=2))
    assert local_bytes(kernel, tiling, CHIP) == one_elem_each // 2 * 32


def test_a_chip_whose_buffer_holds_no_row_and_no_piece_has_no_tiling() -> None:
    assert local_tiling(emitter_shapes.layer_norm_silu(F16, 8, 128), chip_of(64), 32) is None
