"""What a processor can do at most: multiply-adds in registers, and bytes read from memory.

A program that computes products cannot be faster than its multiply-adds at the first rate, unless
it needs fewer of them (as Winograd's convolutions do), nor than its weights at the second.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import llvmlite.binding as llvm
import torch

_CHAINS = 12
"""Independent sums: more than a multiply-add's latency times its units, fewer than registers."""
_COUNT = 20_000_000
_ROUNDS = 5
_BYTES = 1 << 29


@dataclass(frozen=True)
class _MultiplyAdd:
    """An instruction: its factors' and its sum's vectors in LLVM, its call, its multiply-adds."""

    factor: str
    sum: str
    call: str
    count: int


_PAIRS = _MultiplyAdd(
    "<32 x bfloat>",
    "<16 x float>",
    "@llvm.x86.avx512bf16.dpbf16ps.512({sum}, {x}, {x})",
    count=32,
)


@dataclass(frozen=True)
class Ceilings:
    """Operations and bytes in a second; a multiply-add is two operations."""

    flops: float
    read_bytes: float

    def least_ms(self, flops: float, read_bytes: float) -> float:
        """The least time of a program with so many operations that reads so many bytes once."""
        return 1e3 * max(flops / self.flops, read_bytes / self.read_bytes)


def ceilings(dtype: torch.dtype, threads: int) -> Ceilings:
    """The rates of so many threads; bf16 by the instruction for it, if the processor has one."""
    features = llvm.get_host_cpu_features()
    if dtype == torch.bfloat16 and features.get("avx512bf16", False):
        form = _PAIRS
    else:
        form = _of_f32(features)
    return Ceilings(_flops(form, threads), _read_bytes(threads))


def _of_f32(features: Mapping[str, bool]) -> _MultiplyAdd:
    """Multiply-adds of f32 in the widest vectors of one register."""
    lanes = 16 if features.get("avx512f", False) else 8 if features.get("avx2", False) else 4
    vector = f"<{lanes} x float>"
    return _MultiplyAdd(vector, vector, f"@llvm.fma.v{lanes}f32({{x}}, {{x}}, {{sum}})", lanes)


def _flops(form: _MultiplyAdd, threads: int) -> float:
    engine = _engine(_text(form))
    entry = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p)(
        engine.get_function_address("multiply_add")
    )
    buffers = [ctypes.create_string_buffer(256) for _ in range(threads)]
    addresses = [-(-ctypes.addressof(buffer) // 64) * 64 for buffer in buffers]

    def run(address: int) -> None:
        entry(_COUNT, address)

    best_s = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(_ROUNDS):
            began_s = time.perf_counter()
            list(pool.map(run, addresses))
            best_s = min(best_s, time.perf_counter() - began_s)
    return 2 * threads * _COUNT * _CHAINS * form.count / best_s


def _text(form: _MultiplyAdd) -> str:
    """Independent chains of multiply-adds, of values that the compiler does not know."""
    sums, kind, call, wide = range(_CHAINS), form.factor, form.call, form.sum
    function = call.partition("(")[0]
    takes = f"{kind}, {kind}, {wide}" if "fma" in function else f"{wide}, {kind}, {kind}"
    chains = [f"%a{n} = phi {wide} [ zeroinitializer, %entry ], [ %b{n}, %loop ]" for n in sums]
    steps = [
        f"%b{n} = call {wide} {call.format(x=f'{kind} %x', sum=f'{wide} %a{n}')}" for n in sums
    ]
    totals = [
        f"%t{n} = fadd {wide} %b{n}, {f'%t{n - 1}' if n > 1 else '%b0'}" for n in sums if n > 0
    ]
    return "\n".join(
        [
            f"declare {wide} {function}({takes})",
            "define void @multiply_add(i64 %count, ptr %at) {",
            "entry:",
            f"%x = load {kind}, ptr %at, align 64",
            "br label %loop",
            "loop:",
            "%i = phi i64 [ 0, %entry ], [ %next, %loop ]",
            *chains,
            *steps,
            "%next = add i64 %i, 1",
            "%more = icmp ult i64 %next, %count",
            "br i1 %more, label %loop, label %end",
            "end:",
            *totals,
            f"store {wide} %t{_CHAINS - 1}, ptr %at, align 64",
            "ret void",
            "}",
        ]
    )


def _engine(text: str) -> llvm.ExecutionEngine:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features().flatten()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features, opt=2
    )
    module = llvm.parse_assembly(text)
    module.verify()
    return llvm.create_mcjit_compiler(module, machine)


def _read_bytes(threads: int) -> float:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    data = torch.ones(_BYTES // 4)
    best_s = float("inf")
    for _ in range(_ROUNDS):
        began_s = time.perf_counter()
        data.sum()
        best_s = min(best_s, time.perf_counter() - began_s)
    torch.set_num_threads(before)
    return _BYTES / best_s
