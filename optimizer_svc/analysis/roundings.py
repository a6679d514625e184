"""Which results of 16 bits need not be rounded before kernels compute on with them.

Eager stores each result, so it rounds each one. A kernel that computes several operators on f16 or
bf16 in f32 would have to round after each of them to be as inexact. A value stays in f32 if
an operator implies the rounding, the value does not reach memory, and all that is computed from it
changes only a little with it until it is rounded to 16 bits for memory. So comparisons, integers,
sorts, scans, indices, and f32 that reaches memory see what eager sees.

Casts of the program round. So do results that are computed with `tanh`, `erf` and their like: the
rounding lets a GPU take cheaper forms of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kernelfarm.dtypes import DType
from kernelfarm.ir.graph_ir import Node, refs_in
from kernelfarm.ir.work_budget import spend
from optimizer_svc.analysis.graph_facts import VIEW_OPS, GraphFacts, operands

_NARROW_FLOATS = (DType.F16, DType.BF16)
_HAS_CHEAPER_FORM = frozenset(("tanh", "erf", "expm1", "log1p"))
_SMOOTH = _HAS_CHEAPER_FORM | {
    *("neg", "abs", "add", "sub", "mul", "div", "reciprocal", "sqrt", "rsqrt", "pow", "convert"),
    *("maximum", "minimum", "fmax", "fmin", "where", "exp", "exp2", "sigmoid", "log", "sin", "cos"),
    "sum",
}
_LARGEST = frozenset(("amax", "amin"))
_MOVES = VIEW_OPS | {"cat", "pad"}


def unrounded_values(facts: GraphFacts, stored: Collection[int]) -> frozenset[int]:
    """The values of 16 bits that may stay in f32 wherever they are not stored.

    `stored` are the values that may reach memory.
    """
    candidates = _hidden_roundings(facts, stored)
    cheaper: set[int] = set()  # f32 that is computed with a function that has a cheaper form
    for node in facts.graph.nodes:
        uses_form = node.op in _HAS_CHEAPER_FORM or not cheaper.isdisjoint(operands(node))
        if not uses_form or node.op == "extern":
            continue
        if node.types[0].dtype in _NARROW_FLOATS:
            candidates.difference_update(node.results)
        else:
            cheaper.update(node.results)
    return frozenset(candidates)


def _hidden_roundings(facts: GraphFacts, stored: Collection[int]) -> set[int]:
    """The roundings of operators that no memory and no decision sees."""
    hides: set[int] = set()
    found: set[int] = set()
    returned = {value for arg in facts.graph.outputs for value in refs_in(arg)}
    for node in reversed(facts.graph.nodes):
        spend(2)
        if len(node.results) != 1 or node.op == "extern":
            continue
        (value,), dtype = node.results, node.types[0].dtype
        readers = [facts.graph.nodes[at] for at in facts.consumers.get(value, ())]
        is_hidden = value not in returned and _is_hidden(readers, hides)
        is_narrow = dtype in _NARROW_FLOATS
        if is_hidden and is_narrow and _is_implied_rounding(facts, node):
            found.add(value)
        if dtype.is_float and (is_hidden or (is_narrow and value in stored)):
            hides.add(value)
    return found


def _is_implied_rounding(facts: GraphFacts, node: Node) -> bool:
    if node.op != "convert" or node.attr("is_cast"):
        return False
    return facts.types[operands(node)[0]].dtype is DType.F32


def _is_hidden(readers: Sequence[Node], hides: Collection[int]) -> bool:
    """True if a small change of a value changes what is computed from it little.

    `hides` are the results of which that is known.
    """
    for reader in readers:
        if reader.op not in _SMOOTH and reader.op not in _MOVES and reader.op not in _LARGEST:
            return False
        if reader.op in _LARGEST and reader.types[0].dtype is not DType.F32:
            return False  # rounded, it may be smaller than the value that it is subtracted from
        if reader.results[0] not in hides:
            return False
    return True
