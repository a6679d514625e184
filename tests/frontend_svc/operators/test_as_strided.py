"""`as_strided`: a view if the stated layout allows it, else an extern step."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import ONE, Expr, as_expr, symbol
from kernelfarm.ir.graph_ir import (
    Graph,
    Input,
    Node,
    Ref,
    SizeSymbol,
    TensorType,
    contiguous_strides,
)
from kernelfarm.ir.interpret import run_graph
from tests.support.examples import examples


def tensor(shape: tuple[int, ...], strides: tuple[int, ...] | None = None) -> TensorType:
    extents = tuple(as_expr(extent) for extent in shape)
    steps = contiguous_strides(extents) if strides is None else tuple(map(as_expr, strides))
    return TensorType(DType.F32, extents, steps)


def graph_of(
    layout: TensorType, size: tuple[int, ...], stride: tuple[int, ...], offset: int | None
) -> Graph:
    """`neg`, whose result has the stated layout, and `as_strided` of it."""
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
    lowered = decompose_to_prims(graph_of(tensor(shape, strides), size, stride, offset)).graph
    assert "extern" not in [node.op for node in lowered.nodes]
    elements = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    memory = np.zeros(elements.size, dtype=np.float32)
    for position in product(*(range(n) for n in shape)):
        memory[sum(i * s for i, s in zip(position, strides, strict=True))] = -elements[position]
    expected = np.lib.stride_tricks.as_strided(
        memory[offset or 0 :], size, tuple(4 * s for s in stride)
    )
    np.testing.assert_array_equal(run_graph(lowered, [elements])[0], expected)


@st.composite
def windows(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    axes = draw(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 6)), max_size=4))
    return (*zip(*axes, strict=True), draw(st.integers(0, 6))) if axes else ((), (), 0)


@given(window=windows(), is_transposed=st.booleans())
@settings(deadline=None, max_examples=examples(150))
def test_any_window_within_a_dense_value_is_a_view(
    window: tuple[tuple[int, ...], tuple[int, ...], int], *, is_transposed: bool
) -> None:
    size, stride, offset = window
    layout = tensor((6, 8), (1, 6) if is_transposed else (8, 1))
    last = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    lowered = decompose_to_prims(graph_of(layout, size, stride, offset)).graph
    is_extern = "extern" in [node.op for node in lowered.nodes]
    assert is_extern == (last >= 48)
    if is_extern:
        return
    elements = np.arange(48, dtype=np.float32).reshape(6, 8)
    memory = -(elements.T if is_transposed else elements).ravel()
    expected = np.lib.stride_tricks.as_strided(memory[offset:], size, [4 * s for s in stride])
    np.testing.assert_array_equal(run_graph(lowered, [elements])[0], expected)


def test_chunks_of_a_symbolic_length_that_overlap_are_a_view() -> None:
    """As in attention for long documents: chunks of 4, every 2."""
    chunks = symbol("s0")
    length = 2 * chunks + 2
    x, kind = TensorType(DType.F32, (length,), (ONE,)), tensor_of(chunks, as_expr(4))
    negated = Node("aten.neg.default", (Ref(3),), (), (1,), (x,))
    read = Node("aten.as_strided.default", (Ref(1), (chunks, 4), (2, 1)), (), (2,), (kind,))
    sizes = (SizeSymbol("s0", 1, None, 3),)
    inputs = (Input(0, "s0"), Input(3, x))
    graph = Graph("aten", sizes, inputs, (negated, read), (Ref(2),), (kind,))
    lowered = decompose_to_prims(graph).graph
    assert "extern" not in [node.op for node in lowered.nodes]
    elements = np.arange(8, dtype=np.float32)
    expected = -np.stack([elements[2 * i : 2 * i + 4] for i in range(3)])
    np.testing.assert_array_equal(run_graph(lowered, [3, elements])[0], expected)


def tensor_of(*shape: Expr) -> TensorType:
    return TensorType(DType.F32, shape, contiguous_strides(shape))


@pytest.mark.parametrize(("offset", "expected"), [((), []), ((0,), ["extern"])])
def test_an_offset_into_the_memory_of_an_input_is_extern(
    offset: tuple[int, ...], expected: list[str]
) -> None:
    kind = tensor((2, 3))
    read = Node("aten.as_strided.default", (Ref(0), (2, 3), (1, 1), *offset), (), (1,), (kind,))
    graph = Graph("aten", (), (Input(0, tensor((4,))),), (read,), (Ref(1),), (kind,))
    nodes = decompose_to_prims(graph).graph.nodes
    assert [node.op for node in nodes if node.op == "extern"] == expected


def test_a_window_beyond_an_input_is_extern() -> None:
    kind = tensor((2, 3))
    read = Node("aten.as_strided.default", (Ref(0), (2, 3), (3, 1)), (), (1,), (kind,))
    graph = Graph("aten", (), (Input(0, tensor((4,))),), (read,), (Ref(1),), (kind,))
    assert [node.op for node in decompose_to_prims(graph).graph.nodes] == ["extern"]
