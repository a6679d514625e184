"""The short way from Dynamo's graph to the functional graph of ATen operators: one run.

AOT Autograd runs a graph twice: first to learn what it mutates and which of its results share
memory, then to trace it. An inference graph that mutates no input needs only one run, and gives the
same graph, with the same key. Each graph that the short way does not take goes the long way,
through AOT Autograd; `LongWayError` says why.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import fx, nn

from kernelfarm.client.capture.decompose_fused import decompose_fused
from kernelfarm.client.capture.recorded_operators import LongWayError, OperatorRecorder
from kernelfarm.client.capture.repeated_calls import RepeatedCalls
from kernelfarm.client.pytorch.private import (
    FakeTensor,
    FakeTensorMode,
    HigherOrderOperator,
    ShapeEnv,
    TensorifyScalarRestartAnalysis,
    TracingContext,
    _len_torch_dispatch_stack,
    _set_grad_enabled,
    detect_fake_mode,
    enable_python_dispatcher,
    peek_interpreter_stack,
    tensorify_python_scalars,
)
from kernelfarm.client.pytorch.private.tracing import traces_in_other_ways

_log = logging.getLogger("kernelfarm.client")

_PLAIN_TENSORS = frozenset({torch.Tensor, nn.Parameter, nn.Buffer, FakeTensor})
_SWITCHES_GRADIENTS = frozenset({_set_grad_enabled, torch.set_grad_enabled})


class RecordedModule:
    """What one run recorded: a functional graph, and its constants as attributes.

    The nodes have AOT Autograd's metadata. It cannot be called: nodes stand for symbolic sizes.
    """

    def __init__(self, graph: fx.Graph, constants: Mapping[str, torch.Tensor]) -> None:
        self.graph = graph
        vars(self).update(constants)


def short_trace(module: fx.GraphModule, inputs: Sequence[Any]) -> RecordedModule:
    """The functional graph of a Dynamo graph, whose attention is preserved, from one run.

    `inputs` are Dynamo's example inputs, in the order of the graph's placeholders.

    Raises:
        LongWayError: AOT Autograd must trace the graph.
        TensorifyScalarRestartAnalysis: Dynamo must trace again, with some floats as constants.
    """
    context = TracingContext.try_get()
    mode = detect_fake_mode(inputs)
    sizes = None if mode is None else mode.shape_env
    if context is None or mode is None or sizes is None:
        raise LongWayError("no tracing context of Dynamo")
    _check_state()
    _check_inputs(inputs)
    _check_nodes(module, inputs)
    decompose_fused(module)
    recorder = OperatorRecorder(mode)
    had_gradients = torch.is_grad_enabled()
    try:
        with _tracing_state(mode, sizes):
            values = [_fake(value, mode, context) for value in inputs]
            for value in values:
                recorder.add_input(value)
            with recorder:
                outputs = _Run(module, recorder, mode).run(*values)
            if torch.is_grad_enabled() != had_gradients:
                raise LongWayError("effects")
            recorder.finish(outputs)
            # As AOT Autograd: floats that vary become tensors, or Dynamo makes constants of them.
            recorded = RecordedModule(recorder.graph, recorder.constants)
            tensorify_python_scalars(recorded, sizes, mode)  # type: ignore[arg-type] # graph alone
    except (LongWayError, TensorifyScalarRestartAnalysis):
        raise
    except Exception as error:
        # The long way raises the same error if it is not the fault of the short one.
        _log.debug("the short way to trace a graph failed", exc_info=True)
        raise LongWayError("an error") from error
    finally:
        _set_grad_enabled(had_gradients)
    return recorded


class _Run(fx.Interpreter):
    """Runs Dynamo's graph; the recorder learns the source code of each of its nodes."""

    def __init__(
        self, module: fx.GraphModule, recorder: OperatorRecorder, mode: FakeTensorMode
    ) -> None:
        super().__init__(module, garbage_collect_values=False)
        self._recorder = recorder
        self._calls = RepeatedCalls(recorder, mode)

    def run_node(self, n: fx.Node) -> Any:
        self._recorder.location = n.meta.get("stack_trace")
        return super().run_node(n)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        run = partial(super().call_function, target, args, kwargs)
        return self._calls.called(target, args, kwargs, run)

    def call_method(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        run = partial(super().call_method, target, args, kwargs)
        return self._calls.called(target, args, kwargs, run)


def _check_state() -> None:
    if _len_torch_dispatch_stack() or peek_interpreter_stack() is not None:
        raise LongWayError("dispatch modes")
    if traces_in_other_ways():
        raise LongWayError("settings of PyTorch")


def _check_inputs(inputs: Sequence[Any]) -> None:
    for value in inputs:
        if isinstance(value, torch.SymInt):
            continue
        if not isinstance(value, torch.Tensor):
            raise LongWayError("an input that is no tensor")
        if type(value) not in _PLAIN_TENSORS or value.layout is not torch.strided:
            raise LongWayError("tensor subclasses")
        if value.is_conj() or value.is_neg():
            raise LongWayError("an input with a lazy conjugate or sign")
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    if len({id(tensor) for tensor in tensors}) != len(tensors):
        raise LongWayError("arguments that share memory")


def _check_nodes(module: fx.GraphModule, inputs: Sequence[Any]) -> None:
    has_leaves = any(isinstance(v, torch.Tensor) and v.requires_grad for v in inputs)
    if has_leaves and torch.is_grad_enabled():
        raise LongWayError("gradients")
    for node in module.graph.nodes:
        if isinstance(node.target, HigherOrderOperator):
            raise LongWayError("higher-order operators")
    for node in module.graph.nodes:
        if node.op in {"get_attr", "call_module"}:
            raise LongWayError("modules")
        if "unbacked_bindings" in node.meta:
            raise LongWayError("sizes that depend on data")
        if node.target in _SWITCHES_GRADIENTS and has_leaves and node.args[:1] != (False,):
            raise LongWayError("gradients")


def _fake(value: Any, mode: FakeTensorMode, context: TracingContext) -> Any:
    """The fake tensor of an example input, as AOT Autograd makes it."""
    if not isinstance(value, torch.Tensor):
        return value
    if isinstance(value, FakeTensor):
        return value if value.fake_mode is mode else mode.from_tensor(value)
    known = context.tensor_to_context.get(value)  # type: ignore[no-untyped-call] # torch's
    source = None if known is None else known.tensor_source
    return mode.from_tensor(value, symbolic_context=known, source=source, trace=known is None)


@contextmanager
def _tracing_state(mode: FakeTensorMode, sizes: ShapeEnv) -> Iterator[None]:
    """The state in which AOT Autograd traces."""
    caches = torch.is_autocast_cache_enabled()
    with ExitStack() as stack:
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        stack.enter_context(mode)
        stack.enter_context(enable_python_dispatcher())
        stack.enter_context(sizes.ignore_fresh_unbacked_symbols())
        stack.callback(torch.set_autocast_cache_enabled, caches)
        torch.set_autocast_cache_enabled(False)
        mode.epoch += 1  # sizes that depend on data are made anew in each run
        yield
