"""Mutations of operators and values that keep most of a graph valid."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from kernelfarm.v1.graph_pb2 import EXPR_OP_ADD, Argument, Dtype, Expr, ExprCall, Graph, Node
from tests.fuzz.hostile_values import ATEN, INTEGERS, PRIM_NAMES, REALS
from tests.fuzz.mutate_sizes import change_sizes, new_symbol, restride, types_of

MAX_NODES = 3000
_UNARY = {
    "aten": [
        "aten.relu",
        "aten.tan",
        "aten.exp",
        "aten.erf",
        "aten.sigmoid",
        "aten.neg",
        "aten.floor",
    ],
    "prims": ["tan", "exp", "erf", "neg", "floor", "tanh", "log"],
}
_ATTRIBUTES = [
    "dim",
    "dims",
    "dtype",
    "alpha",
    "start",
    "end",
    "step",
    "shape",
    "value",
    "axis",
    "keepdim",
    "correction",
    "k",
    "length",
]


def change_graph(graph: Graph, random: Random) -> None:
    """One change of sizes, scalars, types, operators or structure."""
    random.choice(_CHANGES)(graph, random)


def other_scalar(graph: Graph, random: Random) -> None:
    """Replaces an integer, float or bool among the arguments by a hostile one."""
    leaves = [leaf for leaf in _leaves(graph) if leaf.WhichOneof("form") in _SCALARS]
    if leaves:
        hostile_scalar(random.choice(leaves), random)


def other_kind(graph: Graph, random: Random) -> None:
    """Replaces an argument by one of another kind."""
    leaves = list(_leaves(graph))
    if not leaves:
        return
    leaf = random.choice(leaves)
    form = random.choice(("none", "value", "text", "dtype", "expr", "list", "complex_number", ""))
    if form == "value":
        leaf.value = random.choice(_values(graph) or [0])
    elif form == "text":
        leaf.text = random.choice(("", "none", "floor", "mean", "x" * 5000))
    elif form == "dtype":
        leaf.dtype = random.randrange(len(Dtype.values()))
    elif form == "expr":
        leaf.expr.CopyFrom(new_symbol(graph, random))
    elif form == "list":
        inner = Argument()
        inner.CopyFrom(leaf)
        leaf.list.items.extend([inner] * random.choice((0, 1, 2, 70)))
    elif form == "complex_number":
        leaf.complex_number.real = random.choice(REALS)
    elif form == "none":
        leaf.none.SetInParent()
    else:
        hostile_scalar(leaf, random)


def other_type(graph: Graph, random: Random) -> None:
    """Replaces an element type by another one everywhere."""
    dtypes = sorted({tensor.dtype for tensor in types_of(graph)})
    if not dtypes:
        return
    old, new = random.choice(dtypes), random.randrange(1, len(Dtype.values()))
    for tensor in types_of(graph):
        if tensor.dtype == old:
            tensor.dtype = new
    for leaf in _leaves(graph):
        if leaf.WhichOneof("form") == "dtype" and leaf.dtype == old:
            leaf.dtype = new


def other_rank(graph: Graph, random: Random) -> None:
    """Gives one tensor or all tensors one axis less, one more, or none."""
    tensors = list(types_of(graph))
    if not tensors:
        return
    chosen = tensors if random.random() < 0.15 else [random.choice(tensors)]
    action, at = random.choice(("scalar", "less", "more", "empty")), random.random()
    for tensor in chosen:
        shape = list(tensor.shape)
        position = int(at * len(shape))
        if action == "scalar":
            shape = []
        elif action == "less":
            shape = shape[:position] + shape[position + 1 :]
        else:
            extent = Expr(constant=0 if action == "empty" else random.choice((1, 2, 3)))
            shape.insert(position, extent)
        copies = [Expr.FromString(extent.SerializeToString()) for extent in shape]
        del tensor.shape[:]
        tensor.shape.extend(copies)
        if tensor.strides or not shape or chosen is not tensors:
            restride(tensor)


def other_single_type(graph: Graph, random: Random) -> None:
    """Replaces the element type of one tensor."""
    tensors = list(types_of(graph))
    if tensors:
        random.choice(tensors).dtype = random.randrange(1, 22)


def other_operator(graph: Graph, random: Random) -> None:
    """Replaces a node's operator by another one of its dialect."""
    if graph.nodes:
        names = ATEN if graph.dialect == "aten" else PRIM_NAMES
        random.choice(graph.nodes).op = random.choice(names)


def other_attribute(graph: Graph, random: Random) -> None:
    """Adds or renames a keyword argument."""
    if graph.nodes:
        node = random.choice(graph.nodes)
        if node.attrs and random.random() < 0.5:
            del node.attrs[random.randrange(len(node.attrs))]
        else:
            attribute = node.attrs.add(name=random.choice(_ATTRIBUTES))
            hostile_scalar(attribute.value, random)


def longer_chain(graph: Graph, random: Random) -> None:
    """Appends a chain of many cheap or costly operators to one output."""
    typed = list(graph.outputs)[: len(graph.output_types)]
    found = [i for i, output in enumerate(typed) if output.WhichOneof("form") == "value"]
    if not found or graph.dialect not in _UNARY:
        return
    position = random.choice(found)
    value, following = graph.outputs[position].value, max(_values(graph), default=0) + 1
    for _ in range(random.choice((1, 3, 10, 40))):
        op = random.choice(_UNARY[graph.dialect])
        node = Node(op=op if graph.dialect == "prims" else f"{op}.default", results=[following])
        node.args.add().value = value
        node.types.add().CopyFrom(graph.output_types[position])
        graph.nodes.append(node)
        value, following = following, following + 1
    graph.outputs[position].value = value


def longer_lists(graph: Graph, random: Random) -> None:
    """Extends a list of tensors, as of cat or stack, by inputs with sizes of their own."""
    lists = [node for node in graph.nodes if any(_tensor_items(arg) for arg in node.args)]
    if not lists or len(graph.nodes) > MAX_NODES:
        return
    node = random.choice(lists)
    items = next(arg.list.items for arg in node.args if _tensor_items(arg))
    kinds = {
        source.value: source for source in graph.inputs if source.WhichOneof("kind") == "tensor"
    }
    model = kinds.get(items[0].value)
    total = [node.types[0].shape[0]] if node.types and node.types[0].shape else []
    for _ in range(random.choice((1, 4, 8, 13, 40))):
        if model is None or not model.tensor.shape:
            items.add().CopyFrom(items[0])
            continue
        source = graph.inputs.add(value=max(_values(graph), default=0) + 1)
        source.tensor.CopyFrom(model.tensor)
        source.tensor.shape[0].CopyFrom(new_symbol(graph, random))
        restride(source.tensor)
        items.add().value = source.value
        total.append(source.tensor.shape[0])
    if len(total) > 1 and node.types and node.types[0].shape:
        _grow_first_axis(graph, node, total)


def two_graphs(graph: Graph, random: Random) -> None:
    """Duplicates the graph: every input, node and output twice, with other ids."""
    if len(graph.nodes) > MAX_NODES:
        return
    offset = max(_values(graph), default=0) + 1
    other = Graph()
    other.CopyFrom(graph)
    _shift(other, offset)
    del other.symbols[:], other.updates[:]
    for name in ("inputs", "nodes", "outputs", "output_types"):
        getattr(graph, name).extend(getattr(other, name))


def other_use(graph: Graph, random: Random) -> None:
    """Redirects a use to another value: earlier, later, undefined, or the node's own."""
    uses = [leaf for leaf in _leaves(graph) if leaf.WhichOneof("form") == "value"]
    if uses:
        values = _values(graph)
        random.choice(uses).value = random.choice((*values, max(values, default=0) + 1, 2**32 - 1))


def hostile_scalar(leaf: Argument, random: Random) -> None:
    """Sets an integer, float or bool to a limit of its type."""
    kind = random.random()
    if kind < 0.5:
        leaf.integer = random.choice(INTEGERS)
    elif kind < 0.9:
        leaf.real = random.choice(REALS)
    else:
        leaf.boolean = random.random() < 0.5


_SCALARS = frozenset({"integer", "real", "boolean"})
_CHANGES = (
    *(change_sizes, change_sizes, change_sizes, other_scalar, other_scalar, other_scalar),
    *(other_kind, other_type, other_operator, other_attribute, longer_chain, longer_lists),
    *(two_graphs, other_use, other_rank, other_rank, other_single_type),
)


def _leaves(graph: Graph) -> Iterator[Argument]:
    for node in graph.nodes:
        for argument in (*node.args, *(attribute.value for attribute in node.attrs)):
            if argument.WhichOneof("form") == "list":
                yield from argument.list.items
            else:
                yield argument


def _values(graph: Graph) -> list[int]:
    results = [value for node in graph.nodes for value in node.results]
    return [source.value for source in graph.inputs] + results


def _tensor_items(argument: Argument) -> bool:
    items = argument.list.items
    return bool(items) and items[0].WhichOneof("form") == "value"


def _grow_first_axis(graph: Graph, node: Node, extents: list[Expr]) -> None:
    """Sets the length of the cat's result to the sum of its pieces, and of values of that shape."""
    old = Expr()
    old.CopyFrom(node.types[0].shape[0])
    total = Expr(call=ExprCall(op=EXPR_OP_ADD, operands=extents))
    for tensor in types_of(graph):
        if (
            tensor.shape
            and tensor.shape[0] == old
            and len(tensor.shape) == len(node.types[0].shape)
        ):
            is_input = any(tensor == source.tensor for source in graph.inputs)
            if not is_input or tensor == node.types[0]:
                tensor.shape[0].CopyFrom(total)
                if tensor.strides:
                    restride(tensor)


def _shift(graph: Graph, offset: int) -> None:
    for source in graph.inputs:
        source.value = (source.value + offset) % 2**32
    for node in graph.nodes:
        node.results[:] = [(value + offset) % 2**32 for value in node.results]
    for leaf in (*_leaves(graph), *graph.outputs):
        if leaf.WhichOneof("form") == "value":
            leaf.value = (leaf.value + offset) % 2**32
