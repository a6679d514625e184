"""`as_strided`: views where the stated layout makes it one, else a step of the framework."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from frontend_svc.pipeline import lower_to_prims
from kernelfarm.dtypes import DType
from kernelfarm.ir.graph_ir import Graph, Input, Node, Ref, TensorType, contiguous_strides
from kernelfarm.ir.interpret import run_graph
from kernelfarm.ir.symbolic import as_expr


def tensor(shape: tuple[int, ...], strides: tuple[int, ...] | None = None) -> TensorType:
    extents = tuple(as_expr(extent) for extent in shape)
    steps = contiguous_strides(extents) if strides is None else tuple(map(as_expr, strides))
    return TensorType(DType.F32, extents, steps)


def graph_of(
    layout: TensorType, size: tuple[int, ...], stride: tuple[int, ...], offset: int | None
) -> Graph:
    """`neg`, whose result lies as stated, and `as_strided` of it."""
    source = TensorType(DType.F32, layout.shape, contiguous_strides(layout.shape))
    negated = Node("aten.neg.default", (Ref(0),), (), (1,), (layout,))
    kind = tensor(size, stride)
    args = (Ref(1), size, stride, *(() if offset is None else (offset,)))
    read = Node("aten.as_strided.default", args, (), (2,), (kind,))
    return Graph("aten", (), (Input(0, source),), (negated, read), (Ref(2),), (kind,))


@pytest.mark.parametrize(
    ("shape", "strides", "size", "stride", "offset"),
    [
        ((2, 3, 1, 1), (3, 1, 1, 1), (2, 3, 1, 1), (3, 1, 3, 3), None),
        ((4, 6), (6, 1), (2, 6), (6, 1), 6),
        ((4, 6), (1, 4), (4, 6), (6, 1), 0),
        ((4, 6), (1, 4), (3, 4), (1, 3), 5),
        ((2, 3, 4), (1, 8, 2), (24,), (1,), None),
        ((24,), (1,), (2, 3, 4), (4, 8, 1), None),
        ((4, 6), (6, 1), (), (), 7),
    ],
)
def test_a_dense_window_on_a_dense_value_is_a_view(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    size: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int | None,
) -> None:
    lowered = lower_to_prims(graph_of(tensor(shape, strides), size, stride, offset)).graph
    assert "extern" not in [node.op for node in lowered.nodes]
    elements = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    memory = np.zeros(elements.size, dtype=np.float32)
    for place in product(*(range(n) for n in shape)):
        memory[sum(i * s for i, s in zip(place, strides, strict=True))] = -elements[place]
    expected = np.lib.stride_tricks.as_strided(
        memory[offset or 0 :], size, tuple(4 * s for s in stride)
    )
    np.testing.assert_array_equal(run_graph(lowered, [elements])[0], expected)


@pytest.mark.parametrize(
    ("size", "stride", "offset"),
    [((3, 3), (1, 1), 0), ((2, 2), (6, 2), 0), ((4, 6), (6, 1), 1)],
    ids=["overlapping", "with gaps", "beyond the value"],
)
def test_other_windows_are_left_to_the_framework(
    size: tuple[int, ...], stride: tuple[int, ...], offset: int
) -> None:
    lowered = lower_to_prims(graph_of(tensor((4, 6)), size, stride, offset)).graph
    assert [node.op for node in lowered.nodes] == ["neg", "extern"]


def test_inputs_are_read_by_the_framework_as_they_lie_in_its_memory() -> None:
    kind = tensor((2, 2))
    read = Node("aten.as_strided.default", (Ref(0), (2, 2), (2, 1)), (), (1,), (kind,))
    graph = Graph("aten", (), (Input(0, tensor((4,))),), (read,), (Ref(1),), (kind,))
    assert [node.op for node in lower_to_prims(graph).graph.nodes] == ["extern"]
