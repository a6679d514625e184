"""A process that runs models on an emulated RISC-V processor, for `test_riscv_vendor`.

Usage: python -m tests.e2e.riscv_client NAME...

A name is one of `_SMALL`, or MODEL/TYPE of the model zoo. Prints one JSON line: by name, the errors
of the farm's program and of eager against float64, and the launches on the emulated processor.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from riscv_vendor.emulator import Emulator
from torch import nn

from examples.model_zoo import model_of
from examples.real_inputs import RealInput, function_h, h, reference_model
from tests.support.whole_models import Measured, errors


def f16_norm() -> RealInput:
    """Conversions to and from f16, and moments of rows."""
    torch.manual_seed(2)
    model = nn.Sequential(nn.LayerNorm(96), nn.GELU()).eval().half()
    return RealInput("f16-norm", model, (torch.randn(16, 96, dtype=torch.float16),))


def bf16_softmax() -> RealInput:
    """Conversions to and from bf16, and exponentials."""
    torch.manual_seed(3)
    x = torch.randn(16, 96, dtype=torch.bfloat16)
    return RealInput("bf16-softmax", nn.Softmax(dim=-1), (x,))


class Rows(nn.Module):
    """A sort and a scan, which are loops over rows, and the C library's remainder."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fmod(x.sort(dim=-1).values.cumsum(dim=-1), 3.5)


class Rounded(nn.Module):
    """The function `h`: roundings, a reduction, a softmax and a power."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return h(a, b)


def rows() -> RealInput:
    """Rows that are sorted and summed up."""
    torch.manual_seed(4)
    return RealInput("rows", Rows(), (torch.rand(8, 70),))


def rounded() -> RealInput:
    """`h` on its own arguments."""
    return RealInput("h", Rounded(), function_h().args)


_SMALL: dict[str, Callable[[], RealInput]] = {
    "reference": reference_model,
    "h": rounded,
    "f16-norm": f16_norm,
    "bf16-softmax": bf16_softmax,
    "rows": rows,
}


def measured(name: str) -> dict[str, Any]:
    """Errors and launches of two calls of a model."""
    model, _, dtype = name.partition("/")
    source = model_of(model, getattr(torch, dtype)) if dtype else _SMALL[name]()
    own = next(arg.dtype for arg in source.args if arg.is_floating_point()) if not dtype else None
    row = Measured(name, dtype or str(own).removeprefix("torch."))
    launch = mock.patch.object(Emulator, "launch", autospec=True, side_effect=Emulator.launch)
    with launch as launches:
        row.error, row.eager_error, row.largest = errors(source)
    return {
        "is_exact": row.is_exact,
        "errors": [row.error, row.eager_error, row.largest],
        "launches": launches.call_count,
    }


if __name__ == "__main__":
    print(json.dumps({name: measured(name) for name in sys.argv[1:]}))
