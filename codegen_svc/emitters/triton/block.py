"""Statements of a loop kernel as lines of Triton text, given where each value lives."""

from __future__ import annotations

from dataclasses import dataclass

from codegen_svc.emitters.triton.float8 import FLOATS_8, narrowed
from codegen_svc.emitters.triton.guided import GuidedReduction, guided_text
from codegen_svc.emitters.triton.index import IndexWriter, index_writer
from codegen_svc.emitters.triton.names import triton_type, value_dtype, value_names
from codegen_svc.emitters.triton.reduce import Reduction, ReductionText, plain_text
from codegen_svc.emitters.triton.scalar import Operand, ScalarRules, compute_text, literal_text
from codegen_svc.emitters.triton.scan import RunningScan, like_reduction, scan_lines
from codegen_svc.emitters.triton.scatter import ScatterUpdate, update_line
from codegen_svc.emitters.triton.sort import RowSort, sort_lines
from codegen_svc.emitters.triton.tiling import Tiling, static_numel
from kernelfarm.dtypes import DType
from kernelfarm.errors import KernelRejectedError
from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.loop_ir import (
    GUIDES,
    Compute,
    IndexValue,
    Indirect,
    Kernel,
    Literal,
    Load,
    Reduce,
    Scan,
    Sort,
    Store,
    index_of,
    operands_of,
    scattering_stores,
    varying_values,
)


@dataclass(frozen=True, slots=True)
class Block:
    """What the text of one statement depends on.

    `across_x`: statements whose block extends over the outer points; `varying`: over the reduction
    points. `x_mask`, `r_mask`: names of masks, empty where every lane is a point.
    """

    kernel: Kernel
    tiling: Tiling
    rules: ScalarRules
    names: tuple[str, ...]
    dtypes: tuple[DType | None, ...]
    writer: IndexWriter
    across_x: frozenset[int]
    varying: frozenset[int]
    x_mask: str
    r_mask: str

    @property
    def rank(self) -> int:
        """Axes of every block: 2 if the kernel has reduction axes."""
        return 2 if self.kernel.reduction else 1

    @property
    def unit_shape(self) -> str:
        """Shape text of a block of one element."""
        return "[1, 1]" if self.rank == 2 else "[1]"

    @property
    def full_shape(self) -> str:
        """Shape text of a block over all points held at once."""
        return f"[{self.x_size}, RBLOCK]" if self.rank == 2 else f"[{self.x_size}]"

    @property
    def x_size(self) -> str:
        """Name of the number of outer points held at once."""
        return "XBLOCK_SUB" if self.tiling.xsub != self.tiling.xblock else "XBLOCK"


def make_block(kernel: Kernel, tiling: Tiling, rules: ScalarRules) -> Block:
    """The facts about a kernel that its text needs."""
    names = value_names(kernel)
    renamed = {s.symbol: names[n] for n, s in enumerate(kernel.body) if isinstance(s, Indirect)}
    return Block(
        kernel=kernel,
        tiling=tiling,
        rules=rules,
        names=names,
        dtypes=tuple(value_dtype(kernel, s) for s in kernel.body),
        writer=index_writer(kernel, renamed),
        across_x=_across_x(kernel),
        varying=varying_values(kernel),
        x_mask="xmask" if _needs_mask(static_numel(kernel.outer), tiling.xblock) else "",
        r_mask="rmask"
        if kernel.reduction and _needs_mask(static_numel(kernel.reduction), tiling.rblock)
        else "",
    )


def statement_lines(block: Block, number: int) -> list[str]:
    """The lines of one statement that is no reduction."""
    statement = block.kernel.body[number]
    name = block.names[number]
    match statement:
        case Load():
            return _load_lines(block, number, statement)
        case Literal() | IndexValue():
            return [f"{name} = {_number_text(block, number, statement)}"]
        case Compute(op=op, operands=operands, dtype=dtype):
            texts = tuple(_operand(block, operand) for operand in operands)
            return [f"{name} = {compute_text(op, texts, dtype, block.rules)}"]
        case Indirect():
            return _indirect_lines(block, number, statement)
        case Store():
            return [_store_line(block, number, statement)]
        case Sort() | Scan() | Reduce():
            return _running_lines(block, number)


def _number_text(block: Block, number: int, statement: Literal | IndexValue) -> str:
    kind = triton_type(statement.dtype, block.rules.target)
    if isinstance(statement, IndexValue):
        return f"({position_text(block, number, statement.expr)}).to({kind})"
    literal = literal_text(statement.value, statement.dtype)
    if statement.dtype in FLOATS_8:
        return narrowed(f"tl.full({block.unit_shape}, {literal}, tl.float32)", statement.dtype)
    return f"tl.full({block.unit_shape}, {literal}, {kind})"


def _running_lines(block: Block, number: int) -> list[str]:
    statement = block.kernel.body[number]
    if isinstance(statement, Reduce):
        raise ValueError("reductions have lines of their own")
    if isinstance(statement, Sort):
        return sort_lines(_sort_of(block, number, statement))
    return scan_lines(scan_of(block, number), is_looped=not block.tiling.is_persistent)


def reduction_text(block: Block, number: int) -> ReductionText:
    """The lines of a reduction statement in all forms of a kernel."""
    body = block.kernel.body
    statement = body[number]
    if not isinstance(statement, Reduce):
        raise ValueError(f"statement {number} is no reduction")
    reduction = _reduction(block, number, statement, statement.op)
    if statement.op not in GUIDES:
        return plain_text(reduction)
    guide = Reduce(GUIDES[statement.op], statement.operand, statement.dtype)
    points = static_numel(block.kernel.reduction)
    return guided_text(
        GuidedReduction(
            like=reduction,
            guide=block.names[body.index(guide)] if guide in body[:number] else "",
            points="tl.maximum(rnumel, 1)" if points is None else str(max(points, 1)),
        )
    )


def scan_of(block: Block, number: int) -> RunningScan:
    """The facts of a scan statement that its text needs."""
    statement = block.kernel.body[number]
    if not isinstance(statement, Scan):
        raise ValueError(f"statement {number} is no scan")
    like = _reduction(block, number, statement, like_reduction(statement.op))
    return RunningScan(statement.op, like, block.x_size)


def _sort_of(block: Block, number: int, sort: Sort) -> RowSort:
    """The facts of a sort statement that its text needs; the block holds whole rows."""
    dtype = block.dtypes[sort.operand]
    if dtype is None or not block.tiling.is_persistent:
        raise KernelRejectedError(f"sort {number} needs a value for each point of a whole row")
    return RowSort(
        name=block.names[number],
        operand=block.names[sort.operand],
        operand_dtype=dtype,
        is_descending=sort.descending,
        shape=block.full_shape,
        rows=block.tiling.xsub,
        length=block.tiling.rblock,
        mask=block.r_mask,
        is_counted=block.rules.counts_to_sort,
    )


def _reduction(block: Block, number: int, statement: Reduce | Scan, op: str) -> Reduction:
    operand_dtype = block.dtypes[statement.operand]
    if operand_dtype is None:
        raise KernelRejectedError(
            f"reduction {number} reads statement {statement.operand}, which has no value"
        )
    spans_x = statement.operand in block.across_x or block.tiling.xsub == 1
    spans_r = statement.operand in block.varying or block.tiling.rblock == 1 or bool(block.r_mask)
    return Reduction(
        op=op,
        name=block.names[number],
        operand=block.names[statement.operand],
        operand_dtype=operand_dtype,
        dtype=statement.dtype,
        shape=block.full_shape,
        mask=block.r_mask,
        index_bits=block.tiling.index_bits,
        target=block.rules.target,
        is_whole=spans_x and spans_r,
    )


def position_text(block: Block, number: int, index: Expr) -> str:
    """An index expression as a block; never a Triton scalar, so that masks and values fit."""
    text = block.writer.text(index)
    if number in block.across_x or number in block.varying:
        return text
    kind = "tl.int64" if block.tiling.index_bits == 64 else "tl.int32"
    return f"tl.full({block.unit_shape}, 0, {kind}) + {text}"


def pointer_text(block: Block, number: int, index: Expr) -> str:
    """The positions of a load or store, one for each point that its mask or value varies over."""
    spans = _index_across_x(block, index), _index_varies(block, index)
    needs = number in block.across_x, number in block.varying
    if spans == needs:
        return position_text(block, number, index)
    text = block.writer.text(index)
    if not any(spans):
        kind = "tl.int64" if block.tiling.index_bits == 64 else "tl.int32"
        text = f"tl.full({block.unit_shape}, 0, {kind}) + {text}"
    sizes = [
        size if is_needed else "1"
        for size, is_needed in zip((block.x_size, "RBLOCK"), needs, strict=True)
    ]
    return f"tl.broadcast_to({text}, [{', '.join(sizes[: block.rank])}])"


def _load_lines(block: Block, number: int, load: Load) -> list[str]:
    if not block.rules.takes_repeated_pointers:
        axis = _repeats_along(block, number, load.index)
        if axis is not None:
            return _unrepeated_load_lines(block, number, load, axis)
    name, param = block.names[number], block.kernel.param(load.param)
    masks = _masks(block, number, load)
    arguments = f"{load.param}_ptr + ({pointer_text(block, number, load.index)})"
    other = _other_text(block, load, param.dtype)
    if masks:
        arguments += f", mask={masks}, other={other or _zero(param.dtype)}"
    loaded = f"tl.load({arguments})"
    if param.dtype is DType.BOOL:
        loaded += " != 0"
    lines = [f"{name} = {loaded}"]
    if load.other is not None and other is None:
        mask = block.names[_required(load.mask)]
        lines.append(f"{name} = tl.where({mask}, {name}, {block.names[load.other]})")
    return lines


def _repeats_along(block: Block, number: int, index: Expr) -> int | None:
    """The axis of a two-axis block along which a masked load names each element again."""
    match _index_across_x(block, index), _index_varies(block, index):
        case (True, False) if number in block.varying:
            return 1
        case (False, True) if number in block.across_x:
            return 0
    return None


def _unrepeated_load_lines(block: Block, number: int, load: Load, axis: int) -> list[str]:
    """Reads each element once, if any lane that names it is on; then its mask chooses by lane."""
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
        return _zero(dtype)
    if dtype in FLOATS_8:
        return None
    statement = block.kernel.body[load.other]
    return literal_text(statement.value, dtype) if isinstance(statement, Literal) else None


def _masks(block: Block, number: int, load: Load) -> str:
    """Lanes that may be read: points of the kernel, and the load's own mask."""
    parts = []
    if block.x_mask and number in block.across_x:
        parts.append(block.x_mask)
    if block.r_mask and number in block.varying:
        parts.append(block.r_mask)
    if load.mask is not None:
        parts.append(block.names[load.mask])
    return " & ".join(parts)


def _scatter_line(block: Block, number: int, store: Store) -> str:
    """An update, one for each point, whichever points its index and value vary over."""
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
    parts = [block.x_mask] if block.x_mask else []
    if block.r_mask and number in block.varying:
        parts.append(block.r_mask)
    return " & ".join(parts)


def _store_line(block: Block, number: int, store: Store) -> str:
    if number in scattering_stores(block.kernel):
        return _scatter_line(block, number, store)
    param = block.kernel.param(store.param)
    value = block.names[store.value]
    if param.dtype is DType.BOOL:
        value = f"{value}.to(tl.uint8)"
    # What varies over no outer point is one element, and then the kernel has but one point.
    mask = _point_mask(block, number) if number in block.across_x else ""
    mask = f", mask={mask}" if mask else ""
    position = pointer_text(block, number, store.index)
    return f"tl.store({store.param}_ptr + ({position}), {value}{mask})"


def _indirect_lines(block: Block, number: int, statement: Indirect) -> list[str]:
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
        # Triton-Ascend's adapter takes no pointers of a block of one index; of a number it does.
        axes = "tl.sum(tl.sum({}, 1), 0)" if block.rank == 2 else "tl.sum({}, 0)"
        unit = f"tl.full({block.unit_shape}, 0, {name}.dtype)"
        lines.append(f"{name} = {unit} + {axes.format(name)}")
    return lines


def _is_one_lane(block: Block, number: int) -> bool:
    return number not in block.varying and (block.tiling.xsub == 1 or number not in block.across_x)


def _operand(block: Block, number: int) -> Operand:
    dtype = block.dtypes[number]
    if dtype is None:
        raise KernelRejectedError(f"statement {number} is used as a value but has none")
    statement = block.kernel.body[number]
    literal = statement.value if isinstance(statement, Literal) else None
    return Operand(block.names[number], dtype, literal)


def _across_x(kernel: Kernel) -> frozenset[int]:
    symbols = {axis.name for axis in kernel.outer}
    found: set[int] = set()
    for number, statement in enumerate(kernel.body):
        index = index_of(statement)
        by_index = index is not None and not symbols.isdisjoint(index.symbols)
        if by_index or any(v in found for v in operands_of(statement)):
            found.add(number)
            if isinstance(statement, Indirect):
                symbols.add(statement.symbol)
    return frozenset(found)


def _index_across_x(block: Block, index: Expr) -> bool:
    return not index.symbols.isdisjoint(_symbols_within(block, block.across_x, block.kernel.outer))


def _index_varies(block: Block, index: Expr) -> bool:
    return not index.symbols.isdisjoint(
        _symbols_within(block, block.varying, block.kernel.reduction)
    )


def _symbols_within(block: Block, numbers: frozenset[int], axes: tuple[object, ...]) -> set[str]:
    names = {str(getattr(axis, "name", "")) for axis in axes}
    body = block.kernel.body
    return names | {
        s.symbol for n, s in enumerate(body) if n in numbers and isinstance(s, Indirect)
    }


def _needs_mask(points: int | None, block: int) -> bool:
    return points is None or points % block != 0


def _zero(dtype: DType) -> str:
    return "0.0" if dtype.is_float and dtype not in FLOATS_8 else "0"


def _required(number: int | None) -> int:
    if number is None:
        raise KernelRejectedError("a load has a value for masked-off lanes but no mask")
    return number
