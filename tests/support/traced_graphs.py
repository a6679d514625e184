"""Traces functions as the backend sees them: AOT Autograd's graphs, in the order of compilation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._functorch.aot_autograd import make_boxed_func

from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.capture.graph import capture
from kernelfarm.client.capture.tracing import backend_around


def traced(function: Callable[..., Any], *args: Any) -> list[CapturedGraph]:
    """What is captured of each graph while the function runs once; graphs run as they are."""
    found: list[CapturedGraph] = []

    def compiler(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        found.append(capture(gm))
        return make_boxed_func(gm.forward)

    torch._dynamo.reset()
    torch.compile(function, backend=backend_around(compiler))(*args)
    return found


def traced_one(function: Callable[..., Any], *args: Any) -> CapturedGraph:
    """The only graph of a function."""
    (captured,) = traced(function, *args)
    return captured
