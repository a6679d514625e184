"""Records equal calls of a graph once: the layers of a deep model repeat them.

PyTorch needs most of the time of a recording to run each function on shapes. What a function
records depends only on its arguments' types, layouts and shared memory, and on a few states of
PyTorch. So a call that equals an earlier one gets copies of its nodes, with results of the same
layouts in memory of their own. The graph is the one that running the call would record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import NoneType
from typing import Any

import torch
from torch import Tensor, fx

from kernelfarm.client.capture.recorded_operators import OperatorRecorder, layout_of
from kernelfarm.client.pytorch.private import (
    FakeTensor,
    FakeTensorMode,
    OpOverload,
    in_kernel_invocation_manager,
    peek_interpreter_stack,
)
from kernelfarm.client.pytorch.private.tracing import storage_identity

_EXACT = (bool, int, str, NoneType, type(Ellipsis), torch.dtype, torch.device, torch.layout)
_TEXTUAL = (float, complex, torch.memory_format)
"""Constants that are equal if their texts are: 0.0 is not -0.0, and nan is nan."""

_RESULTS = (Tensor, int, float, torch.SymInt, torch.dtype, torch.device)
"""What calls return that change no state of PyTorch."""


class _NotRepeatableError(Exception):
    """The call must run."""


@dataclass(frozen=True, slots=True)
class _Call:
    """What one call recorded: its nodes, by which arguments, and what it returned.

    `arguments` are the nodes of its tensors. `result` has nodes in place of tensors. `owners` are
    the nodes whose memory the nodes of views share.
    """

    arguments: tuple[fx.Node, ...]
    nodes: tuple[fx.Node, ...]
    result: Any
    owners: Mapping[fx.Node, fx.Node]


class RepeatedCalls:
    """The calls that a recorder has recorded, of one graph that runs in the fake mode `mode`."""

    def __init__(self, recorder: OperatorRecorder, mode: FakeTensorMode) -> None:
        self._recorder = recorder
        self._mode = mode
        self._calls: dict[Any, _Call | None] = {}

    def called(
        self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], run: Callable[[], Any]
    ) -> Any:
        """The result of a call of Dynamo's graph, which `run` makes unless an equal one was made.

        Raises:
            LongWayError: the call cannot be recorded.
        """
        try:
            tensors: list[FakeTensor] = []
            described = target, *_described((args, kwargs), tensors)
            key = described, _state(), self._facts(tensors)
        except _NotRepeatableError:
            return self._ran(run)
        known = self._calls.get(key)
        if known is not None:
            return self._repeated(known, tensors)
        writes = self._recorder.write_count
        begun = len(self._recorder.added)
        result = self._ran(run)
        if key not in self._calls and writes == self._recorder.write_count:
            self._calls[key] = self._recorded(tensors, begun, result)
        return result

    def _ran(self, run: Callable[[], Any]) -> Any:
        result = run()
        first = result[0] if isinstance(result, tuple | list) and result else result
        if not isinstance(first, _RESULTS):
            self._calls.clear()  # it may have switched a state, such as autocast's
        return result

    def _facts(self, tensors: Sequence[FakeTensor]) -> tuple[Any, ...]:
        """What operators can see of their arguments.

        Raises:
            _NotRepeatableError: an argument was written, or is not recorded.
        """
        memories: dict[int, int] = {}
        found = []
        for tensor in tensors:
            if not self._recorder.is_as_recorded(tensor):
                raise _NotRepeatableError
            # A float that varies is an argument without axes, and is read in another way.
            is_number = not tensor.dim() and self._recorder.node_of(tensor).op == "placeholder"
            memory = memories.setdefault(storage_identity(tensor), len(memories))
            found.append((memory, is_number, *_facts_of(tensor)))
        return tuple(found)

    def _recorded(self, tensors: Sequence[FakeTensor], begun: int, result: Any) -> _Call | None:
        """What a call recorded since `begun` nodes; None if copies would not be the same."""
        arguments = tuple(map(self._recorder.node_of, tensors))
        nodes = tuple(self._recorder.added[begun:])
        try:
            owners = self._owners(arguments, nodes)
            items = self._nodes_in(result, {*arguments, *nodes})
        except _NotRepeatableError:
            return None
        return _Call(arguments, nodes, items, owners) if nodes else None

    def _owners(
        self, arguments: Sequence[fx.Node], nodes: Sequence[fx.Node]
    ) -> dict[fx.Node, fx.Node]:
        """The first node with the memory of each view.

        Raises:
            _NotRepeatableError: a node's value cannot be made again from its layout.
        """
        first: dict[int, fx.Node] = {}
        for node in arguments:
            first.setdefault(storage_identity(node.meta["val"]), node)
        owners = {}
        for node in nodes:
            if node.op != "call_function" or not _can_copy(node, {*arguments, *nodes}):
                raise _NotRepeatableError
            value = node.meta["val"]
            if not isinstance(value, Tensor):
                continue  # the nodes of its items have the tensors
            owner = first.setdefault(storage_identity(value), node)
            if owner is not node:
                owners[node] = owner
            elif not _fills_its_memory(value):
                raise _NotRepeatableError
        return owners

    def _nodes_in(self, result: Any, known: set[fx.Node]) -> Any:
        if isinstance(result, Tensor):
            node = self._recorder.node_of(result)
            if node not in known:
                raise _NotRepeatableError
            return node
        if type(result) is tuple or type(result) is list:
            return type(result)(self._nodes_in(item, known) for item in result)
        raise _NotRepeatableError

    def _repeated(self, call: _Call, tensors: Sequence[FakeTensor]) -> Any:
        """Records the nodes of an earlier call for other arguments; what it would return."""
        copies = {
            node: self._recorder.node_of(tensor)
            for node, tensor in zip(call.arguments, tensors, strict=True)
        }
        values: dict[fx.Node, Any] = dict(zip(call.arguments, tensors, strict=True))
        with in_kernel_invocation_manager(self._mode), self._no_guards():
            for node in call.nodes:
                if isinstance(node.meta["val"], Tensor):
                    owner = call.owners.get(node)
                    values[node] = self._like(
                        node.meta["val"], None if owner is None else values[owner]
                    )
        for node in call.nodes:
            value = values.get(node)
            if value is None:
                items = {user.args[1]: values.get(user) for user in node.users}
                value = tuple(items.get(i) for i in range(len(node.meta["val"])))
            copies[node] = self._recorder.add_copy(node, copies, value)
        return _with_values(call.result, values)

    def _no_guards(self) -> AbstractContextManager[None]:
        sizes = self._mode.shape_env
        return nullcontext() if sizes is None else sizes.suppress_guards()

    def _like(self, value: Any, owner: Any) -> FakeTensor:
        """A tensor of the same type and layout, in its owner's memory or in new memory."""
        shape, stride = value.shape, value.stride()
        made = torch.empty_strided(shape, stride, dtype=value.dtype, device="meta")
        if owner is not None:
            made.set_(owner.untyped_storage(), value.storage_offset(), shape, stride)
        made.requires_grad_(value.requires_grad)
        return FakeTensor(self._mode, made, value.fake_device)


def _described(value: Any, tensors: list[FakeTensor]) -> tuple[Any, ...]:
    """A hashable description of an argument; its tensors are appended to `tensors`.

    Raises:
        _NotRepeatableError: it has no such description.
    """
    kind = type(value)
    if kind is FakeTensor:
        tensors.append(value)
        return (kind,)
    if isinstance(value, tuple | list):  # of torch's own kinds, too
        return (kind, *(_described(item, tensors) for item in value))
    if isinstance(value, dict):
        return (kind, *((name, _described(item, tensors)) for name, item in value.items()))
    if kind is slice:
        return (kind, *(_described(i, tensors) for i in (value.start, value.stop, value.step)))
    return kind, _constant(value)


def _constant(value: Any) -> Any:
    """What an argument without tensors is equal by; see `_described`."""
    kind = type(value)
    if kind in _EXACT:
        return value
    if kind in _TEXTUAL:
        return repr(value)
    if kind is torch.SymInt or kind is torch.SymFloat:
        return value.node.expr
    raise _NotRepeatableError


def _state() -> tuple[Any, ...]:
    """The states of PyTorch that a graph can change and that change what a call records."""
    if peek_interpreter_stack() is not None:
        raise _NotRepeatableError
    casts = (
        (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
        for device in ("cpu", "cuda")
    )
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), *casts


def _facts_of(tensor: FakeTensor) -> tuple[Any, ...]:
    return (
        tensor.dtype,
        tensor.fake_device,
        tensor.layout,
        layout_of(tensor),
        _plain(tensor.untyped_storage().nbytes()),
        tensor.requires_grad,
        tensor.is_conj(),
        tensor.is_neg(),
        tensor.is_inference(),
    )


def _plain(number: int | torch.SymInt) -> Any:
    return number.node.expr if isinstance(number, torch.SymInt) else number


def _can_copy(node: fx.Node, known: set[fx.Node]) -> bool:
    """True if all of a node's tensors come from known nodes, and its value is plain."""
    if any(n not in known and isinstance(n.meta["val"], Tensor) for n in node.all_input_nodes):
        return False
    value = node.meta["val"]
    if isinstance(value, tuple | list):
        return isinstance(node.target, OpOverload)
    return (
        type(value) is FakeTensor
        and value.layout is torch.strided
        and not (value.is_conj() or value.is_neg())
    )


def _fills_its_memory(value: Tensor) -> bool:
    """True if new memory for a tensor's layout is what it has; varying memory is not compared."""
    offset, stored = value.storage_offset(), value.untyped_storage().nbytes()
    if not isinstance(offset, int) or offset:
        return False
    if not isinstance(stored, int):
        return True
    steps = zip(value.shape, value.stride(), strict=True)
    elements = 0 if 0 in value.shape else 1 + sum((extent - 1) * step for extent, step in steps)
    return bool(stored == elements * value.element_size())


def _with_values(result: Any, values: Mapping[fx.Node, Any]) -> Any:
    if isinstance(result, fx.Node):
        return values[result]
    return type(result)(_with_values(item, values) for item in result)
