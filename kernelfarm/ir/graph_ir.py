"""The tensor graph: one structure for captured ATen graphs and for Prims graphs.

Grammar:

    Graph ::= dialect, symbols: [SizeSymbol], inputs: [Input], nodes: [Node], outputs: [Arg],
              updates: [Update]
    Input ::= value id, TensorType | symbol name | Constant
    Node  ::= op, args: [Arg], attrs: [(name, Arg)], results: [value id], types: [TensorType]
    Arg   ::= Ref(value id) | None | int | float | bool | complex | str | DType | Expr | (Arg, ...)

Values are defined once and used after their definition; nodes mutate nothing. An Update says that
an output replaces the content of an input at the end; nobody else reads or writes that input's
memory while the graph runs. In the `prims` dialect every positional argument is a Ref, and
everything else is in the attributes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Union

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import ONE, Expr
from kernelfarm.ir.hints import NodeHint

ABI_VERSION = 1


@dataclass(frozen=True, slots=True)
class Ref:
    """A use of a value."""

    value: int


Arg = Union[Ref, None, int, float, bool, complex, str, DType, Expr, tuple["Arg", ...]]


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type, extents, and strides if they are binding, else None.

    Units: strides in elements.
    """

    dtype: DType
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...] | None = None

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.shape)


@dataclass(frozen=True, slots=True)
class SizeSymbol:
    """A size that varies between calls, with its inclusive range; None is unbounded.

    `hint` is its value at capture, which is part of no key.
    """

    name: str
    lower: int
    upper: int | None
    hint: int | None = None


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant tensor by its content: contiguous little-endian elements."""

    type: TensorType
    sha256: bytes
    data: bytes


@dataclass(frozen=True, slots=True)
class Input:
    """One input by position: a tensor, a symbolic integer (its symbol's name), or a constant."""

    value: int
    kind: TensorType | str | Constant
    name: str = ""


@dataclass(frozen=True, slots=True)
class Node:
    """One operator application.

    `origins` are numbers of captured nodes, for messages; they are part of no key.
    """

    op: str
    args: tuple[Arg, ...]
    attrs: tuple[tuple[str, Arg], ...]
    results: tuple[int, ...]
    types: tuple[TensorType, ...]
    origins: tuple[int, ...] = ()
    location: int = 0

    def attr(self, name: str, default: Arg = None) -> Arg:
        """The attribute's value, or the default."""
        return next((value for key, value in self.attrs if key == name), default)


@dataclass(frozen=True, slots=True)
class Update:
    """States that an output replaces the content of an input at the end; both by position."""

    output: int
    input: int


@dataclass(frozen=True, slots=True)
class Graph:
    """A functional tensor graph.

    `output_types` has one entry for each output, with binding strides; None if the output is no
    tensor. `origin_ops` are the names of the captured operators, by the numbers in `Node.origins`:
    debug text, which is part of no key and is not printed. `kernel_hints` are by the same numbers,
    sorted by node and name.
    """

    dialect: str
    symbols: tuple[SizeSymbol, ...]
    inputs: tuple[Input, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Arg, ...]
    output_types: tuple[TensorType | None, ...]
    locations: tuple[str, ...] = ()
    abi_version: int = ABI_VERSION
    origin_ops: tuple[str, ...] = ()
    updates: tuple[Update, ...] = ()
    kernel_hints: tuple[NodeHint, ...] = ()

    def without_hints(self) -> Graph:
        """The graph without hints of sizes: they are part of no key, so no result may use them."""
        symbols = tuple(replace(size, hint=None) for size in self.symbols)
        return self if symbols == self.symbols else replace(self, symbols=symbols)

    def types(self) -> dict[int, TensorType]:
        """The type of every tensor value by id."""
        found = {i.value: t for i in self.inputs if (t := tensor_type_of(i)) is not None}
        for node in self.nodes:
            found.update(zip(node.results, node.types, strict=True))
        return found


def tensor_type_of(source: Input) -> TensorType | None:
    """The tensor type of an input, None for a symbolic integer."""
    if isinstance(source.kind, TensorType):
        return source.kind
    return source.kind.type if isinstance(source.kind, Constant) else None


def refs_in(arg: Arg) -> Iterator[int]:
    """The ids of all values that an argument uses, in order, with repetition."""
    if isinstance(arg, Ref):
        yield arg.value
    elif isinstance(arg, tuple):
        for item in arg:
            yield from refs_in(item)


def uses_of(node: Node) -> Iterator[int]:
    """The ids of all values that a node uses, in positional arguments, then in attributes."""
    for arg in node.args:
        yield from refs_in(arg)
    for _, arg in node.attrs:
        yield from refs_in(arg)


def seed_nodes(graph: Graph) -> list[Node]:
    """The nodes whose results are seeds, which the client draws for each call."""
    return [node for node in graph.nodes if node.op == "seed"]


def seed_index(node: Node) -> int:
    """A seed's position in the order in which seeds are drawn."""
    index = node.attr("index")
    assert isinstance(index, int)  # a rule of the dialect
    return index


def contiguous_strides(shape: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Row-major strides in elements."""
    strides: list[Expr] = []
    step = ONE
    for extent in reversed(shape):
        strides.append(step)
        step = step * extent
    return tuple(reversed(strides))
