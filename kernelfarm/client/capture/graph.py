"""A traced module (functional ATen, as AOT Autograd makes it) -> the graph that travels.

Conventions: an operator is sent by its overload's name, `operator.getitem` is folded into nodes of
several results, integers that torch computes from sizes become expressions, and the device is no
part of the graph. Whatever has no words on the wire raises a typed error before anything is sent.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._higher_order_ops.effects import new_token_tensor, with_effects
from torch._subclasses.fake_tensor import unset_fake_temporarily

from kernelfarm.client.capture.captured import CapturedGraph, ModuleOutput, UnsupportedGraphError
from kernelfarm.client.capture.constants import constant_of, is_sent_as_constant
from kernelfarm.client.capture.operator_names import wire_name
from kernelfarm.client.capture.output_aliases import share_outputs
from kernelfarm.client.capture.saved_random_state import (
    flat_item,
    flat_results,
    is_with_random_state,
    note_random_results,
)
from kernelfarm.client.capture.sizes import SizeReader
from kernelfarm.client.capture.source_locations import LocationTable
from kernelfarm.client.capture.storages import StorageMakers, read_from_makers
from kernelfarm.client.pytorch.dtypes import dtype_from_torch
from kernelfarm.dtypes import DType
from kernelfarm.errors import KernelfarmError
from kernelfarm.ir.graph_ir import Arg, Graph, Input, Node, Ref, TensorType, Update

DROPPED_KWARGS = frozenset({"device", "layout", "pin_memory", "non_blocking"})
"""Keyword arguments that say where a tensor lies, not what it holds."""

IGNORED_OPS = frozenset({"aten._assert_tensor_metadata.default"})
"""Checks of what the graph's types state anyway."""

KNOWN_EFFECTS = frozenset({"aten._linalg_check_errors.default"})
"""Operators without results that must run: the framework runs them, ordered by a token."""

_COPY = torch.ops.aten.copy_.default
"""What writes the new value of an input to its memory, after everything else."""

_BAGS = torch.ops.aten._embedding_bag.default
_UNUSED = TensorType(DType.F32, (), ())
"""Type of a result that is no tensor, or that nobody uses."""


def capture(
    module: fx.GraphModule,
    *,
    names: Sequence[str] = (),
    written: Mapping[int, int] | None = None,
) -> CapturedGraph:
    """The graph of a traced module; `names` are names for its inputs, for people.

    `written` has the arguments (by position) in which outputs of the module (by position) are to be
    stored; those that the module itself copies into its arguments are stored there anyway.

    Raises:
        UnsupportedGraphError: an operator, argument or layout has no form on the wire.
        UnsupportedDTypeError: a tensor of a quantized or another unknown element type.
        InvalidGraphError: a size depends on data.
    """
    return _Capture(module, names, written or {}).run()


class _Capture:
    """One pass over the nodes; values are numbered as they appear."""

    def __init__(
        self, module: fx.GraphModule, names: Sequence[str], written: Mapping[int, int]
    ) -> None:
        self._module = module
        self._names = names
        self._written = written
        self._copied: list[tuple[fx.Node, fx.Node]] = []
        self._sizes = SizeReader()
        self._locations = LocationTable()
        self._values: dict[fx.Node, tuple[int | None, ...]] = {}
        self._next_value = 0
        self._inputs: list[Input] = []
        self._sources: list[int | torch.Tensor] = []
        self._constants: list[tuple[Input, torch.Tensor]] = []
        self._nodes: list[Node] = []
        self._traced: list[fx.Node] = []
        self._devices: set[torch.device] = set()
        self._position = 0
        self._negated: set[int] = set()
        note_random_results(module.graph)
        self._makers = StorageMakers(module.graph)
        self._module_outputs: tuple[ModuleOutput, ...] = ()
        self._updates: list[Update] = []

    def run(self) -> CapturedGraph:
        read_from_makers(self._module.graph, self._makers)
        outputs: tuple[Arg, ...] = ()
        types: tuple[TensorType | None, ...] = ()
        visit: dict[str, Callable[[fx.Node], None]] = {
            "placeholder": self._placeholder,
            "get_attr": self._get_attr,
            "call_function": self._call,
        }
        position = 0
        for node in self._module.graph.nodes:
            if node.op == "output":
                outputs, types = self._outputs(node)
                continue
            if node.op not in visit:
                raise UnsupportedGraphError(f"node {node.name} is a {node.op}; expected functions")
            if node.op == "placeholder":
                self._position = position
                position += 1
            self._at(node, visit[node.op])
        return self._finish(outputs, types)

    def _at(self, node: fx.Node, visit: Callable[[fx.Node], None]) -> None:
        try:
            visit(node)
        except KernelfarmError as error:
            if str(error).startswith("node "):
                raise
            raise type(error)(f"node {node.name} ({node.target}): {error}") from error

    def _finish(
        self, outputs: tuple[Arg, ...], types: tuple[TensorType | None, ...]
    ) -> CapturedGraph:
        # Constants come last, so that positions among the inputs are those of the arguments.
        for source, tensor in self._constants:
            self._inputs.append(source)
            self._sources.append(tensor)
        symbols = self._sizes.symbols()
        self._check_symbols_have_sources({s.name for s in symbols})
        graph = Graph(
            "aten",
            symbols,
            tuple(self._inputs),
            tuple(self._nodes),
            outputs,
            types,
            self._locations.texts(),
            updates=tuple(self._updates),
        )
        return CapturedGraph(
            graph,
            tuple(self._sources),
            tuple(self._traced),
            self._device(),
            self._module_outputs,
            frozenset(self._negated),
        )

    def _check_symbols_have_sources(self, needed: set[str]) -> None:
        for source in self._inputs:
            if isinstance(source.kind, str):
                needed.discard(source.kind)
            elif isinstance(source.kind, TensorType):
                needed -= {str(extent) for extent in source.kind.shape}
        if needed:
            raise UnsupportedGraphError(
                f"sizes {sorted(needed)} are no extent of an input; expected each to be one"
            )

    def _device(self) -> torch.device:
        # Zero-dimensional tensors on the CPU may take part in computations on any device.
        if len(self._devices) > 1:
            names = sorted(str(d) for d in self._devices)
            raise UnsupportedGraphError(f"tensors on {' and '.join(names)}; expected one device")
        return next(iter(self._devices), torch.device("cpu"))

    def _placeholder(self, node: fx.Node) -> None:
        if any(user.target is with_effects and user.args[0] is node for user in node.users):
            self._token(node)
            return
        value = node.meta.get("val")
        kind: TensorType | str
        if isinstance(value, torch.Tensor):
            kind = self._tensor_type(value)
            if value.is_neg():
                self._negated.add(self._position)
        elif isinstance(value, torch.SymInt):
            size = self._sizes.read(value)
            if len(size.symbols) != 1 or str(size) not in size.symbols:
                return  # a number, or computed from other sizes: uses carry the expression
            kind = str(size)
        elif value is None or isinstance(value, int | float | bool | str):
            return  # specialized by the trace, which guards it
        else:
            raise UnsupportedGraphError(f"input of type {type(value).__name__}; expected a tensor")
        number = self._number(node)
        if isinstance(kind, str):
            del self._values[node]  # uses of sizes travel as expressions
        self._inputs.append(Input(number, kind, self._name_of(node)))
        self._sources.append(self._position)

    def _token(self, node: fx.Node) -> None:
        # AOT Autograd calls with None in a token's place: what stands for it comes with the graph.
        with unset_fake_temporarily():
            token = new_token_tensor()
            source = Input(self._number(node), constant_of(token), node.name)
        self._constants.append((source, token))

    def _name_of(self, node: fx.Node) -> str:
        return self._names[self._position] if self._position < len(self._names) else node.name

    def _get_attr(self, node: fx.Node) -> None:
        tensor = operator.attrgetter(str(node.target))(self._module)
        if not isinstance(tensor, torch.Tensor):
            if not any(isinstance(user.target, torch._ops.OpOverload) for user in node.users):
                return  # a branch's graph: whoever uses it is refused
            raise UnsupportedGraphError(f"holds a {type(tensor).__name__}; expected a tensor")
        number = self._number(node)
        with unset_fake_temporarily():  # the tensor is real, and AOT Autograd runs us in fake mode
            tensor = tensor.detach().resolve_neg()
            if is_sent_as_constant(tensor):
                source = Input(number, constant_of(tensor), str(node.target))
                self._constants.append((source, tensor))
                return
        self._inputs.append(Input(number, self._tensor_type(tensor), str(node.target)))
        self._sources.append(tensor)

    def _call(self, node: fx.Node) -> None:
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool | int | float):
            return  # uses read the value itself
        if node.target is operator.getitem:
            self._getitem(node)
            return
        if node.target is with_effects and str(node.args[1]) in KNOWN_EFFECTS:
            self._append(node, value)
            return
        if is_with_random_state(node.target):
            self._append(node, flat_results(value))
            return
        if not isinstance(node.target, torch._ops.OpOverload):
            raise UnsupportedGraphError("expected an operator's overload")
        if str(node.target) in IGNORED_OPS:
            return
        if node.target is _COPY:
            self._copy(node)
            return
        if node.target._schema.is_mutable:
            raise UnsupportedGraphError("writes to an argument; expected a functional operator")
        if node.target is _BAGS and _is_misstated(node):
            raise UnsupportedGraphError("sums of bags of bfloat16; expected another type")
        self._append(node, value)

    def _copy(self, node: fx.Node) -> None:
        into, value = node.args[:2]
        is_last = all(user.op == "output" for user in node.users)
        if not isinstance(into, fx.Node) or not isinstance(value, fx.Node):
            raise UnsupportedGraphError("writes a number to an argument; expected a tensor")
        if not is_last or into.op != "placeholder":
            raise UnsupportedGraphError("writes to a value; expected inputs alone to be written")
        self._copied.append((into, value))

    def _append(self, node: fx.Node, value: Any) -> None:
        several = isinstance(value, list | tuple)
        if _is_effect(node):
            types: tuple[TensorType, ...] = ()
        elif several:
            types = self._result_types(node, value)
        elif isinstance(value, torch.Tensor):
            types = (self._tensor_type(value),)
        else:
            raise UnsupportedGraphError(f"gives {type(value).__name__}; expected tensors")
        args = tuple(self._arg(arg) for arg in node.args)
        attrs = tuple(
            (key, self._arg(node.kwargs[key]))
            for key in sorted(node.kwargs)
            if key not in DROPPED_KWARGS
        )
        results = tuple(range(self._next_value, self._next_value + len(types)))
        self._next_value += len(types)
        self._values[node] = results
        location = self._locations.number_of(node)
        origin = (len(self._nodes),)
        name = wire_name(node.target)
        self._nodes.append(Node(name, args, attrs, results, types, origin, location))
        self._traced.append(node)

    def _getitem(self, node: fx.Node) -> None:
        source, index = node.args
        if not isinstance(source, fx.Node) or not isinstance(index, int):
            raise UnsupportedGraphError(f"item {index} of {source}; expected a result's number")
        value = node.meta.get("val")
        if isinstance(value, list | tuple) or is_with_random_state(source.target):
            # Of a wrapped operator: its results stand flat, in one row.
            self._values[node] = flat_item(source, self._values[source], index)
        elif isinstance(value, torch.Tensor):
            self._values[node] = (self._values[source][index],)

    def _outputs(self, node: fx.Node) -> tuple[tuple[Arg, ...], tuple[TensorType | None, ...]]:
        returned = node.args[0]
        items = returned if isinstance(returned, tuple | list) else (returned,)
        arguments = [n for n in self._module.graph.nodes if n.op == "placeholder"]
        stored = [(arguments[index], items[number]) for number, index in self._written.items()]
        items = [item for number, item in enumerate(items) if number not in self._written]
        kept = [item for item in items if not _is_copy(item)]
        kept, shared = share_outputs(kept, self._makers, self._sizes)
        # A copy into an argument that is returned is that argument.
        computed = iter(shared)
        self._module_outputs = tuple(
            ModuleOutput(argument=arguments.index(item.args[0]))
            if _is_copy(item)
            else next(computed)
            for item in items
        )
        args = [self._arg(item) for item in kept]
        types = [self._output_type(item) for item in kept]
        for into, value in (*stored, *self._copied):
            self._updates.append(Update(len(args), self._number_of_input(into)))
            args.append(self._arg(value))
            types.append(self._tensor_type(into.meta["val"]))
        return tuple(args), tuple(types)

    def _number_of_input(self, node: fx.Node) -> int:
        (number,) = self._values[node]
        return next(i for i, source in enumerate(self._inputs) if source.value == number)

    def _output_type(self, item: Any) -> TensorType | None:
        value = item.meta.get("val") if isinstance(item, fx.Node) else None
        return self._tensor_type(value) if isinstance(value, torch.Tensor) else None

    def _number(self, node: fx.Node) -> int:
        number = self._next_value
        self._next_value += 1
        self._values[node] = (number,)
        return number

    def _result_types(self, node: fx.Node, values: Sequence[Any]) -> tuple[TensorType, ...]:
        if is_with_random_state(node.target):
            return tuple(self._tensor_type(value) for value in values)
        # Devices and versions differ in by-products (a norm's statistics): only what is used tells.
        used = {user.args[1] for user in node.users if user.target is operator.getitem}
        return tuple(
            self._tensor_type(value)
            if number in used and isinstance(value, torch.Tensor)
            else _UNUSED
            for number, value in enumerate(values)
        )

    def _tensor_type(self, value: torch.Tensor) -> TensorType:
        if value.layout is not torch.strided:
            raise UnsupportedGraphError(f"a tensor of layout {value.layout}; expected strided")
        if value.device.type != "cpu" or value.dim():
            self._devices.add(value.device)
        read = self._sizes.read_all
        return TensorType(dtype_from_torch(value.dtype), read(value.shape), read(value.stride()))

    def _arg(self, arg: Any) -> Arg:
        if isinstance(arg, fx.Node):
            return self._node_arg(arg)
        if isinstance(arg, list | tuple):
            return tuple(self._arg(item) for item in arg)
        return self._plain(arg)

    def _node_arg(self, node: fx.Node) -> Arg:
        numbers = self._values.get(node)
        if numbers is None:
            return self._plain(node.meta.get("val"))
        if len(numbers) != 1 or numbers[0] is None:
            raise UnsupportedGraphError(f"uses all results of {node.name}; expected one of them")
        return Ref(numbers[0])

    def _plain(self, value: Any) -> Arg:
        if value is None or isinstance(value, bool | int | float | complex | str):
            return value
        if isinstance(value, torch.SymInt):
            size = self._sizes.read(value)
            return size.as_int() if size.is_constant else size
        if isinstance(value, torch.dtype):
            return dtype_from_torch(value)
        if isinstance(value, torch.memory_format):
            return str(value).removeprefix("torch.")
        if isinstance(value, torch._ops.OpOverload):
            return str(value)
        if isinstance(value, torch.device):
            return None  # the device is no part of the graph
        raise UnsupportedGraphError(
            f"an argument of type {type(value).__name__}; expected tensors, numbers, text, "
            "element types, or lists of them"
        )


def _is_effect(node: fx.Node) -> bool:
    """True for an operator that by its schema gives nothing: it is run for what it does."""
    return isinstance(node.target, torch._ops.OpOverload) and not node.target._schema.returns


def _is_copy(item: Any) -> bool:
    return isinstance(item, fx.Node) and item.target is _COPY


def _is_misstated(bags: fx.Node) -> bool:
    """True for sums of bfloat16, of which tracing states other shapes than the kernel gives."""
    mode: Any = bags.args[4] if len(bags.args) > 4 else bags.kwargs.get("mode", 0)
    return bool(mode == 0) and bags.meta["val"][0].dtype is torch.bfloat16
