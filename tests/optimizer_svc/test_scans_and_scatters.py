"""Scans fuse like reductions; scatters update a copy in place, after everything that fills it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import numpy as np
import pytest
import torch

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import as_expr
from kernelfarm.ir.builder import GraphBuilder
from kernelfarm.ir.graph_ir import Graph, Ref, TensorType, contiguous_strides
from kernelfarm.ir.interpret import run_graph, run_program
from kernelfarm.ir.loop_ir import Access, Kernel, Scan, Store, StoreMode, scattering_stores
from kernelfarm.ir.program_ir import BufferKind, Launch, Program
from kernelfarm.ir.verify import verify_program
from kernelfarm.targets import target_facts
from optimizer_svc.pipeline import optimize
from tests.support.operator_samples.scans_and_scatters import scan_and_scatter_calls
from tests.support.single_operator import Call, lowered, to_numpy, to_torch

TARGET = target_facts("cpu:x86-64-v3")


def graph_of(build: Callable[..., list[int]], *inputs: tuple[DType, tuple[int, ...]]) -> Graph:
    builder = GraphBuilder()
    values = []
    for dtype, shape in inputs:
        extents = tuple(as_expr(n) for n in shape)
        values.append(builder.add_input(TensorType(dtype, extents, contiguous_strides(extents))))
    outputs = build(builder, *values)
    types = [builder.type_of(value) for value in outputs]
    stated = [TensorType(t.dtype, t.shape, contiguous_strides(t.shape)) for t in types]
    return builder.build([Ref(value) for value in outputs], stated)


def program_of(graph: Graph, *arrays: np.ndarray) -> Program:
    """The program of a graph, which gives what the graph means."""
    program = optimize(graph, TARGET).program
    verify_program(program)
    got, reference = run_program(program, list(arrays)), run_graph(graph, list(arrays))
    for ours, theirs in zip(got, reference, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    return program


def launches(program: Program) -> list[Kernel]:
    return [program.kernels[s.kernel] for s in program.plan.steps if isinstance(s, Launch)]


X = np.random.default_rng(0).normal(size=(6, 40)).astype(np.float32)


def test_a_softmax_before_and_a_maximum_after_a_running_sum_are_one_kernel() -> None:
    def build(b: GraphBuilder, x: int) -> list[int]:
        shape = b.type_of(x).shape
        top = b.add("amax", x, dims=(1,))
        powers = b.add(
            "exp", b.add("sub", x, b.add("broadcast_in_dim", top, dims=(0,), shape=shape))
        )
        total = b.add("broadcast_in_dim", b.add("sum", powers, dims=(1,)), dims=(0,), shape=shape)
        running = b.add("cumsum", b.add("div", powers, total), dim=1)
        return [b.add("sqrt", running), b.add("amax", running, dims=(1,))]

    (kernel,) = launches(program_of(graph_of(build, (DType.F32, (6, 40))), X))
    assert sum(isinstance(s, Scan) for s in kernel.body) == 1


def test_scans_along_different_axes_are_two_kernels() -> None:
    def build(b: GraphBuilder, x: int) -> list[int]:
        return [b.add("cumsum", b.add("cumsum", x, dim=0), dim=1)]

    kernels = launches(program_of(graph_of(build, (DType.F32, (6, 40))), X))
    assert len(kernels) == 2


def test_a_scan_and_an_arg_reduction_count_axes_in_one_order_or_stay_apart() -> None:
    def build(b: GraphBuilder, x: int) -> list[int]:
        flat = b.add("reshape", x, shape=(240,))
        turned = b.add("reshape", b.add("permute", x, dims=(1, 0)), shape=(240,))
        doubled = b.add("add", x, x)
        best = b.add("argmax", b.add("permute", doubled, dims=(1, 0)), dims=(0, 1))
        return [b.add("cumsum", flat, dim=0), b.add("cummax_index", turned, dim=0), doubled, best]

    program_of(graph_of(build, (DType.F32, (6, 40))), X)


INDEX = np.array([5, 0, 5, -1], np.int64)
ROWS = np.random.default_rng(1).normal(size=(4, 40)).astype(np.float32)
OPERANDS = ((DType.F32, (6, 40)), (DType.I64, (4,)), (DType.F32, (4, 40)))


def test_an_input_is_copied_before_it_is_scattered_into() -> None:
    def build(b: GraphBuilder, x: int, index: int, rows: int) -> list[int]:
        return [b.add("scatter", x, index, b.add("exp", rows), dims=(0,), mode="add")]

    program = program_of(graph_of(build, *OPERANDS), X, INDEX, ROWS)
    copy, update = launches(program)
    assert not scattering_stores(copy)
    (number,) = scattering_stores(update)
    store = update.body[number]
    assert isinstance(store, Store)
    assert store.mode is StoreMode.ADD
    assert update.param(store.param).access is Access.READ_WRITE
    # Both write the output itself.
    assert [b.kind for b in program.plan.buffers].count(BufferKind.OUTPUT) == 1
    assert not any(b.kind is BufferKind.TEMPORARY for b in program.plan.buffers)


def test_what_a_kernel_makes_for_a_scatter_alone_is_not_copied() -> None:
    def build(b: GraphBuilder, x: int, index: int, rows: int) -> list[int]:
        first = b.add("scatter", b.add("neg", x), index, rows, dims=(0,), mode="set")
        return [b.add("scatter", first, index, rows, dims=(0,), mode="add")]

    # neg, and an update for each scatter, all in the output.
    program = program_of(graph_of(build, *OPERANDS), X, INDEX, ROWS)
    assert len(launches(program)) == 3
    assert not any(b.kind is BufferKind.TEMPORARY for b in program.plan.buffers)


def test_a_base_that_others_read_keeps_its_elements() -> None:
    def build(b: GraphBuilder, x: int, index: int, rows: int) -> list[int]:
        base = b.add("exp", x)
        written = b.add("scatter", base, index, rows, dims=(0,), mode="set")
        again = b.add("scatter", base, index, rows, dims=(0,), mode="max")
        return [b.add("add", base, written), b.add("sub", again, base), base]

    program_of(graph_of(build, *OPERANDS), X, INDEX, ROWS)


def test_a_reader_of_a_scatter_is_a_kernel_of_its_own_and_says_why() -> None:
    def build(b: GraphBuilder, x: int, index: int, rows: int) -> list[int]:
        return [b.add("exp", b.add("scatter", x, index, rows, dims=(0,), mode="set"))]

    graph = graph_of(build, *OPERANDS)
    assert len(launches(program_of(graph, X, INDEX, ROWS))) == 3
    report = dict(optimize(graph, TARGET).stages)["report"]
    assert "a scatter is done only when its kernel is" in report


def test_a_refusal_is_reported_of_kernels_that_grew_after_it() -> None:
    def build(b: GraphBuilder, x: int, index: int, rows: int) -> list[int]:
        shifted = b.add("neg", x)
        sums = b.add("scatter", x, index, rows, dims=(0,), mode="add")
        more = b.add("scatter", b.add("exp", x), index, rows, dims=(0,), mode="max")
        first = b.add("cumsum", b.add("add", sums, shifted), dim=1)
        return [first, b.add("mul", more, b.add("cumprod", first, dim=1)), sums, more, shifted]

    graph = graph_of(build, *OPERANDS)
    program_of(graph, X, INDEX, ROWS)
    assert "not fused: steps" in dict(optimize(graph, TARGET).stages)["report"]


def test_updates_of_a_set_keep_the_order_of_their_index() -> None:
    def build(b: GraphBuilder, x: int, index: int, rows: int) -> list[int]:
        turned = b.add("permute", b.add("permute", rows, dims=(1, 0)), dims=(1, 0))
        return [b.add("scatter", x, index, turned, dims=(0,), mode="set")]

    (_, update) = launches(program_of(graph_of(build, *OPERANDS), X, INDEX, ROWS))
    assert [axis.extent.as_int() for axis in update.outer] in ([4, 40], [160])


CALLS: dict[str, list[Call]] = defaultdict(list)
for _call in scan_and_scatter_calls():
    CALLS[_call.op].append(_call)


@pytest.mark.parametrize("is_symbolic", [False, True], ids=["static", "symbolic"])
@pytest.mark.parametrize("op", sorted(CALLS))
def test_programs_of_an_operator_give_what_eager_gives(op: str, is_symbolic: bool) -> None:
    for call in CALLS[op]:
        program = optimize(lowered(call, is_symbolic=is_symbolic).graph, TARGET).program
        verify_program(program)
        results = run_program(program, [to_numpy(tensor) for tensor in call.tensors()])
        for reference, got in zip(call.eager(), results, strict=True):
            ours = to_torch(np.asarray(got))
            bound = 1.6e-2 if reference.dtype.itemsize == 2 else 1e-5
            torch.testing.assert_close(ours, reference, rtol=bound, atol=bound, equal_nan=True)
