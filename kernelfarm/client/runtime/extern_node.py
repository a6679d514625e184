"""Runs the operator of a captured node on the tensors of a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx

from kernelfarm.client.capture.rebuilt_nodes import RebuiltNode
from kernelfarm.client.capture.saved_random_state import flat_results, is_with_random_state
from kernelfarm.client.capture.sizes import SizeReader
from kernelfarm.client.capture.storages import MEMORY_READERS
from kernelfarm.client.custom_operators.attention import (
    ATTENTION,
    ATTENTION_BACKWARD,
    ATTENTION_SAVING,
    attend,
    go_back,
    save,
)
from kernelfarm.client.pytorch.private import HigherOrderOperator, OpOverload, with_effects
from kernelfarm.client.pytorch.private.operators import is_composite, overwriting_form, schema_of
from kernelfarm.client.runtime.picks import Pick, picker
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.graph_ir import TensorType, contiguous_strides

Tensors = Sequence[torch.Tensor]
ProgramOutputs = tuple[torch.Tensor | None, ...]

Sizes = tuple[int, ...]
Target = OpOverload | HigherOrderOperator
"""An operator, or a wrapper that runs one with an effect token or with a generator state."""

DIRECT_CALLS: dict[Target, Callable[..., Any]] = {
    torch.ops.aten.mm.default: torch.mm,
    torch.ops.aten.bmm.default: torch.bmm,
    torch.ops.aten.addmm.default: torch.addmm,
    torch.ops.aten.baddbmm.default: torch.baddbmm,
    torch.ops.aten.linear.default: torch.nn.functional.linear,
    torch.ops.aten.convolution.default: torch.convolution,
    ATTENTION: attend,
    ATTENTION_SAVING: save,
    ATTENTION_BACKWARD: go_back,
}
"""Functions equivalent to operators, which parse their arguments about 1 us faster.

Their results may have other layouts: steps bring results into the planned layout."""


_BIAS = 2
"""The position of the bias among the arguments of `aten.convolution`."""

_WIDENING = frozenset({torch.ops.aten.view_as_complex.default, torch.ops.aten.view.dtype})
"""Views that combine several elements into one: these must be adjacent and aligned."""


class _TensorPlaceholder:
    """A placeholder for the tensor argument with this number."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


class ExternNode:
    """A node's operator with its arguments; callers pass its tensors in order at each run.

    `gives_one`: a run returns exactly one tensor. `may_alias`: a result may share memory with an
    argument. `needs_own_storage`: the operator addresses its argument's storage. `widens_elements`:
    it combines several elements into one.
    """

    def __init__(self, node: fx.Node | RebuiltNode, sizes: Mapping[str, int]) -> None:
        target = node.target
        is_wrapper = target is with_effects or is_with_random_state(target)
        if not isinstance(target, Target) or not (is_wrapper or isinstance(target, OpOverload)):
            raise InvalidGraphError(
                f"node {node.name} calls {target}; expected an operator of torch"
            )
        self.target: Target = target
        self._count = 0
        self._layouts: list[tuple[Sizes, Sizes]] = []
        self._sizes = sizes
        self._reader = SizeReader()
        self._args = [self._template(arg) for arg in node.args]
        # Sorted like the attributes of the captured graph, which define the order of tensors.
        self._kwargs = {key: self._template(node.kwargs[key]) for key in sorted(node.kwargs)}
        self.gives_one = not _gives_several(self.target)
        self.may_alias = _may_alias(self.target)
        self.needs_own_storage = str(self.target).rpartition(".")[0] in MEMORY_READERS
        self.widens_elements = self.target in _WIDENING

    @property
    def tensor_count(self) -> int:
        """The number of tensors that a run takes."""
        return self._count

    @property
    def has_bias(self) -> bool:
        """True for a convolution with a bias, which is its last tensor."""
        is_convolution = self.target is torch.ops.aten.convolution.default
        return is_convolution and isinstance(self._args[_BIAS], _TensorPlaceholder)

    def leave_out_bias(self) -> None:
        """Runs the convolution without its bias, which a kernel of the plan adds."""
        self._args[_BIAS] = None
        self._count -= 1

    def was_contiguous(self, number: int) -> bool:
        """True if the tensor argument with this number was contiguous in the trace.

        The operator may rely on it: the model may have made a contiguous copy, which the captured
        graph does not show.
        """
        return is_contiguous(*self._layouts[number])

    def traced_layout(self, number: int) -> tuple[Sizes, Sizes]:
        """Shape and strides (in elements) of the argument with this number in the trace."""
        return self._layouts[number]

    def run(self, tensors: Tensors) -> ProgramOutputs:
        """The results for these tensors, as a flat tuple."""
        values = list(tensors)
        function, pick = self.call_on(values, range(len(values)))
        found = function(*pick(values))
        return (found,) if self.gives_one else self.flat_results(found)

    def call_on(self, values: list[Any], indices: Sequence[int]) -> tuple[Callable[..., Any], Pick]:
        """A function, and how to pick its arguments from a list such as `values`.

        `indices` are the indices of the tensor arguments in `values`. The call appends the other
        arguments of the operator to `values`.
        """
        function = DIRECT_CALLS.get(self.target, self.target)
        if any(isinstance(arg, list | _TensorPlaceholder) for arg in self._kwargs.values()):
            return _with_keywords(function, tuple(self._kwargs)), self._filling(indices)
        function = partial(function, **self._kwargs) if self._kwargs else function
        if any(isinstance(arg, list) for arg in self._args):
            return function, self._filling(indices)
        indices_taken = []
        for arg in self._args:
            indices_taken.append(
                indices[arg.number] if isinstance(arg, _TensorPlaceholder) else len(values)
            )
            if not isinstance(arg, _TensorPlaceholder):
                values.append(arg)
        return function, picker(indices_taken)

    def overwriting(self) -> Callable[..., torch.Tensor] | None:
        """The function of `call_on` that takes the memory of the second tensor for its result.

        None if the operator has no such form.
        """
        operator = overwriting_form(self.target)
        if operator is None or self._kwargs:
            return None
        in_place: Callable[..., torch.Tensor] = operator
        return lambda first, second, *others: in_place(second, first, *others)

    def flat_results(self, found: Any) -> ProgramOutputs:
        """The flat results of an operator that returns several tensors or none."""
        if found is None:
            return ()
        return tuple(flat_results(found) if is_with_random_state(self.target) else found)

    def _filling(self, indices: Sequence[int]) -> Pick:
        """Picks arguments, some of which are lists of tensors; keyword arguments come last."""
        templates = [*self._args]
        if any(isinstance(arg, list | _TensorPlaceholder) for arg in self._kwargs.values()):
            templates += self._kwargs.values()
        pick = picker(indices)

        def fill(values: Sequence[Any]) -> tuple[Any, ...]:
            tensors = pick(values)
            return tuple([_filled(template, tensors) for template in templates])

        return fill

    def _template(self, arg: Any) -> Any:
        if isinstance(arg, fx.Node):
            value = arg.meta.get("val")
            if not isinstance(value, torch.Tensor):
                return self._number(value)
            read = self._reader.read_all
            return self._placeholder_for(read(value.shape), read(value.stride()))
        if isinstance(arg, TensorType):
            return self._placeholder_for(arg.shape, arg.strides or contiguous_strides(arg.shape))
        if isinstance(arg, list | tuple):
            items = [self._template(item) for item in arg]
            return (
                items
                if any(isinstance(i, list | _TensorPlaceholder) for i in items)
                else tuple(items)
            )
        return self._number(arg)

    def _placeholder_for(
        self, shape: tuple[Expr, ...], strides: tuple[Expr, ...]
    ) -> _TensorPlaceholder:
        sizes = self._sizes
        self._layouts.append(
            (tuple(e.evaluate(sizes) for e in shape), tuple(e.evaluate(sizes) for e in strides))
        )
        self._count += 1
        return _TensorPlaceholder(self._count - 1)

    def _number(self, value: Any) -> Any:
        if isinstance(value, torch.SymInt):
            return self._reader.read(value).evaluate(self._sizes)
        return value.evaluate(self._sizes) if isinstance(value, Expr) else value


def is_contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """True for row-major order without gaps."""
    expected = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != expected:
            return 0 in shape
        expected *= extent
    return True


def _with_keywords(function: Callable[..., Any], names: tuple[str, ...]) -> Callable[..., Any]:
    """The function with its last arguments passed by name."""
    count = len(names)

    def call(*args: Any) -> Any:
        return function(*args[:-count], **dict(zip(names, args[-count:], strict=True)))

    return call


def _filled(arg: Any, tensors: Tensors) -> Any:
    if isinstance(arg, _TensorPlaceholder):
        return tensors[arg.number]
    return [_filled(item, tensors) for item in arg] if isinstance(arg, list) else arg


def _gives_several(target: Target) -> bool:
    if not isinstance(target, OpOverload):
        return True  # a wrapper returns a token or a state, and the operator's results
    returns = schema_of(target).returns
    return len(returns) != 1 or isinstance(returns[0].type, torch.ListType)


def _may_alias(target: Target) -> bool:
    if not isinstance(target, OpOverload):
        return False
    # Composite operators (`reshape`, `contiguous`) may return an argument without declaring it.
    # Operators such as `unsafe_split` return views of one; only their names show it.
    schema = schema_of(target)
    declares_alias = any(result.alias_info is not None for result in schema.returns)
    return declares_alias or is_composite(target) or "unsafe_" in schema.name
