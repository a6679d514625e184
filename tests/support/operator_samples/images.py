"""Sample calls of images resized with antialiasing, and of the gradients of resizing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch

from tests.support.operator_samples.tensors import FLOATS, normal
from tests.support.single_operator import Call


def image_calls() -> Iterator[Call]:
    """At least one call for each operator in the families."""
    yield from _antialiased()
    yield from _gradients()


def _antialiased() -> Iterator[Call]:
    sizes = ([5, 4], [3, 17], [20, 2], [9, 11], [1, 1])
    for name in ("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"):
        for size, align in itertools.product(sizes, (False, True)):
            yield Call(f"aten.{name}.default", [normal(2, 3, 9, 11), size, align])
        x = normal(2, 3, 9, 11).double()
        yield Call(f"aten.{name}.default", [x, [5, 4], False, 0.55, 0.4])
        yield Call(f"aten.{name}.vec", [normal(1, 2, 8, 9), None, False, [0.5, 1.7]])
        yield Call(f"aten.{name}.vec", [normal(1, 2, 8, 9), [3, 5], True, None])
        empty = torch.empty(0, 3, 8, 9)
        yield Call(f"aten.{name}.default", [empty, [3, 5], False])


def _gradients() -> Iterator[Call]:
    shapes = {1: [2, 3, 7], 2: [2, 3, 7, 6], 3: [1, 2, 4, 5, 3]}
    asked = (([14, 12, 9], None), ([5, 13, 8], None), ([10, 9, 4], [1.5, 1.5, 1.6]))
    linear = {1: "upsample_linear1d", 2: "upsample_bilinear2d", 3: "upsample_trilinear3d"}
    for (axes, shape), (sizes, factors) in itertools.product(shapes.items(), asked):
        scales = [None] * axes if factors is None else factors[:axes]
        for dtype in FLOATS[:2]:
            grad = normal(*shape[:2], *sizes[:axes]).to(dtype)
            begin = [grad, sizes[:axes], shape]
            for name in ("upsample_nearest", "_upsample_nearest_exact"):
                yield Call(f"aten.{name}{axes}d_backward.default", [*begin, *scales])
            for align in (False, True):
                args = [*begin, align, *scales]
                yield Call(f"aten.{linear[axes]}_backward.default", args)
                if axes == 2:
                    yield Call("aten.upsample_bicubic2d_backward.default", args)
    half = normal(1, 1, 6).bfloat16()
    yield Call("aten.upsample_linear1d_backward.default", [half, [6], [1, 1, 3], False])
