"""Semantics that break silently: a wrong sign, type or NaN, which no shape shows."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tests.support.single_operator import Call, interpreted, lowered

NAN, INF = math.nan, math.inf


def result_of(op: str, *args: Any, **kwargs: Any) -> torch.Tensor:
    """The first result of the Prims, after a check that it has eager's type."""
    call = Call(op, args, kwargs)
    result = interpreted(call)[0]
    assert result.dtype == call.eager()[0].dtype
    return result


@pytest.mark.parametrize("op", ["maximum", "minimum"])
def test_maximum_and_minimum_are_nan_if_an_operand_is(op: str) -> None:
    left = torch.tensor([NAN, 1.0, NAN, INF])
    right = torch.tensor([1.0, NAN, NAN, NAN])
    assert result_of(f"aten.{op}.default", left, right).isnan().all()


@pytest.mark.parametrize("op", ["fmax", "fmin"])
def test_fmax_and_fmin_ignore_nan_if_an_operand_is_a_number(op: str) -> None:
    left, right = torch.tensor([NAN, 1.0]), torch.tensor([1.0, NAN])
    assert result_of(f"aten.{op}.default", left, right).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("op", ["amax", "amin"])
def test_extrema_over_an_axis_are_nan_if_an_element_is(op: str) -> None:
    x = torch.tensor([[1.0, NAN, 3.0], [1.0, 2.0, 3.0]])
    assert result_of(f"aten.{op}.default", x, [1]).isnan().tolist() == [True, False]


def test_relu_of_nan_is_nan() -> None:
    assert result_of("aten.relu.default", torch.tensor([NAN])).isnan().all()


def test_argmax_takes_the_first_of_equal_elements() -> None:
    x = torch.tensor([[2.0, 5.0, 5.0], [7.0, 7.0, 7.0]])
    assert result_of("aten.argmax.default", x, 1).tolist() == [1, 0]


def test_argmax_takes_the_first_nan() -> None:
    x = torch.tensor([1.0, NAN, 9.0, NAN])
    assert result_of("aten.argmax.default", x).item() == 1


def test_rounding_goes_half_to_even() -> None:
    x = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5])
    assert result_of("aten.round.default", x).tolist() == [0.0, 2.0, 2.0, -0.0, -2.0]


def test_integer_floor_division_rounds_to_minus_infinity() -> None:
    a, b = torch.tensor([7, -7, 7, -7]), torch.tensor([2, 2, -2, -2])
    assert result_of("aten.floor_divide.default", a, b).tolist() == [3, -4, -4, 3]
    assert result_of("aten.div.Tensor_mode", a, b, rounding_mode="trunc").tolist() == [3, -3, -3, 3]


def test_fmod_has_the_dividend_s_sign_and_remainder_the_divisor_s() -> None:
    a, b = torch.tensor([7.0, -7.0, 7.0, -7.0]), torch.tensor([4.0, 4.0, -4.0, -4.0])
    assert result_of("aten.fmod.Tensor", a, b).tolist() == [3.0, -3.0, 3.0, -3.0]
    assert result_of("aten.remainder.Tensor", a, b).tolist() == [3.0, 1.0, -1.0, -3.0]


def test_float_floor_division_is_exact_where_the_quotient_rounds_up() -> None:
    a, b = torch.tensor([1.0], dtype=torch.float64), torch.tensor([0.1], dtype=torch.float64)
    # 1.0 / 0.1 rounds to 10, but 0.1 is a little more than a tenth.
    assert result_of("aten.floor_divide.default", a, b).item() == 9.0


def test_division_of_integers_gives_floats() -> None:
    result = result_of("aten.div.Tensor", torch.tensor([1, 2]), torch.tensor([2, 4]))
    assert result.dtype is torch.float32
    assert result.tolist() == [0.5, 0.5]


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int32])
def test_sums_and_products_of_small_integers_are_int64(dtype: torch.dtype) -> None:
    x = torch.ones(300, dtype=dtype)
    assert result_of("aten.sum.default", x).dtype is torch.int64
    assert result_of("aten.sum.default", x).item() == 300
    assert result_of("aten.prod.default", x).dtype is torch.int64


def test_small_integers_wrap_around() -> None:
    x = torch.tensor([250, 120], dtype=torch.uint8)
    assert result_of("aten.add.Scalar", x, 10).tolist() == [4, 130]


def test_variance_divides_by_the_count_less_the_correction() -> None:
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    for correction, expected in ((0, 1.25), (1, 5 / 3), (2, 2.5)):
        result = result_of("aten.var.correction", x, correction=correction)
        assert result.item() == pytest.approx(expected)


@pytest.mark.filterwarnings("ignore:var.*degrees of freedom")
def test_variance_of_one_element_is_nan() -> None:
    assert result_of("aten.var.correction", torch.ones(3, 1), [1]).isnan().all()


def test_softmax_of_a_row_of_minus_infinity_is_nan() -> None:
    x = torch.tensor([[-INF, -INF], [-INF, 0.0]])
    result = result_of("aten._softmax.default", x, 1, False)
    assert result[0].isnan().all()
    assert result[1].tolist() == [0.0, 1.0]


def test_safe_softmax_of_a_row_of_minus_infinity_is_zero() -> None:
    x = torch.tensor([[-INF, -INF], [-INF, 0.0]])
    assert result_of("aten._safe_softmax.default", x, 1).tolist() == [[0.0, 0.0], [0.0, 1.0]]


def test_softmax_does_not_overflow() -> None:
    result = result_of("aten._softmax.default", torch.tensor([1e4, 1e4]), 0, False)
    assert result.tolist() == [0.5, 0.5]


def test_where_ignores_nan_in_the_other_branch() -> None:
    condition = torch.tensor([True, False])
    result = result_of("aten.where.self", condition, torch.ones(2), torch.tensor([NAN, 3.0]))
    assert result.tolist() == [1.0, 3.0]


def test_anything_to_the_power_0_is_1() -> None:
    x = torch.tensor([0.0, -0.0, NAN, INF, 2.0])
    assert result_of("aten.pow.Tensor_Scalar", x, 0).tolist() == [1.0] * 5
    zeros = torch.zeros(2)
    assert result_of("aten.pow.Tensor_Tensor", zeros, zeros).tolist() == [1.0, 1.0]


def test_a_cube_is_x_times_x_times_x() -> None:
    x = torch.tensor([1.1, -2.3, 1e20])
    assert torch.equal(result_of("aten.pow.Tensor_Scalar", x, 3), x * x * x)


def test_negative_indices_count_from_the_end() -> None:
    x = torch.arange(5.0)
    assert result_of("aten.index.Tensor", x, [torch.tensor([-1, 0, -5])]).tolist() == [4, 0, 0]


def test_index_axes_come_first_if_a_slice_separates_them() -> None:
    x = torch.randn(3, 4, 5)
    i, j = torch.tensor([0, 1]), torch.tensor([2, 3])
    assert result_of("aten.index.Tensor", x, [i, None, j]).shape == (2, 4)
    assert result_of("aten.index.Tensor", x, [None, i, j]).shape == (3, 2)


def test_conversion_to_integers_truncates_and_to_bool_compares_with_zero() -> None:
    x = torch.tensor([1.9, -1.9, 0.4])
    assert result_of("aten._to_copy.default", x, dtype=torch.int32).tolist() == [1, -1, 0]
    y = torch.tensor([0.4, -0.0, NAN])
    assert result_of("aten._to_copy.default", y, dtype=torch.bool).tolist() == [True, False, True]


def test_a_half_rounds_after_each_operator_and_not_within_one() -> None:
    x = torch.full((4,), 2049.0).half()  # rounds to 2048: the step is 2 there
    one = torch.ones(4).half()
    assert torch.equal(result_of("aten.add.Tensor", x, one), x + one)
    row = torch.randn(8, 64).half()
    softmax = result_of("aten._softmax.default", row, 1, False)
    wide = row.float().softmax(1).half()
    assert torch.equal(softmax, wide)


def test_sums_of_halves_accumulate_in_float32() -> None:
    x = torch.ones(4096, dtype=torch.float16)
    x[0] = 0.5
    assert result_of("aten.sum.default", x).item() == 4096.0  # 4095.5, rounded once
    many = torch.full((60000,), 1.0, dtype=torch.float16)
    assert result_of("aten.mean.default", many).item() == 1.0


def test_signed_zeros_survive_addition_of_zero() -> None:
    x = torch.tensor([-0.0])
    assert math.copysign(1, result_of("aten.add.Scalar", x, 0.0).item()) == 1.0
    assert math.copysign(1, result_of("aten.sub.Scalar", x, 0.0).item()) == -1.0


def test_a_number_does_not_widen_a_half() -> None:
    x = torch.ones(2, dtype=torch.float16)
    assert result_of("aten.mul.Tensor", x, 2.5).dtype is torch.float16
    assert (
        result_of("aten.mul.Tensor", torch.ones(2, dtype=torch.int32), 2.5).dtype is torch.float32
    )


def test_a_tensor_without_axes_does_not_widen_one_with_axes() -> None:
    x, y = torch.ones(2, dtype=torch.float16), torch.ones((), dtype=torch.float64)
    assert result_of("aten.add.Tensor", x, y).dtype is torch.float16


def test_any_of_bytes_is_a_byte() -> None:
    x = torch.tensor([0, 7], dtype=torch.uint8)
    assert result_of("aten.any.default", x).dtype is torch.uint8
    assert result_of("aten.any.default", x).item() == 1


def test_embedding_reads_the_padding_row_like_other_rows() -> None:
    table = torch.randn(4, 3)
    rows = torch.tensor([1, 2, 1])
    assert torch.equal(result_of("aten.embedding.default", table, rows, 1), table[rows])


def test_gelu_keeps_its_two_forms_apart() -> None:
    x = torch.linspace(-4, 4, 41)
    erf = result_of("aten.gelu.default", x)
    tanh = result_of("aten.gelu.default", x, approximate="tanh")
    assert (erf - tanh).abs().max() > 1e-4
    torch.testing.assert_close(
        erf.double(), torch.nn.functional.gelu(x.double()), rtol=2e-6, atol=1e-6
    )


def test_a_sum_of_bools_scaled_by_nothing_is_the_first() -> None:
    left, right = torch.tensor([True, False]), torch.tensor([[True], [True]])
    expected = torch.add(left, right, alpha=0)
    assert torch.equal(result_of("aten.add.Tensor", left, right, alpha=0), expected)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
def test_a_constant_series_that_wraps_around_counts_in_its_type(dtype: torch.dtype) -> None:
    start, end, step = (-1, 2, 2) if dtype is torch.uint8 else (-128, 250, 255)
    expected = torch.arange(start, end, step).to(dtype)
    series = result_of("aten.arange.start_step", start, end, step, dtype=dtype)
    assert torch.equal(series, expected)


def test_a_constant_series_has_literals_of_its_type() -> None:
    call = Call("aten.arange.start_step", [-1, 2, 2], {"dtype": torch.uint8})
    values = [n.attr("value") for n in lowered(call).graph.nodes if n.op == "full"]
    assert values and all(0 <= int(str(v)) < 256 for v in values)
