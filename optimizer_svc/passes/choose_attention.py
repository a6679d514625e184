"""Decides which attention kernels compute in place of the framework's.

With one query for each head, as in decoding, memory limits attention: each key and value is read
once. The framework's kernels on processors are made for blocks of queries; with one query of 16
bits they take many times as long as memory does.

With several queries, attention is two products of matrices for each head, which processors compute
in register tiles, and the softmax of the scores between them. Memory holds a block of the scores
(`launch_in_blocks`), so kernels compute only attention whose smallest blocks are of a limited size.
With varying sizes it holds all of them, so their ranges must limit the scores.

GPUs have kernels for blocks of queries, too. With one query they give each multiprocessor a head,
so that few of them read memory. A template kernel divides the keys of each head in parts. With
several queries, template kernels take the place of the framework's where they were measured to be
as fast, for attention and for its gradients. Those of attention read keys and values in pages of a
cache where they are, which saves the copies that the graph makes of them, unless copies and a
faster kernel take less time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import ONE, Expr, as_expr, product_of
from kernelfarm.ir.graph_ir import Graph, Node, contiguous_strides
from kernelfarm.ir.work_budget import spend
from kernelfarm.targets import (
    AttentionFacts,
    FlashAttentionFacts,
    SplitAttentionFacts,
    TargetFacts,
)
from optimizer_svc.analysis.attention_forms import is_attention
from optimizer_svc.analysis.attention_templates import (
    flash_refused,
    gradients_refused,
    likely_groups,
    slow_pages,
    split_refused,
)
from optimizer_svc.analysis.extents import is_empty, likely_elems, likely_sizes
from optimizer_svc.analysis.graph_facts import GraphFacts, graph_facts, operands, outputs_read
from optimizer_svc.analysis.page_tables import PagedOperands, own_keys, paged_operands
from optimizer_svc.analysis.score_blocks import least_block_elems
from optimizer_svc.analysis.templates import ATTENTION_BACKWARD
from optimizer_svc.analysis.verdicts import Refused
from optimizer_svc.ir.contraction_choice import ContractionChoice, Index, ScoreValues
from optimizer_svc.kernels.flash_mask_gradient import tiles_of

_SAVING = "kernelfarm.attention_saving.default"
ATTENTION = (
    "aten.scaled_dot_product_attention.default",
    "aten._scaled_dot_product_flash_attention_for_cpu.default",
    _SAVING,
)
"""The last two also return log-sum-exps, for gradients."""
# The keys of a program that computes gradients.
_PROGRAM_KEYS = 128
# Parts of a mask's gradient cost a large batch less than a small one loses without them.
_LIKELY_VARYING = 8
# The tiles of scores that a part of a mask's gradient has at least.
_PART_TILES = 4


def choose_attention(graph: Graph, target: TargetFacts) -> ContractionChoice:
    """The attention of a graph that kernels compute, with what decided about each kind."""
    nodes = [n for n in graph.nodes if n.op == "extern" and n.attr("op") in ATTENTION]
    backward = [n for n in graph.nodes if n.attr("op") == ATTENTION_BACKWARD]
    if (nodes or backward) and (target.split_attention or target.flash_attention) is not None:
        return _choose_templates(graph, nodes, backward, target)
    if not nodes or target.attention is None:
        return ContractionChoice()
    facts = graph_facts(graph)
    read = _read(facts)
    chosen: list[int] = []
    factors: set[int] = set()
    rounded: set[int] = set()
    saving: set[int] = set()
    masked: dict[int, int] = {}
    scores: dict[int, ScoreValues] = {}
    causal: set[int] = set()
    strides: dict[int, Index] = {}
    fresh = 1 + max([*facts.types, *(source.value for source in graph.inputs)])
    notes: Counter[str] = Counter()
    for node in nodes:
        spend(8)
        saves = not read.isdisjoint(node.results[1:])
        verdict = _refused(facts, node, target.attention, saves=saves)
        if verdict is None:
            saving |= {node.results[0]} if saves else set()
            chosen.append(node.results[0])
            query, *others = operands(node)[:3]
            is_one = facts.types[query].shape[2] is ONE
            if not is_one:
                own = ScoreValues(fresh, fresh + 1, fresh + 2)
                scores[node.results[0]] = own
                fresh += len(own)
                causal |= {node.results[0]} if node.attr("is_causal") is True else set()
                factors |= {query, *others}
                rounded |= _rounded(node, target.attention)
            elif len(operands(node)) > len((query, *others)):
                masked[node.results[0]], strides[fresh] = fresh, _score_strides(facts, node)
                fresh += 1
            notes[f"of {'one query' if is_one else 'several queries'} by kernels"] += 1
        else:
            notes[f"by the framework: {verdict.reason}"] += 1
    return ContractionChoice(
        frozenset(chosen),
        frozenset(factors),
        rounded=frozenset(rounded),
        notes=_texts(notes),
        masked=masked,
        strides=strides,
        saving=frozenset(saving),
        scores=scores,
        causal=frozenset(causal),
    )


def _score_strides(facts: GraphFacts, node: Node) -> Index:
    """The strides of the scores (b, g, h, s) of one query for each head, row-major."""
    query, key = (facts.types[operand] for operand in operands(node)[:2])
    (batch, heads), (groups, keys) = query.shape[:2], key.shape[1:3]
    of_group = as_expr(heads.constant // groups.constant)
    return contiguous_strides((batch, groups, of_group, keys))


def _choose_templates(
    graph: Graph, nodes: list[Node], backward: list[Node], target: TargetFacts
) -> ContractionChoice:
    """The attention that template kernels compute: of one query by parts, of several whole.

    `backward` are the nodes of gradients.
    """
    facts = graph_facts(graph)
    read = _read(facts)
    parts: dict[int, int] = {}
    pages: dict[int, PagedOperands] = {}
    whole: set[int] = set()
    by_heads: set[int] = set()
    mask_parts: dict[int, int] = {}
    notes: Counter[str] = Counter()
    for node in nodes:
        spend(8)
        found: _Kernel | Refused | None = _no_attention(facts, node)
        if found is None:
            own = paged_operands(facts, node)
            saves = not read.isdisjoint(node.results[1:])
            found = _forward(facts, node, target, own, saves=saves)
            if (reason := _why_copied(own, found)) is not None:
                notes[f"whose pages are copied: {reason}"] += 1
        if isinstance(found, Refused):
            notes[f"by the framework: {found.reason}"] += 1
            continue
        notes[found.note] += 1
        parts |= {node.results[0]: found.parts} if found.parts else {}
        pages |= {node.results[0]: found.pages} if found.pages else {}
        whole |= set() if found.parts else {node.results[0]}
    for node in backward:
        spend(8)
        verdict = gradients_refused(facts, node, target.flash_attention, read)
        if verdict is None:
            whole.add(node.results[0])
            by_heads |= _by_heads(facts, node, target.flash_attention)
            own_parts = _mask_parts(facts, node, target.flash_attention, read)
            mask_parts |= own_parts
            kinds = f"gradients{', also of a mask,' * bool(own_parts)}"
            notes[f"of {kinds} by kernels"] += 1
        else:
            notes[f"of gradients by the framework: {verdict.reason}"] += 1
    chosen = frozenset((*parts, *whole))
    return ContractionChoice(
        chosen,
        notes=_texts(notes),
        parts=parts,
        pages=pages,
        whole=frozenset(whole),
        by_heads=frozenset(by_heads),
        mask_parts=mask_parts,
    )


@dataclass(frozen=True, slots=True)
class _Kernel:
    """A template kernel of attention that divides the keys in `parts`; 0 if it computes it whole.

    It reads `pages` where they are. `copied` says why it reads copies of them.
    """

    parts: int
    note: str
    pages: PagedOperands | None
    copied: str = ""


def _forward(
    facts: GraphFacts,
    node: Node,
    target: TargetFacts,
    own: PagedOperands | Refused | None,
    *,
    saves: bool,
) -> _Kernel | Refused:
    """The template kernel of attention, or why there is none; with `saves`, log-sum-exps are read.

    `own` says where its keys and values are in pages.
    """
    pages = own if isinstance(own, PagedOperands) else None
    query = facts.types[operands(node)[0]]
    is_one = query.shape[2] is ONE
    verdict, count = _split(facts, node, target.split_attention, pages, saves=saves)
    if is_one and verdict is not None:
        return verdict
    if count >= (1 if is_one or pages else 2):  # one part of several queries fills no chip better
        queries = "one query" if is_one else "several queries"
        kind = f"{count} parts, in pages" if pages else f"{count} parts"
        return _Kernel(count, f"of {queries}, keys in {kind}, by kernels", pages)
    known = target.flash_attention
    verdict = flash_refused(facts, node, known, saves=saves)
    if known is None or verdict is not None:
        return verdict or Refused("of several queries, for which kernels were not timed")
    copied = slow_pages(facts, node, known, pages)
    where = ", keys in pages," if pages and copied is None else ""
    note = f"of several queries{' with log-sum-exps' * saves}{where} by kernels"
    return _Kernel(0, note, None, copied.reason) if copied else _Kernel(0, note, pages)


def _split(
    facts: GraphFacts,
    node: Node,
    known: SplitAttentionFacts | None,
    pages: PagedOperands | None,
    *,
    saves: bool,
) -> tuple[Refused | None, int]:
    """Why no template kernel divides the keys of attention in parts; how many parts if one does."""
    verdict = Refused("whose log-sum-exps are read") if saves else None
    verdict = verdict or split_refused(facts, node, known, pages)
    if known is None or verdict is not None:
        return verdict, 0
    key = own_keys(facts, node, pages)
    keys = likely_elems(key.shape[2:3], likely_sizes(facts.graph.symbols))
    return None, _parts(likely_groups(facts, key), keys, known)


def _why_copied(pages: PagedOperands | Refused | None, found: _Kernel | Refused) -> str | None:
    """Why the pages of keys and values are copied; None if they are not, or are no pages."""
    if isinstance(pages, Refused):
        return pages.reason
    if pages is None or not (isinstance(found, Refused) or found.copied):
        return None
    return f"attention {found.reason}" if isinstance(found, Refused) else found.copied


def _parts(groups: int, keys: int, known: SplitAttentionFacts) -> int:
    """A power of two: enough parts to fill the chip, of enough keys each."""
    most = min(known.programs // max(1, groups), keys // known.least_keys)
    return 1 << (max(1, most).bit_length() - 1)


def _read(facts: GraphFacts) -> set[int]:
    """The values that a node or an output reads."""
    return facts.consumers.keys() | set(outputs_read(facts.graph))


def _texts(notes: Counter[str]) -> tuple[str, ...]:
    lines = sorted(notes, key=lambda line: not line.endswith("by kernels"))
    return tuple(f"attention: {notes[line]} {line}" for line in lines)


def _rounded(node: Node, known: AttentionFacts) -> set[int]:
    """The result of a node whose shares are rounded."""
    is_rounded = node.types[0].dtype.value in known.rounded_shares
    return {node.results[0]} if is_rounded else set()


def _refused(
    facts: GraphFacts, node: Node, known: AttentionFacts, *, saves: bool
) -> Refused | None:
    """Why the framework computes attention; None if kernels do.

    With `saves`, log-sum-exps are read.
    """
    if (verdict := _no_attention(facts, node)) is not None:
        return verdict
    query, key = (facts.types[operand] for operand in operands(node)[:2])
    is_one = query.shape[2] is ONE
    if saves and (node.types[1].dtype, node.types[1].shape) != (DType.F32, query.shape[:3]):
        return Refused("whose log-sum-exps are not those of each query")
    if saves and is_one:
        return Refused("whose log-sum-exps are read, of one query")
    if query.dtype.value not in (known.one_query if is_one else known.several_queries):
        return Refused(f"of {query.dtype.value}, for which kernels were not timed")
    sizes = (query.shape[1], query.shape[3], key.shape[1])
    if not all(size.is_constant and size.constant > 0 for size in sizes):
        return Refused("of a varying number of heads")
    return None if is_one else _several_refused(facts, node, known)


def _by_heads(facts: GraphFacts, node: Node, known: FlashAttentionFacts | None) -> set[int]:
    """The result of a node if programs take one head of queries each, because there are few.

    Causal programs end at different times, so there should be several for each multiprocessor.
    """
    query, key = (facts.types[value] for value in operands(node)[3:5])
    keys = likely_elems(key.shape[2:3], likely_sizes(facts.graph.symbols))
    programs = likely_groups(facts, key) * -(-keys // _PROGRAM_KEYS)
    is_few = known is not None and programs < known.least_programs
    return {node.results[0]} if is_few and query.shape[1] is not key.shape[1] else set()


def _mask_parts(
    facts: GraphFacts, node: Node, known: FlashAttentionFacts | None, read: set[int]
) -> dict[int, int]:
    """Into how many parts programs divide the sum of a mask's gradient; none if it is not read.

    Few tiles of the mask fill the chip only in parts, each of which has some tiles of scores. If
    the mask's sizes vary, so would the memory of all parts, and it usually has many tiles.
    """
    if known is None or read.isdisjoint(node.results[3:]):
        return {}
    query, key, _, mask = (facts.types[value] for value in operands(node)[3:])
    tiles = tiles_of(mask.shape)
    if not tiles.is_constant:
        return {node.results[0]: 1}
    sizes = likely_sizes(facts.graph.symbols)
    few = {name: min(size, _LIKELY_VARYING) for name, size in sizes.items()}
    of_scores = likely_elems((tiles_of((*query.shape[:3], key.shape[2])),), few)
    count = tiles.constant
    most = min(known.least_programs // count, of_scores // count // _PART_TILES)
    return {node.results[0]: max(1, most)}


def _no_attention(facts: GraphFacts, node: Node) -> Refused | None:
    """Why a node is not attention that a kernel could compute; None if it is."""
    if not isinstance(node.attr("scale"), float):
        return Refused("it has dropout, or a scale that varies")
    kinds = [facts.types[value] for value in operands(node)]
    if not is_attention(kinds, node.types):
        return Refused("of other operands")
    if any(is_empty(kind.shape) for kind in kinds):
        return Refused("without scores or results")
    return None


def _several_refused(facts: GraphFacts, node: Node, known: AttentionFacts) -> Refused | None:
    """Why the framework computes attention of several queries; None if kernels do."""
    query, key = (facts.types[operand] for operand in operands(node)[:2])
    rows, queries, keys = product_of(query.shape[:3]), query.shape[2], key.shape[2]
    if queries.is_constant and queries.constant < known.least_queries:
        return Refused(f"of 2 to {known.least_queries - 1} queries")
    if not (rows.is_constant and keys.is_constant):
        return _varying_refused(facts, node, known, rows * keys)
    heads = product_of(query.shape[:2]).constant
    scores = least_block_elems(heads, queries.constant, keys.constant)
    if scores * DType.F32.itemsize_bytes > known.most_score_bytes:
        return Refused(f"with blocks of more than {known.most_score_bytes} bytes of scores")
    return None


def _varying_refused(
    facts: GraphFacts, node: Node, known: AttentionFacts, scores: Expr
) -> Refused | None:
    """Why the framework computes attention with so many scores, which vary; None if kernels do.

    A plan lists its launches, so the number of blocks cannot vary: memory holds all scores.
    """
    if node.attr("is_causal") is True and not known.whole_causal:
        return Refused("of several queries, causal, with varying sizes")
    if not facts.bounds.is_less(scores * DType.F32.itemsize_bytes, known.most_score_bytes + 1):
        most = f"{known.most_score_bytes} bytes"
        return Refused(f"of varying sizes, whose scores may take more than {most}")
    return None
