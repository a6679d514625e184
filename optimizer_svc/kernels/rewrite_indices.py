"""Rewrites all expressions of a kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.loop_ir import Axis, IndexValue, Indirect, Kernel, Load, Param, Statement, Store


def rewrite_indices(kernel: Kernel, change: Callable[[Expr], Expr]) -> Kernel:
    """The kernel with every expression changed: extents, sizes and indices."""
    return replace(
        kernel,
        params=tuple(_param(param, change) for param in kernel.params),
        outer=tuple(Axis(axis.name, change(axis.extent)) for axis in kernel.outer),
        reduction=tuple(Axis(axis.name, change(axis.extent)) for axis in kernel.reduction),
        body=tuple(_statement(statement, change) for statement in kernel.body),
    )


def body_indices(kernel: Kernel) -> Iterator[Expr]:
    """Every index expression of the body."""
    for statement in kernel.body:
        match statement:
            case Load(index=index) | Store(index=index):
                yield index
            case IndexValue(expr=expr):
                yield expr


def accesses(kernel: Kernel) -> Iterator[Load | Store]:
    """Every load and store."""
    return (s for s in kernel.body if isinstance(s, Load | Store))


def all_exprs(kernel: Kernel) -> Iterator[Expr]:
    """Every expression of a kernel in a fixed order."""
    for axis in (*kernel.outer, *kernel.reduction):
        yield axis.extent
    for param in kernel.params:
        yield param.size_elems
    yield from body_indices(kernel)
    yield from (s.extent for s in kernel.body if isinstance(s, Indirect))


def _param(param: Param, change: Callable[[Expr], Expr]) -> Param:
    return replace(param, size_elems=change(param.size_elems))


def _statement(statement: Statement, change: Callable[[Expr], Expr]) -> Statement:
    match statement:
        case Load(index=index) | Store(index=index):
            return replace(statement, index=change(index))
        case IndexValue(expr=expr):
            return replace(statement, expr=change(expr))
        case Indirect(extent=extent):
            return replace(statement, extent=change(extent))
        case _:
            return statement
