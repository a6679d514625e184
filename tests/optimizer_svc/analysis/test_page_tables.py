"""Where keys in pages are: each element is that of the gather, or the analysis refuses."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import Expr, as_expr
from kernelfarm.ir.builder import GraphBuilder
from kernelfarm.ir.graph_ir import Graph, Ref, TensorType, contiguous_strides
from kernelfarm.ir.interpret import run_graph
from optimizer_svc.analysis.graph_facts import graph_facts
from optimizer_svc.analysis.page_tables import PagedOperands, PagedRows, paged_operands

SAMPLES = 400
PAGES = 7

Array = np.ndarray[Any, Any]


class Sample:
    """A gather of pages and views of it, with axes in any order and adjacent ones joined.

    Sequences b have n pages each; a page has g heads of r rows of d elements. Heads may be
    repeated. In some samples the views do not give keys of attention.
    """

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.sizes = {name: int(self.rng.integers(1, 5)) for name in "bngrd"}

    def graphs(self) -> tuple[Graph, Graph]:
        """Attention of gathered keys, and the same graph that returns the keys."""
        builder = GraphBuilder()
        table = self.shuffled("bn", 0.2)
        page = self.shuffled("grd", 1.0)
        cache = builder.add_input(tensor(DType.F32, PAGES, *self.joined(page)))
        numbers = builder.add_input(tensor(DType.I64, *self.joined(table)))
        found = builder.add("take", cache, numbers, dim=0)
        found = builder.add("reshape", found, shape=self.extents(table + page))
        wanted = self.shuffled("bgnrd", 0.2)
        dims = tuple((table + page).index(name) for name in wanted)
        found = builder.add("permute", found, dims=dims)
        batch, heads, pages, rows, width = (self.sizes[name] for name in "bgnrd")
        shape = (batch, heads, pages * rows, width)
        found = builder.add("reshape", found, shape=tuple(map(as_expr, shape)))
        if shape[2] > 1 and self.rng.random() < 0.3:
            first = int(self.rng.random() < 0.3)
            limits = (batch, heads, shape[2] - 1 + first, width)
            edges = {"starts": (0, 0, first, 0), "limits": limits, "steps": (1, 1, 1, 1)}
            found = builder.add("slice", found, **edges)
        heads, found = self.repeated(builder, found)
        query = tensor(DType.F32, batch, heads, 1, width)
        operands = [builder.add_input(query), found, found]
        op = "aten.scaled_dot_product_attention.default"
        (result,) = builder.add_extern(op, 0, operands, [query], is_contraction=True)
        graph = builder.build([Ref(result)], [query])
        keys = replace(graph, nodes=graph.nodes[:-1], outputs=(Ref(found),))
        return graph, replace(keys, output_types=(builder.type_of(found),))

    def repeated(self, builder: GraphBuilder, keys: int) -> tuple[int, int]:
        """The heads of keys, each of which may be repeated for a few of queries."""
        batch, heads, *rest = (extent.as_int() for extent in builder.type_of(keys).shape)
        copies = int(self.rng.integers(1, 4))
        if copies == 1:
            return heads, keys
        shape = (batch, heads, copies, *rest)
        keys = builder.add("broadcast_in_dim", keys, shape=shape, dims=(0, 1, 3, 4))
        keys = builder.add("reshape", keys, shape=(batch, heads * copies, *rest))
        return heads * copies, keys

    def arrays(self, graph: Graph) -> list[Array]:
        """A cache of different numbers, and a table."""
        cache, table, query = (
            tuple(extent.as_int() for extent in source.kind.shape)
            for source in graph.inputs
            if isinstance(source.kind, TensorType)
        )
        elements = np.arange(np.prod(cache), dtype=np.float32).reshape(cache)
        return [elements, self.rng.integers(0, PAGES, table), np.zeros(query, np.float32)]

    def shuffled(self, names: str, likelihood: float) -> list[str]:
        """The names in their order, or in another one."""
        is_shuffled = self.rng.random() < likelihood
        return [str(name) for name in self.rng.permutation([*names])] if is_shuffled else [*names]

    def joined(self, names: list[str]) -> list[int]:
        """The sizes of axes, some of them multiplied with the one before."""
        found = [self.sizes[names[0]]]
        for name in names[1:]:
            if self.rng.random() < 0.4:
                found[-1] *= self.sizes[name]
            else:
                found.append(self.sizes[name])
        return found

    def extents(self, names: list[str]) -> tuple[Expr, ...]:
        """The sizes of axes."""
        return tuple(as_expr(self.sizes[name]) for name in names)


def tensor(dtype: DType, *shape: int) -> TensorType:
    extents = tuple(map(as_expr, shape))
    return TensorType(dtype, extents, contiguous_strides(extents))


def read(rows: PagedRows, cache: Array, table: Array, keys: int) -> Array:
    """What a template reads: (b, g, s, d)."""
    pages = cache.reshape([extent.as_int() for extent in rows.shape]).transpose(rows.dims)
    numbers = table.reshape([extent.as_int() for extent in rows.table_shape])
    key = np.arange(keys)
    found = pages[numbers[:, key // rows.size], :, key % rows.size]  # (b, s, g, d)
    return found.transpose(0, 2, 1, 3)


def test_each_key_is_that_of_the_gather() -> None:
    outcomes: Counter[str] = Counter()
    for seed in range(SAMPLES):
        sample = Sample(seed)
        graph, gather = sample.graphs()
        cache, table, query = sample.arrays(graph)
        found = paged_operands(graph_facts(graph), graph.nodes[-1])
        if not isinstance(found, PagedOperands):
            assert found is not None
            outcomes[found.reason] += 1
            continue
        outcomes["read"] += 1
        (keys,) = run_graph(gather, [cache, table, query])
        assert isinstance(keys, np.ndarray)
        own = read(found.keys, cache, table, keys.shape[2])
        assert found.keys.heads == sample.sizes["g"]
        np.testing.assert_array_equal(own.repeat(keys.shape[1] // own.shape[1], 1), keys)
    assert outcomes["read"] > SAMPLES / 3
    assert outcomes["their pages are in no table of sequences"] > 5
    assert outcomes["pages hold other elements, too, or these in another order"] > 5
