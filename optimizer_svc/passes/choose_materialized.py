"""Decides which values are stored in memory, and how outputs and extern operands view them.

Stored in any case: outputs, reductions, scans, sorts, scatters with their bases, and operands of
extern nodes that are no strided view of a stored value. A value that an operand reads in another
order of axes is stored in that order. Stored by cost: values whose recomputation by several readers
would read or compute too much. A value that is chosen by cost is only a boundary between loops: if
all its readers are fused into the kernel that makes it, it stays in a register.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from kernelfarm.errors import InternalError
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr, as_expr, symbol
from kernelfarm.ir.graph_ir import Arg, Graph, Ref
from kernelfarm.ir.program_ir import BufferKind
from kernelfarm.ir.work_budget import spend
from optimizer_svc.analysis.cat_pieces import is_of_row_sums
from optimizer_svc.analysis.costly_values import WHOLE_ROWS, store_costly
from optimizer_svc.analysis.extents import is_empty
from optimizer_svc.analysis.extern_layouts import LAST_AXIS, adjacent_axes
from optimizer_svc.analysis.graph_facts import (
    GraphFacts,
    graph_facts,
    operands,
)
from optimizer_svc.analysis.storages import (
    Storage,
    existing_storages,
    output_aliases,
    storage_of,
    temporary_storage,
    with_adjacent,
)
from optimizer_svc.analysis.strided_views import StridedView, is_same_layout, view_between
from optimizer_svc.analysis.templates import is_template
from optimizer_svc.analysis.turned_storages import turned_storage
from optimizer_svc.analysis.updates import updated_inputs
from optimizer_svc.analysis.verdicts import Refused
from optimizer_svc.ir.contraction_choice import ContractionChoice
from optimizer_svc.ir.materialization import Materialization
from optimizer_svc.ir.products import NO_PRODUCTS, Products


def choose_materialized(
    graph: Graph,
    products: Products = NO_PRODUCTS,
    *contractions: ContractionChoice,
) -> Materialization:
    """The materialization of a graph whose outputs are distinct values.

    Memory holds what kernels of `contractions` multiply in tiles.
    """
    facts = graph_facts(graph)
    storages = existing_storages(facts)
    aliases = output_aliases(facts, storages)
    _make_in_outputs(facts, storages, aliases)
    _materialize_updates(facts, storages)
    aliases |= _materialize_outputs(facts, storages, aliases)
    _materialize_copied(facts, storages)
    _materialize_scatters(facts, storages)
    for choice in contractions:
        _materialize_spread(facts, storages, choice)
    views = _operand_views(facts, storages)
    for choice in contractions:
        for rows in sorted((*choice.rows.values(), *choice.weights.values())):
            if rows in facts.types:
                _operand_view(facts, storages, rows, LAST_AXIS)
        for value in sorted(choice.stored & facts.types.keys()):
            _operand_view(facts, storages, value, None)
    strided = products.strided.union(*(choice.factors for choice in contractions))
    _materialize_multiplied(facts, storages, products, strided)
    row_cats = _materialize_rows(facts, storages, products)
    computed = _computed_weights(facts, storages, products)
    partial_sums = store_costly(facts, storages, computed)
    members = [v for v, s in storages.items() if not facts.is_storage(v)]
    members.sort(key=lambda v: facts.positions[v])
    kinds = {source.value: source.kind for source in graph.inputs}
    return Materialization(
        facts=facts,
        storages=storages,
        members=tuple(members),
        operand_views=views,
        output_views=tuple(
            aliases.get(position) or _output_view(arg, kinds, storages)
            for position, arg in enumerate(graph.outputs)
        ),
        partial_sums=partial_sums,
        row_cats=row_cats,
        blocked=frozenset().union(*(choice.blocked for choice in contractions)),
        causal=frozenset().union(*(choice.causal_scores for choice in contractions)),
        turned_causal=frozenset().union(*(c.turned_causal_scores for c in contractions)),
        ends=frozenset().union(*(choice.ends for choice in contractions)),
    )


def _make_in_outputs(
    facts: GraphFacts, storages: dict[int, Storage], aliases: Mapping[int, StridedView]
) -> None:
    """Gives results of template kernels that are returned the memory of the outputs."""
    for position, view in aliases.items():
        if is_template(facts.producers.get(view.source)):
            own = storages[view.source]
            storages[view.source] = replace(own, kind=BufferKind.OUTPUT, position=position)


def _materialize_updates(facts: GraphFacts, storages: dict[int, Storage]) -> None:
    """Stores values that update an input in that input's memory."""
    for value, source in updated_inputs(facts.graph).items():
        storages[value] = replace(storages[source], value=value)


def _materialize_copied(facts: GraphFacts, storages: dict[int, Storage]) -> None:
    """Materializes values that are copied into an input at the end.

    The copy must not read the input's old elements (`update_inputs`).
    """
    for value in updated_inputs(facts.graph):
        node = facts.producers[value]
        if node.op != "convert":
            continue
        (copied,) = operands(node)
        is_copy = facts.types[copied].dtype is facts.types[value].dtype
        if is_copy and copied not in storages:
            storages[copied] = temporary_storage(facts, copied)


def _materialize_outputs(
    facts: GraphFacts, storages: dict[int, Storage], aliases: Mapping[int, StridedView]
) -> dict[int, StridedView]:
    """Stores outputs; the result has those that are views of a value that is stored instead.

    Training graphs save what a product reads in another shape. If both were stored, the kernel
    would write the same elements twice.
    """
    views: dict[int, StridedView] = {}
    returned = {arg.value for arg in facts.graph.outputs if isinstance(arg, Ref)}
    outputs = zip(facts.graph.outputs, facts.graph.output_types, strict=True)
    for position, (arg, tensor) in enumerate(outputs):
        if not isinstance(arg, Ref) or arg.value not in facts.types or arg.value in storages:
            continue
        if position in aliases:
            continue
        kind = tensor or facts.types[arg.value]
        expected = storage_of(arg.value, BufferKind.OUTPUT, kind, position)
        base = facts.base_of(arg.value)
        view = None if base in storages or base in returned else _reshaped(facts, base, expected)
        if view is None:
            storages[arg.value] = expected
        else:
            storages[base] = replace(
                temporary_storage(facts, base), kind=BufferKind.OUTPUT, position=position
            )
            views[position] = view
    return views


def _reshaped(facts: GraphFacts, base: int, output: Storage) -> StridedView | None:
    """The output as a view of a value that it is a reshape of; None if it is another view."""
    if is_empty(output.shape):
        return None
    whole = temporary_storage(facts, base).whole()
    view = view_between(facts, output.value, whole)
    if isinstance(view, Refused) or view.offset is not ZERO:
        return None
    has_all = facts.numel(base) is facts.numel(output.value)
    is_expected = is_same_layout(output.shape, view.strides, output.strides)
    return view if has_all and is_expected else None


def _materialize_spread(
    facts: GraphFacts, storages: dict[int, Storage], choice: ContractionChoice
) -> None:
    """Stores values in the strides that a choice states for them."""
    for value in sorted(choice.strides.keys() & facts.types.keys()):
        own = temporary_storage(facts, value)
        storages.setdefault(value, replace(own, strides=choice.strides[value]))


def _materialize_scatters(facts: GraphFacts, storages: dict[int, Storage]) -> None:
    """Gives each scatter and its base the same memory, which the updates change in place.

    It visits nodes backwards, so that a chain of scatters gets the memory of its last one.
    """
    for node in reversed(facts.graph.nodes):
        if node.op != "scatter":
            continue
        value, base = node.results[0], operands(node)[0]
        storages.setdefault(value, temporary_storage(facts, value))
        if not facts.is_storage(base):  # an updated input has its own memory
            storages[base] = storages[value]


def _output_view(
    arg: Arg, kinds: Mapping[int, object], storages: Mapping[int, Storage]
) -> StridedView | Expr | None:
    match arg:
        case Ref(value) if value in storages:
            return storages[value].whole()
        case Ref(value):
            return symbol(str(kinds[value]))
        case bool() | None:
            return None
        case int():
            return as_expr(arg)
        case Expr():
            return arg
        case _:
            raise InternalError(f"output {arg!r}; expected a value, a size or None")


def _operand_views(facts: GraphFacts, storages: dict[int, Storage]) -> dict[int, StridedView]:
    views: dict[int, StridedView] = {}
    for node in facts.graph.nodes:
        if node.op != "extern":
            continue
        for value, axis in zip(operands(node), adjacent_axes(node), strict=True):
            if value not in views or not _is_adjacent(views[value], axis):
                views[value] = _operand_view(facts, storages, value, axis)
    return views


def _is_adjacent(view: StridedView, axis: int | None) -> bool:
    """True if the elements of an axis are adjacent, if one must be."""
    if axis is None or not view.shape:
        return True
    return view.shape[axis] is ONE or view.strides[axis] is ONE


def _operand_view(
    facts: GraphFacts, storages: dict[int, Storage], value: int, axis: int | None
) -> StridedView:
    """The operand as a view of memory; materializes the viewed value, or the operand itself.

    Operands that are views of one value share its memory: what is stored is the first value on the
    way to the operand that the operand is a view of. The elements of `axis` are adjacent, unless
    the operand is memory already.
    """
    for stored in _ways_to_store(facts, storages, value):
        view = view_between(facts, value, stored.whole())
        if isinstance(view, Refused):
            continue
        is_last_way = stored.value == value and (value in storages or axis in (None, LAST_AXIS))
        if _is_adjacent(view, axis) or is_last_way:
            storages[stored.value] = stored
            return view
    if axis is None:
        raise InternalError(f"operand %{value} has no memory; expected memory of its own")
    storages[value] = with_adjacent(temporary_storage(facts, value), axis)
    return storages[value].whole()


def _ways_to_store(
    facts: GraphFacts, storages: Mapping[int, Storage], value: int
) -> Iterator[Storage]:
    """Memory for the values that an operand is a view of, the first value first."""
    chain = [value]
    while chain[-1] not in storages and facts.is_view(chain[-1]):
        chain.append(operands(facts.producers[chain[-1]])[0])
    first = chain[-1]
    yield storages.get(first) or temporary_storage(facts, first)
    # Else more elements than the operand has would be stored for it alone.
    whole = [v for v in chain if facts.numel(v) is facts.numel(value)]
    if first not in storages and first in whole:
        turned = turned_storage(facts, tuple(reversed(chain)))
        if turned is not None:
            yield turned
    yield from (temporary_storage(facts, v) for v in reversed(whole) if v != first)


def _materialize_multiplied(
    facts: GraphFacts, storages: dict[int, Storage], products: Products, strided: frozenset[int]
) -> None:
    """Materializes what kernels multiply by a weight: each row of the weight reads it.

    `strided` values are views of memory with steps.
    """
    for value in sorted(strided & facts.types.keys()):
        view = _operand_view(facts, storages, value, None)
        is_apart = value in products.adjacent and view.strides[-1] is not ONE
        if is_apart or ZERO in view.strides:  # a row that is repeated is no row of a tile
            storages[value] = temporary_storage(facts, value)
    for value in sorted(products.ordered & facts.types.keys()):
        storages[value] = temporary_storage(facts, value)
    for value in sorted(products.stored & facts.types.keys()):
        base = facts.base_of(value)
        if base not in storages:
            storages[base] = temporary_storage(facts, base)


def _materialize_rows(
    facts: GraphFacts, storages: dict[int, Storage], products: Products
) -> frozenset[int]:
    """Stores the results of a processor's products of few rows, whose rows have sums of their own.

    What reads them would select one of the rows for each element.
    """
    if not (products.are_of_processor and products.by_result):
        return frozenset()
    found = frozenset(n.results[0] for n in facts.graph.nodes if is_of_row_sums(facts, n))
    for value in sorted(found):
        storages.setdefault(value, temporary_storage(facts, value))
    return found


def _computed_weights(
    facts: GraphFacts, storages: Mapping[int, Storage], products: Products
) -> frozenset[int]:
    """The values between what is stored and the sums of products that compute their weights.

    A program computes an element once for all rows of its tile, so none of them is repeated. The
    other operands of a product, such as a bias, are values like others.
    """
    found: set[int] = set()
    made = {value: p for value, p in products.by_integers.items() if value in facts.producers}
    pending = [value for result in made for value in operands(facts.producers[result])]
    others = {value for p in made.values() for value in (p.x, p.ordered_x, p.bias)}
    while pending:
        value = pending.pop()
        spend(1)
        if value not in found and value not in storages and value not in others:
            found.add(value)
            pending += operands(facts.producers[value])
    return frozenset(value for value in found if facts.producers[value].op not in WHOLE_ROWS)
