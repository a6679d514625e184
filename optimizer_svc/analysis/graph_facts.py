"""Look-ups over one Prims graph: producers, positions, types, ranges of its sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernelfarm.errors import InternalError
from kernelfarm.ir.algebra.expr import ZERO, Expr, as_expr, product_of
from kernelfarm.ir.algebra.simplify import Bounds, Range
from kernelfarm.ir.graph_ir import Arg, Graph, Node, Ref, TensorType, refs_in, uses_of
from kernelfarm.ir.prims import CLIENT_OPS, PRIMS, PrimKind
from kernelfarm.ir.work_budget import spend

VIEW_OPS = frozenset(name for name, prim in PRIMS.items() if prim.kind is PrimKind.VIEW)
REDUCE_OPS = frozenset(name for name, prim in PRIMS.items() if prim.kind is PrimKind.REDUCE)
SCAN_OPS = frozenset(name for name, prim in PRIMS.items() if prim.kind is PrimKind.SCAN)
SORT_OPS = frozenset(name for name, prim in PRIMS.items() if prim.kind is PrimKind.SORT)
GATHER_OPS = frozenset(name for name, prim in PRIMS.items() if prim.kind is PrimKind.INDEX)


@dataclass(frozen=True, slots=True)
class Piece:
    """An operand of a cat, with its range on the cat's axis, from `start` up to `limit`."""

    value: int
    start: Expr
    limit: Expr


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """The look-ups of one graph; values without a producer are inputs and constants.

    `pieces` has the pieces of every cat in order, except statically empty ones.
    """

    graph: Graph
    producers: Mapping[int, Node]
    positions: Mapping[int, int]
    types: Mapping[int, TensorType]
    consumers: Mapping[int, tuple[int, ...]]
    bounds: Bounds
    pieces: Mapping[int, tuple[Piece, ...]]

    def is_storage(self, value: int) -> bool:
        """True for values that no kernel makes: inputs, constants, results of the framework."""
        node = self.producers.get(value)
        return node is None or node.op in CLIENT_OPS

    def is_view(self, value: int) -> bool:
        """True for the result of a view prim."""
        node = self.producers.get(value)
        return node is not None and node.op in VIEW_OPS

    def base_of(self, value: int) -> int:
        """The value that a chain of views starts from; the value itself if it is no view."""
        while self.is_view(value):
            value = operands(self.producers[value])[0]
        return value

    def numel(self, value: int) -> Expr:
        """The number of elements of a value."""
        return product_of(self.types[value].shape)


def graph_facts(graph: Graph) -> GraphFacts:
    """The look-ups of a graph."""
    producers: dict[int, Node] = {}
    positions: dict[int, int] = {}
    consumers: dict[int, list[int]] = {}
    for position, node in enumerate(graph.nodes):
        for value in node.results:
            producers[value] = node
            positions[value] = position
        spend(6 + len(node.args))
        for value in dict.fromkeys(uses_of(node)):
            consumers.setdefault(value, []).append(position)
    types = graph.types()
    cats = (node for node in graph.nodes if node.op == "cat")
    return GraphFacts(
        graph=graph,
        producers=producers,
        positions=positions,
        types=types,
        consumers={value: tuple(found) for value, found in consumers.items()},
        bounds=size_bounds(graph),
        pieces={node.results[0]: _pieces(node, types) for node in cats},
    )


def _pieces(node: Node, types: Mapping[int, TensorType]) -> tuple[Piece, ...]:
    dim = int_attr(node, "dim")
    found: list[Piece] = []
    start = ZERO
    for value in operands(node):
        extent = types[value].shape[dim]
        if extent is not ZERO:
            found.append(Piece(value, start, start + extent))
        start = start + extent
    return tuple(found)


def size_bounds(graph: Graph) -> Bounds:
    """Ranges of the graph's size symbols."""
    return Bounds(
        {
            s.name: Range(as_expr(s.lower), None if s.upper is None else as_expr(s.upper))
            for s in graph.symbols
        }
    )


def operands(node: Node) -> tuple[int, ...]:
    """The values among a prim's positional arguments."""
    return tuple(value for arg in node.args for value in refs_in(arg))


def outputs_read(graph: Graph) -> tuple[int, ...]:
    """The values that the graph returns, in order, with repetition."""
    return tuple(value for arg in graph.outputs for value in refs_in(arg))


def constant_value(facts: GraphFacts, value: int) -> float | int | bool | None:
    """The number that all elements are, if the value is a `full` or a view of one; else None."""
    node = facts.producers.get(facts.base_of(value))
    if node is None or node.op != "full":
        return None
    number = node.attr("value")
    return number if isinstance(number, int | float) else None


def exprs_attr(node: Node, name: str) -> tuple[Expr, ...]:
    """A tuple attribute of sizes.

    Raises:
        InternalError: the attribute is missing or holds something else.
    """
    found = node.attr(name)
    if not isinstance(found, tuple):
        raise InternalError(f"{node.op}: attribute {name!r} is {found!r}; expected a tuple")
    return tuple(_expr_of(node, name, item) for item in found)


def ints_attr(node: Node, name: str) -> tuple[int, ...]:
    """A tuple attribute of plain integers (axes)."""
    return tuple(item.as_int() for item in exprs_attr(node, name))


def expr_attr(node: Node, name: str) -> Expr:
    """An attribute that is a size.

    Raises:
        InternalError: the attribute is missing or holds something else.
    """
    return _expr_of(node, name, node.attr(name))


def int_attr(node: Node, name: str) -> int:
    """A plain integer attribute."""
    return expr_attr(node, name).as_int()


def scatter_bases(facts: GraphFacts) -> frozenset[int]:
    """The values whose memory a scatter updates in place."""
    nodes = (node for node in facts.graph.nodes if node.op == "scatter")
    return frozenset(operands(node)[0] for node in nodes)


def references(values: tuple[int, ...]) -> tuple[Arg, ...]:
    """Values as arguments."""
    return tuple(Ref(value) for value in values)


def _expr_of(node: Node, name: str, item: Arg) -> Expr:
    if isinstance(item, Expr):
        return item
    if isinstance(item, int):
        return as_expr(item)
    raise InternalError(f"{node.op}: attribute {name!r} holds {item!r}; expected a size")
