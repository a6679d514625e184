"""Writes a group as one kernel: its members in order, equal statements once, its values in SSA."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from kernelfarm.dtypes import DType
from kernelfarm.errors import InternalError
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr, symbol
from kernelfarm.ir.algebra.simplify import Bounds, Range
from kernelfarm.ir.loop_ir import (
    Access,
    Axis,
    Compute,
    IndexValue,
    Indirect,
    Kernel,
    Load,
    Param,
    Reduce,
    Statement,
    Store,
    StoreMode,
)
from kernelfarm.ir.program_ir import BufferKind
from optimizer_svc.analysis.storages import Storage, StorageId, span_elems
from optimizer_svc.ir.group import Group, Member, domain_bounds
from optimizer_svc.ir.nest import (
    NestStatement,
    Read,
    substituted,
    varying_numbers,
    with_indices,
    with_operands,
)
from optimizer_svc.lowering.nest_body import NestBody


@dataclass(frozen=True, slots=True)
class KernelDraft:
    """A kernel with provisional names, and the values of its parameters."""

    kernel: Kernel
    values: tuple[int, ...]


_ORDER = (Access.READ, Access.READ_WRITE, Access.WRITE)


def assemble_kernel(
    group: Group,
    storages: Mapping[int, Storage],
    stored: Collection[int],
    sizes: Bounds,
    origin_ops: Sequence[str] = (),
    unrounded: Collection[int] = (),
) -> KernelDraft:
    """The kernel that computes a group and stores those of its values that are in `stored`.

    `origin_ops` are names of the captured operators, for comments. Values in `unrounded` that are
    not stored stay in f32.
    """
    body = _GroupBody(group, storages, sizes, frozenset(unrounded).difference(stored))
    for member in group.members:
        body.append(member)
    writer = _Writer(storages)
    numbers: dict[int, int] = {}
    in_place: list[tuple[int, int]] = []
    for number, statement in enumerate(body.statements):
        numbers[number] = writer.add(statement, numbers)
        for value in body.made_by(number):
            if value not in stored or value in body.scattered:
                continue
            if storages[value].kind is BufferKind.INPUT:
                in_place.append((value, numbers[number]))
            else:
                writer.store(value, group.positions[value], numbers[number])
    for value, made in in_place:  # after all loads of old elements
        writer.store(value, group.positions[value], made)
    for value, (index, mode, made) in body.scattered.items():  # last: they use indirect symbols
        writer.scatter(value, index, numbers[made], mode)
    ordered = sorted(writer.params.values(), key=lambda item: _ORDER.index(item[1].access))
    kernel = Kernel(
        name="fused",
        params=tuple(param for _, param in ordered),
        sizes=(),
        outer=tuple(Axis(a.name, a.extent) for a in group.outer),
        reduction=tuple(Axis(a.name, a.extent) for a in group.reduction),
        body=tuple(writer.body),
        comments=_comments(group, origin_ops),
    )
    return KernelDraft(kernel, tuple(value for value, _ in ordered))


class _GroupBody:
    """The statements of all members over the group's axes, equal ones once."""

    def __init__(
        self,
        group: Group,
        storages: Mapping[int, Storage],
        sizes: Bounds,
        unrounded: Collection[int],
    ) -> None:
        self._body = NestBody()
        self._storages = storages
        self._unrounded = unrounded
        self._bounds = domain_bounds(sizes, group.axes)
        self._values: dict[int, int] = {}
        self.scattered: dict[int, tuple[tuple[Expr, ...], StoreMode, int]] = {}
        self._reduced = [axis.name for axis in group.reduction]

    @property
    def statements(self) -> list[NestStatement]:
        return self._body.statements

    def made_by(self, number: int) -> list[int]:
        """The members' values that a statement computes."""
        return [value for value, made in self._values.items() if made == number]

    def append(self, member: Member) -> None:
        """Adds a nest; the members that it reads must have been added before."""
        axis_map = dict(member.axis_map)
        numbers: list[int] = []
        for statement in member.nest.body:
            moved = with_operands(with_indices(statement, axis_map, self._bounds), numbers)
            numbers.append(self._add(moved, axis_map))
        nest, body = member.nest, self._body
        result = body.convert(numbers[nest.result], nest.dtype)
        self._values[nest.value] = (
            body.before_conversion(result) if nest.value in self._unrounded else result
        )
        if nest.scatter is not None:
            self.scattered[nest.value] = (
                substituted(nest.index, axis_map, self._bounds),
                nest.scatter,
                result,
            )

    def _add(self, statement: NestStatement, axis_map: dict[str, Expr]) -> int:
        body = self._body
        match statement:
            case Indirect(symbol=name, value=value, extent=extent):
                fresh = f"%{len(body.statements)}"
                number = body.add(Indirect(fresh, value, extent), body.dtypes[value])
                made = body.statements[number]
                if not isinstance(made, Indirect):
                    raise InternalError(f"statement {number} is {made}; expected an indirect index")
                axis_map[name] = symbol(made.symbol)
                self._bounds.add_range(made.symbol, Range(ZERO, extent - ONE))
                return number
            case IndexValue(dtype=dtype, expr=expr):
                return body.index_value(expr, dtype)
            case Read():
                return self._read(statement)
            case Compute(op="convert", operands=(operand,), dtype=dtype):
                return body.convert(operand, dtype)
            case Reduce(operand=operand):
                varying = replace(statement, operand=self._varying(operand))
                return body.add(varying, statement.dtype)
            case _:
                return body.add(statement, statement.dtype)

    def _read(self, read: Read) -> int:
        made = self._values.get(read.value)
        if made is not None:
            return made
        return self._body.add(self._over_own_axes(read), self._storages[read.value].dtype)

    def _over_own_axes(self, read: Read) -> Read:
        """The read without the axes of stride 0, along which it does not move."""
        strides = self._storages[read.value].strides
        index = zip(read.index, strides, strict=True)
        return replace(read, index=tuple(ZERO if step is ZERO else part for part, step in index))

    def _varying(self, operand: int) -> int:
        """The operand of a reduction as a value that varies over its axes, as the IR requires."""
        body = self._body
        if operand in varying_numbers(body.statements, self._reduced):
            return operand
        here, zero = body.index_value(symbol(self._reduced[0])), body.index_value(ZERO)
        always = body.compute("ge", (here, zero), DType.BOOL)
        return body.compute("where", (always, operand, operand), body.dtypes[operand])


class _Writer:
    """Turns statements over graph values into statements over buffers."""

    def __init__(self, storages: Mapping[int, Storage]) -> None:
        self.body: list[Statement] = []
        self.params: dict[StorageId, tuple[int, Param]] = {}
        self._storages = storages

    def add(self, statement: NestStatement, numbers: Mapping[int, int]) -> int:
        """Appends a statement whose operands have the numbers given; returns its own number."""
        renumbered = with_operands(statement, numbers)
        if isinstance(renumbered, Read):
            param = self._param(renumbered.value, "in", Access.READ)
            index = self._position(renumbered.value, renumbered.index)
            self.body.append(Load(param.name, index, renumbered.mask, renumbered.other))
        else:
            self.body.append(renumbered)
        return len(self.body) - 1

    def store(self, value: int, index: tuple[Expr, ...], number: int) -> None:
        """Appends the store of a value."""
        param = self._param(value, "out", Access.WRITE)
        if param.access is Access.READ:  # an input that is loaded and updated
            param = replace(param, access=Access.READ_WRITE)
            self.params[self._storages[value].storage_id] = value, param
        self.body.append(Store(param.name, self._position(value, index), number))

    def scatter(self, value: int, index: tuple[Expr, ...], number: int, mode: StoreMode) -> None:
        """Appends an update of a value's memory."""
        param = self._param(value, "inout", Access.READ_WRITE)
        self.body.append(Store(param.name, self._position(value, index), number, mode))

    def _param(self, value: int, kind: str, access: Access) -> Param:
        storage = self._storages[value]
        found = self.params.get(storage.storage_id)
        if found is None:
            count = sum(param.access is access for _, param in self.params.values())
            found = value, Param(f"{kind}{count}", storage.dtype, span_elems(storage), access)
            self.params[storage.storage_id] = found
        return found[1]

    def _position(self, value: int, index: tuple[Expr, ...]) -> Expr:
        total = ZERO
        for part, stride in zip(index, self._storages[value].strides, strict=True):
            total = total + part * stride
        return total


def _comments(group: Group, origin_ops: Sequence[str]) -> tuple[str, ...]:
    """One line for each captured operator: its prims in this kernel."""
    prims: dict[int, dict[str, None]] = {}
    for member in group.members:
        for op, number in member.nest.origins:
            if op != "full":
                prims.setdefault(number, {})[op] = None
    return tuple(
        f"{_origin(number, origin_ops)}: {', '.join(ops)}" for number, ops in sorted(prims.items())
    )


def _origin(number: int, origin_ops: Sequence[str]) -> str:
    if number >= len(origin_ops):
        return f"captured node {number}"
    return f"{origin_ops[number].removesuffix('.default')} <- captured node {number}"
