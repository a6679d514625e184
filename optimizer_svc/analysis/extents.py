"""Predicates and estimates of extents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr, product_of
from kernelfarm.ir.graph_ir import SizeSymbol

UNKNOWN_SIZE = 4096
"""The assumed value of a size, if its range allows it: large enough that memory traffic matters."""


def is_empty(shape: Iterable[Expr]) -> bool:
    """True if an extent is statically zero."""
    return any(extent is ZERO for extent in shape)


def is_single(shape: Iterable[Expr]) -> bool:
    """True if every extent is statically one."""
    return all(extent is ONE for extent in shape)


def likely_sizes(symbols: Iterable[SizeSymbol]) -> dict[str, int]:
    """The assumed value of each size, because choosing between programs needs numbers.

    Only ranges decide. The sizes seen at capture are not part of any key, so they must not
    influence the program of a key.
    """
    return {
        size.name: max(size.lower, min(UNKNOWN_SIZE, size.upper or UNKNOWN_SIZE))
        for size in symbols
    }


def likely_elems(shape: Iterable[Expr], sizes: Mapping[str, int]) -> int:
    """The number of elements under assumed sizes; see `likely_sizes`."""
    size = product_of(list(shape))
    if size.is_constant:
        return size.constant
    return size.estimate({name: sizes.get(name, UNKNOWN_SIZE) for name in size.symbols})
