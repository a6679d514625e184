"""Sends scans that did not fold to the framework: the optimizer has no kernel for them yet."""

from __future__ import annotations

from frontend_svc.passes.rewriting import Pass, Rebuild, Rewritten
from frontend_svc.report import Note, Outcome
from kernelfarm.errors import InternalError
from kernelfarm.ir.graph_ir import Graph, Node, TensorType, contiguous_strides

_REASON = "scan: the optimizer has no kernel for running sums yet"


def send_scans_to_framework(graph: Graph, captured: Graph) -> Rewritten:
    """The graph with each `cumsum` as a call of the captured operator that it stems from.

    The operand is already of the result's type, which a running sum keeps.
    """
    if not any(node.op == "cumsum" for node in graph.nodes):
        return Rewritten(graph)
    work = Rebuild(graph)
    notes: list[Note] = []
    for node in graph.nodes:
        operands = work.operands_of(node)
        with work.builder.origin(*node.origins, location=node.location):
            if node.op == "cumsum":
                results = _sent(work, node, operands, captured)
                notes.append(Note(node.origins, Outcome.EXTERN, _REASON))
            else:
                results = work.keep(node, operands)
        work.values.update(zip(node.results, results, strict=True))
    return Rewritten(work.finish(), tuple(notes))


def _sent(work: Rebuild, node: Node, operands: tuple[int, ...], captured: Graph) -> tuple[int, ...]:
    number = node.origins[0]
    source = captured.nodes[number]
    if source.op != "aten.cumsum.default":
        raise InternalError(f"a cumsum that stems from {source.op}; expected aten.cumsum.default")
    tensor = source.types[0]
    strides = tensor.strides or contiguous_strides(tensor.shape)
    types = (TensorType(tensor.dtype, tensor.shape, strides),)
    return work.builder.add_extern(source.op, number, operands, types, is_contraction=False)


SEND_SCANS_TO_FRAMEWORK = Pass("send_scans_to_framework", send_scans_to_framework)
