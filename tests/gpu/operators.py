"""Sample calls of every operator that decomposes, many in one program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from kernelfarm.errors import KernelfarmError
from kernelfarm.ir.graph_ir import seed_nodes
from tests.gpu.case import Case, Tensors
from tests.support.operator_samples.table import calls
from tests.support.single_operator import Call, lowered

CALLS_OF_A_PROGRAM = 4

ABSENT = ("upsample_bicubic2d", "_batch_norm_with_update", "_batch_norm_no_update", "::")
"""Operators that trace in other ways on a GPU than on a CPU."""

Groups = list[list[int]]
"""Numbers of sample calls, program by program."""


def chosen_groups() -> Groups:
    """The first and the last sample of each operator that becomes kernels alone."""
    by_operator: dict[str, list[int]] = {}
    for number, call in enumerate(calls()):
        if _is_ours(call):
            by_operator.setdefault(call.op, []).append(number)
    ends = {number for found in by_operator.values() for number in (found[0], found[-1])}
    chosen = sorted(ends)
    return [
        chosen[at : at + CALLS_OF_A_PROGRAM] for at in range(0, len(chosen), CALLS_OF_A_PROGRAM)
    ]


def operator_cases(groups: Groups) -> Iterator[Case]:
    """A case for each group."""
    table = list(calls())
    for number, group in enumerate(groups):
        listed = _Listed([table[position] for position in group])
        yield Case(f"operators {number}", listed, (listed.tensors,))


class _Listed:
    """The results of several calls, flat; their tensors are the arguments."""

    def __init__(self, listed: Sequence[Call]) -> None:
        self.calls = listed

    def tensors(self) -> Tensors:
        """The tensors of all calls, one after the other."""
        return tuple(tensor for call in self.calls for tensor in call.tensors())

    def __call__(self, *tensors: torch.Tensor) -> tuple[Any, ...]:
        rest = iter(tensors)

        def position(leaf: Any) -> Any:
            return next(rest) if isinstance(leaf, torch.Tensor) else leaf

        results = []
        for call in self.calls:
            args, kwargs = pytree.tree_map(position, (tuple(call.args), dict(call.kwargs)))
            results += pytree.tree_leaves(call.overload(*args, **kwargs))
        return tuple(results)


def _is_ours(call: Call) -> bool:
    try:
        graph = lowered(call).graph
    except (KernelfarmError, NotImplementedError, RuntimeError, AttributeError):
        return False
    if not call.op.startswith("aten."):  # what PyTorch's own compiler adds stands in no capture
        return False
    if any(part in call.op for part in ABSENT):
        return False
    names_device = "device" in call.kwargs or not call.tensors()
    return not names_device and not seed_nodes(graph) and not _has_extern(graph)


def _has_extern(graph: Any) -> bool:
    return any(node.op == "extern" for node in graph.nodes)
