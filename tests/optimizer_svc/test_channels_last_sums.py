"""Reductions of images whose channels are last in memory: columns there, not rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.dtypes import DType
from kernelfarm.ir.interpret.programs import run_program
from kernelfarm.ir.verify import verify_program
from kernelfarm.targets import target_facts
from optimizer_svc.passes.eliminate_dead_nodes import eliminate_dead_nodes
from optimizer_svc.pipeline import PASSES, OptimizeResult, given_facts, optimize
from tests.support.template_kernels import as_array
from tests.support.traced_graphs import recording, traced_one

TARGET = target_facts("cuda:sm_90a")


def image(*shape: int, is_last: bool = True) -> Tensor:
    torch.manual_seed(0)
    layout = torch.channels_last if is_last else torch.contiguous_format
    return torch.randn(shape).contiguous(memory_format=layout)


def pooled(x: Tensor) -> tuple[Tensor, Tensor]:
    y = functional.silu(x)
    return y, y.mean((2, 3))


def normed(x: Tensor) -> Tensor:
    return functional.batch_norm(x, None, None, training=True)


def optimized(function: object, given: Tensor) -> OptimizeResult:
    captured = traced_one(function, given)  # type: ignore[arg-type]  # one of the functions above
    found = optimize(decompose_to_prims(captured.graph).graph, TARGET)
    verify_program(found.program)
    return found


def report(function: object, given: Tensor) -> str:
    return dict(optimized(function, given).stages)["report"]


def test_few_columns_are_split_in_slices_of_whole_rows() -> None:
    text = report(pooled, image(32, 32, 112, 112))
    assert "in 56 slices: 8 programs would take" in text
    # One kernel stores what the first one of the sum reads, too.
    assert "launches: 2 of 2 distinct kernels" in text
    assert text.count(": columns that cost as much as") == 2


def test_rows_of_the_same_images_are_enough_programs() -> None:
    text = report(pooled, image(32, 32, 112, 112, is_last=False))
    assert "split" not in text
    assert "launches: 1 of 1 distinct kernels" in text


def test_statistics_of_channels_are_read_in_the_order_of_memory() -> None:
    text = report(normed, image(32, 64, 56, 56))
    assert "1 programs would take" in text
    assert "sum and welford_m2 in one pass: columns of" in text
    assert ": rows that cost" not in text


def test_no_dead_node_is_left_behind_a_split() -> None:
    captured = traced_one(normed, image(32, 64, 56, 56))
    facts = given_facts(decompose_to_prims(captured.graph).graph, TARGET)
    for step in PASSES:
        if step.name == "choose-materialized":
            break
        facts[step.gives] = step.run(*(facts[name] for name in step.needs))
    assert facts["splits"].by_value
    assert eliminate_dead_nodes(facts["graph"]) is facts["graph"]


def test_images_and_their_pixels_are_one_axis_of_slices() -> None:
    # Slices of two images each; without the order of memory, 32 images have at most 2 slices.
    def total(x: Tensor) -> Tensor:
        return (x * x).sum((0, 2, 3))

    found = optimized(total, image(32, 2048, 7, 7))
    assert "in 16 slices" in dict(found.stages)["report"]
    assert len(found.program.plan.steps) == 2


def added(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x + x.flip(0)
    return y, y.mean((0, 2, 3))


def test_slices_of_parts_of_images_store_what_they_sum() -> None:
    # 128 slices: a quarter of an image each.
    text = report(added, image(32, 512, 28, 28))
    assert "in 128 slices" in text
    assert "launches: 2 of 2 distinct kernels" in text


def normed_backward(dtype: torch.dtype) -> OptimizeResult:
    """The graph of gradients of a batch norm behind a ReLU."""
    found: list[CapturedGraph] = []
    torch._dynamo.reset()
    weight = torch.ones(64, dtype=dtype, requires_grad=True)
    given = image(8, 64, 56, 56).to(dtype).requires_grad_()

    def loss(x: Tensor) -> Tensor:
        return normed(x.relu() * weight.view(1, -1, 1, 1)).sin().sum()

    torch.compile(loss, backend=recording(found))(given).backward()
    _, backward = found
    return optimize(decompose_to_prims(backward.graph).graph, TARGET)


def test_a_gradient_reads_an_image_of_16_bits_again_instead_of_storing_f32() -> None:
    found = normed_backward(torch.bfloat16)
    image_elems = 8 * 64 * 56 * 56
    wide = [
        param
        for kernel in found.program.kernels
        for param in kernel.params
        if param.dtype is DType.F32 and param.size_elems.as_int() >= image_elems
    ]
    assert not wide


def test_the_gradient_of_windows_reads_each_image_where_it_is() -> None:
    found: list[CapturedGraph] = []
    torch._dynamo.reset()
    given = image(4, 64, 56, 56).to(torch.bfloat16).requires_grad_()
    weight = image(4, 64, 28, 28).to(torch.bfloat16)

    def loss(x: Tensor) -> Tensor:
        return (functional.max_pool2d(x.sin(), 3, 2, 1) * weight).sum()

    torch.compile(loss, backend=recording(found))(given).backward()
    result = optimize(decompose_to_prims(found[1].graph).graph, TARGET)
    largest = max(p.size_elems.as_int() for k in result.program.kernels for p in k.params)
    assert largest == 4 * 64 * 56 * 56
    assert all(
        param.dtype is DType.BF16
        for kernel in result.program.kernels
        for param in kernel.params
        if param.size_elems.as_int() == largest
    )


@pytest.mark.parametrize("function", [pooled, normed, added])
def test_results_are_those_of_the_whole_sums(function: object) -> None:
    given = image(2, 8, 80, 80)
    found = optimized(function, given)
    assert "split" in dict(found.stages)["report"]
    results = run_program(found.program, [as_array(given)])
    exact = function(given.double())  # type: ignore[operator]
    expected = exact if isinstance(exact, tuple) else (exact,)
    for one, other in zip(results, expected, strict=True):
        assert np.abs(np.asarray(one, np.float64) - other.numpy()).max() < 1e-5
