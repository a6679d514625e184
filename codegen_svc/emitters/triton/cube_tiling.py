"""Tiles of products of matrices for chips with cube cores, which have buffers of their own.

Nothing is tried: the sizes are computed from the chip's facts, so that every block fits.

- The sums of a tile, XBLOCK x RBLOCK in f32, fit L0C.
- The panels of all factors, XBLOCK x KBLOCK and KBLOCK x RBLOCK, fit L1, once more for each copy
  that is fetched ahead.
- A core multiplies a panel in steps of `l0_points` along the sums. Two blocks of a left factor fit
  L0A and two of a right one L0B, so that one is moved while the other is multiplied.
- What is computed after the sums, and from factors before them, fits the unified buffer of one
  vector core. CANN's compiler may divide a tile between the vector cores of a cube core.
- Each core computes every n-th tile; n is the number of cores at work.

Of the tiles that fit, those are taken whose busiest core moves the fewest bytes; among equals, the
fewest results with padding, then the fewest panels. Sums pass through memory to the vector cores.
No choice was compared with a chip.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product

from codegen_svc.emitters.triton.block_sizes import next_power_of_2
from codegen_svc.emitters.triton.cube_epilogue import (
    VectorValue,
    itemsize_bytes,
    vector_bytes,
    vector_values,
)
from codegen_svc.emitters.triton.tiling import Tiling, static_numel
from kernelfarm.dtypes import DType
from kernelfarm.ir.contractions import Contraction, find_contraction
from kernelfarm.ir.loop_ir import Kernel, Load, Store
from kernelfarm.targets import CubeFacts, LocalBufferFacts, TargetFacts

_L0_BUFFERS = 2
_SUM_BYTES = 4
_MIN_POINTS = 16
"""The fewest points along the sums that Triton multiplies."""
# Judgement: a deeper panel delays the first product, and its rows are long enough.
_MAX_POINTS = 512
# Judgement: memory moves a shorter piece of a row as slowly as one of this size.
_RUN_BYTES = 128
_USUAL_EXTENT = 4096
"""The assumed extent of an axis whose extent varies."""


@dataclass(frozen=True, slots=True)
class CubeUse:
    """What a product takes of a chip: cores at work, and bytes of the buffers of one core.

    A core multiplies `l0_points` points of the sums at a time. `tiles` are all tiles, `core_tiles`
    those of the busiest cube core; None: the number varies. `moved_bytes` are what that core moves
    from and to memory, for usual extents where one varies.
    """

    cube_cores: int
    vector_cores: int
    l0_points: int
    l0a_bytes: int
    l0b_bytes: int
    l0c_bytes: int
    l1_bytes: int
    unified_buffer_bytes: int
    moved_bytes: int
    tiles: int | None
    core_tiles: int | None

    def facts(self) -> dict[str, int | None]:
        """The use by name."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class CubeTiling:
    """The tiling of a product with what it takes of the chip."""

    tiling: Tiling
    use: CubeUse


@dataclass(frozen=True, slots=True)
class _Problem:
    """The extents of a product, and how often the kernel has factors of each side and sums.

    `passed_bytes` are those that a result takes beside its factors.
    """

    rows: int
    columns: int
    summed: int
    batches: int
    varies: bool
    lefts: int
    rights: int
    sums: int
    has_rows: bool
    has_columns: bool
    itemsize_bytes: int
    passed_bytes: int


def cube_contraction(kernel: Kernel, target: TargetFacts) -> Contraction | None:
    """The product that the chip's cube cores compute; None if the kernel is none for them."""
    if target.cube is None:
        return None
    return find_contraction(kernel, tuple(DType(name) for name in target.cube.types))


def cube_tiling(
    kernel: Kernel, target: TargetFacts, index_bits: int, copies: int = 2
) -> CubeTiling | None:
    """The tiling of a product whose blocks fit the buffers; None for no product, or if none fits.

    `copies`: how many panels of each factor L1 holds.
    """
    found = cube_contraction(kernel, target)
    if found is None:
        return None
    problem = _problem(kernel, found)
    values = vector_values(kernel, found)
    candidates = _candidates(problem, target, index_bits, copies)
    for tiling in sorted(candidates, key=lambda t: _cost(problem, t, target)):
        use = _use(problem, values, tiling, target)
        if fits_cores(use, target):
            return CubeTiling(tiling, use)
    return None


def fits_cores(use: CubeUse, target: TargetFacts) -> bool:
    """True if no buffer and no kind of cores is used beyond what the chip has."""
    cube, chip = target.section(CubeFacts), target.section(LocalBufferFacts)
    return (
        use.l0a_bytes <= cube.l0a_bytes
        and use.l0b_bytes <= cube.l0b_bytes
        and use.l0c_bytes <= cube.l0c_bytes
        and use.l1_bytes <= cube.l1_bytes
        and use.unified_buffer_bytes <= chip.size_bytes
        and use.cube_cores <= cube.cores
        and use.vector_cores <= chip.vector_cores
    )


def _problem(kernel: Kernel, found: Contraction) -> _Problem:
    outer = [static_numel(axes) for axes in (found.rows, found.columns, found.batches)]
    rows, columns, batches, summed = (
        _USUAL_EXTENT if extent is None else extent
        for extent in (*outer, static_numel(kernel.reduction))
    )
    # All factors of a sum have one type.
    factors = (itemsize_bytes(kernel, n) for s in found.sums for n in (s.left, s.right))
    return _Problem(
        rows=rows,
        columns=columns,
        summed=summed,
        batches=batches,
        varies=None in outer,
        lefts=len({s.left for s in found.sums}),
        rights=len({s.right for s in found.sums}),
        sums=len(found.sums),
        has_rows=found.has_rows,
        has_columns=found.has_columns,
        itemsize_bytes=max(factors),
        passed_bytes=_passed_bytes(kernel, found),
    )


def _passed_bytes(kernel: Kernel, found: Contraction) -> int:
    """Bytes for each result: sums to memory and back, loads and stores of whole tiles."""
    both = {axis.name for axis in (*found.rows, *found.columns)}
    moved = (
        itemsize_bytes(kernel, number)
        for number, statement in enumerate(kernel.body)
        if isinstance(statement, Load | Store) and both <= found.axes_of[number]
    )
    return 2 * _SUM_BYTES * len(found.sums) + sum(moved)


def _candidates(
    problem: _Problem, target: TargetFacts, index_bits: int, copies: int
) -> Iterator[Tiling]:
    """The tiles of whole fractals whose sums fit L0C and whose panels fit L1."""
    cube = target.section(CubeFacts)
    side = cube.fractal_side
    most = cube.l0c_bytes // (_SUM_BYTES * problem.sums)
    rows, columns = (
        _powers(side, min(most // side, next_power_of_2(extent)))
        for extent in (problem.rows, problem.columns)
    )
    least = max(_MIN_POINTS, cube.fractal_bytes // problem.itemsize_bytes)
    points = _powers(least, min(_MAX_POINTS, next_power_of_2(problem.summed)))
    for x, r, k in product(rows, columns, points):
        stated = Tiling(x, x, r, False, index_bits, load_buffers=copies, kblock=k)
        tiling = _on_cores(problem, stated, cube)
        if x * r <= most and _panel_bytes(problem, tiling) <= cube.l1_bytes:
            yield tiling


def _powers(first: int, last: int) -> list[int]:
    """`first` and the powers of two times it, up to `last`."""
    return [first << bits for bits in range(max(1, (last // first).bit_length()))]


def _on_cores(problem: _Problem, tiling: Tiling, cube: CubeFacts) -> Tiling:
    """The tiling with a program for each core, if tiles are more than cores or vary.

    A program with one tile of one panel has no next panel.
    """
    if problem.varies or _tiles(problem, tiling) > cube.cores:
        return replace(tiling, programs=cube.cores)
    return replace(tiling, load_buffers=1) if tiling.kblock >= problem.summed else tiling


def _panel_bytes(problem: _Problem, tiling: Tiling) -> int:
    points = problem.lefts * tiling.xblock + problem.rights * tiling.rblock
    return tiling.load_buffers * points * tiling.kblock * problem.itemsize_bytes


def _l0_points(problem: _Problem, tiling: Tiling, cube: CubeFacts) -> int:
    """The most points of a panel of which two blocks fit L0A and L0B; at least a fractal."""
    block_bytes = _L0_BUFFERS * problem.itemsize_bytes
    fitting = min(
        cube.l0a_bytes // (block_bytes * tiling.xblock),
        cube.l0b_bytes // (block_bytes * tiling.rblock),
    )
    least = cube.fractal_bytes // problem.itemsize_bytes
    return max(least, min(tiling.kblock, 1 << max(0, fitting.bit_length() - 1)))


def _use(
    problem: _Problem, values: Sequence[VectorValue], tiling: Tiling, target: TargetFacts
) -> CubeUse:
    """What a tiling of a product takes of the chip."""
    cube, chip = target.section(CubeFacts), target.section(LocalBufferFacts)
    x, r = tiling.xblock, tiling.rblock
    tiles = _tiles(problem, tiling)
    programs = tiling.programs or tiles
    points = _l0_points(problem, tiling, cube)
    block_bytes = _L0_BUFFERS * points * problem.itemsize_bytes
    return CubeUse(
        cube_cores=programs,
        vector_cores=programs * chip.vector_cores // cube.cores,
        l0_points=points,
        l0a_bytes=x * block_bytes,
        l0b_bytes=r * block_bytes,
        l0c_bytes=problem.sums * x * r * _SUM_BYTES,
        l1_bytes=_panel_bytes(problem, tiling),
        unified_buffer_bytes=vector_bytes(values, tiling, chip),
        moved_bytes=_moved_bytes(problem, tiling, target),
        tiles=None if problem.varies else tiles,
        core_tiles=None if problem.varies else -(-tiles // programs),
    )


def _tiles(problem: _Problem, tiling: Tiling) -> int:
    columns = -(-problem.columns // tiling.rblock)
    return -(-problem.rows // tiling.xblock) * columns * problem.batches


def _cost(problem: _Problem, tiling: Tiling, target: TargetFacts) -> tuple[int, int, int, int]:
    """What the busiest core moves, computes and repeats: the smaller, the better."""
    results = _core_tiles(problem, tiling, target) * tiling.xblock * tiling.rblock
    panels = -(-problem.summed // tiling.kblock)
    return _moved_bytes(problem, tiling, target), results, panels, tiling.kblock


def _core_tiles(problem: _Problem, tiling: Tiling, target: TargetFacts) -> int:
    return -(-_tiles(problem, tiling) // target.section(CubeFacts).cores)


def _moved_bytes(problem: _Problem, tiling: Tiling, target: TargetFacts) -> int:
    """The bytes of the busiest core: factors, sums and results of its tiles."""
    x, r = min(tiling.xblock, problem.rows), min(tiling.rblock, problem.columns)
    left = _factor_bytes(problem, tiling, x, is_adjacent=problem.has_rows)
    right = _factor_bytes(problem, tiling, r, is_adjacent=problem.has_columns)
    tile = problem.lefts * left + problem.rights * right + x * r * problem.passed_bytes
    return _core_tiles(problem, tiling, target) * tile


def _factor_bytes(problem: _Problem, tiling: Tiling, side: int, *, is_adjacent: bool) -> int:
    """The bytes of a factor for one tile; `is_adjacent`: its elements are so along the side."""
    if is_adjacent:
        return problem.summed * max(_RUN_BYTES, side * problem.itemsize_bytes)
    whole, rest = divmod(problem.summed, tiling.kblock)
    run_bytes = max(_RUN_BYTES, tiling.kblock * problem.itemsize_bytes)
    last_bytes = max(_RUN_BYTES, rest * problem.itemsize_bytes) if rest else 0
    return side * (whole * run_bytes + last_bytes)
