"""Codec of graphs, of both dialects."""

from __future__ import annotations

from dataclasses import replace

from kernelfarm.errors import InvalidGraphError, MalformedMessageError, UnsupportedVersionError
from kernelfarm.ir.check_graph import PRIMS_DIALECT, check_client_graph
from kernelfarm.ir.graph_ir import (
    ABI_VERSION,
    Arg,
    Constant,
    Graph,
    Input,
    Node,
    TensorType,
    Update,
)
from kernelfarm.ir.hints import NodeHint
from kernelfarm.ir.work_budget import phase, spend
from kernelfarm.v1 import graph_pb2 as pb
from kernelfarm.wire.argument import argument_from_proto, argument_to_proto
from kernelfarm.wire.hint import hint_from_proto, hint_to_proto
from kernelfarm.wire.names import MAX_LABEL_CHARS, MAX_TEXT_CHARS, checked_name
from kernelfarm.wire.tensor_type import (
    size_symbol_from_proto,
    size_symbol_to_proto,
    tensor_type_from_proto,
    tensor_type_to_proto,
)


def graph_to_proto(graph: Graph) -> pb.Graph:
    """The message of a graph.

    Raises:
        InvalidGraphError: an argument has no message.
    """
    return pb.Graph(
        abi_version=graph.abi_version,
        dialect=graph.dialect,
        symbols=[size_symbol_to_proto(size) for size in graph.symbols],
        inputs=[_input_to_proto(source) for source in graph.inputs],
        nodes=[_node_to_proto(node) for node in graph.nodes],
        outputs=[argument_to_proto(output) for output in graph.outputs],
        output_types=[
            pb.TensorType() if tensor is None else tensor_type_to_proto(tensor)
            for tensor in graph.output_types
        ],
        locations=graph.locations,
        origin_ops=graph.origin_ops,
        updates=[pb.Update(output=u.output, input=u.input) for u in graph.updates],
        hints=[
            pb.NodeHint(node=found.node, hint=hint_to_proto(found.hint))
            for found in graph.kernel_hints
        ],
    )


def graph_from_proto(message: pb.Graph, dialect: str | None = None) -> Graph:
    """The graph of a message, structurally checked; of the given dialect, if one is given.

    This is the one check of a graph that comes from another process: what works on the result
    checks it no further.

    Raises:
        WorkBudgetError: the request's budget of steps is spent.
        UnsupportedVersionError: this farm does not support the contract version.
        UnsupportedDTypeError: an element type is unknown.
        MalformedMessageError: a required part is missing, or nested too deeply.
        InvalidGraphError: another dialect, or the graph breaks a rule; see `check_client_graph`.
    """
    if message.abi_version != ABI_VERSION:
        raise UnsupportedVersionError(
            f"graph has contract version {message.abi_version}; this farm speaks {ABI_VERSION}"
        )
    if dialect is not None and message.dialect != dialect:
        seen = checked_name(message.dialect, "graph: a dialect")
        raise InvalidGraphError(f"graph has dialect {seen!r}; expected {dialect!r}")
    with phase("decode"):
        return _checked_graph(message)


def _checked_graph(message: pb.Graph) -> Graph:
    spend(len(message.locations) + len(message.origin_ops) + len(message.updates))
    spend(len(message.hints))
    graph = Graph(
        dialect=checked_name(message.dialect, "graph: a dialect"),
        symbols=tuple(size_symbol_from_proto(size, "graph") for size in message.symbols),
        inputs=tuple(_input_from_proto(i, source) for i, source in enumerate(message.inputs)),
        nodes=tuple(
            _node_from_proto(i, node, message.dialect) for i, node in enumerate(message.nodes)
        ),
        outputs=tuple(argument_from_proto(o, "graph outputs") for o in message.outputs),
        output_types=_output_types(message),
        locations=tuple(
            checked_name(location, f"location {i}", MAX_TEXT_CHARS)
            for i, location in enumerate(message.locations)
        ),
        abi_version=message.abi_version,
        origin_ops=tuple(checked_name(op, "an origin") for op in message.origin_ops),
        updates=tuple(Update(u.output, u.input) for u in message.updates),
        kernel_hints=tuple(
            NodeHint(found.node, hint_from_proto(found.hint, f"node {found.node}"))
            for found in message.hints
        ),
    )
    check_client_graph(graph)
    return graph


def _input_to_proto(source: Input) -> pb.Input:
    match source.kind:
        case TensorType() as tensor:
            kind = pb.Input(tensor=tensor_type_to_proto(tensor))
        case Constant(constant_type, sha256, data):
            constant = pb.Constant(
                type=tensor_type_to_proto(constant_type), sha256=sha256, data=data
            )
            kind = pb.Input(constant=constant)
        case name:
            kind = pb.Input(symbol=name)
    kind.value = source.value
    kind.name = source.name
    return kind


def _input_from_proto(index: int, message: pb.Input) -> Input:
    name = checked_name(message.name, f"input {index}: a name", MAX_LABEL_CHARS)
    where = f"input {index} ({name})" if name else f"input {index}"
    form = message.WhichOneof("kind")
    if form is None:
        raise MalformedMessageError(
            f"{where}: its kind is not set; expected tensor, symbol or constant"
        )
    kind: TensorType | str | Constant
    if form == "tensor":
        kind = tensor_type_from_proto(message.tensor, where)
    elif form == "symbol":
        kind = checked_name(message.symbol, f"{where}: a symbol")
    else:
        constant_type = tensor_type_from_proto(message.constant.type, where)
        kind = Constant(constant_type, message.constant.sha256, message.constant.data)
    return Input(message.value, kind, message.name)


def _node_to_proto(node: Node) -> pb.Node:
    return pb.Node(
        op=node.op,
        args=[argument_to_proto(arg) for arg in node.args],
        attrs=[pb.Attribute(name=name, value=argument_to_proto(arg)) for name, arg in node.attrs],
        results=node.results,
        types=[tensor_type_to_proto(tensor) for tensor in node.types],
        origins=node.origins,
        location=node.location,
    )


def _node_from_proto(index: int, message: pb.Node, dialect: str) -> Node:
    where = f"node {index} ({checked_name(message.op, f'node {index}: an operator')})"
    spend(12 + len(message.results) + len(message.origins))
    types = tuple(tensor_type_from_proto(tensor, where) for tensor in message.types)
    if dialect == PRIMS_DIALECT and message.op != "extern":
        # Prims have value semantics: the empty strides of a scalar are not binding either.
        types = tuple(replace(t, strides=None) for t in types)
    return Node(
        op=message.op,
        args=tuple(argument_from_proto(arg, where) for arg in message.args),
        attrs=_attrs(message, where),
        results=tuple(message.results),
        types=types,
        origins=tuple(message.origins),
        location=message.location,
    )


def _attrs(message: pb.Node, where: str) -> tuple[tuple[str, Arg], ...]:
    attrs = []
    for attr in message.attrs:
        if not attr.name:
            raise MalformedMessageError(f"{where}: an attribute without a name")
        name = checked_name(attr.name, f"{where}: an attribute")
        attrs.append((name, argument_from_proto(attr.value, where)))
    return tuple(attrs)


def _output_types(message: pb.Graph) -> tuple[TensorType | None, ...]:
    if len(message.output_types) != len(message.outputs):
        raise InvalidGraphError(
            f"graph: {len(message.output_types)} output types for {len(message.outputs)} outputs;"
            " expected one for each"
        )
    return tuple(
        tensor_type_from_proto(tensor, f"type of output {index}") if tensor.dtype else None
        for index, tensor in enumerate(message.output_types)
    )
