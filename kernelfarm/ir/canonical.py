"""Canonical forms of graphs and kernels, without arbitrary names and debug text.

Graphs that differ only in value ids, symbol names, hints, debug names or source locations have one
canonical form. Kernels that differ only in the names of axes, parameters, sizes and indirect
symbols, in their own name or in comments have one canonical form. The order never changes, because
positions of inputs, parameters and sizes are part of the calling convention.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from kernelfarm.ir.algebra.atoms import lone_symbol
from kernelfarm.ir.algebra.expr import Expr, symbol
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
from kernelfarm.ir.loop_ir import (
    Access,
    Axis,
    IndexValue,
    Indirect,
    Kernel,
    Load,
    Param,
    Statement,
    Store,
)
from kernelfarm.ir.work_budget import spend

CANONICAL_KERNEL_NAME = "kernel"


def canonical_graph(graph: Graph) -> Graph:
    """The graph without debug text; values numbered by definition, symbols `s0`.. by first use."""
    return _GraphRenaming(graph).renamed()


def canonical_kernel(kernel: Kernel) -> Kernel:
    """The kernel without debug text; axes `d0`.. and `r0`.., parameters `in0`.., sizes `s0`.."""
    return _KernelRenaming(kernel).renamed()


class _SymbolRenaming:
    """Renames symbols in expressions; rewrites equal expressions once."""

    def __init__(self, names: dict[str, str]) -> None:
        self._values = {old: symbol(new) for old, new in names.items() if old != new}
        self._known: dict[Expr, Expr] = {}

    def __call__(self, expr: Expr) -> Expr:
        if not expr.terms or not self._values:
            return expr
        known = self._known.get(expr)
        if known is None:
            known = self._known[expr] = expr.substitute(self._values)
        return known


class _GraphRenaming:
    """Brings one graph into canonical form."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.names = {old: f"s{i}" for i, old in enumerate(_symbols_by_first_use(graph))}
        self.expr = _SymbolRenaming(self.names)
        self.values: dict[int, int] = {}
        self.types: dict[TensorType, TensorType] = {}

    def renamed(self) -> Graph:
        graph = self.graph
        inputs = tuple(self._input(source) for source in graph.inputs)
        nodes = tuple(self._node(node) for node in graph.nodes)
        return Graph(
            dialect=graph.dialect,
            symbols=self._sizes(),
            inputs=inputs,
            nodes=nodes,
            outputs=tuple(self._arg(output) for output in graph.outputs),
            output_types=tuple(
                None if tensor is None else self._type(tensor) for tensor in graph.output_types
            ),
            abi_version=graph.abi_version,
            updates=tuple(sorted(graph.updates, key=lambda update: update.output)),
            kernel_hints=graph.kernel_hints,
        )

    def _sizes(self) -> tuple[SizeSymbol, ...]:
        by_name = {size.name: size for size in self.graph.symbols}
        return tuple(
            SizeSymbol(new, by_name[old].lower, by_name[old].upper)
            for old, new in self.names.items()
        )

    def _input(self, source: Input) -> Input:
        kind = source.kind
        if isinstance(kind, str):
            kind = self.names[kind]
        elif isinstance(kind, Constant):
            kind = replace(kind, type=self._type(kind.type))
        else:
            kind = self._type(kind)
        return Input(self._define(source.value), kind)

    def _node(self, node: Node) -> Node:
        args = tuple(self._arg(arg) for arg in node.args)
        attrs = tuple((name, self._arg(arg)) for name, arg in sorted(node.attrs, key=_first))
        types = tuple(self._type(tensor) for tensor in node.types)
        if self.graph.dialect == PRIMS_DIALECT and node.op != "extern":
            types = tuple(t if t.strides is None else replace(t, strides=None) for t in types)
        results = tuple(self._define(value) for value in node.results)
        return Node(node.op, args, attrs, results, types)

    def _define(self, value: int) -> int:
        spend()
        number = self.values[value] = len(self.values)
        return number

    def _type(self, tensor: TensorType) -> TensorType:
        known = self.types.get(tensor)
        if known is None:
            strides = tensor.strides
            known = TensorType(
                tensor.dtype,
                tuple(self.expr(extent) for extent in tensor.shape),
                None if strides is None else tuple(self.expr(stride) for stride in strides),
            )
            self.types[tensor] = known
        return known

    def _arg(self, arg: Arg) -> Arg:
        if isinstance(arg, Ref):
            return Ref(self.values[arg.value])
        if isinstance(arg, tuple):
            return tuple(self._arg(item) for item in arg)
        return self.expr(arg) if isinstance(arg, Expr) else arg


def _first(attr: tuple[str, Arg]) -> str:
    return attr[0]


def _symbols_by_first_use(graph: Graph) -> list[str]:
    """Used symbols in an order that does not depend on their names.

    Symbols that are integer inputs or whole extents of inputs come first, by position. The order of
    terms within an expression depends on names, so new symbols of an expression are taken in the
    order in which the graph declares them.
    """
    if not graph.symbols:
        return []
    declared = {size.name: position for position, size in enumerate(graph.symbols)}
    found: dict[str, None] = {}
    for source in graph.inputs:
        if isinstance(source.kind, str):
            found.setdefault(source.kind)
    for expr in _input_extents(graph):
        name = lone_symbol(expr)
        if name is not None:
            found.setdefault(name)
    for expr in _exprs(graph):
        if len(found) == len(declared):
            break
        for name in sorted(expr.symbols, key=declared.__getitem__):
            found.setdefault(name)
    return list(found)


def _input_extents(graph: Graph) -> Iterator[Expr]:
    for source in graph.inputs:
        tensor = tensor_type_of(source)
        if tensor is not None:
            yield from tensor.shape


def _exprs(graph: Graph) -> Iterator[Expr]:
    yield from _input_extents(graph)
    for source in graph.inputs:
        tensor = tensor_type_of(source)
        if tensor is not None:
            yield from tensor.strides or ()
    for node in graph.nodes:
        yield from _exprs_in(node.args)
        yield from _exprs_in(tuple(arg for _, arg in node.attrs))
        yield from _exprs_of_types(node.types)
    yield from _exprs_in(graph.outputs)
    yield from _exprs_of_types(t for t in graph.output_types if t is not None)


def _exprs_of_types(types: Iterable[TensorType]) -> Iterator[Expr]:
    for tensor in types:
        yield from tensor.shape
        yield from tensor.strides or ()


def _exprs_in(arg: Arg) -> Iterator[Expr]:
    if isinstance(arg, Expr):
        yield arg
    elif isinstance(arg, tuple):
        for item in arg:
            yield from _exprs_in(item)


class _KernelRenaming:
    """Brings one kernel into canonical form."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        names = {size.name: f"s{i}" for i, size in enumerate(kernel.sizes)}
        names |= {axis.name: f"d{i}" for i, axis in enumerate(kernel.outer)}
        names |= {axis.name: f"r{i}" for i, axis in enumerate(kernel.reduction)}
        for number, statement in enumerate(kernel.body):
            if isinstance(statement, Indirect):
                names[statement.symbol] = f"%{number}"
        self.names = names
        self.expr = _SymbolRenaming(names)
        self.params = _param_names(kernel.params)

    def renamed(self) -> Kernel:
        kernel = self.kernel
        return Kernel(
            name=CANONICAL_KERNEL_NAME,
            params=tuple(
                Param(self.params[p.name], p.dtype, self.expr(p.size_elems), p.access)
                for p in kernel.params
            ),
            sizes=tuple(SizeSymbol(self.names[s.name], s.lower, s.upper) for s in kernel.sizes),
            outer=tuple(self._axis(axis) for axis in kernel.outer),
            reduction=tuple(self._axis(axis) for axis in kernel.reduction),
            body=tuple(self._statement(statement) for statement in kernel.body),
            hints=kernel.hints,
        )

    def _axis(self, axis: Axis) -> Axis:
        return Axis(self.names[axis.name], self.expr(axis.extent))

    def _statement(self, statement: Statement) -> Statement:
        match statement:
            case Load(param, index, mask, other):
                return Load(self.params[param], self.expr(index), mask, other)
            case Store(param, index, value, mode):
                return Store(self.params[param], self.expr(index), value, mode)
            case IndexValue(dtype, expr):
                return IndexValue(dtype, self.expr(expr))
            case Indirect(name, value, extent):
                return Indirect(self.names[name], value, self.expr(extent))
            case _:
                return statement


def _param_names(params: tuple[Param, ...]) -> dict[str, str]:
    counts = {access: 0 for access in Access}
    names = {}
    for param in params:
        names[param.name] = f"{param.access.value}{counts[param.access]}"
        counts[param.access] += 1
    return names
