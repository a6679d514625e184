"""The meaning of a loop kernel, computed over its whole iteration space at once.

Shapes:
    a value: one axis for each outer and reduction axis, of extent 1 if the value does not vary
        over it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from kernelfarm.errors import VerificationError
from kernelfarm.ir.interpret.arrays import Array, IntArray, evaluate_over, numpy_dtype
from kernelfarm.ir.interpret.orders import sorted_positions
from kernelfarm.ir.interpret.reductions import reduce_axes, scan_axis
from kernelfarm.ir.interpret.scalar_ops import compute
from kernelfarm.ir.interpret.scatters import scatter_into
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
    scattering_stores,
    varying_values,
)


def run_kernel(kernel: Kernel, buffers: Mapping[str, Array], sizes: Mapping[str, int]) -> None:
    """Runs a kernel on flat buffers, which it writes in place.

    Shapes:
        buffers: for each parameter (n,) with its element type.

    Raises:
        IndexError: an index read from memory is outside its extent.
        VerificationError: an access outside its buffer, or a buffer of another element type.
    """
    _Run(kernel, buffers, sizes).run()


class _Run:
    """One launch: the buffers, the loop variables as arrays, and the values computed so far."""

    def __init__(
        self, kernel: Kernel, buffers: Mapping[str, Array], sizes: Mapping[str, int]
    ) -> None:
        self.kernel = kernel
        self.buffers = buffers
        axes = (*kernel.outer, *kernel.reduction)
        self.rank = len(axes)
        self.extents = tuple(int(axis.extent.evaluate(sizes)) for axis in axes)
        self.names: dict[str, IntArray] = dict(sizes)
        for position, axis in enumerate(axes):
            shape = [1] * self.rank
            shape[position] = self.extents[position]
            self.names[axis.name] = np.arange(self.extents[position]).reshape(shape)
        self.values: list[Array | None] = []
        self.scatters = scattering_stores(kernel)
        self.varying = varying_values(kernel)
        for param in kernel.params:
            self._check_buffer(param.name)

    def run(self) -> None:
        if 0 in self.extents[: len(self.kernel.outer)]:
            return
        for number, statement in enumerate(self.kernel.body):
            self.values.append(self._run_statement(number, statement))

    def _run_statement(self, number: int, statement: Statement) -> Array | None:
        match statement:
            case Store():
                self._store(number, statement)
                return None
            case Indirect():
                self._indirect(number, statement)
                return None
            case Load():
                return self._load(number, statement)
            case _:
                return self._compute(statement)

    def _compute(self, statement: Literal | IndexValue | Compute | Reduce | Scan | Sort) -> Array:
        match statement:
            case Literal(dtype, value):
                return np.full((1,) * self.rank, value, numpy_dtype(dtype))
            case IndexValue(dtype, expr):
                index = np.asarray(evaluate_over(expr, self.names))
                return self._of_rank(index.astype(numpy_dtype(dtype)))
            case Compute(op, operands, dtype):
                return compute(op, [self._value(operand) for operand in operands], dtype)
            case Reduce():
                return self._reduce(statement)
            case Scan():
                return self._scan(statement)
            case Sort(operand, descending):
                rows, shape = self._rows(self._value(operand))
                return sorted_positions(rows, rows.ndim - 1, descending=descending).reshape(shape)

    def _value(self, number: int) -> Array:
        value = self.values[number]
        if value is None:
            raise VerificationError(f"kernel {self.kernel.name}: statement {number} has no value")
        return value

    def _load(self, number: int, load: Load) -> Array:
        buffer = self.buffers[load.param]
        index = self._of_rank(np.asarray(evaluate_over(load.index, self.names)))
        if load.mask is None or load.other is None:
            self._check_bounds(number, load.param, index)
            return np.asarray(buffer[index])
        mask, other = self._value(load.mask), self._value(load.other)
        index, mask = np.broadcast_arrays(index, mask)
        self._check_bounds(number, load.param, index[mask])
        if not buffer.size:
            return np.broadcast_to(other, index.shape)
        return np.where(mask, buffer[np.where(mask, index, 0)], other).astype(buffer.dtype)

    def _reduce(self, reduce: Reduce) -> Array:
        value = self._value(reduce.operand)
        outer = len(self.kernel.outer)
        # The operand may vary over only some reduction axes, but the reduction is over all of them.
        whole = np.broadcast_to(value, value.shape[:outer] + self.extents[outer:])
        return reduce_axes(reduce.op, whole, tuple(range(outer, self.rank)), reduce.dtype)

    def _scan(self, scan: Scan) -> Array:
        rows, shape = self._rows(self._value(scan.operand))
        return scan_axis(scan.op, rows, rows.ndim - 1, scan.dtype).reshape(shape)

    def _rows(self, value: Array) -> tuple[Array, tuple[int, ...]]:
        """The value with all reduction points as one last axis, and its shape over all axes."""
        outer = len(self.kernel.outer)
        whole = np.broadcast_to(value, value.shape[:outer] + self.extents[outer:])
        return whole.reshape((*value.shape[:outer], math.prod(self.extents[outer:]))), whole.shape

    def _indirect(self, number: int, indirect: Indirect) -> None:
        index = self._value(indirect.value).astype(np.int64)
        extent = evaluate_over(indirect.extent, self.names)
        outside = (index < -extent) | (index >= extent)
        if outside.any():
            worst = int(index[outside].ravel()[0])
            raise IndexError(
                f"kernel {self.kernel.name}, statement {number}: index {worst};"
                f" expected one from -{extent} to {extent} - 1"
            )
        self.names[indirect.symbol] = np.where(index < 0, index + extent, index)

    def _store(self, number: int, store: Store) -> None:
        index = self._of_rank(np.asarray(evaluate_over(store.index, self.names)))
        index, value = np.broadcast_arrays(index, self._value(store.value))
        self._check_bounds(number, store.param, index)
        if number not in self.scatters:
            self.buffers[store.param][index] = value
            return
        # Every point stores, also along axes over which neither index nor value varies.
        outer = len(self.kernel.outer)
        points = self.extents if number in self.varying else self.extents[:outer]
        shape = (*points, *index.shape[len(points) :])
        index, value = (np.broadcast_to(array, shape).reshape(-1) for array in (index, value))
        scatter_into(self.buffers[store.param], index, value, store.mode)

    def _of_rank(self, array: Array) -> Array:
        return array.reshape((1,) * self.rank) if array.ndim != self.rank else array

    def _check_bounds(self, number: int, param: str, index: Array) -> None:
        size = self.buffers[param].size
        if index.size and (index.min() < 0 or index.max() >= size):
            raise VerificationError(
                f"kernel {self.kernel.name}, statement {number}: accesses {param} from"
                f" {index.min()} to {index.max()}; expected 0 to {size - 1}"
            )

    def _check_buffer(self, name: str) -> None:
        expected = numpy_dtype(self.kernel.param(name).dtype)
        buffer = self.buffers[name]
        if buffer.dtype != expected or buffer.ndim != 1:
            raise VerificationError(
                f"kernel {self.kernel.name}: buffer {name} is {buffer.dtype} of rank {buffer.ndim};"
                f" expected {expected} of rank 1"
            )
