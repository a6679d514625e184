"""Keys and values of attention that a graph gathers in pages: where their rows are in a cache.

Servers keep keys and values in pages of a cache. A table has the numbers of the pages of each
sequence, and the graph gathers these pages by rows of the cache:

    key number s of sequence b is row s % size of page table[b, s // size]

A kernel that reads through the table saves the copy, which moves as many bytes as attention twice.

Shapes:
    cache: pages first, then heads of keys, rows of a page and width in any order, or joined
    table: (b, n), or joined; a page of one row needs no axis
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.atoms import FloorDiv
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr, as_expr, product_of, symbol
from kernelfarm.ir.algebra.simplify import Bounds, simplify
from kernelfarm.ir.graph_ir import Node, TensorType
from kernelfarm.ir.program_ir import BufferKind
from kernelfarm.ir.work_budget import spend
from optimizer_svc.analysis.graph_facts import (
    GATHER_OPS,
    GraphFacts,
    int_attr,
    operands,
    outputs_read,
)
from optimizer_svc.analysis.index_maps import Index, operand_index, ravel
from optimizer_svc.analysis.storages import storage_of
from optimizer_svc.analysis.strided_views import reshaped_view, view_between
from optimizer_svc.analysis.updates import updated_inputs
from optimizer_svc.analysis.verdicts import Refused

_SEQUENCE, _HEAD, _KEY, _COLUMN = _NAMES = ("@b", "@g", "@s", "@d")
_COPY = "@c"
_MOST_VIEWS = 16


@dataclass(frozen=True, slots=True)
class PagedRows:
    """Keys or values in pages of a cache, with `size` of them to a page, of `heads` heads.

    `cache` and `table` are values of the graph. The cache in `shape` and then with its axes in the
    order `dims` is (pages, heads of keys, size, width); the table in `table_shape` is (b, n).
    """

    cache: int
    table: int
    size: int
    heads: int
    shape: Index
    dims: tuple[int, ...]
    table_shape: Index


@dataclass(frozen=True, slots=True)
class PagedOperands:
    """The keys and the values of one attention, both in pages."""

    keys: PagedRows
    values: PagedRows


def paged_operands(facts: GraphFacts, node: Node) -> PagedOperands | Refused | None:
    """Where keys and values of attention are in pages; None if it gathers neither of them."""
    chains = [_chain(facts, value) for value in operands(node)[1:3]]
    gathered = [_gather(facts, chain) for chain in chains]
    if not any(gathered):
        return None
    if gathered[0] is None or gathered[1] is None:
        return Refused("only keys are in pages, or only values")
    found = [_paged_rows(facts, chain) for chain in chains]
    if (refused := next((rows for rows in found if isinstance(rows, Refused)), None)) is not None:
        return refused
    if _has_others(facts, node, chains):
        return Refused("something else reads them, too")
    keys, values = (rows for rows in found if isinstance(rows, PagedRows))
    if (keys.size, keys.heads) != (values.size, values.heads):
        return Refused("pages of keys and of values have other sizes")
    return PagedOperands(keys, values)


def own_keys(facts: GraphFacts, node: Node, pages: PagedOperands | None) -> TensorType:
    """The keys of attention; of those in pages, the heads that the cache has."""
    key = facts.types[operands(node)[1]]
    if pages is None:
        return key
    batch, _, *rest = key.shape
    return replace(key, shape=(batch, as_expr(pages.keys.heads), *rest))


def _chain(facts: GraphFacts, value: int) -> list[int]:
    """A value and those that it is a view of, up to the first one that is no view."""
    chain = [value]
    while facts.is_view(chain[-1]) and len(chain) <= _MOST_VIEWS:
        spend(4)
        chain.append(operands(facts.producers[chain[-1]])[0])
    return chain


def _gather(facts: GraphFacts, chain: list[int]) -> Node | None:
    """The gather at the end of a chain of views."""
    node = facts.producers.get(chain[-1])
    return node if node is not None and node.op in GATHER_OPS else None


def _has_others(facts: GraphFacts, node: Node, chains: list[list[int]]) -> bool:
    """True if another node than attention reads a value between it and the gathers."""
    spend(len(facts.graph.outputs))
    made = {value for chain in chains for value in chain}
    own = {facts.positions[value] for value in (*made, node.results[0])}
    return not made.isdisjoint(outputs_read(facts.graph)) or not all(
        own.issuperset(facts.consumers[value]) for value in made
    )


def _paged_rows(facts: GraphFacts, chain: list[int]) -> PagedRows | Refused:
    gather = facts.producers[chain[-1]]
    if gather.op != "take" or int_attr(gather, "dim") != 0:
        return Refused("they are not gathered by numbers of pages alone")
    cache, table = operands(gather)
    shape = facts.types[chain[0]].shape
    index = tuple(
        ZERO if extent is ONE else symbol(name) for name, extent in zip(_NAMES, shape, strict=True)
    )
    bounds = facts.bounds.merged(Bounds.of_extents(dict(zip(_NAMES, shape, strict=True))))
    for value in chain[:-1]:
        spend(32)
        view = facts.producers[value]
        index = operand_index(view, index, facts.types[operands(view)[0]].shape, bounds)
    rank = facts.types[table].rank
    page = _page_of(facts.types[cache].shape, index[rank:], shape, bounds)
    if isinstance(page, Refused):
        return page
    number = simplify(_key(shape[2]) // page.size, bounds)
    entries = _entries(facts.types[table].shape, index[:rank], (shape[0], number), bounds)
    if isinstance(entries, Refused):
        return entries
    viewed = (facts.types[cache].shape[0], *page.extents)
    if (refused := _not_in_memory(facts, cache, (viewed, page.dims[-1]))) is not None:
        return refused
    own_table = _without_widening(facts, table)
    return PagedRows(cache, own_table, page.size, page.heads, viewed, page.dims, entries)


@dataclass(frozen=True, slots=True)
class _Page:
    """The heads and rows of a page, the extents of its axes, and their order.

    `dims` are the axes (pages, heads, rows, width) of the cache with these extents.
    """

    heads: int
    size: int
    extents: Index
    dims: tuple[int, ...]


def _page_of(cache: Index, index: Index, shape: Index, bounds: Bounds) -> _Page | Refused:
    """The page in which attention reads the element `index` as (b, g, s, d), of these extents."""
    elems, width = product_of(cache[1:]), shape[3]
    if not (elems.is_constant and shape[1].is_constant and width.is_constant):
        return Refused("pages of varying sizes")
    position = simplify(ravel(index, cache[1:]), bounds)
    heads, position = _without_copies(position, shape[1].constant, bounds)
    size, rest = divmod(elems.constant, max(1, heads * width.constant))
    row = simplify(_key(shape[2]) % size, bounds) if size > 1 else ZERO
    steps = _steps(position, row, bounds)
    if rest or size < 1 or steps is None:
        return Refused("pages hold other elements, too, or these in another order")
    axes = ((heads, steps[0], 1), (size, steps[1], 2), (width.constant, steps[2], 3))
    # From the axis with the largest step to that with the smallest; the extents of 1 come first.
    ordered = sorted(axes, key=lambda axis: (axis[0] > 1, -axis[1]))
    filled = 1
    for extent, step, _ in reversed(ordered):
        if extent > 1 and step != filled:
            return Refused("pages hold other elements, too, or these in another order")
        filled *= extent
    places = {axis: 1 + at for at, (_, _, axis) in enumerate(ordered)}
    extents = tuple(as_expr(extent) for extent, _, _ in ordered)
    return _Page(heads, size, extents, (0, *(places[axis] for axis in (1, 2, 3))))


def _without_copies(position: Expr, heads: int, bounds: Bounds) -> tuple[int, Expr]:
    """The heads of a cache of which attention reads copies, and an element's position by them.

    Models repeat each head for all query heads that share it.
    """
    copies = heads if _HEAD not in position.symbols else 1
    for atom in (atom for monomial, _ in position.terms for atom in monomial):
        if isinstance(atom, FloorDiv) and atom.numerator is symbol(_HEAD):
            copies = atom.denominator.constant if atom.denominator.is_constant else 1
    if copies < 2 or heads % copies:
        return heads, position
    own = bounds.merged(Bounds.of_extents({_HEAD: heads // copies, _COPY: copies}))
    by_heads = symbol(_HEAD) * copies + symbol(_COPY)
    return heads // copies, simplify(position.substitute({_HEAD: by_heads}), own)


def _key(keys: Expr) -> Expr:
    """The number of a key."""
    return ZERO if keys is ONE else symbol(_KEY)


def _steps(position: Expr, row: Expr, bounds: Bounds) -> tuple[int, int, int] | None:
    """The steps (heads, rows, width) of an element's position in a page; None if it has others."""
    steps = []
    for name in (_HEAD, _COLUMN):
        parts = position.linear_in(name)
        if parts is None or not parts[0].is_constant:
            return None
        steps.append(parts[0].constant)
        position = parts[1]
    # The second key of a page, if there is one, is one step behind the first.
    second = position.substitute({_KEY: 1}) if row is not ZERO else ZERO
    if not second.is_constant or simplify(position - row * second, bounds) is not ZERO:
        return None
    return steps[0], second.constant, steps[1]


def _entries(
    table: Index, index: Index, read: tuple[Expr, Expr], bounds: Bounds
) -> Index | Refused:
    """The extents (b, n) as which the table is read at `index`.

    `read` are the number of sequences, and that of a key's page in its sequence.
    """
    batch, number = read
    order = Refused("their pages are in no table of sequences")
    position = simplify(ravel(index, table), bounds)
    parts = position.linear_in(_SEQUENCE)
    if parts is None or simplify(parts[1] - number, bounds) is not ZERO:
        return order
    entries = product_of(table)
    each = entries if batch is ONE else parts[0]
    return (batch, each) if batch * each is entries else order


def _not_in_memory(facts: GraphFacts, cache: int, viewed: tuple[Index, int]) -> Refused | None:
    """Why a cache cannot be read where it is; None if it can.

    `viewed` is the shape as which it is read, and the number of the axis whose elements are
    adjacent.
    """
    base = facts.base_of(cache)
    kind = facts.types[base]
    if not facts.is_storage(base):
        source = _written(facts, base)
        if source is None:
            return Refused("the cache is computed")
        has_its_shape = facts.types[source].shape == kind.shape
        # In another shape, memory of its own holds it row by row.
        kind = facts.types[source] if has_its_shape else TensorType(kind.dtype, kind.shape)
    whole = storage_of(base, BufferKind.INPUT, kind).whole()
    view = view_between(facts, cache, whole)
    shape, column = viewed
    found = view if isinstance(view, Refused) else reshaped_view(view, shape)
    if isinstance(found, Refused) or ONE not in (found.shape[column], found.strides[column]):
        return Refused("rows of the cache have gaps in memory")
    return None


def _written(facts: GraphFacts, value: int) -> int | None:
    """The input that a graph writes to before it reads its pages; None if the cache is no such."""
    while not facts.is_storage(value):
        spend(2)
        node = facts.producers[value]
        if node.op != "scatter":
            return None
        value = facts.base_of(operands(node)[0])
    spend(len(facts.graph.updates))
    return value if value in updated_inputs(facts.graph).values() else None


def _without_widening(facts: GraphFacts, table: int) -> int:
    """The table, or one of i32 that it was converted from."""
    node = facts.producers.get(table)
    if node is None or node.op != "convert" or node.types[0].dtype is not DType.I64:
        return table
    (narrow,) = operands(node)
    return narrow if facts.types[narrow].dtype is DType.I32 else table
