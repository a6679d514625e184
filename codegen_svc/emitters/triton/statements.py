"""Statements of a loop kernel as lines of Triton text."""

from __future__ import annotations

from dataclasses import replace

from codegen_svc.emitters.triton.accesses import (
    indirect_lines,
    load_lines,
    position_text,
    store_line,
)
from codegen_svc.emitters.triton.block import Block
from codegen_svc.emitters.triton.float8 import FLOATS_8, narrowed
from codegen_svc.emitters.triton.guided import (
    GuidedReduction,
    guided_text,
    in_lanes,
    moments_text,
)
from codegen_svc.emitters.triton.names import triton_type
from codegen_svc.emitters.triton.past_rows import ZERO
from codegen_svc.emitters.triton.reduce import (
    ROW_LAYOUT,
    Reduction,
    ReductionText,
    plain_text,
)
from codegen_svc.emitters.triton.scalar import Operand, compute_text, literal_text
from codegen_svc.emitters.triton.scan import RunningScan, like_reduction, scan_lines
from codegen_svc.emitters.triton.sort import RowSort, sort_lines
from codegen_svc.emitters.triton.tiling import static_numel
from kernelfarm.dtypes import DType
from kernelfarm.errors import KernelRejectedError
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
)


def statement_lines(block: Block, number: int, eviction: str = "") -> list[str]:
    """The lines of one statement other than a reduction; `eviction` as in `load_lines`."""
    statement = block.kernel.body[number]
    name = block.names[number]
    match statement:
        case Load():
            return load_lines(block, number, statement, eviction)
        case Literal() | IndexValue():
            return [f"{name} = {_number_text(block, number, statement)}"]
        case Compute(op=op, operands=operands, dtype=dtype):
            texts = tuple(_operand(block, operand) for operand in operands)
            return [f"{name} = {compute_text(op, texts, dtype, block.rules)}"]
        case Indirect():
            return indirect_lines(block, number, statement)
        case Store():
            return [store_line(block, number, statement)]
        case Sort() | Scan() | Reduce():
            return _running_lines(block, number)


def reduction_text(block: Block, number: int) -> ReductionText:
    """The lines of a reduction statement in all forms of a kernel."""
    statement = block.kernel.body[number]
    if not isinstance(statement, Reduce):
        raise ValueError(f"statement {number} is no reduction")
    reduction = _reduction(block, number, statement, statement.op)
    groups = block.tiling.lane_groups
    if groups and statement.op == "amax" and _guides_softmax(block.kernel, number):
        return replace(plain_text(in_lanes(reduction, groups)), step=())
    if statement.op not in GUIDES:
        return plain_text(reduction)
    guide = guide_of(block.kernel, number)
    points = static_numel(block.kernel.reduction)
    guided = GuidedReduction(
        like=reduction,
        guide="" if guide is None else block.names[guide],
        points="tl.maximum(rnumel, 1)" if points is None else str(max(points, 1)),
        has_flushing_exp=block.rules.takes_assembly,
        groups=groups,
    )
    return moments_text(guided) if block.tiling.shared_pieces else guided_text(guided)


def guide_of(kernel: Kernel, number: int) -> int | None:
    """The number of the statement that a guided reduction uses as its guide; None without one.

    It is the first of those before the reduction. A later one is a reduction of its own.
    """
    statement = kernel.body[number]
    if not isinstance(statement, Reduce) or statement.op not in GUIDES:
        return None
    guide = Reduce(GUIDES[statement.op], statement.operand, statement.dtype)
    earlier = kernel.body[:number]
    return earlier.index(guide) if guide in earlier else None


def _guides_softmax(kernel: Kernel, number: int) -> bool:
    """True if a reduction is the guide of a sum of exponentials, whose steps advance it."""
    sums = [n for n, s in enumerate(kernel.body) if isinstance(s, Reduce) and s.op == "softmax_sum"]
    return any(guide_of(kernel, n) == number for n in sums)


def scan_of(block: Block, number: int) -> RunningScan:
    """A scan statement with the facts that its text needs."""
    statement = block.kernel.body[number]
    if not isinstance(statement, Scan):
        raise ValueError(f"statement {number} is no scan")
    like = _reduction(block, number, statement, like_reduction(statement.op))
    return RunningScan(statement.op, like, block.x_size)


def _number_text(block: Block, number: int, statement: Literal | IndexValue) -> str:
    kind = (
        "tl.int32" if number in block.narrow else triton_type(statement.dtype, block.rules.target)
    )
    if isinstance(statement, IndexValue):
        text = position_text(block, number, statement.expr)
        return text if number in block.narrow else f"({text}).to({kind})"
    literal = literal_text(statement.value, statement.dtype)
    if statement.dtype in FLOATS_8:
        return narrowed(f"tl.full({block.unit_shape}, {literal}, tl.float32)", statement.dtype)
    return f"tl.full({block.unit_shape}, {literal}, {kind})"


def _running_lines(block: Block, number: int) -> list[str]:
    statement = block.kernel.body[number]
    if isinstance(statement, Reduce):
        raise ValueError(f"statement {number} is a reduction; see `reduction_text`")
    if isinstance(statement, Sort):
        return sort_lines(_sort_of(block, number, statement))
    return scan_lines(scan_of(block, number), is_looped=not block.tiling.is_persistent)


def _sort_of(block: Block, number: int, sort: Sort) -> RowSort:
    """A sort statement with the facts that its text needs; the block holds whole rows."""
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
    operand, past = block.names[statement.operand], block.past[statement.operand]
    root = _squared(block, statement.operand) if op == "sum" and block.r_mask else None
    if root is not None and past is None:
        # Selected before it is squared, so that a square and its addition are one instruction.
        operand, past = f"kf_square(tl.where({block.r_mask}, {block.names[root]}, 0.0))", ZERO
    spans_x = statement.operand in block.across_x or block.tiling.xsub == 1
    spans_r = statement.operand in block.varying or block.tiling.rblock == 1 or bool(block.r_mask)
    return Reduction(
        op=op,
        name=block.names[number],
        operand=operand,
        operand_dtype=operand_dtype,
        dtype=statement.dtype,
        shape=block.full_shape,
        mask=block.r_mask,
        index_bits=block.tiling.index_bits,
        target=block.rules.target,
        is_whole=spans_x and spans_r,
        past=past,
        layout=ROW_LAYOUT if block.tiling.shared_pieces else "",
    )


def _squared(block: Block, number: int) -> int | None:
    """The number of x if a statement is x * x in f32."""
    square = block.kernel.body[number]
    if not isinstance(square, Compute) or square.op != "mul" or square.dtype is not DType.F32:
        return None
    first, second = square.operands
    return first if first == second else None


def _operand(block: Block, number: int) -> Operand:
    dtype = block.dtypes[number]
    if dtype is None:
        raise KernelRejectedError(f"statement {number} is used as a value but has none")
    statement = block.kernel.body[number]
    literal = statement.value if isinstance(statement, Literal) else None
    return Operand(block.names[number], dtype, literal)
