"""Padded images with short rows are stored for processors, so that windows need no comparisons."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.targets import target_facts
from optimizer_svc.pipeline import optimize
from tests.support.goldens import assert_golden
from tests.support.optimizer_passes import before_and_after
from tests.support.traced_graphs import traced_one

CPU = "cpu:x86-64-v3"

WINDOWS = """\
graph prims 1
%0: f32[6, 10]@[10, 1] = input "x"
%1: f32[6, 14] = pad(%0; high=[{0}, {2}], low=[{0}, {2}], value=-inf)
%2: f32[6, 10] = slice(%1; limits=[{6}, {10}], starts=[{0}, {0}], steps=[{1}, {1}])
%3: f32[6, 10] = slice(%1; limits=[{6}, {11}], starts=[{0}, {1}], steps=[{1}, {1}])
%4: f32[6, 10] = slice(%1; limits=[{6}, {12}], starts=[{0}, {2}], steps=[{1}, {1}])
%5: f32[6, 10] = slice(%1; limits=[{6}, {13}], starts=[{0}, {3}], steps=[{1}, {1}])
%6: f32[6, 10] = slice(%1; limits=[{6}, {14}], starts=[{0}, {4}], steps=[{1}, {1}])
%7: f32[6, 10] = maximum(%2, %3)
%8: f32[6, 10] = maximum(%7, %4)
%9: f32[6, 10] = maximum(%8, %5)
%10: f32[6, 10] = maximum(%9, %6)
return %10: f32[6, 10]@[10, 1]
"""


@pytest.mark.golden
def test_an_image_with_short_rows_is_stored_with_its_padding() -> None:
    assert_golden(
        before_and_after("store-paddings", WINDOWS, CPU),
        """\
-- before store-paddings: chosen
storage %0: input 0, f32[6, 10]@[10, 1]
storage %10: output 0, f32[6, 10]@[10, 1]
members: %10
output 0: %10 as [6, 10]@[10, 1]
-- after: chosen
storage %0: input 0, f32[6, 10]@[10, 1]
storage %1: temporary, f32[6, 14]@[14, 1]
storage %10: output 0, f32[6, 10]@[10, 1]
members: %1, %10
output 0: %10 as [6, 10]@[10, 1]
note: stored: a padded image with rows of fewer than 16 elements, which windows read
""",
    )


def test_a_gpu_pads_while_it_reads() -> None:
    assert "-- after: chosen\nthe same\n" in before_and_after(
        "store-paddings", WINDOWS, "cuda:sm_90a"
    )


def kernels_of(image: Tensor, target: str) -> int:
    """The launches of the largest of windows of 5 x 5 pixels."""

    def pooled(x: Tensor) -> Tensor:
        return functional.max_pool2d(x, 5, 1, 2)

    graph = decompose_to_prims(traced_one(pooled, image).graph).graph
    return len(optimize(graph, target_facts(target)).program.plan.steps)


@pytest.mark.parametrize(
    ("width", "target", "kernels"),
    [
        (10, CPU, 2),
        (15, CPU, 2),
        (16, CPU, 1),  # two vectors of 8
        (16, "cpu:x86-64-v4", 2),
        (40, "cpu:x86-64-v4", 1),
        (7, "cpu:aarch64", 2),
        (8, "cpu:aarch64", 1),
    ],
)
def test_rows_are_short_if_they_have_less_than_two_vectors(
    width: int, target: str, kernels: int
) -> None:
    assert kernels_of(torch.empty(1, 8, width, width), target) == kernels


def test_rows_of_channels_have_whole_vectors() -> None:
    image = torch.empty(1, 8, 10, 10).to(memory_format=torch.channels_last)
    assert kernels_of(image, CPU) == 1
