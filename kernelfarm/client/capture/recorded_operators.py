"""Records the operators of one run under a fake mode as a functional graph.

The graph is the one that AOT Autograd makes: the dispatcher decomposes in the same way, and an
operator that writes to a value is recorded as its functional variant. A recording takes only writes
that need no other change: to memory that a single value has. All else ends it (`LongWayError`).
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

from kernelfarm.client.capture.sizes import depends_on_data
from kernelfarm.client.pytorch.private import (
    OpOverload,
    TorchDispatchMode,
    _extract_tensor_metadata,
    _pytree,
    autograd_would_have_decomposed,
    has_effects,
)
from kernelfarm.client.pytorch.private.operators import can_decompose, schema_of
from kernelfarm.client.pytorch.private.tracing import read_layout, storage_identity

if TYPE_CHECKING:
    from kernelfarm.client.pytorch.private import FakeTensorMode

_RECORDED = "_kernelfarm_recorded"
"""The attribute by which a tensor has its record.

A map from tensors would keep them alive. The functions of torch that make tensors copy a result
that is referred to elsewhere, and so would add a `detach` to the graph.
"""

_DETACH = torch.ops.aten.detach.default
_LIFT = torch.ops.aten.lift_fresh.default
_LIFT_COPY = torch.ops.aten.lift_fresh_copy.default
_ITEM = torch.ops.aten._local_scalar_dense.default
_HAS_WRONG_SCHEMA = torch.ops.aten.native_batch_norm.default


class LongWayError(Exception):
    """AOT Autograd must trace the graph; `reason` is the one in the counter's name."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason  # torch adds the executed node to the text


def size_of_trace() -> None:
    """The target of a node that stands for a symbolic size or float, which its metadata state."""
    raise NotImplementedError("a recorded graph cannot be called")


@dataclass(frozen=True, slots=True)
class _Record:
    """The node of a tensor in `graph`; after a write, the functional value that it has become."""

    graph: fx.Graph
    node: fx.Node
    value: Tensor | None = None


@dataclass(frozen=True, slots=True)
class _Facts:
    """How an operator is recorded.

    `is_query`: it returns no tensor, so its result is a constant or a size. `functional`: what is
    recorded in its place. `refusal`: why it is not recorded.
    """

    name: str
    functional: OpOverload
    is_query: bool
    is_composite: bool
    always_decomposes: bool
    writes: bool
    makes_memory: bool
    refusal: str | None


class OperatorRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch's
    """While active, above a fake mode, adds the operators that run to `graph`.

    `location` is the traced source code (`stack_trace`) of the nodes that are added. `constants`
    are the tensors that the run made from numbers, by the names of their nodes. `added` are the
    nodes of operators, and `write_count` counts the writes.
    """

    def __init__(self, mode: FakeTensorMode) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch's
        self._mode = mode
        self.constants: dict[str, Tensor] = {}
        self.graph = fx.Graph()
        self.location: str | None = None
        self.added: list[fx.Node] = []
        self.write_count = 0
        self._input_memory: set[int] = set()
        self._value_counts: Counter[int] = Counter()
        self._sizes: dict[Any, fx.Node] = {}
        self._written_memory: set[int] = set()
        self._layouts: set[tuple[Any, ...]] = set()

    def add_input(self, value: Any) -> None:
        """Adds a placeholder, named as AOT Autograd names it."""
        name = f"arg{len(self.graph.nodes)}_1"
        node = self.graph.create_node("placeholder", name, name=name)
        node.meta["val"] = value
        if isinstance(value, Tensor):
            self._input_memory.add(storage_identity(value))
            self._note(value, node)
        elif isinstance(value, torch.SymInt):
            self._sizes[value.node.expr] = node

    def node_of(self, tensor: Tensor) -> fx.Node:
        """The node of a recorded tensor; after a write, that of its present value.

        Raises:
            LongWayError: the tensor is not recorded.
        """
        return self._record_of(tensor).node

    def is_as_recorded(self, tensor: Tensor) -> bool:
        """True if a tensor is recorded, and was not written since."""
        record: _Record | None = getattr(tensor, _RECORDED, None)
        return record is not None and record.graph is self.graph and record.value is None

    def add_copy(self, node: fx.Node, copies: Mapping[fx.Node, fx.Node], value: Any) -> fx.Node:
        """Adds the operator of an earlier node for other arguments; `value` is its result."""
        target: Any = node.target
        name = target.overloadpacket.__name__ if isinstance(target, OpOverload) else "getitem"
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: copies.get(n, n))
        made = self.graph.create_node("call_function", target, args, kwargs, name=name)
        made.meta |= {"stack_trace": self.location, "val": value}
        if isinstance(value, Tensor):
            self._note(value, made)
        return made

    def finish(self, outputs: Iterable[Any]) -> None:
        """Adds the output node, and removes what no output needs; in the fake mode of the run."""
        if self._sizes:
            # After its second run, AOT Autograd has read the memory format of each value, too.
            read: set[tuple[Any, ...]] = set()
            for node in self.graph.nodes:
                value = node.meta.get("val")
                if isinstance(value, Tensor) and _is_new(layout_of(value), read):
                    _extract_tensor_metadata(value)
        self.graph.output([self._argument(item) for item in outputs])
        self.graph.eliminate_dead_code()

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Runs an operator in the modes below, and records it.

        Raises:
            LongWayError: it cannot be recorded.
        """
        kwargs = kwargs or {}
        facts = _facts_of(func)
        if func is _ITEM and self._is_float_input(args[0]):
            return self._run(facts, args, kwargs)
        if facts.refusal is not None:
            raise LongWayError(facts.refusal)
        if facts.is_query:
            return func(*args, **kwargs)
        if facts.is_composite and _is_decomposed(func, facts, args, kwargs):
            with self:
                found = func.decompose(*args, **kwargs)
            if found is not NotImplemented:
                return found
        if func is _LIFT:
            return self._lifted(args[0])
        if facts.writes:
            return self._written(facts, args, kwargs)
        return self._run(facts, args, kwargs)

    def _run(self, facts: _Facts, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if self._written_memory:
            args, kwargs = _pytree.tree_map_only(Tensor, self._value_of, (args, kwargs))
        result = facts.functional(*args, **kwargs)
        node = self._add(facts.functional, facts.name, self._arguments(args), kwargs)
        if not isinstance(result, Tensor):
            node.meta["val"] = result
            if isinstance(result, torch.SymFloat):
                self._sizes[result.node.expr] = node
            elif isinstance(result, Sequence):
                self._note_items(result, node)
            return result
        # Nothing else may refer to what a function that makes tensors returns; see `_RECORDED`.
        node.meta["val"] = _DETACH(result) if facts.makes_memory else result
        self._note(result, node)
        return result

    def _written(self, facts: _Facts, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
        """Records a write to the first argument as the computation of its new value."""
        written: Tensor = args[0]
        before = self._value_of(written)
        memory = storage_identity(before)
        if memory in self._input_memory:
            raise LongWayError("an input that is written")
        if self._value_counts[memory] != 1:
            raise LongWayError("a view that is written")
        after: Tensor = self._run(facts, args, kwargs)
        if (after.dtype, after.shape, after.stride()) != (
            before.dtype,
            before.shape,
            before.stride(),
        ):
            raise LongWayError("a write that converts its value")
        record = self._record_of(after)
        setattr(written, _RECORDED, _Record(self.graph, record.node, after))
        self._written_memory.add(storage_identity(after))
        self.write_count += 1
        return written

    def _lifted(self, tensor: Tensor) -> Tensor:
        """Records a tensor that torch made from numbers, outside of all modes."""
        name = f"_tensor_constant{len(self.constants)}"
        source = self.graph.create_node("get_attr", name, name=name)
        source.meta["val"] = self._mode.from_tensor(tensor, static_shapes=True)
        self.constants[name] = tensor
        result: Tensor = _LIFT_COPY(tensor)
        node = self._add(_LIFT_COPY, "lift_fresh_copy", (source,), {})
        node.meta["val"] = _DETACH(result)
        self._note(result, node)
        return result

    def _add(
        self, target: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> fx.Node:
        named = {key: self._argument(value) for key, value in kwargs.items()}
        node = self.graph.create_node("call_function", target, args, named, name=name)
        node.meta["stack_trace"] = self.location
        self.added.append(node)
        return node

    def _note_items(self, result: Sequence[Any], node: fx.Node) -> None:
        for number, item in enumerate(result):
            if isinstance(item, Tensor):
                picked = self._add(operator.getitem, "getitem", (node, number), {})
                picked.meta["val"] = item
                self._note(item, picked)

    def _note(self, tensor: Tensor, node: fx.Node) -> None:
        # The layers of a deep model repeat layouts; a layout that was read adds no more guards.
        if self._sizes and _is_new(layout_of(tensor), self._layouts):
            read_layout(tensor)
        if any(isinstance(e, torch.SymInt) and depends_on_data(e.node.expr) for e in tensor.shape):
            raise LongWayError("sizes that depend on data")
        known = tensor.__dict__.get(_RECORDED)
        if known is not None and known.graph is self.graph:
            raise LongWayError("a result that is an argument")
        setattr(tensor, _RECORDED, _Record(self.graph, node))
        memory = storage_identity(tensor)
        if memory in self._written_memory:
            # AOT Autograd makes such a view again where it is used.
            raise LongWayError("a view of a value that was written")
        self._value_counts[memory] += 1

    def _is_float_input(self, tensor: Tensor) -> bool:
        """True for an input by which Dynamo passes a float that varies."""
        is_input = self._record_of(tensor).node.op == "placeholder"
        return is_input and not tensor.dim() and tensor.dtype is torch.float64

    def _record_of(self, tensor: Tensor) -> _Record:
        record: _Record | None = getattr(tensor, _RECORDED, None)
        if record is None or record.graph is not self.graph:
            raise LongWayError("constants")
        return record

    def _value_of(self, tensor: Tensor) -> Tensor:
        value = self._record_of(tensor).value
        return tensor if value is None else value

    def _arguments(self, values: Iterable[Any]) -> tuple[Any, ...]:
        return tuple(self._argument(value) for value in values)

    def _argument(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self.node_of(value)
        if isinstance(value, list):
            return [self._argument(item) for item in value]
        if isinstance(value, tuple):
            return self._arguments(value)
        if isinstance(value, torch.SymBool):
            raise LongWayError("symbolic conditions")
        return self._size(value) if isinstance(value, torch.SymInt | torch.SymFloat) else value

    def _size(self, value: torch.SymInt | torch.SymFloat) -> fx.Node:
        expr = value.node.expr
        if expr not in self._sizes:
            # AOT Autograd's floats are computed by nodes, which keep the symbols in the graph.
            symbols = expr.free_symbols if isinstance(value, torch.SymFloat) else ()
            used = tuple(self._sizes[s] for s in sorted(symbols, key=str) if s in self._sizes)
            node = self.graph.create_node("call_function", size_of_trace, used, name="size")
            node.meta["val"] = value
            self._sizes[expr] = node
        return self._sizes[expr]


@cache
def _facts_of(func: OpOverload) -> _Facts:
    schema = schema_of(func)
    types = [str(result.type) for result in schema.returns]
    is_query = bool(types) and not any("Tensor" in text for text in types)
    writes = schema.is_mutable
    functional = _functional_variant(func) if writes else func
    refusal = None
    if torch.Tag.data_dependent_output in func.tags:
        refusal = "sizes that depend on data"
    elif not types or has_effects(func):
        refusal = "effects"
    elif functional is None:
        refusal = "an operator that writes"
    return _Facts(
        name=func.overloadpacket.__name__,
        functional=functional or func,
        is_query=is_query,
        is_composite=not is_query and can_decompose(func),
        always_decomposes=_always_decomposes(func),
        writes=writes,
        makes_memory=any(arg.name == "pin_memory" for arg in schema.arguments),
        refusal=refusal,
    )


def _functional_variant(func: OpOverload) -> OpOverload | None:
    """The operator that computes what another one writes to its first argument; None for others."""
    schema = schema_of(func)
    written = [arg for arg in schema.arguments if arg.alias_info and arg.alias_info.is_write]
    name = func.overloadpacket.__name__
    if func.namespace != "aten" or not name.endswith("_") or torch.Tag.inplace_view in func.tags:
        return None
    if written != [schema.arguments[0]] or [str(r.type) for r in schema.returns] != ["Tensor"]:
        return None
    packet = getattr(torch.ops.aten, name.removesuffix("_"), None)
    found = getattr(packet, schema.overload_name or "default", None)
    if not isinstance(found, OpOverload) or can_decompose(found):
        return None
    is_same = _signature(found) == _signature(func) and not schema_of(found).is_mutable
    return found if is_same else None


def layout_of(tensor: Tensor) -> tuple[Any, ...]:
    """The rank, sizes, strides and offset of a traced tensor, as numbers and expressions."""
    numbers = (tensor.dim(), *tensor.shape, *tensor.stride(), tensor.storage_offset())
    return tuple(n.node.expr if isinstance(n, torch.SymInt) else n for n in numbers)


def _is_new(item: tuple[Any, ...], known: set[tuple[Any, ...]]) -> bool:
    """True the first time; adds the item to those that are known."""
    if item in known:
        return False
    known.add(item)
    return True


def _signature(func: OpOverload) -> list[tuple[str, str]]:
    return [(arg.name, str(arg.type)) for arg in schema_of(func).arguments]


def _always_decomposes(func: OpOverload) -> bool:
    schema = schema_of(func)
    return (
        schema.is_mutable
        or any(arg.alias_info for arg in schema.arguments)
        or torch.Tag.maybe_aliasing_or_mutating in func.tags
        or func is _HAS_WRONG_SCHEMA
    )


def _is_decomposed(
    func: OpOverload, facts: _Facts, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> bool:
    """True if AOT Autograd decomposes a composite operator that the dispatcher did not.

    In inference mode, the dispatcher decomposes nothing.
    """
    if facts.always_decomposes:
        return True
    return autograd_would_have_decomposed(func, _pytree.tree_leaves((args, kwargs)))
