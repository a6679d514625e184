"""Sample calls of pooling, mirrored padding and diagonals."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tests.support.single_operator import Call

INF, NAN = float("inf"), float("nan")


def window_calls() -> Iterator[Call]:
    """At least one call for each operator of these families."""
    yield from _averages()
    yield from _maxima()
    yield from _unpooled()
    yield from _columns()
    yield from _pads()
    yield from _diagonals()


def _normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    if not dtype.is_floating_point:
        return torch.randint(-9, 10, shape, generator=generator).to(dtype)
    return torch.randn(shape, generator=generator).to(dtype)


def _averages() -> Iterator[Call]:
    yield Call("aten.avg_pool1d.default", [_normal(2, 3, 9), [3], [2], [1]])
    x = _normal(2, 3, 9, 8)
    yield Call("aten.avg_pool2d.default", [x, [3, 2], [2, 2], [1, 1]])
    yield Call("aten.avg_pool2d.default", [x, [3, 3], [2, 2], [1, 1], False, False])
    yield Call("aten.avg_pool2d.default", [x, [2, 3], [3, 3], [1, 1], True, False])
    yield Call("aten.avg_pool2d.default", [x, [2, 3], [3, 3], [1, 1], True, True])
    yield Call("aten.avg_pool2d.default", [x, [640, 70], [], [2, 0], True])
    yield Call("aten.avg_pool2d.default", [x, [9, 16], [3, 2], [4, 7], False, False])
    yield Call("aten.avg_pool2d.default", [x[0], [4, 4], [], 0, False, True, 3])
    yield Call("aten.avg_pool2d.default", [x.to(torch.bfloat16), [3, 3], [1, 1], [1, 1]])
    yield Call("aten.avg_pool2d.default", [_normal(3, 5, 5, dtype=torch.int64), [2, 2]])
    yield Call("aten.avg_pool3d.default", [_normal(2, 4, 5, 4), [2, 3, 2], [2, 1, 2]])
    yield Call("aten._adaptive_avg_pool2d.default", [x, [1, 1]])
    yield Call("aten._adaptive_avg_pool2d.default", [x, [3, 4]])
    yield Call("aten._adaptive_avg_pool2d.default", [x, [4, 5]])
    yield Call("aten._adaptive_avg_pool3d.default", [_normal(2, 3, 5, 7), [1, 1, 1]])
    yield Call("aten._adaptive_avg_pool3d.default", [_normal(2, 3, 5, 7), [2, 5, 3]])


def _maxima() -> Iterator[Call]:
    x = _normal(2, 3, 9, 8)
    x[0, 0, 2:5, 1:4] = -INF
    x[0, 1, 4, 4] = NAN
    name = "aten.max_pool2d_with_indices.default"
    yield Call(name, [x, [3, 3], [2, 2], [1, 1]])
    yield Call(name, [x, [3, 2], [2, 2], [1, 1], [2, 1]])
    yield Call(name, [x, [2, 2], [3, 3], [0, 1], [1, 1], True])
    yield Call(name, [x[0], [3, 3]])
    yield Call(name, [torch.full((1, 4, 4), -INF), [3, 3], [1, 1], [1, 1]])
    yield Call(name, [torch.full((1, 6, 6), -INF), [3, 3], [2, 2], [1, 1], [2, 2]])
    yield Call(name, [x.to(torch.float16), [2, 2]])
    yield Call(name, [_normal(2, 5, 5, dtype=torch.int64), [2, 2]])
    yield Call(name, [_normal(2, 5, 5, dtype=torch.uint8), [3, 3], [1, 1], [1, 1]])
    yield Call("aten.max_pool3d_with_indices.default", [_normal(2, 4, 5, 4), [2, 2, 2], [1, 2, 1]])
    for dtype in (torch.float32, torch.float64):
        yield Call("aten.adaptive_max_pool2d.default", [x.to(dtype), [4, 5]])
    yield Call("aten.adaptive_max_pool3d.default", [_normal(2, 3, 5, 7), [2, 5, 3]])


def _unpooled() -> Iterator[Call]:
    for axes, shape in ((2, (2, 3, 7, 6)), (3, (2, 4, 5, 6))):
        for dtype in (torch.float32, torch.float64):
            pool = getattr(torch.nn.functional, f"max_pool{axes}d")
            made, indices = pool(_normal(*shape, dtype=dtype), 2, return_indices=True)
            rest = [] if axes == 2 else [[2] * axes, [0] * axes]
            args = [made, indices, list(shape[-axes:]), *rest]
            yield Call(f"aten.max_unpool{axes}d.default", args)


def _columns() -> Iterator[Call]:
    x = _normal(2, 3, 6, 5)
    yield Call("aten.im2col.default", [x, [2, 3], [1, 1], [0, 1], [2, 1]])
    yield Call("aten.im2col.default", [x[0], [2, 2], [2, 1], [1, 1], [1, 1]])
    for name in ("unfold", "unfold_copy"):
        yield Call(f"aten.{name}.default", [x, 2, 3, 2])
        yield Call(f"aten.{name}.default", [x, -1, 2, 1])
        yield Call(f"aten.{name}.default", [torch.tensor(2.0), 0, 1, 1])


def _pads() -> Iterator[Call]:
    for name in ("reflection_pad", "replication_pad"):
        yield Call(f"aten.{name}1d.default", [_normal(2, 5), [2, 3]])
        yield Call(f"aten.{name}1d.default", [_normal(2, 3, 5, dtype=torch.float16), [4, 0]])
        yield Call(f"aten.{name}2d.default", [_normal(2, 3, 5, 4), [1, 2, 3, 0]])
        yield Call(f"aten.{name}3d.default", [_normal(2, 3, 4, 5), [1, 2, 0, 1, 1, 1]])
    yield Call("aten.replication_pad2d.default", [_normal(2, 3, 5, 4), [-1, 2, 7, -2]])


def _diagonals() -> Iterator[Call]:
    x = _normal(3, 4, 5)
    for name in ("diagonal", "diagonal_copy"):
        for args in ([], [1], [-2, 0, 2], [4], [-1, 2, 1]):
            yield Call(f"aten.{name}.default", [x, *args])
    for args in ([], [2], [-1, 0, 2], [1, -1, 0]):
        yield Call("aten.diag_embed.default", [_normal(3, 4), *args])
    yield Call("aten.diag_embed.default", [_normal(3, dtype=torch.int64) > 0])
    yield Call("aten.diagonal_scatter.default", [_normal(4, 5), _normal(4)])
    yield Call("aten.diagonal_scatter.default", [x, _normal(5, 3), -1, 1, 0])
    yield Call("aten.diagonal_scatter.default", [x, _normal(4, 3).long(), 1, 0, 2])
    yield Call("aten.trace.default", [_normal(4, 6)])
    yield Call("aten.trace.default", [_normal(4, 6, dtype=torch.int16)])
    blocks = [_normal(2, 3), torch.tensor(2), _normal(4)]
    yield Call("aten.block_diag.default", [blocks])
