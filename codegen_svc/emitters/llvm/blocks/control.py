"""Loops and branches of a kernel over blocks; their values live in slots or in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from codegen_svc.emitters.llvm.blocks.elements import (
    load_element,
    memory_of,
    size_bytes,
    store_element,
)
from codegen_svc.emitters.llvm.blocks.program import BlockType, Operation, Region
from codegen_svc.emitters.llvm.blocks.values import Block, kept_block, number_block, store_block
from codegen_svc.emitters.llvm.blocks.writer import BlockWriter, WriteOperation
from codegen_svc.emitters.llvm.text import Value
from kernelfarm.errors import KernelRejectedError

_NOTHING: Final = Operation("scf.yield", (), ())


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a value lives that several iterations or branches assign."""

    kind: BlockType
    memory: Value

    def read(self, writer: BlockWriter) -> Block:
        """The value as it is now; a number is read at once."""
        if self.kind.shape:
            return kept_block(writer.fn, self.kind, self.memory)
        return number_block(self.kind, load_element(writer.fn, self.kind, self.memory))


def _places(writer: BlockWriter, numbers: Sequence[int]) -> list[_Place]:
    found = []
    for number in numbers:
        kind = writer.kind(number)
        if kind.shape:
            memory = writer.workspace.part(kind, "carried")
        else:
            memory = writer.fn.alloca("carried", memory_of(kind))
        found.append(_Place(kind, memory))
    return found


def _assign(writer: BlockWriter, places: Sequence[_Place], blocks: Sequence[Block]) -> None:
    """Stores values at once: each is computed before one is overwritten that it may read."""
    own = {place.memory.text for place in places}
    kept = []
    for place, block in zip(places, blocks, strict=True):
        found = writer.kept(block)
        if found.memory is not None and found.memory.text in own - {place.memory.text}:
            found = writer.copied(found)  # two values that change places
        kept.append(found)
    _begin(writer, places, kept)


def _begin(writer: BlockWriter, places: Sequence[_Place], blocks: Sequence[Block]) -> None:
    """Stores the first values, none of which reads a place."""
    for place, block in zip(places, blocks, strict=True):
        if not place.kind.shape:
            store_element(writer.fn, place.kind, block.number(), place.memory)
        elif block.memory is not None:
            _copy(writer, place, block.memory)
        else:
            store_block(writer.fn, block, place.memory)


def _copy(writer: BlockWriter, place: _Place, source: Value) -> None:
    if source.text == place.memory.text:
        return
    count = place.kind.elems * size_bytes(place.kind)
    fn = writer.fn
    fn.module.declarations.setdefault(
        "llvm.memmove.p0.p0.i64", "declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)"
    )
    fn.emit(f"call void @llvm.memmove.p0.p0.i64({place.memory}, {source}, i64 {count}, i1 false)")


def _read(writer: BlockWriter, numbers: Sequence[int], places: Sequence[_Place]) -> None:
    for number, place in zip(numbers, places, strict=False):
        writer.blocks[number] = place.read(writer)


def _blocks(writer: BlockWriter, numbers: Sequence[int]) -> list[Block]:
    return [writer.block(number) for number in numbers]


def _for(writer: BlockWriter, op: Operation) -> None:
    fn, region = writer.fn, op.regions[0]
    begin, end, step = (writer.block(number).number() for number in op.operands[:3])
    counter = _Place(writer.kind(region.params[0]), fn.alloca("counter", begin.type))
    places = _places(writer, region.params[1:])
    _begin(writer, places, _blocks(writer, op.operands[3:]))
    fn.store(begin, counter.memory, 8)
    head, body, done = (fn.name(name) for name in ("for", "for.body", "for.end"))
    fn.branch(head)
    fn.start_block(head)
    now = fn.load(begin.type, counter.memory, 8)
    predicate = "ult" if op.words == "unsigned" else "slt"
    fn.branch_if(fn.compare("icmp", predicate, now, end), body, done)
    fn.start_block(body)
    writer.blocks[region.params[0]] = number_block(counter.kind, now)
    _read(writer, region.params[1:], places)
    _assign(writer, places, _written(writer, region))
    fn.store(fn.op("add", now, step), counter.memory, 8)
    fn.branch(head)
    fn.start_block(done)
    _read(writer, op.results, places)


def _if(writer: BlockWriter, op: Operation) -> None:
    fn = writer.fn
    places = _places(writer, op.results)
    names = [fn.name(name) for name in ("then", "else")][: len(op.regions)]
    end = fn.name("endif")
    fn.branch_if(writer.block(op.operands[0]).number(), names[0], (*names, end)[1])
    for name, region in zip(names, op.regions, strict=True):
        fn.start_block(name)
        _assign(writer, places, _written(writer, region))
        fn.branch(end)
    fn.start_block(end)
    _read(writer, op.results, places)


def _while(writer: BlockWriter, op: Operation) -> None:
    fn = writer.fn
    before, after = op.regions
    starts, passed = _places(writer, before.params), _places(writer, after.params)
    _begin(writer, starts, _blocks(writer, op.operands))
    head, body, done = (fn.name(name) for name in ("while", "while.body", "while.end"))
    fn.branch(head)
    fn.start_block(head)
    _read(writer, before.params, starts)
    *inside, condition = before.body
    if condition.name != "scf.condition":
        raise KernelRejectedError(f"a loop that ends with {condition.name[:40]} has no code")
    writer.write_all(inside)
    _assign(writer, passed, _blocks(writer, condition.operands[1:]))
    fn.branch_if(writer.block(condition.operands[0]).number(), body, done)
    fn.start_block(body)
    _read(writer, after.params, passed)
    _assign(writer, starts, _written(writer, after))
    fn.branch(head)
    fn.start_block(done)
    _read(writer, op.results, passed)


def _written(writer: BlockWriter, region: Region) -> list[Block]:
    """Writes a region; the values that it yields, of which there may be none."""
    *inside, last = region.body or (_NOTHING,)
    if last.name != "scf.yield":
        inside, last = [*inside, last], _NOTHING
    writer.write_all(inside)
    return _blocks(writer, last.operands)


CONTROL: Final[Mapping[str, WriteOperation]] = {
    "scf.for": _for,
    "scf.if": _if,
    "scf.while": _while,
}
