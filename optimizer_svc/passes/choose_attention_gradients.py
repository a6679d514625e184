"""Decides which gradients of attention processors compute in place of the framework.

They are five products of matrices for each head, in register tiles. The shares of values and the
gradients of the scores are in memory between them, a block at a time (`launch_in_blocks`). GPUs
have template kernels (`choose_attention`).
"""

from __future__ import annotations

from collections import Counter

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import ONE, Expr, as_expr, product_of
from kernelfarm.ir.graph_ir import Graph, Node, TensorType, contiguous_strides
from kernelfarm.ir.work_budget import spend
from kernelfarm.targets import AttentionFacts, TargetFacts
from optimizer_svc.analysis.attention_forms import are_gradients
from optimizer_svc.analysis.attention_templates import mask_gradient_refused
from optimizer_svc.analysis.extents import is_empty
from optimizer_svc.analysis.graph_facts import graph_facts, operands, outputs_read
from optimizer_svc.analysis.score_blocks import least_block_elems
from optimizer_svc.analysis.templates import ATTENTION_BACKWARD
from optimizer_svc.analysis.verdicts import Refused
from optimizer_svc.ir.contraction_choice import ContractionChoice, GradientValues, Index


def choose_attention_gradients(graph: Graph, target: TargetFacts) -> ContractionChoice:
    """The gradients of attention that a processor's kernels compute, with the reasons."""
    nodes = [n for n in graph.nodes if n.attr("op") == ATTENTION_BACKWARD]
    known = target.attention
    if not nodes or known is None:
        return ContractionChoice()
    facts = graph_facts(graph)
    returned = set(outputs_read(graph))
    read = facts.consumers.keys() | returned
    fresh = 1 + max([*facts.types, *(source.value for source in graph.inputs)])
    made: dict[int, GradientValues] = {}
    factors: set[int] = set()
    rounded: set[int] = set()
    causal: set[int] = set()
    masks: set[int] = set()
    ends: set[int] = set()
    strides: dict[int, Index] = {}
    notes: Counter[str] = Counter()
    for node in nodes:
        spend(8)
        kinds = [facts.types[value] for value in operands(node)]
        has_mask = not read.isdisjoint(node.results[3:])
        verdict = mask_gradient_refused(kinds, node) if has_mask else None
        verdict = verdict or _refused(kinds, node, known)
        if verdict is not None:
            notes[f"gradients by the framework: {verdict.reason}"] += 1
            continue
        notes[f"gradients{', also of a mask,' * has_mask} by kernels"] += 1
        own = GradientValues(*range(fresh, fresh + len(GradientValues._fields)))
        fresh = max(own) + 1
        made[node.results[0]] = own
        ends |= {own.queries, own.mask}
        if has_mask:
            masks.add(node.results[0])
        if has_mask and _has_each_score(kinds[3:]):
            ends.add(own.scores)
            if node.results[3] not in returned and _is_large(kinds[3], kinds[4], known):
                strides[own.mask] = contiguous_strides(_score_shape(kinds[3], kinds[4]))
        grad, _, _, *given = operands(node)[:6]
        factors |= {own.shares, own.scores, own.queries, grad, *given}
        causal |= {node.results[0]} if node.attr("is_causal") is True else set()
        if node.types[0].dtype.value in known.rounded_shares:
            rounded.add(node.results[0])
            factors.add(own.keys)
            strides[own.keys] = _turned_strides(kinds[4])
    return ContractionChoice(
        frozenset(made),
        frozenset(factors),
        rounded=frozenset(rounded),
        notes=tuple(f"attention: {count} of {what}" for what, count in notes.items()),
        gradients=made,
        causal=frozenset(causal),
        mask_gradients=frozenset(masks),
        ends=frozenset(ends),
        strides=strides,
    )


def _turned_strides(key: TensorType) -> Index:
    """The strides of keys as rows of terms (b, g, d, s), row-major."""
    batch, groups, keys, width = key.shape
    return contiguous_strides((batch, groups, width, keys))


def _score_shape(query: TensorType, key: TensorType) -> Index:
    """The extents of the scores (b, g, h, q, s)."""
    (batch, heads, queries), (groups, keys) = query.shape[:3], key.shape[1:3]
    return (batch, groups, as_expr(heads.constant // groups.constant), queries, keys)


def _has_each_score(kinds: list[TensorType]) -> bool:
    """True if a mask has a number for each score: its gradient has the other order of axes."""
    query, key, _, mask = kinds
    whole = (*query.shape[:3], key.shape[2])
    return (*(ONE,) * (len(whole) - mask.rank), *mask.shape) == whole


def _is_large(query: TensorType, key: TensorType, known: AttentionFacts) -> bool:
    """True if memory holds a gradient with a number for each score, which are in blocks.

    What reads it may sum it. Sums over all blocks are those of f32, so scores of other types would
    not be in blocks.
    """
    is_rounded = query.dtype.value in known.rounded_shares
    item_bytes = 2 * (query.dtype if is_rounded else DType.F32).itemsize_bytes
    elems = product_of(_score_shape(query, key)).constant
    return query.dtype is not DType.F32 and elems * item_bytes > known.block_bytes


def _refused(kinds: list[TensorType], node: Node, known: AttentionFacts) -> Refused | None:
    """Why the framework computes gradients of operands of these types; None if kernels do."""
    if not isinstance(node.attr("scale"), float):
        return Refused("the scale varies, or results must not depend on scheduling")
    if not are_gradients(kinds, node.types):
        return Refused("other operands")
    if kinds[3].dtype.value not in known.gradients:
        return Refused(f"{kinds[3].dtype.value}, for which kernels were not timed")
    return _size_refused(kinds, known)


def _size_refused(kinds: list[TensorType], known: AttentionFacts) -> Refused | None:
    """Why the framework computes gradients of operands of these sizes; None if kernels do."""
    if not all(_is_fixed(kind.shape) for kind in kinds):
        return Refused("varying sizes")
    if any(is_empty(kind.shape) for kind in kinds):
        return Refused("no scores or results")
    query, key = kinds[3:5]
    queries, keys = query.shape[2].constant, key.shape[2].constant
    if min(queries, keys) < known.least_queries:
        return Refused(f"fewer than {known.least_queries} queries or keys")
    heads = product_of(query.shape[:2]).constant
    scores = least_block_elems(heads, keys, queries)
    if scores * DType.F32.itemsize_bytes > known.most_score_bytes:
        return Refused(f"blocks of more than {known.most_score_bytes} bytes of scores")
    return None


def _is_fixed(shape: tuple[Expr, ...]) -> bool:
    return all(extent.is_constant for extent in shape)
