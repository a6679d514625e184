"""Where the operands of attention are in memory: the numbers that its template kernels take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr
from kernelfarm.ir.triton.user_kernel import FixedParam, Pointer, Scalar, UserParam
from optimizer_svc.analysis.strided_views import StridedView

_AXES = ("batch", "head", "row", "column")
# CUDA Driver API, cuTensorMapEncodeTiled: addresses and steps are multiples of 16 bytes.
_MAP_UNIT_BYTES = 16
PAGE_OF = """\
def page_of(numbers, rows, start, seen, pages, PAGE: tl.constexpr, BLOCK: tl.constexpr):
    if PAGE % BLOCK == 0:
        page = tl.load(numbers + start // PAGE)
    else:
        page = tl.load(numbers + rows // PAGE, mask=seen, other=0)
    page = tl.where(page < 0, page + pages, page)
    return tl.minimum(tl.maximum(page, 0), pages - 1).to(tl.int64)


"""
"""The template kernels' function of the pages of the rows of a block, which begin at `start`.

A negative number counts from the end, and all are clamped, as in gathers of accelerators.
"""


def steps_of(name: str, view: StridedView | None) -> dict[str, Expr]:
    """Where an operand begins, and its steps along its axes, which are 0 along an extent of 1.

    The axes are the last four, (batch, head, row, column). All numbers of no operand are 0.
    """
    if view is None:
        return {f"{name}_{part}": ZERO for part in ("at", *_AXES)}
    axes = list(zip(view.shape, view.strides, strict=True))
    axes = [(ONE, ZERO)] * (len(_AXES) - len(axes)) + axes
    steps = {
        f"{name}_{axis}": ZERO if extent is ONE else stride
        for axis, (extent, stride) in zip(_AXES, axes, strict=True)
    }
    return {f"{name}_at": view.offset} | steps


def shares_table(operands: Mapping[str, StridedView]) -> bool:
    """True if a page of keys and one of values have one number, also after it is clamped."""
    same_pages = operands["key"].shape[0] is operands["value"].shape[0]
    return same_pages and operands["key_table"] == operands["value_table"]


def takes_maps(views: Mapping[str, StridedView], dtype: DType) -> bool:
    """True if tensor maps can describe operands with axes (batch, head, row, column).

    Their rows have no gaps, and all steps are multiples of 16 bytes.
    """
    unit = _MAP_UNIT_BYTES // dtype.itemsize_bytes
    return all(
        _is_multiple(step, unit)
        for name, view in views.items()
        for part, step in steps_of(name, view).items()
        if not part.endswith("column")
    ) and not any(_repeats(view) for view in views.values())


def has_even_rows(views: Sequence[StridedView]) -> bool:
    """True if the elements of each row are adjacent."""
    return all(view.strides[-1] is ONE for view in views)


def number_params(
    sizes: Mapping[str, Expr], steps: Mapping[str, Expr]
) -> tuple[list[UserParam], tuple[Expr, ...]]:
    """The parameters of sizes and of steps, and the values of those that vary.

    More rows than 32 bits count would not fit a GPU's memory.
    """
    params = [_param(name, size, DType.I32) for name, size in sizes.items()]
    params += [_param(name, step, DType.I64) for name, step in steps.items()]
    return params, tuple(n for n in (*sizes.values(), *steps.values()) if not n.is_constant)


def mask_param(mask: StridedView | None, dtype: DType) -> UserParam:
    """The parameter of a mask, which may be missing."""
    return FixedParam("mask", None) if mask is None else Pointer("mask", dtype)


def _param(name: str, number: Expr, dtype: DType) -> UserParam:
    return FixedParam(name, number.constant) if number.is_constant else Scalar(name, dtype)


def _repeats(view: StridedView) -> bool:
    """True for a step of 0 along several elements: boxes of a map would repeat them."""
    axes = zip(view.shape, view.strides, strict=True)
    return any(extent is not ONE and stride is ZERO for extent, stride in axes)


def _is_multiple(number: Expr, unit: int) -> bool:
    parts = (number.constant, *(coefficient for _, coefficient in number.terms))
    return all(part % unit == 0 for part in parts)
