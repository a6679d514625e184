"""How sums in vectors (`vector_sums.py`) are divided, so that registers and caches suffice.

    for each block of terms:
        for each group of results:
            for each step of a few vectors of terms:
                for each result of the group:
                    sums += products

The sums of a group are in registers. If a unit has several groups, its blocks of terms are short,
so that their rows stay in the first-level cache for all groups.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from codegen_svc.emitters.llvm.schedule import SUM_BLOCK
from codegen_svc.emitters.llvm.vector_loads import WORD_BYTES
from kernelfarm.ir.algebra.expr import Expr

_WIDE_LANES = 16
"""The lanes of vectors of f32 with AVX-512, which has 32 registers. Others have 16 or more."""
_MOST_SUMS, _FEW_SUMS = 24, 8
"""Vectors of running sums in registers."""
_MOST_INTEGER_SUMS = 16
"""The same with AVX-512, if weights are computed from integers."""
_BUSY_SUMS, _MOST_VECTORS = 16, 4
"""If a group has few sums, each vector of a step is added to sums of its own, because a sum waits
for the one before."""
_MOST_TOGETHER = 4
"""Results of a group. In a loop, 8 take 1.4 to 1.5 times as long: the rows of their weights are as
far from each other as lines of one set of a cache."""
_CACHED_BYTES, _CACHED_INTEGER_BYTES = 24576, 32768
"""More bytes of rows do not stay in a first-level cache beside weights."""
_BLOCK_BYTES, _UNIT_SUM_BYTES = 16384, 32768
"""The bytes of rows of a block, and of the sums of a unit with several groups."""
_LONG_ROW_BYTES = 4096
_LEAST_UNITS = 16
"""Units of a kernel, which threads share: more groups than that leaves have no unit in common. With
32, rows are copied for fewer results: 8 rows of bf16 by 768 x 3072 and 1024 x 2816 take 1.06 times
as long (one thread, AMD EPYC, Zen 5)."""
RESULTS_APART = 64
"""Results of a unit that may need no sums: with one, 49,152 scores of which a quarter is needed
take 1.25 times as long, 65,536 ones 1.6 times (AMD EPYC, Zen 5)."""
_AHEAD_BYTES, _AHEAD_INTEGER_BYTES = 16384, 8192
"""How far ahead weights are fetched: 4,096 x 4,096 of a byte take 0.75 of the time without it, at
2,048 bytes 0.93; 8 rows by 4,096 x 1,024 of bf16 take 0.4 of it (AMD EPYC, Zen 5). With AVX2, 8
rows of f32 take 0.6 to 0.8 of it, and one row of bf16 0.75 to 0.9 (Zen 3)."""


@dataclass(frozen=True, slots=True)
class Extents:
    """A kernel's results and terms, the terms of a vector, and the sums of a result."""

    results: Expr
    terms: int
    vector_terms: int
    sums: int


@dataclass(frozen=True, slots=True)
class Division:
    """A unit has `groups` of results, and a group has `together`, in a loop if it `has_loop`. Or it
    has `apart` results, each of which may need no sums, one after the other.

    A step has so many `vectors` of terms, and a block `block_steps`. Memory is asked for the
    weights that the group `ahead_groups` later reads or, if that is 0, for what lies `ahead_bytes`
    further; if both are 0, for nothing.
    """

    together: int
    vectors: int
    block_steps: int
    groups: int = 1
    has_loop: bool = False
    ahead_bytes: int = _AHEAD_BYTES
    ahead_groups: int = 0
    apart: int = 1

    @property
    def unit_results(self) -> int:
        """The results of a unit. The last unit may have fewer, which are computed one by one."""
        return self.groups * self.together * self.apart

    @property
    def one_by_one(self) -> Division:
        """The division into units of one result, whose terms are added in the same order."""
        return replace(self, together=1, groups=1, has_loop=False, ahead_groups=0, apart=1)


def divided_products(each: Extents, row_bytes: int, lanes: int) -> Division:
    """The division of products by stored weights, with so many bytes of rows."""
    if lanes != _WIDE_LANES and each.sums == 1 and row_bytes == WORD_BYTES * each.terms:
        return _one_row(each, row_bytes)
    most = _MOST_SUMS if lanes == _WIDE_LANES else _FEW_SUMS
    together = 1
    if each.sums > 1:
        together = _share(each.results, min(_MOST_TOGETHER, max(1, most // each.sums)))
    vectors = min(_MOST_VECTORS, max(1, _BUSY_SUMS // (together * each.sums)))
    vectors = _divisor_of(each.terms // each.vector_terms, vectors)
    step_terms = vectors * each.vector_terms
    if row_bytes <= _CACHED_BYTES:
        return Division(together, vectors, SUM_BLOCK // step_terms)
    step_bytes = row_bytes * step_terms // each.terms
    block_steps = max(1, min(_BLOCK_BYTES // step_bytes, SUM_BLOCK // step_terms))
    group_bytes = together * each.sums * vectors * lanes * WORD_BYTES
    most_groups = _UNIT_SUM_BYTES // group_bytes
    if each.results.is_constant:
        most_groups = min(most_groups, each.results.constant // (together * _LEAST_UNITS))
    groups = _share(each.results // together, max(1, most_groups))
    weight_bytes = together * block_steps * step_bytes // each.sums
    ahead_groups = min(groups, max(1, _AHEAD_BYTES // weight_bytes))
    return Division(together, vectors, block_steps, groups, ahead_groups=ahead_groups)


def _one_row(each: Extents, row_bytes: int) -> Division:
    """The division of the product of one row of f32 with AVX2, which is as fast as a plain read.

    The processor fetches by itself: without requests it takes 0.75 to 0.8 of the time. It follows
    several rows of a weight at a time, if they are long: with four, 1,024 terms and more take 0.75
    to 0.95 of the time with one, 768 terms 1.05 (Zen 3, weights from memory). No block is needed,
    as a row that the second-level cache holds is read as fast.
    """
    is_long = row_bytes >= _LONG_ROW_BYTES
    together = _share(each.results, _MOST_TOGETHER) if is_long else 1
    vectors = _divisor_of(each.terms // each.vector_terms, _MOST_VECTORS // (2 if is_long else 1))
    block_steps = SUM_BLOCK // (vectors * each.vector_terms)
    return Division(together, vectors, block_steps, ahead_bytes=0)


def divided_integers(each: Extents, row_bytes: int, lanes: int, *, has_parts: bool) -> Division:
    """The division of products by weights of integers, which may have several parts."""
    most = _MOST_INTEGER_SUMS if lanes == _WIDE_LANES else _FEW_SUMS
    together = 1 if row_bytes <= _CACHED_INTEGER_BYTES else _divisor(each.results, _MOST_TOGETHER)
    if not has_parts:
        together = min(together, _divisor(each.results, max(1, most // each.sums)))
    vectors = min(_MOST_VECTORS, max(1, most // (together * each.sums)))
    vectors = 1 if has_parts else _divisor_of(each.terms // each.vector_terms, vectors)
    block_steps = SUM_BLOCK // (vectors * each.vector_terms)
    return Division(
        together,
        vectors,
        block_steps,
        has_loop=has_parts and together > 1,
        ahead_bytes=_AHEAD_INTEGER_BYTES,
    )


def _share(extent: Expr, most: int) -> int:
    """A number up to `most` that divides an extent, or that leaves a rest of it."""
    if not extent.is_constant:
        return 1
    found = _divisor(extent, most)
    return found if 2 * found > most else min(most, max(1, extent.constant))


def _divisor(extent: Expr, most: int) -> int:
    """The largest number up to `most` that divides an extent."""
    return _divisor_of(extent.constant, most) if extent.is_constant else 1


def _divisor_of(count: int, most: int) -> int:
    return next(number for number in range(most, 0, -1) if count % number == 0)
