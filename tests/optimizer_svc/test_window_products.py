"""Convolutions by windows of several pixels, or with strides, as products of matrices on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from codegen_svc.emitters.triton.pixel_windows import PixelWindows, pixel_windows
from codegen_svc.emitters.triton.tiling import Tiling
from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.ir.interpret.programs import run_program
from kernelfarm.ir.loop_ir import Kernel, Load
from kernelfarm.ir.product_choice import ProductChoice
from kernelfarm.ir.program_ir import ExternCall
from kernelfarm.ir.text import parse_kernel
from kernelfarm.ir.verify import verify_program
from kernelfarm.targets import TargetFacts, target_facts
from optimizer_svc.pipeline import OptimizeResult, optimize
from tests.support.template_kernels import UNITS, as_array
from tests.support.traced_graphs import traced_one
from tests.support.triton_cases import Array, expected, interpreter_case, random_buffers
from tests.support.triton_interpreter import Case, run_interpreted


@dataclass(frozen=True)
class Form:
    """A convolution: channels of image and result, sides of image and window, and its moves."""

    channels: int = 32
    results: int = 16
    sides: tuple[int, int] = (6, 9)
    window: tuple[int, int] = (3, 3)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (1, 1)
    images: int = 2
    is_last: bool = True
    has_slices: bool = False
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    def convolve(self, image: Tensor, weight: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
        return functional.relu(self.moved(image, weight, bias) + residual)

    def moved(self, image: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return functional.conv2d(
            image, weight, bias, self.stride, self.padding, self.dilation, self.groups
        )

    def operands(self) -> list[Tensor]:
        """Image, weight, bias and residual of bf16."""
        torch.manual_seed(0)
        image = torch.randn(self.images, self.channels, *self.sides)
        weight = torch.randn(self.results, self.channels // self.groups, *self.window) / 4
        made = self.moved(image, weight)
        layout = torch.channels_last if self.is_last else torch.contiguous_format
        found = (image, weight, torch.randn(self.results), torch.randn_like(made))
        narrow = [tensor.to(torch.bfloat16) for tensor in found]
        return [x.contiguous(memory_format=layout) if x.dim() == 4 else x for x in narrow]


FORMS = {
    "padded": Form(),
    "stride": Form(stride=(2, 2), sides=(8, 10)),
    "uneven": Form(window=(3, 1), stride=(2, 1), padding=(1, 0), sides=(7, 5)),
    "inside": Form(padding=(0, 0)),
    "one pixel": Form(window=(1, 1), stride=(2, 2), padding=(0, 0)),
    "row": Form(window=(1, 3), padding=(0, 1)),
    "column": Form(window=(3, 1), padding=(1, 0)),
    "one image": Form(images=1),
    "channels first": Form(is_last=False),
    "slices": Form(has_slices=True),
    "slices by strides": Form(stride=(2, 2), sides=(8, 10), has_slices=True),
    "slices inside": Form(padding=(0, 0), has_slices=True),
    "slices of a row": Form(window=(1, 3), padding=(0, 1), has_slices=True),
    "three channels": Form(3, window=(7, 7), stride=(2, 2), padding=(3, 3), sides=(12, 14)),
    "three channels, stride 1": Form(3, is_last=False),
    "dilation": Form(dilation=(2, 2), padding=(2, 2)),
    "dilation inside": Form(dilation=(2, 3), padding=(0, 0), sides=(7, 11)),
    "dilation inside, by stride": Form(
        dilation=(4, 3), stride=(1, 4), padding=(0, 0), sides=(15, 13), images=3
    ),
    "dilation past the image": Form(dilation=(5, 7), padding=(5, 7)),
    "dilation across": Form(dilation=(1, 4), padding=(1, 3), window=(3, 2)),
    "dilation and stride": Form(dilation=(3, 3), stride=(2, 2), padding=(3, 2), sides=(10, 11)),
    "even dilation and stride": Form(dilation=(2, 4), stride=(2, 2), padding=(2, 4), sides=(9, 12)),
    "odd pixels": Form(dilation=(2, 2), stride=(2, 2), padding=(1, 1), sides=(9, 12)),
    "odd columns": Form(dilation=(2, 2), stride=(2, 4), padding=(0, 1), sides=(9, 15)),
    "slices with dilation": Form(dilation=(2, 2), padding=(2, 1), has_slices=True),
    "slices of odd pixels": Form(
        dilation=(2, 2), stride=(2, 2), padding=(1, 1), sides=(9, 12), has_slices=True
    ),
    "groups": Form(96, 48, groups=3),
    "groups of 16": Form(32, 32, groups=2, padding=(0, 1)),
    "groups by stride": Form(64, 64, groups=2, stride=(2, 2), sides=(8, 10)),
    "groups inside": Form(64, 64, groups=2, padding=(0, 0)),
    "groups with dilation": Form(64, 96, groups=2, dilation=(2, 2), padding=(2, 2)),
    "groups of odd pixels": Form(
        64, 32, groups=2, dilation=(2, 2), stride=(2, 2), padding=(1, 1), sides=(9, 12)
    ),
    "groups of one pixel": Form(64, 32, groups=2, window=(1, 1), stride=(2, 2), padding=(0, 0)),
    "groups, channels first": Form(64, 32, groups=2, is_last=False),
    "slices of groups": Form(64, 32, groups=2, has_slices=True),
    "slices of groups by stride": Form(
        64, 64, groups=2, stride=(2, 2), sides=(8, 10), has_slices=True
    ),
    "three channels, dilation down": Form(3, dilation=(2, 1), padding=(2, 1)),
}
BY_POINTERS = ("dilation", "odd pixels", "slices with dilation")
TARGET = target_facts("cuda:sm_90a")


def any_channels(form: Form) -> TargetFacts:
    """The target with convolutions of few channels by kernels; so slow that it needs slices."""
    known, gpu = TARGET.convolutions, TARGET.gpu
    assert known is not None
    assert gpu is not None
    if form.has_slices:
        gpu = replace(gpu, multiply_adds_per_cycle=1)
    convolutions = replace(known, window_channels=8, least_group_channels=16)
    return replace(TARGET, convolutions=convolutions, gpu=gpu)


def optimized(
    function: Callable[..., Tensor],
    given: list[Tensor],
    target: TargetFacts,
    choice: ProductChoice = ProductChoice.AUTO,
) -> OptimizeResult:
    captured = traced_one(function, *given)
    lowered = decompose_to_prims(captured.graph, max_sorted_elems=target.max_sorted_elems)
    found = optimize(lowered.graph, target, choice)
    verify_program(found.program)
    return found


def windows_of(found: OptimizeResult) -> tuple[Kernel, PixelWindows]:
    made = [(kernel, pixel_windows(kernel)) for kernel in found.program.kernels]
    ((kernel, windows),) = [(kernel, windows) for kernel, windows in made if windows is not None]
    assert windows is not None
    return kernel, windows


@pytest.mark.sweep
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_one_kernel_convolves_and_computes_what_follows(form: Form) -> None:
    given = form.operands()
    found = optimized(form.convolve, given, any_channels(form))
    assert not any(isinstance(step, ExternCall) for step in found.program.plan.steps)
    _, windows = windows_of(found)
    assert form.has_slices == bool(windows.slices)
    assert windows.groups == form.groups
    (result,) = run_program(found.program, [as_array(x) for x in given])
    exact = form.convolve(*(x.double() for x in given))
    assert isinstance(result, np.ndarray)
    difference = np.abs(result.astype(np.float64) - exact.numpy()).max()
    assert difference <= 2 * UNITS[torch.bfloat16] * exact.abs().max().item()


def check_interpreted(launches: list[Case], references: list[Array]) -> None:
    """Fails if launches by Triton's interpreter differ from references by more than rounding."""
    for reference, result in zip(references, run_interpreted(launches), strict=True):
        assert not isinstance(result, str), result
        got, exact = (array.astype(np.float64) for array in (result[-1], reference))
        assert (np.abs(got - exact) <= 2 * 2**-8 * np.maximum(np.abs(exact), 1)).all()


def test_boxes_of_pixels_equal_the_loop_interpreter() -> None:
    """By fewer and more pixels than an image has, with one program for a tile and for several."""
    launches, references = [], []
    for number, form in enumerate(FORMS.values()):
        kernel, windows = windows_of(optimized(form.convolve, form.operands(), any_channels(form)))
        buffers = random_buffers(kernel, {})
        pixels = 64 if number % 2 else 16
        box = windows.best_box(pixels)
        assert box is not None
        programs = 3 if number % 4 > 1 else 0
        tiling = Tiling(16, 16, pixels, False, 32, 4, 3, has_maps=True, programs=programs)
        tiling = replace(tiling, kblock=32 if windows.channels % 32 == 0 else 16)
        launches.append(interpreter_case(kernel, buffers, {}, replace(tiling, box=box)))
        references.append(expected(kernel, buffers, {})[kernel.params[-1].name])
    check_interpreted(launches, references)


def test_infinities_of_a_group_do_not_reach_the_others() -> None:
    form = FORMS["groups"]
    kernel, windows = windows_of(optimized(form.convolve, form.operands(), any_channels(form)))
    buffers = random_buffers(kernel, {})
    image = kernel.body[windows.image]
    assert isinstance(image, Load)
    buffers[image.param].reshape(-1, form.channels)[:, 0] = np.inf
    box = windows.best_box(16)
    assert box is not None
    tiling = Tiling(16, 16, 16, False, 32, 4, 3, kblock=32, has_maps=True, box=box)
    (found,) = run_interpreted([interpreter_case(kernel, buffers, {}, tiling)])
    assert not isinstance(found, str), found
    results = found[-1].astype(np.float64).reshape(-1, form.groups, form.results // form.groups)
    assert not np.isfinite(results[:, 0]).all()
    assert np.isfinite(results[:, 1:]).all()


# Rows of 64 positions by a matrix for each of 4 heads, as projections of attention have them.
HEADS = """\
kernel heads
param in in0: bf16[8192]
param in in1: bf16[4096]
param out out0: bf16[8192]
for d0 in 64
for d1 in 4
for d2 in 32
reduce r0 in 32
  %0: bf16 = load in0[128*d0 + 32*d1 + r0]
  %1: f32 = convert %0
  %2: bf16 = load in1[1024*d1 + 32*d2 + r0]
  %3: f32 = convert %2
  %4: f32 = mul %1, %3
  %5: f32 = sum %4
  %6: bf16 = convert %5
  store out0[128*d0 + 32*d1 + d2] = %6
"""


def test_groups_are_those_of_pixels_along_several_axes() -> None:
    """With one axis of pixels each group is a matrix, which is read as a slice of a sum is."""
    windows = pixel_windows(parse_kernel(HEADS))
    assert windows is not None
    assert windows.group is None
    in_rows = HEADS.replace("for d0 in 64\n", "for d0 in 8\nfor d3 in 8\n")
    in_rows = in_rows.replace("128*d0", "1024*d0 + 128*d3")
    windows = pixel_windows(parse_kernel(in_rows))
    assert windows is not None
    assert windows.groups == 4


def test_pixels_by_pointers_equal_the_loop_interpreter() -> None:
    """As kernels for buffers at other addresses than multiples of 16 bytes read them."""
    launches, references = [], []
    for name in BY_POINTERS:
        form = FORMS[name]
        kernel, _ = windows_of(optimized(form.convolve, form.operands(), any_channels(form)))
        buffers = random_buffers(kernel, {})
        tiling = Tiling(16, 16, 16, False, 32, 4, 3, kblock=32)
        launches.append(interpreter_case(kernel, buffers, {}, tiling))
        references.append(expected(kernel, buffers, {})[kernel.params[-1].name])
    check_interpreted(launches, references)


@pytest.mark.parametrize(("padding", "first"), [(2, 0), (1, 13 * 32)])
def test_maps_have_the_pixels_that_strides_and_dilation_of_two_read(
    padding: int, first: int
) -> None:
    """Boxes need no steps then; with odd padding, rows and columns with odd numbers are read."""
    form = replace(FORMS["odd pixels"], padding=(padding, padding))
    _, windows = windows_of(optimized(form.convolve, form.operands(), any_channels(form)))
    assert windows.first == first
    _, down, across = windows.axes
    assert (down.stride, across.stride) == (2 * 12 * 32, 2 * 32)
    assert (down.step, down.dilation, across.step, across.dilation) == (1, 1, 1, 1)
    rows, columns = down.extent - 1, across.extent - 1
    assert first + rows * down.stride + columns * across.stride + 32 <= 9 * 12 * 32


def test_rows_of_windows_and_rows_of_results_share_an_axis_of_a_map() -> None:
    """Without limits by padding, only strides say which axes move along the same one."""
    form = FORMS["dilation inside"]
    _, windows = windows_of(optimized(form.convolve, form.operands(), any_channels(form)))
    moves = [(axis.pixels, axis.tap, axis.step, axis.dilation) for axis in windows.axes]
    assert moves == [("d0", "", 1, 1), ("d1", "r0", 1, 2), ("d2", "r1", 1, 3)]


def test_boxes_have_few_tiles() -> None:
    form = Form(64, 64, images=32, sides=(14, 14))
    _, windows = windows_of(optimized(form.convolve, form.operands(), any_channels(form)))
    box = windows.best_box(128)
    assert box == (32, 2, 2)
    assert windows.tiles(box) == 49  # no pixel is computed for nothing


def dilated(image: Tensor, weight: Tensor, *_: Tensor) -> Tensor:
    return functional.relu(functional.conv2d(image, weight, dilation=(1, 2)))


def alone(image: Tensor, weight: Tensor, *_: Tensor) -> Tensor:
    return functional.conv2d(image, weight)


@pytest.mark.parametrize(
    ("function", "form", "reason"),
    [
        (
            None,
            Form(128, 128, groups=16),
            "of groups, whose channels or results are no multiples of 16",
        ),
        (
            None,
            Form(64, 48, groups=2),
            "of groups, whose channels or results are no multiples of 16",
        ),
        (
            None,
            Form(128, 128, groups=2, window=(1, 1), padding=(0, 0)),
            "of one pixel, of groups",
        ),
        (dilated, Form(3, 64), "with dilation, of up to 4 channels"),
        (None, Form(64, 64, dilation=(2, 2), padding=(5, 5)), "with padding of a whole window"),
        (alone, Form(64, 64), "by a window with nothing to compute behind them"),
        (None, Form(48, 64), "by a window, whose channels are no multiples of 32"),
        (None, Form(3, 12), "by a window, of an odd number of results"),
        (None, Form(64, 64, window=(1, 1)), "with padding of a whole window"),
    ],
    ids=[
        "groups",
        "results of groups",
        "pixel of groups",
        "dilation",
        "dilated padding",
        "alone",
        "channels",
        "odd",
        "padding",
    ],
)
def test_other_convolutions_are_the_frameworks(
    function: Callable[..., Tensor] | None, form: Form, reason: str
) -> None:
    found = optimized(function or form.convolve, form.operands(), TARGET)
    assert any(isinstance(step, ExternCall) for step in found.program.plan.steps)
    assert f"convolutions: 1 by the framework: {reason}" in dict(found.stages)["report"]


def test_a_request_may_choose() -> None:
    form = Form(64, 64)
    choose = partial(optimized, form.convolve, form.operands(), TARGET)
    reason = "by a window, because the request asks for the library"
    report = dict(choose(ProductChoice.LIBRARY).stages)["report"]
    assert f"convolutions: 1 by the framework: {reason}" in report
    windows_of(choose(ProductChoice.OWN))


def test_a_window_of_many_pixels_has_few_slices() -> None:
    """The estimate alone would take each pixel of a large window as a slice."""
    form = Form(32, 16, sides=(40, 40), window=(30, 30), padding=(0, 0), has_slices=True)
    found = optimized(form.convolve, form.operands(), any_channels(form))
    _, windows = windows_of(found)
    assert not windows.product.batches
    assert sum(len(kernel.body) for kernel in found.program.kernels) < 100


def test_a_result_before_a_reduction_is_stored_once() -> None:
    """Kernels of the reduction read it: they neither compute it again nor add its slices."""
    form = Form(has_slices=True)

    def normed(*given: Tensor) -> Tensor:
        return functional.group_norm(form.convolve(*given), 2)

    found = optimized(normed, form.operands(), any_channels(form))
    kernels = found.program.kernels
    assert not any(isinstance(step, ExternCall) for step in found.program.plan.steps)
    assert sum(pixel_windows(kernel) is not None for kernel in kernels) == 1
    (result,) = run_program(found.program, [as_array(x) for x in form.operands()])
    exact = normed(*(x.double() for x in form.operands()))
    assert isinstance(result, np.ndarray)
    assert np.abs(result.astype(np.float64) - exact.numpy()).max() <= 3 * 2**-7
    slices = [k for k in kernels if sum(isinstance(s, Load) for s in k.body) >= form_taps(form)]
    assert len(slices) == 1


def form_taps(form: Form) -> int:
    """The slices of a convolution's sum: the pixels of its window."""
    return form.window[0] * form.window[1]
