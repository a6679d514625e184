"""Random Prims graphs that update their inputs."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from kernelfarm.ir.algebra.expr import ZERO
from kernelfarm.ir.graph_ir import Ref, TensorType, Update
from tests.support.random_graphs import Case, Draw, cases


@st.composite
def updating_cases(draw: Draw) -> Case:
    """Random graphs in which a value of the same type replaces each input's content."""
    case = draw(cases())
    graph = case.graph
    types = graph.types()
    outputs, stated, updates = list(graph.outputs), list(graph.output_types), []
    for number, source in enumerate(graph.inputs):
        kind = source.kind
        if not isinstance(kind, TensorType) or ZERO in (kind.strides or (ZERO,)):
            continue
        fitting = [v for v, t in types.items() if (t.dtype, t.shape) == (kind.dtype, kind.shape)]
        updates.append(Update(len(outputs), number))
        outputs.append(Ref(draw(st.sampled_from(fitting))))
        stated.append(kind)
    changed = replace(
        graph, outputs=tuple(outputs), output_types=tuple(stated), updates=tuple(updates)
    )
    return Case(changed, case.inputs)
