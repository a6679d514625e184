"""Depthwise convolutions that a template kernel computes on a GPU, run by an interpreter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import as_expr, symbol
from kernelfarm.ir.program_ir import ExternCall
from kernelfarm.targets import target_facts
from optimizer_svc.analysis.strided_views import StridedView
from optimizer_svc.kernels.depthwise import depthwise_convolution, weight_gradient
from optimizer_svc.kernels.depthwise_tiles import Window, chosen_tile
from optimizer_svc.pipeline import optimize
from tests.support.template_kernels import check_by_interpreter, constant, templates
from tests.support.traced_graphs import traced_one

TARGET = target_facts("cuda:sm_90a")


@dataclass(frozen=True)
class Form:
    """A convolution (n, c, h, w) by windows (down, across)."""

    images: int = 1
    channels: int = 32
    pixels: tuple[int, int] = (5, 14)
    window: tuple[int, int] = (3, 3)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (1, 1)
    dtype: torch.dtype = torch.bfloat16
    has_bias: bool = False

    def operands(self) -> list[Tensor]:
        """The image, channels last, the weight, and perhaps the bias."""
        torch.manual_seed(0)
        image = torch.randn(self.images, self.channels, *self.pixels).to(self.dtype)
        found = [
            image.contiguous(memory_format=torch.channels_last),
            torch.randn(self.channels, 1, *self.window).to(self.dtype),
        ]
        return [*found, torch.randn(self.channels).to(self.dtype)] if self.has_bias else found

    @property
    def convolve(self) -> Callable[..., Tensor]:
        """The convolution of its operands."""

        def convolution(image: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
            return functional.conv2d(
                image, weight, bias, self.stride, self.padding, groups=self.channels
            )

        return convolution


FORMS = (
    Form(),
    Form(dtype=torch.float16, has_bias=True),
    Form(dtype=torch.float32, channels=33, window=(5, 5), padding=(2, 2)),
    Form(window=(7, 7), padding=(3, 3), pixels=(7, 7), channels=40, images=2),
    Form(window=(5, 5), padding=(2, 2), stride=(2, 2), pixels=(13, 28)),
    Form(window=(3, 5), padding=(0, 1), stride=(1, 3), pixels=(8, 31), channels=20),
    Form(window=(1, 3), padding=(2, 4), pixels=(3, 5), images=1),
    Form(window=(5, 3), padding=(4, 0), stride=(2, 1), pixels=(6, 20), channels=130),
    Form(window=(3, 3), padding=(1, 1), pixels=(1, 1), images=3, channels=64),
)


@pytest.mark.sweep
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_the_template_gives_the_convolution(form: Form) -> None:
    program = check_by_interpreter(form.convolve, form.operands(), TARGET)
    assert len(templates(program)) == 1
    assert not any(isinstance(step, ExternCall) for step in program.plan.steps)


@pytest.mark.parametrize("around", [(0, 1, 0, 1), (1, 2, 2, 0), (3, 0, 0, 3)], ids=str)
def test_an_image_with_zeros_around_it_is_not_stored(around: tuple[int, ...]) -> None:
    """As models do whose padding is uneven: more pixels behind an image than before it."""
    form = Form(stride=(2, 2), padding=(0, 1), pixels=(9, 14))

    def padded(image: Tensor, weight: Tensor) -> Tensor:
        return form.convolve(functional.pad(functional.silu(image), around), weight)

    program = check_by_interpreter(padded, form.operands(), TARGET)
    assert len(templates(program)) == 1
    sizes = [param.size_elems.as_int() for kernel in program.kernels for param in kernel.params]
    assert max(sizes) == form.operands()[0].numel()


def test_padding_by_other_numbers_is_a_kernel() -> None:
    form = Form(padding=(0, 0))

    def padded(image: Tensor, weight: Tensor) -> Tensor:
        return form.convolve(functional.pad(image, (0, 1, 0, 1), value=2.0), weight)

    program = check_by_interpreter(padded, form.operands(), TARGET)
    sizes = [param.size_elems.as_int() for kernel in program.kernels for param in kernel.params]
    assert max(sizes) > form.operands()[0].numel()


@pytest.mark.parametrize(
    ("columns", "stride", "width"),
    [(7, 1, 7), (14, 1, 14), (28, 2, 4), (8, 1, 8), (9, 1, 2), (64, 1, 16), (9, 4, 1)],
)
def test_tiles_leave_few_pixels_unused(columns: int, stride: int, width: int) -> None:
    window = Window((3, 3), (stride, stride), (1, 1))
    assert chosen_tile(as_expr(columns), window).width == width


def test_a_long_window_has_narrow_tiles() -> None:
    assert chosen_tile(as_expr(112), Window((3, 33), (1, 1), (1, 1))).width == 16
    assert chosen_tile(as_expr(112), Window((3, 3), (4, 4), (1, 1))).width == 4
    assert chosen_tile(symbol("s0"), Window((3, 3), (1, 1), (1, 1))).width == 14


def test_tiles_of_a_window_that_moves_backwards_have_whole_steps() -> None:
    tile = chosen_tile(as_expr(112), Window((3, 3), (3, 3), (1, 1)), is_backwards=True)
    assert tile.width % 3 == 0
    assert tile.advance * 3 == tile.width
    assert sum(map(len, tile.taps.values())) == tile.width


def test_varying_numbers_and_extents_are_numbers_of_the_launch() -> None:
    form = Form(images=3, channels=64, pixels=(10, 12))
    image, weight = form.operands()
    torch._dynamo.maybe_mark_dynamic(image, [0, 2, 3])
    (template,) = templates(check_by_interpreter(form.convolve, [image, weight], TARGET))
    assert constant(template, "IS_FAR")
    names = {scalar.name for scalar in template.scalars}
    assert {"count", "rows", "columns", "tiles", "height", "width"} <= names


GRADIENT_FORMS = (
    Form(channels=33, has_bias=True),
    Form(window=(7, 7), padding=(3, 3), pixels=(7, 7), dtype=torch.float16),
    Form(window=(5, 5), padding=(2, 2), stride=(2, 2), pixels=(13, 28), has_bias=True),
    Form(window=(3, 5), padding=(0, 1), stride=(1, 3), pixels=(8, 31), channels=20),
    Form(window=(5, 3), padding=(4, 0), stride=(3, 1), pixels=(6, 20), dtype=torch.float32),
)


@pytest.mark.parametrize("form", GRADIENT_FORMS, ids=str)
def test_the_templates_give_the_gradients(form: Form) -> None:
    image, weight, *bias = form.operands()
    gradient = torch.randn_like(form.convolve(image, weight))
    gradient = gradient.contiguous(memory_format=torch.channels_last)

    def gradients(gradient: Tensor, image: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        found = torch.ops.aten.convolution_backward(
            gradient,
            image,
            weight,
            [form.channels] if bias else None,
            form.stride,
            form.padding,
            (1, 1),
            False,
            (0, 0),
            form.channels,
            (True, True, bool(bias)),
        )
        return tuple(part for part in found if part is not None)

    program = check_by_interpreter(gradients, [gradient, image, weight], TARGET)
    assert len(templates(program)) == 2
    assert not any(isinstance(step, ExternCall) for step in program.plan.steps)


def test_few_tiles_are_small() -> None:
    widths = []
    for images in (1, 64):
        form = Form(images=images, channels=256, pixels=(14, 14))
        captured = traced_one(form.convolve, *form.operands())
        lowered = decompose_to_prims(captured.graph, max_sorted_elems=TARGET.max_sorted_elems)
        (template,) = templates(optimize(lowered.graph, TARGET).program)
        widths.append(template.source.count("tl.store"))
    assert widths == [4, 14]


def test_rows_that_lie_far_apart_have_positions_of_64_bits() -> None:
    far = {}
    for height in (64, 1 << 17):
        shape = tuple(map(as_expr, (1, 32, height, 1024)))
        step = 32 * 1024
        strides = tuple(map(as_expr, (height * step, 1, step, 32)))
        views = {"image": StridedView(0, shape, strides), "weight": StridedView(1, (), ())}
        window = Window((3, 3), (1, 1), (1, 1))
        far[height] = [
            constant(depthwise_convolution(views, DType.BF16, shape, window, 264).kernel, "IS_FAR"),
            constant(
                weight_gradient(views | {"gradient": views["image"]}, DType.BF16, 4, window).kernel,
                "IS_FAR",
            ),
        ]
    assert far == {64: [False, False], 1 << 17: [True, True]}
