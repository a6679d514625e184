"""The named parts of a Dynamo graph's digest: graphs with equal parts trace to equal programs.

The parts have every call with its arguments; the inputs' types, layouts and shared memory; facts
about symbolic sizes; small constants by content; and the state of PyTorch that tracing depends on.
They do not have names of values, modules and parameters, paths, or device indices. A graph that the
parts cannot express (with a user's function, a branch or a tensor subclass, for example) raises
`NotCoveredError` and is traced at every start.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from importlib import import_module
from typing import Any

import torch
from torch import fx

from kernelfarm.client.capture.constants import constant_of, is_sent_as_constant
from kernelfarm.client.capture.node_hints import hints_of
from kernelfarm.client.capture.preserve_attention import attention
from kernelfarm.client.capture.rebuilt_nodes import NAMESPACES
from kernelfarm.client.pytorch.private import (
    FakeTensor,
    OpOverload,
    OpOverloadPacket,
    _get_qualified_name,
)
from kernelfarm.client.pytorch.private.tracing import storage_identity
from kernelfarm.client.traces.sizes import NotCoveredError, SizeTexts
from kernelfarm.client.traces.torch_state import trace_state
from kernelfarm.digest import MAX_PART_CHARS
from kernelfarm.errors import KernelfarmError

_ROOTS = frozenset({"torch", "_operator", "operator", "math"})
"""Modules whose functions are defined by the version of torch or Python."""

_USER_KERNELS = "torch.ops.higher_order.triton_kernel_wrapper"

_PLAIN = (bool, int, float, complex, str, type(None), torch.dtype, torch.layout)


def graph_parts(module: fx.GraphModule) -> tuple[dict[str, str], SizeTexts]:
    """The parts of a Dynamo graph and of PyTorch's state by name, and the graph's sizes.

    `graph` is a digest of all calls with their arguments; `calls` is one of the called functions
    only, so that it is equal for graphs that differ in arguments. `inputs` and `sizes` describe the
    inputs and the symbolic sizes.

    Raises:
        NotCoveredError: the parts cannot express the graph.
    """
    texts = _GraphTexts(module)
    graph = _hashed(texts.lines())
    state = dict(line.split(" ", 1) for line in trace_state())
    parts = {
        "inputs": _text_or_digest(texts.inputs),
        "sizes": _text_or_digest(texts.sizes.known_facts()),
    }
    return {**state, "graph": graph, "calls": _hashed(texts.calls), **parts}, texts.sizes


def _text_or_digest(lines: list[str]) -> str:
    """The lines if they are short, else a digest of them."""
    text = "; ".join(lines)
    return text if len(text) <= MAX_PART_CHARS else _hashed(lines)


def _hashed(lines: Iterable[str]) -> str:
    hasher = hashlib.sha256()
    for line in lines:
        data = line.encode()
        hasher.update(b"%d:" % len(data))
        hasher.update(data)
    return f"sha256 {hasher.hexdigest()}"


class _GraphTexts:
    """Describes a graph by one line for each node, and its inputs by separate lines."""

    def __init__(self, module: fx.GraphModule) -> None:
        self._module = module
        self._numbers: dict[fx.Node, int] = {}
        self._storages: dict[int, int] = {}
        self.sizes = SizeTexts()
        self.inputs: list[str] = []
        self.calls: list[str] = []

    def lines(self) -> list[str]:
        """The lines of the graph; the call also fills `inputs`, `calls` and `sizes`."""
        return [self._line(node) for node in self._module.graph.nodes]

    def _line(self, node: fx.Node) -> str:
        self._numbers[node] = len(self._numbers)
        match node.op:
            case "placeholder":
                self.inputs.append(self._input(node.meta.get("example_value")))
                return "input"
            case "get_attr":
                return f"constant {self._constant(node)}"
            case "call_function":
                what = _function_name(node)
            case "call_method" | "output":
                what = f"{node.op} {node.target}"
            case _:
                raise NotCoveredError(node.op)
        self.calls.append(what)
        hints = "".join(f" hint {hint}" for hint in hints_of(node))
        return f"{what} {self._value(node.args)} {self._value(node.kwargs)}{hints}"

    def _input(self, value: Any) -> str:
        if isinstance(value, torch.SymInt | int) and not isinstance(value, bool):
            return f"size {self.sizes.text(value)}"
        if not isinstance(value, FakeTensor) or value.layout is not torch.strided:
            raise NotCoveredError(f"input {type(value).__name__}")
        number = self._storages.setdefault(storage_identity(value), len(self._storages))
        size_bytes = self.sizes.text(value.untyped_storage().nbytes())
        extents = (*value.shape, "@", *value.stride(), "@", value.storage_offset())
        facts = (
            value.dtype,
            value.device.type,
            value.requires_grad,
            value.is_conj(),
            value.is_neg(),
            value.is_inference(),
            f"memory {number} of {size_bytes}",
        )
        where = [e if isinstance(e, str) else self.sizes.text(e) for e in extents]
        return " ".join((*where, *map(str, facts)))

    def _constant(self, node: fx.Node) -> str:
        value: Any = self._module
        for name in str(node.target).split("."):
            value = getattr(value, name, None)
        is_plain = isinstance(value, torch.Tensor) and not value.requires_grad
        if not is_plain or value.is_conj() or not is_sent_as_constant(value):
            raise NotCoveredError(f"held {type(value).__name__}")
        try:
            content = constant_of(value)
        except KernelfarmError as error:
            raise NotCoveredError("held tensor") from error
        return f"{content.type!r} {value.stride()} {value.device.type} {content.sha256.hex()}"

    def _value(self, value: Any) -> str:
        if isinstance(value, fx.Node):
            return f"%{self._numbers[value]}"
        if isinstance(value, tuple | list):
            kind = "list" if isinstance(value, list) else "tuple"
            return f"{kind}({', '.join(map(self._value, value))})"
        if isinstance(value, dict):
            items = (f"{key!r}: {self._value(item)}" for key, item in value.items())
            return f"dict({', '.join(items)})"
        if isinstance(value, slice):
            return f"slice({', '.join(map(self._value, (value.start, value.stop, value.step)))})"
        return _leaf(value)


def _leaf(value: Any) -> str:
    if isinstance(value, torch.device):
        return f"device({value.type})"
    if isinstance(value, torch.memory_format):
        return str(value)
    if value is Ellipsis or type(value) in _PLAIN:
        return f"{type(value).__name__} {value!r}"
    raise NotCoveredError(f"argument {type(value).__name__}")


def _function_name(node: fx.Node) -> str:
    """The name of the function that a node calls, if the name identifies the function."""
    target: Any = node.target
    if target is attention:
        return "attention"
    if target is getattr and hasattr(torch.Tensor, str(node.args[1])):
        return "attribute"  # of a tensor; the arguments have its name
    if isinstance(target, OpOverload | OpOverloadPacket):
        name = str(target)
        if name.partition(".")[0] not in NAMESPACES:
            raise NotCoveredError("an operator of another library")
        return name
    try:
        name = _get_qualified_name(target)
    except (RuntimeError, AttributeError, TypeError) as error:
        raise NotCoveredError("a function without a name") from error
    if name.startswith(_USER_KERNELS):  # its arguments name the kernel by a number of this process
        raise NotCoveredError("a Triton kernel of the user")
    if name.partition(".")[0] not in _ROOTS or _found(name) is not target:
        raise NotCoveredError("a user's function")
    return name


def _found(name: str) -> Any:
    root, *path = name.split(".")
    value: Any = import_module(root)
    for part in path:
        value = getattr(value, part, None)
    return value
