"""Which kernels sum the weighted pixels of windows, and which axes are which."""

from __future__ import annotations

import pytest

from kernelfarm.ir.loop_ir import Axis, Kernel
from kernelfarm.ir.text import parse_kernel, print_kernel
from kernelfarm.ir.window_sums import find_window_sums, sums_windows
from tests.support.window_kernels import DepthwiseCase, depthwise_kernel

CASE = DepthwiseCase(2, (9, 14), 24, (3, 5), padding=(1, 2), stride=2)


def changed(old: str, new: str) -> Kernel:
    text = print_kernel(depthwise_kernel(CASE))
    assert old in text
    return parse_kernel(text.replace(old, new))


def name(axis: Axis | None) -> str:
    return "" if axis is None else axis.name


def test_axes_are_found_by_their_steps() -> None:
    found = find_window_sums(depthwise_kernel(CASE))
    assert found is not None
    axes = found.channels, found.pixels, found.lines, found.across, found.down
    assert [name(axis) for axis in axes] == ["d3", "d2", "d1", "r1", "r0"]
    (only,) = found.sums
    assert (only.image.along, only.image.across, only.weight.across) == (48, 24, 24)


def test_pixels_within_the_image_are_known_by_column() -> None:
    found = find_window_sums(depthwise_kernel(CASE))
    assert found is not None
    (only,) = found.sums
    inside = [
        [only.has_pixel(found, pixel, at) for at in range(5)] for pixel in range(CASE.result[1])
    ]
    expected = [
        [0 <= 2 * pixel + at - 2 < 14 for at in range(5)] for pixel in range(CASE.result[1])
    ]
    assert inside == expected


@pytest.mark.parametrize("window", [(1, 5), (3, 1)])
def test_windows_of_one_row_or_column_are_found(window: tuple[int, int]) -> None:
    assert find_window_sums(depthwise_kernel(DepthwiseCase(1, (9, 9), 8, window))) is not None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("= sum %", "= amax %"),
        ("= mul %", "= add %"),
        ("f32 = 0.0", "f32 = 1.0"),
        ("d3 + 120*r0 + 24*r1]", "2*d3 + 120*r0 + 24*r1]"),
    ],
)
def test_others_are_none(old: str, new: str) -> None:
    kernel = changed(old, new)
    assert find_window_sums(kernel) is None
    assert not sums_windows(kernel)


def test_the_order_of_axes_may_be_another_before_code_is_generated() -> None:
    kernel = depthwise_kernel(CASE)
    text = print_kernel(kernel)
    turned = text.replace("for d2 in 7\nfor d3 in 24\n", "for d3 in 24\nfor d2 in 7\n")
    assert turned != text
    other = parse_kernel(turned)
    assert find_window_sums(other) is None
    assert sums_windows(other)
