"""Sample calls of scans and scatters."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tests.support.operator_samples.tensors import FLOATS, INF, INTS, NAN, index, normal, special
from tests.support.single_operator import Call


def scan_and_scatter_calls() -> Iterator[Call]:
    """At least one call for each operator in the families."""
    for group in (_scans, _along, _reduced, _put, _slices, _embedding):
        yield from group()


def _scans() -> Iterator[Call]:
    x = normal(3, 4, 5)
    ties = torch.tensor([[1.0, 3.0, 3.0, 2.0, NAN, 4.0, NAN], [INF, -INF, INF, 0.0, -0.0, 1, 1]])
    for name in ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"):
        op = f"aten.{name}.default"
        yield Call(op, [x, 1])
        yield Call(op, [x, -1])
        yield Call(op, [ties, 1])
        yield Call(op, [special(), 0])
        yield Call(op, [normal(), 0])
        yield Call(op, [normal(1, 3), 0])
        yield from (Call(op, [normal(2, 3, dtype=dtype), 0]) for dtype in FLOATS)
        if name != "logcumsumexp":
            yield from (Call(op, [normal(2, 4, dtype=d) % 3, 1]) for d in INTS)
            yield Call(op, [normal(7, dtype=torch.bool), 0])
    yield Call("aten.cumsum.default", [x, 0], {"dtype": torch.float64})
    yield Call("aten.cumprod.default", [x.int(), 2], {"dtype": torch.float32})


def _picks(*shape: int, below: int) -> torch.Tensor:
    return index(*shape, below=below) % below


def _distinct(rows: int, columns: int, below: int) -> torch.Tensor:
    """Rows of distinct indices: PyTorch does not define which of two equal ones wins."""
    generator = torch.Generator().manual_seed(rows + columns)
    return torch.stack([torch.randperm(below, generator=generator)[:columns] for _ in range(rows)])


def _along() -> Iterator[Call]:
    x, where = normal(4, 7), _distinct(3, 5, 7)
    yield Call("aten.scatter.src", [x, 1, where, normal(3, 5)])
    yield Call("aten.scatter.src", [x, 1, where, normal(4, 6)])
    yield Call("aten.scatter.src", [x.t(), 0, where.t(), normal(6, 4)])
    yield Call("aten.scatter.src", [x > 0, 1, where, normal(3, 5) > 0])
    yield Call("aten.scatter.src", [normal(), 0, torch.tensor(0), normal(seed=1)])
    yield Call("aten.scatter.src", [x, 1, torch.empty(0, 0, dtype=torch.int64), normal(3, 5)])
    yield Call("aten.scatter.value", [x, 1, where, 2.5])
    yield Call("aten.scatter.value", [x.int(), -1, where, 3])
    many = _picks(4, 9, below=7)
    yield Call("aten.scatter_add.default", [x, 1, many, normal(4, 9)])
    yield Call("aten.scatter_add.default", [x.t(), 0, many.t(), normal(9, 4)])
    for dtype in (*FLOATS, *INTS, torch.bool):
        updates = normal(4, 9, dtype=dtype, seed=2)
        if dtype in (torch.float16, torch.bfloat16):
            # Eager rounds each of several sums: sums of multiples of one half are exact.
            yield Call("aten.scatter_add.default", [x.to(dtype), 1, where, normal(4, 5).to(dtype)])
        else:
            yield Call("aten.scatter_add.default", [x.to(dtype), 1, many, updates])
    yield Call("aten.scatter.reduce", [x, 1, many, normal(4, 9)], {"reduce": "add"})
    yield Call("aten.scatter.value_reduce", [x, 1, where, 1.5], {"reduce": "add"})


def _reduced() -> Iterator[Call]:
    many = _picks(4, 9, below=7)
    op = "aten.scatter_reduce.two"
    updates = normal(4, 9, seed=3)
    with_nan = updates.clone()
    with_nan[1, 2] = NAN
    base = normal(4, 7)
    base[2, 3] = NAN
    for reduce in ("sum", "mean", "amax", "amin"):
        for include_self in (True, False):
            rest = {"include_self": include_self}
            yield Call(op, [base, 1, many, updates, reduce], rest)
            yield Call(op, [normal(4, 7), 1, many, with_nan, reduce], rest)
            yield Call(op, [normal(4, 7).long(), 1, many, updates.long() * 3, reduce], rest)
    yield Call(op, [normal(4, 7, dtype=torch.int8), 1, many, updates.to(torch.int8), "amin"])
    yield Call(op, [normal(4, 7).bfloat16(), 1, many, updates.bfloat16(), "amax"])


def _put() -> Iterator[Call]:
    x = normal(5, 6, 7)
    one, rows, columns = _distinct(1, 3, 5)[0], torch.tensor([[0], [3]]), torch.tensor([1, -2, 0])
    for op in ("aten.index_put.default", "aten._unsafe_index_put.default"):
        yield Call(op, [x, [one], normal(3, 6, 7)])
        yield Call(op, [x, [one], normal(7)])
        yield Call(op, [x, [None, one - 5], normal(5, 3, 7)])
        yield Call(op, [x, [rows, columns], normal(2, 3, 7)])
        yield Call(op, [x, [None, rows, columns], normal(5, 2, 3)])
        yield Call(op, [x, [rows, None, columns], normal(2, 3, 6)])
        yield Call(op, [x, [rows, columns, columns.int()], normal()])
        yield Call(op, [x.int(), [one], normal(1, 6, 1).int()])
    twice = index(2, 9, below=5)
    op = "aten.index_put.default"
    yield Call(op, [x, [twice], normal(2, 9, 6, 7), True])
    yield Call(op, [x, [twice, index(9, below=6)], normal(9, 7), True])
    yield Call(op, [x.long(), [None, None, twice], torch.tensor(3), True])
    yield Call(op, [x, [x > 0.5], torch.tensor(9.0)])
    yield Call(op, [x, [x[..., 0] > 0], torch.tensor([2.0])])


def _slices() -> Iterator[Call]:
    x, where, again = normal(5, 6), _distinct(1, 3, 6)[0], torch.tensor([4, 0, 4, 4])
    yield Call("aten.index_add.default", [x, 1, where, normal(5, 3)])
    yield Call("aten.index_add.default", [x, 1, again, normal(5, 4)], {"alpha": 2.5})
    yield Call("aten.index_add.default", [x.int(), 0, again.int(), normal(4, 6).int()])
    yield Call("aten.index_copy.default", [x, -1, where, normal(5, 3)])
    yield Call("aten.index_copy.default", [x, 1, torch.tensor(2), normal(5, 1)])
    yield Call("aten.index_fill.int_Scalar", [x, 1, where - 6, 1.5])
    yield Call("aten.index_fill.int_Scalar", [x.long(), 0, again, 7])
    yield Call("aten.index_fill.int_Tensor", [x, 1, where, torch.tensor(2.0)])
    for reduce in ("mean", "amax", "amin"):
        for include_self in (True, False):
            args = [x, 1, again, normal(5, 4), reduce]
            yield Call("aten.index_reduce.default", args, {"include_self": include_self})
    yield Call("aten.put.default", [x, torch.tensor([[3, -1], [7, 9]]), normal(2, 2)])
    yield Call("aten.put.default", [x, torch.tensor([3, -1, 3]), normal(3), True])
    mask = normal(5, 6) > 0
    yield Call("aten.masked_scatter.default", [x, mask, normal(40)])
    yield Call("aten.masked_scatter.default", [x, mask[:, :1], normal(6, 6).float()])


def _embedding() -> Iterator[Call]:
    op = "aten.embedding_dense_backward.default"
    rows = torch.tensor([[1, 4, 1], [0, 4, 4]])
    yield Call(op, [normal(2, 3, 8), rows, 6, -1, False])
    yield Call(op, [normal(2, 3, 8), rows.int(), 6, 4, False])
