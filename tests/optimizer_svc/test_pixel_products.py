"""Convolutions with a window of one pixel as products of matrices on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.dtypes import DType
from kernelfarm.ir.contractions import find_contraction
from kernelfarm.ir.interpret.programs import run_program
from kernelfarm.ir.product_choice import ProductChoice
from kernelfarm.ir.program_ir import ExternCall
from kernelfarm.ir.verify import verify_program
from kernelfarm.targets import target_facts
from optimizer_svc.pipeline import OptimizeResult, optimize
from tests.support.template_kernels import UNITS, as_array
from tests.support.traced_graphs import traced_one

TARGET = target_facts("cuda:sm_90a")
LAYOUTS = {"first": torch.contiguous_format, "last": torch.channels_last}


def operands(
    images: int = 2, channels: int = 16, results: int = 24, side: int = 10, layout: str = "last"
) -> list[Tensor]:
    """Image, weight, bias and residual of bf16."""
    torch.manual_seed(0)
    shapes = (
        (images, channels, side, side),
        (results, channels, 1, 1),
        (results,),
        (images, results, side, side),
    )
    found = [torch.randn(shape).to(torch.bfloat16) for shape in shapes]
    return [x.contiguous(memory_format=LAYOUTS[layout]) if x.dim() == 4 else x for x in found]


def convolve(image: Tensor, weight: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
    return functional.relu(functional.conv2d(image, weight, bias) + residual)


def optimized(
    function: Callable[..., Tensor],
    given: list[Tensor],
    choice: ProductChoice = ProductChoice.AUTO,
) -> OptimizeResult:
    captured = traced_one(function, *given)
    lowered = decompose_to_prims(captured.graph, max_sorted_elems=TARGET.max_sorted_elems)
    found = optimize(lowered.graph, TARGET, choice)
    verify_program(found.program)
    return found


@pytest.mark.parametrize(("layout", "launches"), [("last", 1), ("first", 2)])
def test_a_product_computes_what_follows_too(layout: str, launches: int) -> None:
    given = operands(layout=layout)
    program = optimized(convolve, given).program
    # Channels that come first are copied, because instructions for matrices read rows.
    assert len(program.plan.steps) == launches
    assert sum(find_contraction(kernel) is not None for kernel in program.kernels) == 1
    (found,) = run_program(program, [as_array(x) for x in given])
    exact = convolve(*(x.double() for x in given))
    assert isinstance(found, np.ndarray)
    difference = np.abs(found.astype(np.float64) - exact.numpy()).max()
    assert difference <= 2 * UNITS[torch.bfloat16] * exact.abs().max().item()


def test_layers_behind_each_other_copy_nothing() -> None:
    def layers(image: Tensor, *weights: Tensor) -> Tensor:
        for weight in weights:
            image = functional.relu(functional.conv2d(image, weight))
        return image

    weight = torch.randn(16, 16, 1, 1).to(torch.bfloat16)
    program = optimized(layers, [operands()[0], weight, weight * 2]).program
    assert len(program.plan.steps) == 2
    assert not any(isinstance(step, ExternCall) for step in program.plan.steps)


def summed(image: Tensor, weight: Tensor, *_: Tensor) -> Tensor:
    found = functional.conv2d(image, weight)
    return functional.relu(found - found.mean((0, 2, 3), keepdim=True))


def padded(image: Tensor, weight: Tensor, *_: Tensor) -> Tensor:
    return functional.pad(functional.relu(functional.conv2d(image, weight)), (0, 1, 0, 1))


def strided(image: Tensor, weight: Tensor, *_: Tensor) -> Tensor:
    return functional.relu(functional.conv2d(image, weight, stride=2))


def alone(image: Tensor, weight: Tensor, *_: Tensor) -> Tensor:
    return functional.conv2d(image, weight)


@pytest.mark.parametrize(
    ("function", "given", "reason"),
    [
        (convolve, operands(images=1), "of one pixel, for fewer than 192 pixels"),
        (convolve, operands(channels=12), "of fewer than 16 channels, or a varying number"),
        (convolve, operands(results=20), "of one pixel, whose channels are no multiples of 8"),
        (summed, operands(), "of one pixel with nothing to compute behind them"),
        (alone, operands(), "of one pixel with nothing to compute behind them"),
        (strided, operands(side=28), "by a window, whose channels are no multiples of 32"),
    ],
    ids=["pixels", "channels", "odd", "statistics", "alone", "strided"],
)
def test_other_convolutions_are_the_frameworks(
    function: Callable[..., Tensor], given: list[Tensor], reason: str
) -> None:
    found = optimized(function, given)
    assert any(isinstance(step, ExternCall) for step in found.program.plan.steps)
    assert f"convolutions: 1 by the framework: {reason}" in dict(found.stages)["report"]


def pooled(image: Tensor, weight: Tensor, *_: Tensor) -> Tensor:
    return functional.relu(functional.conv2d(image, weight)).mean((2, 3))


@pytest.mark.parametrize("function", [padded, pooled])
def test_points_before_a_reduction_or_padding_are_stored(
    function: Callable[..., Tensor],
) -> None:
    program = optimized(function, operands()).program
    assert not any(isinstance(step, ExternCall) for step in program.plan.steps)
    (kernel,) = (k for k in program.kernels if find_contraction(k) is not None)
    assert kernel.params[-1].dtype is DType.BF16
    given = operands()
    (found,) = run_program(program, [as_array(x) for x in given[:2]])
    exact = function(*(x.double() for x in given))
    assert isinstance(found, np.ndarray)
    difference = np.abs(found.astype(np.float64) - exact.numpy()).max()
    assert difference <= 2 * UNITS[torch.bfloat16] * exact.abs().max().item()


def test_where_two_products_meet_one_is_stored() -> None:
    def block(image: Tensor, weight: Tensor, other: Tensor, shortcut: Tensor) -> Tensor:
        found = functional.conv2d(image, weight) + functional.conv2d(other, shortcut, stride=2)
        return functional.relu(found)

    image, weight = operands()[:2]
    other, shortcut = operands(side=20, channels=32)[:2]
    program = optimized(block, [image, weight, other, shortcut]).program
    products = [k for k in program.kernels if find_contraction(k) is not None]
    stored = [k.params[-1].dtype for k in products]
    assert (len(program.plan.steps), stored) == (2, [DType.BF16, DType.BF16])


def test_a_request_may_choose() -> None:
    library = optimized(convolve, operands(), ProductChoice.LIBRARY)
    reason = "of one pixel, because the request asks for the library"
    assert f"convolutions: 1 by the framework: {reason}" in dict(library.stages)["report"]
    own = optimized(convolve, operands(images=1), ProductChoice.OWN)
    assert "convolutions: 1 of one pixel by kernels" in dict(own.stages)["report"]
