"""Rewrites that are exact for every element, in rounding and in the sign of zero.

Removed: operations with neutral elements, lossless conversions, double negation, views that change
nothing. Rewritten: small powers to products (as PyTorch computes them), divisions by powers of two
to products, reductions over single elements to reshapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import ONE, Expr
from kernelfarm.ir.graph_ir import Arg, Graph, Node, Ref, TensorType, refs_in
from optimizer_svc.analysis.graph_facts import (
    REDUCE_OPS,
    VIEW_OPS,
    GraphFacts,
    constant_value,
    graph_facts,
    ints_attr,
    operands,
)
from optimizer_svc.ir.renaming import renamed, with_values

Rule = Callable[["_Rewriter", Node], int | None]

_INTEGER_DIGITS = {
    DType.BOOL: 1,
    DType.U8: 8,
    DType.I8: 7,
    DType.I16: 15,
    DType.I32: 31,
    DType.I64: 63,
}
_FLOAT_DIGITS = {DType.F64: 53, DType.F32: 24, DType.F16: 11, DType.BF16: 8}
_MAX_VIEWS = 8
_PRODUCTS = frozenset(("aten.mm.default", "aten.addmm.default"))
# The narrower floats that each float represents exactly.
_HELD = {
    DType.F64: {DType.F32, DType.F16, DType.BF16, DType.F8E4M3FN, DType.F8E5M2},
    DType.F32: {DType.F16, DType.BF16, DType.F8E4M3FN, DType.F8E5M2},
    DType.F16: {DType.F8E5M2, DType.F8E4M3FN},
    DType.BF16: {DType.F8E5M2, DType.F8E4M3FN},
}


def simplify_algebra(graph: Graph) -> Graph:
    """The graph after one sweep of all rules, from the inputs to the outputs."""
    rewriter = _Rewriter(graph)
    for node in graph.nodes:
        rewriter.visit(node)
    return rewriter.graph()


class _Rewriter:
    """Rewrites the nodes in order."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._same: dict[int, int] = {}
        self._nodes: list[Node] = []
        self._producers: dict[int, Node] = {}
        facts = graph_facts(graph)
        self._types = dict(facts.types)
        # Facts over the nodes that are rewritten so far.
        self.facts: GraphFacts = replace(facts, producers=self._producers, types=self._types)
        self._returned = frozenset(value for arg in graph.outputs for value in refs_in(arg))
        self._next = 1 + max([*facts.types, *(i.value for i in graph.inputs)], default=0)

    def visit(self, node: Node) -> None:
        """Keeps, replaces or forwards a node."""
        node = with_values(node, self._same)
        rule = _RULES.get(node.op)
        found = None if rule is None else rule(self, node)
        if found is not None:
            self._same[node.results[0]] = found
            return
        self._nodes.append(node)
        for value in node.results:
            self._producers[value] = node

    def graph(self) -> Graph:
        """The rewritten graph; the same object if no rule applied."""
        if not self._same:
            return self._graph
        outputs = tuple(renamed(arg, self._same) for arg in self._graph.outputs)
        return replace(self._graph, nodes=tuple(self._nodes), outputs=outputs)

    def dtype(self, value: int) -> DType:
        """Element type of a value."""
        return self._types[value].dtype

    def shape(self, value: int) -> tuple[Expr, ...]:
        """Extents of a value."""
        return self._types[value].shape

    def number(self, value: int) -> float | int | bool | None:
        """The number that all elements of a value are, if it is known."""
        return constant_value(self.facts, value)

    def is_only_multiplied(self, value: int) -> bool:
        """True if products of the framework alone read a value of the old graph."""
        readers = [self._graph.nodes[at] for at in self.facts.consumers.get(value, ())]
        are_products = all(reader.attr("op") in _PRODUCTS for reader in readers)
        return bool(readers) and are_products and value not in self._returned

    def producer(self, value: int) -> Node | None:
        """The rewritten node that makes a value."""
        return self._producers.get(value)

    def emit(self, like: Node, op: str, values: tuple[int, ...], **attrs: Arg) -> int:
        """The value of a new node instead of `like`, with its type and origins."""
        node = Node(
            op=op,
            args=tuple(Ref(value) for value in values),
            attrs=tuple(sorted(attrs.items())),
            results=(self._next,),
            types=(TensorType(like.types[0].dtype, like.types[0].shape),),
            origins=like.origins,
            location=like.location,
        )
        self._next += 1
        self._types[node.results[0]] = node.types[0]
        self.visit(node)
        return self._same.get(node.results[0], node.results[0])

    def full(self, like: Node, value: float | int | bool) -> int:
        """A constant with the type of `like`."""
        kind = like.types[0]
        return self.emit(like, "full", (), dtype=kind.dtype, shape=kind.shape, value=value)


def _forward_neutral(right: float, *, commutes: bool) -> Rule:
    """A rule for x op right = x; for floats the caller chooses a `right` for which it is exact."""

    def rule(rewriter: _Rewriter, node: Node) -> int | None:
        a, b = operands(node)
        if _is(rewriter.number(b), right, node):
            return a
        return b if commutes and _is(rewriter.number(a), right, node) else None

    return rule


def _is(number: float | int | bool | None, expected: float, node: Node) -> bool:
    if number is None or number != expected:
        return False
    is_float = node.types[0].dtype.is_float
    return not is_float or math.copysign(1.0, float(number)) == math.copysign(1.0, expected)


def _division(rewriter: _Rewriter, node: Node) -> int | None:
    a, b = operands(node)
    number = rewriter.number(b)
    if number is None or not node.types[0].dtype.is_float or number == 0:
        return None
    if number == 1:
        return a
    mantissa, exponent = math.frexp(abs(float(number)))
    # The reciprocal of a power of two is exact if it is a normal number of every float type.
    if mantissa != 0.5 or not -14 < exponent < 15 or node.types[0].dtype not in _FLOAT_DIGITS:
        return None
    kind = node.types[0]
    scale = rewriter.emit(
        node, "full", (), dtype=kind.dtype, shape=kind.shape, value=1.0 / float(number)
    )
    return rewriter.emit(node, "mul", (a, scale))


def _power(rewriter: _Rewriter, node: Node) -> int | None:
    a, b = operands(node)
    number = rewriter.number(b)
    if number == 1:
        return a
    if number == 2:
        return rewriter.emit(node, "mul", (a, a))
    if number == 3:
        return rewriter.emit(node, "mul", (rewriter.emit(node, "mul", (a, a)), a))
    return None


def _double(rewriter: _Rewriter, node: Node) -> int | None:
    (a,) = operands(node)
    inner = rewriter.producer(a)
    return operands(inner)[0] if inner is not None and inner.op == node.op else None


def _logical_and(rewriter: _Rewriter, node: Node) -> int | None:
    if node.types[0].dtype is not DType.BOOL:
        return None
    a, b = operands(node)
    for value, other in ((a, b), (b, a)):
        number = rewriter.number(value)
        if number is not None:
            return other if number else rewriter.full(node, value=False)
    return a if a == b else None


def _logical_or(rewriter: _Rewriter, node: Node) -> int | None:
    if node.types[0].dtype is not DType.BOOL:
        return None
    a, b = operands(node)
    for value, other in ((a, b), (b, a)):
        number = rewriter.number(value)
        if number is not None:
            return rewriter.full(node, value=True) if number else other
    return a if a == b else None


def _where(rewriter: _Rewriter, node: Node) -> int | None:
    condition, a, b = operands(node)
    number = rewriter.number(condition)
    if number is not None:
        return a if number else b
    return a if a == b else None


def _convert(rewriter: _Rewriter, node: Node) -> int | None:
    (a,) = operands(node)
    target = node.types[0].dtype
    if rewriter.dtype(a) is target:
        return a
    inner, views = _below_views(rewriter, a)
    if inner is None or inner.op != "convert":
        number = _converted_number(rewriter, node, rewriter.number(a))
        return _converted_before(rewriter, node) if number is None else number
    (source,) = operands(inner)
    is_exact = _holds(rewriter.dtype(a), rewriter.dtype(source))
    if not is_exact and not _is_masked(rewriter, source, rewriter.dtype(a)):
        return None
    if rewriter.dtype(source) is not target:
        kind = TensorType(target, rewriter.shape(source))
        like = replace(node, types=(kind,))
        source = rewriter.emit(like, "convert", (source,), **dict(node.attrs))
    for view in reversed(views):
        like = replace(node, types=(TensorType(target, view.types[0].shape),))
        source = rewriter.emit(like, view.op, (source,), **dict(view.attrs))
    return source


def _converted_before(rewriter: _Rewriter, node: Node) -> int | None:
    """A matrix for the framework's products that is converted before it is transposed.

    Products read transposed matrices, so what is stored keeps the order of what it is made from.
    """
    (a,) = operands(node)
    view = rewriter.producer(a)
    if view is None or view.op != "permute" or not rewriter.is_only_multiplied(node.results[0]):
        return None
    (source,) = operands(view)
    kind = TensorType(node.types[0].dtype, rewriter.shape(source))
    attrs = dict(node.attrs)
    converted = rewriter.emit(replace(node, types=(kind,)), "convert", (source,), **attrs)
    return rewriter.emit(node, "permute", (converted,), **dict(view.attrs))


def _below_views(rewriter: _Rewriter, value: int) -> tuple[Node | None, list[Node]]:
    """The node that computes what a value views, and the views, the last one first."""
    views: list[Node] = []
    node = rewriter.producer(value)
    while node is not None and node.op in VIEW_OPS and len(views) < _MAX_VIEWS:
        views.append(node)
        node = rewriter.producer(operands(node)[0])
    return node, views


def _is_masked(rewriter: _Rewriter, value: int, wide: DType) -> bool:
    """True if all but a few bits of an integer are masked: `wide` represents what is left exactly.

    Models unpack weights of 4 bits from words so.
    """
    node, _ = _below_views(rewriter, value)
    if node is None or node.op != "bit_and":
        return False
    limit = 1 << _FLOAT_DIGITS.get(wide, 0)
    masks = (rewriter.number(operand) for operand in operands(node))
    return any(isinstance(mask, int) and 0 <= mask < limit for mask in masks)


def _converted_number(
    rewriter: _Rewriter, node: Node, number: float | int | bool | None
) -> int | None:
    """A converted constant, if it is a small whole number, which every type represents exactly."""
    target = node.types[0].dtype
    if number is None or not math.isfinite(number) or int(number) != number:
        return None
    if target is DType.BOOL:
        return rewriter.full(node, bool(number))
    is_signed = target is not DType.U8
    if abs(number) > 127 or (number < 0 and not is_signed) or target not in _EXACT_TARGETS:
        return None
    if number == 0 and math.copysign(1.0, number) < 0:
        return None
    return rewriter.full(node, float(number) if target.is_float else int(number))


_EXACT_TARGETS = frozenset({*_INTEGER_DIGITS, *_FLOAT_DIGITS})


def _holds(wide: DType, narrow: DType) -> bool:
    """True if the wide type represents every number of the narrow one exactly."""
    if wide is narrow:
        return True
    if wide.is_float:
        if narrow.is_float:
            return narrow in _HELD.get(wide, ())
        return _INTEGER_DIGITS[narrow] <= _FLOAT_DIGITS.get(wide, 0)
    if narrow.is_float or wide is DType.BOOL:
        return False
    has_sign = narrow not in (DType.BOOL, DType.U8)
    return _INTEGER_DIGITS[narrow] <= _INTEGER_DIGITS[wide] and not (has_sign and wide is DType.U8)


def _view(rewriter: _Rewriter, node: Node) -> int | None:
    """The operand of a view that changes nothing."""
    (a,) = operands(node)
    if node.op == "window":
        return None  # a window has more axes than its operand
    if node.op in ("reshape", "broadcast_in_dim", "slice"):
        return a if rewriter.shape(a) == node.types[0].shape else None
    dims = ints_attr(node, "dims")
    if node.op == "permute":
        return a if list(dims) == list(range(len(dims))) else None
    return a if all(rewriter.shape(a)[dim] is ONE for dim in dims) else None


def _single_reduction(rewriter: _Rewriter, node: Node) -> int | None:
    (a,) = operands(node)
    shape = rewriter.shape(a)
    if any(shape[dim] is not ONE for dim in ints_attr(node, "dims")):
        return None
    if node.op.startswith("arg"):
        return rewriter.full(node, 0)
    return rewriter.emit(node, "reshape", (a,), shape=node.types[0].shape)


_RULES: dict[str, Rule] = {
    "add": _forward_neutral(-0.0, commutes=True),
    "sub": _forward_neutral(0.0, commutes=False),
    "mul": _forward_neutral(1.0, commutes=True),
    "div": _division,
    "pow": _power,
    "neg": _double,
    "logical_not": _double,
    "bitwise_not": _double,
    "bit_and": _logical_and,
    "logical_and": _logical_and,
    "bit_or": _logical_or,
    "logical_or": _logical_or,
    "where": _where,
    "convert": _convert,
    **dict.fromkeys(VIEW_OPS, _view),
    **dict.fromkeys(REDUCE_OPS, _single_reduction),
}
