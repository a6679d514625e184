"""The stages of an optimization as texts."""

from __future__ import annotations

from collections.abc import Iterator

from kernelfarm.ir.graph_ir import Graph
from kernelfarm.ir.program_ir import Program
from kernelfarm.ir.text import print_graph, print_kernel, print_plan
from kernelfarm.ir.triton.encode import print_head, print_user_kernel
from kernelfarm.ir.work_budget import counted


def stage_texts(graph: Graph, program: Program, report: str) -> tuple[tuple[str, str], ...]:
    """(name, text) of every stage: the graph after its passes, the kernels, the plan, report."""
    texts = [counted(print_kernel(kernel)) for kernel in program.kernels]
    texts += [counted(text) for text in _user_kernels(program)]
    kernels = "\n\n".join(texts)
    return (
        ("prims", print_graph(graph)),
        ("loops", kernels),
        ("plan", counted(print_plan(program.plan))),
        ("report", counted(report)),
    )


def _user_kernels(program: Program) -> Iterator[str]:
    """The users' kernels; configurations of one kernel show its source once."""
    shown: dict[str, str] = {}
    for kernel in program.user_kernels:
        if kernel.source in shown:
            yield f"{print_head(kernel)}\n  (the source of {shown[kernel.source]})\n"
        else:
            shown[kernel.source] = kernel.name
            yield print_user_kernel(kernel)
