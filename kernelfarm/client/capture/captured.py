"""A captured graph with what stays in the client: its traced nodes and its tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import fx

from kernelfarm.client.capture.rebuilt_nodes import RebuiltNode
from kernelfarm.errors import KernelfarmError
from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.graph_ir import Graph


class UnsupportedGraphError(KernelfarmError):
    """A traced module cannot be expressed as a graph; the message names the node and the reason."""

    status = "FAILED_PRECONDITION"
    reason = "UNSUPPORTED_GRAPH"


class TracedModule(Protocol):
    """A functional graph of ATen operators; the tensors that it holds are attributes."""

    @property
    def graph(self) -> fx.Graph:
        """The graph; its nodes have values without data in `meta["val"]`."""


@dataclass(frozen=True, slots=True)
class OutputView:
    """A view of a graph output or of an argument.

    Units: strides and offset are in elements; the offset counts from the tensor's first element.
    """

    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    offset: Expr


@dataclass(frozen=True, slots=True)
class ModuleOutput:
    """One value that the module returns: output `number` of the graph, or a view of it.

    If `argument` is set, the value is the module's argument at that position instead, or a view of
    it.
    """

    number: int = 0
    view: OutputView | None = None
    argument: int | None = None


@dataclass(frozen=True, slots=True)
class CapturedGraph:
    """A graph as it is sent to the farm, and how it maps back to the traced module.

    `sources` has one entry for each input of the graph: a position among the traced module's
    arguments, or a tensor that the module holds. `nodes` has one entry for each node of the graph:
    the traced node, or its replacement after a warm start. `module_outputs` are the module's return
    values in order. `negated` are the positions of arguments whose memory has the opposite sign
    (torch's lazy negation, as of the imaginary part of a conjugate). `packed` are the positions of
    arguments in a layout of the framework's library: only its operators read them.
    """

    graph: Graph
    sources: tuple[int | torch.Tensor, ...]
    nodes: tuple[fx.Node | RebuiltNode, ...]
    device: torch.device
    module_outputs: tuple[ModuleOutput, ...]
    negated: frozenset[int] = frozenset()
    packed: frozenset[int] = frozenset()

    @property
    def is_trivial(self) -> bool:
        """True if the graph computes nothing."""
        return not self.graph.nodes
