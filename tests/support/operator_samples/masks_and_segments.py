"""Sample calls of operators that first find positions: masks, segments, bins, random windows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch

from tests.support.operator_samples.tensors import FLOATS, INF, INTS, NAN, index, normal
from tests.support.single_operator import Call


def place_calls() -> Iterator[Call]:
    """At least one call for each operator in the families."""
    for group in (_masks, _products, _segments, _triangles, _histograms, _bags, _pairs, _pooled):
        yield from group()


def _masks() -> Iterator[Call]:
    x, mask = normal(5, 6), normal(5, 6) > 0
    held = int(mask.sum())
    rows = torch.tensor([True, False, True, True, False])
    op = "aten.index_put.default"
    for accumulate in (False, True):
        yield Call(op, [x, [mask], normal(held), accumulate])
        yield Call(op, [x, [rows], normal(3, 6), accumulate])
        yield Call(op, [x, [rows], normal(3, 1), accumulate])
        yield Call(op, [x, [rows], normal(6), accumulate])
        yield Call(op, [x, [None, normal(6) > 0], torch.tensor(2.0), accumulate])
        yield Call(op, [x.long(), [rows], normal(1, 6).long(), accumulate])
        yield Call(op, [x > 0, [rows], normal(3, 6) > 0, accumulate])
        yield Call(op, [normal(2, 5, 6, 3), [None, mask], normal(2, held, 3), accumulate])
        yield Call(op, [x, [rows.to(torch.uint8)], normal(3, 6), accumulate])
    yield Call(op, [x, [torch.zeros(5, dtype=torch.bool)], normal(6)])
    for size in (0, 3, 40):
        for dtype in (torch.float32, torch.bool, torch.int64):
            for shape in ((7,), (4, 5), (2, 3, 4)):
                sparse = normal(*shape, dtype=dtype) * (normal(*shape, seed=1) > 0)
                yield Call("aten.nonzero_static.default", [sparse], {"size": size})
    yield Call("aten.nonzero_static.default", [normal()], {"size": 2})
    rest = {"size": 4, "fill_value": 9}
    yield Call("aten.nonzero_static.default", [torch.empty(0, 3)], rest)
    yield Call("aten.masked_scatter_backward.default", [x, mask, [4, 9]])
    yield Call("aten.masked_scatter_backward.default", [x, mask, [30]])
    op = "aten._unsafe_masked_index_put_accumulate.default"
    for dtype in (*FLOATS[:2], *INTS):
        positions = [index(4, 1, below=5), index(3, below=9)]
        yield Call(op, [x.to(dtype), normal(4, 3) > 0, positions, normal(4, 3).to(dtype)])
    yield Call(op, [x, normal(3, 1) > -9, [index(3, below=5), None], normal(3, 6)])


def _products() -> Iterator[Call]:
    many = index(4, 9, below=7) % 7
    base, updates = normal(4, 7), normal(4, 9, seed=3)
    base[2, 3] = NAN
    updates[0, 1] = INF
    for include_self in (True, False):
        rest = {"include_self": include_self}
        op = "aten.scatter_reduce.two"
        yield Call(op, [base, 1, many, updates, "prod"], rest)
        yield Call(op, [base.t(), 0, many.t(), updates.t(), "prod"], rest)
        yield Call(op, [normal(6, 7), 1, many[:3, :2], updates, "prod"], rest)
        yield Call(op, [normal(), 0, torch.tensor([0, 0]), normal(2), "prod"], rest)
        for dtype in (*INTS, torch.bool):
            numbers = [normal(4, 7, dtype=dtype), 1, many, normal(4, 9, dtype=dtype), "prod"]
            yield Call(op, numbers, rest)
        again = torch.tensor([4, 0, 4, 4])
        op = "aten.index_reduce.default"
        yield Call(op, [normal(5, 6), 1, again, normal(5, 4), "prod"], rest)
        yield Call(op, [normal(5, 6).int(), 0, again, normal(4, 6).int(), "prod"], rest)
    yield Call("aten.scatter.reduce", [base, 1, many, updates], {"reduce": "multiply"})
    yield Call("aten.scatter.value_reduce", [base, 1, many, 1.5], {"reduce": "multiply"})
    yield Call("aten.index_add.default", [base > 0, 1, torch.tensor([1, 1]), normal(4, 2) > 0])


def _segments() -> Iterator[Call]:
    op = "aten.repeat_interleave.Tensor"
    for dtype in (torch.int64, torch.int32):
        repeats = torch.tensor([2, 0, 3, 1, 0], dtype=dtype)
        yield Call(op, [repeats], {"output_size": 6})
    op = "aten.segment_reduce.default"
    lengths = torch.tensor([3, 0, 4])
    offsets = torch.tensor([0, 3, 3, 7])
    for reduce, initial in itertools.product(("sum", "mean", "max", "min", "prod"), (None, 2.0)):
        rest = {"axis": 0, "initial": initial, "unsafe": True}
        x = normal(7, 2)
        yield Call(op, [x, reduce], {"lengths": lengths, **rest})
        yield Call(op, [x.double(), reduce], {"lengths": lengths, **rest})
        yield Call(op, [x, reduce], {"offsets": offsets, **rest})
        rows = torch.tensor([[1, 3], [4, 0]])
        yield Call(op, [normal(2, 4), reduce], {"lengths": rows, **rest, "axis": 1})


def _triangles() -> Iterator[Call]:
    for shape in ((4, 4), (3, 6), (6, 3), (1, 1), (0, 3), (3, 0)):
        for offset in (-7, -2, 0, 1, 5, 9):
            yield Call("aten.tril_indices.default", [*shape, offset])
            yield Call("aten.triu_indices.default", [*shape, offset], {"dtype": torch.int32})


def _histograms() -> Iterator[Call]:
    x = torch.cat([normal(40), torch.tensor([NAN, 1.0, -1.0, 0.0, 5.0])])
    for dtype in (torch.float32, torch.float64):
        y = x.to(dtype)
        yield Call("aten.histc.default", [y, 8, -1, 1])
        yield Call("aten.histc.default", [normal(5, 4).to(dtype), 7])
        yield Call("aten.histc.default", [torch.ones(4, dtype=dtype), 3, 0, 0])
        edges = torch.tensor([-1.0, -0.5, 0.25, 1.0], dtype=dtype)
        for density in (False, True):
            rest = {"density": density}
            weight = normal(45, seed=1).to(dtype).abs()
            yield Call("aten.histogram.bins_tensor", [y, edges], rest)
            yield Call("aten.histogram.bins_tensor", [y, edges], {"weight": weight, **rest})
            yield Call("aten.histogram.bin_ct", [y, 9], {"range": [-1.0, 1.0], **rest})
            yield Call("aten.histogram.bin_ct", [normal(6, 5).to(dtype), 4], rest)
            points = normal(30, 2).to(dtype)
            op = "aten._histogramdd_from_bin_cts.default"
            yield Call(op, [points, [3, 4]], {"range": [-1.0, 1.0, -2.0, 2.0], **rest})
            yield Call(op, [points, [3, 4]], rest)
            sides = [edges, torch.tensor([-2.0, 0.0, 2.0], dtype=dtype)]
            yield Call("aten._histogramdd_from_bin_tensors.default", [points, sides], rest)
        yield Call("aten._histogramdd_bin_edges.default", [points, [3, 4]])
        yield Call("aten.histogram.bin_ct", [torch.ones(4, dtype=dtype), 3])


def _bags() -> Iterator[Call]:
    table, used = normal(6, 3) * 3, torch.tensor([[0, 4], [4, 2]])
    for order in (1.0, 2.0, INF):
        yield Call("aten.embedding_renorm.default", [table, used, 1.5, order])
    yield Call("aten.embedding_renorm.default", [table.double(), used, 1.5, 2.0])


def _pairs() -> Iterator[Call]:
    for order in (0.0, 1.0, 2.0, 3.0, INF):
        yield Call("aten._pdist_forward.default", [normal(6, 4), order])
    yield Call("aten._pdist_forward.default", [normal(5, 4).double()])
    yield Call("aten._pdist_forward.default", [normal(1, 4)])
    for dtype in (torch.float32, torch.int64, torch.bool, torch.bfloat16):
        parts = [normal(5, 2, 3, dtype=dtype), normal(4, 6, dtype=dtype)]
        yield Call("aten._chunk_cat.default", [parts, 0, 2])
        yield Call("aten._chunk_cat.default", [parts[:1], 2, 3])


def _pooled() -> Iterator[Call]:
    for dtype in (torch.float32, torch.float64):
        samples = torch.rand(2, 3, 2, generator=torch.Generator().manual_seed(1)).to(dtype)
        x = normal(2, 3, 9, 8).to(dtype)
        yield Call("aten.fractional_max_pool2d.default", [x, [3, 2], [4, 5], samples])
        yield Call("aten.fractional_max_pool2d.default", [x, [9, 8], [1, 1], samples])
        samples = torch.rand(2, 3, 3, generator=torch.Generator().manual_seed(2)).to(dtype)
        x = normal(2, 3, 6, 7, 8).to(dtype)
        yield Call("aten.fractional_max_pool3d.default", [x, [2, 3, 2], [3, 4, 5], samples])
