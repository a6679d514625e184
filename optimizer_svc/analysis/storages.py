"""Values that are always in memory: inputs, constants, and results of the framework."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr
from kernelfarm.ir.graph_ir import Constant, Ref, TensorType, contiguous_strides
from kernelfarm.ir.prims import CLIENT_OPS
from kernelfarm.ir.program_ir import BufferKind
from optimizer_svc.analysis.extents import is_empty
from optimizer_svc.analysis.graph_facts import GraphFacts
from optimizer_svc.analysis.index_maps import Index
from optimizer_svc.analysis.strided_views import (
    StridedView,
    is_same_layout,
    view_between,
)
from optimizer_svc.analysis.templates import is_template
from optimizer_svc.analysis.verdicts import Refused

StorageId = tuple[BufferKind, int]
"""The kind of a storage, and the position of its input or the value that it is for."""


@dataclass(frozen=True, slots=True)
class Storage:
    """Memory that holds a value.

    `position` is that of `Buffer`. Units: `strides` in elements.
    """

    value: int
    kind: BufferKind
    dtype: DType
    shape: Index
    strides: Index
    position: int = 0

    @property
    def storage_id(self) -> StorageId:
        """Equal for two values in the same memory."""
        is_input = self.kind is BufferKind.INPUT
        return self.kind, self.position if is_input else self.value

    def whole(self) -> StridedView:
        """The view of the whole storage."""
        return StridedView(self.value, self.shape, self.strides)


def storage_of(value: int, kind: BufferKind, tensor: TensorType, position: int = 0) -> Storage:
    """Storage with the type's strides; row-major if it states none."""
    strides = contiguous_strides(tensor.shape) if tensor.strides is None else tensor.strides
    return Storage(value, kind, tensor.dtype, tensor.shape, strides, position)


def span_elems(storage: Storage) -> Expr:
    """The number of elements from the first to the last that a storage addresses."""
    if is_empty(storage.shape):
        return ZERO
    last = ZERO
    for extent, stride in zip(storage.shape, storage.strides, strict=True):
        last = last + (extent - ONE) * stride
    return last + ONE


def temporary_storage(facts: GraphFacts, value: int) -> Storage:
    """Memory for a value of a kernel, in the layout of its type."""
    return storage_of(value, BufferKind.TEMPORARY, facts.types[value])


def with_adjacent(storage: Storage, axis: int) -> Storage:
    """The storage with the elements of an axis adjacent, and the other axes in order."""
    shape = list(storage.shape)
    inner = shape.pop(axis)
    *strides, _ = contiguous_strides((*shape, inner))
    strides.insert(axis, ONE)
    return replace(storage, strides=tuple(strides))


def existing_storages(facts: GraphFacts) -> dict[int, Storage]:
    """Storages that exist without a kernel, by value."""
    found: dict[int, Storage] = {}
    constants = 0
    for number, source in enumerate(facts.graph.inputs):
        if isinstance(source.kind, TensorType):
            position = number - constants
            found[source.value] = storage_of(source.value, BufferKind.INPUT, source.kind, position)
        elif isinstance(source.kind, Constant):
            kind = BufferKind.CONSTANT
            found[source.value] = storage_of(source.value, kind, source.kind.type, constants)
            constants += 1
    for node in facts.graph.nodes:
        if node.op in CLIENT_OPS:
            kind = BufferKind.TEMPORARY if is_template(node) else BufferKind.EXTERN
            for value, tensor in zip(node.results, node.types, strict=True):
                found[value] = storage_of(value, kind, tensor)
    return found


def output_aliases(facts: GraphFacts, storages: Mapping[int, Storage]) -> dict[int, StridedView]:
    """Outputs, by position, that can be views of an extern result, because no other output is.

    Results of template kernels are made in the output's memory, so the view is of all of it.

    No kernel can copy opaque values, so they are always returned as the framework gave them. Views
    of inputs are no aliases: an output may be meant as a copy (`clone`), which Prims do not show,
    and the framework makes aliases of inputs itself.
    """
    found: dict[int, StridedView] = {}
    taken: set[int] = set()
    outputs = zip(facts.graph.outputs, facts.graph.output_types, strict=True)
    updated = {update.output for update in facts.graph.updates}
    for position, (arg, tensor) in enumerate(outputs):
        if not isinstance(arg, Ref) or tensor is None:
            continue
        if tensor.dtype.is_opaque:
            found[position] = storages[arg.value].whole()
            continue
        if position in updated:
            continue
        base = facts.base_of(arg.value)
        node = facts.producers.get(base)
        if node is None or node.op != "extern" or base in taken:
            continue
        whole = storages[base].whole()
        view = view_between(facts, arg.value, whole)
        expected = storage_of(arg.value, BufferKind.OUTPUT, tensor)
        if isinstance(view, Refused) or not is_same_layout(
            expected.shape, view.strides, expected.strides
        ):
            continue
        has_all = view.offset is ZERO and facts.numel(arg.value) is facts.numel(base)
        if is_template(node) and not has_all:  # its buffer is that of the output
            continue
        found[position] = view
        taken.add(base)
    return found
