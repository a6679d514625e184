"""Traces each Dynamo graph of a call in both ways: by one run, and by AOT Autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._guards import TracingContext, detect_fake_mode
from torch._subclasses.fake_tensor import unset_fake_temporarily

from kernelfarm.client.capture.captured import TracedModule
from kernelfarm.client.capture.graph import capture
from kernelfarm.client.capture.inline_regions import inline_regions
from kernelfarm.client.capture.input_order import InputOrder
from kernelfarm.client.capture.preserve_attention import preserve_attention
from kernelfarm.client.capture.recorded_operators import LongWayError
from kernelfarm.client.capture.short_trace import short_trace
from kernelfarm.client.capture.tracing import traced
from kernelfarm.client.traces.calling_convention import (
    CallingConvention,
    calling_convention,
    recorded_convention,
)
from kernelfarm.client.traces.entry import entry_of, to_bytes
from kernelfarm.client.traces.sizes import NotCoveredError
from kernelfarm.digest import program_key
from kernelfarm.errors import KernelfarmError

TARGET = "cuda:sm_90a"


@dataclass(frozen=True, slots=True)
class Made:
    """What one way made of a graph: all that a client keeps of it, and the guards on sizes.

    `content` has the graph with its source locations, the calling convention and the program key as
    bytes; if it cannot be stored, it is a text with all of these.
    """

    key: str
    content: bytes | str
    sizes: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one graph: it was traced (`made`), or `refusal` says why it was not."""

    made: Made | None
    refusal: str = ""


def short_way(function: Callable[..., Any], *args: Any, **options: Any) -> list[Outcome]:
    """What one run made of each graph of a call, or why AOT Autograd must trace it."""
    found: list[Outcome] = []

    def backend(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        module, inputs = _prepared(gm, example_inputs)
        try:
            recorded = short_trace(module, inputs)
            convention = recorded_convention(recorded.graph)
        except LongWayError as error:
            found.append(Outcome(None, error.reason))
        else:
            found.append(_outcome(recorded, lambda: convention, inputs))
        return gm.forward

    _call(function, backend, args, options)
    return found


def long_way(function: Callable[..., Any], *args: Any, **options: Any) -> list[Outcome]:
    """What AOT Autograd made of each inference graph of a call."""
    found: list[Outcome] = []

    def backend(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        module, inputs = _prepared(gm, example_inputs)

        def compiler(made: fx.GraphModule, _: Any) -> Any:
            meta = TracingContext.get().fw_metadata
            assert meta is not None
            with unset_fake_temporarily():
                convention = lambda: calling_convention(meta, made.graph, len(inputs))  # noqa: E731
                found.append(_outcome(made, convention, inputs))
            return made.forward

        traced(module, inputs, compiler)
        return gm.forward

    _call(function, backend, args, options)
    return found


def _prepared(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> tuple[fx.GraphModule, Any]:
    """Dynamo's graph as both ways get it, with its inputs in their order."""
    inline_regions(gm)
    preserve_attention(gm)
    order = InputOrder(gm)
    return order.module, order.of(example_inputs)


def _call(
    function: Callable[..., Any],
    backend: Callable[..., Any],
    args: Sequence[Any],
    options: dict[str, Any],
) -> None:
    torch._dynamo.reset()
    torch.compile(function, backend=backend, **options)(*args)


def _outcome(
    module: TracedModule, convention: Callable[[], CallingConvention], inputs: Sequence[Any]
) -> Outcome:
    try:
        captured = capture(module)
    except KernelfarmError as error:
        return Outcome(None, f"{type(error).__name__}: {error}")
    key = program_key(captured.graph, TARGET, ())
    content: bytes | str
    try:
        content = to_bytes(entry_of(key, {}, captured, convention(), captured.device))
    except NotCoveredError as reason:
        facts = (captured.graph, captured.module_outputs, captured.negated, captured.device)
        content = f"{reason}: {facts}"
    return Outcome(Made(key.hex(), content, _sizes(inputs)))


def _sizes(inputs: Sequence[Any]) -> tuple[Any, ...]:
    """What is known of the sizes: guards, equal sizes, ranges."""
    mode = detect_fake_mode(inputs)
    env = None if mode is None else mode.shape_env
    if env is None:
        return ()
    # One way may also guard what follows from guards and equal sizes.
    guards = sorted({str(guard.expr.xreplace(env.replacements)) for guard in env.guards})
    equal = sorted(map(str, env.replacements.items()))
    ranges = sorted(map(str, env.var_to_range.items()))
    return guards, equal, ranges
