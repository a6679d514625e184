"""Small questions about extents."""

from __future__ import annotations

from collections.abc import Iterable

from kernelfarm.ir.symbolic import ONE, ZERO, Expr, product_of

UNKNOWN_SIZE = 4096
"""Elements assumed where a size has no hint: large enough that traffic matters."""


def is_empty(shape: Iterable[Expr]) -> bool:
    """True if an extent is statically zero."""
    return any(extent is ZERO for extent in shape)


def is_single(shape: Iterable[Expr]) -> bool:
    """True if every extent is statically one."""
    return all(extent is ONE for extent in shape)


def likely_elems(shape: Iterable[Expr], hints: dict[str, int]) -> int:
    """The number of elements under the sizes' hints."""
    size = product_of(list(shape))
    if size.is_constant:
        return size.constant
    return size.evaluate({name: hints.get(name, UNKNOWN_SIZE) for name in size.symbols})
