"""Sample calls of operators that make tensors, view them, join them or select elements."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tests.support.operator_samples.tensors import (
    INF,
    INTS,
    index,
    normal,
    special,
)
from tests.support.single_operator import Call, each_call


def selection_calls() -> Iterator[Call]:
    """New tensors, views, slices, concatenations, indices and selections."""
    for group in (
        _creation,
        _views,
        _slicing,
        _joining,
        _indexing,
        _selection,
    ):
        yield from group()


def _creation() -> Iterator[Call]:
    yield from each_call("aten.full.default", [[2, 3], 1.5], [[2], 7], [[], True])
    yield Call("aten.full.default", [[2, 3], 1.7], {"dtype": torch.int32})
    yield from each_call("aten.scalar_tensor.default", [3], [-INF])
    yield Call("aten.scalar_tensor.default", [3.0], {"dtype": torch.float16})
    x = normal(2, 3)
    yield Call("aten.full_like.default", [x, 4])
    yield Call("aten.new_full.default", [x, [4], 4])
    yield Call("aten.fill.Scalar", [x, 4])
    yield Call("aten.fill.Tensor", [x, normal(dtype=INTS[0])])
    for name in ("zeros", "ones"):
        yield Call(f"aten.{name}.default", [[2, 3]])
        yield Call(f"aten.{name}_like.default", [x], {"dtype": torch.int8})
        yield Call(f"aten.new_{name}.default", [x, [4, 1]])
        yield Call(f"aten.new_{name}.default", [x, []], {"dtype": torch.bool})
    yield from each_call("aten.arange.default", [5], [2.5])
    yield Call("aten.arange.default", [5], {"dtype": torch.float16})
    yield from each_call("aten.arange.start", [2, 7], [-1.5, 2.0])
    yield from each_call("aten.arange.start_step", [2, 9, 3], [9, 2, -3], [0, 1, 0.3], [3, 3, 1])
    for dtype in (torch.int64, torch.int32, torch.uint8):
        for ends in ([0.5, 7.9, 2.5], [9.9, 0.1, -1.5], [1.2, 6.0, 1]):
            yield Call("aten.arange.start_step", ends, {"dtype": dtype})
    iota = {"start": 3, "step": -2, "dtype": torch.int64, "device": "cpu", "requires_grad": False}
    yield Call("prims.iota.default", [5], iota)
    yield from each_call("aten.linspace.default", [0, 1, 7], [3.0, -2.0, 4], [0, 1, 1])
    yield Call("aten.eye.default", [3])
    yield Call("aten.eye.m", [3, 5], {"dtype": torch.int64})


def _views() -> Iterator[Call]:
    x = normal(2, 3, 4)
    for name in [
        "alias",
        "clone",
        "detach",
        "lift_fresh",
        "lift_fresh_copy",
        "positive",
        "contiguous",
    ]:
        yield Call(f"aten.{name}.default", [x])
    yield Call("prims.view_of.default", [x])
    for name in ["view", "_unsafe_view", "reshape", "view_copy"]:
        yield from each_call(f"aten.{name}.default", [x, [6, 4]], [x, [2, -1]], [x, [-1]])
    yield Call("aten._reshape_alias.default", [x, [6, 4], [4, 1]])
    yield from each_call("aten.flatten.using_ints", [x], [x, 1, 2], [normal()])
    for name in ("permute", "permute_copy"):
        yield Call(f"aten.{name}.default", [x, [2, 0, -2]])
    for name in ("transpose.int", "swapaxes.default", "transpose_copy.int"):
        yield Call(f"aten.{name}", [x, 0, -1])
    for name in ("t", "t_copy"):
        yield from each_call(f"aten.{name}.default", [x[0]], [normal(3)])
    yield from each_call("aten.movedim.intlist", [x, [0], [-1]], [x, [0, 1], [1, 0]])
    for name in ("unsqueeze", "unsqueeze_copy"):
        yield from each_call(f"aten.{name}.default", [x, 0], [x, -1], [normal(), 0])
    ones = normal(1, 3, 1)
    yield Call("aten.squeeze.default", [ones])
    for name in ("squeeze", "squeeze_copy"):
        yield from each_call(f"aten.{name}.dim", [ones, 0], [ones, 1], [normal(), 0])
    yield Call("aten.squeeze.dims", [ones, [0, -1]])
    for name in ("expand", "expand_copy"):
        yield from each_call(f"aten.{name}.default", [ones, [5, 3, 2]], [ones, [4, -1, 3, 2]])
    yield Call("aten.expand_as.default", [ones, normal(2, 3, 4)])
    yield Call("aten.pixel_shuffle.default", [normal(2, 12, 3, 4), 2])
    yield Call("aten.pixel_unshuffle.default", [normal(2, 3, 4, 6), 2])


def _slicing() -> Iterator[Call]:
    x = normal(5, 7, 2)
    bounds = (
        (1, 5, 2),
        (None, None, 1),
        (-3, None, 1),
        (0, -1, 1),
        (2, 9223372036854775807, 1),
        (6, 2, 1),
        (-99, 99, 3),
    )
    for start, end, step in bounds:
        yield Call("aten.slice.Tensor", [x, 1, start, end, step])
    yield Call("aten.slice_copy.Tensor", [x, 0, 1, 3])
    yield Call("aten.narrow.default", [x, 1, 2, 3])
    for name in ("select", "select_copy"):
        yield from each_call(f"aten.{name}.int", [x, 1, 3], [x, -1, -2])
    for name in ("split", "unsafe_split"):
        yield from each_call(f"aten.{name}.Tensor", [x, 3, 1], [x, 5])
    for name in ("split_with_sizes", "split_with_sizes_copy", "unsafe_split_with_sizes"):
        yield Call(f"aten.{name}.default", [x, [1, 4, 2], 1])
    yield Call("aten.chunk.default", [x, 3, 1])
    yield from each_call("aten.unbind.int", [x, 2], [x])
    yield Call("aten.unbind_copy.int", [x, 2])
    yield Call("aten.flip.default", [x, [0, -1]])
    yield from each_call("aten.roll.default", [x, [2], [1]], [x, [1, -2], [0, 1]])
    yield from each_call(
        "aten.slice_scatter.default", [x, normal(5, 3, 2), 1, 2, 5], [x, normal(5, 7, 2, seed=1)]
    )
    yield Call("aten.select_scatter.default", [x, normal(5, 2), 1, -1])


def _joining() -> Iterator[Call]:
    x, y = normal(2, 3), normal(2, 5)
    for name in ("cat", "concat"):
        yield Call(f"aten.{name}.default", [[x, y], 1])
    yield Call("aten.cat.default", [[x, x.half()], 0])
    yield Call("aten.cat.default", [[torch.empty(0), x, normal(2, 3, dtype=INTS[0])], -2])
    yield from each_call("aten.stack.default", [[x, x + 1]], [[x, x + 1], -1])
    yield from each_call("aten.repeat.default", [x, [2, 3]], [x, [4, 1, 2]], [normal(), [2]])
    yield from each_call("aten.repeat_interleave.self_int", [x, 2, 1], [x, 3])
    yield from each_call(
        "aten.constant_pad_nd.default", [x, [1, 2]], [x, [1, -2, -1, 3], 5.0], [x, [0, 0]]
    )
    yield Call("aten.constant_pad_nd.default", [normal(3, dtype=torch.bool), [1, 1], 1])


def _indexing() -> Iterator[Call]:
    x = normal(5, 6, 7)
    for op in ("aten.index.Tensor", "aten._unsafe_index.Tensor"):
        yield Call(op, [x, [index(3, below=5)]])
        yield Call(op, [x, [None, index(2, 3, below=6)]])
        yield Call(op, [x, [index(3, 1, below=5), index(4, below=6)]])
        yield Call(op, [x, [None, index(3, 1, below=6), index(4, below=7)]])
        yield Call(op, [x, [index(3, 1, below=5), None, index(4, below=7)]])
        yield Call(op, [x, [index(3, below=5), index(3, below=6).int(), index(1, below=7)]])
    yield Call("aten.index_select.default", [x, 1, index(4, below=6).abs() % 6])
    table = normal(9, 4)
    rows = index(2, 3, below=9) % 9
    yield from each_call("aten.embedding.default", [table, rows], [table, rows.int(), 0])
    yield from each_call(
        "aten.gather.default", [x[0], 1, index(6, 3, below=7) % 7], [normal(), 0, torch.tensor(0)]
    )
    yield Call("aten.gather.default", [x, -3, index(2, 4, 5, below=5) % 5])
    yield Call("aten.take.default", [x, index(3, 2, below=210)])


def _selection() -> Iterator[Call]:
    mask = normal(3, 4, dtype=torch.bool)
    yield Call("aten.where.self", [mask, normal(3, 4), normal(4, dtype=torch.float64)])
    yield Call("aten.where.self", [mask, normal(dtype=torch.float64), normal(4)])
    yield Call("aten.where.self", [mask, normal(4, dtype=INTS[0]), normal(dtype=torch.float16)])
    yield Call("aten.where.ScalarOther", [mask, normal(4, dtype=INTS[1]), 2])
    yield Call("aten.where.ScalarSelf", [mask, 2.5, normal(4, dtype=INTS[1])])
    yield from each_call("aten.where.Scalar", [mask, 1, 2.5], [mask, 1, 2])
    yield Call("aten.masked_fill.Scalar", [normal(3, 4), mask[0], -INF])
    yield Call("aten.masked_fill.Scalar", [normal(4, dtype=torch.float16), mask, 0.1])
    yield Call("aten.masked_fill.Tensor", [normal(3, 4), mask, torch.tensor(3)])
    for x in (special(), special(torch.float16), normal(5, dtype=INTS[0])):
        yield from each_call("aten.clamp.default", [x, -1, 1], [x, None, 2], [x, 3, 1])
    yield Call("aten.clamp.default", [normal(5, dtype=INTS[0]), 0.5])
    yield Call("aten.clamp.Tensor", [normal(3, 4), normal(4), None])
    yield Call("aten.clamp.Tensor", [normal(3, 4), normal(4), normal(4) + 1])
    truths = normal(9, dtype=torch.bool), normal(9, dtype=torch.bool, seed=1)
    yield Call("aten.clamp.Tensor", [*truths])
    yield Call("aten.clamp_min.default", [special(), 0.0])
    yield Call("aten.clamp_min.Tensor", [normal(3, 4), normal(4)])
    yield Call("aten.clamp_max.default", [special(), 0.0])
    yield Call("aten.clamp_max.Tensor", [normal(3, 4), normal(4)])
    for name in ("triu", "tril"):
        yield from each_call(
            f"aten.{name}.default",
            [normal(4, 5)],
            [normal(2, 4, 3), 1],
            [normal(4, 4, dtype=INTS[0]), -2],
        )
        yield Call(f"aten.{name}.default", [normal(4, 4, dtype=torch.bool)])
