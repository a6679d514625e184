"""Messages of an attacker, serialized; each costs a farm much more than its sender.

A `Template` is serialized once. Its copies differ in one floating-point constant: each is another
program with a key of its own, and costs its sender the replacement of eight bytes.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from kernelfarm.ir.algebra.expr import ONE, symbol
from kernelfarm.ir.graph_ir import (
    Arg,
    Graph,
    Input,
    Node,
    Ref,
    SizeSymbol,
    TensorType,
)
from kernelfarm.v1 import cache_service_pb2 as cache_api
from kernelfarm.v1 import compile_service_pb2 as api
from kernelfarm.v1 import graph_pb2 as pb
from kernelfarm.wire import graph_to_proto
from tests.support.small_graphs import tensor

MIB = 1024 * 1024
CPU = "cpu:x86-64-v3"
CUDA = "cuda:sm_90a"

_MARK = 1.2345678901234567e-200
_MARK_BYTES = struct.pack("<d", _MARK)
_FIRST_CONSTANT = 1.5
_STEP = 2.0**-30

_SYMBOLS = 40
_FACTORS = 9

_RELU = "aten.relu.default"
_MUL = "aten.mul.Tensor"
_TAN = "aten.tan.default"
_CAT = "aten.cat.default"


@dataclass(frozen=True)
class Template:
    """A message whose marked constant is replaced in each copy; without a mark, always the same."""

    data: bytes

    def copy(self, number: int) -> bytes:
        """The message with constant `number`; other numbers make other programs."""
        constant = struct.pack("<d", _FIRST_CONSTANT + number * _STEP)
        return self.data.replace(_MARK_BYTES, constant, 1) if self._is_marked else self.data

    @cached_property
    def _is_marked(self) -> bool:
        return _MARK_BYTES in self.data


def chain(source: TensorType, steps: Sequence[tuple[str, tuple[Arg, ...]]]) -> tuple[Node, ...]:
    """Nodes that apply one operator after the other; the first one reads value 0."""
    return tuple(
        Node(op, (Ref(index), *more), (), (index + 1,), (source,))
        for index, (op, more) in enumerate(steps)
    )


def unary_graph(
    source: TensorType,
    steps: Sequence[tuple[str, tuple[Arg, ...]]],
    symbols: Sequence[SizeSymbol] = (),
) -> Graph:
    """A graph of one input and a chain of operators that keep its type."""
    nodes = chain(source, steps)
    inputs = (Input(0, source, "x"),)
    return Graph("aten", tuple(symbols), inputs, nodes, (Ref(len(nodes)),), (source,))


def compile_template(graph: Graph, target: str = CPU) -> Template:
    """A `CompileRequest` for a graph."""
    request = api.CompileRequest(graph=graph_to_proto(graph), targets=[target])
    return Template(request.SerializeToString())


def small_program(target: str = CPU, links: int = 6) -> Template:
    """A program of a legitimate tenant: a chain of cheap operators over a matrix."""
    functions = ("aten.abs.default", "aten.relu.default", "aten.neg.default")
    steps = [(functions[link % 3], ()) for link in range(links)]
    return compile_template(unary_graph(tensor(64, 128), [*steps, (_MUL, (_MARK,))]), target)


def cat_of_dynamic_inputs(pieces: int = 13, target: str = CPU) -> Template:
    """`relu(cat(...)) * c` of inputs whose rows are one size symbol each."""
    sizes = [symbol(f"s{number}") for number in range(pieces)]
    rows = sum(sizes[1:], start=sizes[0])
    joined = tensor(rows, 8)
    inputs = tuple(Input(n, tensor(size, 8), f"x{n}") for n, size in enumerate(sizes))
    nodes = (
        Node(_CAT, (tuple(Ref(n) for n in range(pieces)), 0), (), (pieces,), (joined,)),
        Node(_RELU, (Ref(pieces),), (), (pieces + 1,), (joined,)),
        Node(_MUL, (Ref(pieces + 1), _MARK), (), (pieces + 2,), (joined,)),
    )
    symbols = _symbols(pieces)
    return compile_template(
        Graph("aten", symbols, inputs, nodes, (Ref(pieces + 2),), (joined,)), target
    )


def product_of_extents(factors: int = 24, target: str = CPU) -> Template:
    """`relu(x) * c` of a tensor of extents `s0 + 1`, `s1 + 1`, ...: 2^factors terms multiplied out.

    The strides are those of an expanded tensor: they are small, so that decoding refuses nothing.
    """
    kind = _grown_tensor(factors)
    nodes = chain(kind, [(_RELU, ()), (_MUL, (_MARK,))])
    return compile_template(_with_sizes(kind, nodes, kind, factors), target)


def _grown_tensor(factors: int) -> TensorType:
    extents = [symbol(f"s{number}") + 1 for number in range(factors)]
    return tensor(*extents, strides=[ONE] * factors)


def _with_sizes(
    source: TensorType, nodes: tuple[Node, ...], result: TensorType, symbols: int
) -> Graph:
    """A graph of one tensor, which also gets its size symbols as inputs."""
    last = len(nodes)
    sizes = tuple(Input(last + 1 + n, f"s{n}") for n in range(symbols))
    inputs = (Input(0, source, "x"), *sizes)
    return Graph("aten", _symbols(symbols), inputs, nodes, (Ref(last),), (result,))


def heavy_kernel(functions: int = 250, target: str = CUDA) -> Template:
    """A chain of tangents, fused to one kernel: ptxas takes minutes and more than a gigabyte."""
    steps = [(_MUL, (_MARK,)), *[(_TAN, ())] * functions]
    return compile_template(unary_graph(tensor(64, 128), steps), target)


def explained_products(size_bytes: int = 2_700_000) -> Template:
    """An `ExplainMissRequest`, which a reader may send: sizes that multiply out to 511 terms each.

    No two sizes are equal, so that no cache of decoded sizes helps.
    """
    source = tensor(4, 4)
    one = pb.Argument(expr=_product((0, 1, 2)))
    sizes = pb.ArgumentList(
        items=[
            pb.Argument(expr=_product(chosen))
            for chosen in itertools.islice(
                itertools.combinations(range(_SYMBOLS), _FACTORS),
                size_bytes // (one.ByteSize() * _FACTORS // 3),
            )
        ]
    )
    graph = graph_to_proto(unary_graph(source, [(_MUL, (_MARK,))], _symbols(_SYMBOLS)))
    graph.nodes[0].args.append(pb.Argument(list=sizes))
    request = cache_api.ExplainMissRequest(graph=graph, target=CPU)
    return Template(request.SerializeToString())


def _product(chosen: Sequence[int]) -> pb.Expr:
    """`(s0 + 1) * (s1 + 1) * ...`, not multiplied out."""
    factors = [
        pb.Expr(
            call=pb.ExprCall(
                op=pb.EXPR_OP_ADD, operands=[pb.Expr(symbol=f"s{n}"), pb.Expr(constant=1)]
            )
        )
        for n in chosen
    ]
    return pb.Expr(call=pb.ExprCall(op=pb.EXPR_OP_MUL, operands=factors))


def many_empty_nodes(size_bytes: int = 30 * MIB) -> Template:
    """A `CompileRequest` of nodes of two bytes: parsed, it takes thirty times as much memory."""
    return Template(_with_graph(b"\x2a\x00" * (size_bytes // 2)))


def long_operator_name(size_bytes: int = 30 * MIB) -> Template:
    """A `CompileRequest` with a long name of an unknown operator; each copy has another name."""
    source = tensor(4, 4)
    node = Node("aten." + "x" * size_bytes, (Ref(0), _MARK), (), (1,), (source,))
    graph = Graph("aten", (), (Input(0, source),), (node,), (Ref(1),), (source,))
    return compile_template(graph)


def failing_graph(name_bytes: int = 200) -> Template:
    """A small `CompileRequest` that is refused: its result's type contradicts the operator."""
    source, wrong = tensor(4, 4), tensor(4, 5)
    nodes = (
        Node(_MUL, (Ref(0), _MARK), (), (1,), (source,)),
        Node(_RELU, (Ref(1),), (), (2,), (wrong,)),
    )
    inputs = (Input(0, source, "x" * name_bytes),)
    return compile_template(Graph("aten", (), inputs, nodes, (Ref(2),), (wrong,)))


def numbered(template: Template, start: int = 0) -> Callable[[], bytes]:
    """A function that returns a new copy at each call."""
    numbers = itertools.count(start)
    return lambda: template.copy(next(numbers))


def _with_graph(body: bytes) -> bytes:
    """A `CompileRequest` with a serialized graph, in the current ABI version."""
    head = pb.Graph(abi_version=1, dialect="aten").SerializeToString()
    graph = head + body
    tail = api.CompileRequest(targets=[CPU]).SerializeToString()
    return b"\x12" + _varint(len(graph)) + graph + tail


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def _symbols(number: int) -> tuple[SizeSymbol, ...]:
    return tuple(SizeSymbol(f"s{n}", 2, None, 8 + n) for n in range(number))
