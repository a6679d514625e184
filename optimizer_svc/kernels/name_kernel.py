"""Canonical sizes and names of kernels; equal kernels get equal names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from kernelfarm.ir.algebra.expr import Expr, symbol
from kernelfarm.ir.graph_ir import SizeSymbol
from kernelfarm.ir.loop_ir import (
    Compute,
    Indirect,
    Kernel,
    Load,
    Reduce,
    Scan,
    Sort,
    Store,
    scattering_stores,
)
from optimizer_svc.kernels.join_sizes import with_joined_sizes
from optimizer_svc.kernels.rewrite_indices import all_exprs, rewrite_indices

MAX_NAME_CHARS = 49
"""The shortest of the chips' limits (`max_kernel_name_chars`): names are equal for all targets."""
MAX_NAMED_OPS = 4
_ARITHMETIC = frozenset({"add", "sub", "mul", "div", "neg"})
_GLUE = frozenset({"convert", "where", "ge", "lt", "logical_and", "logical_or"})


def with_own_sizes(
    kernel: Kernel, symbols: Mapping[str, SizeSymbol]
) -> tuple[Kernel, tuple[Expr, ...]]:
    """The kernel over own sizes s0, s1, ..., and these as expressions of the program's sizes."""
    joined = with_joined_sizes(kernel, symbols)
    if joined is not None:
        return joined
    used: dict[str, None] = {}
    for expr in all_exprs(kernel):
        used.update(dict.fromkeys(sorted(name for name in expr.symbols if name in symbols)))
    names = {name: f"s{number}" for number, name in enumerate(used)}
    sizes = tuple(replace(symbols[name], name=names[name]) for name in used)
    if any(name != own for name, own in names.items()):
        values = {name: symbol(own) for name, own in names.items()}
        kernel = rewrite_indices(kernel, lambda expr: expr.substitute(values))
    return replace(kernel, sizes=sizes), tuple(symbol(name) for name in used)


def named_kernel(kernel: Kernel, digest: str) -> Kernel:
    """The kernel with a name made of its main operations and digits of its digest."""
    free_chars = MAX_NAME_CHARS - len(digest) - 1
    stem = "fused"
    for op in _main_ops(kernel):
        if len(stem) + len(op) + 1 <= free_chars:
            stem = f"{stem}_{op}"
    return replace(kernel, name=f"{stem}_{digest}")


def _main_ops(kernel: Kernel) -> list[str]:
    """The most characteristic operations of the kernel, each once, in the body's order."""
    ops = list(dict.fromkeys(_ops(kernel))) or ["copy"]
    reductions = {s.op for s in kernel.body if isinstance(s, Reduce | Scan)} | {"scatter", "sort"}

    def interest(op: str) -> int:
        return 0 if op in reductions else 2 if op in _ARITHMETIC else 3 if op in _GLUE else 1

    chosen = sorted(ops, key=interest)[:MAX_NAMED_OPS]
    shown = [op for op in chosen if op not in _GLUE] or chosen
    return [op for op in ops if op in shown]


def _ops(kernel: Kernel) -> Iterator[str]:
    scatters = scattering_stores(kernel)
    scattered = {
        name for n in scatters if isinstance(s := kernel.body[n], Store) for name in s.index.symbols
    }
    for number, statement in enumerate(kernel.body):
        match statement:
            case Compute(op=op) | Reduce(op=op) | Scan(op=op):
                yield op
            case Sort():
                yield "sort"
            case Indirect(symbol=symbol) if symbol not in scattered:
                yield "gather"
            case Store() if number in scatters:
                yield "scatter"
            case Load() | _:
                continue
