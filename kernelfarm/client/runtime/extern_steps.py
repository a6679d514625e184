"""Extern steps, which the client's framework runs, and the storing of their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from kernelfarm.client.pytorch.tensors import reinterpret_tensor
from kernelfarm.client.runtime.extern_node import ExternNode
from kernelfarm.client.runtime.picks import Formed, Pick
from kernelfarm.client.runtime.views import SizedBuffer, View, is_same_memory
from kernelfarm.errors import InternalError

if TYPE_CHECKING:
    from kernelfarm.client.runtime.call_state import CallState, Step
    from kernelfarm.client.runtime.user_kernels import UserKernelLaunch

WIDEST_UNIT_ELEMS = 16
"""The most elements that a view combines into one: the bytes of the widest element type."""

Sizes = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ExternResult:
    """Where a step's result goes: it becomes its buffer's tensor, or is copied into a view.

    `value_index` is its index among a call's values; `table_indices` are the indices of its address
    in the pointer table. If `can_alias`, a tensor with the planned layout becomes the buffer
    itself; then no other tensor may share its memory, because kernels may write into the buffer.
    If `is_stored`, the result is copied into `view`.
    """

    view: View
    value_index: int
    table_indices: Sequence[int] = ()
    formed: Sequence[Formed] = field(default=())
    can_alias: bool = False
    is_stored: bool = False

    def store(self, state: CallState, tensor: torch.Tensor) -> None:
        """Stores a result where later steps read it."""
        values, view = state.values, self.view
        if self.is_stored:
            for index, source, form in self.formed:
                values[index] = form(values[source])
            _copy(values[self.value_index], tensor)
            return
        is_as_planned = tensor.stride() == view.strides and tensor.shape == view.shape
        if not (is_as_planned and self.can_alias and tensor.dtype is view.dtype):
            tensor = self.as_planned(tensor)
        values[self.value_index] = tensor
        if self.table_indices:
            address = tensor.data_ptr()
            for index in self.table_indices:
                state.table[index] = address

    def as_planned(self, tensor: torch.Tensor) -> torch.Tensor:
        """A result in the planned layout: a view if its strides are equivalent, else a copy."""
        view = self.view
        is_alike = tensor.shape == view.shape and tensor.dtype is view.dtype
        if (
            self.can_alias
            and is_alike
            and is_same_memory(view.shape, tensor.stride(), view.strides)
        ):
            return reinterpret_tensor(tensor, view.shape, view.strides, 0)
        return _own_copy(view, view.buffer, tensor)


def extern_of_one(
    state: CallState,
    function: Callable[..., Any],
    pick: Pick,
    formed: Sequence[Formed],
    result: ExternResult,
) -> Step:
    """A step that returns one tensor."""
    values, table = state.values, state.table
    if result.is_stored or not result.can_alias:
        return lambda: result.store(state, function(*_picked(values, formed, pick)))
    shape, strides, dtype = result.view.shape, result.view.strides, result.view.dtype
    value_index, table_indices, as_planned = (
        result.value_index,
        result.table_indices,
        result.as_planned,
    )

    def run() -> None:
        for index, source, form in formed:
            values[index] = form(values[source])
        tensor = function(*pick(values))
        # `ExternResult.store` inlined: it is most of the cost of a call of a small model.
        if tensor.stride() != strides or tensor.shape != shape or tensor.dtype is not dtype:
            tensor = as_planned(tensor)
        values[value_index] = tensor
        if table_indices:
            address = tensor.data_ptr()
            for index in table_indices:
                table[index] = address

    return run


def extern_of_several(
    state: CallState,
    node: ExternNode,
    call: tuple[Callable[..., Any], Pick],
    formed: Sequence[Formed],
    outputs: Sequence[tuple[int, ExternResult]],
) -> Step:
    """A step that returns several results or none, or one result that no step reads."""
    function, pick = call

    def run() -> None:
        found = function(*_picked(state.values, formed, pick))
        results = (found,) if node.gives_one else node.flat_results(found)
        for number, result in outputs:
            tensor = results[number]
            if tensor is None:
                raise InternalError(
                    f"{node.target} returned None as result {number}; expected a tensor"
                )
            result.store(state, tensor)

    return run


def launched_kernel(
    state: CallState,
    launch: UserKernelLaunch,
    pick: Pick,
    formed: Sequence[Formed],
    outputs: Sequence[tuple[int, ExternResult]],
) -> Step:
    """A step that launches a user's kernel."""

    def run() -> None:
        made = launch(_picked(state.values, formed, pick), state.context)
        for number, result in outputs:
            result.store(state, made[number])

    return run


def _picked(values: list[Any], formed: Sequence[Formed], pick: Pick) -> tuple[Any, ...]:
    for index, source, form in formed:
        values[index] = form(values[source])
    return pick(values)


def in_own_storage(shape: Sizes, strides: Sizes, tensor: torch.Tensor) -> torch.Tensor:
    """A copy of the elements in a storage of their own, with this shape and these strides."""
    own = torch.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device)
    return own.copy_(tensor)


def on_whole_units(tensor: torch.Tensor) -> torch.Tensor:
    """The elements contiguous, at an offset that is aligned for every element type."""
    is_aligned = tensor.is_contiguous() and tensor.storage_offset() % WIDEST_UNIT_ELEMS == 0
    return tensor if is_aligned else tensor.clone(memory_format=torch.contiguous_format)


def _own_copy(view: View, buffer: SizedBuffer, tensor: torch.Tensor) -> torch.Tensor:
    if view.offset == 0 and view.span_elems() == buffer.size_elems:
        own = torch.empty_strided(view.shape, view.strides, dtype=view.dtype, device=tensor.device)
        _copy(own, tensor)
        return own
    storage = torch.empty(buffer.size_elems, dtype=buffer.dtype, device=tensor.device)
    _copy(view.of(storage), tensor)
    return storage


def _copy(into: torch.Tensor, tensor: torch.Tensor) -> None:
    # For some operators (saved statistics in bf16, for example), torch traces a different element
    # type than its kernel returns. The traced type counts: later steps were compiled for it.
    if into.shape != tensor.shape:
        raise InternalError(
            f"an extern step returned shape {tuple(tensor.shape)}; the plan expects"
            f" {tuple(into.shape)}"
        )
    if 0 in into.stride():
        into, tensor = _unexpanded(into, into), _unexpanded(tensor, into)
    into.copy_(tensor)


def _unexpanded(tensor: torch.Tensor, into: torch.Tensor) -> torch.Tensor:
    """One of the elements that share an address in `into`: torch refuses overlapping writes."""
    for axis, (extent, stride) in enumerate(zip(into.shape, into.stride(), strict=True)):
        if not stride and extent > 1:
            tensor = tensor.narrow(axis, 0, 1)
    return tensor
