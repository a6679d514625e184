"""Scans as Triton text: the scan of a block, and the value that a loop carries between blocks.

Lanes past the end come last, so their values reach no lane before them. Extrema propagate NaN. The
index of an extremum is its last position; a NaN counts as an extremum.

Shapes:
    a block: [X, R]; a carried value: [X, 1].
"""

from __future__ import annotations

from dataclasses import dataclass

from codegen_svc.emitters.triton.names import triton_type
from codegen_svc.emitters.triton.reduce import Reduction, block_value, neutral, work_type

_COMBINE = {
    "cumsum": "kf_sum",
    "cumprod": "kf_product",
    "cummax": "kf_nan_max",
    "cummin": "kf_nan_min",
    "cummax_index": "kf_last_max",
    "cummin_index": "kf_last_min",
    "logcumsumexp": "kf_log_add_exp",
}
_REDUCTION = {
    "cumsum": "sum",
    "cumprod": "prod",
    "cummax": "amax",
    "cummin": "amin",
    "cummax_index": "amax",
    "cummin_index": "amin",
    "logcumsumexp": "amax",
}
"""The reduction with the same neutral element."""


@dataclass(frozen=True, slots=True)
class RunningScan:
    """One scan in the text; `like` is a reduction with its types, shape and names."""

    op: str
    like: Reduction
    rows: str

    @property
    def is_index(self) -> bool:
        """True if the result is a position."""
        return self.op.endswith("_index")


def like_reduction(op: str) -> str:
    """The reduction that starts from the scan's neutral element."""
    return _REDUCTION[op]


def carry_lines(scan: RunningScan) -> list[str]:
    """The carried values before the first block of a loop."""
    name, shape = scan.like.name, f"[{scan.rows}, 1]"
    lines = [f"{name}_carry = tl.full({shape}, {neutral(scan.like)}, {work_type(scan.like)})"]
    if scan.is_index:
        lines.append(f"{name}_carry_at = tl.zeros({shape}, tl.int{scan.like.index_bits})")
    return lines


def scan_lines(scan: RunningScan, *, is_looped: bool) -> list[str]:
    """The scan of one block; in a loop, with the carried value before and after it."""
    name, combine = scan.like.name, _COMBINE[scan.op]
    result = triton_type(scan.like.dtype, scan.like.target)
    lines = [f"{name}_value = {block_value(scan.like)}"]
    if scan.is_index:
        return lines + _index_lines(scan, combine, result, is_looped=is_looped)
    own = f"tl.associative_scan({name}_value, 1, {combine})"
    if not is_looped:
        return [*lines, f"{name} = {own}.to({result})"]
    return [
        *lines,
        f"{name}_now = {combine}({name}_carry, {own})",
        f"{name} = {name}_now.to({result})",
        f"{name}_carry = {_last_lane(f'{name}_now')}",
    ]


def _index_lines(scan: RunningScan, combine: str, result: str, *, is_looped: bool) -> list[str]:
    name, shape = scan.like.name, scan.like.shape
    pair = f"({name}_value, {name}_at)"
    lines = [
        f"{name}_at = tl.broadcast_to(rindex, {shape})",
        f"{name}_best, {name}_hit = tl.associative_scan({pair}, 1, {combine})",
    ]
    if not is_looped:
        return [*lines, f"{name} = {name}_hit.to({result})"]
    carried = f"{name}_carry, {name}_carry_at"
    return [
        *lines,
        f"{name}_best, {name}_hit = {combine}({carried}, {name}_best, {name}_hit)",
        f"{name} = {name}_hit.to({result})",
        f"{name}_carry = {_last_lane(f'{name}_best')}",
        f"{name}_carry_at = {_last_lane(f'{name}_hit')}",
    ]


def _last_lane(value: str) -> str:
    """The value of a full block's last lane; only the last block may not be full."""
    return f"tl.sum(tl.where(rindex == roffset + (RBLOCK - 1), {value}, 0), 1, keep_dims=True)"
