"""Imports a captured ATen graph: each node is decomposed to Prims by its operator.

Every inferred result type is compared with the type that the client stated. A graph whose shapes or
element types contradict its operators is refused here, with the node. Nothing that a client sends
is executed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from frontend_svc.decompose.opaque_types import opaque_reason
from frontend_svc.decompose.user_kernels import check_user_kernel_node, user_kernel_reason
from frontend_svc.operators import (
    DECOMPOSED,
    EXTERN_CHECKS,
    EXTERN_OPERANDS,
    Extents,
    ExternGroup,
    NotDecomposedError,
    Operator,
    PrimsBuilder,
    Tensor,
    extern_group_of,
    text_of,
)
from frontend_svc.operators.core.memory import is_relative, read_memory
from frontend_svc.operators.extern.attention import (
    ATTENTION_BACKWARD,
    attention_scale,
    is_causal,
)
from frontend_svc.operators.extern.contractions import (
    adjacent_axes,
    convolution_window,
    is_unscaled_sum,
)
from kernelfarm.errors import InvalidGraphError, UserKernelError, VerificationError
from kernelfarm.ir.builder import GraphBuilder
from kernelfarm.ir.graph_ir import (
    Arg,
    Graph,
    Node,
    Ref,
    TensorType,
    contiguous_strides,
    tensor_type_of,
    uses_of,
)
from kernelfarm.ir.triton.user_kernel import USER_KERNEL_OP
from kernelfarm.ir.work_budget import spend

_UNKNOWN = "not in the table: a custom operator"
_EFFECT = "effect: it returns no tensor, and the framework runs it in order"


@dataclass(frozen=True, slots=True)
class ImportResult:
    """The decomposed graph; `externs` has the reasons why the framework runs captured nodes."""

    graph: Graph
    externs: dict[int, str]


def import_aten(
    graph: Graph,
    *,
    fallback_random: bool = False,
    max_sorted_elems: int | None = None,
    needs_fixed_order: bool = False,
) -> ImportResult:
    """Decomposes every node of a captured graph.

    With `fallback_random`, the framework runs every operator that draws random numbers. It also
    runs sorts of rows that may have more than `max_sorted_elems` elements, unless that is None.
    With `needs_fixed_order`, it runs operators whose kernels would update elements in an order on
    which the result depends.

    Raises:
        InvalidGraphError: an argument is malformed, or a stated type contradicts its operator;
            names the node by index and operator, what was seen and what was expected.
    """
    builder_for = partial(
        PrimsBuilder,
        is_random_native=not fallback_random,
        max_sorted_elems=max_sorted_elems,
        needs_fixed_order=needs_fixed_order,
    )
    importer = _Importer(graph, builder_for)
    for index, node in enumerate(graph.nodes):
        try:
            importer.add(index, node)
        except (InvalidGraphError, UserKernelError) as error:
            raise type(error)(f"node {index} ({node.op}): {error}") from None
        except VerificationError as error:
            # A prim refuses the types that the client stated (say, an activation of integers).
            raise InvalidGraphError(f"node {index} ({node.op}): its operands: {error}") from error
        except (ArithmeticError, IndexError) as error:
            # Decompositions compute with numbers of the client: 1e308 squared, or the second axis
            # of a vector. Checks of arguments give clearer messages, but not every case has one.
            raise InvalidGraphError(
                f"node {index} ({node.op}): its numbers or ranks do not fit the operator: {error}"
            ) from error
    return importer.finish()


class _Importer:
    def __init__(
        self, graph: Graph, builder_for: Callable[[GraphBuilder, Extents], PrimsBuilder]
    ) -> None:
        self._graph = graph
        self._graph_builder = GraphBuilder(graph.symbols, graph.locations)
        self._extents = Extents(graph.symbols)
        self._builder = builder_for(self._graph_builder, self._extents)
        self._values: dict[int, Tensor] = {}
        self._used = _used_values(graph)
        self._externs: dict[int, str] = {}
        self._inputs = frozenset(source.value for source in graph.inputs)
        self._layouts = {
            value: tensor
            for node in graph.nodes
            for value, tensor in zip(node.results, node.types, strict=True)
        }
        for source in graph.inputs:
            value = self._graph_builder.add_input(source.kind, source.name)
            tensor = tensor_type_of(source)
            if tensor is not None:
                self._values[source.value] = Tensor(value, tensor)
                self._layouts[source.value] = tensor

    def add(self, index: int, node: Node) -> None:
        """Adds the prims of one captured node."""
        spend(12 + len(node.args) + len(node.attrs) + len(node.results))
        _refuse_mutation(node)
        with self._graph_builder.origin(index, location=node.location):
            if node.op == USER_KERNEL_OP:
                self._send_user_kernel(index, node)
                return
            operator = DECOMPOSED.get(node.op)
            opaque = opaque_reason(node, [self._operand(v).type for v in uses_of(node)])
            if opaque is not None:
                self._send_whole(index, node, extern_group_of(node.op), opaque)
                return
            if operator is None:
                group = extern_group_of(node.op)
                self._send(index, node, group, _reason_of(node, group))
                return
            try:
                self._decompose(node, operator)
            except NotDecomposedError as reason:
                self._send(index, node, None, str(reason))

    def finish(self) -> ImportResult:
        """The graph with its outputs."""
        outputs = [self._output(output) for output in self._graph.outputs]
        graph = self._graph_builder.build(outputs, self._graph.output_types)
        return ImportResult(graph, self._externs)

    def _decompose(self, node: Node, operator: Operator) -> None:
        builder = self._builder
        builder.stated = node.types
        arguments, keywords = operator.signature.bind(node, self._values)
        made = operator.decompose(builder, *arguments, **keywords)
        results = made if isinstance(made, tuple) else (made,)
        if len(results) != len(node.results):
            raise InvalidGraphError(f"{len(node.results)} results; expected {len(results)}")
        for position, result in enumerate(results):
            self._define(node, position, result)

    def _define(self, node: Node, position: int, result: Tensor | None) -> None:
        value, stated = node.results[position], node.types[position]
        if result is None:
            return
        if value not in self._used and len(node.results) > 1:
            # An optional result that the framework omitted has no type.
            return
        self._values[value] = self._as_stated(result, stated, position)

    def _as_stated(self, result: Tensor, stated: TensorType, position: int) -> Tensor:
        if result.dtype is stated.dtype and result.shape == stated.shape:
            return result
        is_same = result.dtype is stated.dtype and self._extents.is_same_shape(
            result.shape, stated.shape
        )
        if not is_same:
            raise _contradiction(position, stated, result.type)
        # The framework knows that the extents are equal: use its expressions from here on.
        return self._builder.reshape(result, stated.shape)

    def _send(self, index: int, node: Node, group: ExternGroup | None, reason: str) -> None:
        if group is not None and group.reads_memory and self._is_view(node):
            return
        self._send_whole(index, node, group, reason)

    def _send_whole(self, index: int, node: Node, group: ExternGroup | None, reason: str) -> None:
        """Emits an extern node, so that the framework runs the captured node."""
        read = [self._operand(value) for value in uses_of(node)]
        if node.op in EXTERN_CHECKS:
            self._check_extern(node, [operand.type for operand in read])
        operands = read
        if node.op in EXTERN_OPERANDS:
            operands = list(EXTERN_OPERANDS[node.op](self._builder, read))
        values = self._graph_builder.add_extern(
            node.op,
            index,
            [operand.id for operand in operands],
            [_with_strides(tensor) for tensor in node.types],
            is_contraction=group is not None and group.is_contraction,
            is_unscaled=is_unscaled_sum(node) or None,
            scale=None if self._adds_in_no_order(node) else attention_scale(node, read),
            is_causal=is_causal(node) or None,
            window=convolution_window(node),
            adjacent=adjacent_axes(node, [self._layouts[value] for value in uses_of(node)]),
        )
        self._externs[index] = reason
        for value, made in zip(node.results, values, strict=True):
            self._values[value] = Tensor(made, self._graph_builder.type_of(made))

    def _adds_in_no_order(self, node: Node) -> bool:
        """True for gradients of attention: templates, which need a scale, add in any order."""
        return self._builder.needs_fixed_order and node.op == ATTENTION_BACKWARD

    def _send_user_kernel(self, index: int, node: Node) -> None:
        """Emits an extern node whose kernel the farm compiles."""
        operands = [self._operand(value) for value in uses_of(node)]
        check_user_kernel_node(node, [operand.type for operand in operands])
        values = self._graph_builder.add_extern(
            node.op,
            index,
            [operand.id for operand in operands],
            [_with_strides(tensor) for tensor in node.types],
            is_contraction=False,
            kernel=node.attr("kernel"),
        )
        self._externs[index] = user_kernel_reason(node)
        for value, made in zip(node.results, values, strict=True):
            self._values[value] = Tensor(made, self._graph_builder.type_of(made))

    def _check_extern(self, node: Node, types: Sequence[TensorType]) -> None:
        expected = EXTERN_CHECKS[node.op](self._extents, types)
        stated = node.types[0]
        is_same = stated.dtype is expected.dtype and self._extents.is_same_shape(
            stated.shape, expected.shape
        )
        if not is_same or len(node.types) != 1:
            raise _contradiction(0, stated, expected)

    def _is_view(self, node: Node) -> bool:
        """Decomposes a node that addresses memory to views; false if the layout does not allow it.

        The offset of an input within its memory is unknown, so an absolute offset is not allowed.
        """
        source = next(uses_of(node), None)
        if source is None or (source in self._inputs and not is_relative(node)):
            return False
        self._builder.stated = node.types
        found = read_memory(self._builder, node, self._operand(source), self._layouts[source])
        if found is not None:
            self._define(node, 0, found)
        return found is not None

    def _operand(self, value: int) -> Tensor:
        found = self._values.get(value)
        if found is None:
            raise InvalidGraphError(f"value {value} is not a tensor defined before its use")
        return found

    def _output(self, output: Arg) -> Arg:
        if isinstance(output, Ref):
            return Ref(self._operand(output.value).id)
        return output


def _used_values(graph: Graph) -> frozenset[int]:
    used = {value for node in graph.nodes for value in uses_of(node)}
    used.update(output.value for output in graph.outputs if isinstance(output, Ref))
    return frozenset(used)


def _with_strides(tensor: TensorType) -> TensorType:
    if tensor.strides is not None:
        return tensor
    return TensorType(tensor.dtype, tensor.shape, contiguous_strides(tensor.shape))


def _reason_of(node: Node, group: ExternGroup | None) -> str:
    if group is not None:
        return group.explanation
    return _UNKNOWN if node.results else _EFFECT


def _refuse_mutation(node: Node) -> None:
    name = node.op.split(".")[1] if node.op.count(".") else node.op
    if name.endswith("_") and not name.endswith("__"):
        raise InvalidGraphError("changes its operand in place; expected a functionalized graph")


def _contradiction(position: int, stated: TensorType, inferred: TensorType) -> InvalidGraphError:
    seen = f"{stated.dtype!r}{text_of(stated.shape)}"
    expected = f"{inferred.dtype!r}{text_of(inferred.shape)}"
    return InvalidGraphError(f"result {position} is stated as {seen}; expected {expected}")
