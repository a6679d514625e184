"""Captures functions as the backend does: graphs of AOT Autograd, in the order of compilation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._functorch.aot_autograd import make_boxed_func
from torch._subclasses.fake_tensor import unset_fake_temporarily

from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.capture.graph import capture
from kernelfarm.client.capture.tracing import GraphCompiler, backend_around

Run = Callable[..., Any]


def capturing(
    compile_graph: Callable[[CapturedGraph, fx.GraphModule], Run], target: str | None = None
) -> GraphCompiler:
    """A backend for `torch.compile` that runs what `compile_graph` returns for each graph."""

    def compiler(gm: fx.GraphModule, _: Any) -> Any:
        with unset_fake_temporarily():
            return make_boxed_func(compile_graph(capture(gm), gm))

    return backend_around(compiler, lambda _: target)


def recording(
    found: list[CapturedGraph], *, runs: bool = True, target: str | None = None
) -> GraphCompiler:
    """A backend that appends each graph to `found`, except graphs without work.

    If `runs` is false, graphs are not executed: their results have the right shapes and no values.
    `target` is that of the programs; training graphs depend on it.
    """

    def record(captured: CapturedGraph, gm: fx.GraphModule) -> Run:
        if not captured.is_trivial:
            found.append(captured)
        return gm.forward if runs else _empty_results(gm)

    return capturing(record, target)


def traced(function: Run, *args: Any) -> list[CapturedGraph]:
    """All graphs of one call of the function, which runs as in eager."""
    found: list[CapturedGraph] = []

    def record(captured: CapturedGraph, gm: fx.GraphModule) -> Run:
        found.append(captured)
        return gm.forward

    torch._dynamo.reset()
    torch.compile(function, backend=capturing(record))(*args)
    return found


def traced_one(function: Run, *args: Any) -> CapturedGraph:
    """The only graph of a function."""
    (captured,) = traced(function, *args)
    return captured


def _empty_results(gm: fx.GraphModule) -> Run:
    items = gm.graph.output_node().args[0]
    returned = [None if item is None else item.meta["val"] for item in items]
    return lambda *_: [_without_values(val) for val in returned]


def _without_values(val: Any) -> Any:
    """A tensor like a result, with unset elements; a size has the value that it was traced with."""
    if isinstance(val, torch.SymInt):
        return int(val)
    if val is None:
        return None
    return torch.empty(tuple(map(int, val.shape)), dtype=val.dtype, device=val.device)
