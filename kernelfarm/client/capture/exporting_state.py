"""Dynamo before torch 2.13 tells every model that it is being exported; here it tells the truth.

`torch.compiler.is_exporting()` was constantly true in what Dynamo traces. Models took their
branches for export (transformers builds masks there that it leaves out otherwise), so that one
model had other graphs, other keys and slower programs under torch 2.11 than under 2.13. While
`torch.export` runs, the answer is true as ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.variables import torch as dynamo_functions
from torch.torch_version import TorchVersion

_FIRST_TRUTHFUL = "2.13"


class _TracingStates(dict[Callable[[], Any], bool | None]):
    """What Dynamo answers for functions that ask what is going on, by function."""

    def __getitem__(self, function: Callable[[], Any]) -> bool | None:
        if function is torch.compiler.is_exporting:
            return torch.compiler._is_exporting_flag
        return super().__getitem__(function)


def patch_is_exporting() -> None:
    """Repairs Dynamo's answer where this torch needs it; a second call changes nothing."""
    known = dynamo_functions.tracing_state_functions()
    if TorchVersion(torch.__version__) >= _FIRST_TRUTHFUL or isinstance(known, _TracingStates):
        return
    states = _TracingStates(known)
    dynamo_functions.tracing_state_functions = lambda: states  # type: ignore[assignment]
