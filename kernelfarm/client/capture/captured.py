"""A captured graph together with what only the client has: its nodes and its own tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from kernelfarm.client.capture.rebuilt_nodes import RebuiltNode
from kernelfarm.errors import KernelfarmError
from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.graph_ir import Graph


class UnsupportedGraphError(KernelfarmError):
    """A traced module that the farm has no words for; the message names the node and the reason."""

    status = "FAILED_PRECONDITION"
    reason = "UNSUPPORTED_GRAPH"


@dataclass(frozen=True, slots=True)
class OutputView:
    """A view of an output of the graph; strides and offset in elements, from its first one."""

    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    offset: Expr


@dataclass(frozen=True, slots=True)
class ModuleOutput:
    """What the module returns at one place: output `number` of the graph, or a window on it.

    With `argument` it is the module's argument at that position.
    """

    number: int = 0
    view: OutputView | None = None
    argument: int | None = None


@dataclass(frozen=True, slots=True)
class CapturedGraph:
    """A graph as it is sent, and the way back from it to the traced module.

    `sources` has one entry for each of the graph's inputs: the position of the traced module's
    argument, or a tensor that the module holds. `nodes` has the traced node of each graph node, or
    what stands for it. `module_outputs` has what the module returns, in its order. `negated` are
    the positions of arguments whose elements lie in memory with the other sign (the imaginary part
    of a conjugate, say).
    """

    graph: Graph
    sources: tuple[int | torch.Tensor, ...]
    nodes: tuple[fx.Node | RebuiltNode, ...]
    device: torch.device
    module_outputs: tuple[ModuleOutput, ...]
    negated: frozenset[int] = frozenset()

    @property
    def is_trivial(self) -> bool:
        """True if nothing is computed."""
        return not self.graph.nodes
