"""Where the lanes of loads are in memory, if lanes are successive points of an axis.

Bytes of words: if successive lanes are four bytes apart, and other loads give the bytes between
them, each of the loads takes a byte of the words that one load of a vector gives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from codegen_svc.emitters.llvm.index import bounds_of
from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import ZERO, Expr, as_expr, symbol
from kernelfarm.ir.algebra.simplify import Bounds, Range, simplify
from kernelfarm.ir.loop_ir import Axis, Kernel, Load

STEP, LANE = "vector.now", "vector.lane"
"""A vector of points, and a lane of it. No axis of a kernel has these names."""
WORD_BYTES = 4
BYTES = (DType.I8, DType.U8)


@dataclass(frozen=True, slots=True)
class VectorLoad:
    """The lanes of a load: elements from `base` on, `stride` apart. With 0, all are one element.

    A byte of a word is `offset` bytes behind the word's first one, which `base` is then.
    """

    base: Expr
    stride: int
    offset: int = 0


def vector_loads(
    kernel: Kernel, numbers: Iterable[int], axis: Axis, lanes: int
) -> dict[int, VectorLoad] | None:
    """The lanes of those of some statements that load; the extent is a multiple of `lanes`.

    None if the lanes of a load are neither one element, nor neighbours, nor bytes of words.
    """
    ranges = {STEP: Range(ZERO, axis.extent // lanes - 1), LANE: Range(ZERO, as_expr(lanes - 1))}
    bounds = bounds_of(kernel).merged(Bounds(ranges))
    point = {axis.name: symbol(STEP) * lanes + symbol(LANE)}
    loads = {n: s for n in numbers if isinstance(s := kernel.body[n], Load)}
    found: dict[int, VectorLoad] = {}
    for number, load in loads.items():
        index = simplify(load.index.substitute(point), bounds)
        step = index.linear_in(LANE)
        if load.mask is not None or step is None or not step[0].is_constant:
            return None
        found[number] = VectorLoad(step[1], step[0].constant)
    ends = {(load.param, found[number].base) for number, load in loads.items()}
    for number, at in found.items():
        if at.stride not in (0, 1):
            word = _byte_of_word(kernel, loads[number], at, ends)
            if word is None:
                return None
            found[number] = word
    return found


def _byte_of_word(
    kernel: Kernel, load: Load, at: VectorLoad, read: Iterable[tuple[str, Expr]]
) -> VectorLoad | None:
    """The load as a byte of words; None if the last bytes of these words are not among those read.

    Behind them, memory may end.
    """
    if kernel.param(load.param).dtype not in BYTES or at.stride != WORD_BYTES:
        return None
    offset = at.base.constant % WORD_BYTES
    words = at.base - offset
    if (load.param, words + (WORD_BYTES - 1)) not in read:
        return None
    return VectorLoad(words, WORD_BYTES, offset)


def varying_between_lanes(loads: Mapping[int, VectorLoad]) -> frozenset[int]:
    """The loads whose lanes are different elements."""
    return frozenset(number for number, at in loads.items() if at.stride)
