"""Texts of the data that optimizer passes give each other. They do not parse back.

strides %3: [96, 1, 12, 3]                    the layout that a value gets
copy operand 0 of node 0: [48, 1, 12, 3]      an operand that is copied into another layout
storage %3: output 0, f32[8, 4]@[4, 1]        a value in memory, and in which
slice %7 of %3 along 0 from 4                 a slice that a nest of its own stores
members: %3, %7                               the values that nests compute
operand %5: %0 as [3, 2]@[2, 6] from 6        what an extern step reads: a view of a storage
output 0: %3 as [8, 4]@[4, 1]                 what the program returns
nest %3: f32, for x0 in 8, reduce r0 in 4     a loop nest, its statements, its store
group: for v3.x0 in 8, reduce v3.r0 in 4      nests over one domain
step: launch 0(%0, %3)                        a step of the program
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from kernelfarm.ir.algebra.expr import Expr, symbol
from kernelfarm.ir.graph_ir import Node
from kernelfarm.ir.loop_ir import Indirect, StoreMode
from kernelfarm.ir.program_ir import BufferKind, Program
from kernelfarm.ir.text import print_kernel, print_plan
from kernelfarm.ir.text.kernel import print_value
from optimizer_svc.analysis.storages import Storage
from optimizer_svc.analysis.strided_views import StridedView
from optimizer_svc.ir.built_steps import BuiltSteps, PlannedLaunch
from optimizer_svc.ir.contraction_choice import ContractionChoice
from optimizer_svc.ir.fused import Fusion
from optimizer_svc.ir.group import Group
from optimizer_svc.ir.layouts import Layouts
from optimizer_svc.ir.materialization import Materialization
from optimizer_svc.ir.nest import Nest, NestStatement, Read
from optimizer_svc.ir.products import Products
from optimizer_svc.ir.splits import Splits

_BY_POSITION = (BufferKind.INPUT, BufferKind.OUTPUT, BufferKind.CONSTANT)
"""Kinds of memory that the caller numbers."""


def print_layouts(layouts: Layouts) -> str:
    """Strides by value, copies by node and operand, and notes."""
    strides = (f"strides %{v}: {_numbers(found)}" for v, found in sorted(layouts.strides.items()))
    copies = (
        f"copy operand {number} of node {position}: {_numbers(found)}"
        for (position, number), found in sorted(layouts.copies.items())
    )
    return _text(strides, copies, _notes(layouts.notes))


def _numbers(exprs: Iterable[Expr]) -> str:
    return f"[{', '.join(map(str, exprs))}]"


def print_materialization(chosen: Materialization) -> str:
    """Storages by value, slices, members, views, and notes."""
    values = sorted(chosen.storages.keys() - chosen.slices.keys())
    storages = (_storage(value, chosen.storages[value]) for value in values)
    slices = (
        f"slice %{value} of %{stored.value} along {stored.dim} from {stored.start}"
        for value, stored in sorted(chosen.slices.items())
    )
    operands = (f"operand %{v}: {_view(view)}" for v, view in sorted(chosen.operand_views.items()))
    outputs = (f"output {n}: {_output(output)}" for n, output in enumerate(chosen.output_views))
    members = [f"members: {_values(chosen.members)}"]
    if chosen.unrounded:
        members.append(f"unrounded: {_values(sorted(chosen.unrounded))}")
    return _text(storages, slices, members, operands, outputs, _notes(chosen.notes))


def print_products(products: Products) -> str:
    """The results of products that kernels compute, with the weights, and the prices."""
    found = (f"%{result}: weight %{p.weight}" for result, p in products.by_result.items())
    return _text(found, _notes(products.notes))


def print_splits(splits: Splits) -> str:
    """The values of reductions that are split, and the reasons."""
    found = (
        f"%{value}: {split.slices} slices of axes {split.run.start} to {split.run.stop - 1}"
        for value, split in splits.by_value.items()
    )
    return _text(found, _notes(splits.notes))


def print_nests(nests: tuple[Nest, ...]) -> str:
    """The nests in order, each with its statements."""
    return _text(*(_nest(nest) for nest in nests))


def print_fusion(fusion: Fusion) -> str:
    """Groups and extern nodes in order, the values that are stored, and refusals with reasons."""
    steps = (_fused_step(step) for step in fusion.steps)
    stored = [f"stored: {_values(sorted(fusion.stored))}"]
    refused = (f"refused: %{r.first} with %{r.second}: {r.reason}" for r in fusion.refusals)
    return _text(*steps, stored, refused, _notes(fusion.notes))


def print_built_steps(built: BuiltSteps) -> str:
    """The kernels, the steps that launch them, and notes."""
    kernels = (print_kernel(kernel).splitlines() for kernel in built.kernels)
    return _text(*kernels, map(_built_step, built.steps), _notes(built.notes))


def print_program(program: Program) -> str:
    """The plan. The kernels are those of `build-kernels`."""
    return print_plan(program.plan)


def _storage(value: int, storage: Storage) -> str:
    kind = storage.kind.name.lower()
    where = f"{kind} {storage.position}" if storage.kind in _BY_POSITION else kind
    owner = "" if storage.value == value else f" of %{storage.value}"
    layout = f"{storage.dtype.value}[{_list(storage.shape)}]@[{_list(storage.strides)}]"
    return f"storage %{value}: {where}{owner}, {layout}"


def _view(view: StridedView) -> str:
    start = "" if view.offset == 0 else f" from {view.offset}"
    return f"%{view.source} as [{_list(view.shape)}]@[{_list(view.strides)}]{start}"


def _output(output: StridedView | Expr | None) -> str:
    if isinstance(output, StridedView):
        return _view(output)
    return "none" if output is None else str(output)


def _nest(nest: Nest) -> Iterable[str]:
    loops = [f"for {axis.name} in {axis.extent}" for axis in nest.axes]
    loops += [f"reduce {axis.name} in {axis.extent}" for axis in nest.reduction]
    yield ", ".join([f"nest %{nest.value}: {nest.dtype.value}", *loops])
    yield from (f"  {number}: {_statement(s)}" for number, s in enumerate(nest.body))
    mode = "" if nest.scatter in (None, StoreMode.SET) else f" {nest.scatter.value}"
    yield f"  store{mode} %{nest.value}[{_list(nest.index)}] = {nest.result}"


def _statement(statement: NestStatement) -> str:
    """A statement. `%4` is a value of the graph, 4 a statement, `#4` the index that it reads."""
    match statement:
        case Read(value, index, mask, other):
            masked = "" if mask is None else f" if {mask} else {other}"
            return f"read %{value}[{_list(index)}]{masked}"
        case Indirect(name, value, extent):
            return f"{_index_name(name)} = indirect {value} in {extent}"
        case _:
            return f"{statement.dtype.value} {print_value(statement).replace('%', '')}"


def _fused_step(step: Group | Node) -> Iterable[str]:
    if isinstance(step, Node):
        yield f"extern {step.attr('op')} -> {_values(step.results)}"
        return
    loops = [f"{'reduce' if a.is_reduction else 'for'} {a.name} in {a.extent}" for a in step.axes]
    yield f"group: {', '.join(loops) or 'no loops'}"
    for member in step.members:
        value = member.nest.value
        yield f"  %{value}[{_list(step.positions[value])}]"
    reads = dict.fromkeys(f"  reads %{value}[{_list(index)}]" for value, index in step.reads)
    yield from reads


def _built_step(step: PlannedLaunch | Node) -> str:
    if isinstance(step, Node):
        return f"step: extern {step.attr('op')} -> {_values(step.results)}"
    sizes = f"; {_list(step.sizes)}" if step.sizes else ""
    return f"step: launch {step.kernel}({_values(step.values)}{sizes})"


def _values(values: Iterable[int]) -> str:
    return ", ".join(f"%{value}" for value in values)


def _list(exprs: Iterable[Expr]) -> str:
    return ", ".join(str(_with_index_names(expr)) for expr in exprs)


def _with_index_names(expr: Expr) -> Expr:
    return expr.substitute({name: symbol(_index_name(name)) for name in sorted(expr.symbols)})


def _index_name(name: str) -> str:
    return name.replace("%", "#")


def _notes(notes: Iterable[str]) -> Iterable[str]:
    return (f"note: {note}" for note in notes)


def _text(*blocks: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in chain.from_iterable(blocks))


def print_contractions(choice: ContractionChoice) -> str:
    """The results that kernels compute, and of which images, and what decided."""
    found = [
        f"%{choice.images[result]} -> %{result}" if result in choice.images else f"%{result}"
        for result in sorted(choice.results)
    ]
    return "\n".join([f"by kernels: {', '.join(found) or 'none'}", *choice.notes]) + "\n"
