"""One captured operator: its graph, its Prims, and their NumPy result beside eager's."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)
from torch.utils import _pytree as pytree

from frontend_svc.decompose.pipeline import Decomposition, decompose_to_prims
from kernelfarm.client.capture.graph import capture
from kernelfarm.ir.graph_ir import Graph
from kernelfarm.ir.interpret import run_graph
from kernelfarm.ir.verify import verify_graph

_BITS = {
    torch.bfloat16: (torch.int16, ml_dtypes.bfloat16),
    torch.float8_e4m3fn: (torch.uint8, ml_dtypes.float8_e4m3fn),
    torch.float8_e5m2: (torch.uint8, ml_dtypes.float8_e5m2),
}


@dataclass(frozen=True)
class Call:
    """A call of an operator's overload, such as `aten.add.Tensor`, with its arguments."""

    op: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def overload(self) -> Any:
        namespace, name, overload = self.op.split(".")
        return getattr(getattr(getattr(torch.ops, namespace), name), overload)

    def tensors(self) -> list[torch.Tensor]:
        flat = pytree.tree_leaves((tuple(self.args), dict(self.kwargs)))
        return [leaf for leaf in flat if isinstance(leaf, torch.Tensor)]

    def eager(self) -> list[torch.Tensor]:
        return _results(self.overload(*self.args, **self.kwargs))


def each_call(op: str, *arguments: Sequence[Any], **kwargs: Any) -> Iterator[Call]:
    """A call of an operator for each list of arguments."""
    for args in arguments:
        yield Call(op, args, kwargs)


def captured_graph(call: Call, *, is_symbolic: bool = False) -> Graph:
    """The captured graph of one operator; with `is_symbolic` every extent above 1 is a symbol."""
    mode = FakeTensorMode(shape_env=ShapeEnv() if is_symbolic else None)
    graph = fx.Graph()
    fakes: dict[int, Any] = {}
    positions: dict[int, fx.Node] = {}
    for number, tensor in enumerate(call.tensors()):
        position = graph.placeholder(f"arg{number}")
        position.meta["val"] = fakes[id(tensor)] = _fake(mode, tensor, is_symbolic=is_symbolic)
        positions[id(tensor)] = position
    args, kwargs = _substituted(call, positions)
    node = graph.call_function(call.overload, args, kwargs)
    with mode, enable_python_dispatcher():
        fake_args, fake_kwargs = _substituted(call, fakes)
        made = call.overload(*fake_args, **fake_kwargs)
    node.meta["val"] = made
    if isinstance(made, torch.Tensor):
        graph.output((node,))
    else:
        graph.output(tuple(_item(graph, node, made, k) for k in range(len(made))))
    return capture(fx.GraphModule({}, graph), copies_arguments=True).graph


def lowered(call: Call, *, is_symbolic: bool = False) -> Decomposition:
    return decompose_to_prims(captured_graph(call, is_symbolic=is_symbolic))


def interpreted(call: Call, *, is_symbolic: bool = False) -> list[torch.Tensor]:
    """The results of an operator's Prims in NumPy."""
    graph = lowered(call, is_symbolic=is_symbolic).graph
    verify_graph(graph)
    results = run_graph(graph, [to_numpy(tensor) for tensor in call.tensors()])
    return [to_torch(np.asarray(result)) for result in results]


def to_numpy(tensor: torch.Tensor) -> Any:
    if tensor.dtype in _BITS:
        bits, dtype = _BITS[tensor.dtype]
        return tensor.contiguous().view(bits).numpy().view(dtype)
    return tensor.numpy()


def to_torch(array: Any) -> torch.Tensor:
    for dtype, (bits, numpy_type) in _BITS.items():
        if array.dtype == numpy_type:
            raw = np.ascontiguousarray(array).view(np.dtype(str(bits).removeprefix("torch.")))
            return torch.from_numpy(raw.copy()).view(dtype).reshape(array.shape)
    return torch.from_numpy(np.array(array))


def _results(made: Any) -> list[torch.Tensor]:
    return [made] if isinstance(made, torch.Tensor) else list(made)


def _item(graph: fx.Graph, node: fx.Node, made: Sequence[Any], position: int) -> fx.Node:
    item = graph.call_function(operator.getitem, (node, position))
    item.meta["val"] = made[position]
    return item


def _substituted(call: Call, by_id: Mapping[int, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    def position(leaf: Any) -> Any:
        return by_id[id(leaf)] if isinstance(leaf, torch.Tensor) else leaf

    args, kwargs = pytree.tree_map(position, (tuple(call.args), dict(call.kwargs)))
    return args, kwargs


def _fake(mode: FakeTensorMode, tensor: torch.Tensor, *, is_symbolic: bool) -> Any:
    if not is_symbolic:
        return mode.from_tensor(tensor)
    sizes = [DimDynamic.DUCK] * tensor.dim()
    return mode.from_tensor(tensor, symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes))


TOLERANCE = {
    # Two roundings of the type: the functions of NumPy and PyTorch differ by so much.
    torch.float64: 1e-12,
    torch.float32: 3e-6,
    torch.float16: 2e-3,
    torch.bfloat16: 1.6e-2,
}


def assert_equals_eager(call: Call, *, is_symbolic: bool) -> None:
    got, expected = interpreted(call, is_symbolic=is_symbolic), call.eager()
    assert [(g.dtype, g.shape) for g in got] == [(e.dtype, e.shape) for e in expected], call
    for result, model in zip(got, expected, strict=True):
        bound = TOLERANCE.get(model.dtype, 0)
        torch.testing.assert_close(result, model, rtol=bound, atol=bound, equal_nan=True)
