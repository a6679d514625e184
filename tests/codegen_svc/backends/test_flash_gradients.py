"""The template of attention's gradients for Hopper: its instructions, tensor maps, substitutes."""

from __future__ import annotations

import re

import pytest

from kernelfarm.digest import named_user_kernel
from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr, as_expr, symbol
from kernelfarm.ir.graph_ir import contiguous_strides
from kernelfarm.ir.triton.user_kernel import UserKernel
from optimizer_svc.analysis.strided_views import StridedView
from optimizer_svc.kernels.flash_gradients import (
    GradientOperands,
    flash_gradients,
    flash_statistics,
)
from optimizer_svc.kernels.flash_mask_gradient import flash_mask_gradient
from tests.support.built_templates import built, stage


def operands_of(
    *extents: int | Expr, groups: int | None, keys: int | Expr | None, has_mask: bool
) -> GradientOperands:
    """Queries (batch, heads, length, width) whose heads lie side by side, and the others."""
    batch, heads, length, width = map(as_expr, extents)

    def view(rows: Expr, count: Expr) -> StridedView:
        step = count * width
        return StridedView(0, (batch, count, rows, width), (rows * step, width, step, ONE))

    shared = view(as_expr(length if keys is None else keys), as_expr(groups or heads))
    own = view(length, heads)
    sums = StridedView(0, (batch, heads, length), (heads * length, length, ONE))
    row = shared.shape[2]
    mask = StridedView(0, (batch, ONE, length, row), (length * row, ZERO, row, ONE))
    return GradientOperands(own, shared, shared, own, own, sums, mask if has_mask else None)


def kernel_of(
    *extents: int | Expr,
    groups: int | None = None,
    keys: int | Expr | None = None,
    is_causal: bool = False,
    has_mask: bool = False,
    own_heads: int = 1,
) -> UserKernel:
    operands = operands_of(*extents, groups=groups, keys=keys, has_mask=has_mask)
    kernel, _ = flash_gradients(
        operands, DType.BF16, 0.125, is_causal=is_causal, own_heads=own_heads
    )
    return named_user_kernel(kernel)


@pytest.mark.parametrize(
    ("kernel", "programs"),
    [
        (kernel_of(4, 32, 4096, 128, groups=8, own_heads=4, is_causal=True), "1024"),
        (kernel_of(4, 32, 4096, 128, groups=8, is_causal=True), "4096"),
        (kernel_of(8, 16, 500, 64), "512"),
        (kernel_of(8, 16, 512, 64, has_mask=True), "512"),
    ],
    ids=["heads together", "heads apart", "tail", "mask"],
)
def test_aligned_buffers_get_the_template(kernel: UserKernel, programs: str) -> None:
    own, general = built(kernel)
    assert [len(v.guard) for v in (own, general)] == [len(kernel.pointers), 0]
    assert own.launch.spills <= 128  # few of them within the loop
    assert dict(own.launch.extras) == {"form": "template"}
    assert own.launch.num_warps == 12  # a loading group has four warps' places
    assert [str(extent) for extent in own.launch.grid] == [programs]
    ptx = stage(own, "ptx")
    for used in (
        *("wgmma.mma_async", "cp.async.bulk.tensor.4d", "setmaxnreg.inc", "mbarrier"),
        "cp.reduce.async.bulk.tensor.4d",
    ):
        assert used in ptx
    assert "red" in stage(general, "ptx") and "cp.reduce" not in stage(general, "ptx")


def test_maps_have_the_places_of_the_operands() -> None:
    own, _ = built(kernel_of(1, 4, 200, 64, groups=2, keys=100))
    query, key, value, grad, grad_query = own.launch.tensor_maps
    numbers = {pointer: place for place, pointer in enumerate(_pointers(own.launch.arguments))}
    assert len(numbers) == 8
    assert [m.buffer for m in own.launch.tensor_maps] == [0, 1, 2, 3, 5]
    assert query.extents == grad.extents == grad_query.extents == (1, 4, 200, 64)
    assert key.extents == value.extents == (1, 2, 100, 64)
    assert grad_query.dtype is DType.F32
    # Of f32 by half rows, of 32 elements at once.
    assert grad_query.strides_bytes == (200 * 4 * 64 * 4, 64 * 4, 4 * 64 * 4)
    assert [m.box for m in own.launch.tensor_maps] == [
        *((1, 1, n, 64) for n in (64, 128, 128, 64)),
        (1, 1, 64, 32),
    ]


def _pointers(arguments: tuple[str, ...]) -> list[int]:
    return [place for place, word in enumerate(arguments) if word == "buffer"]


def test_sizes_that_vary_are_numbers_of_the_launch() -> None:
    batch, length = symbol("a"), symbol("b")
    own, general = built(kernel_of(batch, 4, length, 64, is_causal=True))
    assert [str(extent) for extent in own.launch.grid] == ["4*((s2 + 127)//128)*s0"]
    assert [str(e) for e in own.launch.tensor_maps[0].extents] == ["s0", "4", "s1", "64"]
    assert own.launch.arguments[:12] == general.launch.arguments[:12]


def test_statistics_have_no_template() -> None:
    operands = operands_of(2, 4, 200, 64, groups=2, keys=100, has_mask=False)
    kernel, _ = flash_statistics(operands, DType.BF16)
    assert not kernel.template
    for variant in built(named_user_kernel(kernel)):
        assert not variant.launch.spills


def mask_kernel(shape: tuple[int, ...], parts: int) -> UserKernel:
    """The gradient of a mask of this shape, for 64 sequences of 3 heads and 49 queries and keys."""
    own = operands_of(64, 3, 49, 32, groups=None, keys=None, has_mask=False)

    def dense(*sizes: int) -> StridedView:
        extents = tuple(map(as_expr, sizes))
        return StridedView(0, extents, contiguous_strides(extents))

    named = {
        "query": own.query,
        "key": own.key,
        "value": own.value,
        "grad": own.grad,
        "statistics": dense(64, 3, 2, 64),
        "mask": dense(*shape),
    }
    dtypes = (DType.BF16, DType.BF16 if parts == 1 else DType.F32)
    return named_user_kernel(flash_mask_gradient(named, dtypes, 0.125, parts)[0])


@pytest.mark.parametrize(("shape", "parts"), [((3, 49, 49), 16), ((64, 1, 1, 49), 1)])
def test_gradients_of_a_mask_stay_in_registers(shape: tuple[int, ...], parts: int) -> None:
    """Nothing is added in memory, so sums do not depend on the order of programs."""
    for variant in built(mask_kernel(shape, parts)):
        assert not variant.launch.spills
        ptx = stage(variant, "ptx")
        assert "wgmma.mma_async" in ptx
        assert not re.search(r"\b(red|atom)\.", ptx)


def test_other_chips_compile_the_source() -> None:
    for kernel in (kernel_of(1, 2, 100, 64), mask_kernel((3, 49, 49), 16)):
        variants = built(kernel, "rocm:gfx942")
        assert not any(variant.launch.tensor_maps for variant in variants)
