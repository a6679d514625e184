"""The number of blocks of a launch, from the values of the program's sizes."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Final

from kernelfarm.client.tilelang.program import TileProgram
from kernelfarm.errors import TileProgramError

_OPERATIONS: Final[Mapping[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def grid_of(program: TileProgram, sizes: Mapping[str, int]) -> tuple[int, int, int]:
    """The blocks along x, y and z.

    Raises:
        TileProgramError: a size has no value, or a count is no sum, product or quotient of sizes.
    """
    counts = [number_of(count, sizes) for _, count in program.grid]
    x, y, z = (*counts, 1, 1, 1)[:3]
    return x, y, z


def number_of(node: ast.expr, sizes: Mapping[str, int]) -> int:
    """A whole number that an expression of sizes gives.

    Raises:
        TileProgramError: a size has no value, or the expression is no such one.
    """
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id=name) if name in sizes:
            return sizes[name]
        case ast.Name(id=name):
            raise TileProgramError(f"the size {name} has no value")
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
            a, b = number_of(left, sizes), number_of(right, sizes)
            if b or type(op) not in (ast.FloorDiv, ast.Mod):
                return _OPERATIONS[type(op)](a, b)
        case ast.Call(func=ast.Attribute(attr="min" | "max" as name), args=[left, right]):
            chosen = min if name == "min" else max
            return chosen(number_of(left, sizes), number_of(right, sizes))
    raise TileProgramError(
        f"a size or a number of blocks that is {ast.unparse(node)} is not accepted; expected sums,"
        " products and quotients of sizes"
    )
