"""Random Prims graphs with inputs, for property tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr, as_expr, product_of, symbol
from kernelfarm.ir.builder import GraphBuilder
from kernelfarm.ir.graph_ir import Graph, Ref, SizeSymbol, TensorType, contiguous_strides
from kernelfarm.ir.interpret import numpy_dtype
from kernelfarm.ir.text import print_graph
from tests.support.random_loop_kinds import scan, scatter, sort

Draw = Callable[[Any], Any]
UNARY = ("neg", "abs", "sin", "tanh", "floor", "sigmoid")
BINARY = ("add", "sub", "mul", "maximum", "fmin")
MAX_ELEMS = 3000


class Case:
    """A graph, and its inputs by position, with the strides that the graph states."""

    def __init__(self, graph: Graph, inputs: list[Any]) -> None:
        self.graph = graph
        self.inputs = inputs

    def __repr__(self) -> str:
        shown = [getattr(value, "shape", value) for value in self.inputs]
        return f"{print_graph(self.graph)}\ninputs: {shown}"


@st.composite
def cases(draw: Draw, *, symbolic: bool = False, max_nodes: int = 18) -> Case:
    """Graphs of pointwise prims, views, reductions, joins, gathers and extern calls."""
    maker = _Maker(draw, symbolic)
    for _ in range(draw(st.integers(1, 3))):
        maker.add_input()
    for _ in range(draw(st.integers(1, max_nodes))):
        maker.step()
    return maker.case()


class _Maker:
    def __init__(self, draw: Draw, symbolic: bool) -> None:
        self.draw = draw
        self.sizes: dict[str, int] = {}
        symbols = []
        if symbolic:
            for name in ("s0", "s1"):
                self.sizes[name] = draw(st.integers(2, 6))
                symbols.append(SizeSymbol(name, 2, None))
        self.builder = GraphBuilder(symbols)
        self.inputs: list[Any] = []
        self.values: list[int] = []
        self.random = np.random.RandomState(draw(st.integers(0, 2**16)))
        for name in self.sizes:
            self.builder.add_input(name)
            self.inputs.append(self.sizes[name])
        self.externs = 0

    def shape(self, value: int) -> tuple[Expr, ...]:
        return self.builder.type_of(value).shape

    def elems(self, shape: tuple[Expr, ...]) -> int:
        return product_of(shape).evaluate(self.sizes)

    def extent(self) -> Expr:
        choices: list[Expr] = [as_expr(n) for n in (1, 2, 3, 4, 5, 6, 8)]
        if self.draw(st.integers(0, 19)) == 0:
            return ZERO
        choices += [symbol(name) for name in self.sizes for _ in range(3)]
        return self.draw(st.sampled_from(choices))

    def add_input(self) -> None:
        shape = tuple(self.extent() for _ in range(self.draw(st.integers(0, 3))))
        dtype = self.draw(st.sampled_from((DType.F32, DType.F32, DType.F16, DType.I64)))
        strides = self.strides(shape)
        value = self.builder.add_input(TensorType(dtype, shape, strides))
        extents = [extent.evaluate(self.sizes) for extent in shape]
        data = self.random.randint(-9, 10, extents) / (1 if dtype is DType.I64 else 8)
        base = np.zeros(
            1
            + sum(
                max(e - 1, 0) * s.evaluate(self.sizes)
                for e, s in zip(extents, strides, strict=True)
            ),
            numpy_dtype(dtype),
        )
        view = np.lib.stride_tricks.as_strided(
            base, extents, [s.evaluate(self.sizes) * base.itemsize for s in strides]
        )
        view[...] = data
        self.inputs.append(view)
        self.values.append(value)

    def strides(self, shape: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Dense strides in some order of the axes."""
        order = self.draw(st.permutations(range(len(shape))))
        dense = contiguous_strides(tuple(shape[axis] for axis in order))
        found = [ONE] * len(shape)
        for axis, stride in zip(order, dense, strict=True):
            found[axis] = stride
        return tuple(found)

    def pick(self, reference: Callable[[int], bool] = lambda _: True) -> int | None:
        found = [v for v in self.values if reference(v)]
        return self.draw(st.sampled_from(found[-6:])) if found else None

    def step(self) -> None:
        rule = self.draw(st.sampled_from(_RULES))
        value = rule(self)
        if value is not None and self.elems(self.shape(value)) <= MAX_ELEMS:
            self.values.append(value)

    def dtype(self, value: int) -> DType:
        return self.builder.type_of(value).dtype

    def is_float(self, value: int) -> bool:
        return self.dtype(value).is_float

    def wide(self, value: int) -> int:
        dtype = self.dtype(value).compute_dtype
        return (
            value if dtype is self.dtype(value) else self.builder.add("convert", value, dtype=dtype)
        )

    def indices(self, shape: tuple[Expr, ...], extent: Expr) -> int:
        """Indices from -extent to extent-1 in a shape, from an iota or from an input."""
        add, axis = self.builder.add, len(shape) - 1
        if not shape or self.draw(st.booleans()):
            number = self.draw(st.integers(-20, 20))
            counted = add("full", dtype=DType.I64, shape=shape, value=number)
        else:
            line = add("iota", dtype=DType.I64, length=shape[-1])
            counted = add("broadcast_in_dim", line, dims=(axis,), shape=shape)
        double = add("full", dtype=DType.I64, shape=shape, value=_value(extent * 2))
        once = add("full", dtype=DType.I64, shape=shape, value=_value(extent))
        return add("sub", add("mod_floor", counted, double), once)

    def case(self) -> Case:
        live = self.values[-self.draw(st.integers(1, 3)) :]
        if self.draw(st.integers(0, 4)) == 0:
            live.append(live[0])
        types = []
        for value in live:
            kind = self.builder.type_of(value)
            types.append(TensorType(kind.dtype, kind.shape, self.strides(kind.shape)))
        return Case(self.builder.build([Ref(v) for v in live], types), self.inputs)


def _value(extent: Expr) -> Any:
    return extent.as_int() if extent.is_constant else extent


def _unary(maker: _Maker) -> int | None:
    value = maker.pick(maker.is_float)
    if value is None:
        return None
    op = maker.draw(st.sampled_from(UNARY))
    result = maker.builder.add(op, maker.wide(value))
    return maker.builder.add("convert", result, dtype=maker.dtype(value))


def _binary(maker: _Maker) -> int | None:
    left = maker.pick()
    right = maker.pick(lambda v: maker.shape(v) == maker.shape(left))
    if left is None or right is None:
        return None
    a, b = maker.wide(left), maker.wide(right)
    if maker.dtype(a) is not maker.dtype(b):
        b = maker.builder.add("convert", b, dtype=maker.dtype(a))
    ops = BINARY if maker.dtype(a).is_float else ("add", "sub", "maximum")
    return maker.builder.add(maker.draw(st.sampled_from(ops)), a, b)


def _where(maker: _Maker) -> int | None:
    left = maker.pick()
    right = maker.pick(
        lambda v: (
            maker.builder.type_of(v).shape == maker.shape(left)
            and maker.dtype(v) is maker.dtype(left)
        )
    )
    if left is None or right is None:
        return None
    condition = maker.builder.add("lt", maker.wide(left), maker.wide(right))
    return maker.builder.add("where", condition, right, left)


def _reduce(maker: _Maker) -> int | None:
    value = maker.pick(lambda v: len(maker.shape(v)) > 0)
    if value is None:
        return None
    rank = len(maker.shape(value))
    dims = sorted(maker.draw(st.sets(st.integers(0, rank - 1), min_size=1)))
    op = maker.draw(st.sampled_from(("sum", "sum", "amax", "argmax", "amin")))
    if op != "sum" and maker.elems(tuple(maker.shape(value)[d] for d in dims)) == 0:
        return None
    result = maker.builder.add(op, maker.wide(value), dims=tuple(dims))
    if maker.draw(st.booleans()):
        return result
    kept = tuple(ONE if axis in dims else e for axis, e in enumerate(maker.shape(value)))
    return maker.builder.add("reshape", result, shape=kept)


def _normalize(maker: _Maker) -> int | None:
    """A value minus its mean along an axis, as normalizations begin."""
    value = maker.pick(lambda v: len(maker.shape(v)) > 0 and maker.is_float(v))
    if value is None or maker.elems(maker.shape(value)) == 0:
        return None
    shape, add = maker.shape(value), maker.builder.add
    dim = maker.draw(st.integers(0, len(shape) - 1))
    wide = maker.wide(value)
    total = add(maker.draw(st.sampled_from(("sum", "amax"))), wide, dims=(dim,))
    kept = tuple(axis for axis in range(len(shape)) if axis != dim)
    return add("sub", wide, add("broadcast_in_dim", total, dims=kept, shape=shape))


def _reshape(maker: _Maker) -> int | None:
    value = maker.pick()
    if value is None:
        return None
    shape = list(maker.shape(value))
    axis = maker.draw(st.integers(0, len(shape)))
    kind = maker.draw(st.sampled_from(("one", "merge", "split", "flat")))
    if kind == "one":
        shape.insert(axis, ONE)
    elif kind == "merge" and axis + 1 < len(shape):
        shape[axis : axis + 2] = [shape[axis] * shape[axis + 1]]
    elif (
        kind == "split"
        and axis < len(shape)
        and (shape[axis] % 2) is ZERO
        and shape[axis] is not ZERO
    ):
        shape[axis : axis + 1] = maker.draw(
            st.sampled_from(([as_expr(2), shape[axis] // 2], [shape[axis] // 2, as_expr(2)]))
        )
    elif kind == "flat":
        shape = [product_of(shape)]
    return maker.builder.add("reshape", value, shape=tuple(shape))


def _permute(maker: _Maker) -> int | None:
    value = maker.pick()
    if value is None:
        return None
    dims = maker.draw(st.permutations(range(len(maker.shape(value)))))
    return maker.builder.add("permute", value, dims=tuple(dims))


def _broadcast(maker: _Maker) -> int | None:
    value = maker.pick(lambda v: len(maker.shape(v)) < 4)
    if value is None:
        return None
    shape = list(maker.shape(value))
    axis = maker.draw(st.integers(0, len(shape)))
    dims = [d + (d >= axis) for d in range(len(shape))]
    shape = [maker.extent() if e is ONE and maker.draw(st.booleans()) else e for e in shape]
    shape.insert(axis, maker.extent())
    return maker.builder.add("broadcast_in_dim", value, dims=tuple(dims), shape=tuple(shape))


def _slice(maker: _Maker) -> int | None:
    value = maker.pick()
    if value is None:
        return None
    names = [symbol(name) for name in maker.sizes]
    starts, limits, steps = [], [], []
    for extent in maker.shape(value):
        is_known = extent.is_constant
        start = maker.draw(st.integers(0, extent.constant if is_known else int(extent in names)))
        starts.append(as_expr(start))
        limits.append(
            as_expr(maker.draw(st.integers(start, extent.constant))) if is_known else extent
        )
        steps.append(as_expr(maker.draw(st.integers(1, 2))) if is_known else ONE)
    return maker.builder.add(
        "slice", value, starts=tuple(starts), limits=tuple(limits), steps=tuple(steps)
    )


def _flip(maker: _Maker) -> int | None:
    value = maker.pick(lambda v: len(maker.shape(v)) > 0)
    if value is None:
        return None
    return maker.builder.add(
        "flip", value, dims=(maker.draw(st.integers(0, len(maker.shape(value)) - 1)),)
    )


def _window(maker: _Maker) -> int | None:
    value = maker.pick(
        lambda v: (
            any(e.is_constant and e.constant > 1 for e in maker.shape(v))
            and len(maker.shape(v)) < 4
        )
    )
    if value is None:
        return None
    shape = maker.shape(value)
    dim = maker.draw(
        st.sampled_from([k for k, e in enumerate(shape) if e.is_constant and e.constant > 1])
    )
    dilation = maker.draw(st.integers(1, 2))
    size = maker.draw(st.integers(1, 1 + (shape[dim].constant - 1) // dilation))
    return maker.builder.add(
        "window",
        value,
        dims=(dim,),
        sizes=(as_expr(size),),
        strides=(as_expr(maker.draw(st.integers(1, 3))),),
        dilations=(as_expr(dilation),),
    )


def _cat(maker: _Maker) -> int | None:
    value = maker.pick(lambda v: len(maker.shape(v)) > 0)
    if value is None:
        return None
    dim = maker.draw(st.integers(0, len(maker.shape(value)) - 1))

    def fits(other: int) -> bool:
        a, b = maker.shape(value), maker.shape(other)
        same = len(a) == len(b) and all(
            x is y for axis, (x, y) in enumerate(zip(a, b, strict=True)) if axis != dim
        )
        return same and maker.dtype(value) is maker.dtype(other)

    count = maker.draw(st.sampled_from((1, 2, 3, 10)))  # a cat of ten is stored piece by piece
    others = [other for other in (maker.pick(fits) for _ in range(count)) if other is not None]
    return maker.builder.add("cat", value, *others, dim=dim)


def _pad(maker: _Maker) -> int | None:
    value = maker.pick()
    if value is None:
        return None
    rank = len(maker.shape(value))
    low, high = (tuple(as_expr(maker.draw(st.integers(0, 2))) for _ in range(rank)) for _ in "ab")
    number = 2.5 if maker.is_float(value) else 7
    return maker.builder.add("pad", value, low=low, high=high, value=number)


def _gather(maker: _Maker) -> int | None:
    value = maker.pick(lambda v: len(maker.shape(v)) > 0 and maker.elems(maker.shape(v)) > 0)
    if value is None:
        return None
    shape = maker.shape(value)
    dim = maker.draw(st.integers(0, len(shape) - 1))
    kind = maker.draw(st.sampled_from(("take", "gather_nd", "gather_along")))
    if kind == "gather_along":
        picked = tuple(maker.extent() if axis == dim else e for axis, e in enumerate(shape))
        return maker.builder.add(kind, value, maker.indices(picked, shape[dim]), dim=dim)
    picked = tuple(maker.extent() for _ in range(maker.draw(st.integers(0, 2))))
    first = maker.indices(picked, shape[dim])
    if kind == "take":
        return maker.builder.add(kind, value, first, dim=dim)
    other = (dim + 1) % len(shape)
    if other == dim:
        return maker.builder.add(kind, value, first, dims=(dim,))
    return maker.builder.add(
        kind, value, first, maker.indices(picked, shape[other]), dims=(dim, other)
    )


def _convert(maker: _Maker) -> int | None:
    value = maker.pick()
    if value is None:
        return None
    dtype = maker.draw(st.sampled_from((DType.F32, DType.F16, DType.I64, DType.F64)))
    return maker.builder.add("convert", value, dtype=dtype)


def _extern(maker: _Maker) -> int | None:
    value = maker.pick()
    if value is None:
        return None
    kind, shape = maker.dtype(value), maker.shape(value)
    maker.externs += 1
    result = TensorType(kind, shape, maker.strides(shape))
    return maker.builder.add_extern(
        "aten.test.default", maker.externs, [value], [result], is_contraction=False
    )[0]


_RULES = (
    *((_unary, _binary, _binary, _normalize, _reshape, _permute, _broadcast) * 2),
    *(_where, _reduce, _slice, _flip, _window, _cat, _pad, _gather, _convert, scan, _extern),
    *(scan, scatter, scatter, sort),
)


def run_extern(site: Any, arrays: list[Any]) -> list[Any]:
    """The meaning of the generator's extern operator: negates its operand."""
    return [-arrays[0] if arrays[0].dtype != np.bool_ else ~arrays[0]]
