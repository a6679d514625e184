"""Scans fuse like reductions. A scatter updates a copy in place, after the copy is complete."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
import torch

from kernelfarm.dtypes import DType
from kernelfarm.ir.builder import GraphBuilder
from kernelfarm.ir.interpret import run_program
from kernelfarm.ir.loop_ir import Scan
from kernelfarm.ir.verify import verify_program
from optimizer_svc.pipeline import optimize
from tests.optimizer_svc.scatter_graphs import (
    INDEX,
    OPERANDS,
    ROWS,
    TARGET,
    X,
    graph_of,
    launches,
    program_of,
)
from tests.support.operator_samples.scans_and_scatters import scan_and_scatter_calls
from tests.support.single_operator import Call, lowered, to_numpy, to_torch


def test_softmax_running_sum_and_maximum_are_one_kernel() -> None:
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


def test_a_scan_and_an_arg_reduction_fuse_only_if_their_axis_orders_agree() -> None:
    def build(b: GraphBuilder, x: int) -> list[int]:
        flat = b.add("reshape", x, shape=(240,))
        turned = b.add("reshape", b.add("permute", x, dims=(1, 0)), shape=(240,))
        doubled = b.add("add", x, x)
        best = b.add("argmax", b.add("permute", doubled, dims=(1, 0)), dims=(0, 1))
        return [b.add("cumsum", flat, dim=0), b.add("cummax_index", turned, dim=0), doubled, best]

    program_of(graph_of(build, (DType.F32, (6, 40))), X)


def test_a_reader_of_a_scatter_is_a_kernel_of_its_own_with_a_reason() -> None:
    def build(b: GraphBuilder, x: int, index: int, rows: int) -> list[int]:
        return [b.add("exp", b.add("scatter", x, index, rows, dims=(0,), mode="set"))]

    graph = graph_of(build, *OPERANDS)
    assert len(launches(program_of(graph, X, INDEX, ROWS))) == 3
    report = dict(optimize(graph, TARGET).stages)["report"]
    assert "a scatter is done only when its kernel is" in report


def test_a_refusal_is_reported_for_groups_that_grew_after_it() -> None:
    def build(b: GraphBuilder, x: int, index: int, rows: int) -> list[int]:
        shifted = b.add("neg", x)
        sums = b.add("scatter", x, index, rows, dims=(0,), mode="add")
        more = b.add("scatter", b.add("exp", x), index, rows, dims=(0,), mode="max")
        first = b.add("cumsum", b.add("add", sums, shifted), dim=1)
        return [first, b.add("mul", more, b.add("cumprod", first, dim=1)), sums, more, shifted]

    graph = graph_of(build, *OPERANDS)
    program_of(graph, X, INDEX, ROWS)
    assert "not fused: steps" in dict(optimize(graph, TARGET).stages)["report"]


def test_the_updates_of_a_set_scatter_run_in_the_order_of_its_index() -> None:
    def build(b: GraphBuilder, x: int, index: int, rows: int) -> list[int]:
        turned = b.add("permute", b.add("permute", rows, dims=(1, 0)), dims=(1, 0))
        return [b.add("scatter", x, index, turned, dims=(0,), mode="set")]

    (_, update) = launches(program_of(graph_of(build, *OPERANDS), X, INDEX, ROWS))
    assert [axis.extent.as_int() for axis in update.outer] in ([4, 40], [160])


CALLS: dict[str, list[Call]] = defaultdict(list)
for _call in scan_and_scatter_calls():
    CALLS[_call.op].append(_call)


@pytest.mark.sweep
@pytest.mark.parametrize("is_symbolic", [False, True], ids=["static", "symbolic"])
@pytest.mark.parametrize("op", sorted(CALLS))
def test_programs_of_an_operator_equal_eager(op: str, is_symbolic: bool) -> None:
    for call in CALLS[op]:
        program = optimize(lowered(call, is_symbolic=is_symbolic).graph, TARGET).program
        verify_program(program)
        results = run_program(program, [to_numpy(tensor) for tensor in call.tensors()])
        for reference, got in zip(call.eager(), results, strict=True):
            ours = to_torch(np.asarray(got))
            bound = 1.6e-2 if reference.dtype.itemsize == 2 else 1e-5
            torch.testing.assert_close(ours, reference, rtol=bound, atol=bound, equal_nan=True)
