"""Searches equal eager's: sides, types, NaN, rows of several axes, rows that are not sorted."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from tests.support.single_operator import Call, assert_equals_eager

LENGTHS = (0, 1, 2, 3, 5, 8, 300)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def numbers(*shape: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Few distinct numbers, so that many are equal; floats with NaN and infinities among them."""
    drawn = torch.randint(-4, 5, shape, generator=generator(seed))
    if not dtype.is_floating_point:
        return drawn.abs().to(dtype) if dtype is torch.uint8 else drawn.to(dtype)
    floats = drawn.to(dtype) / 2
    for value, position in ((math.nan, 7), (math.inf, 5), (-math.inf, 3), (-0.0, 2)):
        floats.reshape(-1)[position::11] = value
    return floats


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.uint8])
@pytest.mark.parametrize("is_right", [False, True])
def test_values_get_their_positions_in_rows(dtype: torch.dtype, is_right: bool) -> None:
    for length, is_short in itertools.product(LENGTHS, (False, True)):
        rest = {"right": is_right, "out_int32": is_short}
        row = numbers(length, dtype=dtype, seed=length).sort().values
        values = numbers(3, 7, dtype=dtype, seed=length + 1)
        for call in (
            Call("aten.bucketize.Tensor", [values, row], rest),
            Call("aten.searchsorted.Tensor", [row, values], rest),
        ):
            assert_equals_eager(call, is_symbolic=False)
        rows = numbers(2, 3, length, dtype=dtype, seed=length + 2).sort(-1).values
        values = numbers(2, 3, 4, dtype=dtype, seed=length + 3)
        assert_equals_eager(
            Call("aten.searchsorted.Tensor", [rows, values], rest), is_symbolic=False
        )


def test_rows_of_any_number_of_elements_are_searched() -> None:
    row = numbers(9, dtype=torch.float32, seed=1).sort().values
    values = numbers(5, 6, dtype=torch.float32, seed=2)
    assert_equals_eager(Call("aten.bucketize.Tensor", [values, row]), is_symbolic=True)


def test_a_sorter_gives_the_order() -> None:
    for seed in range(4):
        rows = numbers(3, 8, dtype=torch.float32, seed=seed)
        values = numbers(3, 5, dtype=torch.float32, seed=seed + 9)
        rest = {"sorter": rows.argsort(-1), "right": bool(seed % 2)}
        assert_equals_eager(
            Call("aten.searchsorted.Tensor", [rows, values], rest), is_symbolic=False
        )


def test_values_of_another_type_are_compared_in_the_common_one() -> None:
    values = numbers(4, 5, dtype=torch.float32, seed=3)
    row = torch.tensor([-3, -1, 0, 0, 1, 2])
    assert_equals_eager(Call("aten.bucketize.Tensor", [values, row]), is_symbolic=False)
