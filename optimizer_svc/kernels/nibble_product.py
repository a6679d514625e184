"""The template of products with few rows by weights of integers of four bits.

A word of the weight has eight neighbours of a row. `word >> 4 * j & 0x000f000f` are the neighbours
j and j + 4 of it, in the halves of 32 bits. With the bits of 128 (bf16) or 1,024 (f16) above them,
each half is a number of 16 bits, 128 + q, without a conversion (Kim et al. 2022, "Who says
elephants can't run"). So a word gives four pairs of factors for the tensor cores. What was added
is subtracted with the zero point, from sums of 128 terms and not from each term:

    sum((q - zero) * x) = sum((128 + q) * x) - (128 + zero) * sum(x)

A sum does not depend on the order of its terms. So terms are multiplied in the order in which a
thread loads words: each thread reads four neighbouring words of a row, which are its share of a
factor of matrix instructions, and no data moves between threads. The warps of a program divide a
row's terms, several groups of 128 at a time while each has so many, then one by one. Their sums are
added in the end. Bytes at an address that is no multiple of four are read one by one, which takes
many times as long.

Shapes:
    x: (m, k); words: (n, k / 8) of 32 bits, or their bytes; scale and zero: (n, k / 128)
    bias: (n); out: (m, n)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr, as_expr
from kernelfarm.ir.triton.user_kernel import (
    FixedParam,
    Pointer,
    Scalar,
    UserKernel,
    UserParam,
    Value,
)
from kernelfarm.targets import GpuFacts
from optimizer_svc.analysis.grouped_nibbles import GROUP_TERMS
from optimizer_svc.analysis.strided_views import StridedView

MAX_ROWS = 32
MAX_WEIGHT_SIZE = (1 << 31) - 1
"""Positions in a weight have 32 bits."""
TYPES = (DType.BF16, DType.F16)
_NARROW_REACH = 1 << 29
"""Three distances below it are a position of 32 bits; numbers of larger ones are of 64 bits."""
_ENTRY = "nibble_product"
_TILE_ROWS, _TILE_COLUMNS = 16, 8
_FILLING_ROWS = 4096
"""With so many results in a row, tiles of two blocks of columns have 32 rows of the weight.

With fewer they have 16, as with one block; with four blocks they have 32."""
_MAX_WASTE = 1.125
_USUAL_REGISTERS, _FEW_REGISTERS = 80, 64
"""Of a thread. If only the few let all programs run at a time, they gain more than spills cost. On
an H200, 4,096 results of 14,336 terms take 15 us instead of 18, 8,192 of 28,672 48 and not 65."""
_EXPONENTS = {DType.BF16: (0x43004300, 128.0), DType.F16: (0x64006400, 1024.0)}
"""Bits that make a number of each half that has an integer of four bits, and what they add."""
_SOURCE = """\
def picked(tile, number: tl.constexpr, GROUPS: tl.constexpr):
    at = tl.arange(0, GROUPS)[None, None, None, None, :]
    return tl.sum(tl.where(at == number, tile, 0.0), 4)


def spread(tile, TILES: tl.constexpr, WARPS: tl.constexpr, COLUMNS: tl.constexpr):
    tile = tl.reshape(tl.permute(tile, [1, 0, 2, 3]), [WARPS, 16 * TILES, 4])
    tile = tl.reshape(tl.join(tile, tile), [WARPS, 16 * TILES, 8])
    tile = tl.broadcast_to(tile[:, :, None, :], [WARPS, 16 * TILES, COLUMNS, 8])
    return tl.reshape(tile, [WARPS, 16 * TILES, 8 * COLUMNS])


def with_groups(
    found, x, words, scale, zero, exponents, row, first, x_at, x_step,
    K: tl.constexpr, TILES: tl.constexpr, WARPS: tl.constexpr, GROUPS: tl.constexpr,
    COLUMNS: tl.constexpr, ADDED: tl.constexpr, ZERO: tl.constexpr, HAS_ZERO: tl.constexpr,
    IS_WHOLE: tl.constexpr,
):
    ROWS: tl.constexpr = 16 * TILES
    ALL: tl.constexpr = K // 128
    quad = tl.arange(0, 4)
    ones = tl.full([WARPS, 16, 32], 1.0, x.dtype.element_ty)
    group = (first[None, :, None, None] + 0 * quad)[:, :, :, :, None] + tl.arange(0, GROUPS)
    group_at = (row * ALL)[:, :, :, :, None] + group
    if IS_WHOLE:
        scales = tl.load(scale + group_at).to(tl.float32)
    else:
        scales = tl.load(scale + group_at, mask=group < ALL, other=0.0).to(tl.float32)
    if not HAS_ZERO:
        zeros = tl.full([2 * TILES, WARPS, 8, 4, GROUPS], ZERO + ADDED, tl.float32)
    elif IS_WHOLE:
        zeros = tl.load(zero + group_at).to(tl.float32) + ADDED
    else:
        zeros = tl.load(zero + group_at, mask=group < ALL, other=0.0).to(tl.float32) + ADDED
    for number in tl.static_range(GROUPS):
        at = first + number
        if not IS_WHOLE:
            at = tl.minimum(at, ALL - 1)
        word_at = row * (K // 8) + (at * 16)[None, :, None, None]
        word_at += tl.arange(0, 16)
        word = tl.load(
            words.to(tl.pointer_type(tl.int32)) + word_at, eviction_policy="evict_first"
        )
        own = x + (x_at + (at * (128 * x_step))[None, :, None, None, None])
        low = tl.join(tl.load(own), tl.load(own + 8 * x_step))
        high = tl.join(tl.load(own + 16 * x_step), tl.load(own + 24 * x_step))
        terms = tl.reshape(tl.join(low, high), [COLUMNS, WARPS, 8, 4, 2, 2, 2, 2, 2])
        even, odd = tl.split(tl.permute(terms, [1, 8, 7, 3, 4, 0, 2, 5, 6]))
        x0, x2 = tl.split(even)
        x1, x3 = tl.split(odd)
        factors = (x0, x1, x2, x3)
        sums = tl.zeros([WARPS, ROWS, 8 * COLUMNS], tl.float32)
        total = tl.zeros([WARPS, 16, 8 * COLUMNS], tl.float32)
        for pair in tl.static_range(4):
            both = ((word >> (4 * pair)) & 0x000F000F) | exponents
            left = both.to(tl.int16).to(x.dtype.element_ty, bitcast=True)
            right = (both >> 16).to(tl.int16).to(x.dtype.element_ty, bitcast=True)
            weight = tl.reshape(tl.join(left, right), [2 * TILES, WARPS, 8, 4, 2, 2, 2])
            weight = tl.permute(weight, [1, 0, 2, 4, 5, 3, 6])
            weight = tl.reshape(weight, [WARPS, ROWS, 32])
            factor = tl.reshape(factors[pair], [WARPS, 32, 8 * COLUMNS])
            sums = tl.dot(weight, factor, sums)
            total = tl.dot(ones, factor, total)
        total = tl.reshape(total, [WARPS, 1, 16, 8 * COLUMNS])
        total = tl.broadcast_to(total, [WARPS, TILES, 16, 8 * COLUMNS])
        total = tl.reshape(total, [WARPS, ROWS, 8 * COLUMNS])
        centre = spread(picked(zeros, number, GROUPS), TILES, WARPS, COLUMNS)
        factor = spread(picked(scales, number, GROUPS), TILES, WARPS, COLUMNS)
        found += (sums - centre * total) * factor
    return found


def sums_by_words(
    x, words, scale, zero, exponents, first_row,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    x_first, x_stride, x_step,
    TILES: tl.constexpr, WARPS: tl.constexpr, GROUPS: tl.constexpr, COLUMNS: tl.constexpr,
    ADDED: tl.constexpr, ZERO: tl.constexpr, HAS_ZERO: tl.constexpr,
):
    ALL: tl.constexpr = K // 128
    WHOLE: tl.constexpr = ALL // (WARPS * GROUPS)
    half = tl.arange(0, 2 * TILES)[:, None, None, None]
    lane = tl.arange(0, 8)[None, None, :, None]
    row = tl.minimum(first_row + half * 8 + lane, N - 1)
    warp = tl.arange(0, WARPS)
    block = tl.arange(0, COLUMNS)[:, None, None, None, None]
    column = tl.arange(0, 8)[None, None, :, None, None]
    x_row = tl.minimum(block * 8 + column, M - 1) * x_stride
    x_word = tl.arange(0, 4)[None, None, None, :, None] * 32
    x_part = tl.arange(0, 8)[None, None, None, None, :]
    x_at = x_first + x_row + (x_word + x_part) * x_step
    found = tl.zeros([WARPS, 16 * TILES, 8 * COLUMNS], tl.float32)
    for step in range(WHOLE):
        found = with_groups(
            found, x, words, scale, zero, exponents, row, (step * WARPS + warp) * GROUPS, x_at,
            x_step, K, TILES, WARPS, GROUPS, COLUMNS, ADDED, ZERO, HAS_ZERO, True,
        )
    for first in range(WHOLE * WARPS * GROUPS, ALL, WARPS):
        found = with_groups(
            found, x, words, scale, zero, exponents, row, first + warp, x_at, x_step, K, TILES,
            WARPS, 1, COLUMNS, ADDED, ZERO, HAS_ZERO, ALL % WARPS == 0,
        )
    return tl.sum(found, 0)


def sums_by_bytes(
    x, words, scale, zero, first_row,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    x_first, x_stride, x_step,
    TILES: tl.constexpr, COLUMNS: tl.constexpr, ZERO: tl.constexpr, HAS_ZERO: tl.constexpr,
):
    row = tl.minimum(first_row + tl.arange(0, 16 * TILES), N - 1)
    column = tl.arange(0, 8 * COLUMNS)[None, :]
    byte = tl.arange(0, 64)
    found = tl.zeros([16 * TILES, 8 * COLUMNS], tl.float32)
    for group in range(K // 128):
        both = tl.load(words + row[:, None] * (K // 2) + group * 64 + byte[None, :]).to(tl.int32)
        factor = tl.load(scale + row * (K // 128) + group).to(tl.float32)
        centre = tl.full([16 * TILES], ZERO, tl.float32)
        if HAS_ZERO:
            centre = tl.load(zero + row * (K // 128) + group).to(tl.float32)
        even = (both & 15).to(tl.float32) - centre[:, None]
        odd = (both >> 4 & 15).to(tl.float32) - centre[:, None]
        for m in range(M):
            near = x + x_first + m * x_stride + (group * 128 + 2 * byte) * x_step
            terms = even * tl.load(near).to(tl.float32)[None, :]
            terms += odd * tl.load(near + x_step).to(tl.float32)[None, :]
            total = tl.sum(terms, 1) * factor
            found = tl.where(column == m, found + total[:, None], found)
    return found


def nibble_product(
    x, words, scale, zero, bias, out, exponents,
    x_first, x_stride, x_step, bias_first, bias_step,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    TILES: tl.constexpr, WARPS: tl.constexpr, GROUPS: tl.constexpr, COLUMNS: tl.constexpr,
    ADDED: tl.constexpr, ZERO: tl.constexpr, HAS_ZERO: tl.constexpr, HAS_BIAS: tl.constexpr,
    IS_BYTES: tl.constexpr,
):
    ROWS: tl.constexpr = 16 * TILES
    first_row = tl.program_id(0) * ROWS
    is_odd = 0
    if IS_BYTES:
        is_odd = words.to(tl.int64) % 4
    if is_odd != 0:
        result = sums_by_bytes(
            x, words, scale, zero, first_row, M, N, K, x_first, x_stride, x_step, TILES, COLUMNS,
            ZERO, HAS_ZERO,
        )
    else:
        result = sums_by_words(
            x, words, scale, zero, exponents, first_row, M, N, K, x_first, x_stride, x_step, TILES,
            WARPS, GROUPS, COLUMNS, ADDED, ZERO, HAS_ZERO,
        )
    m = tl.arange(0, 8 * COLUMNS)[None, :]
    n = first_row + tl.arange(0, ROWS)[:, None]
    if HAS_BIAS:
        result += tl.load(bias + bias_first + n * bias_step, mask=n < N, other=0.0).to(tl.float32)
    tl.store(out + m * N + n, result.to(out.dtype.element_ty), mask=(m < M) & (n < N))
"""


@dataclass(frozen=True, slots=True)
class NibbleProduct:
    """A launch of the template: its kernel, and the values of the numbers that it takes."""

    kernel: UserKernel
    sizes: tuple[Expr, ...]


def nibble_product(
    views: Mapping[str, StridedView],
    dtypes: Mapping[str, DType],
    columns: Expr,
    centre: float,
    gpu: GpuFacts,
) -> NibbleProduct:
    """The template for operands in memory, by name: x, words, scale, and perhaps zero and bias.

    `dtypes` has also that of `out`, which has `columns`. `centre` is the zero point of all if there
    is no tensor. Grids are the last three sizes.
    """
    x, bias = views["x"], views.get("bias")
    (m, k), n = (extent.as_int() for extent in x.shape), columns.as_int()
    exponents, added = _EXPONENTS[dtypes["x"]]
    division = _division(m, n, k // GROUP_TERMS)
    # Each number with the largest factor that it has in a position.
    numbers = {
        "x_first": (x.offset, 1),
        "x_stride": (x.strides[0], m),
        "x_step": (x.strides[1], k),
        "bias_first": (ZERO if bias is None else bias.offset, 1),
        "bias_step": (ZERO if bias is None else bias.strides[0], n),
    }
    constants: dict[str, Value] = {
        "M": m,
        "N": n,
        "K": k,
        "TILES": division.tiles,
        "WARPS": division.warps,
        "GROUPS": division.step_groups,
        "COLUMNS": division.blocks,
        "ADDED": added,
        "ZERO": centre,
        "HAS_ZERO": "zero" in views,
        "HAS_BIAS": bias is not None,
        "IS_BYTES": dtypes["words"].itemsize_bytes == 1,
    }
    params: list[UserParam] = [
        Pointer(name, dtypes[name]) if name in dtypes else FixedParam(name, None)
        for name in ("x", "words", "scale", "zero", "bias", "out")
    ]
    # A number of the launch stays in a register; a constant would take an instruction of its own.
    params.append(Scalar("exponents", DType.I32, 1))
    sizes = [as_expr(exponents)]
    for name, (number, most) in numbers.items():
        if number.is_constant and abs(number.constant) * most < _NARROW_REACH:
            params.append(FixedParam(name, number.constant))
        else:
            params.append(Scalar(name, DType.I64, 1))
            sizes.append(number)
    params += [FixedParam(name, value) for name, value in constants.items()]
    options = _options(division, gpu)
    kernel = UserKernel(_ENTRY, _SOURCE, _ENTRY, tuple(params), options)
    return NibbleProduct(kernel, (*sizes, as_expr(division.programs), ONE, ONE))


@dataclass(frozen=True, slots=True)
class _Division:
    """How a product is divided among programs, and a row's `groups` of terms among warps.

    A program has `tiles` of 16 results and `blocks` of 8 columns. A warp takes `step_groups` groups
    at a time.
    """

    groups: int
    blocks: int
    tiles: int
    programs: int
    warps: int
    step_groups: int


def _division(m: int, n: int, groups: int) -> _Division:
    blocks = max(1, 1 << (-(-m // _TILE_COLUMNS) - 1).bit_length())
    is_small = n < _FILLING_ROWS and blocks < 4
    tiles = 1 if is_small else min(2, blocks)
    programs = -(-n // (tiles * _TILE_ROWS))
    return _Division(groups, blocks, tiles, programs, *_warps(programs, groups, blocks))


def _options(division: _Division, gpu: GpuFacts) -> tuple[tuple[str, int], ...]:
    warps, step = division.warps, division.step_groups
    is_looped = division.groups > warps * step
    has_few = is_looped and step <= 2 and division.blocks == 1
    has_few = has_few and _fit_by_few_registers(division.programs, warps, gpu)
    limit = (("maxnreg", _FEW_REGISTERS),) if has_few else ()
    return ("num_stages", 1), ("num_warps", warps), *limit


def _warps(programs: int, groups: int, blocks: int) -> tuple[int, int]:
    """The warps of a program, and the neighbouring groups that each takes in a step.

    Compared on an H200 with 1 to 32 rows and weights of 1,024 x 1,024 to 28,672 x 8,192: programs
    of many warps if the chip runs all of them at a time, and else so few warps that enough programs
    are on it. More blocks of columns take more registers.
    """
    if programs * blocks <= 256 and (groups <= 32 or blocks == 1):
        warps = 16
    elif blocks == 1:
        least = min(8, max(4, _power_below(groups // 8)))
        warps = min(8, max(least, _power_below(4096 // programs)))
    else:
        warps = min(8, max(2, _power_below(1024 // programs)))
    warps = min(warps, _power_below(groups))
    for count in (4, 2):
        is_long = count == 2 or warps <= 4 // blocks
        whole, rest = divmod(groups, warps * count)
        taken = (whole * count + -(-rest // warps)) * warps
        if whole and is_long and taken <= groups * _MAX_WASTE:
            return warps, count
    return warps, 1


def _fit_by_few_registers(programs: int, warps: int, gpu: GpuFacts) -> bool:
    """True if the chip runs all programs at a time with few registers, but not with as many."""
    registers = gpu.registers_per_multiprocessor or 0
    usual, most = (
        gpu.multiprocessors * (registers // (warps * gpu.warp_size * count))
        for count in (_USUAL_REGISTERS, _FEW_REGISTERS)
    )
    return usual < programs <= most


def _power_below(number: int) -> int:
    return 1 << (max(1, number).bit_length() - 1)
