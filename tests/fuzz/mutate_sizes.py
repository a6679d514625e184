"""Mutations of sizes that keep a graph consistent, so that it passes the first checks.

They replace an extent everywhere by another number or by an expression over symbols, and compute
contiguous strides again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from random import Random

from kernelfarm.v1.graph_pb2 import (
    EXPR_OP_ADD,
    EXPR_OP_FLOOR_DIV,
    EXPR_OP_MAX,
    EXPR_OP_MIN,
    EXPR_OP_MOD,
    EXPR_OP_MUL,
    Expr,
    ExprCall,
    Graph,
    TensorType,
)
from tests.fuzz.hostile_values import INTEGERS

_RANGES = ((0, 0), (1, 0), (2, 0), (1, 1), (0, 1), (2, 512), (0, 2**63 - 1), (2**62, 2**63 - 1))


def change_sizes(graph: Graph, random: Random) -> None:
    """One consistent change of extents or symbols."""
    random.choice(_CHANGES)(graph, random)


def other_extent(graph: Graph, random: Random) -> None:
    """Replaces a constant extent by another number everywhere."""
    extents = sorted({e.constant for e in extents_of(graph) if e.WhichOneof("form") == "constant"})
    if extents:
        old = random.choice(extents)
        substitute(graph, old, Expr(constant=random.choice(INTEGERS)), random)


def symbolic_extent(graph: Graph, random: Random) -> None:
    """Replaces a constant extent by an expression over new symbols."""
    extents = sorted({e.constant for e in extents_of(graph) if e.WhichOneof("form") == "constant"})
    if extents:
        substitute(graph, random.choice(extents), expression(graph, random), random)


def compound_symbol(graph: Graph, random: Random) -> None:
    """Replaces a symbol by an expression over several symbols everywhere."""
    if graph.symbols:
        old = random.choice(graph.symbols).name
        substitute(graph, old, expression(graph, random), random)


def other_range(graph: Graph, random: Random) -> None:
    """Gives a symbol another range, or a wrong hint."""
    if not graph.symbols:
        return
    symbol = random.choice(graph.symbols)
    if random.random() < 0.3:
        symbol.hint = random.choice(INTEGERS)
        return
    symbol.lower, symbol.upper = random.choice(_RANGES)


_CHANGES = (other_extent, symbolic_extent, symbolic_extent, compound_symbol, other_range)


def new_symbol(graph: Graph, random: Random) -> Expr:
    """Adds a new symbol, mostly one that is at least 2."""
    taken = {symbol.name for symbol in graph.symbols}
    name = next(
        name for name in map("s{}".format, itertools.count(len(taken))) if name not in taken
    )
    lower, upper = random.choice(_RANGES) if random.random() < 0.3 else (2, 0)
    graph.symbols.add(name=name, lower=lower, upper=upper, hint=random.choice((0, 5, 64)))
    return Expr(symbol=name)


def expression(graph: Graph, random: Random) -> Expr:
    """An expression as in captures, or one that is costly to simplify."""
    form = random.randrange(7)
    if form <= 1:
        return new_symbol(graph, random)
    if form == 2:  # a product of sums, which grows exponentially with its factors
        factors = random.choice((2, 3, 5, 8))
        return _call(EXPR_OP_MUL, *(_plus_one(graph, random) for _ in range(factors)))
    if form == 3:
        terms = random.choice((2, 3, 6, 9, 12))
        return _call(EXPR_OP_ADD, *(new_symbol(graph, random) for _ in range(terms)))
    if form == 4:
        op = random.choice((EXPR_OP_FLOOR_DIV, EXPR_OP_MOD))
        divisor = random.choice(
            (Expr(constant=random.choice((2, 3, 7, 64))), _plus_one(graph, random))
        )
        return _call(op, _plus_one(graph, random), divisor)
    if form == 5:
        op = random.choice((EXPR_OP_MIN, EXPR_OP_MAX))
        parts = (_plus_one(graph, random) for _ in range(random.choice((2, 3, 6))))
        return _call(op, *parts)
    inner = expression(graph, random) if random.random() < 0.7 else new_symbol(graph, random)
    op = random.choice((EXPR_OP_FLOOR_DIV, EXPR_OP_MOD, EXPR_OP_MAX, EXPR_OP_ADD, EXPR_OP_MUL))
    return _call(op, inner, Expr(constant=random.choice((1, 2, 3, 4, 8, 100))))


def substitute(graph: Graph, old: int | str, new: Expr, random: Random) -> None:
    """Replaces an extent in all types, often in integer arguments too, and adapts strides."""
    in_arguments = random.random() < 0.7
    for tensor in types_of(graph):
        for extent in tensor.shape:
            replace_in(extent, old, new)
        if tensor.strides:
            restride(tensor)
    if not in_arguments:
        return
    for node in graph.nodes:
        for argument in (*node.args, *(attribute.value for attribute in node.attrs)):
            for leaf in (*argument.list.items, argument):
                form = leaf.WhichOneof("form")
                if form == "integer" and leaf.integer == old:
                    leaf.expr.CopyFrom(new)
                elif form == "expr":
                    replace_in(leaf.expr, old, new)


def replace_in(expr: Expr, old: int | str, new: Expr) -> None:
    """Replaces a number or a symbol within an expression."""
    form = expr.WhichOneof("form")
    if form == "call":
        for operand in expr.call.operands:
            replace_in(operand, old, new)
    elif (form == "constant" and expr.constant == old) or (form == "symbol" and expr.symbol == old):
        expr.CopyFrom(new)


def restride(tensor: TensorType) -> None:
    """Sets contiguous strides."""
    del tensor.strides[:]
    strides: list[Expr] = []
    stride = Expr(constant=1)
    for extent in reversed(tensor.shape):
        strides.insert(0, stride)
        if stride.WhichOneof("form") == "constant" and extent.WhichOneof("form") == "constant":
            product = stride.constant * max(extent.constant, 1)
            stride = Expr(constant=min(product, 2**63 - 1))
        elif stride.WhichOneof("form") == "constant" and stride.constant == 1:
            stride = extent
        else:
            stride = _call(EXPR_OP_MUL, stride, extent)
    tensor.strides.extend(strides)


def types_of(graph: Graph) -> Iterator[TensorType]:
    """Every tensor type of a graph."""
    for source in graph.inputs:
        form = source.WhichOneof("kind")
        if form == "tensor":
            yield source.tensor
        elif form == "constant":
            yield source.constant.type
    for node in graph.nodes:
        yield from node.types
    yield from (tensor for tensor in graph.output_types if tensor.dtype)


def extents_of(graph: Graph) -> Iterator[Expr]:
    """Every extent of a graph."""
    for tensor in types_of(graph):
        yield from tensor.shape


def _plus_one(graph: Graph, random: Random) -> Expr:
    return _call(EXPR_OP_ADD, new_symbol(graph, random), Expr(constant=1))


def _call(op: int, *operands: Expr) -> Expr:
    return Expr(call=ExprCall(op=op, operands=operands))
