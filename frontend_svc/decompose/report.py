"""The outcome of each captured node, as `kernelfarm explain` shows it."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kernelfarm.ir.graph_ir import Graph


class NodeOutcome(enum.Enum):
    """The outcome of a captured node; the value is the word in reports."""

    DECOMPOSED = "decomposed"
    FOLDED = "folded"
    EXTERN = "extern"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class NodeReport:
    """One captured node by index: its operator, its outcome, and its prims or a reason."""

    index: int
    op: str
    outcome: NodeOutcome
    detail: str


@dataclass(frozen=True, slots=True)
class PassNote:
    """The effect of a pass on the prims of some captured nodes."""

    origins: tuple[int, ...]
    outcome: NodeOutcome
    reason: str


def summarize(
    captured: Graph, prims: Graph, notes: Iterable[PassNote], externs: Mapping[int, str]
) -> tuple[NodeReport, ...]:
    """One report for each captured node; `externs` are the reasons why the framework runs nodes."""
    ops: dict[int, list[str]] = {}
    extern: set[int] = set()
    for node in prims.nodes:
        if node.op == "extern":
            extern.update(node.origins)
        for origin in node.origins:
            ops.setdefault(origin, []).append(node.op)
    last: dict[int, PassNote] = {}
    for note in notes:
        # A note on folding explains why later passes removed the node.
        kept = (o for o in note.origins if o not in last or not _is_folded(last[o]))
        last.update(dict.fromkeys(kept, note))
    return tuple(
        NodeReport(index, node.op, *_outcome_of(index, ops, extern, last, externs))
        for index, node in enumerate(captured.nodes)
    )


def _outcome_of(
    index: int,
    ops: Mapping[int, list[str]],
    extern: set[int],
    last: Mapping[int, PassNote],
    externs: Mapping[int, str],
) -> tuple[NodeOutcome, str]:
    note = last.get(index)
    if index in extern:
        return NodeOutcome.EXTERN, externs.get(index) or (note.reason if note else "")
    if note is not None and _is_folded(note):
        return NodeOutcome.FOLDED, note.reason
    if index in ops:
        return NodeOutcome.DECOMPOSED, ", ".join(dict.fromkeys(ops[index]))
    if note is not None:
        return note.outcome, note.reason
    return NodeOutcome.REMOVED, "its value is an operand or an earlier equal value"


def _is_folded(note: PassNote) -> bool:
    return note.outcome is NodeOutcome.FOLDED
