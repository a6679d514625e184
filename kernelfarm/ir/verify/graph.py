"""Rules of Prims graphs: the rules of all graphs, and those of each prim."""

from __future__ import annotations

from kernelfarm.errors import InvalidGraphError, VerificationError
from kernelfarm.ir.check_graph import PRIMS_DIALECT, check_client_graph
from kernelfarm.ir.graph_ir import Graph, Node, Ref, TensorType
from kernelfarm.ir.prim_rules import infer, is_same_extent


def verify_graph(graph: Graph) -> None:
    """Checks that a graph of the `prims` dialect is well formed.

    Raises:
        VerificationError: the first broken rule, by node index and prim.
    """
    if graph.dialect != PRIMS_DIALECT:
        raise VerificationError(f"graph has dialect {graph.dialect!r}; expected 'prims'")
    try:
        check_client_graph(graph)
    except InvalidGraphError as error:
        raise VerificationError(str(error)) from error
    verify_prims(graph)


def verify_prims(graph: Graph) -> None:
    """Passes a graph whose nodes follow the rules of their prims.

    The graph passed `check_client_graph`, as every graph that was decoded did.

    Raises:
        VerificationError: the first broken rule, by node index and prim.
    """
    types = {value: tensor for value, tensor in graph.types().items()}
    for index, node in enumerate(graph.nodes):
        try:
            _verify_node(node, types)
        except VerificationError as error:
            raise VerificationError(f"node {index}: {error}") from error


def _verify_node(node: Node, types: dict[int, TensorType]) -> None:
    operands = [arg.value for arg in node.args if isinstance(arg, Ref)]
    if len(operands) != len(node.args):
        raise VerificationError(f"{node.op}: arguments {node.args}; expected values only")
    inferred = infer(node, tuple(types[value] for value in operands))
    if len(inferred) != len(node.types):
        raise VerificationError(f"{node.op}: {len(node.types)} results; expected {len(inferred)}")
    for stated, expected in zip(node.types, inferred, strict=True):
        if not _agrees(stated, expected):
            raise VerificationError(
                f"{node.op}: a result of {_shown(stated)}; expected {_shown(expected)}"
            )


def _agrees(stated: TensorType, expected: TensorType) -> bool:
    if stated.dtype is not expected.dtype or len(stated.shape) != len(expected.shape):
        return False
    if stated.shape == expected.shape:
        return True
    return all(is_same_extent(a, b) for a, b in zip(stated.shape, expected.shape, strict=True))


def _shown(tensor: TensorType) -> str:
    return f"{tensor.dtype.value}[{', '.join(str(extent) for extent in tensor.shape)}]"
