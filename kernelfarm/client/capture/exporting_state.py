"""Corrects the value of `torch.compiler.is_exporting()` that Dynamo traces before torch 2.13.

There the function is always true in code that Dynamo traces. Models then take their branches for
export (transformers builds masks there that it omits otherwise), so one model has different graphs,
different keys and slower programs under torch 2.11 than under 2.13. With this correction the value
is true only while `torch.export` runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.torch_version import TorchVersion

from kernelfarm.client.pytorch.private import torch_variables
from kernelfarm.client.pytorch.private.tracing import is_exporting

_FIRST_CORRECT = "2.13"


class _TracingStates(dict[Callable[[], Any], bool | None]):
    """The values that Dynamo traces for functions that query its state, by function."""

    def __getitem__(self, function: Callable[[], Any]) -> bool | None:
        if function is torch.compiler.is_exporting:
            return is_exporting()
        return super().__getitem__(function)


def patch_is_exporting() -> None:
    """Corrects Dynamo's value if this version of torch needs it; idempotent."""
    known = torch_variables.tracing_state_functions()
    if TorchVersion(torch.__version__) >= _FIRST_CORRECT or isinstance(known, _TracingStates):
        return
    states = _TracingStates(known)
    torch_variables.tracing_state_functions = lambda: states
