"""The template of flash attention for Hopper: its instructions, tensor maps and substitutes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernelfarm.digest import named_user_kernel
from kernelfarm.dtypes import DType
from kernelfarm.errors import UserKernelError
from kernelfarm.ir.algebra.expr import Expr, as_expr, symbol
from kernelfarm.ir.triton.check_kernel import check_user_kernel
from kernelfarm.ir.triton.user_kernel import UserKernel
from optimizer_svc.analysis.strided_views import StridedView
from optimizer_svc.kernels.flash_attention import FlashForm, flash_attention
from tests.support.built_templates import built, stage


def kernel_of(
    *extents: int | Expr,
    groups: int | None = None,
    keys: int | Expr | None = None,
    is_causal: bool = False,
    has_mask: bool = False,
    has_sums: bool = False,
    offset: int = 0,
) -> UserKernel:
    """The kernel for queries (batch, heads, length, width) whose heads lie side by side."""
    batch, heads, length, width = map(as_expr, extents)

    def view(rows: Expr, count: Expr) -> StridedView:
        step = count * width
        steps = (rows * step, width, step, as_expr(1))
        return StridedView(0, (batch, count, rows, width), steps, as_expr(offset))

    shared = view(as_expr(length if keys is None else keys), as_expr(groups or heads))
    views = [view(length, heads), shared, shared]
    if has_mask:
        row = shared.shape[2]
        steps = (length * row, as_expr(0), row, as_expr(1))
        views.append(StridedView(0, (batch, as_expr(1), length, row), steps))
    kernel, _ = flash_attention(
        views, [DType.BF16] * len(views), FlashForm(0.125, is_causal, has_sums)
    )
    return named_user_kernel(kernel)


@pytest.mark.parametrize(
    ("kernel", "groups", "programs"),
    [
        # Many causal tiles: each has a program.
        (kernel_of(4, 32, 4096, 128, groups=8, is_causal=True), 2, "4096"),
        (kernel_of(8, 16, 512, 64, has_sums=True), 3, "132"),
        (kernel_of(8, 16, 512, 64, has_mask=True), 2, "132"),
    ],
    ids=["grouped", "three groups", "mask"],
)
def test_aligned_buffers_get_the_template(kernel: UserKernel, groups: int, programs: str) -> None:
    own, general = built(kernel)
    assert [len(v.guard) for v in (own, general)] == [len(kernel.pointers), 0]
    assert not (own.launch.spills or general.launch.spills or own.notes)
    assert dict(own.launch.extras) == {"form": "template", "groups": str(groups)}
    assert own.launch.num_warps == 4 * (groups + 1)
    assert [str(extent) for extent in own.launch.grid] == [programs]
    ptx = stage(own, "ptx")
    assert ".reqntid" in ptx
    for used in ("wgmma.mma_async", "cp.async.bulk.tensor.4d", "setmaxnreg.inc", "mbarrier"):
        assert used in ptx
    assert "wgmma" not in stage(general, "ptx") or "cp.async.bulk" not in stage(general, "ptx")
    assert len(own.launch.tensor_maps) == 4


def test_maps_have_the_places_of_the_operands() -> None:
    own, _ = built(kernel_of(1, 4, 200, 64, groups=2, keys=100, offset=64))
    query, key, value, out = own.launch.tensor_maps
    assert (query.buffer, key.buffer, value.buffer, out.buffer) == (0, 1, 2, 3)
    assert query.extents == out.extents == (1, 4, 200, 64)
    assert key.extents == value.extents == (1, 2, 100, 64)
    # The axis of one sequence has no step.
    assert query.strides_bytes == (16, 128, 512)
    assert out.strides_bytes == (200 * 512, 128, 512)
    assert [m.offset_bytes for m in own.launch.tensor_maps] == [128, 128, 128, 0]
    assert [m.box for m in own.launch.tensor_maps] == [(1, 1, n, 64) for n in (64, 128, 128, 64)]
    assert {m.swizzle_bytes for m in own.launch.tensor_maps} == {128}


def test_heads_are_filled_up_to_a_power_of_two() -> None:
    kernel = kernel_of(2, 4, 100, 40)
    own, _ = built(kernel)
    assert kernel.constants["WIDTH_BLOCK"] == 64
    # The rest of a box is zeros, and is not copied back.
    assert [m.extents[3] for m in own.launch.tensor_maps] == [40] * 4
    assert [m.box[3] for m in own.launch.tensor_maps] == [64] * 4


def test_sizes_that_vary_are_numbers_of_the_launch() -> None:
    batch, length = symbol("a"), symbol("b")
    own, general = built(kernel_of(batch, 4, length, 64, is_causal=True))
    assert [str(extent) for extent in own.launch.grid] == ["min(132, 4*((s1 + 127)//128)*s0)"]
    assert [str(e) for e in own.launch.tensor_maps[0].extents] == ["s0", "4", "s1", "64"]
    bound = own.launch.tensor_maps[0].at({"s0": 3, "s1": 70, "s3": 70 * 256})
    assert (bound.extents, bound.strides_bytes) == ((3, 4, 70, 64), (70 * 512, 128, 512))
    assert own.launch.arguments[:10] == general.launch.arguments[:10]


def test_other_chips_compile_the_source() -> None:
    variants = built(kernel_of(1, 2, 100, 64), "rocm:gfx942")
    assert not any(variant.launch.tensor_maps for variant in variants)


def test_a_template_that_does_not_fit_is_noted_and_the_source_takes_its_place() -> None:
    aligned, general = built(kernel_of(1, 2, 256, 256))
    assert not aligned.launch.tensor_maps
    for variant in (aligned, general):
        (note,) = (note for note in variant.notes if note.startswith("template"))
        assert note.startswith("template flash_attention is ignored: it needs")
        assert "bytes of shared memory" in note


def test_an_unknown_template_is_refused() -> None:
    kernel = replace(kernel_of(1, 2, 100, 64), template="fast")
    with pytest.raises(UserKernelError, match="template 'fast'; expected none or one of flash_att"):
        check_user_kernel(kernel)
