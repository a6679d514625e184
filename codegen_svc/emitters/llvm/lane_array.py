"""An array on the stack with the value of a statement for each lane."""

from __future__ import annotations

from codegen_svc.emitters.llvm.element_types import memory_type
from codegen_svc.emitters.llvm.text import FunctionText, Value
from codegen_svc.emitters.llvm.values import Scope, from_memory, to_memory
from kernelfarm.dtypes import DType
from kernelfarm.ir.loop_ir import Axis


class LaneArray:
    """An array on the stack, with the value of a statement for each lane."""

    def __init__(self, fn: FunctionText, number: int, dtype: DType, lane: Axis) -> None:
        self.number = number
        self._fn, self._dtype, self._lane = fn, dtype, lane
        count = max(lane.extent.as_int(), 2)
        self._array = fn.alloca(f"kept{number}", memory_type(dtype), count)

    def write(self, value: Value, scope: Scope) -> None:
        """Stores the value of the scope's lane."""
        stored = to_memory(self._fn, value, self._dtype)
        self._fn.store(stored, self._address(scope), self._dtype.itemsize_bytes)

    def read(self, scope: Scope) -> Value:
        """Loads the value of the scope's lane."""
        kind, size = memory_type(self._dtype), self._dtype.itemsize_bytes
        return from_memory(self._fn, self._fn.load(kind, self._address(scope), size), self._dtype)

    def _address(self, scope: Scope) -> Value:
        at = scope.symbols[self._lane.name]
        return self._fn.element(memory_type(self._dtype), self._array, at)
