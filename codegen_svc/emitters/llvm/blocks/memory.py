"""Loads, stores and atomic operations of a kernel over blocks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from codegen_svc.emitters.llvm.blocks.elements import load_element, register_of, store_element
from codegen_svc.emitters.llvm.blocks.program import BlockType, Operation
from codegen_svc.emitters.llvm.blocks.values import (
    Block,
    Index,
    Scope,
    element_address,
    kept_block,
    over,
)
from codegen_svc.emitters.llvm.blocks.writer import BlockWriter, WriteOperation
from codegen_svc.emitters.llvm.text import FunctionText, Value, floating, integer
from kernelfarm.errors import KernelRejectedError

_ATOMIC: Final[Mapping[str, str]] = {
    "fadd": "fadd",
    "add": "add",
    "max": "max",
    "min": "min",
    "umax": "umax",
    "umin": "umin",
    "and": "and",
    "or": "or",
    "xor": "xor",
    "exch": "xchg",
}
_KIND: Final = re.compile(r"\w+")


def _load(writer: BlockWriter, op: Operation) -> None:
    """A load is done where it stands, because a later store may change the memory."""
    kind = writer.kind(op.results[0])
    pointers, *rest = (writer.block(number) for number in op.operands)
    mask, other = (*rest, None, None)[:2]

    def element(scope: Scope, index: Index) -> Value:
        at = pointers.at(scope, index)
        if mask is None:
            return load_element(writer.fn, kind, at)
        default = _zero(kind) if other is None else other.at(scope, index)
        return _masked_load(writer.fn, kind, at, mask.at(scope, index), default)

    writer.blocks[op.results[0]] = writer.kept(Block(kind, element))


def _zero(kind: BlockType) -> Value:
    register = register_of(kind)
    if register in ("half", "float", "double"):
        return floating(0.0, register)
    return Value("null", register) if register == "ptr" else integer(0, register)


def _masked_load(
    fn: FunctionText, kind: BlockType, at: Value, mask: Value, default: Value
) -> Value:
    then, end = fn.name("inside"), fn.name("loaded")
    before = fn.block
    fn.branch_if(mask, then, end)
    fn.start_block(then)
    found = load_element(fn, kind, at)
    fn.branch(end)
    fn.start_block(end)
    choices = f"[ {found.text}, %{then} ], [ {default.text}, %{before} ]"
    return fn.define("value", found.type, f"phi {found.type} {choices}")


def _store(writer: BlockWriter, op: Operation) -> None:
    pointers, values, *rest = (writer.block(number) for number in op.operands)
    fn, kind = writer.fn, values.kind

    def body(index: Index) -> None:
        scope = Scope()
        at, value = pointers.at(scope, index), values.at(scope, index)
        _if(
            fn,
            rest[0].at(scope, index) if rest else None,
            lambda: store_element(fn, kind, value, at),
        )

    over(fn, kind.shape, body)


def _if(fn: FunctionText, mask: Value | None, write: object) -> None:
    assert callable(write)
    if mask is None:
        write()
        return
    then, end = fn.name("inside"), fn.name("stored")
    fn.branch_if(mask, then, end)
    fn.start_block(then)
    write()
    fn.branch(end)
    fn.start_block(end)


def _atomic(writer: BlockWriter, op: Operation) -> None:
    fn, kind = writer.fn, writer.kind(op.results[0])
    pointers, values, *rest = (writer.block(number) for number in op.operands)
    words = _KIND.findall(op.words)
    name = _ATOMIC.get(words[0] if words else "")
    if name is None or kind.element in ("i1", "bf16"):
        raise KernelRejectedError(f"an atomic {op.words[:20]} of {kind.element} has no code")
    is_used = writer.program.use_counts.get(op.results[0], 0) > 0
    memory = writer.workspace.part(kind) if is_used else None

    def body(index: Index) -> None:
        scope = Scope()
        at, value = pointers.at(scope, index), values.at(scope, index)

        def write() -> None:
            old = fn.define("old", value.type, f"atomicrmw {name} {at}, {value} acq_rel")
            if memory is not None:
                store_element(fn, kind, old, element_address(fn, kind, memory, index))

        _if(fn, rest[0].at(scope, index) if rest else None, write)

    over(fn, kind.shape, body)
    if memory is not None:
        writer.blocks[op.results[0]] = writer.kept(kept_block(fn, kind, memory))


MEMORY: Final[Mapping[str, WriteOperation]] = {
    "tt.load": _load,
    "tt.store": _store,
    "tt.atomic_rmw": _atomic,
}
