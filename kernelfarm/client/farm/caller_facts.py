"""Facts that hold at every call of a captured graph; guards select variants of programs by them.

A loaded program serves many calls, so facts that may differ between calls are left out: varying
sizes and strides, and addresses. A variant that requires one of these is not selected.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.graph_ir import Graph, TensorType
from kernelfarm.ir.guards import CallerFacts, InputFacts


def facts_of(graph: Graph) -> CallerFacts:
    """The facts of a graph and of its environment."""
    inputs = tuple(
        _input_facts(source.kind) if isinstance(source.kind, TensorType) else InputFacts()
        for source in graph.inputs
    )
    return CallerFacts(inputs=inputs, environment=environment_facts())


def _input_facts(kind: TensorType) -> InputFacts:
    sizes = _constants(kind.shape)
    strides = None if kind.strides is None else _constants(kind.strides)
    return InputFacts(sizes or (), strides or (), dtype=kind.dtype.value)


def _constants(extents: tuple[Expr, ...]) -> tuple[int, ...] | None:
    """The extents as numbers; None if one of them varies."""
    if any(extent.terms for extent in extents):
        return None
    return tuple(extent.constant for extent in extents)


@lru_cache(maxsize=1)
def environment_facts() -> dict[str, str]:
    """The facts of the environment, by name."""
    return {"torch": torch.__version__.partition("+")[0]}
