"""Sample calls of searches, and of images that are interpolated or resized."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch

from tests.support.operator_samples.tensors import FLOATS, INF, INTS, NAN, normal
from tests.support.single_operator import Call


def search_calls() -> Iterator[Call]:
    """At least one call for each operator of these families."""
    yield from _searches()
    yield from _members()
    yield from _grids()
    yield from _resized()


def _searches() -> Iterator[Call]:
    bounds = torch.tensor([-1.0, 0.0, 0.5, 0.5, 2.0])
    values = torch.cat([normal(3, 4).reshape(-1), torch.tensor([0.5, NAN, INF, -INF, 2.0])])
    for right in (False, True):
        yield Call("aten.bucketize.Tensor", [values, bounds], {"right": right})
        yield Call("aten.searchsorted.Tensor", [bounds, values], {"right": right})
        yield Call("aten.searchsorted.Scalar", [bounds, 0.5], {"right": right})
    whole = torch.arange(0, 20, 3)
    yield Call("aten.bucketize.Tensor", [normal(4, 5, dtype=INTS[0]), whole], {"out_int32": True})
    rows = normal(2, 3, 6).sort(-1).values
    for dtype in FLOATS:
        yield Call("aten.searchsorted.Tensor", [rows.to(dtype), normal(2, 3, 4).to(dtype)])
    yield Call("aten.searchsorted.Tensor", [rows, normal(2, 3, 4)], {"side": "right"})

    halves = torch.tensor([0.5, 2.0, -1.0, 0.0, 0.5])
    for right in (False, True):
        rest = {"right": right, "sorter": halves.argsort()}
        yield Call("aten.searchsorted.Tensor", [halves, values], rest)
        yield Call("aten.searchsorted.Scalar", [halves, 0.5], rest)
        yield Call("aten.bucketize.Scalar", [0.5, bounds], {"right": right})
    yield Call("aten.bucketize.Scalar", [3, whole], {"out_int32": True})


def _members() -> Iterator[Call]:
    for rest in ({}, {"invert": True}):
        yield Call("aten.isin.Tensor_Scalar", [normal(4, dtype=INTS[0]), 3], rest)
        yield Call("aten.isin.Scalar_Tensor", [3, normal(4, dtype=INTS[0])], rest)
    x = normal(4, 5, dtype=INTS[0])
    yield Call("aten.isin.Tensor_Tensor", [x, torch.tensor([1, 3, 8])])
    yield Call("aten.isin.Tensor_Tensor", [x, torch.tensor([1, 3, 8])], {"invert": True})
    with_nan = torch.tensor([1.0, NAN, 2.0])
    yield Call("aten.isin.Tensor_Tensor", [with_nan, torch.tensor([NAN, 2.0])])


def _grids() -> Iterator[Call]:
    grid = normal(2, 5, 4, 2) * 1.2
    for mode, padding, align in itertools.product((0, 1, 2), (0, 1, 2), (False, True)):
        args = [normal(2, 3, 6, 7), grid, mode, padding, align]
        yield Call("aten.grid_sampler_2d.default", args)
    yield Call(
        "aten.grid_sampler_2d.default", [normal(2, 3, 6, 7).double(), grid.double(), 0, 0, 1]
    )
    volume, positions = normal(2, 3, 4, 6, 5), normal(2, 3, 4, 2, 3) * 1.2
    for mode, padding, align in itertools.product((0, 1), (0, 1, 2), (False, True)):
        yield Call("aten.grid_sampler_3d.default", [volume, positions, mode, padding, align])


def _resized() -> Iterator[Call]:
    shapes = {1: (2, 3, 7), 2: (2, 3, 7, 6), 3: (1, 2, 4, 5, 3)}
    asked = (([14, 12, 9], None), ([5, 13, 8], None), ([10, 9, 4], [1.5, 1.5, 1.6]))
    linear = {1: "upsample_linear1d", 2: "upsample_bilinear2d", 3: "upsample_trilinear3d"}
    for axes, shape in shapes.items():
        for dtype in FLOATS:
            x = normal(*shape).to(dtype)
            for sizes, factors in asked:
                scales = [None] * axes if factors is None else factors[:axes]
                for name in ("upsample_nearest", "_upsample_nearest_exact"):
                    yield Call(f"aten.{name}{axes}d.default", [x, sizes[:axes], *scales])
                for align in (False, True):
                    args = [x, sizes[:axes], align, *scales]
                    yield Call(f"aten.{linear[axes]}.default", args)
                    if axes == 2:
                        yield Call("aten.upsample_bicubic2d.default", args)
        x = normal(*shape)
        for factors in ([2.0] * axes, [1.7] * axes):
            for name in ("upsample_nearest", "_upsample_nearest_exact"):
                yield Call(f"aten.{name}{axes}d.vec", [x, None, factors])
            yield Call(f"aten.{linear[axes]}.vec", [x, None, False, factors])
        yield Call(f"aten.{linear[axes]}.vec", [x, list(shape[2:]), False, None])
    yield Call("aten.upsample_bicubic2d.vec", [normal(2, 3, 7, 6), [9, 8], True, None])
    yield Call("aten.upsample_bicubic2d.vec", [normal(2, 3, 7, 6), None, False, [2.0, 1.5]])
    pixels = normal(2, 3, 7, 6, dtype=torch.uint8)
    yield Call("aten.upsample_nearest2d.default", [pixels, [14, 9]])
