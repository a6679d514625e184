"""The facts about a kernel that the text of its statements needs: tiling, names, types, masks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from codegen_svc.emitters.triton.index import R_FLAT, X_FLAT, IndexWriter, index_writer
from codegen_svc.emitters.triton.names import value_names
from codegen_svc.emitters.triton.past_rows import ZERO, past_values, row_fill
from codegen_svc.emitters.triton.scalar import ScalarRules
from codegen_svc.emitters.triton.tiling import Tiling, static_numel
from codegen_svc.emitters.triton.word_loads import ByteOfWord, bytes_of_words
from codegen_svc.precision.hidden_errors import value_dtype
from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.loop_ir import (
    Compute,
    IndexValue,
    Indirect,
    Kernel,
    Literal,
    Statement,
    index_of,
    operands_of,
    varying_values,
)


@dataclass(frozen=True, slots=True)
class BlockNames:
    """Names in the text, for a block's outer points first, then for its reduction points."""

    flats: tuple[str, str] = (X_FLAT, R_FLAT)
    sizes: tuple[str, str] = ("XBLOCK", "RBLOCK")
    masks: tuple[str, str] = ("xmask", "rmask")


_USUAL_NAMES = BlockNames()
_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
_LARGEST_I32 = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Block:
    """A kernel with its tiling, and the names, types and extents of its statements' blocks.

    The block of a statement in `across_x` extends over the outer points, that of a statement in
    `varying` over the reduction points. `x_mask` and `r_mask` are names of masks, empty if every
    lane is a point. `words` has the loads of bytes that are parts of loaded words. Loads fill lanes
    past the end of a row with `fill`; `past` has the values of statements there, if they are known.
    Positions that are the values of `narrow` statements need no more bits than indices.
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
    texts: BlockNames = _USUAL_NAMES
    words: Mapping[int, ByteOfWord] = field(default_factory=dict)
    fill: float = ZERO
    past: tuple[float | None, ...] = ()
    narrow: frozenset[int] = frozenset()

    @property
    def rank(self) -> int:
        """The number of axes of every block: 2 if the kernel has reduction axes, else 1."""
        return 2 if self.kernel.reduction else 1

    @property
    def unit_shape(self) -> str:
        """The text of the shape of a block of one element."""
        return "[1, 1]" if self.rank == 2 else "[1]"

    @property
    def full_shape(self) -> str:
        """The text of the shape of a block over all points held at the same time."""
        return f"[{self.x_size}, {self.r_size}]" if self.rank == 2 else f"[{self.x_size}]"

    @property
    def x_size(self) -> str:
        """The name of the number of outer points held at the same time."""
        is_sub_blocked = self.tiling.xsub != self.tiling.xblock
        return "XBLOCK_SUB" if is_sub_blocked else self.texts.sizes[0]

    @property
    def r_size(self) -> str:
        """The name of the number of reduction points held at the same time."""
        return self.texts.sizes[1]

    def is_across_x(self, index: Expr) -> bool:
        """True if an index differs between outer points."""
        symbols = {axis.name for axis in self.kernel.outer} | self._indirect(self.across_x)
        return not index.symbols.isdisjoint(symbols)

    def is_varying(self, index: Expr) -> bool:
        """True if an index differs between reduction points."""
        symbols = {axis.name for axis in self.kernel.reduction} | self._indirect(self.varying)
        return not index.symbols.isdisjoint(symbols)

    def _indirect(self, numbers: frozenset[int]) -> set[str]:
        """The symbols of those of the statements that are indirect indices."""
        body = self.kernel.body
        return {s.symbol for n, s in enumerate(body) if n in numbers and isinstance(s, Indirect)}


def make_block(
    kernel: Kernel, tiling: Tiling, rules: ScalarRules, texts: BlockNames = _USUAL_NAMES
) -> Block:
    """The block of a kernel."""
    names = value_names(kernel)
    renamed = {s.symbol: names[n] for n, s in enumerate(kernel.body) if isinstance(s, Indirect)}
    is_masked = bool(kernel.reduction) and _needs_mask(
        static_numel(kernel.reduction), tiling.rblock
    )
    # Loads that read each element once fill lanes with zeros of their own.
    fill = row_fill(kernel) if is_masked and rules.takes_repeated_pointers else ZERO
    unknown = (None,) * len(kernel.body)
    return Block(
        kernel=kernel,
        tiling=tiling,
        rules=rules,
        names=names,
        dtypes=tuple(value_dtype(kernel, s) for s in kernel.body),
        writer=index_writer(kernel, renamed, texts.flats),
        across_x=_across_x(kernel),
        varying=varying_values(kernel),
        x_mask=texts.masks[0] if _needs_mask(static_numel(kernel.outer), tiling.xblock) else "",
        r_mask=texts.masks[1] if is_masked else "",
        texts=texts,
        words=bytes_of_words(kernel) if tiling.reads_words else {},
        fill=fill,
        past=past_values(kernel, fill) if rules.takes_repeated_pointers else unknown,
        narrow=_only_compared(kernel) if tiling.index_bits == 32 else frozenset(),
    )


def _only_compared(kernel: Kernel) -> frozenset[int]:
    """The positions and small numbers that nothing reads but comparisons with others of them."""
    body = kernel.body
    found = {number for number, statement in enumerate(body) if _is_position(statement)}
    for statement in body:
        operands = operands_of(statement)
        is_compared = isinstance(statement, Compute) and statement.op in _COMPARISONS
        if not is_compared or not found.issuperset(operands):
            found.difference_update(operands)
    return frozenset(found)


def _is_position(statement: Statement) -> bool:
    if isinstance(statement, Literal) and statement.dtype is DType.I64:
        return abs(statement.value) <= _LARGEST_I32
    return isinstance(statement, IndexValue) and statement.dtype is DType.I64


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


def _needs_mask(points: int | None, block: int) -> bool:
    return block > 1 and (points is None or points % block != 0)
