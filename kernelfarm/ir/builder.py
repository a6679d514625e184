"""Builds Prims graphs node by node; infers types, and shares equal nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kernelfarm.ir.check_graph import PRIMS_DIALECT
from kernelfarm.ir.graph_ir import (
    Arg,
    Constant,
    Graph,
    Input,
    Node,
    Ref,
    SizeSymbol,
    TensorType,
    tensor_type_of,
)
from kernelfarm.ir.prim_attrs import normal_attrs
from kernelfarm.ir.prim_rules import infer
from kernelfarm.ir.work_budget import spend

_Key = tuple[object, ...]


class GraphBuilder:
    """A Prims graph under construction; values are identified by their ids.

    Example:
        >>> from kernelfarm.dtypes import DType
        >>> from kernelfarm.ir.algebra.expr import as_expr
        >>> builder = GraphBuilder()
        >>> x = builder.add_input(TensorType(DType.F32, (as_expr(4),)))
        >>> y = builder.add("exp", x)
        >>> builder.add("exp", x) == y
        True
        >>> builder.add("convert", y, dtype=DType.F16)
        2
    """

    def __init__(self, symbols: Sequence[SizeSymbol] = (), locations: Sequence[str] = ()) -> None:
        self._symbols = tuple(symbols)
        self._locations = tuple(locations)
        self._inputs: list[Input] = []
        self._nodes: list[Node] = []
        self._types: dict[int, TensorType] = {}
        self._known: dict[_Key, int] = {}
        self._definers: dict[int, Node] = {}
        self._next = 0
        self._origins: tuple[int, ...] = ()
        self._location = 0

    def add_input(self, kind: TensorType | str | Constant, name: str = "") -> int:
        """The value of a new input; inputs keep the order in which they are added."""
        source = Input(self._fresh(), kind, name)
        self._inputs.append(source)
        tensor = tensor_type_of(source)
        if tensor is not None:
            self._types[source.value] = tensor
        return source.value

    def add(self, op: str, *values: int, **attrs: Arg) -> int:
        """The value of a prim applied to values; equal applications share one value.

        Raises:
            VerificationError: the application breaks a rule of the prim.
        """
        spend(12 + len(values) + len(attrs))
        normal = normal_attrs(attrs)
        key = (op, values, tuple((name, _exact(value)) for name, value in normal))
        known = self._known.get(key)
        if known is not None:
            return known
        args = tuple(Ref(value) for value in values)
        draft = Node(op, args, normal, (), ())
        types = infer(draft, tuple(self._types[value] for value in values))
        result = self._append(op, values, normal, types)[0]
        self._known[key] = result
        return result

    def add_extern(
        self,
        op: str,
        node: int,
        values: Sequence[int],
        types: Sequence[TensorType],
        *,
        is_contraction: bool,
        **optional: Arg,
    ) -> tuple[int, ...]:
        """The values of captured node number `node`, which the client's framework runs.

        `optional` are attributes that an extern node may have (`kernelfarm.ir.prims`), or None.
        """
        stated: dict[str, Arg] = {"is_contraction": is_contraction, "node": node, "op": op}
        stated |= {name: value for name, value in optional.items() if value is not None}
        attrs = normal_attrs(stated)
        infer(Node("extern", (), attrs, (), tuple(types)), self._types_of(values))
        return self._append("extern", tuple(values), attrs, tuple(types))

    def type_of(self, value: int) -> TensorType:
        """The type of a tensor value."""
        return self._types[value]

    def definer_of(self, value: int) -> Node | None:
        """The node that defines a value, None for an input."""
        return self._definers.get(value)

    @contextmanager
    def origin(self, *captured: int, location: int = 0) -> Iterator[None]:
        """States the captured nodes, for messages, that nodes added in the block come from."""
        before = self._origins, self._location
        self._origins, self._location = captured, location
        try:
            yield
        finally:
            self._origins, self._location = before

    def build(self, outputs: Sequence[Arg], output_types: Sequence[TensorType | None]) -> Graph:
        """The graph with these outputs; unused nodes are kept."""
        return Graph(
            dialect=PRIMS_DIALECT,
            symbols=self._symbols,
            inputs=tuple(self._inputs),
            nodes=tuple(self._nodes),
            outputs=tuple(outputs),
            output_types=tuple(output_types),
            locations=self._locations,
        )

    def _append(
        self,
        op: str,
        values: tuple[int, ...],
        attrs: tuple[tuple[str, Arg], ...],
        types: tuple[TensorType, ...],
    ) -> tuple[int, ...]:
        spend(12 + len(values) + len(types))
        results = tuple(self._fresh() for _ in types)
        args = tuple(Ref(value) for value in values)
        node = Node(op, args, attrs, results, types, self._origins, self._location)
        self._nodes.append(node)
        for result, tensor in zip(results, types, strict=True):
            self._types[result] = tensor
            self._definers[result] = node
        return results

    def _types_of(self, values: Sequence[int]) -> tuple[TensorType, ...]:
        return tuple(self._types[value] for value in values)

    def _fresh(self) -> int:
        self._next += 1
        return self._next - 1


def _exact(value: Arg) -> object:
    """A key that distinguishes 0.0, -0.0, 0 and False, and in which NaN equals itself."""
    if isinstance(value, tuple):
        return tuple(_exact(item) for item in value)
    if isinstance(value, float):
        return ("float", value.hex())
    return (type(value), value)
