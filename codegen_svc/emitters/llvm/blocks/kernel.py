"""A user's kernel as an LLVM module of an entry, a worker for each thread, and a range function.

    i32 @<name>(ptr buffers, ptr sizes, i32 threads)  distributes the grid's blocks
    void @<name>.worker(ptr task)                     one thread's share of the grid
    i32 @<name>.share(ptr buffers, ptr sizes, i64 first, i64 last)   allocates the thread's memory
    void @<name>.range(ptr buffers, ptr sizes, ptr memory, i64 first, i64 last)   computes blocks

The sizes are the kernel's numbers, floats by their bits, then the counts of the grid's blocks along
x, y and z. The functions with a result return 0; 2 if a thread got no memory; 3 if it has vectors
of another length than the kernel was compiled for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from codegen_svc.emitters.llvm.blocks.control import CONTROL
from codegen_svc.emitters.llvm.blocks.elements import ElementWriter, number_type, register_of
from codegen_svc.emitters.llvm.blocks.folds import FOLDS
from codegen_svc.emitters.llvm.blocks.memory import MEMORY
from codegen_svc.emitters.llvm.blocks.products import PRODUCTS
from codegen_svc.emitters.llvm.blocks.program import BlockType, Operation, Program
from codegen_svc.emitters.llvm.blocks.values import ALIGNMENT_BYTES, Workspace, number_block
from codegen_svc.emitters.llvm.blocks.writer import BlockWriter, CodeParts, Grid
from codegen_svc.emitters.llvm.kernel import CodeTarget, new_module, rendered
from codegen_svc.emitters.llvm.math_functions.erf import MATH_FUNCTIONS
from codegen_svc.emitters.llvm.math_functions.library import MathLibrary
from codegen_svc.emitters.llvm.parallel import write_entry, write_worker
from codegen_svc.emitters.llvm.text import I32, I64, PTR, FunctionText, ModuleText, Value, integer
from codegen_svc.emitters.llvm.unit import write_loop
from kernelfarm.errors import KernelRejectedError

_NO_MEMORY: Final = 2


def emit_blocks(program: Program, target: CodeTarget) -> str:
    """The kernel as unoptimized LLVM assembly.

    Raises:
        KernelRejectedError: an operation or type has no code for processors.
    """
    module = new_module(program.name, (), target)
    size_bytes = _write_range(module, program, target)
    _write_share(module, program, size_bytes)

    def call(fn: FunctionText, tables: tuple[Value, Value], units: tuple[Value, Value]) -> Value:
        return fn.call(f"{program.name}.share", I32, *tables, *units, wish="failed")

    def measure(fn: FunctionText, table: Value) -> tuple[Value, Value]:
        units = integer(1, I64)
        for count in _counts(fn, program, table):
            units = fn.op("mul", units, count, wish="units")
        return units, fn.compare("icmp", "sgt", units, integer(1, I64), wish="is_worth")

    write_worker(module, program.name, call)
    write_entry(module, program.name, call, measure)
    return rendered(module, target)


def _write_range(module: ModuleText, program: Program, target: CodeTarget) -> int:
    """Writes the range function; returns the bytes of memory that it needs."""
    fn = FunctionText(
        module,
        f"define internal void @{program.name}.range(ptr %buffers, ptr %sizes,"
        " ptr noalias %memory, i64 %first, i64 %last) noinline",
    )
    for name in ("buffers", "sizes", "memory", "first", "last"):
        fn.name(name)
    sizes = Value("%sizes", PTR)
    workspace = Workspace(fn, Value("%memory", PTR))
    counts = _counts(fn, program, sizes)
    params = _params(fn, program, (Value("%buffers", PTR), sizes))
    library = MathLibrary(module, MATH_FUNCTIONS, scales_by_powers=target.scales_by_powers)
    elements = ElementWriter(fn, library, program.types)
    parts = CodeParts(fn, elements, workspace, target.vector_bits)
    narrow = tuple(fn.cast("trunc", count, I32, wish="count") for count in counts)

    def one(number: Value) -> None:
        grid = Grid(_indices(fn, number, counts), narrow)
        more = {**MEMORY, **FOLDS, **PRODUCTS, **CONTROL}
        writer = BlockWriter(program, parts, grid, more)
        for param, value in zip(program.params, params, strict=True):
            writer.blocks[param] = number_block(program.types[param], value)
        writer.write_all(_without_return(program.body))

    write_loop(fn, "program", (Value("%first", I64), Value("%last", I64)), one, is_inner=False)
    fn.emit("ret void")
    fn.finish()
    return workspace.size_bytes


def _write_share(module: ModuleText, program: Program, size_bytes: int) -> None:
    fn = FunctionText(
        module,
        f"define internal i32 @{program.name}.share(ptr %buffers, ptr %sizes, i64 %first,"
        " i64 %last)",
    )
    for name in ("buffers", "sizes", "first", "last"):
        fn.name(name)
    module.declare("malloc", PTR, (I64,))
    module.declare("free", "void", (PTR,))
    heap = fn.call("malloc", PTR, integer(size_bytes + ALIGNMENT_BYTES, I64), wish="heap")
    is_short = fn.compare("icmp", "eq", heap, Value("null", PTR), wish="is_short")
    fn.branch_if(is_short, "short", "compute")
    fn.start_block("short")
    fn.emit(f"ret {integer(_NO_MEMORY, I32)}")
    fn.start_block("compute")
    address = fn.cast("ptrtoint", heap, I64)
    above = fn.op("add", address, integer(ALIGNMENT_BYTES - 1, I64))
    aligned = fn.op("and", above, integer(-ALIGNMENT_BYTES, I64))
    memory = fn.cast("inttoptr", aligned, PTR, wish="memory")
    arguments = f"ptr %buffers, ptr %sizes, {memory}, i64 %first, i64 %last"
    fn.emit(f"call void @{program.name}.range({arguments})")
    fn.emit(f"call void @free({heap})")
    fn.emit(f"ret {integer(0, I32)}")
    fn.finish()


def _numbers(program: Program) -> int:
    """How many parameters are numbers."""
    return sum(not program.types[param].is_pointer for param in program.params)


def _counts(fn: FunctionText, program: Program, sizes: Value) -> tuple[Value, ...]:
    """The counts of the grid's blocks, which stand behind the numbers."""
    first = _numbers(program)
    return tuple(
        fn.load(I64, fn.element(I64, sizes, integer(first + axis, I64)), 8, wish=f"count_{name}")
        for axis, name in enumerate("xyz")
    )


def _indices(fn: FunctionText, number: Value, counts: Sequence[Value]) -> tuple[Value, ...]:
    """The index of a block of the grid, whose blocks along x follow each other."""
    x = fn.op("urem", number, counts[0], wish="x")
    rest = fn.op("udiv", number, counts[0], wish="rest")
    y, z = fn.op("urem", rest, counts[1], wish="y"), fn.op("udiv", rest, counts[1], wish="z")
    return tuple(fn.cast("trunc", index, I32) for index in (x, y, z))


def _params(fn: FunctionText, program: Program, tables: tuple[Value, Value]) -> tuple[Value, ...]:
    """The parameters' values from the tables of buffers and sizes."""
    found, buffers, numbers = [], 0, 0
    for param in program.params:
        kind = program.types[param]
        if kind.is_pointer:
            slot = fn.element(PTR, tables[0], integer(buffers, I64))
            found.append(fn.load(PTR, slot, 8, wish="buffer"))
            buffers += 1
            continue
        word = fn.load(I64, fn.element(I64, tables[1], integer(numbers, I64)), 8, wish="size")
        found.append(_number(fn, kind, word))
        numbers += 1
    return tuple(found)


def _number(fn: FunctionText, kind: BlockType, word: Value) -> Value:
    """A number from the low bits of a word."""
    dtype, register = number_type(kind), register_of(kind)
    if not dtype.is_float:
        return fn.cast("trunc", word, register)
    bits = fn.cast("trunc", word, f"i{8 * dtype.itemsize_bytes}")
    return fn.cast("bitcast", bits, register)


def _without_return(body: Sequence[Operation]) -> Sequence[Operation]:
    if not body or body[-1].name != "tt.return" or body[-1].operands:
        raise KernelRejectedError("a user kernel that returns early has no code for processors")
    return body[:-1]
