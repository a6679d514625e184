"""Text of loop kernels.

    kernel fused_softmax_1f2e3d4c
    # softmax of the last axis
    size s0 from 2 to 512
    param in in0: f16[128*s0]
    param out out0: f32[128*s0]
    for d0 in s0
    reduce r0 in 128
    hint num_warps=8
      %0: f16 = load in0[128*d0 + r0]
      %1: f32 = convert %0
      %2: f32 = amax %1
      %3: bool = lt %1, %2
      %4 = indirect %0 in 30522
      store out0[128*d0 + r0] = %1

A masked load ends in `if %3 else %1`; an index as a value is `%5: i64 = index d0 + 1`; a scan is
`%6: f32 = scan cumsum %1`; a sort is `%7: i64 = sort ascending %1` (or descending); a store that
combines names its mode: `store add inout0[%4] = %1`.
"""

from __future__ import annotations

from collections.abc import Callable

from kernelfarm.dtypes import DType
from kernelfarm.errors import MalformedMessageError
from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.graph_ir import SizeSymbol
from kernelfarm.ir.hints import KernelHint
from kernelfarm.ir.loop_ir import (
    REDUCE_OPS,
    Access,
    Axis,
    Compute,
    IndexValue,
    Indirect,
    Kernel,
    Literal,
    Load,
    Param,
    Reduce,
    Scan,
    Sort,
    Statement,
    Store,
    StoreMode,
)
from kernelfarm.ir.text.args import read_dtype, read_number
from kernelfarm.ir.text.expr import read_expr
from kernelfarm.ir.text.graph import print_size, read_kernel_hint, read_size
from kernelfarm.ir.text.tokens import Cursor

_ACCESS = {access.value: access for access in Access}
_MODES = {mode.value: mode for mode in StoreMode}


def print_kernel(kernel: Kernel) -> str:
    """The kernel as text, which `parse_kernel` parses to an equal kernel."""
    lines = [f"kernel {kernel.name}"]
    lines.extend(f"# {_escaped(comment)}" for comment in kernel.comments)
    lines.extend(print_size(size) for size in kernel.sizes)
    for param in kernel.params:
        elems = f"{param.dtype.value}[{param.size_elems}]"
        lines.append(f"param {param.access.value} {param.name}: {elems}")
    lines.extend(f"for {axis.name} in {axis.extent}" for axis in kernel.outer)
    lines.extend(f"reduce {axis.name} in {axis.extent}" for axis in kernel.reduction)
    lines.extend(f"hint {hint}" for hint in kernel.hints)
    dtypes = {param.name: param.dtype.value for param in kernel.params}
    for number, statement in enumerate(kernel.body):
        lines.append(f"  {_print_statement(number, statement, dtypes)}")
    return "\n".join(lines) + "\n"


def _print_statement(number: int, statement: Statement, dtypes: dict[str, str]) -> str:
    match statement:
        case Store(param, index, value, mode):
            how = "" if mode is StoreMode.SET else f"{mode.value} "
            return f"store {how}{param}[{index}] = %{value}"
        case Indirect(symbol, value, extent):
            return f"{symbol} = indirect %{value} in {extent}"
        case Load(param, index, mask, other):
            masked = "" if mask is None else f" if %{mask} else %{other}"
            dtype = dtypes.get(param, "unknown")
            return f"%{number}: {dtype} = load {param}[{index}]{masked}"
        case _:
            return f"%{number}: {statement.dtype.value} = {print_value(statement)}"


def print_value(statement: Literal | IndexValue | Compute | Reduce | Scan | Sort) -> str:
    """The right side of a statement that computes a value: `add %0, %1`."""
    match statement:
        case Literal(dtype, value):
            return repr(float(value)) if dtype.is_float else str(int(value))
        case IndexValue(_, expr):
            return f"index {expr}"
        case Compute(op, operands):
            return f"{op} {', '.join(f'%{operand}' for operand in operands)}".rstrip()
        case Reduce(op, operand):
            return f"{op} %{operand}"
        case Scan(op, operand):
            return f"scan {op} %{operand}"
        case Sort(operand, descending):
            return f"sort {'descending' if descending else 'ascending'} %{operand}"


def parse_kernel(text: str) -> Kernel:
    """The kernel of a text.

    Raises:
        MalformedMessageError: the text is not a kernel; the message names the line.
    """
    parser = _Parser()
    for number, line in enumerate(text.split("\n"), start=1):
        if line.startswith("# "):
            parser.comments.append(_unescaped(line[2:]))
        elif line.strip():
            cursor = Cursor(line, number)
            parser.read_line(cursor)
            cursor.end()
    return parser.kernel()


class _Parser:
    """The parts of a kernel that have been read."""

    def __init__(self) -> None:
        self.name: str | None = None
        self.comments: list[str] = []
        self.params: list[Param] = []
        self.sizes: list[SizeSymbol] = []
        self.outer: list[Axis] = []
        self.reduction: list[Axis] = []
        self.body: list[Statement] = []
        self.hints: list[KernelHint] = []

    def read_line(self, cursor: Cursor) -> None:
        for keyword, read in _HEADER.items():
            if cursor.next[1] == keyword:
                cursor.take()
                read(self, cursor)
                return
        self.body.append(self._statement(cursor))

    def kernel(self) -> Kernel:
        if self.name is None:
            raise MalformedMessageError("a kernel without its first line")
        return Kernel(
            name=self.name,
            params=tuple(self.params),
            sizes=tuple(self.sizes),
            outer=tuple(self.outer),
            reduction=tuple(self.reduction),
            body=tuple(self.body),
            comments=tuple(self.comments),
            hints=tuple(self.hints),
        )

    def read_name(self, cursor: Cursor) -> None:
        self.name = cursor.word()

    def read_param(self, cursor: Cursor) -> None:
        access = cursor.word()
        if access not in _ACCESS:
            raise cursor.error(f"expected one of {', '.join(_ACCESS)}")
        name = cursor.word()
        cursor.expect(":")
        dtype = read_dtype(cursor)
        cursor.expect("[")
        elems = read_expr(cursor)
        cursor.expect("]")
        self.params.append(Param(name, dtype, elems, _ACCESS[access]))

    def _statement(self, cursor: Cursor) -> Statement:
        if cursor.accept("store"):
            return _read_store(cursor)
        name = f"%{cursor.take()[1]}" if cursor.accept("%") else cursor.word()
        if cursor.accept("="):
            cursor.expect("indirect")
            value = cursor.value()
            cursor.expect("in")
            return Indirect(name, value, read_expr(cursor))
        if name != f"%{len(self.body)}":
            raise cursor.error(f"expected the definition of %{len(self.body)}")
        return self._read_value(cursor)

    def _read_value(self, cursor: Cursor) -> Statement:
        cursor.expect(":")
        dtype = read_dtype(cursor)
        cursor.expect("=")
        for keyword, read in _FORMS.items():
            if cursor.accept(keyword):
                return read(cursor, dtype)
        kind, text = cursor.next
        if kind != "word" or text in ("inf", "nan"):
            return Literal(dtype, read_number(cursor))
        op = cursor.word()
        if op in REDUCE_OPS:
            return Reduce(op, cursor.value(), dtype)
        return Compute(op, _read_operands(cursor), dtype)


_HEADER: dict[str, Callable[[_Parser, Cursor], None]] = {
    "kernel": _Parser.read_name,
    "param": _Parser.read_param,
    "size": lambda parser, cursor: parser.sizes.append(read_size(cursor)),
    "for": lambda parser, cursor: parser.outer.append(_read_axis(cursor)),
    "reduce": lambda parser, cursor: parser.reduction.append(_read_axis(cursor)),
    "hint": lambda parser, cursor: parser.hints.append(read_kernel_hint(cursor)),
}


_FORMS: dict[str, Callable[[Cursor, DType], Statement]] = {
    "load": lambda cursor, _: _read_load(cursor),
    "index": lambda cursor, dtype: IndexValue(dtype, read_expr(cursor)),
    "scan": lambda cursor, dtype: Scan(cursor.word(), cursor.value(), dtype),
    "sort": lambda cursor, _: _read_sort(cursor),
}


def _read_axis(cursor: Cursor) -> Axis:
    name = cursor.word()
    cursor.expect("in")
    return Axis(name, read_expr(cursor))


def _read_index(cursor: Cursor) -> Expr:
    cursor.expect("[")
    index = read_expr(cursor)
    cursor.expect("]")
    return index


def _read_load(cursor: Cursor) -> Load:
    name = cursor.word()
    index = _read_index(cursor)
    if not cursor.accept("if"):
        return Load(name, index)
    mask = cursor.value()
    cursor.expect("else")
    return Load(name, index, mask, cursor.value())


def _read_sort(cursor: Cursor) -> Sort:
    order = cursor.word()
    if order not in ("ascending", "descending"):
        raise cursor.error("expected ascending or descending")
    return Sort(cursor.value(), order == "descending")


def _read_store(cursor: Cursor) -> Store:
    name, mode = cursor.word(), StoreMode.SET
    if cursor.next[1] != "[":
        if name not in _MODES:
            raise cursor.error(f"a store of mode {name}; expected one of {', '.join(_MODES)}")
        name, mode = cursor.word(), _MODES[name]
    index = _read_index(cursor)
    cursor.expect("=")
    return Store(name, index, cursor.value(), mode)


def _read_operands(cursor: Cursor) -> tuple[int, ...]:
    operands: list[int] = []
    while cursor.next[0] != "end":
        if operands:
            cursor.expect(",")
        operands.append(cursor.value())
    return tuple(operands)


def _escaped(comment: str) -> str:
    return comment.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


def _unescaped(text: str) -> str:
    parts = text.split("\\\\")
    return "\\".join(part.replace("\\n", "\n").replace("\\r", "\r") for part in parts)
