"""Scans, sorts and scatters for random graphs."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import Expr, product_of
from kernelfarm.ir.prims import SCAN_OPS

Maker = Any
"""The graph under construction, as in `random_graphs`."""


def scan(maker: Maker) -> int | None:
    """A scan of a value along an axis."""
    value = maker.pick(lambda v: len(maker.shape(v)) > 0)
    if value is None:
        return None
    dim = maker.draw(st.integers(0, len(maker.shape(value)) - 1))
    op = maker.draw(st.sampled_from(("cumsum", *SCAN_OPS)))
    wide = maker.wide(value)
    if op == "logcumsumexp":
        wide = maker.builder.add("convert", wide, dtype=DType.F32)
    if op == "cumprod":  # products of many numbers overflow
        wide = maker.builder.add("sign", wide)
    return maker.builder.add(op, wide, dim=dim)


def sort(maker: Maker) -> int | None:
    """The sorted order of a value's elements along an axis, or the sorted elements."""
    value = maker.pick(lambda v: len(maker.shape(v)) > 0)
    if value is None:
        return None
    dim = maker.draw(st.integers(0, len(maker.shape(value)) - 1))
    descending = maker.draw(st.booleans())
    # Integers: if two computed floats differ by a rounding, their order may differ too.
    whole = maker.builder.add("convert", value, dtype=DType.I64)
    order = maker.builder.add("argsort", whole, dim=dim, descending=descending)
    if maker.draw(st.booleans()):
        return order
    return maker.builder.add("gather_along", value, order, dim=dim)


def scatter(maker: Maker) -> int | None:
    """Updates of a value at indices that may repeat."""
    value = maker.pick(lambda v: len(maker.shape(v)) > 0 and maker.elems(maker.shape(v)) > 0)
    if value is None:
        return None
    shape = maker.shape(value)
    count = maker.draw(st.integers(1, min(2, len(shape))))
    first = maker.draw(st.integers(0, len(shape) - 1))
    dims = tuple((first + k) % len(shape) for k in range(count))
    picked = tuple(maker.extent() for _ in range(maker.draw(st.integers(0, 2))))
    indices = [maker.indices(picked, shape[dim]) for dim in dims]
    mode = maker.draw(st.sampled_from(("set", "add", "add", "min", "max")))
    base = maker.wide(value)
    updates = _updates(maker, base, (*picked, *(e for k, e in enumerate(shape) if k not in dims)))
    return maker.builder.add("scatter", base, *indices, updates, dims=dims, mode=mode)


def _updates(maker: Maker, base: int, shape: tuple[Expr, ...]) -> int:
    """A value of a shape: an existing one, or numbers that differ between positions."""
    dtype = maker.dtype(base)
    found = maker.pick(lambda v: maker.shape(v) == shape and maker.dtype(v) is not DType.BOOL)
    if found is not None and maker.draw(st.booleans()):
        return maker.builder.add("convert", found, dtype=dtype)
    if not shape:
        return maker.builder.add("full", dtype=dtype, shape=(), value=3)
    length = product_of(shape)
    counted = maker.builder.add("iota", dtype=DType.I64, length=length)
    counted = maker.builder.add("reshape", counted, shape=shape)
    return maker.builder.add("convert", counted, dtype=dtype)
