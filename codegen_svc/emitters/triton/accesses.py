"""Loads, stores, updates and indirect indices as lines of Triton text."""

from __future__ import annotations

from codegen_svc.emitters.triton.block import Block
from codegen_svc.emitters.triton.float8 import FLOATS_8
from codegen_svc.emitters.triton.names import triton_type
from codegen_svc.emitters.triton.past_rows import ZERO, is_filled
from codegen_svc.emitters.triton.scalar import literal_text
from codegen_svc.emitters.triton.scatter import ScatterUpdate, update_line
from codegen_svc.emitters.triton.word_loads import WORD_LOAD
from kernelfarm.dtypes import DType
from kernelfarm.errors import KernelRejectedError
from kernelfarm.ir.algebra.expr import ONE, Expr
from kernelfarm.ir.loop_ir import Indirect, Literal, Load, Store, scattering_stores

STREAMED = "streamed"
"""The policy of loads whose lines the first-level cache does not keep."""


def load_lines(block: Block, number: int, load: Load, eviction: str = "") -> list[str]:
    """The lines of a load; `eviction` is a policy for its cache lines: Triton's name, or ours."""
    if not block.rules.takes_repeated_pointers:
        axis = _repeats_along(block, number, load.index)
        if axis is not None:
            return _unrepeated_load_lines(block, number, load, axis)
    if number in block.words:
        return _word_lines(block, number, load, eviction)
    name, param = block.names[number], block.kernel.param(load.param)
    masks = _masks(block, number, load)
    arguments = _pointers(block, number, load)
    other = _other_text(block, load, param.dtype)
    if masks:
        arguments += f", mask={masks}, other={other or _zero(param.dtype)}"
    arguments += _policy_text(_own_policy(block, load, eviction))
    loaded = f"tl.load({arguments})"
    if param.dtype is DType.BOOL:
        loaded += " != 0"
    lines = [f"{name} = {loaded}"]
    if load.other is not None and other is None:
        mask = block.names[_required(load.mask)]
        lines.append(f"{name} = tl.where({mask}, {name}, {block.names[load.other]})")
    return lines


def _own_policy(block: Block, load: Load, eviction: str) -> str:
    """The policy of a load; what a streamed parameter holds is kept longer than what is written."""
    takes_policy = _is_streamed(block, load.param) and eviction in ("", STREAMED)
    return "evict_last" if takes_policy else eviction


def _is_streamed(block: Block, param: str) -> bool:
    """Rows that are copied to shared memory have other instructions."""
    return param in block.rules.streamed and not block.tiling.shared_pieces


def _policy_text(eviction: str) -> str:
    if eviction == STREAMED:
        return ', cache_modifier=".cg"'
    return f', eviction_policy="{eviction}"' if eviction else ""


def _word_lines(block: Block, number: int, load: Load, eviction: str) -> list[str]:
    """Loads a word and takes a byte of it. Equal loads of a word are one load to the compiler."""
    part = block.words[number]
    name, word = block.names[number], f"{block.names[part.first]}_word"
    masks = _masks(block, number, load)
    words = f"{load.param}_ptr.to(tl.pointer_type(tl.int32), bitcast=True)"
    arguments = f"{words} + ({_pointer_text(block, number, part.index)})"
    arguments += f", mask={masks}, other=0" if masks else ""
    arguments += _policy_text(eviction)
    kind = triton_type(block.kernel.param(load.param).dtype, block.rules.target)
    return [
        f"{block.names[part.first]}{WORD_LOAD}{arguments})",
        f"{name} = ({word} >> {8 * part.byte}).to({kind})",
    ]


def store_line(block: Block, number: int, store: Store) -> str:
    """The line of a store, or of an update at an index that is data."""
    if number in scattering_stores(block.kernel):
        return _scatter_line(block, number, store)
    param = block.kernel.param(store.param)
    value = block.names[store.value]
    if param.dtype is DType.BOOL:
        value = f"{value}.to(tl.uint8)"
    # A store that does not differ between outer points: the kernel has only one outer point.
    mask = _point_mask(block, number) if number in block.across_x else _column_mask(block, number)
    mask = f", mask={mask}" if mask else ""
    policy = _policy_text("evict_first" if _is_streamed(block, store.param) else "")
    return f"tl.store({_pointers(block, number, store)}, {value}{mask}{policy})"


def indirect_lines(block: Block, number: int, statement: Indirect) -> list[str]:
    """The lines of an indirect index: a negative one counts from the end, all are clamped."""
    name, value = block.names[number], block.names[statement.value]
    extent = block.writer.text(statement.extent)
    lines = [
        f"{name} = tl.where({value} < 0, {value} + ({extent}), {value})",
        f"{name} = tl.minimum(tl.maximum({name}, 0), ({extent}) - 1)",
    ]
    if block.tiling.index_bits == 32 and block.dtypes[statement.value] is DType.I64:
        lines.append(f"{name} = {name}.to(tl.int32)")
    if block.tiling.index_bits == 64 and block.dtypes[statement.value] is not DType.I64:
        lines.append(f"{name} = {name}.to(tl.int64)")
    if not block.rules.takes_lone_pointers and _is_one_lane(block, number):
        # The compiler refuses pointers made of a block of one index, but accepts those of a number.
        axes = "tl.sum(tl.sum({}, 1), 0)" if block.rank == 2 else "tl.sum({}, 0)"
        unit = f"tl.full({block.unit_shape}, 0, {name}.dtype)"
        lines.append(f"{name} = {unit} + {axes.format(name)}")
    return lines


def position_text(block: Block, number: int, index: Expr) -> str:
    """An index expression as a block; never a Triton scalar, so that masks and values fit it."""
    text = block.writer.text(index)
    if number in block.across_x or number in block.varying:
        return text
    kind = "tl.int64" if block.tiling.index_bits == 64 else "tl.int32"
    return f"tl.full({block.unit_shape}, 0, {kind}) + {text}"


def _pointers(block: Block, number: int, access: Load | Store) -> str:
    """The pointers of a load or store."""
    rest = _beside_the_piece(block, number, access.index)
    if rest is None:
        return f"{access.param}_ptr + ({_pointer_text(block, number, access.index)})"
    # Last, so that a piece is a constant of the instruction, not an address in registers.
    row = f"{access.param}_ptr + ({block.writer.text(rest)})"
    return f"{row} + roffset + tl.arange(0, RBLOCK)[None, :]"


def _beside_the_piece(block: Block, number: int, index: Expr) -> Expr | None:
    """The rest of an index that counts the points of a row held in pieces; None for others."""
    reduction = block.kernel.reduction
    if not block.tiling.pieces or len(reduction) != 1:
        return None
    spans = block.is_across_x(index), block.is_varying(index)
    parts = index.linear_in(reduction[0].name)
    if parts is None or parts[0] is not ONE:
        return None
    return parts[1] if spans == (number in block.across_x, number in block.varying) else None


def _pointer_text(block: Block, number: int, index: Expr) -> str:
    """The positions of a load or store, one for each point that its mask or value differs for."""
    spans = block.is_across_x(index), block.is_varying(index)
    needs = number in block.across_x, number in block.varying
    if spans == needs:
        return position_text(block, number, index)
    text = block.writer.text(index)
    if not any(spans):
        kind = "tl.int64" if block.tiling.index_bits == 64 else "tl.int32"
        text = f"tl.full({block.unit_shape}, 0, {kind}) + {text}"
    sizes = [
        size if is_needed else "1"
        for size, is_needed in zip((block.x_size, block.r_size), needs, strict=True)
    ]
    return f"tl.broadcast_to({text}, [{', '.join(sizes[: block.rank])}])"


def _repeats_along(block: Block, number: int, index: Expr) -> int | None:
    """The axis of a two-axis block along which a masked load repeats each element; None if none."""
    match block.is_across_x(index), block.is_varying(index):
        case (True, False) if number in block.varying:
            return 1
        case (False, True) if number in block.across_x:
            return 0
    return None


def _unrepeated_load_lines(block: Block, number: int, load: Load, axis: int) -> list[str]:
    """Reads each element once, if the mask of any of its lanes is on; then applies the mask."""
    name, param = block.names[number], block.kernel.param(load.param)
    masks, zero = _masks(block, number, load), _zero(param.dtype)
    position = position_text(block, number, load.index)
    other = zero if load.other is None else block.names[load.other]
    return [
        f"{name}_mask = tl.broadcast_to({masks}, {block.full_shape})",
        f"{name}_read = tl.max({name}_mask.to(tl.int32), {axis}, keep_dims=True) != 0",
        f"{name} = tl.load({load.param}_ptr + ({position}), mask={name}_read, other={zero})",
        *([f"{name} = {name} != 0"] if param.dtype is DType.BOOL else []),
        f"{name} = tl.where({name}_mask, {name}, {other})",
    ]


def _other_text(block: Block, load: Load, dtype: DType) -> str | None:
    """The value of masked-off lanes if it is a literal; None if it is computed."""
    if load.other is None:
        is_other = block.fill != ZERO and is_filled(block.kernel, load)
        return literal_text(block.fill, dtype) if is_other else _zero(dtype)
    if dtype in FLOATS_8:
        return None
    statement = block.kernel.body[load.other]
    return literal_text(statement.value, dtype) if isinstance(statement, Literal) else None


def _masks(block: Block, number: int, load: Load) -> str:
    """The mask of the lanes that may be read: the kernel's points and the load's own mask."""
    parts = []
    if block.x_mask and number in block.across_x:
        parts.append(block.x_mask)
    if block.r_mask and number in block.varying:
        parts.append(block.r_mask)
    if load.mask is not None:
        parts.append(block.names[load.mask])
    return " & ".join(parts)


def _scatter_line(block: Block, number: int, store: Store) -> str:
    """The line of an update, which happens once for each point."""
    shape = f"[{block.x_size}]"
    if block.rank == 2:
        shape = block.full_shape if number in block.varying else f"[{block.x_size}, 1]"
    position = position_text(block, number, store.index)
    return update_line(
        ScatterUpdate(
            mode=store.mode,
            dtype=block.kernel.param(store.param).dtype,
            pointers=f"{store.param}_ptr + tl.broadcast_to({position}, {shape})",
            value=block.names[store.value],
            shape=shape,
            mask=_point_mask(block, number),
            target=block.rules.target,
        )
    )


def _point_mask(block: Block, number: int) -> str:
    return " & ".join(mask for mask in (block.x_mask, _column_mask(block, number)) if mask)


def _column_mask(block: Block, number: int) -> str:
    return block.r_mask if number in block.varying else ""


def _is_one_lane(block: Block, number: int) -> bool:
    return number not in block.varying and (block.tiling.xsub == 1 or number not in block.across_x)


def _zero(dtype: DType) -> str:
    return "0.0" if dtype.is_float and dtype not in FLOATS_8 else "0"


def _required(number: int | None) -> int:
    if number is None:
        raise KernelRejectedError("a load has a value for masked-off lanes but no mask")
    return number
