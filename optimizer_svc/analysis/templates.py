"""Steps that a template kernel computes: the plan launches it, and no kernel fuses with it.

In a graph, such a step is an extern node whose operator no framework has. Its results are memory of
the plan, like those of other kernels.
"""

from __future__ import annotations

from kernelfarm.ir.graph_ir import Node

ATTENTION_PARTS = "template.attention_parts"
"""(query, key, value, mask) -> weighted sums of values, largest scores and sums of weights, each
for every part of the keys; `optimizer_svc/kernels/attention_parts.py`."""


def is_template(node: Node) -> bool:
    """True for a node that a template kernel computes."""
    return node.op == "extern" and node.attr("op") == ATTENTION_PARTS
