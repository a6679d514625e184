"""Depthwise convolutions by kernels of a processor: whole programs, against float64."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from codegen_svc.emitters.llvm.window_tiles import tiled_windows
from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.client.freezing.depthwise_weights import ordered_window
from kernelfarm.ir.depthwise import MOST_COLUMNS, MOST_SIDE
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.program_ir import Program
from kernelfarm.targets import target_facts
from optimizer_svc.pipeline import optimize
from tests.support.compiled_kernels import unless_it_runs
from tests.support.contraction_programs import run
from tests.support.in_process_compiler import Counts
from tests.support.traced_graphs import traced_one

TARGET = "cpu:x86-64-v3"
AMD = "cpu:x86-64-v3-amd"
HALF_UNITS = {torch.float32: 2.0**-20, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
"""What a result may differ by, as a share of the largest one: roundings of some values."""


class Block(nn.Module):
    """What surrounds a depthwise convolution in models of images."""

    def __init__(self, channels: int, window: int, *, stride: int = 1, after: str = "norm") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.before = nn.Conv2d(8, channels, 1)
        self.layer = nn.Conv2d(
            channels,
            channels,
            window,
            stride=stride,
            padding=window // 2,
            groups=channels,
            bias=after != "norm",
        )
        self.norm = nn.BatchNorm2d(channels)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2)
        self.after = after
        self.eval().requires_grad_(requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        given = functional.relu(self.before(x))
        found: Tensor = self.layer(given)
        if self.after == "norm":
            return functional.hardswish(self.norm(found))
        if self.after == "residual":
            return found + given
        return found.mean((2, 3)) if self.after == "mean" else found


def programs_of(function: Any, *args: Tensor, target: str = AMD) -> tuple[Program, str]:
    """The program of a function, and its report."""
    with torch.no_grad():
        graph = decompose_to_prims(traced_one(function, *args).graph).graph
    found = optimize(graph, target_facts(target))
    return found.program, dict(found.stages)["report"]


def in_tiles(program: Program) -> list[Kernel]:
    return [kernel for kernel in program.kernels if tiled_windows(kernel, 256) is not None]


@pytest.mark.sweep
@pytest.mark.parametrize("target", [pytest.param(AMD, marks=unless_it_runs(TARGET))])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "options",
    [
        {"channels": 24, "window": 3},
        {"channels": 20, "window": 5, "stride": 2},
        {"channels": 32, "window": 7, "after": "residual"},
        {"channels": 16, "window": 5, "after": "mean"},
    ],
    ids=str,
)
def test_a_block_has_the_errors_of_rounding(
    options: dict[str, Any], dtype: torch.dtype, target: str
) -> None:
    model = Block(**options).to(dtype)
    x, counts = torch.randn(2, 8, 11, 14).to(dtype), Counts()
    found, _ = run(target_facts(target), counts, model, x)
    exact = copy.deepcopy(model).double()(x.double())
    assert (found.double() - exact).abs().max() <= HALF_UNITS[dtype] * exact.abs().max()
    assert not counts.externs


@pytest.mark.parametrize("target", [AMD, TARGET])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_follows_is_a_part_of_the_kernel(dtype: torch.dtype, target: str) -> None:
    model, x = Block(24, 3).to(dtype), torch.randn(1, 8, 14, 14).to(dtype)
    program, report = programs_of(model, x.to(memory_format=torch.channels_last), target=target)
    assert "convolutions: 1 depthwise by kernels" in report
    (kernel,) = in_tiles(program)
    assert any("hardswish" in comment for comment in kernel.comments)
    assert (
        kernel.param("in0").dtype.value
        == {
            torch.float32: "f32",
            torch.bfloat16: "bf16",
            torch.float16: "f16",
        }[dtype]
    )


def layer(stride: int, padding: tuple[int, int]) -> Any:
    def convolve(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional.conv2d(x, weight, bias, stride, padding, groups=len(weight))

    return convolve


def test_an_ordered_weight_is_not_copied() -> None:
    x = torch.randn(1, 24, 14, 14).to(memory_format=torch.channels_last)
    weight = torch.randn(24, 1, 3, 3)
    ordered = ordered_window(weight).permute(2, 0, 1).unsqueeze(1)
    kernels = [
        len(programs_of(layer(1, (1, 1)), x, each, torch.randn(24))[0].kernels)
        for each in (weight, ordered)
    ]
    assert kernels == [2, 1]


def test_a_varying_number_of_images_has_one_kernel() -> None:
    x = torch.randn(3, 24, 14, 14).to(memory_format=torch.channels_last)
    torch._dynamo.maybe_mark_dynamic(x, 0)
    program, _ = programs_of(layer(1, (1, 1)), x, torch.randn(24, 1, 3, 3), torch.randn(24))
    (kernel,) = in_tiles(program)
    assert kernel.sizes


def test_the_emitter_takes_every_window_that_is_chosen() -> None:
    """Also the largest windows and longest rows, with channels that fill no vector."""
    draw = random.Random(0)
    forms = [
        ((MOST_SIDE, MOST_SIDE), 1, (MOST_SIDE - 1, MOST_SIDE - 1), (3, 15), 15),
        ((3, 3), 1, (1, 1), (2, MOST_COLUMNS), 13),
        ((1, MOST_SIDE), 2, (0, MOST_SIDE - 1), (1, 100), 31),
    ]
    for _ in range(30):
        sides = draw.randint(1, 7), draw.randint(2, 7)
        padding = draw.randint(0, sides[0] - 1), draw.randint(0, sides[1] - 1)
        pixels = draw.randint(sides[0], 20), draw.randint(sides[1] + 2, 20)
        forms.append((sides, draw.choice([1, 2]), padding, pixels, draw.randint(4, 40)))
    for sides, stride, padding, pixels, channels in forms:
        images = draw.choice([1, 2])
        x = torch.randn(images, channels, *pixels).to(memory_format=torch.channels_last)
        weight = torch.randn(channels, 1, *sides)
        program, report = programs_of(layer(stride, padding), x, weight, torch.randn(channels))
        form = (sides, stride, padding, pixels, channels, images)
        assert "1 depthwise by kernels" in report, form
        for bits in (128, 256, 512):
            found = [k for k in program.kernels if tiled_windows(k, bits) is not None]
            assert len(found) == 1, form


def test_other_windows_on_the_same_image_are_kernels_of_their_own() -> None:
    """In one kernel, both would be loops over their axes."""

    def function(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        windows = functional.pad(x, (1, 1, 1, 1)).unfold(2, 3, 1).unfold(3, 3, 1)
        return windows.amax((-1, -2)), functional.conv2d(x, weight, padding=1, groups=24)

    x = torch.randn(1, 24, 14, 14).to(memory_format=torch.channels_last)
    program, _ = programs_of(function, x, torch.randn(24, 1, 3, 3))
    assert len(in_tiles(program)) == 1


def test_convolutions_of_one_image_stay_in_tiles() -> None:
    def function(x: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        return tuple(functional.conv2d(x, w, padding=1, groups=24) for w in (first, second))

    x = torch.randn(1, 24, 14, 14).to(memory_format=torch.channels_last)
    weights = torch.randn(24, 1, 3, 3), torch.randn(24, 1, 3, 3)
    program, report = programs_of(function, x, *weights)
    assert "convolutions: 2 depthwise by kernels" in report
    assert sum(len(tiled_windows(k, 256).windows.sums) for k in in_tiles(program)) == 2
