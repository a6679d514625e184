"""Guided reductions as Triton text: each lane keeps a guide, and a sum relative to it.

At the end, plain reductions, which every vendor's toolchain lowers, join the lanes: relative to the
row's maximum, or about the row's mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from codegen_svc.emitters.triton.reduce import (
    Reduction,
    ReductionText,
    block_value,
    filled,
    plain_text,
    whole,
    work_type,
)


@dataclass(frozen=True, slots=True)
class GuidedReduction:
    """One guided reduction in the text.

    `guide` is the name of the statement that is its guide, empty if there is none. `points` is the
    text of the number of reduction points, at least 1. `has_flushing_exp`: as in
    `with_narrow_functions`. With `groups`, a lane keeps one guide for so many points of a block.
    """

    like: Reduction
    guide: str
    points: str
    has_flushing_exp: bool = False
    groups: int = 0


def guided_text(g: GuidedReduction) -> ReductionText:
    """The lines of a guided reduction in all forms of a kernel."""
    return _softmax_sum(g) if g.like.op == "softmax_sum" else _welford_m2(g)


def moments_text(g: GuidedReduction) -> ReductionText:
    """The lines of welford_m2 and its guide where a lane's first point is known before the loop.

    Each lane sums the distances from its first point, and their squares. If lanes have n points
    each, these squares are together at most 2 (n + 1) times the row's sum of squares about its
    mean, so making the one from the other costs few digits, whatever the row holds.
    """
    r = g.like
    name, mean, total = r.name, g.guide or f"{r.name}_sum", f"{r.name}_total"
    first, apart, away = f"{name}_first", f"{name}_apart", f"{name}_away"
    distance = f"{r.operand} - {first}"
    lane = "tl.arange(0, RBLOCK)[None, :] < rnumel % RBLOCK"
    count = f"(rnumel // RBLOCK + tl.where({lane}, 1, 0)).to({work_type(r)})"
    return ReductionText(
        initial=(
            f"{first} = {r.operand}",
            f"{total} = {filled(r, '0.0')}",
            f"{name}_acc = {filled(r, '0.0')}",
        ),
        step=(
            f"{apart} = " + (f"tl.where({r.mask}, {distance}, 0.0)" if r.mask else distance),
            f"{total} += {apart}",
            f"{name}_acc += {apart} * {apart}",
        ),
        final=(
            f"{name}_count = {count}",
            f"{mean} = tl.sum({total} + {name}_count * {first}, 1, keep_dims=True)",
            f"{away} = {first} - {mean} / {g.points}",
            f"{total} = 2.0 * {total} + {name}_count * {away}",
            f"{name} = tl.sum({name}_acc + {away} * {total}, 1, keep_dims=True)",
        ),
    )


def _softmax_sum(g: GuidedReduction) -> ReductionText:
    r = g.like
    name, top = r.name, g.guide or f"{r.name}_top"
    guide = replace(r, op="amax", name=top)
    own = ReductionText() if g.guide else plain_text(guide)
    acc = f"{name}_acc"
    is_flushing = g.has_flushing_exp and work_type(r) == "tl.float32"
    add = "kf_add_flushing_exp" if is_flushing else "kf_add_exp"
    if g.groups:
        return _grouped_softmax_sum(g, guide, own, f"{add}s")
    # exp(-infinity - top) is 0.
    masked = replace(r, mask="") if r.past == -math.inf else r
    total = _masked_sum(masked, f"tl.exp({r.operand} - {top})")
    return ReductionText(
        persistent=(*own.persistent, f"{name} = {total}"),
        initial=(*own.initial, f"{acc} = tl.full({r.shape}, 0.0, {work_type(r)})"),
        step=(f"{acc} = {add}({top}_acc, {acc}, {block_value(guide)})", *own.step),
        final=(*own.final, f"{name} = kf_softmax_total({top}_acc, {acc}, {top})"),
    )


def in_lanes(r: Reduction, groups: int) -> Reduction:
    """A reduction whose accumulator has an element for several points of a block."""
    return replace(r, shape=f"[XBLOCK, {_lanes(groups)}]")


def _lanes(groups: int) -> str:
    return f"RBLOCK // {groups}"


def _grouped_softmax_sum(
    g: GuidedReduction, guide: Reduction, own: ReductionText, add: str
) -> ReductionText:
    """The lines of a loop whose lanes keep one top for several points of a block."""
    name, top = g.like.name, guide.name
    acc, several, tops = f"{name}_acc", f"{name}_several", f"{name}_tops"
    lanes, shape = in_lanes(g.like, g.groups), f"[XBLOCK, {g.groups}, {_lanes(g.groups)}]"
    initial = () if g.guide else plain_text(in_lanes(guide, g.groups)).initial
    return ReductionText(
        initial=(*initial, f"{acc} = {filled(lanes, '0.0')}"),
        step=(
            f"{several} = tl.reshape({block_value(guide)}, {shape})",
            f"{tops} = kf_nan_max({top}_acc, tl.reduce({several}, 1, kf_nan_max))",
            f"{acc} = {add}({top}_acc, {acc}, {several}, {tops})",
            f"{top}_acc = {tops}",
        ),
        final=(*own.final, f"{name} = kf_softmax_total({top}_acc, {acc}, {top})"),
    )


def _welford_m2(g: GuidedReduction) -> ReductionText:
    r = g.like
    name, kind = r.name, work_type(r)
    first, mean, acc = f"{name}_first", f"{name}_mean", f"{name}_acc"
    apart = f"{name}_apart"
    total = replace(r, op="sum", name=f"{name}_sum")
    own = () if g.guide else plain_text(total).persistent
    value = whole(r, f"{r.operand} - {first}")
    starts = "rindex < RBLOCK"
    if r.mask:
        value, starts = (
            f"tl.where({r.mask}, {r.operand} - {first}, {mean})",
            f"({starts}) & {r.mask}",
        )
    share = f"tl.full([1, 1], 1.0, {kind}) / (roffset // RBLOCK + 1)"
    lane = "tl.arange(0, RBLOCK)[None, :] < rnumel % RBLOCK"
    return ReductionText(
        persistent=(
            *own,
            f"{apart} = {r.operand} - {g.guide or total.name} / {g.points}",
            f"{name} = {_masked_sum(r, f'{apart} * {apart}')}",
        ),
        initial=tuple(f"{word} = tl.full({r.shape}, 0.0, {kind})" for word in (first, mean, acc)),
        step=(
            # Means are relative to a lane's first point, so that a large mean costs no digits.
            f"{first} = tl.where({starts}, {r.operand}, {first})",
            f"{mean}, {acc} = kf_welford({mean}, {acc}, {value}, {share})",
        ),
        final=(
            # A lane past the end of a short row has no point.
            f"{name}_count = (rnumel // RBLOCK + tl.where({lane}, 1, 0)).to({kind})",
            f"{name}_total = tl.sum({name}_count * ({first} + {mean}), 1, keep_dims=True)",
            f"{apart} = ({first} - {name}_total / {g.points}) + {mean}",
            f"{name} = tl.sum({acc} + {name}_count * {apart} * {apart}, 1, keep_dims=True)",
        ),
    )


def _masked_sum(r: Reduction, value: str) -> str:
    masked = f"tl.where({r.mask}, {value}, 0.0)" if r.mask else value
    return f"tl.sum({whole(r, masked)}, 1, keep_dims=True)"
