"""Distributes a kernel's units among the threads of the process's OpenMP runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from codegen_svc.emitters.llvm.text import I32, I64, PTR, FunctionText, ModuleText, Value, integer

CallRange = Callable[[FunctionText, tuple[Value, Value], tuple[Value, Value]], Value]
"""Calls the range function with the tables of buffers and sizes, for units first..last-1."""
Measure = Callable[[FunctionText, Value], tuple[Value, Value]]
"""The number of units, and whether several threads are worth their cost, from the sizes."""

OTHER_VECTORS: Final = 3
"""The status of a kernel whose thread has vectors of another length than it was compiled for."""
_VSCALE: Final = "llvm.vscale.i64"
# Fields of the task that threads share: buffers, sizes, number of units, result of a failed thread.
_TASK: Final = "{ ptr, ptr, i64, i32 }"


def _field(fn: FunctionText, task: Value, number: int) -> Value:
    return fn.define("field", PTR, f"getelementptr inbounds {_TASK}, {task}, i32 0, i32 {number}")


def require_vectors(fn: FunctionText, refuse: Callable[[Value], None]) -> None:
    """Writes code that refuses vectors of another length than the module is compiled for.

    `refuse` ends the function with a status. Nothing is written for vectors of fixed length.
    """
    if fn.module.vscale is None:
        return
    length = fn.call_external(_VSCALE, I64, wish="vscale")
    fits = fn.compare("icmp", "eq", length, integer(fn.module.vscale, I64), wish="fits")
    fn.branch_if(fits, "vectors.fit", "vectors.other")
    fn.start_block("vectors.other")
    refuse(integer(OTHER_VECTORS, I32))
    fn.start_block("vectors.fit")


def reads_length(function: str) -> bool:
    """True if a function's text reads the length of vectors: it runs with any."""
    return f"@{_VSCALE}(" in function


def write_worker(module: ModuleText, name: str, call_range: CallRange) -> None:
    """Writes the function that computes one thread's share of the units."""
    fn = FunctionText(module, f"define internal void @{name}.worker(ptr %task)")
    fn.name("task")
    task = Value("%task", PTR)

    def report(status: Value) -> None:
        fn.emit(f"store atomic {status}, {_field(fn, task, 3)} monotonic, align 8")

    def refuse(status: Value) -> None:
        report(status)
        fn.emit("ret void")

    require_vectors(fn, refuse)
    buffers = fn.load(PTR, _field(fn, task, 0), 8, wish="buffers")
    sizes = fn.load(PTR, _field(fn, task, 1), 8, wish="sizes")
    units = fn.load(I64, _field(fn, task, 2), 8, wish="units")
    thread = fn.cast("sext", fn.call("omp_get_thread_num", I32, wish="thread"), I64, wish="thread")
    count = fn.cast("sext", fn.call("omp_get_num_threads", I32, wish="count"), I64, wish="count")
    above = fn.op("sub", fn.op("add", units, count, wish="above"), integer(1, I64), wish="above")
    share = fn.op("udiv", above, count, wish="share")
    first = fn.intrinsic("smin", fn.op("mul", thread, share, wish="first"), units, wish="first")
    last = fn.intrinsic("smin", fn.op("add", first, share, wish="last"), units, wish="last")
    failed = call_range(fn, (buffers, sizes), (first, last))
    is_bad = fn.compare("icmp", "ne", failed, integer(0, I32), wish="is_bad")
    fn.branch_if(is_bad, "report", "done")
    fn.start_block("report")
    report(failed)
    fn.branch("done")
    fn.start_block("done")
    fn.emit("ret void")
    fn.finish()


def write_entry(module: ModuleText, name: str, call_range: CallRange, measure: Measure) -> None:
    """Writes the kernel's function, which uses threads if they are worth their cost."""
    fn = FunctionText(module, f"define i32 @{name}(ptr %buffers, ptr %sizes, i32 %threads)")
    for argument in ("buffers", "sizes", "threads"):
        fn.name(argument)
    require_vectors(fn, lambda status: fn.emit(f"ret {status}"))
    buffers, table = Value("%buffers", PTR), Value("%sizes", PTR)
    units, is_worth = measure(fn, table)
    threads = fn.cast("sext", Value("%threads", I32), I64, wish="threads")
    team = fn.intrinsic("smin", threads, units, wish="team")
    is_many = fn.compare("icmp", "sgt", team, integer(1, I64), wish="is_many")
    runtime = Value("@GOMP_parallel", PTR)
    can_fork = fn.compare("icmp", "ne", runtime, Value("null", PTR), wish="can_fork")
    forks = fn.op("and", fn.op("and", is_worth, is_many, wish="wants"), can_fork, wish="forks")
    task = fn.alloca("task", _TASK)
    fn.branch_if(forks, "parallel", "serial")
    fn.start_block("serial")
    failed = call_range(fn, (buffers, table), (integer(0, I64), units))
    fn.emit(f"ret {failed}")
    fn.start_block("parallel")
    for number, value in enumerate((buffers, table, units, integer(0, I32))):
        fn.store(value, _field(fn, task, number), 8)
    team_size = fn.cast("trunc", team, I32, wish="team_size")
    worker = f"ptr @{name}.worker"
    fn.emit(f"call void @GOMP_parallel({worker}, {task}, {team_size}, i32 0)")
    fn.emit(f"ret {fn.load(I32, _field(fn, task, 3), 8, wish='any_failed')}")
    fn.finish()
    weak = "declare extern_weak"
    module.declarations["GOMP_parallel"] = f"{weak} void @GOMP_parallel(ptr, ptr, i32, i32)"
    module.declarations["omp_get_thread_num"] = f"{weak} i32 @omp_get_thread_num()"
    module.declarations["omp_get_num_threads"] = f"{weak} i32 @omp_get_num_threads()"
