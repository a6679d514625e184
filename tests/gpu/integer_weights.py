"""Products of few rows by weights that kernels compute from integers or 8-bit floats."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from tests.gpu.case import Case, Tensors, case
from tests.support.integer_weights import FLOAT8_FORMS, FORMS, Form, int4_neighbours, operands

SIZES = (1000, 1152)
"""Results n and terms k of a weight of at least 1 MiB as f16; they fit no block."""
SIZES_OF_WORDS = (4000, 4352)
"""As `SIZES`, of at least 32 MiB: by smaller weights in words, the library multiplies."""

SAME = "int8-transposed"
"""The form whose kernels are those of another form."""

HALF_TYPES = (torch.bfloat16, torch.float16)
ROWS = (1, 16)


def integer_cases() -> Iterator[Case]:
    """Each form with one row in one type of 16 bits, and with 16 rows in the other."""
    names = [name for name in FORMS if name != SAME]
    for number, name in enumerate(names):
        n, k = SIZES_OF_WORDS if name == "int4-words" else SIZES
        for at, rows in enumerate(ROWS):
            dtype = HALF_TYPES[(number + at) % len(HALF_TYPES)]
            word = str(dtype).removeprefix("torch.")
            stored = "8-bit floats" if name in FLOAT8_FORMS else "integers"
            yield case(
                f"{rows} rows by {stored}, {name}, {n} x {k}, in {word}",
                FORMS[name].layer,
                partial(_operands, FORMS[name], rows, (n, k), dtype),
                has_products=True,
            )
    for rows in (3, 9):
        dtype = HALF_TYPES[rows % len(HALF_TYPES)]
        yield case(
            f"{rows} rows by words of four bits, a bias and GELU, at odd addresses",
            _biased_gelu,
            partial(_biased, rows, dtype),
            has_products=True,
            offset=1,
        )


def _biased_gelu(x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor, bias: Tensor) -> Tensor:
    return functional.gelu(int4_neighbours(x, packed, scale, zero) + bias)


def _biased(rows: int, dtype: torch.dtype) -> Tensors:
    made = _operands(FORMS["int4-neighbours"], rows, (4100, 4352), dtype)
    return *made, torch.linspace(-1, 1, 4100).to(dtype)


def _operands(form: Form, rows: int, sizes: tuple[int, int], dtype: torch.dtype) -> Tensors:
    torch.manual_seed(rows)
    made = operands(form, rows, *sizes)
    return tuple(t.to(dtype) if t.dtype is torch.bfloat16 else t for t in made)
