"""What became of each captured node: the facts behind `kernelfarm explain`."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kernelfarm.ir.graph_ir import Graph


class NodeOutcome(enum.Enum):
    """The fates of a captured node; the value is the word that reports use."""

    DECOMPOSED = "decomposed"
    FOLDED = "folded"
    EXTERN = "extern"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class NodeReport:
    """One captured node by index: its operator, its outcome, and prims' names or a reason."""

    index: int
    op: str
    outcome: NodeOutcome
    detail: str


@dataclass(frozen=True, slots=True)
class PassNote:
    """What a pass did to the prims of some captured nodes."""

    origins: tuple[int, ...]
    outcome: NodeOutcome
    reason: str


def summarize(
    captured: Graph, lowered: Graph, notes: Iterable[PassNote], externs: Mapping[int, str]
) -> tuple[NodeReport, ...]:
    """One report for each captured node; `externs` tells why a node went to the framework."""
    prims: dict[int, list[str]] = {}
    sent: set[int] = set()
    for node in lowered.nodes:
        if node.op == "extern":
            sent.update(node.origins)
        for origin in node.origins:
            prims.setdefault(origin, []).append(node.op)
    last: dict[int, PassNote] = {}
    for note in notes:
        # Folding explains why nothing uses the node any more.
        kept = (o for o in note.origins if o not in last or not _is_folded(last[o]))
        last.update(dict.fromkeys(kept, note))
    return tuple(
        NodeReport(index, node.op, *_outcome_of(index, prims, sent, last, externs))
        for index, node in enumerate(captured.nodes)
    )


def _outcome_of(
    index: int,
    prims: Mapping[int, list[str]],
    sent: set[int],
    last: Mapping[int, PassNote],
    externs: Mapping[int, str],
) -> tuple[NodeOutcome, str]:
    note = last.get(index)
    if index in sent:
        return NodeOutcome.EXTERN, externs.get(index) or (note.reason if note else "")
    if note is not None and _is_folded(note):
        return NodeOutcome.FOLDED, note.reason
    if index in prims:
        return NodeOutcome.DECOMPOSED, ", ".join(dict.fromkeys(prims[index]))
    if note is not None:
        return note.outcome, note.reason
    return NodeOutcome.REMOVED, "an operand or an earlier equal value stands for it"


def _is_folded(note: PassNote) -> bool:
    return note.outcome is NodeOutcome.FOLDED
