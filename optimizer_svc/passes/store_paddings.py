"""Stores padded images whose rows are short, so that windows read whole vectors of them.

A kernel that pads an image while it reads it compares each pixel with the image's ends. Along rows
of fewer pixels than two vectors have lanes, a processor then computes one pixel at a time. The
padded image is small, and what reads it has no comparisons.
"""

from __future__ import annotations

from dataclasses import replace

from kernelfarm.ir.algebra.expr import ONE, ZERO
from kernelfarm.ir.graph_ir import Node
from kernelfarm.ir.work_budget import spend
from kernelfarm.targets import TargetFacts
from optimizer_svc.analysis.graph_facts import GraphFacts, operands
from optimizer_svc.analysis.slices import memory_strides
from optimizer_svc.analysis.storages import temporary_storage
from optimizer_svc.ir.materialization import Materialization

_LANE_BYTES = 4
# Windows of 3 pixels of a row alone gain nothing.
_LEAST_READERS = 5


def store_paddings(chosen: Materialization, target: TargetFacts) -> Materialization:
    """The materialization with such images in memory; other targets' kernels need none."""
    if target.processor is None:
        return chosen
    facts = chosen.facts
    lanes = target.processor.vector_bytes // _LANE_BYTES
    pads = [node for node in facts.graph.nodes if node.op == "pad"]
    found = [node.results[0] for node in pads if _has_short_rows(facts, node, 2 * lanes)]
    fresh = [value for value in found if value not in chosen.storages]
    if not fresh:
        return chosen
    storages = {value: temporary_storage(facts, value) for value in fresh}
    members = sorted((*chosen.members, *fresh), key=lambda value: facts.positions[value])
    count = f"{len(fresh)} padded images" if len(fresh) > 1 else "a padded image"
    note = f"stored: {count} with rows of fewer than {2 * lanes} elements, which windows read"
    return replace(
        chosen,
        storages={**chosen.storages, **storages},
        members=tuple(members),
        notes=(*chosen.notes, note),
    )


def _has_short_rows(facts: GraphFacts, node: Node, limit: int) -> bool:
    """True if windows read a padded image whose short rows are contiguous in memory."""
    spend()
    (value,) = operands(node)
    shape = facts.types[value].shape
    if not shape or not all(extent.is_constant for extent in shape):
        return False
    low, high = node.attr("low"), node.attr("high")
    assert isinstance(low, tuple)
    assert isinstance(high, tuple)
    is_padded = low[-1] not in (0, ZERO) or high[-1] not in (0, ZERO)
    is_row = memory_strides(facts, value)[-1] is ONE
    readers = facts.consumers.get(node.results[0], ())
    return is_padded and is_row and shape[-1].constant < limit and len(readers) >= _LEAST_READERS
