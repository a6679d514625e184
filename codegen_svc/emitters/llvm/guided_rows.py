"""Guided reductions of a row: two loops over a chunk, which is then joined to those before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from codegen_svc.emitters.llvm.accumulate import accumulator_dtype, finished
from codegen_svc.emitters.llvm.element_types import register_type
from codegen_svc.emitters.llvm.guided import GuidedText, PartialResult
from codegen_svc.emitters.llvm.schedule import Accumulator, Phase
from codegen_svc.emitters.llvm.text import DOUBLE, Value, floating
from codegen_svc.emitters.llvm.unit import UnitContext
from codegen_svc.emitters.llvm.values import Scope, ValueWriter

Slots = dict[str, Value]
_COUNT = "count"


@dataclass(frozen=True, slots=True)
class RowChunk:
    """A chunk between its two loops: number of points; the guide, anchor and slots of each sum."""

    count: Value
    guides: Mapping[str, Value]
    anchors: Mapping[str, Value]
    sums: Mapping[str, tuple[Value, ...]]


class GuidedRows:
    """Writes the guided reductions of phases over rows."""

    def __init__(self, context: UnitContext) -> None:
        self._context = context
        self._fn = context.fn
        phases = context.schedule.phases
        self._by_key = {a.key: a for p in phases for a in p.accumulators}

    def fresh(self, phase: Phase) -> Slots:
        """Slots of a partial result without points."""
        if not phase.guided:
            return {}
        slots = {_COUNT: self._zero(_COUNT, DOUBLE)}
        for a in phase.guided:
            for slot_name, dtype in zip(_slot_names(a), self._text(a).kept, strict=True):
                slots[slot_name] = self._zero(slot_name, register_type(dtype))
        return slots

    def start(self, phase: Phase, bounds: tuple[Value, Value], slots: Slots) -> RowChunk:
        """The chunk after its first loop, which put the guides into `slots`."""
        fn = self._fn
        lower, upper = bounds
        count = fn.cast("sitofp", fn.op("sub nsw", upper, lower, wish=_COUNT), DOUBLE)
        guides = {a.key: self._guide(a, slots) for a in phase.guided}
        return RowChunk(
            count=count,
            guides=guides,
            anchors={a.key: self._text(a).anchor(count, guides[a.key]) for a in phase.guided},
            sums={
                a.key: tuple(
                    self._zero(f"{a.key}.sum", register_type(a.dtype))
                    for _ in range(self._text(a).term_count)
                )
                for a in phase.guided
            },
        )

    def add_point(self, phase: Phase, chunk: RowChunk, writer: ValueWriter, scope: Scope) -> None:
        """Adds a point in the second loop."""
        fn = self._fn
        for a in phase.guided:
            value = self._context.contribution(writer, a, scope, lambda key: chunk.anchors[key])
            terms = self._text(a).terms(value, chunk.anchors[a.key])
            for slot, term in zip(chunk.sums[a.key], terms, strict=True):
                known = fn.load(register_type(a.dtype), slot, 8)
                fn.store(fn.op("fadd reassoc", known, term), slot, 8)

    def end(self, phase: Phase, chunk: RowChunk, slots: Slots) -> None:
        """Writes the chunk's partial result to its slots."""
        fn = self._fn
        for a in phase.guided:
            sums = tuple(fn.load(register_type(a.dtype), s, 8) for s in chunk.sums[a.key])
            anchor, guide = chunk.anchors[a.key], chunk.guides[a.key]
            self._store(a, self._text(a).partial(chunk.count, anchor, guide, sums), slots)
        if phase.guided:
            fn.store(chunk.count, slots[_COUNT], 8)

    def join(self, phase: Phase, slots: Slots, own: Slots) -> None:
        """Joins a partial result to that of the points before it, which may be empty."""
        fn = self._fn
        for a in phase.guided:
            first, second = self._part(a, slots), self._part(a, own)
            self._store(a, second, slots)
            is_later = fn.compare("fcmp", "ogt", first.count, floating(0.0, DOUBLE), wish="later")
            join, after = fn.name(f"{a.key}.join"), fn.name(f"{a.key}.joined")
            fn.branch_if(is_later, join, after)
            fn.start_block(join)
            self._store(a, self._text(a).joined(first, second), slots)
            fn.branch(after)
            fn.start_block(after)
        if phase.guided:
            before, more = (fn.load(DOUBLE, s[_COUNT], 8, wish=_COUNT) for s in (slots, own))
            fn.store(fn.op("fadd", before, more), slots[_COUNT], 8)

    def finished(self, a: Accumulator, slots: Slots) -> Value:
        """The reduction's value."""
        return self._text(a).finished(self._part(a, slots))

    def _zero(self, wish: str, kind: str) -> Value:
        slot = self._fn.alloca(wish, kind)
        self._fn.store(floating(0.0, kind), slot, 8)
        return slot

    def _guide(self, a: Accumulator, slots: Slots) -> Value:
        guide = self._by_key[a.guide]
        running = accumulator_dtype(guide)
        self._fn.topic = guide.key
        value = self._fn.load(register_type(running), slots[guide.key], 8)
        return finished(self._fn, value, guide, running)

    def _part(self, a: Accumulator, slots: Slots) -> PartialResult:
        self._fn.topic = a.key
        guide, total = (
            self._fn.load(register_type(dtype), slots[slot_name], 8)
            for slot_name, dtype in zip(_slot_names(a), self._text(a).kept, strict=True)
        )
        return PartialResult(self._fn.load(DOUBLE, slots[_COUNT], 8, wish=_COUNT), guide, total)

    def _store(self, a: Accumulator, partial: PartialResult, slots: Slots) -> None:
        for slot_name, value in zip(_slot_names(a), (partial.guide, partial.total), strict=True):
            self._fn.store(value, slots[slot_name], 8)

    def _text(self, a: Accumulator) -> GuidedText:
        return self._context.guided_text(a, a.dtype, a.dtype)


def _slot_names(a: Accumulator) -> tuple[str, str]:
    return f"{a.key}.guide", f"{a.key}.total"
