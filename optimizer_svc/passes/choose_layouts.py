"""Chooses for each image of a convolution whether its channels are first or last in memory.

The choice moves the fewest bytes. The framework's library transposes images whose layout it does
not take; a copy between two layouts reads and writes every byte; a kernel that reads one layout and
stores the other costs a part of that. Each of these costs concerns one value or two, so the
cheapest layouts of a whole program are a minimum cut. Inputs keep their layout, and outputs have
eager's.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from kernelfarm.ir.graph_ir import Graph, Node, contiguous_strides
from kernelfarm.ir.work_budget import spend
from kernelfarm.targets import ChannelsLastFacts, TargetFacts
from optimizer_svc.analysis.extents import likely_elems, likely_sizes
from optimizer_svc.analysis.extern_layouts import (
    ImageOperator,
    convolution_kind,
    image_operator,
)
from optimizer_svc.analysis.graph_facts import GraphFacts, graph_facts, operands
from optimizer_svc.analysis.image_memory import WEIGHT_FRAME, Images, images_of, stored_outputs
from optimizer_svc.analysis.index_maps import Index
from optimizer_svc.analysis.memory_orders import framed_operands, frames_of, is_ambiguous
from optimizer_svc.analysis.minimum_cut import FOREVER, LabelCosts
from optimizer_svc.analysis.strided_views import StridedView, is_same_layout
from optimizer_svc.analysis.verdicts import Refused
from optimizer_svc.ir.contraction_choice import ContractionChoice
from optimizer_svc.ir.layouts import Layouts

_COPY = 2
"""Bytes that a copy moves for each byte: a read and a write."""
_ONE_GROUP = ("dense", "strided", "few_channels")


def choose_layouts(graph: Graph, convolutions: ContractionChoice, target: TargetFacts) -> Layouts:
    """The layouts of a graph's images; prims compute some of its `convolutions`."""
    facts = graph_facts(graph)
    computed = {
        result: image
        for result, image in convolutions.images.items()
        if result in facts.types and image in facts.types
    }
    operators = {
        position: operator
        for position, node in enumerate(graph.nodes)
        if (operator := image_operator(node, facts.types)) is not None
    }
    if not operators and not computed:
        return Layouts({}, {})
    frames = frames_of(facts, (*computed, *computed.values()))
    images = images_of(facts, frames, operators)
    chooser = _Chooser(facts, images, operators, target.channels_last)
    for result in convolutions.rows.keys() & computed.keys():
        chooser.add_rows(result, computed[result], convolutions.rows[result])
    return chooser.chosen(computed)


@dataclass(frozen=True, slots=True)
class _Step:
    """The node of the network for an operator with free images, by its position in the graph."""

    position: int


class _Chooser:
    """The costs of one graph's layouts; labels are True for channels last."""

    def __init__(
        self,
        facts: GraphFacts,
        images: Images,
        operators: Mapping[int, ImageOperator],
        gains: ChannelsLastFacts | None,
    ) -> None:
        self._facts = facts
        self._images = images
        self._operators = operators
        self._gains = gains
        self._turn = (gains or ChannelsLastFacts()).turn_costs
        self._sizes = likely_sizes(facts.graph.symbols)
        self._costs = LabelCosts()

    def chosen(self, computed: Mapping[int, int]) -> Layouts:
        """The cheapest layouts; `computed` has images of convolutions by results of prims."""
        for value in sorted(self._images.free):
            self._add_value(value)
        for position, node in enumerate(self._facts.graph.nodes):
            spend(4 + len(node.args))
            if position in self._operators:
                self._add_step(_Step(position), node, self._operators[position])
            elif node.op == "extern":
                self._add_reader(node)
            elif node.results and not self._facts.is_view(node.results[0]):
                self._add_kernel(node.results[0], framed_operands(node))
        for value, image in computed.items():
            self._add_kernel(value, (image,))
        for _, value, tensor in stored_outputs(self._facts.graph):
            strides = tensor.strides or contiguous_strides(tensor.shape)
            self._add_output(value, strides)
        return self._layouts(self._costs.cheapest())

    def add_rows(self, result: int, image: int, rows: int) -> None:
        """Adds what channels first cost a kernel that multiplies pixels: copies of both images.

        If `rows` is no view of the image, but made for the kernel, its channels are last.
        """
        if rows in self._images.free:
            self._costs.add_node(rows)
            self._costs.add(rows, label=False, cost=FOREVER)
        for value in (image, result):
            found = self._images.memory(value)
            if found.free is not None:
                self._costs.add_node(found.free)
                self._costs.add(found.free, label=False, cost=self._copy(value))

    def _add_value(self, value: int) -> None:
        images = self._images
        self._costs.add_node(value)
        strides = images.fixed.get(value)
        if strides is not None:
            self._costs.add(value, label=not images.label(value, strides), cost=FOREVER)
        elif not self._facts.is_storage(value):  # row-major, if both layouts cost the same
            row_major = contiguous_strides(self._facts.types[value].shape)
            self._costs.add(value, label=not images.label(value, row_major), cost=1)

    def _add_step(self, step: _Step, node: Node, operator: ImageOperator) -> None:
        """Adds the costs of an operator: its own, and those of copies of its operands."""
        values = operands(node)
        self._costs.add_node(step)
        for number in operator.laid_out:
            found = self._images.memory(values[number])
            if found.free is not None:
                self._costs.add_if_different(step, found.free, self._copy(values[number]))
            elif found.is_last is not None:
                self._costs.add(step, label=not found.is_last, cost=self._copy(values[number]))
            elif found.looks_last:
                self._costs.add(step, label=False, cost=FOREVER)
        for value in node.results:
            if value in self._images.free:
                self._costs.add_if_different(step, value, FOREVER)
        captured = _captured(self._images, node, operator)
        if operator.weight is None:
            self._costs.add(step, label=False, cost=FOREVER)
        elif self._is_fixed(values, operator):
            self._costs.add(step, label=not captured, cost=FOREVER)
        saves, costs = self._own_costs(node, operator)
        self._costs.add(step, label=False, cost=saves + int(captured))
        self._costs.add(step, label=True, cost=costs + int(not captured))

    def _is_fixed(self, values: tuple[int, ...], operator: ImageOperator) -> bool:
        """True if the target, or images whose strides would not state it, rule out a choice."""
        if self._gains is None or (operator.weight_results and not self._gains.has_gradients):
            return True
        found = [self._images.memory(values[number]) for number in operator.images]
        is_clear = any(image.free is not None or image.is_last is not None for image in found)
        return not is_clear

    def _own_costs(self, node: Node, operator: ImageOperator) -> tuple[int, int]:
        """What channels last saves within the framework's operator, and what it costs there."""
        gains, types, values = self._gains, self._facts.types, operands(node)
        if operator.weight is None:
            return 0, 0
        image, weight = types[values[operator.images[-1]]], types[values[operator.weight]]
        given = types[values[0]] if operator.weight_results else node.types[0]
        if gains is None or not image.dtype.is_float or image.dtype.itemsize_bytes > 4:
            return 0, 0
        kind = convolution_kind(image, weight, given)
        elems = likely_elems(image.shape, self._sizes)
        if gains.small_elems and elems <= gains.small_elems and kind in _ONE_GROUP:
            return 0, 0
        moved = sum(self._bytes(values[number]) for number in operator.images)
        moved += sum(self._bytes(node.results[n]) for n in operator.image_results)
        rates = gains.narrow_saves if image.dtype.itemsize_bytes == 2 else gains.wide_saves
        saved = dict(rates).get(kind, 0) * moved
        lost = dict(gains.costs).get(kind, 0) * moved
        if not is_ambiguous(weight.shape, WEIGHT_FRAME):
            weight_bytes = self._bytes(values[operator.weight])
            saved += (gains.weight_saves or 0) * weight_bytes if saved else 0
            lost += (gains.weight_costs or 0) * weight_bytes
        return round(saved), round(lost)

    def _add_kernel(self, value: int, read: Iterable[int]) -> None:
        """Adds the costs of a kernel that reads one layout and stores the other."""
        if value not in self._images.free:
            return
        for operand in read:
            if operand not in self._images.frames:
                continue
            found = self._images.memory(operand)
            cost = round(self._turn * min(self._bytes(operand), self._bytes(value)))
            if found.free is not None:
                self._costs.add_if_different(found.free, value, cost)
            elif found.is_last is not None:
                self._costs.add(value, label=not found.is_last, cost=cost)

    def _add_reader(self, node: Node) -> None:
        """Adds the copies for other extern nodes, which take rows."""
        for value in operands(node):
            base = self._images.base(value)
            if base in self._images.free:
                for is_last in (False, True):
                    view = self._images.fits(value, base, is_last=is_last)
                    cost = 0 if _has_rows(view) else self._copy(value)
                    self._costs.add(base, label=is_last, cost=cost)

    def _add_output(self, value: int, strides: Index) -> None:
        """Adds the copy of an extern result that is returned in other strides."""
        base = self._facts.base_of(value)
        if base not in self._images.free or not self._facts.is_storage(base):
            return
        for is_last in (False, True):
            view = self._images.fits(value, base, is_last=is_last)
            is_alias = not isinstance(view, Refused) and is_same_layout(
                view.shape, view.strides, strides
            )
            self._costs.add(base, label=is_last, cost=0 if is_alias else self._copy(value))

    def _layouts(self, labels: Mapping[Hashable, bool]) -> Layouts:
        strides: dict[int, Index] = {}
        for value in self._images.free:
            if value not in self._images.fixed:
                strides[value] = self._images.strides(value, is_last=labels[value])
        copies: dict[tuple[int, int], Index] = {}
        notes: list[str] = []
        for position, node in enumerate(self._facts.graph.nodes):
            operator = self._operators.get(position)
            if operator is not None:
                is_last = labels[_Step(position)]
                found = dict(self._step_copies(position, node, operator, labels))
                strides |= dict(self._weight_results(node, operator, is_last=is_last))
                notes.append(self._note(node, operator, found, is_last=is_last))
                copies |= found
            elif node.op == "extern":
                copies |= dict(self._row_copies(position, node, strides))
        return Layouts(strides, copies, tuple(notes))

    def _step_copies(
        self,
        position: int,
        node: Node,
        operator: ImageOperator,
        labels: Mapping[Hashable, bool],
    ) -> Iterator[tuple[tuple[int, int], Index]]:
        is_last = labels[_Step(position)]
        for number in operator.laid_out:
            value = operands(node)[number]
            found = self._images.memory(value)
            here = found.is_last if found.free is None else labels[found.free]
            if here is not None and here is not is_last:
                yield (position, number), self._images.strides(value, is_last=is_last)

    def _weight_results(
        self, node: Node, operator: ImageOperator, *, is_last: bool
    ) -> Iterator[tuple[int, Index]]:
        """The gradients of weights, which have the layout of the images."""
        if operator.weight is None:
            return
        weight = operands(node)[operator.weight]
        for number in operator.weight_results:
            if number < len(node.results) and node.types[number].rank == len(
                self._images.frames[weight]
            ):
                yield node.results[number], self._images.strides(weight, is_last=is_last)

    def _row_copies(
        self, position: int, node: Node, strides: Mapping[int, Index]
    ) -> Iterator[tuple[tuple[int, int], Index]]:
        """Row-major copies of images that an operator would not take."""
        for number, value in enumerate(operands(node)):
            known = strides.get(value)
            shape = self._facts.types[value].shape
            if known is not None and not _has_rows(StridedView(value, shape, known)):
                yield (position, number), contiguous_strides(shape)

    def _note(
        self,
        node: Node,
        operator: ImageOperator,
        copies: Mapping[tuple[int, int], Index],
        *,
        is_last: bool,
    ) -> str:
        saves, costs = self._own_costs(node, operator)
        copied = sum(_COPY * self._bytes(operands(node)[number]) for _, number in copies)
        word = "last" if is_last else "first"
        return (
            f"layout of {node.attr('op')} (node {node.attr('node')}): channels {word}; channels"
            f" last saves as much as {saves} bytes from memory in the framework, and costs {costs};"
            f" copies of operands move {copied}"
        )

    def _copy(self, value: int) -> int:
        """What a copy of a value costs."""
        launch = (self._gains or ChannelsLastFacts()).launch_bytes or 0
        return launch + _COPY * self._bytes(value)

    def _bytes(self, value: int) -> int:
        tensor = self._facts.types[value]
        return likely_elems(tensor.shape, self._sizes) * tensor.dtype.itemsize_bytes


def _captured(images: Images, node: Node, operator: ImageOperator) -> bool:
    """Whether the framework stated channels last."""
    for number in operator.image_results:
        value, tensor = node.results[number], node.types[number]
        if value in images.free and tensor.strides is not None:
            return images.label(value, tensor.strides) is True
    return False


def _has_rows(view: StridedView | Refused) -> bool:
    """True if the elements of the last axis lie side by side, as operators expect."""
    if isinstance(view, Refused):
        return False
    return not view.shape or view.shape[-1] == 1 or view.strides[-1] == 1
