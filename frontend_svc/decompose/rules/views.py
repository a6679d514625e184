"""Rules for views: views of views are composed, views without effect are dropped."""

from __future__ import annotations

from typing import cast

from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr
from kernelfarm.ir.builder import GraphBuilder
from kernelfarm.ir.graph_ir import Node, Ref

Operands = tuple[int, ...]


def reshaped(builder: GraphBuilder, value: int, shape: tuple[Expr, ...]) -> int:
    """The value under another shape, by one reshape at most."""
    source = _definer(builder, value, "reshape")
    held = value if source is None else _operand(source)
    if builder.type_of(held).shape == shape:
        return held
    return builder.add("reshape", held, shape=shape)


def reshape(builder: GraphBuilder, node: Node, operands: Operands) -> int:
    """reshape(reshape(x)) is reshape(x); to the same shape it is x."""
    return reshaped(builder, operands[0], node.types[0].shape)


def permute(builder: GraphBuilder, node: Node, operands: Operands) -> int | None:
    """permute(permute(x)) is one permute; the identity is x."""
    dims = cast(tuple[int, ...], node.attr("dims"))
    value = operands[0]
    source = _definer(builder, value, "permute")
    if source is not None:
        inner = cast(tuple[int, ...], source.attr("dims"))
        dims, value = tuple(inner[dim] for dim in dims), _operand(source)
    if dims == tuple(range(len(dims))):
        return value
    if source is not None:
        return builder.add("permute", value, dims=dims)
    return _moves_only_ones(builder, value, dims)


def broadcast_in_dim(builder: GraphBuilder, node: Node, operands: Operands) -> int | None:
    """A broadcast of a broadcast is one; to the same shape it is the operand."""
    dims = cast(tuple[int, ...], node.attr("dims"))
    shape = node.types[0].shape
    value = operands[0]
    source = _definer(builder, value, "broadcast_in_dim")
    if source is not None:
        inner = cast(tuple[int, ...], source.attr("dims"))
        dims, value = tuple(dims[dim] for dim in inner), _operand(source)
    if builder.type_of(value).shape == shape and dims == tuple(range(len(dims))):
        return value
    if source is None:
        return None
    return builder.add("broadcast_in_dim", value, dims=dims, shape=shape)


def slice_(builder: GraphBuilder, node: Node, operands: Operands) -> int | None:
    """A slice of everything is the operand; a slice of a slice is one."""
    value = operands[0]
    starts, limits, steps = _slice_attrs(node)
    shape = builder.type_of(value).shape
    if limits == shape and all(s is ZERO for s in starts) and all(s is ONE for s in steps):
        return value
    source = _definer(builder, value, "slice")
    if source is None:
        return None
    inner_starts, _, inner_steps = _slice_attrs(source)
    zipped = list(zip(inner_starts, inner_steps, starts, limits, steps, strict=True))
    if any(inner is not ONE for _, inner, _, _, _ in zipped):
        return None
    return builder.add(
        "slice",
        _operand(source),
        limits=tuple(first + limit for first, _, _, limit, _ in zipped),
        starts=tuple(first + start for first, _, start, _, _ in zipped),
        steps=steps,
    )


def flip(builder: GraphBuilder, node: Node, operands: Operands) -> int | None:
    """Two equal flips undo each other."""
    source = _definer(builder, operands[0], "flip")
    if source is not None and source.attr("dims") == node.attr("dims"):
        return _operand(source)
    return None


def cat(builder: GraphBuilder, node: Node, operands: Operands) -> int | None:
    """A cat of one operand is the operand."""
    return operands[0] if len(operands) == 1 else None


def _moves_only_ones(builder: GraphBuilder, value: int, dims: tuple[int, ...]) -> int | None:
    """A permute that moves only axes of extent 1 is a reshape, which composes with others."""
    shape = builder.type_of(value).shape
    moved = [dim for dim in dims if shape[dim] is not ONE]
    if moved != sorted(moved):
        return None
    return reshaped(builder, value, tuple(shape[dim] for dim in dims))


def _slice_attrs(node: Node) -> tuple[tuple[Expr, ...], tuple[Expr, ...], tuple[Expr, ...]]:
    names = ("starts", "limits", "steps")
    starts, limits, steps = (cast(tuple[Expr, ...], node.attr(name)) for name in names)
    return starts, limits, steps


def _definer(builder: GraphBuilder, value: int, op: str) -> Node | None:
    node = builder.definer_of(value)
    return node if node is not None and node.op == op else None


def _operand(node: Node) -> int:
    return cast(Ref, node.args[0]).value
