"""Where convolutions are computed by Winograd's algorithm."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernelfarm.ir.winograd import Convolution, padding_of, refusal
from kernelfarm.targets import WinogradFacts, all_targets

FACTS = WinogradFacts(("f32",), 16, many_tiles=100, least_channels_of_many=32, most_bytes=1 << 20)
PLAIN = Convolution((1, 16, 14, 14), (24, 16, 3, 3), (1, 1, 1, 1, 1, 1, 1), "f32")


@pytest.mark.parametrize(
    ("image", "result", "padding"),
    [
        ((7, 7), (7, 7), 1),
        ((13, 9), (11, 7), 0),
        ((7, 7), (9, 9), None),
        ((7, 7), (7, 5), None),
        ((7, 7), (4, 4), None),
    ],
)
def test_sizes_state_the_padding(
    image: tuple[int, int], result: tuple[int, int], padding: int | None
) -> None:
    assert padding_of(image, result) == padding


@pytest.mark.parametrize("window", [(1, 1, 1, 1, 1, 1, 1), (1, 1, 0, 0, 1, 1, 1)])
def test_small_windows_of_enough_channels_are(window: tuple[int, ...]) -> None:
    assert refusal(replace(PLAIN, window=window), FACTS) is None


@pytest.mark.parametrize(
    ("window", "reason"),
    [
        ((2, 2, 1, 1, 1, 1, 1), "with strides or dilations"),
        ((1, 1, 1, 1, 2, 2, 1), "with strides or dilations"),
        ((1, 1, 2, 2, 1, 1, 1), "with other padding than 0 or 1"),
        ((1, 1, 1, 0, 1, 1, 1), "with other padding than 0 or 1"),
        ((1, 1, 1, 1, 1, 1, 2), "with windows of other sizes, or groups"),
    ],
)
def test_other_windows_are_not(window: tuple[int, ...], reason: str) -> None:
    assert refusal(replace(PLAIN, window=window), FACTS) == reason


@pytest.mark.parametrize(
    ("image", "weight", "reason"),
    [
        ((1, 16, 14, 14), (24, 16, 5, 5), "with windows of other sizes, or groups"),
        ((1, 15, 14, 14), (24, 15, 3, 3), "of fewer than 16 channels"),
        ((1, 16, 20, 20), (24, 16, 3, 3), "of fewer than 32 channels and 100 tiles"),
        ((3, 32, 20, 19), (32, 32, 3, 3), "whose transformed tiles take more than 1048576 bytes"),
        ((None, 16, 14, 14), (24, 16, 3, 3), "of varying sizes"),
        ((1, 16, 14, None), (24, 16, 3, 3), "of varying sizes"),
    ],
)
def test_other_sizes_are_not(
    image: tuple[int | None, ...], weight: tuple[int, ...], reason: str
) -> None:
    assert refusal(replace(PLAIN, image=image, weight=weight), FACTS) == reason


def test_other_types_are_not() -> None:
    reason = "of bf16, for which kernels were not timed"
    assert refusal(replace(PLAIN, dtype="bf16"), FACTS) == reason


def test_only_targets_that_were_measured_have_facts() -> None:
    measured = [name for name, facts in all_targets().items() if facts.winograd is not None]
    assert measured == ["cpu:x86-64-v3-amd", "cpu:x86-64-v4-amd", "cpu:x86-64-v4-bf16-amd"]
