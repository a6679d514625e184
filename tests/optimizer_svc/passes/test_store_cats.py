"""A cat of many pieces is stored piece by piece. The reader of a cat of few pieces selects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import Expr, sum_of, symbol
from kernelfarm.ir.graph_ir import Graph, Ref, SizeSymbol, TensorType, Update
from kernelfarm.ir.interpret import run_graph, run_program
from kernelfarm.ir.loop_ir import Compute, Kernel, Store
from kernelfarm.ir.program_ir import BufferKind, Program
from tests.support.examples import examples
from tests.support.goldens import assert_golden
from tests.support.optimizer_passes import before_and_after
from tests.support.prims_graphs import (
    Maker,
    launches,
    only_kernel,
    program_of,
    sizes,
    softmax,
    tensor_with_strides,
)

FEW, MANY = 8, 20
ROWS, WIDTH = 3, 5
Draw = Callable[[Any], Any]

MANY_PIECES = """\
graph prims 1
%0: f32[2, 3]@[3, 1] = input "x"
%1: f32[2, 3]@[3, 1] = input "y"
%2: f32[18, 3] = cat(%0, %1, %0, %1, %0, %1, %0, %1, %0; dim=0) from [7]
%3: f32[18, 3] = neg(%2)
return %3: f32[18, 3]@[3, 1]
"""


@pytest.mark.golden
def test_work_after_a_cat_of_many_pieces_is_stored_piece_by_piece() -> None:
    assert_golden(
        before_and_after("store-cats", MANY_PIECES),
        """\
-- before store-cats: chosen
storage %0: input 0, f32[2, 3]@[3, 1]
storage %1: input 1, f32[2, 3]@[3, 1]
storage %3: output 0, f32[18, 3]@[3, 1]
members: %3
output 0: %3 as [18, 3]@[3, 1]
-- after: chosen
storage %0: input 0, f32[2, 3]@[3, 1]
storage %1: input 1, f32[2, 3]@[3, 1]
storage %3: output 0, f32[18, 3]@[3, 1]
slice %5 of %3 along 0 from 0
slice %6 of %3 along 0 from 2
slice %7 of %3 along 0 from 4
slice %8 of %3 along 0 from 6
slice %9 of %3 along 0 from 8
slice %10 of %3 along 0 from 10
slice %11 of %3 along 0 from 12
slice %12 of %3 along 0 from 14
slice %13 of %3 along 0 from 16
members: %5, %6, %7, %8, %9, %10, %11, %12, %13
output 0: %3 as [18, 3]@[3, 1]
note: cat of 9 pieces (node 7): its readers are stored piece by piece: more than 8 pieces
""",
    )


REDUCED_PIECES = """\
graph prims 1
%0: f32[2, 3]@[3, 1] = input "x"
%1: f32[2, 3]@[3, 1] = input "y"
%2: f32[18, 3] = cat(%0, %1, %0, %1, %0, %1, %0, %1, %0; dim=0) from [7]
%3: f32[3] = sum(%2; dims=[0])
return %3: f32[3]@[1]
"""


@pytest.mark.golden
def test_a_cat_of_many_pieces_is_stored_in_memory_of_its_own_before_a_reduction() -> None:
    assert_golden(
        before_and_after("store-cats", REDUCED_PIECES),
        """\
-- before store-cats: chosen
storage %0: input 0, f32[2, 3]@[3, 1]
storage %1: input 1, f32[2, 3]@[3, 1]
storage %3: output 0, f32[3]@[1]
members: %3
output 0: %3 as [3]@[1]
-- after: chosen
storage %0: input 0, f32[2, 3]@[3, 1]
storage %1: input 1, f32[2, 3]@[3, 1]
storage %2: temporary, f32[18, 3]@[3, 1]
storage %3: output 0, f32[3]@[1]
slice %5 of %2 along 0 from 0
slice %6 of %2 along 0 from 2
slice %7 of %2 along 0 from 4
slice %8 of %2 along 0 from 6
slice %9 of %2 along 0 from 8
slice %10 of %2 along 0 from 10
slice %11 of %2 along 0 from 12
slice %12 of %2 along 0 from 14
slice %13 of %2 along 0 from 16
members: %5, %6, %7, %8, %9, %10, %11, %12, %13, %3
output 0: %3 as [3]@[1]
note: cat of 9 pieces (node 7): stored piece by piece into memory of its own: its reader is a sum
""",
    )


FEW_PIECES = """\
graph prims 1
%0: f32[2, 3]@[3, 1] = input "x"
%1: f32[2, 3]@[3, 1] = input "y"
%2: f32[4, 3] = cat(%0, %1; dim=0)
return %2: f32[4, 3]@[3, 1]
"""


@pytest.mark.golden
def test_a_cat_of_few_pieces_is_selected_with_a_note() -> None:
    assert_golden(
        before_and_after("store-cats", FEW_PIECES),
        """\
-- before store-cats: chosen
storage %0: input 0, f32[2, 3]@[3, 1]
storage %1: input 1, f32[2, 3]@[3, 1]
storage %2: output 0, f32[4, 3]@[3, 1]
members: %2
output 0: %2 as [4, 3]@[3, 1]
-- after: chosen
the same, and
note: cat of 2 pieces (no captured node): selected where it is read: at most 8 pieces
""",
    )


def inputs_of(make: Maker, count: int, *shape: int | Expr) -> list[int]:
    return [make.add_input(tensor_with_strides(*shape)) for _ in range(count)]


def checked(graph: Graph, size: int | dict[str, int] = 4) -> Program:
    """The verified program, after a check that it computes what the graph means."""
    program = program_of(graph)
    random = np.random.default_rng(0)
    values = size if isinstance(size, dict) else {s.name: size for s in graph.symbols}
    arrays = [
        random.normal(size=[extent.evaluate(values) for extent in source.kind.shape])
        .astype(np.float32)
        for source in graph.inputs
        if isinstance(source.kind, TensorType)
    ]  # fmt: skip
    for ours, theirs in zip(run_program(program, arrays), run_graph(graph, arrays), strict=True):
        np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=1e-5, atol=1e-6)
    return program


def stores_of(kernel: Kernel) -> list[Store]:
    return [s for s in kernel.body if isinstance(s, Store)]


def has_selects(kernel: Kernel) -> bool:
    return any(isinstance(s, Compute) and s.op == "where" for s in kernel.body)


def test_few_pieces_are_selected_in_the_kernel_that_reads_them() -> None:
    make = Maker()
    pieces = inputs_of(make, FEW, ROWS, WIDTH)
    kernel = only_kernel(make.returning(make.add("sin", make.add("cat", *pieces, dim=0))))
    assert len(stores_of(kernel)) == 1
    assert has_selects(kernel)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_twenty_equal_pieces_are_stored_by_one_kernel_without_selects(dim: int) -> None:
    make = Maker()
    pieces = inputs_of(make, MANY, 2, ROWS, WIDTH)
    (kernel,) = checked(make.returning(make.add("cat", *pieces, dim=dim))).kernels
    assert len(stores_of(kernel)) == MANY
    assert not has_selects(kernel)


def test_a_hundred_stacked_tensors_are_five_launches() -> None:
    make = Maker()
    pieces = [make.add("reshape", x, shape=sizes(1, 7)) for x in inputs_of(make, 100, 7)]
    program = checked(make.returning(make.add("cat", *pieces, dim=0)))
    assert len(launches(program)) == 5  # each takes at most 24 buffers
    assert program.plan.arena_bytes == 0


def test_five_hundred_pieces_are_kernels_of_bounded_size() -> None:
    make = Maker()
    graph = make.returning(make.add("cat", *inputs_of(make, 500, 2, 3), dim=1))
    program = program_of(graph)
    assert len(launches(program)) == 22
    assert max(len(kernel.body) for kernel in program.kernels) == 2 * 23


def test_a_larger_piece_is_cut_into_slices_of_the_common_size() -> None:
    make = Maker()
    pieces = [*inputs_of(make, 1, 4, 6), *inputs_of(make, 12, 4, 3)]
    (kernel,) = checked(make.returning(make.add("cat", *pieces, dim=1))).kernels
    assert len(stores_of(kernel)) == 14


def test_pieces_of_sizes_without_a_common_divisor_are_a_launch_for_each_size() -> None:
    make = Maker()
    pieces = [*inputs_of(make, 2, 4, 8), *inputs_of(make, 12, 4, 3)]
    assert len(launches(checked(make.returning(make.add("cat", *pieces, dim=1))))) == 2


def test_a_larger_piece_that_a_kernel_makes_stays_whole() -> None:
    make = Maker()
    rows = softmax(make, inputs_of(make, 1, 4, 6)[0], 4, 6)
    pieces = [rows, *inputs_of(make, 12, 4, 3)]
    program = checked(make.returning(make.add("cat", *pieces, dim=1)))
    assert len(launches(program)) == 2
    assert program.plan.arena_bytes == 0


def test_work_after_a_cat_is_done_on_each_piece() -> None:
    make = Maker()
    joined = make.add("cat", *inputs_of(make, MANY, 2, ROWS, WIDTH), dim=1)
    scale = make.spread(make.add_input(tensor_with_strides(ROWS * MANY)), (1,), 2, 60, WIDTH)
    program = checked(make.returning(make.add("sin", make.add("mul", joined, scale))))
    assert len(launches(program)) == 1
    assert program.plan.arena_bytes == 0  # the cat itself is not stored


def test_kernels_that_make_rows_store_them_in_the_cat() -> None:
    make = Maker()
    rows = [softmax(make, x, 4, 16) for x in inputs_of(make, 12, 4, 16)]
    program = checked(make.returning(make.add("cat", *rows, dim=1)))
    assert len(launches(program)) == 1
    assert program.plan.arena_bytes == 0


def test_a_piece_that_is_needed_elsewhere_is_stored_twice() -> None:
    make = Maker()
    rows = [softmax(make, x, 4, 16) for x in inputs_of(make, 12, 4, 16)]
    program = checked(make.returning(make.add("cat", *rows, dim=0), rows[3]))
    assert sum(len(stores_of(kernel)) for kernel in program.kernels) == 13
    assert len(launches(program)) == 1


def test_readers_of_a_cat_run_after_all_its_slices_are_stored() -> None:
    make = Maker()
    pieces = [*inputs_of(make, 9, 4, 3), *inputs_of(make, 2, 4, 2)]
    joined = make.add("cat", *pieces, dim=1)
    program = checked(make.returning(make.add("sum", joined, dims=(1,)), make.add("exp", joined)))
    stores = [launch for launch in launches(program) if "tmp0" in launch.buffers]
    assert len(stores) == len(launches(program)) == 3


def test_a_reduction_over_a_cat_reads_it_from_memory() -> None:
    make = Maker()
    joined = make.add("cat", *inputs_of(make, MANY, 4, 3), dim=1)
    assert len(launches(checked(make.returning(make.add("sum", joined, dims=(1,)))))) == 2


def test_rows_of_a_cat_that_are_gathered_are_read_from_memory() -> None:
    make = Maker()
    joined = make.add("cat", *inputs_of(make, MANY, 2, 3), dim=0)
    rows = make.add("iota", dtype=DType.I64, length=sizes(5)[0])
    picked = make.add("take", joined, make.add("mul", rows, rows), dim=0)
    checked(make.returning(picked))


def test_a_cat_of_cats_is_cut_at_every_piece() -> None:
    make = Maker()
    inner = [make.add("cat", *inputs_of(make, MANY, 2, 3), dim=1) for _ in range(2)]
    program = checked(make.returning(make.add("cat", *inner, *inner[:1] * 8, dim=1)))
    assert not any(has_selects(kernel) for kernel in program.kernels)


def test_cats_along_two_axes_are_cut_along_one() -> None:
    make = Maker()
    columns = make.add("cat", *inputs_of(make, 10, 20, 3), dim=1)
    rows = make.add("cat", *inputs_of(make, 10, 2, 30), dim=0)
    program = checked(make.returning(make.add("add", columns, rows)))
    assert not any(has_selects(kernel) for kernel in program.kernels)


@pytest.mark.parametrize("size", [0, 1, 7])
def test_offsets_are_sums_of_symbolic_sizes(size: int) -> None:
    extent = symbol("s0")
    make = Maker([SizeSymbol("s0", 0, None)])
    pieces = [*inputs_of(make, 10, 2, extent, 3), *inputs_of(make, 2, 2, 4, 3)]
    program = checked(make.returning(make.add("cat", *pieces, dim=1)), size)
    assert len(launches(program)) == 2
    assert not any(has_selects(kernel) for kernel in program.kernels)


@pytest.mark.parametrize("least", [0, 2])
def test_pieces_of_many_sizes_are_stored_by_the_same_kernel(least: int) -> None:
    names = [f"s{number}" for number in range(12)]
    make = Maker([SizeSymbol(name, least, None) for name in names])
    pieces = [make.add_input(tensor_with_strides(symbol(name), 3)) for name in names]
    graph = make.returning(make.add("neg", make.add("cat", *pieces, dim=0)))
    program = checked(graph, {name: 2 + number for number, name in enumerate(names)})
    assert len(launches(program)) == 12
    # Three, because the first slice has no offset and the last one has no slice after it.
    assert len(program.kernels) == 3
    assert max(len(kernel.sizes) for kernel in program.kernels) == 3


def test_sizes_with_an_upper_bound_stay_separate_sizes() -> None:
    names = [f"s{number}" for number in range(12)]
    upper = dict.fromkeys(names[:3], 64)
    make = Maker([SizeSymbol(name, 2, upper.get(name)) for name in names])
    for name in names:
        make.add_input(name)
    whole = make.add_input(tensor_with_strides(sum_of(map(symbol, names))))
    kernel = only_kernel(make.returning(make.add("neg", whole)))
    found = sorted((size.lower, size.upper or 0) for size in kernel.sizes)
    assert found == [(2, 0), (2, 64), (2, 64), (2, 64)]


def test_an_output_keeps_its_stated_strides() -> None:
    make = Maker()
    joined = make.add("cat", *inputs_of(make, 10, 2, 3, 4), dim=1)
    strided = replace(make.type_of(joined), strides=sizes(120, 1, 30))
    checked(make.build([Ref(joined)], [strided]))


def test_a_cat_into_an_updated_input_replaces_it() -> None:
    make = Maker()
    cache, *pieces = [*inputs_of(make, 1, 24, 5), *inputs_of(make, 12, 2, 5)]
    graph = make.returning(make.add("cat", *pieces, dim=0))
    program = checked(replace(graph, updates=(Update(0, 0),)))
    (kernel,) = program.kernels
    assert cache in [source.value for source in graph.inputs]
    assert len(stores_of(kernel)) == 12
    assert not [b for b in program.plan.buffers if b.kind is not BufferKind.INPUT]


def test_an_input_that_is_shifted_by_a_cat_is_read_before_it_is_replaced() -> None:
    make = Maker()
    cache, *pieces = [*inputs_of(make, 1, 24, 5), *inputs_of(make, 11, 2, 5)]
    kept = make.add("slice", cache, starts=sizes(22, 0), limits=sizes(24, 5), steps=sizes(1, 1))
    graph = make.returning(make.add("cat", kept, *pieces, dim=0))
    checked(replace(graph, updates=(Update(0, 0),)))


def test_slices_of_a_scatter_s_base_are_stored_before_its_updates() -> None:
    make = Maker()
    base = make.add("cat", *inputs_of(make, 10, 2, 5), dim=0)
    rows = make.add("iota", dtype=DType.I64, length=sizes(3)[0])
    updates = make.add_input(tensor_with_strides(3, 5))
    changed = make.add("scatter", base, rows, updates, dims=(0,), mode="add")
    checked(make.returning(changed, make.add("sin", changed)))


NO_DEADLINE = settings(
    deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, print_blob=True
)


@st.composite
def graphs(draw: Draw) -> Graph:
    """Graphs with a cat of pieces of several sizes and producers, and with work after it."""
    is_symbolic = draw(st.booleans())
    make = Maker([SizeSymbol("s0", 0, 6)] if is_symbolic else [])
    if is_symbolic:
        inputs_of(make, 1, symbol("s0"))  # the source of the size
    extents = (0, 1, 2, 3, *((symbol("s0"), symbol("s0") + 1) if is_symbolic else ()))
    dim = draw(st.integers(0, 2))
    shape: list[int | Expr] = [2, 3, 4]
    pieces: list[int] = []
    for _ in range(draw(st.integers(7, 12))):
        shape[dim] = draw(st.sampled_from(extents))
        pieces.append(_piece(draw, make, shape, pieces))
    joined = make.add("cat", *pieces, dim=dim)
    after = [_after(draw, make, joined) for _ in range(draw(st.integers(1, 3)))]
    returned = draw(st.lists(st.sampled_from([joined, *after]), min_size=1, max_size=3))
    return make.returning(*returned)


def _piece(draw: Draw, make: Maker, shape: Sequence[int | Expr], pieces: list[int]) -> int:
    kind = draw(st.sampled_from(("input", "input", "sin", "row sums", "again")))
    alike = [p for p in pieces if make.type_of(p).shape == sizes(*shape)]
    if kind == "again" and alike:
        repeated: int = draw(st.sampled_from(alike))
        return repeated
    given = make.add_input(tensor_with_strides(*shape))
    if kind == "sin":
        return make.add("sin", given)
    if kind == "row sums":
        return make.spread(make.add("sum", given, dims=(2,)), (0, 1), *shape)
    return given


def _after(draw: Draw, make: Maker, joined: int) -> int:
    shape = make.type_of(joined).shape
    match draw(st.sampled_from(("exp", "sum", "turned", "flat", "sliced", "flipped"))):
        case "exp":
            return make.add("exp", joined)
        case "sum":
            return make.add("sum", joined, dims=(draw(st.integers(0, 2)),))
        case "turned":
            return make.add("neg", make.add("permute", joined, dims=(2, 0, 1)))
        case "flat":
            flat = make.add("reshape", joined, shape=(shape[0], shape[1] * shape[2]))
            return make.add("abs", flat)
        case "sliced":
            starts = sizes(*(draw(st.integers(0, 1)) if e.is_constant and e.constant else 0
                             for e in shape))  # fmt: skip
            return make.add("slice", joined, starts=starts, limits=shape, steps=sizes(1, 1, 1))
        case _:
            return make.add("flip", joined, dims=(draw(st.integers(0, 2)),))


@given(graph=graphs(), size=st.integers(0, 6))
@settings(NO_DEADLINE, max_examples=examples(120))
def test_a_program_computes_what_its_graph_means(graph: Graph, size: int) -> None:
    checked(graph, size)
