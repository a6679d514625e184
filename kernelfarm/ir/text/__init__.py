"""Readable text of the intermediate representations; graphs and kernels parse back exactly."""

from kernelfarm.ir.text.expr import parse_expr
from kernelfarm.ir.text.graph import parse_graph, print_graph
from kernelfarm.ir.text.kernel import parse_kernel, print_kernel
from kernelfarm.ir.text.plan import print_plan

__all__ = [
    "parse_expr",
    "parse_graph",
    "parse_kernel",
    "print_graph",
    "print_kernel",
    "print_plan",
]
