"""Joins sizes of which a kernel uses only the sum: `s0 + s1 + s2` becomes one size of the kernel.

In a cat of dynamic sizes, the start of a piece is the sum of the sizes before it. If these are
joined, one kernel, compiled once, stores most of the pieces.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kernelfarm.ir.algebra.expr import Expr, Symbol, sum_of, symbol
from kernelfarm.ir.graph_ir import SizeSymbol
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.work_budget import spend
from optimizer_svc.kernels.rewrite_indices import all_exprs, rewrite_indices

MAX_SIZES = 8
"""A kernel with at most so many sizes keeps them all; a reader selects from as many pieces."""

_Factor = frozenset[tuple[tuple[object, ...], int]]
_Uses = tuple[tuple[int, _Factor], ...]
"""The expressions of a kernel in which a size occurs, with its factors there."""


def with_joined_sizes(
    kernel: Kernel, symbols: Mapping[str, SizeSymbol]
) -> tuple[Kernel, tuple[Expr, ...]] | None:
    """The kernel over fewer sizes of its own, and these as expressions of the program's sizes.

    None if it has few sizes, or if none can be joined.
    """
    exprs = tuple(dict.fromkeys(all_exprs(kernel)))
    names = {name for expr in exprs for name in expr.symbols if name in symbols}
    if len(names) <= MAX_SIZES:
        return None
    classes = _classes(exprs, names, symbols)
    if len(classes) == len(names):
        return None
    values: dict[str, Expr | int] = dict.fromkeys(names, 0)
    values.update({members[0]: symbol(f"s{n}") for n, members in enumerate(classes)})
    joined = rewrite_indices(kernel, lambda expr: expr.substitute(values))
    launched = tuple(sum_of(map(symbol, members)) for members in classes)
    return _with_sizes(joined, classes, symbols), launched


def _classes(
    exprs: tuple[Expr, ...], names: set[str], symbols: Mapping[str, SizeSymbol]
) -> list[list[str]]:
    """Classes of sizes with equal uses, in an order that does not depend on their names."""
    found: dict[object, list[str]] = {}
    for name, uses in _uses(exprs, names).items():
        is_joined = uses is not None and symbols[name].upper is None and symbols[name].lower >= 0
        found.setdefault(uses if is_joined else name, []).append(name)
    where = _occurrences(exprs, names)
    ordered = sorted(found.values(), key=lambda members: (where[members[0]], min(members)))
    return [sorted(members) for members in ordered]


def _occurrences(exprs: tuple[Expr, ...], names: set[str]) -> dict[str, tuple[int, ...]]:
    """The numbers of the expressions in which each size occurs."""
    found: dict[str, list[int]] = {}
    for number, expr in enumerate(exprs):
        for name in expr.symbols & names:
            found.setdefault(name, []).append(number)
    return {name: tuple(numbers) for name, numbers in found.items()}


def _uses(exprs: tuple[Expr, ...], names: set[str]) -> dict[str, _Uses | None]:
    """The uses of each size; None if an expression is not linear in it."""
    found: dict[str, list[tuple[int, _Factor]]] = {name: [] for name in names}
    nonlinear: set[str] = set()
    for number, expr in enumerate(exprs):
        factors: dict[str, list[tuple[tuple[object, ...], int]]] = {}
        spend(expr.parts)
        for monomial, coefficient in expr.terms:
            for position, atom in enumerate(monomial):
                others = monomial[:position] + monomial[position + 1 :]
                if not isinstance(atom, Symbol):
                    nonlinear.update(*(operand.symbols for operand in atom.operands))
                elif atom.name in names:
                    factors.setdefault(atom.name, []).append((others, coefficient))
                    nonlinear.update([atom.name] if atom in others else ())
        for name, factor in factors.items():
            found[name].append((number, frozenset(factor)))
    return {name: None if name in nonlinear else tuple(uses) for name, uses in found.items()}


def _with_sizes(
    kernel: Kernel, classes: list[list[str]], symbols: Mapping[str, SizeSymbol]
) -> Kernel:
    """The kernel with its sizes; the lower bound of a joined size is the least of its members'.

    The sum's own lower bound would be tighter, but it would differ between pieces with different
    numbers of sizes before them.
    """
    sizes = []
    for number, members in enumerate(classes):
        lower = min(symbols[name].lower for name in members)
        sizes.append(replace(symbols[members[0]], name=f"s{number}", lower=lower))
    return replace(kernel, sizes=tuple(sizes))
