"""Turns groups into kernels in canonical form; equal kernels become one with several launches."""

from __future__ import annotations

from dataclasses import dataclass

from kernelfarm.digest import kernel_digest
from kernelfarm.ir.graph_ir import Node
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.symbolic import Expr
from optimizer_svc.fusion.group import Group
from optimizer_svc.kernels.assemble_kernel import assemble_kernel
from optimizer_svc.kernels.name_kernel import named_kernel, with_own_sizes
from optimizer_svc.kernels.normalize_axes import normalize_axes
from optimizer_svc.passes.choose_materialized import Materialization
from optimizer_svc.passes.fuse_nests import Fusion

NAME_DIGITS = 8
MAX_NAME_DIGITS = 32


@dataclass(frozen=True, slots=True)
class KernelUse:
    """One launch to be: a kernel by number, the values that its parameters are, its sizes."""

    kernel: int
    values: tuple[int, ...]
    sizes: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class BuiltSteps:
    """Distinct kernels, and the program's steps in order: launches and extern nodes."""

    kernels: tuple[Kernel, ...]
    steps: tuple[KernelUse | Node, ...]


def build_kernels(chosen: Materialization, fusion: Fusion) -> BuiltSteps:
    """The kernels of a fused schedule."""
    symbols = {s.name: s for s in chosen.facts.graph.symbols}
    sizes, origin_ops = chosen.facts.bounds, chosen.facts.graph.origin_ops
    distinct = _Distinct()
    steps: list[KernelUse | Node] = []
    for step in fusion.steps:
        if not isinstance(step, Group):
            steps.append(step)
            continue
        draft = assemble_kernel(step, chosen.storages, fusion.stored, sizes, origin_ops)
        kernel, values = with_own_sizes(normalize_axes(draft.kernel, sizes), symbols)
        steps.append(KernelUse(distinct.number(kernel), draft.values, values))
    return BuiltSteps(tuple(distinct.kernels), tuple(steps))


class _Distinct:
    """Kernels by content; the first of equals lends its comments."""

    def __init__(self) -> None:
        self.kernels: list[Kernel] = []
        self._numbers: dict[bytes, int] = {}
        self._names: set[str] = set()

    def number(self, kernel: Kernel) -> int:
        """The number of the kernel with this content."""
        digest = kernel_digest(kernel)
        found = self._numbers.get(digest)
        if found is not None:
            return found
        named = named_kernel(kernel, digest.hex()[:NAME_DIGITS])
        if named.name in self._names:  # another kernel whose digest begins alike
            named = named_kernel(kernel, digest.hex()[:MAX_NAME_DIGITS])
        self._names.add(named.name)
        self._numbers[digest] = len(self.kernels)
        self.kernels.append(named)
        return self._numbers[digest]
