"""A sort fuses with the producers of its rows and with readers in the order of ranks."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
import torch

from kernelfarm.dtypes import DType
from kernelfarm.ir.builder import GraphBuilder
from kernelfarm.ir.interpret import run_program
from kernelfarm.ir.loop_ir import Kernel, Load, Reduce, Sort, Store
from kernelfarm.ir.verify import verify_program
from optimizer_svc.pipeline import optimize
from tests.optimizer_svc.scatter_graphs import TARGET, graph_of, launches, program_of
from tests.support.operator_samples.sorts import order_calls
from tests.support.single_operator import Call, lowered, to_numpy, to_torch

X = np.random.default_rng(0).integers(-9, 9, (6, 40)).astype(np.float32)
F32 = DType.F32


def _kernels(build: object, *shapes: tuple[int, ...]) -> list[Kernel]:
    arrays = [X.reshape(shape) for shape in shapes or ((6, 40),)]
    inputs = [(F32, array.shape) for array in arrays]
    return launches(program_of(graph_of(build, *inputs), *arrays))  # type: ignore[arg-type]


def _order(b: GraphBuilder, x: int, dim: int = 1) -> int:
    return b.add("argsort", x, dim=dim, descending=False)


def _sorted(b: GraphBuilder, x: int, dim: int = 1) -> int:
    return b.add("gather_along", x, _order(b, x, dim), dim=dim)


def test_positions_and_the_sorted_row_are_one_kernel() -> None:
    def build(b: GraphBuilder, x: int) -> list[int]:
        return [_sorted(b, x), _order(b, x)]

    (kernel,) = _kernels(build)
    assert sum(isinstance(s, Sort) for s in kernel.body) == 1
    assert sum(isinstance(s, Load) for s in kernel.body) == 2


def test_pointwise_work_before_and_after_a_sort_is_in_its_kernel() -> None:
    def build(b: GraphBuilder, x: int) -> list[int]:
        order = _order(b, b.add("neg", b.add("abs", x)))
        doubled = b.add("add", order, order)
        return [b.add("cumsum", doubled, dim=1), b.add("amax", doubled, dims=(1,))]

    (kernel,) = _kernels(build)
    assert sum(isinstance(s, Store) for s in kernel.body) == 2


def test_reductions_of_the_same_row_and_of_the_sorted_row_share_the_kernel() -> None:
    def build(b: GraphBuilder, x: int) -> list[int]:
        return [b.add("sum", x, dims=(1,)), b.add("amax", _sorted(b, x), dims=(1,))]

    (kernel,) = _kernels(build)
    assert sum(isinstance(s, Reduce) for s in kernel.body) == 2


def test_sorts_along_different_axes_are_two_kernels() -> None:
    def build(b: GraphBuilder, x: int) -> list[int]:
        return [_order(b, x, 0), _order(b, x, 1)]

    assert len(_kernels(build)) == 2


def test_a_sort_of_a_sorted_row_is_a_kernel_of_its_own() -> None:
    def build(b: GraphBuilder, x: int) -> list[int]:
        return [_sorted(b, b.add("cumsum", _sorted(b, x), dim=1))]

    # The second sort reads the first sorted row at any position, so that row must be stored.
    assert len(_kernels(build)) == 2


def test_a_sort_of_flattened_axes_keeps_their_order() -> None:
    def build(b: GraphBuilder, x: int) -> list[int]:
        turned = b.add("permute", x, dims=(1, 0, 2))
        flat = b.add("reshape", turned, shape=(5, 48))
        return [_order(b, flat), b.add("argmax", flat, dims=(1,))]

    kernels = _kernels(build, (6, 5, 8))
    assert all([axis.extent.as_int() for axis in k.reduction] in ([48], [6, 8]) for k in kernels)


def test_a_reader_of_the_first_ranks_is_a_kernel_of_its_own() -> None:
    def build(b: GraphBuilder, x: int) -> list[int]:
        first = b.add("slice", _order(b, x), starts=(0, 0), limits=(6, 4), steps=(1, 1))
        return [b.add("gather_along", x, first, dim=1), first]

    kernels = _kernels(build)
    assert [sum(isinstance(s, Sort) for s in k.body) for k in kernels] == [1, 0]


CALLS: dict[str, list[Call]] = defaultdict(list)
for _call in order_calls():
    CALLS[_call.op].append(_call)


@pytest.mark.parametrize("op", sorted(CALLS))
def test_programs_of_an_operator_equal_eager(op: str) -> None:
    for call in CALLS[op]:
        program = optimize(lowered(call).graph, TARGET).program
        verify_program(program)
        results = run_program(program, [to_numpy(tensor) for tensor in call.tensors()])
        for reference, got in zip(call.eager(), results, strict=True):
            ours = to_torch(np.asarray(got))
            torch.testing.assert_close(ours, reference, rtol=0, atol=0, equal_nan=True)
