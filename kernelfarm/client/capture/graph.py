"""Captures a traced module (functional ATen, as AOT Autograd makes it) as a graph for the farm.

A node has the name of its operator's overload. `operator.getitem` is folded into nodes with several
results. Integers that torch computes from sizes become expressions. The graph is independent of the
device. What cannot be encoded raises a typed error before anything is sent.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from kernelfarm.client.capture.captured import (
    CapturedGraph,
    TracedModule,
    UnsupportedGraphError,
)
from kernelfarm.client.capture.constants import constant_of, is_sent_as_constant
from kernelfarm.client.capture.graph_outputs import COPY, GraphOutputs, OutputCollector
from kernelfarm.client.capture.graph_values import GraphValues
from kernelfarm.client.capture.node_hints import hints_of
from kernelfarm.client.capture.operator_names import (
    is_tile_program,
    is_user_kernel,
    wire_name,
)
from kernelfarm.client.capture.saved_random_state import (
    flat_item,
    flat_results,
    is_with_random_state,
    note_random_results,
)
from kernelfarm.client.capture.source_locations import LocationTable
from kernelfarm.client.capture.storages import StorageMakers, read_from_makers
from kernelfarm.client.pytorch.private import (
    OpOverload,
    new_token_tensor,
    unset_fake_temporarily,
    with_effects,
)
from kernelfarm.client.pytorch.private.operators import schema_of
from kernelfarm.dtypes import DType
from kernelfarm.errors import KernelfarmError
from kernelfarm.ir.graph_ir import Graph, Input, Node, TensorType
from kernelfarm.ir.hints import NodeHint
from kernelfarm.ir.triton.user_kernel import USER_KERNEL_OP

if TYPE_CHECKING:
    from kernelfarm.client.capture.user_kernels import UserKernelCall

DROPPED_KWARGS = frozenset({"device", "layout", "pin_memory", "non_blocking"})
"""Keyword arguments that state where a tensor is, not its content."""

IGNORED_OPS = frozenset({"aten._assert_tensor_metadata.default"})
"""Checks of facts that the graph's types state."""

KNOWN_EFFECTS = frozenset({"aten._linalg_check_errors.default"})
"""Operators without results that must run: extern steps, ordered by a token."""

FOLDED = "kernelfarm_folded"
"""Marks an argument that a frozen graph does not read: what it needs of it is another argument."""

PACKED = "kernelfarm_packed"
"""Marks an argument in a layout of the framework's library, which its operators alone read."""

_BAGS = torch.ops.aten._embedding_bag.default
_UNUSED = TensorType(DType.F32, (), ())
"""The type of a result that is not a tensor, or that no node uses."""


def capture(
    module: TracedModule,
    *,
    names: Sequence[str] = (),
    written: Mapping[int, int] | None = None,
    copies_arguments: bool = False,
) -> CapturedGraph:
    """The graph of a traced module; `names` are readable names for its inputs.

    `written` maps positions of the module's outputs to the positions of the arguments in which they
    must be stored, in addition to the copies that the module itself makes into its arguments. With
    `copies_arguments`, the graph has every output; otherwise the client returns arguments, and
    views of them, without the graph.

    Raises:
        UnsupportedGraphError: an operator, argument or layout cannot be encoded.
        UnsupportedDTypeError: a tensor has a quantized or another unknown element type.
        InvalidGraphError: a size depends on data.
    """
    return _Capture(module, names, written or {}, copies_arguments=copies_arguments).run()


class _Capture:
    """Visits the nodes of one traced module in order."""

    def __init__(
        self,
        module: TracedModule,
        names: Sequence[str],
        written: Mapping[int, int],
        *,
        copies_arguments: bool,
    ) -> None:
        note_random_results(module.graph)
        self._module = module
        self._names = names
        self._makers = StorageMakers(module.graph)
        self._values = GraphValues()
        self._outputs = OutputCollector(
            module.graph, self._values, self._makers, written, copies_arguments=copies_arguments
        )
        self._locations = LocationTable()
        self._inputs: list[Input] = []
        self._sources: list[int | torch.Tensor] = []
        self._constants: list[tuple[Input, torch.Tensor]] = []
        self._nodes: list[Node] = []
        self._traced: list[fx.Node] = []
        self._user_results: dict[fx.Node, tuple[str, ...]] = {}
        self._hints: list[NodeHint] = []
        self._position = 0
        self._negated: set[int] = set()
        self._packed: set[int] = set()

    def run(self) -> CapturedGraph:
        read_from_makers(self._module.graph, self._makers)
        outputs = GraphOutputs((), (), (), ())
        visit: dict[str, Callable[[fx.Node], None]] = {
            "placeholder": self._placeholder,
            "get_attr": self._get_attr,
            "call_function": self._call,
        }
        position = 0
        for node in self._module.graph.nodes:
            if node.op == "output":
                outputs = self._outputs.collect(node, self._inputs)
                continue
            if node.op not in visit:
                raise UnsupportedGraphError(f"node {node.name} is a {node.op}; expected functions")
            if node.op == "placeholder":
                self._position = position
                position += 1
            try:
                visit[node.op](node)
            except KernelfarmError as error:
                raise type(error)(f"node {node.name} ({node.target}): {error}") from error
        return self._finish(outputs)

    def _finish(self, outputs: GraphOutputs) -> CapturedGraph:
        # Constants come last, so that the other inputs have the positions of their arguments.
        for source, tensor in self._constants:
            self._inputs.append(source)
            self._sources.append(tensor)
        symbols = self._values.sizes.symbols()
        self._check_symbols_have_sources({s.name for s in symbols})
        graph = Graph(
            "aten",
            symbols,
            tuple(self._inputs),
            tuple(self._nodes),
            outputs.args,
            outputs.types,
            self._locations.texts(),
            updates=outputs.updates,
            kernel_hints=tuple(self._hints),
        )
        return CapturedGraph(
            graph,
            tuple(self._sources),
            tuple(self._traced),
            self._values.device(),
            outputs.module_outputs,
            frozenset(self._negated),
            frozenset(self._packed),
        )

    def _check_symbols_have_sources(self, needed: set[str]) -> None:
        for source in self._inputs:
            if isinstance(source.kind, str):
                needed.discard(source.kind)
            elif isinstance(source.kind, TensorType):
                needed -= {str(extent) for extent in source.kind.shape}
        if needed:
            raise UnsupportedGraphError(
                f"no input has the sizes {sorted(needed)}; expected each to be an input's extent"
            )

    def _placeholder(self, node: fx.Node) -> None:
        if any(user.target is with_effects and user.args[0] is node for user in node.users):
            self._token(node)
            return
        if node.meta.get(FOLDED):
            return
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            if value.is_neg():
                self._negated.add(self._position)
            if node.meta.get(PACKED):
                self._packed.add(self._position)
            kind = self._values.tensor_type(value)
            self._add_input(Input(self._values.number(node), kind, self._name_of(node)))
        elif isinstance(value, torch.SymInt):
            size = self._values.sizes.read(value)
            # A constant or computed size is no input: its uses have the expression. A symbol is an
            # input without a reference: its uses have the symbol.
            if len(size.symbols) == 1 and str(size) in size.symbols:
                self._add_input(Input(self._values.new_number(), str(size), self._name_of(node)))
        elif value is not None and not isinstance(value, int | float | bool | str):
            raise UnsupportedGraphError(f"input of type {type(value).__name__}; expected a tensor")
        # Any other value is a constant of the trace, and a guard checks it.

    def _add_input(self, source: Input) -> None:
        self._inputs.append(source)
        self._sources.append(self._position)

    def _token(self, node: fx.Node) -> None:
        # AOT Autograd passes None for a token, so the graph has a constant in its place.
        with unset_fake_temporarily():
            token = new_token_tensor()
            source = Input(self._values.number(node), constant_of(token), node.name)
        self._constants.append((source, token))

    def _name_of(self, node: fx.Node) -> str:
        return self._names[self._position] if self._position < len(self._names) else node.name

    def _get_attr(self, node: fx.Node) -> None:
        tensor = operator.attrgetter(str(node.target))(self._module)
        if not isinstance(tensor, torch.Tensor):
            if not any(isinstance(user.target, OpOverload) for user in node.users):
                return  # the graph of a branch: its user is refused
            raise UnsupportedGraphError(f"holds a {type(tensor).__name__}; expected a tensor")
        number = self._values.number(node)
        with unset_fake_temporarily():  # AOT Autograd's fake mode is on, but the tensor is real
            tensor = tensor.detach().resolve_neg()
            if is_sent_as_constant(tensor):
                source = Input(number, constant_of(tensor), str(node.target))
                self._constants.append((source, tensor))
                return
        self._inputs.append(Input(number, self._values.tensor_type(tensor), str(node.target)))
        self._sources.append(tensor)

    def _call(self, node: fx.Node) -> None:
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool | int | float):
            return  # uses have the expression or the number
        if node.target is operator.getitem:
            self._getitem(node)
            return
        if self._call_wrapper(node, value):
            return
        if not isinstance(node.target, OpOverload):
            raise UnsupportedGraphError("calls a function; expected an operator's overload")
        if str(node.target) in IGNORED_OPS:
            return
        if node.target is COPY:
            self._outputs.add_copy(node)
            return
        if schema_of(node.target).is_mutable:
            raise UnsupportedGraphError("writes to an argument; expected a functional operator")
        if node.target is _BAGS and _is_mistraced(node):
            raise UnsupportedGraphError("sums of bags of bfloat16; expected another type")
        self._append(node, value)

    def _call_wrapper(self, node: fx.Node, value: Any) -> bool:
        """Adds a node for an operator that wraps another one or a kernel; false for others."""
        if node.target is with_effects and str(node.args[1]) in KNOWN_EFFECTS:
            self._append(node, value)
        elif is_with_random_state(node.target):
            self._append(node, flat_results(value))
        elif is_user_kernel(node.target):
            self._append_user_kernel(node, value)
        elif is_tile_program(node.target):
            self._append_tile_program(node, value)
        else:
            return False
        return True

    def _append(self, node: fx.Node, value: Any) -> None:
        types = self._types_of(node, value)
        args = self._values.args(node.args)
        attrs = tuple(
            (key, self._values.arg(node.kwargs[key]))
            for key in sorted(node.kwargs)
            if key not in DROPPED_KWARGS
        )
        results = self._values.number_results(node, len(types))
        location = self._locations.number_of(node)
        origin = (len(self._nodes),)
        name = wire_name(node.target)
        self._add_node(Node(name, args, attrs, results, types, origin, location), node)

    def _append_user_kernel(self, node: fx.Node, value: Mapping[str, torch.Tensor]) -> None:
        # Few models have kernels of their own, and capture should start quickly.
        from kernelfarm.client.capture.user_kernels import user_kernel_call  # noqa: PLC0415

        self._add_user_kernel(node, user_kernel_call(node, self._values), value)

    def _append_tile_program(self, node: fx.Node, value: Sequence[torch.Tensor]) -> None:
        from kernelfarm.client.capture.tile_programs import (  # noqa: PLC0415 -- as above
            tile_program_call,
        )

        named = {str(number): result for number, result in enumerate(value)}
        self._add_user_kernel(node, tile_program_call(node, self._values), named)

    def _add_user_kernel(
        self, node: fx.Node, call: UserKernelCall, value: Mapping[str, torch.Tensor]
    ) -> None:
        types = tuple(self._values.tensor_type(value[name]) for name in call.changed)
        self._user_results[node] = call.changed
        results = self._values.number_results(node, len(types))
        location = self._locations.number_of(node)
        origin = (len(self._nodes),)
        made = Node(USER_KERNEL_OP, call.args, call.attrs, results, types, origin, location)
        self._add_node(made, node)

    def _add_node(self, made: Node, node: fx.Node) -> None:
        number = len(self._nodes)
        self._hints += (NodeHint(number, hint) for hint in hints_of(node))
        self._nodes.append(made)
        self._traced.append(node)

    def _types_of(self, node: fx.Node, value: Any) -> tuple[TensorType, ...]:
        if _has_no_results(node):
            return ()
        if isinstance(value, torch.Tensor):
            return (self._values.tensor_type(value),)
        if not isinstance(value, list | tuple):
            raise UnsupportedGraphError(f"returns {type(value).__name__}; expected tensors")
        if is_with_random_state(node.target):
            return tuple(self._values.tensor_type(result) for result in value)
        # Unused results (such as a norm's statistics) differ between devices and versions.
        used = {user.args[1] for user in node.users if user.target is operator.getitem}
        return tuple(
            self._values.tensor_type(result)
            if number in used and isinstance(result, torch.Tensor)
            else _UNUSED
            for number, result in enumerate(value)
        )

    def _getitem(self, node: fx.Node) -> None:
        source, index = node.args
        if isinstance(source, fx.Node) and source in self._user_results:
            position = self._user_results[source].index(str(index))
            self._values.bind(node, (self._values.numbers_of(source)[position],))
            return
        if not isinstance(source, fx.Node) or not isinstance(index, int):
            raise UnsupportedGraphError(f"item {index} of {source}; expected a result's number")
        value = node.meta.get("val")
        if isinstance(value, list | tuple) or is_with_random_state(source.target):
            # The results of a wrapped operator are numbered as a flat list.
            numbers = flat_item(source, self._values.numbers_of(source), index)
            self._values.bind(node, numbers)
        elif isinstance(value, torch.Tensor):
            self._values.bind(node, (self._values.numbers_of(source)[index],))


def _has_no_results(node: fx.Node) -> bool:
    """True for an operator without results by its schema: it runs for its effect."""
    return isinstance(node.target, OpOverload) and not schema_of(node.target).returns


def _is_mistraced(bags: fx.Node) -> bool:
    """True for sums of bfloat16: tracing states other shapes than the kernel returns."""
    mode: Any = bags.args[4] if len(bags.args) > 4 else bags.kwargs.get("mode", 0)
    return bool(mode == 0) and bags.meta["val"][0].dtype is torch.bfloat16
