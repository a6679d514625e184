"""Structural rules of all graphs, captured or decomposed, which a client's graph may break.

These rules do not depend on operators. `kernelfarm.ir.verify` adds the rules of the Prims dialect.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Iterator

from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.graph_ir import (
    Arg,
    Constant,
    Graph,
    Input,
    Node,
    Ref,
    TensorType,
    Update,
    tensor_type_of,
    uses_of,
)
from kernelfarm.ir.hints import MAX_HINTS, check_hint
from kernelfarm.ir.work_budget import spend

ATEN_DIALECT = "aten"
PRIMS_DIALECT = "prims"

_TEMPLATE_PREFIX, _TEMPLATE_DOTS = "template.", 1
"""Names of the optimizer's own operators, `template.NAME`: it has template kernels for them. An
operator of a framework's library has a third part, its overload."""

MAX_CONSTANT_BYTES = 64 * 1024
"""Larger constants must be inputs."""


def check_client_graph(graph: Graph) -> None:
    """Checks that values, symbols, types and constants of a graph agree with each other.

    Raises:
        InvalidGraphError: the first broken rule, with node index and operator, what was seen and
        what
            was expected.
    """
    if graph.dialect not in (ATEN_DIALECT, PRIMS_DIALECT):
        raise InvalidGraphError(f"graph has dialect {graph.dialect!r}; expected 'aten' or 'prims'")
    symbols = _checked_symbols(graph)
    _Walk(graph, symbols).check()


def _checked_symbols(graph: Graph) -> frozenset[str]:
    names: set[str] = set()
    for size in graph.symbols:
        if not size.name or size.name in names:
            raise InvalidGraphError(
                f"graph: size symbol {size.name!r} is declared twice or has no name;"
                " expected distinct names"
            )
        if size.lower < 0 or (size.upper is not None and size.upper < size.lower):
            raise InvalidGraphError(
                f"graph: size symbol {size.name} ranges from {size.lower} to {size.upper};"
                " expected 0 <= lower <= upper"
            )
        names.add(size.name)
    return frozenset(names)


class _Walk:
    """Checks a graph in the order of definitions."""

    def __init__(self, graph: Graph, symbols: frozenset[str]) -> None:
        self.graph = graph
        self.symbols = symbols
        self.types: dict[int, TensorType] = {}
        self.integers: set[int] = set()
        # Most graphs share equal types; each is checked once.
        self.checked: set[TensorType] = set()

    def check(self) -> None:
        """Runs every rule."""
        for index, source in enumerate(self.graph.inputs):
            self._check_input(source, f"input {index}")
        for index, node in enumerate(self.graph.nodes):
            self._check_node(node, f"node {index} ({node.op})")
        self._check_outputs()
        self._check_hints()

    def _check_hints(self) -> None:
        """Checks hints; those of a Prims graph are for nodes of the graph that it was made of."""
        graph = self.graph
        keys = [(found.node, found.hint.name) for found in graph.kernel_hints]
        if any(a >= b for a, b in itertools.pairwise(keys)):
            raise InvalidGraphError(
                "graph: hints in another order; expected them sorted by node and name, each once"
            )
        for node, count in Counter(node for node, _ in keys).items():
            is_unknown = graph.dialect == ATEN_DIALECT and node >= len(graph.nodes)
            if is_unknown or count > MAX_HINTS:
                raise InvalidGraphError(
                    f"graph: {count} hints of node {node}; expected at most {MAX_HINTS}, and one of"
                    f" {len(graph.nodes)} nodes"
                )
        for found in graph.kernel_hints:
            check_hint(found.hint, f"node {found.node}")

    def _check_input(self, source: Input, where: str) -> None:
        self._check_fresh(source.value, where)
        if isinstance(source.kind, str):
            self._check_symbols({source.kind}, where)
            self.integers.add(source.value)
            return
        if isinstance(source.kind, Constant):
            _check_constant(source.kind, where)
        tensor = tensor_type_of(source)
        if tensor is not None:
            self._define(source.value, tensor, where)

    def _check_node(self, node: Node, where: str) -> None:
        spend(5 + len(node.args) + len(node.attrs) + len(node.results))
        if not node.op:
            raise InvalidGraphError(f"{where}: no operator name; expected one")
        if node.op.startswith(_TEMPLATE_PREFIX) and node.op.count(".") == _TEMPLATE_DOTS:
            raise InvalidGraphError(
                f"{where}: unknown operator, of the farm's own templates;"
                " expected an operator of the framework, as aten.mm.default"
            )
        if len(node.results) != len(node.types):
            raise InvalidGraphError(
                f"{where}: {len(node.types)} types for {len(node.results)} results;"
                " expected one for each"
            )
        if node.location > len(self.graph.locations):
            raise InvalidGraphError(
                f"{where}: location {node.location}; expected at most {len(self.graph.locations)}"
            )
        self._check_attribute_names(node, where)
        for value in uses_of(node):
            self._check_use(value, where)
        for expr in _exprs_of(node):
            self._check_symbols(expr.symbols, where)
        for value, tensor in zip(node.results, node.types, strict=True):
            self._check_fresh(value, where)
            self._define(value, tensor, where)

    def _check_attribute_names(self, node: Node, where: str) -> None:
        names = [name for name, _ in node.attrs]
        if any(a >= b for a, b in itertools.pairwise(names)):
            raise InvalidGraphError(
                f"{where}: attributes {', '.join(names)}; expected distinct names in sorted order"
            )

    def _check_fresh(self, value: int, where: str) -> None:
        if value in self.types or value in self.integers:
            raise InvalidGraphError(f"{where}: defines value {value} a second time; expected once")

    def _define(self, value: int, tensor: TensorType, where: str) -> None:
        if tensor not in self.checked:
            self._check_type(tensor, where)
            self.checked.add(tensor)
        self.types[value] = tensor

    def _check_type(self, tensor: TensorType, where: str) -> None:
        strides = tensor.strides or ()
        if strides and len(strides) != len(tensor.shape):
            raise InvalidGraphError(
                f"{where}: {len(strides)} strides for {len(tensor.shape)} axes;"
                " expected one for each"
            )
        for word, exprs in (("extent", tensor.shape), ("stride", strides)):
            for expr in exprs:
                self._check_symbols(expr.symbols, where)
                if expr.is_constant and expr.constant < 0:
                    raise InvalidGraphError(f"{where}: {word} {expr}; expected 0 or more")

    def _check_use(self, value: int, where: str) -> None:
        if value in self.types:
            return
        if value in self.integers:
            raise InvalidGraphError(
                f"{where}: uses value {value} as a tensor, but it is a symbolic integer;"
                " expected its symbol in an expression"
            )
        definer = self._definer_of(value)
        if definer is None:
            raise InvalidGraphError(
                f"{where}: uses value {value}, which nothing defines;"
                " expected an input's or an earlier node's value"
            )
        raise InvalidGraphError(
            f"{where}: uses value {value}, which is defined only by {definer}; expected nodes in"
            " topological order, which a cyclic graph does not have"
        )

    def _definer_of(self, value: int) -> str | None:
        for index, node in enumerate(self.graph.nodes):
            if value in node.results:
                return f"node {index} ({node.op})"
        return None

    def _check_symbols(self, names: set[str] | frozenset[str], where: str) -> None:
        unknown = sorted(names - self.symbols)
        if unknown:
            known = ", ".join(sorted(self.symbols)) or "none"
            raise InvalidGraphError(
                f"{where}: symbol {unknown[0]} is not declared; expected one of: {known}"
            )

    def _check_outputs(self) -> None:
        graph = self.graph
        if len(graph.outputs) != len(graph.output_types):
            raise InvalidGraphError(
                f"graph: {len(graph.output_types)} output types for {len(graph.outputs)} outputs;"
                " expected one for each"
            )
        for index, output in enumerate(graph.outputs):
            self._check_output(output, graph.output_types[index], f"output {index}")
        for attribute in ("output", "input"):
            numbers = [getattr(update, attribute) for update in graph.updates]
            if len(set(numbers)) != len(numbers):
                raise InvalidGraphError(f"updates of {attribute}s {numbers}; expected each once")
        for update in graph.updates:
            self._check_update(update)

    def _check_update(self, update: Update) -> None:
        graph = self.graph
        where = f"update of input {update.input} by output {update.output}"
        if not (0 <= update.output < len(graph.outputs) and 0 <= update.input < len(graph.inputs)):
            raise InvalidGraphError(
                f"{where}: {len(graph.outputs)} outputs and {len(graph.inputs)} inputs;"
                " expected one of each"
            )
        kind, stated = graph.inputs[update.input].kind, graph.output_types[update.output]
        if not isinstance(kind, TensorType) or stated is None:
            raise InvalidGraphError(f"{where}: expected a tensor output and a tensor input")
        if (kind.dtype, kind.shape) != (stated.dtype, stated.shape):
            raise InvalidGraphError(
                f"{where}: {_shown(stated)} into {_shown(kind)}; expected equal types"
            )

    def _check_output(self, output: Arg, tensor: TensorType | None, where: str) -> None:
        if isinstance(output, Ref):
            self._check_use(output.value, where)
            if tensor is None:
                raise InvalidGraphError(f"{where}: a tensor without a type; expected its type")
            self._check_type(tensor, where)
            _check_agrees(tensor, self.types[output.value], where)
        elif tensor is not None:
            raise InvalidGraphError(
                f"{where}: type {_shown(tensor)} for an output that is not a tensor; expected none"
            )
        elif isinstance(output, Expr):
            self._check_symbols(output.symbols, where)
        elif output is not None and type(output) is not int:
            raise InvalidGraphError(f"{where}: {output!r}; expected a tensor, an integer or none")


def _check_agrees(stated: TensorType, defined: TensorType, where: str) -> None:
    is_equal = stated.dtype is defined.dtype and len(stated.shape) == len(defined.shape)
    pairs = zip(stated.shape, defined.shape, strict=False)
    # Different symbolic extents may have equal values; different numbers may not.
    if is_equal and all(a == b or not (a.is_constant and b.is_constant) for a, b in pairs):
        return
    raise InvalidGraphError(
        f"{where}: stated as {_shown(stated)}, but its value is {_shown(defined)};"
        " expected one element type and one shape"
    )


def _check_constant(constant: Constant, where: str) -> None:
    if not all(extent.is_constant for extent in constant.type.shape):
        raise InvalidGraphError(f"{where}: a constant of symbolic shape; expected numbers")
    extents = [extent.constant for extent in constant.type.shape]
    expected = math.prod(extents) * constant.type.dtype.itemsize_bytes
    if len(constant.data) != expected:
        raise InvalidGraphError(
            f"{where}: a constant of {len(constant.data)} bytes; expected {expected} bytes for"
            f" {_shown(constant.type)}"
        )
    if expected > MAX_CONSTANT_BYTES:
        raise InvalidGraphError(
            f"{where}: a constant of {expected} bytes; expected at most {MAX_CONSTANT_BYTES}:"
            " pass larger ones as inputs"
        )
    digest = hashlib.sha256(constant.data).digest()
    if constant.sha256 != digest:
        raise InvalidGraphError(
            f"{where}: a constant with sha256 {constant.sha256.hex() or 'missing'};"
            f" expected {digest.hex()} for its data"
        )


def _exprs_of(node: Node) -> Iterator[Expr]:
    for arg in node.args:
        yield from _exprs_in(arg)
    for _, arg in node.attrs:
        yield from _exprs_in(arg)


def _exprs_in(arg: Arg) -> Iterator[Expr]:
    if isinstance(arg, Expr):
        yield arg
    elif isinstance(arg, tuple):
        for item in arg:
            yield from _exprs_in(item)


def _shown(tensor: TensorType) -> str:
    return f"{tensor.dtype.value}[{', '.join(str(extent) for extent in tensor.shape)}]"
