"""A loop kernel as an LLVM module of an entry, a worker for each thread, and a range function.

    i32 @<name>(ptr buffers, ptr sizes, i32 threads)      reads the tables, distributes the units
    void @<name>.worker(ptr task)                         one thread's share of the units
    i32 @<name>.range(buffers..., sizes..., first, last)  computes units first..last-1

The functions with a result return 0; 1 if an index was out of range; 2 if there was no memory for
rows to sort; 3 if the thread has vectors of another length than the kernel was compiled for.

A kernel that scatters has no worker: on one thread, its updates of an element keep their order.

External symbols: GOMP_parallel, omp_get_thread_num, omp_get_num_threads (weak: a process without an
OpenMP runtime uses one thread), fmod and fmodf, malloc and free.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from codegen_svc.emitters.llvm.dots import NO_DOTS, Dots
from codegen_svc.emitters.llvm.index import IndexWriter, bounds_of
from codegen_svc.emitters.llvm.interleaved import with_interleaved_points
from codegen_svc.emitters.llvm.lanes import LaneWriter
from codegen_svc.emitters.llvm.math_functions.library import MathLibrary
from codegen_svc.emitters.llvm.math_functions.narrow import FUNCTIONS
from codegen_svc.emitters.llvm.parallel import (
    CallRange,
    reads_length,
    require_vectors,
    write_entry,
    write_worker,
)
from codegen_svc.emitters.llvm.rows import RowWriter
from codegen_svc.emitters.llvm.schedule import Schedule, schedule
from codegen_svc.emitters.llvm.text import I32, I64, PTR, FunctionText, ModuleText, Value, integer
from codegen_svc.emitters.llvm.tile_units import TileWriter
from codegen_svc.emitters.llvm.tiles import TiledProduct, tiled_product
from codegen_svc.emitters.llvm.unit import UnitContext, range_arguments, write_loop
from codegen_svc.emitters.llvm.vector_sum_units import VectorSumWriter
from codegen_svc.emitters.llvm.vector_sums import VectorSums, vector_sums
from codegen_svc.emitters.llvm.window_sum_units import WindowSumWriter
from codegen_svc.emitters.llvm.window_tiles import TiledWindows, tiled_windows
from codegen_svc.precision.narrow_functions import narrow_functions, with_narrow_functions
from kernelfarm.dtypes import DType
from kernelfarm.errors import KernelRejectedError
from kernelfarm.ir.algebra.expr import Expr, product_of
from kernelfarm.ir.loop_ir import Access, Axis, Kernel, scattering_stores
from kernelfarm.ir.printable import printable_line
from kernelfarm.targets import MemoryFacts

# From this many elements on, threads are worth their cost. PyTorch's grain size is half of it.
PARALLEL_WORK_ELEMS: Final = 65536
MAX_STATEMENTS: Final = 4000
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
# A kernel with such a name would call itself, or others would call it by mistake.
_OUTSIDE: Final = frozenset(
    [
        *("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads", "fmod", "fmodf"),
        *("malloc", "free", "main", "memcpy", "memset", "memmove", "memcmp"),
    ]
)
# Touches each page of the stack in order: panels, sums and copied rows are larger than the guard of
# a thread.
_PROBED: Final = ' "probe-stack"="inline-asm"'
# Names that the emitter uses for arguments.
_OWN: Final = frozenset({"first", "last", "entry"})
_Form = TiledProduct | VectorSums | TiledWindows


@dataclass(frozen=True, slots=True)
class CodeTarget:
    """LLVM's description of a processor, and how its memory moves data.

    `vscale` is the length of scalable vectors in pieces of 16 bytes; None: it is fixed.
    """

    triple: str
    data_layout: str
    cpu: str
    features: str
    vector_bits: int
    memory: MemoryFacts
    scales_by_powers: bool
    dots: Dots = NO_DOTS
    rounds_to_bf16: bool = False
    flushes_bf16: bool = False
    has_nan_maximum: bool = False
    vscale: int | None = None


def emit_llvm(kernel: Kernel, target: CodeTarget) -> str:
    """The kernel as unoptimized LLVM assembly.

    Raises:
        KernelRejectedError: a name is no identifier, an operation has no CPU code, or the kernel
            has more than 4,000 statements.
    """
    _check(kernel)
    kernel = with_narrow_functions(with_interleaved_points(kernel), computes_exp=True)
    module = new_module(kernel.name, _comments(kernel), target)
    plan = schedule(kernel, target.memory)
    form = _form(kernel, target)
    match form:
        case TiledProduct() | TiledWindows():
            plan = replace(plan, rows=form.units, lane=None)
        case VectorSums():
            plan = replace(plan, rows=(*kernel.outer[:-1], form.units), lane=None)
    module.rounds_results = _rounds_results(form, target) and _stores_bf16(kernel)
    _write_range(module, kernel, (plan, form), target)
    if scattering_stores(kernel):
        _write_serial_entry(module, kernel, plan)
    else:
        write_worker(module, kernel.name, _calls_range(kernel))
        _write_entry(module, kernel, plan)
    return rendered(module, target)


def _form(kernel: Kernel, target: CodeTarget) -> _Form | None:
    """The form of a kernel's sums that vectors compute; None: loops over its axes do."""
    bits, dots = target.vector_bits, target.dots
    return (
        tiled_product(kernel, bits, dots)
        or vector_sums(kernel, bits, dots)
        or tiled_windows(kernel, bits)
    )


def _rounds_results(form: _Form | None, target: CodeTarget) -> bool:
    """True if the processor's instruction rounds sums of bf16, as the library has it."""
    if not target.rounds_to_bf16:
        return False
    match form:
        case TiledProduct() | VectorSums():
            return form.is_paired
        case TiledWindows(windows=windows):
            factors = [factor for each in windows.sums for factor in (each.image, each.weight)]
            return all(each.dtype is DType.BF16 for each in factors)
    return False


def rendered(module: ModuleText, target: CodeTarget) -> str:
    """The module as LLVM assembly, with the target's attributes at each function."""
    module.functions = [_with_attributes(text) for text in module.functions]
    features = f'"target-cpu"="{target.cpu}" "target-features"="{target.features}"'
    bits = target.vector_bits
    width = f'"prefer-vector-width"="{bits}" "min-legal-vector-width"="{bits}"'
    known = "" if target.vscale is None else f"vscale_range({target.vscale},{target.vscale}) "
    attributes = f"attributes #0 = {{ nounwind {known}{features} {width} }}"
    if known:  # a function with a known length would find that one, whatever the processor has
        attributes += f"\nattributes #1 = {{ nounwind {features} }}"
    return module.render() + f"\n{attributes}\n"


def _with_attributes(text: str) -> str:
    first, brace, rest = text.partition(" {\n")
    return f"{first} #{int(reads_length(text))}{brace}{rest}"


def _check(kernel: Kernel) -> None:
    symbols = [a.name for a in (*kernel.outer, *kernel.reduction)] + [s.name for s in kernel.sizes]
    if kernel.name in _OUTSIDE:
        raise KernelRejectedError(f"{kernel.name!r} is a library function; rename the kernel")
    for name in (kernel.name, *(p.name for p in kernel.params), *symbols):
        if not _NAME.match(name):
            raise KernelRejectedError(f"name {name!r} is no identifier; rename it in the kernel")
        if name in _OWN and name != kernel.name:
            raise KernelRejectedError(f"the emitter uses the name {name!r} itself; rename it")
    if len(kernel.body) > MAX_STATEMENTS:
        raise KernelRejectedError(
            f"{len(kernel.body)} statements; expected at most {MAX_STATEMENTS} for a CPU: split it"
        )


def new_module(name: str, comments: Sequence[str], target: CodeTarget) -> ModuleText:
    """A kernel's module without functions."""
    header = [
        *(f"; {printable_line(line)}" for text in comments for line in text.splitlines()),
        f'source_filename = "{name}"',
        f'target datalayout = "{target.data_layout}"',
        f'target triple = "{target.triple}"',
    ]
    rounds_all = target.rounds_to_bf16 and not target.flushes_bf16
    return ModuleText(
        header,
        rounds_all=rounds_all,
        has_nan_maximum=target.has_nan_maximum,
        vscale=target.vscale,
    )


def _comments(kernel: Kernel) -> tuple[str, ...]:
    found = ", ".join(narrow_functions(kernel))
    more = [f"at the precision of f16 and bf16 results: {found}"] if found else []
    return (*kernel.comments, *more)


def _stores_bf16(kernel: Kernel) -> bool:
    written = [param for param in kernel.params if param.access is not Access.READ]
    return all(param.dtype is DType.BF16 for param in written)


def _write_range(
    module: ModuleText,
    kernel: Kernel,
    planned: tuple[Schedule, _Form | None],
    target: CodeTarget,
) -> None:
    plan, form = planned
    arguments = ", ".join(text for text, _ in range_arguments(kernel))
    separator = ", " if arguments else ""
    fn = FunctionText(
        module,
        f"define internal i32 @{kernel.name}.range({arguments}{separator}"
        f"i64 %first, i64 %last) noinline{'' if form is None else _PROBED}",
    )
    for name in (
        "first",
        "last",
        *(p.name for p in kernel.params),
        *(s.name for s in kernel.sizes),
    ):
        fn.name(name)
    failed = fn.alloca("failed", I32)
    fn.store(integer(0, I32), failed, 8)
    index = IndexWriter(fn, bounds_of(kernel))
    context = UnitContext(
        kernel=kernel,
        schedule=plan,
        fn=fn,
        library=MathLibrary(module, FUNCTIONS, scales_by_powers=target.scales_by_powers),
        index=index,
        buffers={p.name: Value(f"%{p.name}", PTR) for p in kernel.params},
        failed=failed,
        vector_bits=target.vector_bits,
    )
    sizes = {size.name: Value(f"%{size.name}", I64) for size in kernel.sizes}
    bounds = (Value("%first", I64), Value("%last", I64))
    if isinstance(form, TiledProduct):
        TileWriter(context, form).write(bounds, sizes)
    else:
        _write_units(context, form, bounds, sizes)
    fn.emit(f"ret {fn.load(I32, failed, 8, wish='any_failed')}")
    fn.finish()


def _write_units(
    context: UnitContext,
    sums: VectorSums | TiledWindows | None,
    bounds: tuple[Value, Value],
    sizes: dict[str, Value],
) -> None:
    """Writes the loop over the units first..last-1."""
    fn, index, plan = context.fn, context.index, context.schedule
    writer: RowWriter | LaneWriter | VectorSumWriter | WindowSumWriter
    if isinstance(sums, TiledWindows):
        writer = WindowSumWriter(context, sums)
    elif sums is not None:
        writer = VectorSumWriter(context, sums)
    elif plan.lane is None:
        writer = RowWriter(context)
    else:
        writer = LaneWriter(context, plan.lane)
    counters = _start_counters(fn, index, plan.units, sizes)
    writer.begin(sizes)

    def unit(number: Value) -> None:
        writer.write({**sizes, **_unit_axes(fn, plan.units, counters, number)})
        _advance(fn, index, plan.units, counters, sizes)

    write_loop(fn, "unit", bounds, unit, is_inner=False)
    writer.close()


def _start_counters(
    fn: FunctionText, index: IndexWriter, units: tuple[Axis, ...], sizes: dict[str, Value]
) -> dict[str, Value]:
    """Slots with the axes' values of the first unit; none for a single axis."""
    if len(units) < 2:
        return {}
    slots = {axis.name: fn.alloca(f"{axis.name}.now", I64) for axis in units}
    rest = Value("%first", I64)
    one = integer(1, I64)
    for axis in reversed(units[1:]):
        extent = fn.intrinsic("smax", index.write(axis.extent, sizes), one, wish="extent")
        fn.store(fn.op("urem", rest, extent, wish=f"{axis.name}.start"), slots[axis.name], 8)
        rest = fn.op("udiv", rest, extent, wish="rest")
    fn.store(rest, slots[units[0].name], 8)
    return slots


def _unit_axes(
    fn: FunctionText, units: tuple[Axis, ...], counters: dict[str, Value], number: Value
) -> dict[str, Value]:
    if not counters:
        return {axis.name: number for axis in units}
    return {axis.name: fn.load(I64, counters[axis.name], 8, wish=axis.name) for axis in units}


def _advance(
    fn: FunctionText,
    index: IndexWriter,
    units: tuple[Axis, ...],
    counters: dict[str, Value],
    sizes: dict[str, Value],
) -> None:
    """Advances the counters by one unit: the last axis first, with a carry into the one before."""
    if not counters:
        return
    carry = integer(1, I64)
    for axis in reversed(units):
        slot = counters[axis.name]
        following = fn.op("add nsw", fn.load(I64, slot, 8, wish="now"), carry, wish="following")
        if axis is units[0]:
            fn.store(following, slot, 8)
            return
        wraps = fn.compare("icmp", "eq", following, index.write(axis.extent, sizes), wish="wraps")
        fn.store(fn.select(wraps, integer(0, I64), following, wish="wrapped"), slot, 8)
        carry = fn.cast("zext", wraps, I64, wish="carry")


def _call_range(
    fn: FunctionText, kernel: Kernel, tables: tuple[Value, Value], units: tuple[Value, Value]
) -> Value:
    """Loads the buffers and sizes from their tables and calls the range function."""
    buffers, sizes = tables
    arguments = [
        fn.load(PTR, fn.element(PTR, buffers, integer(k, I64), wish="slot"), 8, wish=param.name)
        for k, param in enumerate(kernel.params)
    ]
    arguments += [_load_size(fn, sizes, k, size.name) for k, size in enumerate(kernel.sizes)]
    return fn.call(f"{kernel.name}.range", I32, *arguments, *units, wish="failed")


def _load_size(fn: FunctionText, sizes: Value, position: int, name: str) -> Value:
    slot = fn.element(I64, sizes, integer(position, I64), wish="slot")
    return fn.load(I64, slot, 8, wish=name)


def _write_serial_entry(module: ModuleText, kernel: Kernel, plan: Schedule) -> None:
    fn = FunctionText(module, f"define i32 @{kernel.name}(ptr %buffers, ptr %sizes, i32 %threads)")
    for name in ("buffers", "sizes", "threads"):
        fn.name(name)
    require_vectors(fn, lambda status: fn.emit(f"ret {status}"))
    buffers, table = Value("%buffers", PTR), Value("%sizes", PTR)
    sizes = {s.name: _load_size(fn, table, k, s.name) for k, s in enumerate(kernel.sizes)}
    units = IndexWriter(fn, bounds_of(kernel)).write(plan.unit_count, sizes)
    failed = _call_range(fn, kernel, (buffers, table), (integer(0, I64), units))
    fn.emit(f"ret {failed}")
    fn.finish()


def _write_entry(module: ModuleText, kernel: Kernel, plan: Schedule) -> None:
    def measure(fn: FunctionText, table: Value) -> tuple[Value, Value]:
        sizes = {s.name: _load_size(fn, table, k, s.name) for k, s in enumerate(kernel.sizes)}
        index = IndexWriter(fn, bounds_of(kernel))
        units = index.write(plan.unit_count, sizes)
        work = index.write(_work(kernel), sizes)
        least = integer(PARALLEL_WORK_ELEMS, I64)
        return units, fn.compare("icmp", "sge", work, least, wish="is_worth")

    write_entry(module, kernel.name, _calls_range(kernel), measure)


def _calls_range(kernel: Kernel) -> CallRange:
    def call(fn: FunctionText, tables: tuple[Value, Value], units: tuple[Value, Value]) -> Value:
        return _call_range(fn, kernel, tables, units)

    return call


def _work(kernel: Kernel) -> Expr:
    return product_of([axis.extent for axis in (*kernel.outer, *kernel.reduction)])
