"""Shape algebra of operators: equality, broadcasting and ranges of symbolic extents."""

from __future__ import annotations

from collections.abc import Sequence

from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ONE, Expr, IntLike, as_expr, maximum, minimum, product_of
from kernelfarm.ir.algebra.simplify import Bounds, simplify
from kernelfarm.ir.graph_ir import SizeSymbol

Shape = tuple[Expr, ...]


class Extents:
    """The known ranges of a graph's sizes.

    The sizes that capture saw (hints) are not used, for they are in no key. Sizes 0 and 1 are never
    symbolic, because capture specializes them; so an axis of symbolic extent is never broadcast.
    """

    def __init__(self, symbols: Sequence[SizeSymbol]) -> None:
        bounds = Bounds()
        for symbol in symbols:
            bounds = bounds.with_size(symbol.name, symbol.lower, symbol.upper)
        self.bounds = bounds

    def is_same(self, left: Expr, right: Expr) -> bool:
        """True unless two extents are proven different.

        The framework may know equalities from guards that are not in the graph (for example that a
        size is even), so extents that are not proven different count as equal.
        """
        if left is right:
            return True
        if left.is_constant and right.is_constant:
            return False
        difference = simplify(left - right, self.bounds)
        if difference.is_constant:
            return difference.constant == 0
        low, high = self.bounds.interval(difference)
        return not ((low is not None and low > 0) or (high is not None and high < 0))

    def is_proven_same(self, left: Expr, right: Expr) -> bool:
        """True if two extents are equal for all sizes."""
        return left is right or simplify(left - right, self.bounds) == 0

    def is_same_shape(self, left: Shape, right: Shape) -> bool:
        """True if the ranks are equal and no two extents are proven different."""
        if left == right:
            return True
        return len(left) == len(right) and all(map(self.is_same, left, right))

    def is_at_most(self, left: IntLike, right: IntLike) -> bool:
        """True if `left <= right` is proven."""
        return self.bounds.is_nonnegative(as_expr(right) - as_expr(left))

    def is_negative(self, value: Expr) -> bool:
        """True if `value < 0` is proven."""
        return self.bounds.is_nonnegative(-value - 1)

    def smaller(self, left: Expr, right: Expr) -> Expr:
        """The smaller of two sizes."""
        if self.is_at_most(left, right):
            return left
        return right if self.is_at_most(right, left) else minimum(left, right)

    def larger(self, left: Expr, right: Expr) -> Expr:
        """The larger of two sizes."""
        if self.is_at_most(left, right):
            return right
        return left if self.is_at_most(right, left) else maximum(left, right)

    def simplified(self, value: Expr) -> Expr:
        """The same size, without divisions and remainders where the ranges allow that."""
        return simplify(value, self.bounds)

    def broadcast(self, shapes: Sequence[Shape]) -> Shape:
        """The shape that all shapes broadcast to.

        Raises:
            InvalidGraphError: two extents differ and neither is 1.
        """
        first = shapes[0]
        if all(shape == first for shape in shapes):
            return first
        rank = max(len(shape) for shape in shapes)
        result = [ONE] * rank
        for shape in shapes:
            offset = rank - len(shape)
            for axis, extent in enumerate(shape):
                result[offset + axis] = self._joined(result[offset + axis], extent, shapes)
        return tuple(result)

    def resolved(self, sizes: Shape, numel: Expr) -> Shape:
        """Sizes with one -1 replaced so that the shape has `numel` elements.

        Raises:
            InvalidGraphError: two sizes are -1, one is below -1, or the numbers of elements differ.
        """
        unknown = [axis for axis, size in enumerate(sizes) if size == -1]
        if len(unknown) > 1 or any(s.is_constant and s.constant < -1 for s in sizes):
            raise InvalidGraphError(
                f"sizes {text_of(sizes)}; expected at most one -1, else sizes >= 0"
            )
        known = product_of([size for size in sizes if size != -1])
        result = list(sizes)
        if unknown:
            if known == 0:
                raise InvalidGraphError(f"sizes {text_of(sizes)}; -1 is ambiguous beside a 0")
            result[unknown[0]] = self.simplified(numel // known)
        if not self.is_same(product_of(result), numel):
            raise InvalidGraphError(f"sizes {text_of(sizes)} for {numel} elements")
        return tuple(result)

    def _joined(self, left: Expr, right: Expr, shapes: Sequence[Shape]) -> Expr:
        if left is right or right is ONE:
            return left
        if left is ONE:
            return right
        if not self.is_same(left, right):
            seen = " and ".join(text_of(shape) for shape in shapes)
            raise InvalidGraphError(f"shapes {seen} do not broadcast: {left} against {right}")
        return right if right.is_constant else left


def text_of(shape: Shape) -> str:
    """A shape for a message."""
    return f"({', '.join(map(str, shape))})"


def numel_of(shape: Shape) -> Expr:
    """Number of elements."""
    return product_of(shape)


def axis_of(dim: int, rank: int) -> int:
    """The axis of a dim, which may be negative; a tensor without axes has the dims 0 and -1.

    Raises:
        InvalidGraphError: the dim is out of range.
    """
    span = max(rank, 1)
    if not -span <= dim < span:
        raise InvalidGraphError(
            f"dim {dim} of a tensor with {rank} axes; expected {-span}..{span - 1}"
        )
    return dim % span


def axes_of(dims: Sequence[int], rank: int) -> tuple[int, ...]:
    """The axes of distinct dims, in the same order.

    Raises:
        InvalidGraphError: a dim is out of range, or two dims name one axis.
    """
    axes = tuple(axis_of(dim, rank) for dim in dims)
    if len(set(axes)) != len(axes):
        raise InvalidGraphError(f"dims {tuple(dims)} name an axis twice")
    return axes
