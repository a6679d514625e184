"""Rules of loop kernels."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError, VerificationError
from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.hints import MAX_HINTS, check_hint
from kernelfarm.ir.loop_ir import (
    REDUCE_OPS,
    Access,
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
    Store,
    StoreMode,
    index_of,
    operands_of,
    scattering_stores,
    varying_values,
)
from kernelfarm.ir.prims import scalar_result_dtype
from kernelfarm.ir.scalar_types import (
    INTEGER_RANGES,
    check_combined_dtype,
    check_reduce_operand,
    check_scalar_operands,
    check_scan_operand,
    reduce_result_dtype,
    scan_result_dtype,
)

# Names become symbols in generated code, so only short identifiers are allowed.
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
_INDIRECT_SYMBOL = re.compile(r"%?[A-Za-z0-9_]{1,200}")


def verify_kernel(kernel: Kernel) -> None:
    """Checks that a kernel is well formed.

    Raises:
        VerificationError: the first broken rule, by kernel and statement number.
    """
    try:
        for rule in _KERNEL_RULES:
            rule(kernel)
        _Body(kernel).check()
        _scatters_have_own_buffers(kernel)  # last: it relies on symbols that are defined once
    except VerificationError as error:
        raise VerificationError(f"kernel {kernel.name}: {error}") from error


def _names_are_identifiers(kernel: Kernel) -> None:
    axes = [axis.name for axis in (*kernel.outer, *kernel.reduction)]
    params = [param.name for param in kernel.params]
    for name in (kernel.name, *params, *(size.name for size in kernel.sizes), *axes):
        if not _IDENTIFIER.fullmatch(name):
            raise VerificationError(
                f"name {name[:200]!r}; expected an identifier of at most 200 characters"
            )


def _types_are_computed_in(kernel: Kernel) -> None:
    named = [(f"parameter {param.name}", param.dtype) for param in kernel.params]
    for number, statement in enumerate(kernel.body):
        if isinstance(statement, Literal | Compute | Reduce | Scan):
            named.append((f"statement {number}", statement.dtype))
    for where, dtype in named:
        if dtype.is_opaque:
            raise VerificationError(
                f"{where}: elements of {dtype.value}; expected a type that kernels compute in"
            )


def _names_are_unique(kernel: Kernel) -> None:
    axes = [axis.name for axis in (*kernel.outer, *kernel.reduction)]
    symbols = [size.name for size in kernel.sizes] + axes
    params = [param.name for param in kernel.params]
    for names in (symbols, params):
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise VerificationError(f"name {twice[0]} is declared twice; expected once")


def _extents_use_sizes(kernel: Kernel) -> None:
    sizes = frozenset(size.name for size in kernel.sizes)
    for axis in (*kernel.outer, *kernel.reduction):
        _check_symbols(axis.extent, sizes, f"extent of {axis.name}")
    for param in kernel.params:
        _check_symbols(param.size_elems, sizes, f"size of {param.name}")


def _written_parameters_are_stored(kernel: Kernel) -> None:
    stored = {statement.param for statement in kernel.body if isinstance(statement, Store)}
    for param in kernel.params:
        if param.access is not Access.READ and param.name not in stored:
            raise VerificationError(f"{param.name} is written, but no store names it")


def _updates_stay_in_place(kernel: Kernel) -> None:
    """At another point, an element of an updated buffer may be old or new."""
    updated = {param.name for param in kernel.params if param.access is Access.READ_WRITE}
    indices: dict[str, Expr] = {}
    for number, statement in enumerate(kernel.body):
        if isinstance(statement, Load | Store) and statement.param in updated:
            index = indices.setdefault(statement.param, statement.index)
            if index is not statement.index:
                raise VerificationError(
                    f"statement {number}: accesses {statement.param} at {statement.index} and at"
                    f" {index}; expected one index for a buffer that is updated in place"
                )


def _scatters_have_own_buffers(kernel: Kernel) -> None:
    """A scatter's buffer holds old elements at first, and any point may change any of them."""
    for number in sorted(scattering_stores(kernel)):
        store = kernel.body[number]
        if not isinstance(store, Store):
            continue
        access = {p.name: p.access for p in kernel.params}.get(store.param)
        if access is Access.WRITE:
            raise VerificationError(
                f"statement {number}: scatters to {store.param}, which is only written;"
                " expected a buffer that is updated in place"
            )
        for other, statement in enumerate(kernel.body):
            is_same = isinstance(statement, Load | Store) and statement.param == store.param
            if is_same and other != number:
                raise VerificationError(
                    f"statement {other}: accesses {store.param}, to which statement {number}"
                    " scatters; expected no other access"
                )


def _hints_are_sorted(kernel: Kernel) -> None:
    names = [hint.name for hint in kernel.hints]
    if any(a >= b for a, b in itertools.pairwise(names)) or len(names) > MAX_HINTS:
        raise VerificationError(
            f"hints {', '.join(names)[:200]}; expected at most {MAX_HINTS} in the order of their"
            " names, each once"
        )
    try:
        for hint in kernel.hints:
            check_hint(hint, "the kernel")
    except InvalidGraphError as error:
        raise VerificationError(str(error)) from error


_KERNEL_RULES: tuple[Callable[[Kernel], None], ...] = (
    _names_are_identifiers,
    _types_are_computed_in,
    _names_are_unique,
    _extents_use_sizes,
    _written_parameters_are_stored,
    _updates_stay_in_place,
    _hints_are_sorted,
)


def _check_symbols(expr: Expr, known: frozenset[str] | set[str], what: str) -> None:
    unknown = sorted(expr.symbols - known)
    if unknown:
        names = ", ".join(sorted(known)) or "none"
        raise VerificationError(f"{what}: unknown symbol {unknown[0]}; expected one of: {names}")


class _Body:
    """Checks the statements in order."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.params = {param.name: param for param in kernel.params}
        self.varying = varying_values(kernel)
        self.scatters = scattering_stores(kernel)
        self.sizes = {size.name for size in kernel.sizes}
        axes = {axis.name for axis in (*kernel.outer, *kernel.reduction)}
        self.symbols = self.sizes | axes
        self.reduction = {axis.name for axis in kernel.reduction}
        self.dtypes: list[DType | None] = []

    def check(self) -> None:
        for number, statement in enumerate(self.kernel.body):
            try:
                for operand in operands_of(statement):
                    self._check_operand(operand)
                index = index_of(statement)
                if index is not None:
                    _check_symbols(index, self.symbols, "index")
                dtype = _STATEMENT_RULES[type(statement)](self, number, statement)
            except VerificationError as error:
                raise VerificationError(f"statement {number}: {error}") from error
            self.dtypes.append(dtype)

    def dtype_of(self, value: int) -> DType:
        """The element type of an earlier value, which is known to exist."""
        dtype = self.dtypes[value]
        if dtype is None:
            raise VerificationError(f"uses statement {value}, which defines no value")
        return dtype

    def param(self, name: str) -> Param:
        """The parameter with a name."""
        if name not in self.params:
            known = ", ".join(self.params) or "none"
            raise VerificationError(f"parameter {name}; expected one of: {known}")
        return self.params[name]

    def _check_operand(self, value: int) -> None:
        if not 0 <= value < len(self.dtypes):
            raise VerificationError(
                f"uses %{value}; expected a value of an earlier statement, 0 to"
                f" {len(self.dtypes) - 1}"
            )
        self.dtype_of(value)


def _check_load(body: _Body, number: int, load: Load) -> DType:
    param = body.param(load.param)
    if param.access is Access.WRITE:
        raise VerificationError(f"loads {load.param}, which is only written")
    if (load.mask is None) != (load.other is None):
        raise VerificationError("a load with one of mask and other; expected both or none")
    if load.mask is not None and load.other is not None:
        mask, other = body.dtype_of(load.mask), body.dtype_of(load.other)
        if mask is not DType.BOOL or other is not param.dtype:
            raise VerificationError(
                f"mask of {mask.value} and other of {other.value}; expected bool and"
                f" {param.dtype.value}"
            )
    return param.dtype


def _check_literal(body: _Body, number: int, literal: Literal) -> DType:
    if literal.dtype.is_float:
        if not isinstance(literal.value, float):
            raise VerificationError(
                f"literal {literal.value!r} of {literal.dtype.value}; expected a float"
            )
        return literal.dtype
    allowed = INTEGER_RANGES[literal.dtype]
    if not isinstance(literal.value, int) or int(literal.value) not in allowed:
        raise VerificationError(
            f"literal {literal.value!r} of {literal.dtype.value};"
            f" expected an integer from {allowed.start} to {allowed.stop - 1}"
        )
    return literal.dtype


def _check_index_value(body: _Body, number: int, value: IndexValue) -> DType:
    if value.dtype not in (DType.I32, DType.I64):
        raise VerificationError(f"an index as {value.dtype.value}; expected i32 or i64")
    return value.dtype


def _check_compute(body: _Body, number: int, compute: Compute) -> DType:
    dtypes = tuple(body.dtype_of(operand) for operand in compute.operands)
    check_scalar_operands(compute.op, dtypes)
    if compute.op == "convert":
        return compute.dtype
    expected = scalar_result_dtype(compute.op, dtypes[-1])
    if compute.dtype is not expected:
        raise VerificationError(
            f"{compute.op} gives {compute.dtype.value}; expected {expected.value}"
        )
    for dtype in dtypes:
        _check_not_narrow(compute.op, dtype)
    return expected


def _check_not_narrow(op: str, dtype: DType) -> None:
    if dtype.compute_dtype is not dtype:
        raise VerificationError(
            f"{op} computes in {dtype.value}; expected operands converted to"
            f" {dtype.compute_dtype.value}"
        )


def _check_reduce(body: _Body, number: int, reduce: Reduce) -> DType:
    if reduce.op not in REDUCE_OPS:
        raise VerificationError(f"reduction {reduce.op!r}; expected one of {', '.join(REDUCE_OPS)}")
    if reduce.operand not in body.varying:
        raise VerificationError(
            f"{reduce.op} of %{reduce.operand}, which does not vary over the reduction axes"
        )
    dtype = body.dtype_of(reduce.operand)
    check_reduce_operand(reduce.op, dtype)
    _check_not_narrow(reduce.op, dtype)
    expected = reduce_result_dtype(reduce.op, dtype)
    if reduce.dtype is not expected:
        raise VerificationError(
            f"{reduce.op} of {dtype.value} gives {reduce.dtype.value}; expected {expected.value}"
        )
    return reduce.dtype


def _check_scan(body: _Body, number: int, scan: Scan) -> DType:
    if not body.kernel.reduction:
        raise VerificationError(f"scan {scan.op} in a kernel without reduction axes")
    dtype = body.dtype_of(scan.operand)
    check_scan_operand(scan.op, dtype)
    _check_not_narrow(scan.op, dtype)
    expected = scan_result_dtype(scan.op, dtype)
    if scan.dtype is not expected:
        raise VerificationError(
            f"{scan.op} of {dtype.value} gives {scan.dtype.value}; expected {expected.value}"
        )
    return scan.dtype


def _check_sort(body: _Body, number: int, sort: Sort) -> DType:
    if not body.kernel.reduction:
        raise VerificationError("a sort in a kernel without reduction axes")
    _check_not_narrow("sort", body.dtype_of(sort.operand))
    return sort.dtype


def _check_indirect(body: _Body, number: int, indirect: Indirect) -> None:
    dtype = body.dtype_of(indirect.value)
    if dtype not in (DType.I32, DType.I64):
        raise VerificationError(f"an index read as {dtype.value}; expected i32 or i64")
    _check_symbols(indirect.extent, body.sizes, "extent")
    symbol = indirect.symbol
    if not _INDIRECT_SYMBOL.fullmatch(symbol) or symbol in body.symbols:
        raise VerificationError(f"defines symbol {symbol!r}; expected a new name")
    body.symbols.add(symbol)


def _check_store(body: _Body, number: int, store: Store) -> None:
    param = body.param(store.param)
    if param.access is Access.READ:
        raise VerificationError(f"stores to {store.param}, which is only read")
    dtype = body.dtype_of(store.value)
    if dtype is not param.dtype:
        raise VerificationError(
            f"stores {dtype.value} to {store.param}; expected {param.dtype.value}"
        )
    if store.mode is not StoreMode.SET:
        check_combined_dtype(f"store {store.mode.value}", dtype)
    is_scatter = number in body.scatters
    if store.value in body.varying and not is_scatter and not _index_varies(body, store.index):
        raise VerificationError(
            f"stores %{store.value}, which varies over the reduction axes, at {store.index},"
            " which does not"
        )


def _index_varies(body: _Body, index: Expr) -> bool:
    varying = set(body.reduction)
    for number, statement in enumerate(body.kernel.body):
        if isinstance(statement, Indirect) and number in body.varying:
            varying.add(statement.symbol)
    return not varying.isdisjoint(index.symbols)


_STATEMENT_RULES: dict[type, Callable[[_Body, int, Any], DType | None]] = {
    Load: _check_load,
    Literal: _check_literal,
    IndexValue: _check_index_value,
    Compute: _check_compute,
    Reduce: _check_reduce,
    Scan: _check_scan,
    Sort: _check_sort,
    Indirect: _check_indirect,
    Store: _check_store,
}
