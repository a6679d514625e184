"""Sorts of rows that a block holds whole, as Triton text.

Elements become integers of the same order (`kf_order`); lanes past the end become the largest.
Equal elements are ordered by position, so the result is the stable order whatever the algorithm. If
blocks may have many axes, the algorithm is a bitonic network over a hypercube of lanes: for keys of
32 bits Triton's own, on words of 64 bits with the key above the position; for keys of 64 bits, one
of pairs. Otherwise each element counts those before it, in n steps of vector work.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernelfarm.dtypes import DType

_WIDE = frozenset((DType.F64, DType.I64))


@dataclass(frozen=True, slots=True)
class RowSort:
    """One sort in the text.

    `shape` is the text of the block's shape, `rows` and `length` its numbers, powers of two.
    `is_counted`: each element counts those before it, instead of a bitonic network.
    """

    name: str
    operand: str
    operand_dtype: DType
    is_descending: bool
    shape: str
    rows: int
    length: int
    mask: str
    is_counted: bool


def sort_lines(sort: RowSort) -> list[str]:
    """The lines that compute the position of the element of each rank, as a block of i64."""
    name = sort.name
    lines = [
        f"{name}_key = tl.broadcast_to({_key(sort)}, {sort.shape})",
        f"{name}_at = tl.broadcast_to(rindex, {sort.shape})",
    ]
    if sort.mask:
        top = (1 << (63 if sort.operand_dtype in _WIDE else 31)) - 1
        lines.append(f"{name}_key = tl.where({sort.mask}, {name}_key, {top})")
    if sort.length == 1:
        return [*lines, f"{name} = {name}_at.to(tl.int64)"]
    if sort.is_counted:
        return [*lines, *_counted_lines(sort)]
    if sort.operand_dtype in _WIDE:
        sides = f"{_log2(sort.rows)}, {_log2(sort.length)}"
        return [*lines, f"{name} = kf_sorted({name}_key, {name}_at, {sides}).to(tl.int64)"]
    return [
        *lines,
        f"{name}_word = ({name}_key.to(tl.int64) << 32) | {name}_at.to(tl.int64)",
        f"{name} = tl.sort({name}_word, 1) & 4294967295",
    ]


def _key(sort: RowSort) -> str:
    kind = "tl.int64" if sort.operand_dtype in _WIDE else "tl.int32"
    if sort.operand_dtype.is_float:
        key = f"kf_order({sort.operand})"
    else:
        key = f"{sort.operand}.to({kind})"
    return f"~{key}" if sort.is_descending else key


def _counted_lines(sort: RowSort) -> list[str]:
    name, iterations = sort.name, "rnumel" if sort.mask else str(sort.length)
    one_lane = "tl.sum(tl.where({where}, {value}, 0), 1, keep_dims=True)"
    key = one_lane.format(where=f"{name}_at == turn", value=f"{name}_key")
    store = one_lane.format(where=f"{name}_rank == turn", value=f"{name}_at")
    return [
        f"{name}_rank = tl.zeros({sort.shape}, tl.int32)",
        f"for turn in range(0, {iterations}):",
        f"    {name}_other = {key}",
        f"    {name}_tie = ({name}_other == {name}_key) & (turn < {name}_at)",
        f"    {name}_rank += (({name}_other < {name}_key) | {name}_tie).to(tl.int32)",
        f"{name}_place = tl.zeros({sort.shape}, tl.int32)",
        f"for turn in range(0, {iterations}):",
        f"    {name}_place = tl.where({name}_at == turn, {store}, {name}_place)",
        f"{name} = {name}_place.to(tl.int64)",
    ]


def _log2(power: int) -> int:
    return power.bit_length() - 1


def sort_helpers() -> dict[str, str]:
    """The functions that sorts call, by name; each text is one function without its decorator.

    Source: K. E. Batcher, "Sorting networks and their applications", 1968.
    """
    return {
        "kf_order": """
def kf_order(x):
    # a signed integer that orders as floats do; NaN last, both zeros equal
    if x.dtype == tl.float64:
        bits = x.to(tl.int64, bitcast=True)
        top = 9223372036854775807
    else:
        bits = x.to(tl.int32, bitcast=True)
        top = 2147483647
    key = tl.where(bits < 0, bits ^ top, bits)
    key = tl.where(x == 0.0, tl.zeros_like(key), key)
    return tl.where(x != x, tl.zeros_like(key) + top, key)
""",
        "kf_half": """
def kf_half(axes: tl.constexpr, bit: tl.constexpr):
    # 0 and 1 along the axis of a hypercube that is this bit of a lane's number
    return tl.reshape(tl.arange(0, 2), [1] * (axes - bit - 1) + [2] + [1] * bit)
""",
        "kf_exchange": """
def kf_exchange(keys, places, flip, axes: tl.constexpr, bit: tl.constexpr):
    # lanes that differ in one bit put their pairs in order; `flip` turns the order round
    other_keys = keys ^ tl.xor_sum(keys, axes - 1 - bit, True)
    other_places = places ^ tl.xor_sum(places, axes - 1 - bit, True)
    is_later = (keys > other_keys) | ((keys == other_keys) & (places > other_places))
    swaps = is_later != ((flip ^ kf_half(axes, bit)) != 0)
    return tl.where(swaps, other_keys, keys), tl.where(swaps, other_places, places)
""",
        "kf_sorted": """
def kf_sorted(keys, places, log_rows: tl.constexpr, log_length: tl.constexpr):
    # the places in the order of (key, place), row by row: a bitonic network
    axes: tl.constexpr = log_rows + log_length
    shape: tl.constexpr = places.shape
    keys = tl.reshape(keys, [2] * axes)
    places = tl.reshape(places, [2] * axes)
    for stage in tl.static_range(1, log_length + 1):
        if stage < log_length:
            flip = kf_half(axes, stage)
        else:
            flip = 0
        for step in tl.static_range(stage):
            keys, places = kf_exchange(keys, places, flip, axes, stage - 1 - step)
    return tl.reshape(places, shape)
""",
    }
