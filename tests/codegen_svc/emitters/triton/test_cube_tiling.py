"""Tiles of products for cube cores: the limits of every buffer, and every result once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import takewhile
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from codegen_svc.backends.triton_gpu import scalar_rules
from codegen_svc.emitters.triton.cube_tiling import (
    CubeTiling,
    cube_contraction,
    cube_tiling,
    fits_cores,
)
from codegen_svc.emitters.triton.source import emit_triton
from codegen_svc.emitters.triton.tiling import program_count
from kernelfarm.ir.contractions import Contraction
from kernelfarm.ir.loop_ir import Kernel, Load, Store, operands_of
from kernelfarm.targets import CubeFacts, LocalBufferFacts, TargetFacts, target_facts
from tests.support.examples import examples
from tests.support.product_kernels import (
    batched,
    gated,
    gradient,
    linear,
    padded,
    scaled,
    sliced,
    vector,
    wide,
    wide_batched,
    with_residuals,
)
from tests.support.traffic_kernels import batch_norm_relu

ASCEND = target_facts("ascend:910b")
CUBE, CHIP = ASCEND.section(CubeFacts), ASCEND.section(LocalBufferFacts)


def tiled(kernel: Kernel, target: TargetFacts = ASCEND, copies: int = 2) -> CubeTiling:
    found = cube_tiling(kernel, target, 32, copies)
    assert found is not None
    return found


def contraction(kernel: Kernel) -> Contraction:
    found = cube_contraction(kernel, ASCEND)
    assert found is not None
    return found


@st.composite
def products(draw: st.DrawFn) -> Kernel:
    """Products of every kind, with long and short sides."""
    side = st.one_of(st.integers(1, 40), st.integers(1, 5000))
    rows, columns, summed = draw(side), draw(side), draw(side)
    dtype = draw(st.sampled_from(["f16", "bf16"]))
    few = st.integers(1, 4)
    makers = (
        lambda: linear(rows, columns, summed, dtype),
        lambda: gated(rows, columns, summed, dtype),
        lambda: with_residuals(rows, columns, summed, dtype, draw(st.integers(1, 9))),
        lambda: wide(rows, columns, summed, has_columns=draw(st.booleans())),
        lambda: sliced(draw(few), rows, columns, summed, dtype),
        lambda: batched(draw(few), draw(few), rows, columns, summed),
        lambda: wide_batched(draw(few), rows, columns, summed),
        lambda: gradient(rows, columns, summed, dtype),
        lambda: padded(rows, columns, summed, draw(side)),
        lambda: vector(columns, summed),
        lambda: scaled(summed, dtype),
    )
    return draw(st.sampled_from(makers))()


@st.composite
def chips(draw: st.DrawFn) -> TargetFacts:
    """Chips with other buffers and other numbers of cores."""
    cores = draw(st.integers(1, 32))
    size = st.integers(14, 20).map(lambda bits: 1 << bits)
    cube = replace(
        CUBE,
        cores=cores,
        l0a_bytes=draw(size),
        l0b_bytes=draw(size),
        l0c_bytes=draw(size),
        l1_bytes=draw(size),
    )
    each = draw(st.integers(1, 2))
    buffer = replace(CHIP, vector_cores=cores * each, size_bytes=draw(size))
    return replace(ASCEND, cube=cube, local_buffer=buffer)


@settings(max_examples=examples(200), deadline=None)
@given(products(), chips(), st.integers(1, 2))
def test_no_tiling_is_over_a_limit(kernel: Kernel, target: TargetFacts, copies: int) -> None:
    found = tiled(kernel, target, copies)
    tiling, use = found.tiling, found.use
    cube, chip = target.section(CubeFacts), target.section(LocalBufferFacts)
    x, r, k = tiling.xblock, tiling.rblock, tiling.kblock
    product = contraction(kernel)
    itemsize = factor_bytes(kernel, product)
    points, depth = use.l0_points, cube.fractal_bytes // itemsize
    assert 2 * x * points * itemsize == use.l0a_bytes <= cube.l0a_bytes
    assert 2 * points * r * itemsize == use.l0b_bytes <= cube.l0b_bytes
    assert len(product.sums) * x * r * 4 == use.l0c_bytes <= cube.l0c_bytes
    lefts, rights = ({getattr(s, side) for s in product.sums} for side in ("left", "right"))
    panel = (len(lefts) * x + len(rights) * r) * k * itemsize
    assert panel * tiling.load_buffers == use.l1_bytes <= cube.l1_bytes
    assert live_bytes(kernel, product, found) <= use.unified_buffer_bytes <= chip.size_bytes
    assert x % cube.fractal_side == r % cube.fractal_side == 0
    assert k % points == points % depth == 0
    assert 1 <= use.cube_cores <= cube.cores
    assert use.vector_cores <= chip.vector_cores
    assert use.cube_cores == program_count(kernel, tiling).as_int()
    assert fits_cores(use, target)


@settings(max_examples=examples(200), deadline=None)
@given(products(), st.integers(1, 32))
@example(batched(3, 4, 300, 300, 64), 5)  # batches that programs walk
@example(batched(3, 4, 20, 20, 64), 32)
def test_every_result_is_computed_once(kernel: Kernel, cores: int) -> None:
    cube = replace(CUBE, cores=cores)
    target = replace(ASCEND, cube=cube, local_buffer=replace(CHIP, vector_cores=2 * cores))
    found = tiled(kernel, target)
    product = contraction(kernel)
    sizes = {s.name: 100 for s in kernel.sizes}
    places = Counter(tile_places(kernel, found, sizes))
    rows, columns, batches = (
        extent_of(axes, sizes) for axes in (product.rows, product.columns, product.batches)
    )
    expected = {
        (batch, x, r)
        for batch in range(batches)
        for x in range(0, rows, found.tiling.xblock)
        for r in range(0, columns, found.tiling.rblock)
    }
    assert places.keys() == expected
    assert set(places.values()) == {1}
    if found.use.core_tiles is not None:
        assert len(expected) == found.use.tiles
        assert -(-len(expected) // found.use.cube_cores) == found.use.core_tiles


def extent_of(axes: tuple[Any, ...], sizes: dict[str, int]) -> int:
    count = 1
    for axis in axes:
        count *= axis.extent.evaluate(sizes)
    return count


def tile_places(
    kernel: Kernel, found: CubeTiling, sizes: dict[str, int]
) -> list[tuple[int, int, int]]:
    """Batch, first row and first column of each tile, by the text of all programs.

    Of the text, the lines up to the tile's rows are Python that needs no Triton.
    """
    text = emit_triton(kernel, found.tiling, scalar_rules(ASCEND, kernel)).text
    body = text.partition(f"def {kernel.name}(")[2].partition("):\n")[2].splitlines()
    lines = [line[4:] for line in takewhile(lambda line: "xindex = " not in line, body)]
    indent = "    " if found.tiling.programs else ""
    product = contraction(kernel)
    names = [axis.name for axis in product.batches]
    lines.append(f"{indent}seen.append(([{', '.join(names)}], xoffset, roffset))")
    code = compile("\n".join(lines), "<tiles>", "exec")
    places: list[tuple[int, int, int]] = []
    tiling = found.tiling
    for program in range(found.use.cube_cores):
        seen: list[tuple[list[int], int, int]] = []
        exec(
            code,
            {
                "tl": triton_of(program),
                "seen": seen,
                "XBLOCK": tiling.xblock,
                "RBLOCK": tiling.rblock,
                "PROGRAMS": tiling.programs,
                **{name: Number(value) for name, value in sizes.items()},
            },
        )
        places += [(flat(product, of), x, r) for of, x, r in seen]
    return places


class Number(int):
    """A size, which has Triton's method of tensors."""

    def to(self, _dtype: object) -> int:
        return int(self)


def triton_of(program: int) -> SimpleNamespace:
    """What the lines need of Triton, for one program."""
    return SimpleNamespace(
        program_id=lambda _axis: Number(program),
        minimum=min,
        int32=int,
        int64=int,
        range=lambda first, last, step, **_options: range(first, last, step),
    )


def flat(product: Contraction, numbers: list[int]) -> int:
    at = 0
    for axis, number in zip(product.batches, numbers, strict=True):
        at = at * axis.extent.as_int() + number
    return at


def factor_bytes(kernel: Kernel, product: Contraction) -> int:
    statement = kernel.body[product.sums[0].left]
    if isinstance(statement, Load):
        return kernel.param(statement.param).dtype.itemsize_bytes
    return int(getattr(statement, "dtype").itemsize_bytes)  # noqa: B009 - a Compute's


def live_bytes(kernel: Kernel, product: Contraction, found: CubeTiling) -> int:
    """The values after the sums that live together at the fullest statement, one by one."""
    reduced = {axis.name for axis in kernel.reduction}
    sums = {s.number for s in product.sums}
    after = [n for n in range(len(kernel.body)) if not product.axes_of[n] & reduced]
    after = [n for n in after if n in sums or n > max(sums) or not is_factor_s(kernel, product, n)]
    fullest = 0
    for now in (n for n in after if n > max(sums)):
        held = [
            n
            for n in after
            if (n <= now or n in sums)
            and (n == now or any(n in operands_of(kernel.body[m]) for m in after if m >= now))
        ]
        # A value that is computed before the last sum is in the text behind all sums.
        fullest = max(fullest, sum(tile_bytes(kernel, product, found, n) for n in held))
    return fullest


def is_factor_s(kernel: Kernel, product: Contraction, number: int) -> bool:
    """True for a value of which a factor is computed."""
    pending = [n for s in product.sums for n in (s.left, s.right)]
    while pending:
        at = pending.pop()
        if at == number:
            return True
        pending.extend(operands_of(kernel.body[at]))
    return False


def tile_bytes(kernel: Kernel, product: Contraction, found: CubeTiling, number: int) -> int:
    statement = kernel.body[number]
    if isinstance(statement, Store):
        return 0
    elems = 1
    for size, axes in ((found.tiling.xblock, product.rows), (found.tiling.rblock, product.columns)):
        if product.axes_of[number] & {axis.name for axis in axes}:
            elems *= size
    if isinstance(statement, Load):
        return elems * kernel.param(statement.param).dtype.itemsize_bytes
    return elems * int(getattr(statement, "dtype").itemsize_bytes)  # noqa: B009 - a Compute's


@pytest.mark.parametrize(
    ("kernel", "tile", "l0_points"),
    [
        # The tiles of Huawei's CATLASS (basic_matmul): 128 x 256 x 256 in L1, 64 points in L0.
        (linear(4096, 4096, 4096), (128, 256, 256), 64),
        (linear(16, 14336, 4096), (16, 128, 512), 128),
        # Two sums share L0C and a vector core's buffer.
        (gated(2048, 14336, 4096), (128, 64, 512), 128),
        # What follows needs more of a vector core's buffer.
        (wide(4096, 4096, 4096), (64, 128, 256), 64),
    ],
)
def test_tiles_follow_from_the_facts_of_the_chip(
    kernel: Kernel, tile: tuple[int, int, int], l0_points: int
) -> None:
    found = tiled(kernel)
    assert (found.tiling.xblock, found.tiling.rblock, found.tiling.kblock) == tile
    assert found.use.l0_points == l0_points
    assert (found.use.cube_cores, found.use.vector_cores) == (24, 48)


@settings(max_examples=examples(60), deadline=None)
@given(products())
def test_no_smaller_tile_moves_fewer_bytes(kernel: Kernel) -> None:
    """A chip with smaller buffers has fewer tiles to choose from, and never better ones."""
    best = tiled(kernel)
    half = replace(CUBE, l0c_bytes=CUBE.l0c_bytes // 2, l1_bytes=CUBE.l1_bytes // 2)
    smaller = tiled(kernel, replace(ASCEND, cube=half))
    assert best.use.moved_bytes <= smaller.use.moved_bytes


def test_a_long_epilogue_has_smaller_tiles() -> None:
    sides = [
        found.tiling.xblock * found.tiling.rblock
        for found in (tiled(with_residuals(4096, 4096, 512, "f16", n)) for n in (1, 4, 16))
    ]
    assert sides == sorted(sides, reverse=True)
    assert sides[0] > sides[-1]


def test_factors_that_vector_cores_compute_take_their_buffer() -> None:
    """Those that are only loaded go to the cube core."""
    kernels = (linear(64, 64, 512, "f16"), padded(64, 64, 512, 100))
    loaded, masked = (tiled(kernel) for kernel in kernels)
    x, r, k = masked.tiling.xblock, masked.tiling.rblock, masked.tiling.kblock
    assert loaded.use.unified_buffer_bytes == (4 + 2) * loaded.tiling.xblock * loaded.tiling.rblock
    # The factor, its copy with zeros past the end, its mask, and the positions that that needs.
    assert masked.use.unified_buffer_bytes >= x * k * (2 + 2 + 1)
    assert masked.use.unified_buffer_bytes > (4 + 2) * x * r


def test_two_panels_of_each_factor_are_in_l1_unless_one_is_asked_for() -> None:
    kernel = linear(4096, 4096, 4096)
    assert [tiled(kernel, copies=n).tiling.load_buffers for n in (1, 2)] == [1, 2]
    # Whole sums of a program's only tile are one panel: there is nothing to fetch ahead.
    assert tiled(linear(64, 64, 64)).tiling.load_buffers == 1


def test_no_tiling_is_offered_if_nothing_fits() -> None:
    tiny = replace(CUBE, l1_bytes=512)
    assert cube_tiling(linear(64, 64, 64), replace(ASCEND, cube=tiny), 32) is None
    small = replace(CHIP, size_bytes=512)
    assert cube_tiling(linear(64, 64, 64), replace(ASCEND, local_buffer=small), 32) is None


def test_other_kernels_and_chips_without_cube_cores_have_none() -> None:
    assert cube_tiling(batch_norm_relu(), ASCEND, 32) is None
    assert cube_tiling(linear(64, 64, 64), replace(ASCEND, cube=None), 32) is None
    narrow = replace(CUBE, types=("f16",))
    assert cube_tiling(linear(64, 64, 64, "bf16"), replace(ASCEND, cube=narrow), 32) is None
