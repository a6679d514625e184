"""Which reductions are split, into how many slices, and why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import Expr, as_expr, symbol
from kernelfarm.ir.graph_ir import SizeSymbol, TensorType
from kernelfarm.targets import target_facts
from optimizer_svc.analysis.slices import Run
from optimizer_svc.passes.choose_splits import choose_splits
from tests.support.goldens import assert_golden
from tests.support.optimizer_passes import before_and_after
from tests.support.prims_graphs import Maker, tensor

H200 = target_facts("cuda:sm_90a")

COLUMNS_AND_ROWS = """\
graph prims 1
%0: f32[8192, 768]@[768, 1] = input "x"
%1: f32[768] = sum(%0; dims=[0]) from [0]
%2: f32[8192] = sum(%0; dims=[1]) from [1]
return %1: f32[768]@[1], %2: f32[8192]@[1]
"""


@pytest.mark.golden
def test_columns_are_split_and_rows_stay_whole() -> None:
    assert_golden(
        before_and_after("choose-splits", COLUMNS_AND_ROWS, "cuda:sm_90a"),
        """\
-- before choose-splits: graph
graph prims 1
%0: f32[8192, 768]@[768, 1] = input "x"
%1: f32[768] = sum(%0; dims=[0]) from [0]
%2: f32[8192] = sum(%0; dims=[1]) from [1]
return %1: f32[768]@[1], %2: f32[8192]@[1]
-- after: splits
%1: 32 slices of axes 0 to 0
note: split: sum of a reduction (0) in 32 slices: 6 programs would take as long as memory for 738197504 bytes, 192 programs and a second kernel as long as for 33751040
""",
    )


def slices(kind: TensorType, dims: tuple[int, ...], op: str = "sum", target=H200) -> list[Expr]:
    make = Maker([SizeSymbol("s0", 2, None)])
    y = make.add(op, make.add_input(kind), dims=dims)
    return [split.slices for split in choose_splits(make.returning(y), target).by_value.values()]


@pytest.mark.parametrize(
    ("shape", "dims", "expected"),
    [
        ((8192, 768), (0,), [32]),
        ((8192, 3072), (0,), [16]),
        ((32768, 64), (0,), [256]),
        ((8192, 768), (0, 1), [512]),
        ((8, 1024, 768), (0, 1), [32]),
        ((64, 64), (0,), []),  # too few bytes
        ((8192, 8192 + 256), (0,), [4]),
        ((8192, 132 * 128), (0,), [2]),
        ((8192, 176 * 128), (0,), []),  # 176 programs are enough
        ((65536, 768), (1,), []),  # one program for each row
        ((4, 8, 1 << 20), (0, 2), [128]),  # the longest run of axes is split
        ((7 * 1024, 768), (0,), [32]),
        ((32768, 768), (0,), [64]),
    ],
)
def test_slices_follow_from_the_shape(shape, dims, expected) -> None:
    assert slices(tensor(*shape), dims) == expected


def test_a_prime_extent_gets_a_power_of_two() -> None:
    assert slices(tensor(8191, 768), (0,)) == [32]


@pytest.mark.parametrize(("rows", "expected"), [(8, 1), (512, 32), (8192, 44), (1 << 20, 44)])
def test_slices_of_a_varying_extent_follow_from_its_size(rows, expected) -> None:
    (found,) = slices(tensor(symbol("s0") * 8, 768), (0,))
    assert found.evaluate({"s0": rows // 8}) == expected


@pytest.mark.parametrize(("columns", "expected"), [(64, 264), (768, 44), (16384, 3), (1 << 20, 1)])
def test_slices_of_varying_columns_follow_from_their_number(columns, expected) -> None:
    (found,) = slices(tensor(8192, symbol("s0")), (0,))
    assert found.evaluate({"s0": columns}) == expected


def test_indices_over_axes_that_are_apart_stay_whole() -> None:
    assert slices(tensor(64, 8, 1 << 16), (0, 2), "argmax") == []
    assert slices(tensor(64, 1 << 16, 8), (0, 1), "argmax") != []


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((32, 512, 7, 7), 32),  # an image each
        ((32, 512, 28, 28), 128),  # a quarter of an image
        ((32, 64, 112, 112), 512),
        ((31, 512, 7, 7), 49),  # 31 pixels of all images together
    ],
)
def test_images_and_pixels_are_one_run_where_channels_are_last_in_memory(shape, expected) -> None:
    count, channels, height, width = map(as_expr, shape)
    strides = (channels * height * width, as_expr(1), channels * width, channels)
    make = Maker()
    x = make.add_input(replace(tensor(*shape), strides=strides))
    graph = make.returning(make.add("sum", x, dims=(0, 2, 3)))
    (split,) = choose_splits(graph, H200).by_value.values()
    assert split.order == (0, 2, 3, 1)
    assert split.run == Run(0, 3, count * height * width)
    assert split.slices == expected


def test_a_target_without_the_fact_splits_nothing() -> None:
    cpu = target_facts("cpu:x86-64-v3")
    assert slices(tensor(8192, 768), (0,), target=cpu) == []


def test_small_operands_of_a_pointwise_prologue_do_not_count() -> None:
    make = Maker()
    x = make.add_input(tensor(8192, 768, dtype=DType.BF16))
    wide = make.add("convert", x, dtype=DType.F32)
    y = make.add("sum", make.add("mul", wide, wide), dims=(0,))
    (note,) = choose_splits(make.returning(y), H200).notes
    whole = 8192 * 768 * 2 * 176 // 6
    assert f"6 programs would take as long as memory for {whole} bytes" in note


def residual_norms(layers: int) -> int:
    """The splits of a model in which each layer adds to a row and sums its squares."""
    make = Maker()
    row = tensor(1, 4096, dtype=DType.BF16)
    stream, sums = make.add_input(row), []
    for _ in range(layers):
        wide = make.add("convert", stream, dtype=DType.F32)
        sums.append(make.add("sum", make.add("mul", wide, wide), dims=(1,)))
        added = make.add("convert", make.add_input(row), dtype=DType.F32)
        stream = make.add("convert", make.add("add", wide, added), dtype=DType.BF16)
    return len(choose_splits(make.returning(*sums), H200).by_value)


def test_a_sum_that_grows_with_each_layer_counts_once() -> None:
    assert residual_norms(32) == 0


def test_what_one_node_alone_reads_counts_as_what_it_is_computed_from() -> None:
    make = Maker()
    wide = [
        make.add("convert", make.add_input(tensor(1, 65536, dtype=DType.BF16)), dtype=DType.F32)
        for _ in range(8)
    ]
    total = wide[0]
    for other in wide[1:]:
        total = make.add("add", total, other)
    (split,) = choose_splits(
        make.returning(make.add("sum", total, dims=(1,))), H200
    ).by_value.values()
    assert split.reason.startswith(
        f"1 programs would take as long as memory for {8 * 131072 * 132}"
    )
