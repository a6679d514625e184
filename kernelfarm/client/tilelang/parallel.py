"""Writes loops over T.Parallel: statements on whole blocks, because iterations are independent."""

from __future__ import annotations

from collections.abc import Sequence

from kernelfarm.client.tilelang.emission import Emission
from kernelfarm.client.tilelang.expressions import Value
from kernelfarm.client.tilelang.program import Branch, Let, Parallel, Statement, Store, Tensor
from kernelfarm.client.tilelang.syntax import refuse
from kernelfarm.client.tilelang.tiles import block_shape, shape_text, tile_name
from kernelfarm.dtypes import DType


class ParallelWriter:
    """Writes the statements of lanes."""

    def __init__(self, emission: Emission) -> None:
        self._out = emission

    def write(self, statement: Parallel) -> None:
        """Writes a loop.

        Raises:
            TileProgramError: a statement is outside of what is accepted.
        """
        names, extents = [n for n, _ in statement.axes], [extent for _, extent in statement.axes]
        with self._out.over(extents, names):
            self._block(statement.body, ())

    def _block(self, body: Sequence[Statement], conditions: tuple[Value, ...]) -> None:
        for statement in body:
            match statement:
                case Let():
                    self._out.let(statement)
                case Store():
                    self._store(statement, conditions)
                case Branch():
                    self._branch(statement, conditions)

    def _branch(self, statement: Branch, conditions: tuple[Value, ...]) -> None:
        condition = self._out.value(statement.condition)
        if condition.truth is not None:
            taken = statement.then if condition.truth else statement.otherwise
            self._block(taken, conditions)
            return
        name = self._out.new_name("condition")
        self._out.emit(f"{name} = {condition.text}")
        holds = Value(name, DType.BOOL, axes=condition.axes)
        self._block(statement.then, (*conditions, holds))
        if statement.otherwise:
            fails = Value(f"({name} == 0)", DType.BOOL, axes=condition.axes)
            self._block(statement.otherwise, (*conditions, fails))

    def _store(self, statement: Store, conditions: tuple[Value, ...]) -> None:
        out, buffer = self._out, statement.buffer
        value = out.value(statement.value)
        if isinstance(buffer, Tensor):
            indices = [out.value(index) for index in statement.indices]
            out.store(buffer, indices, value, conditions, is_atomic=statement.is_atomic)
            return
        if statement.is_atomic:
            refuse(statement.value, "an atomic addition to a tile")
        axes = out.tile_axes(buffer, statement.indices, statement.value)
        named = [axis for axis in axes if axis is not None]
        if not out.lanes.wide_axes <= frozenset(named):
            refuse(statement.value, f"several lanes that store one element of {buffer.name}")
        in_order = named == sorted(named)
        if conditions and not (in_order and len(axes) == len(out.lanes.extents)):
            refuse(
                statement.value,
                "a conditional store to a tile with the lanes' axes in another order",
            )
        text = out.lanes.filled(value, buffer.dtype)
        if not in_order:
            kept = sorted(named)
            text = f"tl.reshape({text}, {shape_text([out.lanes.shape[axis] for axis in kept])})"
            text = f"tl.permute({text}, {shape_text([kept.index(axis) for axis in named])})"
        shape = block_shape(buffer.shape)
        if not in_order or out.lanes.shape != shape:
            text = f"tl.reshape({text}, {shape_text(shape)})"
        for condition in conditions:
            text = f"tl.where({condition.text}, {text}, {tile_name(buffer)})"
        out.emit(f"{tile_name(buffer)} = {text}")
