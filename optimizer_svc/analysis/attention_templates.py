"""Why template kernels do not compute some forms of attention, or its gradients."""

from __future__ import annotations

from kernelfarm.dtypes import DType
from kernelfarm.ir.graph_ir import Node, TensorType, contiguous_strides
from kernelfarm.targets import FlashAttentionFacts, SplitAttentionFacts
from optimizer_svc.analysis.attention_forms import are_gradients, is_mask_gradient
from optimizer_svc.analysis.extents import is_empty, likely_elems, likely_sizes
from optimizer_svc.analysis.graph_facts import GraphFacts, operands
from optimizer_svc.analysis.page_chunks import slow_in_place
from optimizer_svc.analysis.page_tables import PagedOperands, own_keys
from optimizer_svc.analysis.verdicts import Refused

_EVEN_WIDTH = 8
# Parts that a large batch does not need cost it less than a small one loses without them.
_LIKELY_SEQUENCES = 8


def likely_groups(facts: GraphFacts, key: TensorType) -> int:
    """The heads of keys of all sequences."""
    sizes = likely_sizes(facts.graph.symbols)
    few = {name: min(size, _LIKELY_SEQUENCES) for name, size in sizes.items()}
    return likely_elems(key.shape[:2], few)


def split_refused(
    facts: GraphFacts, node: Node, known: SplitAttentionFacts | None, pages: PagedOperands | None
) -> Refused | None:
    """Why no template kernel divides the keys of attention in parts; None if one does.

    Many heads of keys fill the chip without parts, but with another kernel their pages are copied.
    """
    if known is None:
        return Refused("of one query, for which kernels were not timed")
    query, _, value, *masks = (facts.types[operand] for operand in operands(node))
    key = own_keys(facts, node, pages)
    if not query.shape[2].is_constant:
        return Refused("of a varying number of queries")
    sharing = query.shape[1].constant // key.shape[1].constant * query.shape[2].constant
    widths, keys = (query.shape[3], value.shape[3]), key.shape[2]
    reasons = {
        "of one query that sees one key": node.attr("is_causal") is True,
        f"of {query.dtype.value}, for which kernels were not timed": query.dtype.value
        not in known.types,
        f"of heads of more than {known.most_width} elements": not all(
            width.is_constant and width.constant <= known.most_width for width in widths
        ),
        f"of more than {known.most_sharing} queries that share a head of keys": sharing
        > known.most_sharing,
        f"of more than {known.most_groups} heads of keys": pages is None
        and likely_groups(facts, key) > known.most_groups,
        "with a mask that is one for all keys": any(m.shape[-1:] != (keys,) for m in masks),
        f"of less than {known.least_keys} keys": keys.is_constant
        and keys.constant < known.least_keys,
    }
    return next((Refused(reason) for reason, holds in reasons.items() if holds), None)


def flash_refused(
    facts: GraphFacts, node: Node, known: FlashAttentionFacts | None, *, saves: bool
) -> Refused | None:
    """Why the framework computes attention of several queries; None if a template kernel does.

    With `saves`, log-sum-exps are read.
    """
    if known is None:
        return Refused("of several queries, for which kernels were not timed")
    query = facts.types[operands(node)[0]]
    if saves and node.types[1] != TensorType(
        DType.F32, query.shape[:3], contiguous_strides(query.shape[:3])
    ):
        return Refused("whose log-sum-exps are not those of each query")
    return _form_refused([facts.types[operand] for operand in operands(node)], known)


def _form_refused(kinds: list[TensorType], known: FlashAttentionFacts) -> Refused | None:
    """Why no template kernel computes attention of operands of these types; None if one does."""
    query, key, value, *masks = kinds
    width = query.shape[3]
    reasons = {
        f"of {query.dtype.value}, for which kernels were not timed": query.dtype.value
        not in known.types,
        f"of heads of other than {known.least_width} to {known.most_width} elements": width
        is not value.shape[3]
        or not width.is_constant
        or not known.least_width <= width.constant <= known.most_width,
        # Rows of other widths are none that tensor maps describe.
        f"of heads of no multiple of {_EVEN_WIDTH} elements": width.constant % _EVEN_WIDTH != 0,
        "with a mask that is one for all keys": any(m.shape[-1:] != key.shape[2:3] for m in masks),
    }
    return next((Refused(reason) for reason, holds in reasons.items() if holds), None)


def gradients_refused(
    facts: GraphFacts, node: Node, known: FlashAttentionFacts | None, read: set[int]
) -> Refused | None:
    """Why the framework computes gradients of attention; None if template kernels do."""
    kinds = [facts.types[value] for value in operands(node)]
    if known is None:
        return Refused("kernels were not timed")
    refused = _operands_refused(kinds, node)
    if refused is None and not read.isdisjoint(node.results[3:]):
        refused = _few_masked(facts, kinds, known) or mask_gradient_refused(kinds, node)
    return refused or _form_refused(kinds[3:], known)


def _operands_refused(kinds: list[TensorType], node: Node) -> Refused | None:
    if not isinstance(node.attr("scale"), float):
        return Refused("the scale varies, or results must not depend on scheduling")
    if not are_gradients(kinds, node.types):
        return Refused("other operands")
    if any(is_empty(kind.shape) for kind in kinds):
        return Refused("no scores or results")
    return None


def _few_masked(
    facts: GraphFacts, kinds: list[TensorType], known: FlashAttentionFacts
) -> Refused | None:
    """Why the framework computes gradients with that of a mask; None if rows are long enough."""
    likely = likely_sizes(facts.graph.symbols)
    if min(likely_elems(kind.shape[2:3], likely) for kind in kinds[3:5]) >= known.least_masked:
        return None
    return Refused(f"a mask has gradients, of fewer than {known.least_masked} queries or keys")


def mask_gradient_refused(kinds: list[TensorType], node: Node) -> Refused | None:
    """Why the framework computes gradients if that of the mask is read; None if kernels do."""
    if not is_mask_gradient(kinds, node.types):
        return Refused("other operands")
    if node.attr("is_causal") is True:
        return Refused("a mask has gradients beside a causal one")
    # Such a gradient is 0 but for rounding.
    if kinds[6].shape[-1:] != kinds[4].shape[2:3]:
        return Refused("a mask that is one for all keys has gradients")
    return None


def slow_pages(
    facts: GraphFacts, node: Node, known: FlashAttentionFacts, pages: PagedOperands | None
) -> Refused | None:
    """Why pages are copied for a kernel of several queries; None if they are not, or are none."""
    if pages is None:
        return None
    query, key = facts.types[operands(node)[0]], own_keys(facts, node, pages)
    queries = likely_elems(query.shape[2:3], likely_sizes(facts.graph.symbols))
    rows = queries * (query.shape[1].as_int() // key.shape[1].as_int())
    return slow_in_place(pages, key.shape[2], rows, known.most_rows_in_place)
