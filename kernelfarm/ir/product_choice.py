"""Who computes products of matrices: a part of every request, and of its key."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.graph_ir import Graph

PRODUCT_OPS: Final = frozenset({"aten.mm.default", "aten.addmm.default"})
"""The operators of captured nodes that a choice may name."""
MAX_NODE_CHOICES: Final = 4096
"""Choices of single products in one request."""


class ProductChoice(enum.StrEnum):
    """AUTO: whatever the chip's measured times say is faster, kernels or the framework's library.

    LIBRARY: the library computes all products. OWN: kernels compute every product that they can.
    """

    AUTO = "auto"
    LIBRARY = "library"
    OWN = "own"


@dataclass(frozen=True, slots=True, order=True)
class NodeChoice:
    """Who computes the product of one captured node, by the node's number; never AUTO."""

    node: int
    choice: ProductChoice


def product_pairs(
    choice: ProductChoice, by_node: Iterable[NodeChoice] = ()
) -> tuple[tuple[str, str], ...]:
    """The choices as pairs of text in a program's key; none by default, so that old keys stay."""
    single = " ".join(f"{found.node}:{found.choice.value}" for found in by_node)
    pairs = (("product_choices", single),) if single else ()
    return pairs if choice is ProductChoice.AUTO else (*pairs, ("products", choice.value))


def check_node_choices(graph: Graph, by_node: Sequence[NodeChoice]) -> None:
    """Checks that choices name different products of a captured graph, in their order.

    Raises:
        InvalidGraphError: they do not.
    """
    for one, other in pairwise(by_node):
        if one.node >= other.node:
            raise InvalidGraphError(
                f"choices of products of node {one.node}, then of node {other.node}; expected each"
                " node once, in ascending order"
            )
    for found in by_node:
        op = graph.nodes[found.node].op if found.node < len(graph.nodes) else "none"
        if op not in PRODUCT_OPS:
            raise InvalidGraphError(
                f"a choice of products of node {found.node} ({op}) among {len(graph.nodes)} nodes;"
                f" expected one of {', '.join(sorted(PRODUCT_OPS))}"
            )
