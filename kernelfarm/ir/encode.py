"""The canonical text encoding that digests are taken over.

It is injective: strings are prefixed with their length, every argument begins with a letter or sign
for its kind, floats are hexadecimal. It is not meant for readers. Changing one byte of it changes
every key, which golden vectors in the tests detect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.graph_ir import Arg, Constant, Graph, Input, Node, Ref, SizeSymbol, TensorType
from kernelfarm.ir.hints import KernelHint
from kernelfarm.ir.loop_ir import (
    Compute,
    IndexValue,
    Indirect,
    Kernel,
    Literal,
    Load,
    Reduce,
    Scan,
    Sort,
    Statement,
    Store,
    StoreMode,
)
from kernelfarm.ir.work_budget import counted

GRAPH_ENCODING = "kernelfarm-graph-1"
KERNEL_ENCODING = "kernelfarm-kernel-1"


def encode_graph(graph: Graph) -> str:
    """The encoding of a canonical graph, with constants by their digests."""
    lines = [
        f"{GRAPH_ENCODING} abi{graph.abi_version} {_text(graph.dialect)}",
        *(_size(size) for size in graph.symbols),
        *(f"in %{source.value} {_input(source)}" for source in graph.inputs),
        *(counted(_node(node)) for node in graph.nodes),
    ]
    for output, tensor in zip(graph.outputs, graph.output_types, strict=True):
        lines.append(f"out {_arg(output)} {'-' if tensor is None else _type(tensor)}")
    lines.extend(f"update {update.output} {update.input}" for update in graph.updates)
    lines.extend(f"hint {found.node} {_hint(found.hint)}" for found in graph.kernel_hints)
    return "\n".join(lines)


def encode_kernel(kernel: Kernel) -> str:
    """The encoding of a canonical kernel, without its name and comments."""
    lines = [KERNEL_ENCODING, *(_size(size) for size in kernel.sizes)]
    for param in kernel.params:
        access, elems = param.access.value, param.size_elems
        lines.append(f"param {_text(param.name)} {access} {param.dtype.value} ({elems})")
    lines.extend(f"outer {_text(axis.name)} ({axis.extent})" for axis in kernel.outer)
    lines.extend(f"reduce {_text(axis.name)} ({axis.extent})" for axis in kernel.reduction)
    lines.extend(counted(_STATEMENTS[type(statement)](statement)) for statement in kernel.body)
    lines.extend(f"hint {_hint(hint)}" for hint in kernel.hints)
    return "\n".join(lines)


def encode_text_pairs(pairs: Iterable[tuple[str, str]]) -> str:
    """The encoding of named texts, sorted by name."""
    return "\n".join(f"{_text(name)} {_text(value)}" for name, value in sorted(pairs))


def _text(value: str) -> str:
    return f"{len(value)}:{value}"


def _hint(hint: KernelHint) -> str:
    return f"{_text(hint.name)} {'-' if hint.value is None else hint.value}"


def _size(size: SizeSymbol) -> str:
    return f"size {_text(size.name)} {size.lower} {'-' if size.upper is None else size.upper}"


def _input(source: Input) -> str:
    match source.kind:
        case TensorType() as tensor:
            return f"tensor {_type(tensor)}"
        case Constant(tensor, sha256, _):
            return f"constant {_type(tensor)} {sha256.hex()}"
        case name:
            return f"symbol {_text(name)}"


def _type(tensor: TensorType) -> str:
    shape = ",".join(map(str, tensor.shape))
    if tensor.strides is None:
        return f"{tensor.dtype.value}[{shape}]"
    return f"{tensor.dtype.value}[{shape}]@[{','.join(map(str, tensor.strides))}]"


def _node(node: Node) -> str:
    args = ",".join(map(_arg, node.args))
    attrs = ",".join(f"{_text(name)}={_arg(arg)}" for name, arg in node.attrs)
    results = " ".join(
        f"%{value} {_type(tensor)}" for value, tensor in zip(node.results, node.types, strict=True)
    )
    return f"{_text(node.op)}({args})({attrs}) {results}"


def _arg(arg: Arg) -> str:
    return _ARGS[type(arg)](arg)


_ARGS: dict[type, Callable[[Any], str]] = {
    Ref: lambda arg: f"%{arg.value}",
    type(None): lambda arg: "none",
    bool: lambda arg: "true" if arg else "false",
    int: lambda arg: f"i{arg}",
    float: lambda arg: f"f{_float(arg)}",
    complex: lambda arg: f"c{_float(arg.real)}_{_float(arg.imag)}",
    str: lambda arg: f"t{_text(arg)}",
    DType: lambda arg: f"d{arg.value}",
    Expr: lambda arg: f"({arg})",
    tuple: lambda arg: f"[{','.join(map(_arg, arg))}]",
}


def _float(value: float) -> str:
    # All NaN have one encoding: no defined result depends on their sign and payload.
    return "nan" if value != value else value.hex()  # noqa: PLR0124 (NaN is what differs from itself)


def _literal(literal: Literal) -> str:
    value = literal.value
    exact = _float(float(value)) if literal.dtype.is_float else str(int(value))
    return f"literal {literal.dtype.value} {exact}"


def _load(load: Load) -> str:
    masked = "" if load.mask is None else f" %{load.mask} %{load.other}"
    return f"load {_text(load.param)} ({load.index}){masked}"


def _compute(compute: Compute) -> str:
    operands = " ".join(f"%{operand}" for operand in compute.operands)
    return f"compute {_text(compute.op)} {compute.dtype.value} {operands}"


def _store(store: Store) -> str:
    # Plain stores have no mode, so that kernels from before there were modes keep their keys.
    mode = "" if store.mode is StoreMode.SET else f" {store.mode.value}"
    return f"store {_text(store.param)} ({store.index}) %{store.value}{mode}"


_STATEMENTS: dict[type[Statement], Callable[[Any], str]] = {
    Load: _load,
    Literal: _literal,
    IndexValue: lambda s: f"index {s.dtype.value} ({s.expr})",
    Compute: _compute,
    Reduce: lambda s: f"fold {_text(s.op)} {s.dtype.value} %{s.operand}",
    Scan: lambda s: f"scan {_text(s.op)} {s.dtype.value} %{s.operand}",
    Sort: lambda s: f"sort {'descending' if s.descending else 'ascending'} %{s.operand}",
    Indirect: lambda s: f"indirect {_text(s.symbol)} %{s.value} ({s.extent})",
    Store: _store,
}
