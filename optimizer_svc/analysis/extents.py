"""Small questions about extents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr, product_of
from kernelfarm.ir.graph_ir import SizeSymbol

UNKNOWN_SIZE = 4096
"""Elements assumed for a size whose range allows it: large enough that traffic matters."""


def is_empty(shape: Iterable[Expr]) -> bool:
    """True if an extent is statically zero."""
    return any(extent is ZERO for extent in shape)


def is_single(shape: Iterable[Expr]) -> bool:
    """True if every extent is statically one."""
    return all(extent is ONE for extent in shape)


def likely_sizes(symbols: Iterable[SizeSymbol]) -> dict[str, int]:
    """What each size is assumed to be: a choice between programs needs a number.

    Ranges alone decide. The sizes that were seen at capture are in no key, so that they may not
    select what the key stands for.
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
    return size.evaluate({name: sizes.get(name, UNKNOWN_SIZE) for name in size.symbols})
